"""Figures of jobs, of their run times, waits, ends and owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.metrics.history import (
    COMPLETED,
    NOT_ENDED,
    STATES,
    TIMEOUT,
    UNKNOWN,
    CensoredTimes,
    Flags,
    Floats,
    StudyHistory,
    share,
)
from helios.metrics.trials import alike_keys, ends_s
from helios.study.figures.source import (
    FEW_PEOPLE,
    FEWEST_PEOPLE,
    FOOTNOTES,
    SIZES,
    THE_REST,
    Axis,
    FigureData,
    FigureSource,
    Panel,
    Series,
    published,
    quantile_series,
    series,
)
from helios.units import duration_in_words, percent, write_count

RUN_TIMES_S = tuple(2**power for power in range(22))
CLAMPED = 0.005
"""Share of jobs at exactly the longest run time from which on run times were probably cut."""
FEWEST_FOR_CLAMP = 200
"""Fewest jobs from which a common longest run time is evidence of a cut."""
WAIT_SHARES = {"half": 0.5, "9 in 10": 0.9, "99 in 100": 0.99}
SPREAD = {"5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95}
REPEATS = {"none": 0, "1": 1, "2-9": 2, "10-99": 10, "100 or more": 100}
FEWEST_CPU_JOBS = 100
FEW_SINGLE = 0.05
"""Share of jobs of one unit below which the title is about something else."""
NO_STARTS = "when jobs started is not recorded here"
NO_USERS = "users are not recorded here"
WAIT = (
    "Wait: from eligible (else submission) to the first start. Who was cancelled or still waits waited at least as long"
)


def run_times(source: FigureSource) -> FigureData | str:
    """Return how long jobs run, by jobs and by hours."""
    history, unit = source.history, source.history.unit
    times = source.run_times(source.sized)
    if not times.n:
        return "run times are not recorded here"
    ended = source.sized & np.isfinite(history.run_time_s) & ~source.never_ran
    hours = _WeightedTimes(history.run_time_s[ended], source.hours[ended])
    # The last point holds every job, so that the curve ends where the data does.
    limits_s = RUN_TIMES_S[: 1 + int(np.searchsorted(RUN_TIMES_S, times.times_s[-1]))]
    curves = [series(f"{unit} jobs", limits_s, 100 * times.share_within(limits_s))]
    if hours.total > 0:
        curves.append(series(f"{unit} hours in them", limits_s, 100 * hours.share_within(limits_s)))
    of_gpus = history.resource == "gpus"
    panels = [
        _run_time_panel("", f"% of {unit} jobs, of their hours", curves, f"{'gpu' if of_gpus else 'cpu'}_run_time")
    ]
    other_times = source.run_times(history.submitted & history.without)
    if of_gpus and other_times.n >= FEWEST_CPU_JOBS:
        other_curves = [series("jobs without GPUs", limits_s, 100 * other_times.share_within(limits_s))]
        panels.append(_run_time_panel("Jobs without GPUs", "% of jobs without GPUs", other_curves, "cpu_run_time"))
    median_s = times.quantile(0.5)
    title = (
        f"Half of the {unit} jobs run {duration_in_words(median_s)} or less"
        if np.isfinite(median_s)
        else f"Less than half of the {unit} jobs have ended"
    )
    if hours.total > 0:
        title += f"; half of the {unit} hours are in runs of {duration_in_words(hours.quantile(0.5))} or more"
    return FigureData(
        title=f"{title}.",
        definition=(
            f"Share of the jobs that ran, and of their {unit} hours inside the window, in runs of at most so long; "
            f"all final states" + (f"; {times.censored:,} still running, by Kaplan and Meier" if times.censored else "")
        ),
        n=times.n,
        coverage=times.n / max(1, source.n - int((source.never_ran & source.sized).sum())),
        panels=tuple(panels),
        notes=tuple(note for note in (clamp(history), FOOTNOTES["run_times" if of_gpus else "cpu_run_times"]) if note),
    )


def clamp(history: StudyHistory) -> str:
    """Return a note that run times were probably cut, else empty."""
    run_times_s = history.run_time_s[history.sized & np.isfinite(history.run_time_s)]
    if len(run_times_s) < FEWEST_FOR_CLAMP:
        return ""
    longest_s = float(run_times_s.max())
    at_longest = float((run_times_s == longest_s).mean())
    if at_longest < CLAMPED or longest_s == float(run_times_s.min()):
        return ""
    return (
        f"{percent(at_longest, 1)} of the jobs ran exactly {duration_in_words(longest_s)}, the longest run time here: "
        "run times were probably cut there, and what lies above is missing from every sum of hours."
    )


def sizes(source: FigureSource) -> FigureData | str:
    """Return how large jobs are, by jobs and by hours."""
    history, unit = source.history, source.history.unit
    if not source.n:
        return f"no job of the window asks for {unit}s"
    size, hours = history.size[source.sized], source.hours[source.sized]
    powers = 2 ** np.arange(max(4, int(np.ceil(np.log2(size.max()))) + 1))
    by_jobs = _WeightedTimes(size.astype(np.float64), np.ones(len(size)))
    by_hours = _WeightedTimes(size.astype(np.float64), hours)
    panels = [_size_panel(f"% of {unit} jobs", powers, by_jobs, "size_jobs", history)]
    if by_hours.total > 0:
        panels.append(_size_panel(f"% of {unit} hours", powers, by_hours, "size_hours", history))
    single_share, single_hours = float((size == 1).mean()), share(hours[size == 1], hours)
    hours_text = "" if single_hours is None else f" and hold {percent(single_hours)} of the {unit} hours"
    title = f"{percent(single_share)} of the {unit} jobs ask for one {unit}{hours_text}."
    if single_share < FEW_SINGLE:
        median, of_hours = write_count(by_jobs.quantile(0.5)), write_count(by_hours.quantile(0.5))
        half = f", half of the {unit} hours are in jobs of {of_hours} or more" if hours_text else ""
        title = f"Half of the {unit} jobs ask for {median} {unit}s or fewer{half}."
    return FigureData(
        title=title,
        definition=f"Share of the jobs, and of their {unit} hours in the window, in jobs of so many {unit}s or fewer",
        n=source.n,
        coverage=share(np.isfinite(history.run_time_s[source.sized]), np.ones(source.n)),
        covered="jobs with a run time",
        panels=tuple(panels),
        notes=tuple(
            note for note in (clamp(history), FOOTNOTES["sizes"] if history.resource == "gpus" else "") if note
        ),
    )


def waits(source: FigureSource, *, by: tuple[str, ...]) -> FigureData | str:
    """Return waits by partition, size, week or group of users."""
    if not source.history.has_starts or not source.first_waits.any():
        return NO_STARTS
    splits = {split: _split(source, split) for split in by}
    total = source.waits()
    panels = [_wait_panel(source, split, groups) for split, groups in splits.items() if len(groups) > (split != "size")]
    # One group in one week cannot be split.
    panels = panels or [_wait_panel(source, by[0], [("all jobs", total)])]
    return FigureData(
        title=_wait_title(source, total, by[0], splits[by[0]]),
        definition=f"{WAIT}. Jobs submitted in the window, by Kaplan and Meier",
        n=total.n,
        coverage=total.n / max(1, int((source.sized & (source.history.restart == 0)).sum())),
        panels=tuple(panels),
        notes=(f"{total.censored:,} jobs never started or still wait.",) if total.censored else (),
    )


def wait_share(source: FigureSource) -> FigureData | str:
    """Return the share of JCT that jobs wait, by run time."""
    history = source.history
    is_known = source.first_waits & np.isfinite(history.wait_s) & (np.nan_to_num(history.run_time_s) > 0)
    if not is_known.any():
        return NO_STARTS
    wait_s, run_time_s = np.maximum(history.wait_s[is_known], 0), history.run_time_s[is_known]
    jct_s = wait_s + run_time_s
    wait_percent = np.divide(100 * wait_s, jct_s, out=np.zeros(len(jct_s)), where=jct_s > 0)
    median_s = float(np.median(run_time_s))
    short = run_time_s <= median_s
    limits = np.arange(101)
    halves = {f"the short half ({duration_in_words(median_s)} or less)": short, "the long half": ~short}
    curves = [
        series(name, limits, 100 * np.searchsorted(np.sort(wait_percent[jobs]), limits, side="right") / jobs.sum())
        for name, jobs in halves.items()
        if jobs.any()
    ]
    medians = [float(np.median(wait_percent[jobs])) / 100 for jobs in halves.values() if jobs.any()]
    title = f"The median short job spends {percent(medians[0])} of its time waiting"
    return FigureData(
        title=f"{title}, the median long one {percent(medians[1])}." if len(medians) > 1 else f"{title}.",
        definition="Wait / (wait + run time) of jobs that started and ended, split at the median run time",
        n=int(is_known.sum()),
        coverage=share(is_known, source.sized),
        panels=(
            Panel(
                "line",
                Axis("percent", "% of its time that a job waited, at most"),
                Axis("percent", "% of jobs"),
                curves,
            ),
        ),
    )


def states(source: FigureSource) -> FigureData | str:
    """Return how jobs end by size, by jobs and by hours."""
    history, unit = source.history, source.history.unit
    known = source.sized & ~np.isin(history.state, (UNKNOWN, NOT_ENDED))
    if not known.any():
        return "how jobs ended is not recorded here"
    hours = source.hours
    panels = [_state_panel(source, f"% of {unit} jobs", known, known.astype(np.float64))]
    title = f"{percent(share(known & (history.state != COMPLETED), known))} of the {unit} jobs did not end completed"
    if float(hours[known].sum()) > 0:
        panels.append(_state_panel(source, f"% of {unit} hours", known, hours))
        shares = {name: share(hours[known & (history.state == code)], hours[known]) for code, name in enumerate(STATES)}
        lost = sorted(((part or 0.0, name) for name, part in shares.items() if name != "completed"), reverse=True)
        named = ", ".join(f"{percent(part)} {_state_name(name)}" for part, name in lost[:3] if part >= 0.005)
        title = f"{percent(1 - (shares['completed'] or 0.0))} of the {unit} hours did not end completed"
        title += f": {named}" if named else ""
    return FigureData(
        title=f"{title}.",
        definition=(
            f"Final states of the jobs submitted in the window, and their {unit} hours inside it. Cancelled is not "
            "failed: people stop what they have seen enough of"
        ),
        n=int(known.sum()),
        coverage=share(known, source.sized),
        panels=tuple(panels),
    )


def limits(source: FigureSource) -> FigureData | str:
    """Return how much longer limits are than runs, by partition."""
    history, unit = source.history, source.history.unit
    ended = source.sized & ((history.state == COMPLETED) | (history.state == TIMEOUT))
    limited = ended & np.isfinite(history.time_limit_s) & (history.time_limit_s > 0)
    is_known = limited & (np.nan_to_num(history.run_time_s) > 0)
    if not is_known.any():
        return "time limits of jobs that completed are not recorded here"
    ratio = np.divide(history.time_limit_s, history.run_time_s, out=np.ones(len(is_known)), where=is_known)
    hours = history.size * np.nan_to_num(history.run_time_s) / 3600
    groups = [("all jobs", is_known)]
    if len(source.partitions) > 1:
        groups += [(name, is_known & jobs) for name, jobs, _ in source.partitions]
    times_by_group = [(name, _WeightedTimes(ratio[jobs], hours[jobs])) for name, jobs in groups if jobs.any()]
    total = times_by_group[0][1]
    return FigureData(
        title=f"Half of the {unit} hours are in jobs whose limit is {total.quantile(0.5):.1f} times their run or more.",
        definition=f"Limit / run time of COMPLETED and TIMEOUT jobs, weighted by {unit} hours; 5, 25, 50, 75, 95 %",
        n=int(is_known.sum()),
        coverage=share(is_known, ended),
        covered="jobs that completed or timed out",
        panels=(
            Panel(
                "range",
                Axis("name", "partition"),
                Axis("ratio", "limit / run time"),
                quantile_series(
                    [group for group, _ in times_by_group], [times.quantile for _, times in times_by_group], SPREAD
                ),
            ),
        ),
    )


def users(source: FigureSource) -> FigureData | str:
    """Return how unequal users are in hours, in waiting and in completion."""
    history, unit = source.history, source.history.unit
    known = source.sized & history.user.known
    if not known.any():
        return NO_USERS
    hours, waited = history.user.sum(source.hours), history.user.sum(source.wait_hours)
    active = hours > 0
    n = int(active.sum())
    if n < FEWEST_PEOPLE:
        return f"fewer than {FEWEST_PEOPLE} users have {unit} hours here"
    curves = [_lorenz(f"{unit} hours", hours[active])]
    if float(waited[active].sum()) > 0:
        curves.append(_lorenz("time waited", waited[active]))
    panels = [
        Panel(
            "line",
            Axis("percent", "% of users, largest first"),
            Axis("percent", "% of the total"),
            curves,
            title="Who holds, who waits",
        )
    ]
    ended = known & ~np.isin(history.state, (UNKNOWN, NOT_ENDED))
    if ended.any():
        jobs = history.user.sum(ended.astype(np.float64))
        completed = history.user.sum((ended & (history.state == COMPLETED)).astype(np.float64))
        decile_of_user = np.minimum((10 * completed[jobs > 0] / jobs[jobs > 0]).astype(np.int64), 9)
        shares = [f"{10 * decile}-{10 * decile + 10}" for decile in range(10)]
        panels.append(
            Panel(
                "bars",
                Axis("name", "% of a user's jobs"),
                Axis("number", "users"),
                [series("users", shares, np.bincount(decile_of_user, minlength=10))],
                title="Users by share of their jobs that complete",
            )
        )
    top = max(1, round(0.05 * n))
    largest = np.sort(hours[active])[::-1]
    return FigureData(
        title=f"The top 5 % of users ({top} of {n:,}) hold {percent(share(largest[:top], largest))} of {unit} hours.",
        definition=(
            f"Users with {unit} hours in the window, sorted down in each curve; waiting is that in the window of their "
            f"{unit} jobs for their first start. Completion: of each user's {unit} jobs that ended"
        ),
        n=n,
        noun="users",
        coverage=share(source.hours[history.user.known], source.hours),
        covered=f"{unit} hours",
        panels=tuple(panels),
        notes=(
            "Published curves of users are not drawn: they count people without any GPU job, too.",
            *(() if len(curves) > 1 or history.has_starts else (f"Waiting is not shown: {NO_STARTS}.",)),
        ),
    )


def repetition(source: FigureSource) -> FigureData | str:
    """Return how many earlier jobs like it each job has."""
    history = source.history
    is_known = source.sized & history.user.known
    if not is_known.any():
        return NO_USERS
    n_before = _ended_before(history)[is_known]
    row = np.searchsorted(list(REPEATS.values()), n_before, side="right") - 1
    counts = np.bincount(row, minlength=len(REPEATS))
    keys = ["user", "account", "size", *(["words of the name"] if history.stem.known.any() else [])]
    return FigureData(
        title=f"{percent(float((n_before > 0).mean()))} of the jobs repeat one that had ended before.",
        definition=f"Earlier jobs of the same {', '.join(keys)} that had ended when a job was submitted",
        n=int(is_known.sum()),
        coverage=share(is_known, source.sized),
        panels=(
            Panel(
                "bars",
                Axis("name", "earlier jobs alike"),
                Axis("percent", "% of jobs"),
                [series("jobs", list(REPEATS), 100 * counts / counts.sum())],
            ),
        ),
        notes=()
        if history.has_starts
        else ("Ends are not recorded: jobs are taken to start when they are submitted.",),
    )


def holds(noun: str, name: str) -> str:
    """Return a subject with its verb, as ``User alice holds``."""
    return f"{name.capitalize()} hold" if name in {THE_REST, FEW_PEOPLE} else f"{noun.capitalize()} {name} holds"


def holders(source: FigureSource) -> FigureData | str:
    """Return who holds most and who waits most.

    These are users for the admin, and groups for others.
    """
    history, unit, admin = source.history, source.history.unit, source.audience == "admin"
    if admin and history.user.known.any():
        noun, names = "user", history.user
    elif source.groups is not None:
        noun, names = source.groups
    else:
        return "neither users nor accounts nor partitions are recorded here"
    weights = [(f"of {unit} hours", source.hours), ("of the hours waited", source.wait_hours)]
    weights = [(name, weight) for name, weight in weights if float(weight.sum()) > 0]
    if not weights:
        return "neither run times nor starts are recorded here"
    labels, group_of_job = source.leading(names, weights[0][1])
    if not any(float(weight[group_of_job == len(labels) - 1].sum()) > 0 for _, weight in weights):
        labels = labels[:-1]
    bars = []
    for name, weight in weights:
        total = np.bincount(group_of_job, weights=weight, minlength=len(labels))[: len(labels)]
        bars.append(series(name, labels, 100 * total / total.sum()))
    top_percent = bars[0].y[0]
    waiting = f" and {bars[1].y[0]:.0f} % of the hours waited" if len(bars) > 1 else ""
    return FigureData(
        title=f"{holds(noun, labels[0])} {top_percent:.0f} % of the {unit} hours{waiting}.",
        definition=(
            f"The {len(labels) - (THE_REST in labels)} {noun}s with the most {unit} hours inside the window; waiting "
            f"is that in the window of {unit} jobs for their first start, over, given up or not"
        ),
        n=int((np.bincount(names.code[names.known & source.sized], minlength=1) > 0).sum()),
        noun=f"{noun}s",
        coverage=share(source.hours[names.known], source.hours),
        covered=f"{unit} hours",
        panels=(Panel("bars", Axis("name", noun), Axis("percent", "% of the total"), bars),),
    )


def _run_time_panel(title: str, y_unit: str, curves: list[Series], grey: str) -> Panel:
    return Panel("line", Axis("duration", "s"), Axis("percent", y_unit), curves, title=title, beside=published(grey))


class _WeightedTimes:
    """Times, each with a weight."""

    def __init__(self, times_s: Floats, weight: Floats) -> None:
        order = np.argsort(times_s, kind="stable")
        self.times_s = times_s[order]
        self.cumulative_weight = np.concatenate([[0.0], np.cumsum(weight[order])])
        self.total = float(self.cumulative_weight[-1])

    def share_within(self, limits: NDArray[np.float64] | tuple[int, ...]) -> Floats:
        """Return the share of the weight at or below each limit."""
        return self.cumulative_weight[np.searchsorted(self.times_s, limits, side="right")] / self.total

    def quantile(self, part: float) -> float:
        """Return a weighted quantile of the times."""
        place = int(np.searchsorted(self.cumulative_weight[1:], part * self.total * (1 - 1e-12)))
        return float(self.times_s[min(place, len(self.times_s) - 1)])


def _size_panel(
    y_unit: str, limits: NDArray[np.int64], times: _WeightedTimes, grey: str, history: StudyHistory
) -> Panel:
    return Panel(
        "line",
        Axis("size", f"{history.unit}s"),
        Axis("percent", y_unit),
        [series(y_unit.removeprefix("% of "), limits, 100 * times.share_within(limits.astype(np.float64)))],
        beside=published(grey) if history.resource == "gpus" else (),
    )


def _split(source: FigureSource, by: str) -> list[tuple[str, CensoredTimes]]:
    groups: Sequence[tuple[str, NDArray[Any]]]
    if by == "partition":
        groups = [(name, jobs) for name, jobs, _ in source.partitions]
    elif by == "size":
        groups = [(SIZES[group], source.size_class == group) for group in source.sizes]
    else:
        begins_s = source.history.blocks.edges_s.tolist()
        groups = [(str(at_s), jobs) for at_s, jobs in zip(begins_s, source.sized_by_block, strict=False)]
    waits_by_group = [(name, source.waits(jobs)) for name, jobs in groups]
    return [(name, times) for name, times in waits_by_group if times.n]


def _wait_panel(source: FigureSource, by: str, groups: list[tuple[str, CensoredTimes]]) -> Panel:
    unit = source.history.unit
    noun = by
    x = [float(name) if by == "week" else name for name, _ in groups]
    return Panel(
        "line" if by == "week" else "range",
        Axis("date" if by == "week" else "name", {"week": "beginning", "size": f"{unit}s"}.get(by, noun)),
        Axis("duration", "s waited"),
        quantile_series(x, [times.quantile for _, times in groups], WAIT_SHARES, "{} started within"),
        title=f"By {noun if by != 'size' else f'{unit}s'}" if by != "week" else f"By {source.history.blocks.kind[:-1]}",
    )


def _wait_title(source: FigureSource, total: CensoredTimes, noun: str, split: list[tuple[str, CensoredTimes]]) -> str:
    median_s, p90_s = total.quantile(0.5), total.quantile(0.9)
    if not np.isfinite(median_s):
        return "Less than half of the jobs started."
    ninth = f"nine in ten {duration_in_words(p90_s)} or less" if np.isfinite(p90_s) else "one in ten never started"
    title = f"Half of the jobs wait {duration_in_words(median_s)} or less, {ninth}"
    known = [(times.quantile(0.9), name) for name, times in split if np.isfinite(times.quantile(0.9))]
    if len(known) < 2 or max(known)[0] <= 0:
        return f"{title}."
    worst_s, worst = max(known)
    where = f"jobs of {worst} {source.history.unit}s" if worst in SIZES else f"{noun} {worst}"
    return f"{title}; at worst {duration_in_words(worst_s)} ({where})."


def _state_name(name: str) -> str:
    return {"timeout": "at the time limit", "node failed": "by a failed node"}.get(name, name)


def _state_panel(source: FigureSource, y_unit: str, known: Flags, weight: Floats) -> Panel:
    state, n_states = source.history.state[known].astype(np.int64), len(STATES)
    table = np.bincount(
        source.size_class[known] * n_states + state, weights=weight[known], minlength=len(SIZES) * n_states
    ).reshape(len(SIZES), n_states)
    places = [place for place in range(len(SIZES)) if table[place].sum() > 0]
    return Panel(
        "stack",
        Axis("name", f"{source.history.unit}s of a job"),
        Axis("percent", y_unit),
        [
            series(
                _state_name(name),
                [SIZES[size] for size in places],
                [100 * table[size, place] / table[size].sum() for size in places],
            )
            for place, name in enumerate(STATES)
            if table[:, place].any()
        ],
    )


def _lorenz(name: str, held: Floats) -> Series:
    largest = np.sort(held)[::-1]
    x = 100 * np.arange(len(held) + 1) / len(held)
    y = 100 * np.concatenate([[0.0], np.cumsum(largest)]) / largest.sum()
    # A few hundred points draw any curve.
    keep = np.unique(np.concatenate([np.arange(min(len(x), 100)), np.linspace(0, len(x) - 1, 100).astype(np.int64)]))
    return series(name, x[keep], y[keep])


def _ended_before(history: StudyHistory) -> NDArray[np.int64]:
    """Return how many alike jobs had ended at each job's submission."""
    key, ended_s = alike_keys(history), ends_s(history)
    # One number orders jobs by key, then by time, because span_s is longer than the history.
    first_s = int(history.submitted_s.min())
    span_s = int(history.submitted_s.max()) - first_s + 2
    ends = np.sort(key * span_s + np.clip(ended_s - first_s, 0, span_s - 1))
    submitted = key * span_s + history.submitted_s - first_s
    n_earlier = np.searchsorted(ends, submitted, side="left") - np.searchsorted(ends, key * span_s, side="left")
    return n_earlier.astype(np.int64)

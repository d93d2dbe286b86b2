"""Tables of models, of what predictions are worth, and of how one prediction comes about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape

from helios.metrics.queue import QueueSummary
from helios.model import SIZE_CLASSES, SIZE_HEADS
from helios.model.frames import plain
from helios.report.significance import SINGLE_REPLAY, OrderCheck
from helios.report.tables import WIDE, counted, figure, plain_table
from helios.units import duration, duration_in_words, percent

if TYPE_CHECKING:
    from helios.predict.explain import Explained, RecentInGroup


PROMOTED = "*"
NAMES = {"model": "new model", "active": "active model", "user_last": "user's last ended job"}
SHOWN_FEATURES = 10
TRIED = {"promoted": "would be promoted", "kept": "would not be promoted"}
STEPS = {"promoted": "was promoted", "kept": "was not promoted", "rolled back": "is active again"}

TODAY, MODEL, ORACLE = "today", "model", "oracle"
REPLAY_NAMES = {
    TODAY: "FIFO, today",
    MODEL: "QSSF, Helios",
    "shrinkage": "QSSF, shrinkage untrained",
    "user_last": "QSSF, user's last ended job",
    "smallest_first": "Size, no model",
    ORACLE: "QSSF, true run times",
}
LEAST_GAIN_S = 1.0
"""Mean wait that the oracle must save for a share of it to mean anything."""

STEP_WORDS = {
    "prior": "a guess before any job has ended",
    "global": "all jobs that had ended",
    "partition": "jobs in this partition",
    "request": "jobs of this size, limit and partition",
    "account": "jobs of this account",
    "user": "jobs of this user",
    "user_limit": "this user's jobs with this limit",
    "user_any_limit": "this user's jobs of this size, whatever the limit",
    "user_size": "this user's jobs of this size and limit",
    "user_family": "this user's jobs of a similar name",
    "user_stem": "this user's jobs of this name, digits aside",
    "user_name": "this user's jobs of this name and size",
    "neighbours": "this user's latest jobs, the most similar ones above all",
    "distribution": "from the mean to the middle of such runs, running ones too",
}
"""Description of each shrinkage level of ``helios.predict.causal_stats.LEVELS``, and of the other steps."""

BASIS_WORDS = {
    "user+size": "of {user} of this size and limit",
    "user": "of {user}, none of them of this size and limit",
    "group": "of account {account}, none of them of {user}",
    "size": "of {others} of this size, limit and partition",
    "all": "of {others}, none of them of this size, limit and partition",
}
"""Description of the past jobs behind a prediction, by ``helios.predict.explain.BASES``."""

WORTH_A_LINE = 1.05
"""Smallest factor with its own line. Corrections between its inverse and it are merged into "everything else"."""
MOST_LINES = 7
NAME_WIDTH = 16
"""Most characters shown of a name or user, because hashes are long and the table has 80 columns."""


def models_table(
    models: Sequence[Mapping[str, Any]], decisions: Sequence[Mapping[str, Any]], *, drift: str | None, width: int
) -> RenderableType:
    """List the models of a cluster, newest first.

    With the figures of their backtests, and below them the last decision.

    Parameters
    ----------
    models, decisions : sequences of mappings
        As :func:`helios.app.model_registry.list_models` and :func:`helios.app.model_registry.describe_decisions` give
        them.
    drift : str, optional
        What the last night measured.
    width : int
        Columns of the terminal; from ``WIDE`` on secondary figures are shown too.
    """
    if not models:
        return "No model yet: helios model train"
    table = plain_table("", "Model", "Jobs", "Rank", "Error", "Shrinkage", "p10-p90", right_from=2)
    wide = width >= WIDE
    for name in ("Learned until", "First job", "Trained at") if wide else ():
        table.add_column(name, justify="right")
    for model in models:
        scores = model["scores"].get("scores", {}) if model["scores"] else {}
        mine, shrinkage = scores.get("model", {}), scores.get("shrinkage", {})
        cells = [
            PROMOTED if model["promoted"] else "",
            model["model_id"],
            f"{model['jobs']:,}",
            figure(mine.get("spearman")),
            figure(mine.get("median_abs_log_error")),
            f"{figure(shrinkage.get('spearman'))} {figure(shrinkage.get('median_abs_log_error'))}"
            if shrinkage
            else "-",
            percent(mine.get("coverage_p10_p90")),
        ]
        first = model["manifest"].get("first_submission")
        times = (_utc_minute(model["trained_until"]), first[:10] if first else "-", _utc_minute(model["trained_at"]))
        table.add_row(*([*cells, *times] if wide else cells), style="bold" if model["promoted"] else None)
    chosen = [model["model_id"] for model in models if model["promoted"]]
    lines = [f"{PROMOTED} active: {chosen[0]}." if chosen else "No model is active: shrinkage predicts."]
    if decisions:
        last = decisions[-1]
        at = _utc_minute(last["promoted_at"])
        lines.append(f"Last decision, {at} UTC by {last['promoted_by']}: {last['step']}, {last['why']}.")
    elif chosen:
        lines.append("Nothing was ever decided: the newest is active.")
    lines += [f"It is not to be trusted. {model['problem']}" for model in models if model["problem"]]
    if drift:
        lines.append(f"Drift: {drift}.")
    legend = (
        "[dim]Rank: Spearman's correlation, Error: median log error, of the model's backtest; Shrinkage: both, of the "
        "untrained control on the same jobs; p10-p90: share of jobs inside the interval (80 % is right). "
        "Dash: too short to judge.[/]"
    )
    return Group(table, "", *(escape(line) for line in lines), "", legend)


def comparison_table(comparison: Mapping[str, Any], *, notes: Sequence[str] = ()) -> RenderableType:
    """Compare predictors on the same jobs.

    The challenger's differences from each of the others have an interval of what chance explains.
    """
    table = plain_table("Predictor", "Rank corr.", "Log error", "Bias", "p10-p90")
    challenger = comparison["challenger"]
    for name in (challenger, *comparison["against"]):
        score = comparison["scores"][name]
        cells = (
            f"{score['median_abs_log_error']:.2f}",
            f"{score['bias_log']:+.2f}",
            percent(score["coverage_p10_p90"]),
        )
        style = "bold" if name == challenger else None
        table.add_row(escape(NAMES.get(name, name)), figure(score["spearman"], 3), *cells, style=style)
    heads = ("Rank better by", "Error less by", "Beyond chance")
    beside = plain_table(f"{escape(NAMES.get(challenger, challenger))} against", *heads)
    for name, against in comparison["against"].items():
        found = [f"better in {figure}" for figure in against["better_in"]]
        found += [f"worse in {figure}" for figure in against["worse_in"]]
        beside.add_row(
            escape(NAMES.get(name, name)),
            _with_interval(against["rank"], 1),
            _with_interval(against["error"], -1),
            "\n".join(found) or "no difference",
        )
    groups = comparison["drawn"] if comparison["clusters"] != 1 else comparison["drawn"].removesuffix("s")
    caption = (
        f"On {comparison['jobs']:,} jobs that no model here had learned from, of {comparison['clusters']:,} {groups}."
    )
    legend = (
        "[dim]Log error: median, 0.69 is a factor of 2. Bias above 0: predicted too long. p10-p90: share of jobs "
        "inside the interval (80 % is right). In brackets: what chance allows (90 %, "
        f"whole {comparison['drawn']} resampled).[/]"
    )
    return Group(caption, "", table, "", beside, "", *(escape(note) for note in notes), "", legend)


def outcome_text(outcome: Mapping[str, Any]) -> list[str]:
    """Describe the decision about a model in sentences.

    Whether it was promoted, why, and which model is active.
    """
    step, model_id = outcome["step"], outcome["model_id"]
    if step is None:
        first = f"{model_id} is kept and not used: {outcome['why']}."
    else:
        did = STEPS[step] if outcome["written"] else f"{TRIED[step]} (nothing was written)"
        first = f"{model_id} {did}: {outcome['why']}."
    if outcome["promoted"] == model_id and step is None:
        first = f"{model_id}: {outcome['why']}."
    return [first, *_active_lines(outcome)]


def drift_tables(drift: Mapping[str, Any], *, width: int) -> RenderableType:
    """Show the drift of inputs and the errors of the last weeks.

    Inputs against those of training, errors beside those of shrinkage.
    """
    training = drift["training"]
    shares = [
        f"{what} {percent(drift[key], 1)} (in training {percent(training[key], 1)})"
        for key, what in (("new_users", "jobs of new users"), ("new_names", "jobs of a name never seen"))
        if drift[key] is not None
    ]
    parts: list[RenderableType] = [
        escape(
            f"{drift['model_id']} learned from {training['jobs']:,} jobs; compared are {drift['jobs']:,} of the "
            f"{drift['days']:g} days before {_utc_minute(drift['as_of'])} UTC"
            + (f": {', '.join(shares)}." if shares else ".")
        ),
        "",
        _inputs(drift, width),
        "",
    ]
    if drift["weeks"]:
        parts += [_weeks(drift["weeks"]), ""]
    legend = (
        "[dim]Index: population stability, training against now; below 0.10 steady, to 0.25 moved, above changed. "
        "Usual: at most so large in nine of ten weeks of training. Log error: median; 0.69 is a factor of 2. p10-p90: "
        "share of jobs inside the interval (80 % is right).[/]"
    )
    return Group(*parts, escape(f"In a line: {drift['line']}."), "", legend)


def _active_lines(outcome: Mapping[str, Any]) -> list[str]:
    promoted, model_id, before = outcome["promoted"], outcome["model_id"], outcome["previous"]
    if not outcome["written"]:
        return [f"Active, as before: {before}."]
    if promoted == model_id:
        return [f"Active: {promoted}" + (f", before it {before}." if before != promoted else ".")]
    if promoted == "shrinkage":
        none = "Active: shrinkage, which needs no training."
        return [none, f"Promote it all the same: helios model promote {model_id}"]
    compare = f"Compare both: helios model compare {promoted} {model_id}"
    return [f"Active: {promoted}.", compare, f"Switch: helios model promote {model_id}"]


def _inputs(drift: Mapping[str, Any], width: int) -> RenderableType:
    if not drift["inputs"]:
        return f"Inputs: {drift['jobs']:,} jobs are too few to compare; chance alone would move them."
    table = plain_table("Feature", "Index", "Usual", "That is")
    shown = drift["inputs"] if width >= WIDE else drift["inputs"][:SHOWN_FEATURES]
    for one in shown:
        word = f"{one['steadiness']}, unusual" if one["unusual"] else one["steadiness"]
        style = "bold" if one["unusual"] else None
        table.add_row(escape(one["feature"]), f"{one['index']:.2f}", figure(one["usual"]), word, style=style)
    left = len(drift["inputs"]) - len(shown)
    return Group(table, f"[dim]and {left} more, none farther (--json)[/]") if left else table


def _weeks(weeks: Sequence[Mapping[str, Any]]) -> RenderableType:
    rows = [
        (
            week["begin"][:10],
            f"{week['jobs']:,}",
            figure(week["model"]["median_abs_log_error"]),
            figure(week["shrinkage"]["median_abs_log_error"]),
            f"{week['model']['bias_log']:+.2f}",
            figure(week["model"]["spearman"]),
            percent(week["model"]["coverage_p10_p90"]),
        )
        for week in weeks
    ]
    return plain_table("Week from", "Jobs", "Log error", "Shrinkage's", "Bias", "Rank corr.", "p10-p90", rows=rows)


def _with_interval(difference: Mapping[str, Any] | None, sign: int) -> str:
    if difference is None:
        return "-"
    low, high = sorted((sign * difference["low"], sign * difference["high"]))
    return f"{sign * difference['value']:+.3f} \\[{low:+.2f}, {high:+.2f}]"  # escaped for rich


def _utc_minute(moment: str | datetime) -> str:
    return str(moment)[:16].replace("T", " ")


# What predictions are worth to a queue: replays with them, between what a site has today and what is possible.


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderValue:
    """Effect of predictions on one queue.

    All replays have EASY backfill by time limits, and age as the live order does.

    Attributes
    ----------
    nodes : mapping
        Nodes of each partition that were replayed.
    gpus_per_node : int
    resource : str
        gpus or cpus.
    replays : mapping of QueueSummary
        Summaries by the names of ``REPLAY_NAMES``. Today's and the oracle's are always there.
    check : OrderCheck, optional
        The verdict on the live order, over draws. None where there is only this one replay.
    notes : tuple of str
        Assumptions, for a person.
    """

    nodes: Mapping[str, int]
    gpus_per_node: int
    resource: str
    replays: Mapping[str, QueueSummary]
    check: OrderCheck | None = None
    notes: tuple[str, ...] = ()

    def share(self, name: str) -> float | None:
        """Return the share of the oracle's gain that a replay realises.

        The gain is in mean wait against today.

        None where there is nothing to gain, because the oracle saves less than ``LEAST_GAIN_S``. Below 0: longer waits
        than today. Above 1: shorter ones than the oracle's, whose order is not the best there could be.
        """
        today_s, oracle_s = self.replays[TODAY].mean_wait_s, self.replays[ORACLE].mean_wait_s
        if today_s - oracle_s < LEAST_GAIN_S:
            return None
        return (today_s - self.replays[name].mean_wait_s) / (today_s - oracle_s)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "nodes": dict(self.nodes),
            "gpus_per_node": self.gpus_per_node,
            "resource": self.resource,
            "order_check": None if self.check is None else self.check.to_json(),
            "share_of_oracle_gain": self.share(MODEL),
            "replays": {
                name: {"share_of_oracle_gain": self.share(name), **summary.to_json()}
                for name, summary in self.replays.items()
            },
        }


def model_notes(value: OrderValue | str | None) -> tuple[str, ...]:
    """Return the notes on the replays.

    Or why there are no replays; empty where none were asked for.
    """
    if isinstance(value, OrderValue):
        return value.notes
    return () if value is None else (value,)


def value_table(value: OrderValue) -> RenderableType:
    """Compare the replays with the share of the oracle's gain that each realises."""
    heads = ("Mean wait", "of gain", "Median", "p99", "Longest", *SIZE_HEADS.values())
    table = plain_table("Replayed, with EASY by limits", *heads)
    for name, words in REPLAY_NAMES.items():
        if name in value.replays:
            summary, share = value.replays[name], value.share(name)
            by_size = (summary.mean_wait_s_by_size[size] for size in SIZE_CLASSES)
            waits_s = (summary.median_wait_s, summary.p99_wait_s, summary.max_wait_s, *by_size)
            gain = percent(None if name == TODAY else share)
            cells = (words, duration(summary.mean_wait_s), gain, *map(duration, waits_s))
            table.add_row(*cells, style="bold" if name == MODEL else None)
    return table


def value_headline(value: OrderValue) -> list[str]:
    """Return the verdict on the live order, or why there is none."""
    return [SINGLE_REPLAY] if value.check is None else value.check.sentences()


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """A past job similar to the explained one.

    Attributes
    ----------
    job_id, user, account, partition, name : str
        Empty where unknown.
    ended_at : datetime
    gpus, cpus, time_limit_s, run_time_s : float
        NaN for unknown, inf for unlimited.
    differs : tuple of str
        Names of the attributes in which it differs, with ``size`` for GPUs or CPUs.
    distance : float
        Distance as in ``docs/predictions.md``. It is 0 for the same request if nothing has ended since.
    """

    job_id: str
    user: str
    account: str
    partition: str
    name: str
    ended_at: datetime
    gpus: float
    cpus: float
    time_limit_s: float
    run_time_s: float
    differs: tuple[str, ...]
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A job with its explained prediction.

    Attributes
    ----------
    cluster, job_id, user, account, partition, name, state : str
        The job. Empty where unknown.
    restart : int
        Number of its run, from 0.
    gpus, cpus, time_limit_s : float
        NaN for unknown, inf for unlimited.
    submitted_at, known_at : datetime
        Its submission, and the time up to which past jobs were used.
    explained : Explained
        The prediction.
    alike : tuple of PastJob
        Similar jobs, the most similar first.
    run_time_s : float
        True run time. NaN where it is unknown or the job has not ended.
    elapsed_s : float
        Run time so far. NaN where the job does not run.
    remaining_s : tuple of float, optional
        p10, p50 and p90 of the remaining run time. None where the job does not run.
    notes : tuple of str
        Notes for the reader.
    """

    cluster: str
    job_id: str
    user: str
    account: str
    partition: str
    name: str
    state: str
    restart: int
    gpus: float
    cpus: float
    time_limit_s: float
    submitted_at: datetime
    known_at: datetime
    explained: Explained
    alike: tuple[PastJob, ...] = ()
    run_time_s: float = float("nan")
    elapsed_s: float = float("nan")
    remaining_s: tuple[float, float, float] | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values.

        Unknown and unlimited values are null.
        """
        found: dict[str, Any] = plain(self)
        explained = found.pop("explained")
        p10_s, p50_s, p90_s = explained.pop("quantiles_s")
        return {**found, "p10_s": p10_s, "p50_s": p50_s, "p90_s": p90_s, **explained}


def explanation_screen(found: Explanation) -> RenderableType:
    """Return an explained prediction for a terminal of 80 columns.

    It has the prediction, the contributions to it, and similar jobs.
    """
    parts: list[RenderableType] = [escape(line) for line in answer_lines(found)]
    parts += ["", _contributions(found.explained), ""]
    parts.append(_similar_jobs(found.alike) if found.alike else "No past job had its user, account, size or name.")
    if found.notes:
        parts += ["", *(escape(f"Note: {note}.") for note in found.notes)]
    return Group(*parts)


def answer_lines(found: Explanation) -> list[str]:
    """Return the explanation as sentences.

    They name the job, the prediction, the true run time if it is known, and the past jobs behind the prediction.
    """
    run = f", run {found.restart + 1}" if found.restart else ""
    whose = f" of {_shorten(found.user)}" if found.user else ""
    where = f" in {found.partition}" if found.partition else ""
    limit = f", limit {_limit(found.time_limit_s, duration_in_words)}" if not np.isnan(found.time_limit_s) else ""
    when = "" if found.known_at == found.submitted_at else f" as of {found.known_at:%Y-%m-%d %H:%M} UTC"
    p10_s, p50_s, p90_s = found.explained.quantiles_s
    low, middle, high = map(duration_in_words, (p10_s, p50_s, p90_s))
    lines = [
        f"Job {found.job_id}{run}{whose} on {found.cluster}{where}: {_size(found.gpus, found.cpus)}{limit}, submitted "
        f"{found.submitted_at:%Y-%m-%d %H:%M} UTC.",
        f"Predicted run time{when}: {middle}; 8 of 10 such jobs take {low} to {high} (by {found.explained.source}).",
    ]
    if not np.isnan(found.run_time_s):
        place = "within" if p10_s <= found.run_time_s <= p90_s else "below" if found.run_time_s < p10_s else "above"
        state = f" ({found.state})" if found.state else ""
        lines.append(f"It ran {duration_in_words(found.run_time_s)}{state}, {place} that range.")
    if found.remaining_s is not None:
        low, middle, high = map(duration_in_words, found.remaining_s)
        ran = duration_in_words(found.elapsed_s)
        lines.append(f"It has run {ran}; {middle} remain, in 8 of 10 such cases {low} to {high}.")
    return [*lines, rests_on(found.explained.basis, found.explained.recent, user=found.user, account=found.account)]


def rests_on(basis: str, recent: RecentInGroup | None, *, user: str, account: str) -> str:
    """Describe the past jobs behind a prediction in one sentence.

    It names their user, and how long the last of them took.
    """
    if recent is None:
        return "No job had ended by then, so it rests on no past job."
    whose = BASIS_WORDS.get(basis, basis).format(
        user=_shorten(user) or "this user", account=_shorten(account), others="others" if user else "anyone"
    )
    shortest, longest = duration_in_words(recent.shortest_s), duration_in_words(recent.longest_s)
    took = shortest if shortest == longest else f"{shortest} to {longest}"
    they = "it" if recent.jobs == 1 else "they" if recent.jobs == recent.last else f"the last {recent.last}"
    return f"It rests on {counted(recent.jobs, 'ended job')} {whose}: {they} took {took}."


def largest_corrections(explained: Explained) -> list[tuple[str, float]]:
    """Return the features by which the trees correct a prediction most, with their factors.

    The largest comes first. The others are merged, so that the product is that of ``explained.corrections``.
    """
    ranked = sorted(explained.corrections.items(), key=lambda part: -abs(np.log(part[1])))
    named = [part for part in ranked[:MOST_LINES] if abs(np.log(part[1])) >= np.log(WORTH_A_LINE)]
    rest = float(np.prod([factor for _, factor in ranked[len(named) :]]))
    others = [("everything else", rest)] if len(ranked) > len(named) else []
    return [(name.replace("_", " "), factor) for name, factor in named] + others


def _contributions(explained: Explained) -> RenderableType:
    """Return the steps of a prediction as a table."""
    table = plain_table("From the widest group to the narrowest", "Ended", "Factor", "Run time")
    # A group in which nothing has ended changes nothing, and the prior counts only until the first job has ended.
    known = [step for step in explained.steps[:-1] if step.jobs] or [explained.steps[0]]
    known.append(explained.steps[-1])
    for place, step in enumerate(known):
        words = STEP_WORDS.get(step.level, step.level.replace("_", " "))
        change = _factor(step.factor) if place else ""
        table.add_row(words, f"{step.jobs:,}", change, duration_in_words(step.run_time_s))
    if explained.corrections:
        table.add_row("[dim]features by which it is corrected most:[/]")
    after_s = 1.0 + explained.steps[-1].run_time_s
    for text, factor in largest_corrections(explained):
        after_s *= factor
        table.add_row(escape(text), "", _factor(factor), duration_in_words(max(after_s - 1.0, 0.0)))
    return table


def _similar_jobs(alike: tuple[PastJob, ...]) -> RenderableType:
    table = plain_table("Past jobs most like it", "Ended (UTC)", "Size", "Limit", "Ran")
    table.add_column("Differs in", overflow="fold")
    for job in alike:
        # Size and limit have their own columns; the others are named with their value.
        values = {name: getattr(job, name) for name in ("partition", "name", "user", "account")}
        differs = (f"{name} {_shorten(values[name]) or 'unknown'}" if name in values else name for name in job.differs)
        cells = (job.job_id, f"{job.ended_at:%Y-%m-%d %H:%M}", _size(job.gpus, job.cpus), _limit(job.time_limit_s))
        table.add_row(*map(escape, (*cells, duration(job.run_time_s), ", ".join(differs) or "nothing")))
    return table


def _size(gpus: float, cpus: float) -> str:
    if gpus > 0:
        return counted(gpus, "GPU")
    unknown = ", GPUs unknown" if np.isnan(gpus) else ""
    return "size unknown" if np.isnan(cpus) else f"{counted(cpus, 'CPU')}{unknown}"


def _limit(limit_s: float, write: Callable[[float], str] = duration) -> str:
    return "-" if np.isnan(limit_s) else write(limit_s) if np.isfinite(limit_s) else "none"


def _factor(factor: float) -> str:
    return f"x {factor:.0f}" if factor >= 10 else f"x {factor:.2f}" if factor >= 0.1 else f"x {factor:.2g}"


def _shorten(text: str) -> str:
    return text if len(text) <= NAME_WIDTH else text[: NAME_WIDTH - 1] + "…"

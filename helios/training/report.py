"""Results and live view of a pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import le
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from helios.training.model import ENDED, Device, PoolSnapshot, Trial, TrialState, by_process, name_directions
from helios.units import bar, count_in_words, rounded_duration

MOST_SHOWN = 20
"""Trials that a table in a terminal shows."""
LONGEST_NAME, FEWEST_LETTERS = 16, 12
"""Letters of a column's name at most, and of parameters at least, so that a table has room in 80 columns."""
LEFT = ("Device", "Parameters", "State")
"""Columns that hold words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResult:
    """How a run of a pool ended.

    Attributes
    ----------
    objectives : mapping of str to bool
        Metrics that are compared, and whether more of each is better.
    trials : sequence of mapping
        By number, with ``number``, ``parameters``, ``state``, ``metrics``, ``value`` (the last one of the first
        metric), ``seconds``, ``peak_memory_mib``, ``attempts``, ``devices`` and, where there is one, ``reason``.
    total : int
        Trials of the whole sweep, also those that were not made.
    seconds : float
        Length of this run, s.
    reason : str
        Why trials are left. Empty where none are.
    signal : int, optional
        What ended it.
    is_log : mapping of str to bool
        Whether the range of a parameter is logarithmic.
    targets : tuple of float
        Values of the metric that were to be reached.
    """

    name: str
    folder: str
    objectives: Mapping[str, bool]
    devices: Sequence[Device]
    trials: Sequence[Mapping[str, Any]]
    total: int
    seconds: float
    reason: str = ""
    signal: int | None = None
    notes: Sequence[str] = ()
    made_with: Mapping[str, Any] = field(default_factory=dict)
    is_log: Mapping[str, bool] = field(default_factory=dict)
    targets: tuple[float, ...] = ()

    @property
    def metric(self) -> str:
        """First metric that is compared, empty where none is."""
        return next(iter(self.objectives), "")

    @property
    def front(self) -> list[int]:
        """Numbers of the best trials."""
        finished = (trial for trial in self.trials if trial["state"] == TrialState.FINISHED)
        return find_best({trial["number"]: trial["metrics"] for trial in finished}, self.objectives)

    @property
    def best(self) -> int | None:
        """Number of the best finished trial, None with several metrics."""
        return next(iter(self.front), None) if len(self.objectives) == 1 else None

    @property
    def counts(self) -> dict[str, int]:
        """How many trials there are in each state."""
        return dict(Counter(str(trial["state"]) for trial in self.trials))

    @property
    def exit_code(self) -> int:
        """Exit status of the command.

        0 if all ended well, 1 if trials failed or are left, 128 and its number after a signal.
        """
        if self.signal is not None:
            return 128 + self.signal
        return 1 if self.reason or self.counts.get(TrialState.FAILED) else 0

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``helios pool run --json``."""
        directions = name_directions(self.objectives)
        best = next((trial for trial in self.trials if trial["number"] == self.best), None)
        return {
            "sweep": self.name,
            "folder": self.folder,
            "metric": list(self.objectives) if len(directions) > 1 else self.metric or None,
            "direction": directions if len(directions) > 1 else next(iter(directions), None),
            "total": self.total,
            "seconds": round(self.seconds, 3),
            "left": self.reason or None,
            "devices": [
                {
                    "name": device.name,
                    "model": device.model,
                    "memory_mib": round(device.memory_mib, 1),
                    "slots": device.slots,
                }
                for device in self.devices
            ],
            "best": best,
            "front": self.front,
            "trials": list(self.trials),
            "notes": list(self.notes),
            "made_with": dict(self.made_with),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResults:
    """How a run of a pool of one or several sweeps ended."""

    results: Sequence[PoolResult]

    @property
    def notes(self) -> list[str]:
        """What a person should know, each once."""
        return [*dict.fromkeys(note for result in self.results for note in result.notes)]

    @property
    def reason(self) -> str:
        """Why trials of any sweep are left. Empty where none are."""
        return next((result.reason for result in self.results if result.reason), "")

    @property
    def exit_code(self) -> int:
        """Exit status of the command."""
        return max(result.exit_code for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """Return what ``helios pool run --json`` prints, a list for several sweeps."""
        answers = [result.to_json() for result in self.results]
        return answers[0] if len(answers) == 1 else {"sweeps": answers}

    def table(self, *, width: int) -> RenderableType:
        """Show the best and the failed trials of each sweep."""
        tables = [pool_table(result, width=width) for result in self.results]
        return tables[0] if len(tables) == 1 else Group(*(part for each in tables for part in (each, "")))


def find_best(metrics: Mapping[int, Mapping[str, float]], objectives: Mapping[str, bool]) -> list[int]:
    """Return the numbers of the trials on the Pareto front.

    With one metric this is one trial, with several the Pareto front, the best by the first metric first. Of equal
    trials the first one counts, and trials that lack a metric do not.

    Parameters
    ----------
    metrics : mapping
        What each finished trial reported, by its number.
    objectives : mapping of str to bool
        The metrics to compare, and whether more of each is better.
    """
    signs = {name: -1.0 if maximize else 1.0 for name, maximize in objectives.items()}
    costs = sorted(
        (tuple(sign * reported[name] for name, sign in signs.items()), number)
        for number, reported in metrics.items()
        if signs and signs.keys() <= reported.keys()
    )
    front: list[tuple[tuple[float, ...], int]] = []
    for cost, number in costs:
        if not any(all(map(le, better, cost)) for better, _ in front):
            front.append((cost, number))
    return [number for _, number in front]


def best_in_words(
    finished: Mapping[int, tuple[Mapping[str, float], Mapping[str, Any]]],
    objectives: Mapping[str, bool],
    *,
    width: int | None = None,
) -> list[str]:
    """Return sentences on the best trials, compared with all that finished.

    With a width parameters are shortened, so that each is one line.
    """
    front = find_best({number: metrics for number, (metrics, _) in finished.items()}, objectives)
    sentences = []
    for number in front[:MOST_SHOWN]:
        metrics, parameters = finished[number]
        values = ", ".join(f"{name}: {metrics[name]:.5g}" for name in objectives)
        words = f"Best {values}, trial {number} ("
        left = None if width is None else max(FEWEST_LETTERS, width - len(words) - 2)
        sentences.append(f"{words}{write_parameters(parameters, width=left)}).")
    if len(objectives) > 1 and front:
        sentences.insert(
            0, f"{count_in_words(len(front), 'trial')} that no other trial equals or beats in every metric:"
        )
    return sentences


def write_parameters(parameters: Mapping[str, Any], *, width: int | None = None) -> str:
    """Return parameters as one line.

    Where a width has no room for all, the first of them.
    """
    words = [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in parameters.items()
    ]
    line = ", ".join(words)
    if width is None or len(line) <= width:
        return line
    for count in range(len(words) - 1, 0, -1):
        line = ", ".join([*words[:count], f"{len(words) - count} more"])
        if len(line) <= width:
            return line
    return shorten(line, width)


def shorten(text: str, width: int) -> str:
    """Return a text, cut where a width has no room for it."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}\N{HORIZONTAL ELLIPSIS}"


def trial_table(names: Sequence[str], rows: Sequence[Sequence[str | Mapping[str, Any]]], *, width: int) -> Table:
    """Return a table of trials that is no wider than a terminal.

    Numbers, states and values are whatever they are; the second column, of parameters, gets what is left. Parameters by
    which the trials differ come first where there is no room for all.
    """
    listed = [row[1] for row in rows if not isinstance(row[1], str)]
    unlike = {name for each in listed for name in each if any(other.get(name) != each[name] for other in listed[:1])}
    names = [shorten(name, LONGEST_NAME) for name in names]
    others = [place for place in range(len(names)) if place != 1]
    used = sum(max([len(names[place]), *(len(str(row[place])) for row in rows)]) + 1 for place in others)
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for name in names:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
    for row in rows:
        about, left = row[1], max(FEWEST_LETTERS, width - used)
        if isinstance(about, str):
            cell = shorten(about, left)
        elif len(cell := write_parameters(about)) > left:
            first = sorted(about, key=lambda name: name not in unlike)
            cell = write_parameters({name: about[name] for name in first}, width=left)
        table.add_row(*(escape(cell if place == 1 else str(other)) for place, other in enumerate(row)))
    return table


def code_in_words(made_with: Mapping[str, Any]) -> str:
    """Return the commit and the versions with which trials ran."""
    commit = made_with.get("commit") or "unknown"
    changed = " with changes on top" if made_with.get("changed") else ""
    packages = "".join(f", {name} {version}" for name, version in (made_with.get("packages") or {}).items())
    python, helios = (made_with.get(name) or "unknown" for name in ("python", "helios"))
    return f"Commit {commit}{changed}; Python {python}{packages}; Helios {helios}"


def memory_in_words(mib: float | None) -> str:
    """Return an amount of memory, such as ``1.5 GiB``."""
    if mib is None:
        return ""
    return f"{mib:,.0f} MiB" if mib < 1024 else f"{mib / 1024:,.1f} GiB"


def order_by_value(result: PoolResult) -> list[Mapping[str, Any]]:
    """Return the trials, the best first.

    Those that did not finish come after all that did.
    """
    sign = -1.0 if next(iter(result.objectives.values()), True) else 1.0
    front = {*result.front}

    def key(trial: Mapping[str, Any]) -> tuple[bool, bool, bool, float, int]:
        value, is_finished = trial["value"], trial["state"] == TrialState.FINISHED
        number = trial["number"]
        return (number not in front, not is_finished, value is None, sign * (value or 0.0), number)

    return sorted(result.trials, key=key)


def pool_table(result: PoolResult, *, width: int) -> RenderableType:
    """Show the best and the failed trials."""
    shown = [trial for trial in order_by_value(result) if trial["state"] != TrialState.FAILED][:MOST_SHOWN]
    failed = [trial for trial in result.trials if trial["state"] == TrialState.FAILED]
    metrics = [*result.objectives] or ["Metric"]
    names = ("Trial", "Parameters", "State", *metrics, "Time", "Memory", "Starts")
    rows = [
        (str(trial["number"]), trial["parameters"], *trial_cells(result, trial)[2:])
        for trial in [*shown, *failed[:MOST_SHOWN]]
    ]
    lines: list[RenderableType] = [trial_table(names, rows, width=width), ""]
    if (more := len(result.trials) - len(shown) - len(failed[:MOST_SHOWN])) > 0:
        lines.append(f"{more:,} more: --json, or --report FILE")
    lines += [escape(f"Trial {trial['number']} failed: {trial.get('reason', '')}") for trial in failed[:MOST_SHOWN]]
    return Group(*lines, *map(escape, pool_sentences(result)))


def trial_cells(result: PoolResult, trial: Mapping[str, Any]) -> list[str]:
    """Return what tables and pages show of a trial."""
    reported = {} if trial["state"] in {TrialState.DIVERGED, TrialState.FAILED} else trial["metrics"]
    missing = "not finite" if trial["state"] == TrialState.DIVERGED else ""
    return [
        str(trial["number"]),
        write_parameters(trial["parameters"]),
        str(trial["state"]),
        *(f"{reported[name]:.5g}" if name in reported else missing for name in result.objectives or [""]),
        rounded_duration(trial["seconds"]),
        memory_in_words(trial["peak_memory_mib"]),
        str(trial["attempts"]),
    ]


def pool_sentences(result: PoolResult) -> list[str]:
    """Summarise the results and the remaining trials."""
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(result.counts.items()))
    sentences = [
        f"{count_in_words(result.total, 'trial')} of {result.name} in {rounded_duration(result.seconds)}: {counts}."
    ]
    finished = [trial for trial in result.trials if trial["state"] == TrialState.FINISHED]
    sentences += best_in_words(
        {trial["number"]: (trial["metrics"], trial["parameters"]) for trial in finished}, result.objectives
    )
    for name in result.objectives:
        without = [trial for trial in finished if name not in trial["metrics"]]
        if without:
            reported = ", ".join(sorted({other for trial in without for other in trial["metrics"]})[:MOST_SHOWN])
            sentences.append(
                f"{count_in_words(len(without), 'trial')} finished without reporting {name!r},"
                f" such as {without[0]['number']}. Reported: {reported or 'nothing'}."
            )
    diverged = [trial for trial in result.trials if trial["state"] == TrialState.DIVERGED]
    if diverged:
        first = diverged[0]
        sentences.append(
            f"{count_in_words(len(diverged), 'trial')} diverged, such as {first['number']}: {first.get('reason', '')}."
        )
    if result.reason:
        sentences.append(f"Trials are left, since {result.reason}. The same command goes on from here.")
    return sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """A sweep of a pool that runs.

    Attributes
    ----------
    counts : mapping
        Trials made so far by state.
    finished : mapping
        Metrics and parameters of each trial that has finished, by its number.
    total : int
        Trials of the whole sweep.
    objectives : mapping of str to bool
        Metrics that are compared, and whether more of each is better.
    """

    name: str
    counts: Mapping[str, int]
    finished: Mapping[int, tuple[Mapping[str, float], Mapping[str, Any]]]
    total: int
    objectives: Mapping[str, bool]

    def progress(self, seconds: float, *, named: bool) -> str:
        """Return how far it is, in words."""
        ended = sum(self.counts.get(state, 0) for state in ENDED)
        words = ", ".join(f"{self.counts[state]:,} {state}" for state in sorted(self.counts))
        of_sweep = f" of {self.name}" if named else ""
        done = bar(ended / self.total if self.total else 0.0)
        return f"{done} {ended:,} of {self.total:,} trials{of_sweep} in {rounded_duration(seconds)} ({words})"


def pool_view(
    snapshot: PoolSnapshot, sweeps: Sequence[SweepView], *, seconds: float, notes: Sequence[str], width: int
) -> RenderableType:
    """Show a pool while it runs."""
    several = len(sweeps) > 1
    lines: list[RenderableType] = [escape(sweep.progress(seconds, named=several)) for sweep in sweeps]
    running = [trial for trial in snapshot.trials if trial.state is TrialState.RUNNING]
    rows: list[Sequence[str | Mapping[str, Any]]] = []
    for device in snapshot.devices:
        on_device = [trial for trial in running if device.name in trial.devices]
        used = memory_in_words(sum(trial.memory_mib or 0.0 for trial in on_device))
        slots = f"{len(by_process(on_device))} of {device.slots}"
        rows.append((slots, device.model, device.name, "", "", used, memory_in_words(device.memory_mib)))
        rows += [_running_cells(trial, snapshot.now_s) for trial in on_device[:MOST_SHOWN]]
    lines.append(trial_table(("Trial", "Parameters", "Device", "Done", "Time", "Memory", "of"), rows, width=width))
    for sweep in sweeps:
        lines += [
            escape(f"{sweep.name}: {sentence}" if several else sentence)
            for sentence in best_in_words(sweep.finished, sweep.objectives, width=None if several else width)
        ]
    return Group(*lines, *(escape(f"note: {note}") for note in notes[-3:]))


def _running_cells(trial: Trial, now_s: float) -> Sequence[str | Mapping[str, Any]]:
    return [
        trial.label,
        trial.parameters,
        "",
        "" if trial.progress is None else f"{trial.progress:.0%}",
        rounded_duration(now_s - (trial.started_s or now_s)),
        memory_in_words(trial.memory_mib),
        memory_in_words(trial.memory_limit_mib),
    ]

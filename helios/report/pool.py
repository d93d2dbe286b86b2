"""Reports of a training pool and of a simulated sweep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from helios.model.pools import Device, PoolSnapshot, Trial, TrialState, by_process
from helios.report.charts import BLUE, GREEN, SOFT, canvas
from helios.report.html import PageSection, TableCells, render_sections
from helios.report.tables import plain_table
from helios.simulate.pools import PoolComparison, PoolOutcome
from helios.units import bar, count_in_words, percent, rounded_duration

MOST_SHOWN = 20
"""Trials that a table in a terminal shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResult:
    """How a run of a pool ended.

    Attributes
    ----------
    trials : sequence of mapping
        By number, with ``number``, ``parameters``, ``state``, ``metrics``, ``seconds``, ``peak_memory_mib``,
        ``attempts``, ``device`` and, where there is one, ``reason``.
    values : mapping
        The metric that is compared, for each finished trial that reported it.
    total : int
        Trials of the whole sweep, also those that were not made.
    seconds : float
        Length of this run, s.
    reason : str
        Why trials are left. Empty where none are.
    signal : int, optional
        What ended it.
    """

    name: str
    folder: str
    metric: str
    maximize: bool
    devices: Sequence[Device]
    trials: Sequence[Mapping[str, Any]]
    values: Mapping[int, float]
    total: int
    seconds: float
    reason: str = ""
    signal: int | None = None
    notes: Sequence[str] = ()

    @property
    def best(self) -> int | None:
        """Number of the finished trial with the best metric."""
        choose = max if self.maximize else min
        return choose(self.values, key=self.values.__getitem__, default=None)

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
        best = next((trial for trial in self.trials if trial["number"] == self.best), None)
        return {
            "sweep": self.name,
            "folder": self.folder,
            "metric": self.metric or None,
            "direction": ("maximize" if self.maximize else "minimize") if self.metric else None,
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
            "best": None if best is None else {**best, "value": self.values[best["number"]]},
            "trials": list(self.trials),
            "notes": list(self.notes),
        }


def write_parameters(parameters: Mapping[str, Any]) -> str:
    """Return parameters as one line."""
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in parameters.items()
    )


def memory_in_words(mib: float | None) -> str:
    """Return an amount of memory, such as ``1.5 GiB``."""
    if mib is None:
        return ""
    return f"{mib:,.0f} MiB" if mib < 1024 else f"{mib / 1024:,.1f} GiB"


def order_by_value(result: PoolResult) -> list[Mapping[str, Any]]:
    """Return the trials, the best first."""
    sign = -1.0 if result.maximize else 1.0

    def key(trial: Mapping[str, Any]) -> tuple[bool, float, int]:
        value = result.values.get(trial["number"])
        return (value is None, sign * (value or 0.0), trial["number"])

    return sorted(result.trials, key=key)


def pool_table(result: PoolResult) -> RenderableType:
    """Show the best and the failed trials."""
    shown = [trial for trial in order_by_value(result) if trial["state"] != TrialState.FAILED][:MOST_SHOWN]
    failed = [trial for trial in result.trials if trial["state"] == TrialState.FAILED]
    table = plain_table(
        "Trial", "Parameters", "State", result.metric or "Metric", "Time", "Memory", "Starts", right_from=3
    )
    for trial in [*shown, *failed[:MOST_SHOWN]]:
        table.add_row(*map(escape, _trial_cells(result, trial)))
    lines: list[RenderableType] = [table, ""]
    if (more := len(result.trials) - len(shown) - len(failed[:MOST_SHOWN])) > 0:
        lines.append(f"{more:,} more: --json, or --report FILE")
    lines += [escape(f"Trial {trial['number']} failed: {trial.get('reason', '')}") for trial in failed[:MOST_SHOWN]]
    return Group(*lines, *map(escape, pool_sentences(result)))


def _trial_cells(result: PoolResult, trial: Mapping[str, Any]) -> list[str]:
    value = result.values.get(trial["number"])
    return [
        str(trial["number"]),
        write_parameters(trial["parameters"]),
        str(trial["state"]),
        "" if value is None else f"{value:.5g}",
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
    best = next((trial for trial in result.trials if trial["number"] == result.best), None)
    if best is not None:
        value = result.values[best["number"]]
        sentences.append(
            f"Best {result.metric}: {value:.5g}, trial {best['number']} ({write_parameters(best['parameters'])})."
        )
    if result.reason:
        sentences.append(f"Trials are left, since {result.reason}. The same command goes on from here.")
    return sentences


def pool_view(
    snapshot: PoolSnapshot, *, counts: Mapping[str, int], total: int, seconds: float, best: str, notes: Sequence[str]
) -> RenderableType:
    """Show a pool while it runs.

    Parameters
    ----------
    counts : mapping
        Trials made so far by state.
    total : int
        Trials of the whole sweep.
    best : str
        The best trial so far, in words. Empty where none is known.
    """
    ended = sum(counts.get(state, 0) for state in (TrialState.FINISHED, TrialState.PRUNED, TrialState.FAILED))
    words = ", ".join(f"{counts[state]:,} {state}" for state in sorted(counts) if counts[state])
    lines: list[RenderableType] = [
        f"{bar(ended / total if total else 0.0)} {ended:,} of {total:,} trials in {rounded_duration(seconds)} ({words})"
    ]
    running = [trial for trial in snapshot.trials if trial.state is TrialState.RUNNING]
    table = plain_table("Device", "Trial", "Parameters", "Done", "Time", "Memory", "of", right_from=3)
    for device in snapshot.devices:
        on_device = [trial for trial in running if trial.device == device.name]
        used = sum(trial.memory_mib or 0.0 for trial in on_device)
        table.add_row(
            escape(device.name),
            f"{len(by_process(on_device))} of {device.slots}",
            escape(device.model),
            "",
            "",
            memory_in_words(used),
            memory_in_words(device.memory_mib),
        )
        for trial in on_device[:MOST_SHOWN]:
            table.add_row("", *_running_cells(trial, snapshot.now_s))
    lines.append(table)
    if best:
        lines.append(escape(best))
    return Group(*lines, *(escape(f"note: {note}") for note in notes[-3:]))


def _running_cells(trial: Trial, now_s: float) -> list[str]:
    return [
        str(trial.number),
        escape(write_parameters(trial.parameters)),
        "" if trial.progress is None else f"{trial.progress:.0%}",
        rounded_duration(now_s - (trial.started_s or now_s)),
        memory_in_words(trial.memory_mib),
        memory_in_words(trial.memory_limit_mib),
    ]


MOST_ROWS = 1000
"""Trials that a page lists."""
MOST_PANELS = 4


def render_pool(result: PoolResult) -> str:
    """Return the page of a pool."""
    header = ("Trial", "Parameters", "State", result.metric or "Metric", "Time", "Memory", "Starts", "Device", "Reason")
    text = {"Parameters", "State", "Device", "Reason"}
    rows = [
        [*_trial_cells(result, trial), trial["device"] or "", trial.get("reason", "")]
        for trial in order_by_value(result)[:MOST_ROWS]
    ]
    devices = [
        (device.name, device.model, memory_in_words(device.memory_mib), str(device.slots)) for device in result.devices
    ]
    sections = [
        PageSection(sentences=pool_sentences(result)),
        PageSection(title=f"What changes {result.metric}", figures=[partial(_metric_figure, result)]),
        PageSection(
            title="Trials",
            tables=[TableCells(header=[(name, name in text) for name in header], rows=rows)],
            notes=[
                *result.notes,
                *([f"{len(result.trials) - MOST_ROWS:,} more trials."] if len(result.trials) > MOST_ROWS else []),
            ],
        ),
        PageSection(
            title="Devices",
            tables=[
                TableCells(
                    header=[("Device", True), ("Model", True), ("Memory", False), ("Slots", False)], rows=devices
                )
            ],
        ),
    ]
    return render_sections(f"Trials of {result.name}", f"Results and logs: {result.folder}", sections)


def _metric_figure(result: PoolResult, *, narrow: bool = False) -> str | None:
    """Draw the metric against each parameter that is a number."""
    points = [trial for trial in result.trials if trial["number"] in result.values]
    names = [
        name
        for name in (points[0]["parameters"] if points else {})
        if len({trial["parameters"].get(name) for trial in points}) > 1
        and all(
            isinstance(trial["parameters"].get(name), Real) and not isinstance(trial["parameters"].get(name), bool)
            for trial in points
        )
    ][:MOST_PANELS]
    if not names:
        return None
    best = result.best
    with canvas(
        f"{result.metric} of each trial against {', '.join(names)}", height=2.4, narrow=narrow, columns=len(names)
    ) as drawing:
        for name, axes in zip(names, drawing.panels, strict=True):
            xs = [float(trial["parameters"][name]) for trial in points]
            ys = [result.values[trial["number"]] for trial in points]
            axes.scatter(xs, ys, s=14, color=BLUE, edgecolor=SOFT, linewidth=0.5)
            axes.scatter(
                [x for x, trial in zip(xs, points, strict=True) if trial["number"] == best],
                [y for y, trial in zip(ys, points, strict=True) if trial["number"] == best],
                s=40,
                color=GREEN,
                label="best",
            )
            if min(xs) > 0 and max(xs) / min(xs) >= 50:
                axes.set_xscale("log")
            axes.set_xlabel(name)
        drawing.panels[0].set_ylabel(result.metric)
        drawing.panels[0].legend()
    return drawing.svg


JOULES = 3_600_000.0
"""In one kWh."""
LEAST_GAIN = 0.03
"""Share of the makespan below which the oracle's gain is not divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWhatIf:
    """A sweep under several rules of sharing GPUs.

    Attributes
    ----------
    trials : int
        Simulated trials.
    comparisons : mapping
        Results by the gain of pairs that were never measured, lowest first. None where all were.
    watts : pair of float, optional
        Power of an idle and of a busy GPU, W. NaN for the idle one: only energy of busy ones is known.
    notes : sequence of str
        What was assumed.
    """

    name: str
    trials: int
    devices: Sequence[Device]
    comparisons: Mapping[float | None, PoolComparison]
    watts: tuple[float, float] | None
    notes: Sequence[str]

    def energy_kwh(self, outcome: PoolOutcome) -> float | None:
        """Return the energy of the GPUs, kWh."""
        if self.watts is None:
            return None
        idle, busy = self.watts
        idle_s = outcome.held_gpu_s - outcome.busy_gpu_s
        return (outcome.busy_gpu_s * busy + (0.0 if math.isnan(idle) else idle_s * idle)) / JOULES

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``helios pool whatif --json``."""
        return {
            "sweep": self.name,
            "trials": self.trials,
            "devices": [{"name": device.name, "memory_mib": round(device.memory_mib, 1)} for device in self.devices],
            "comparisons": [
                {"gain_of_unmeasured_pairs": gain, **self._comparison(found)}
                for gain, found in self.comparisons.items()
            ],
            "notes": list(self.notes),
        }

    def _comparison(self, found: PoolComparison) -> dict[str, Any]:
        values = found.to_json()
        for name, outcome in found.outcomes.items():
            values["rules"][name]["energy_kwh"] = self.energy_kwh(outcome)
        return values


def pool_whatif_table(result: PoolWhatIf) -> RenderableType:
    """Show each rule, as a range where pairs were never measured.

    In at most 80 columns, which is what a terminal has.
    """
    table = plain_table(
        "Rule", "Makespan", "Mean time\nto result", "GPU\nhours", "Energy", "Memory\nkills", "Of the\noracle's gain"
    )
    found = list(result.comparisons.values())
    for rule in found[0].outcomes:
        outcomes = [one.outcomes[rule] for one in found]
        energies = [result.energy_kwh(outcome) for outcome in outcomes]
        shares = [_share(one, rule) for one in found]
        table.add_row(
            escape(rule),
            _range([rounded_duration(outcome.makespan_s) for outcome in outcomes]),
            _range([rounded_duration(outcome.mean_result_s) for outcome in outcomes]),
            _range([f"{outcome.held_gpu_s / 3600:,.3g}" for outcome in outcomes]),
            _range(["not known" if energy is None else f"{energy:,.2f} kWh" for energy in energies]),
            _range([f"{outcome.out_of_memory:,}" for outcome in outcomes]),
            _range(["none" if math.isnan(share) else percent(share) for share in shares]),
        )
    device = result.devices[0]
    lines = [
        f"{count_in_words(result.trials, 'trial')} of {result.name} on {count_in_words(len(result.devices), 'GPU')} "
        f"of {memory_in_words(device.memory_mib)}, simulated."
    ]
    if None not in result.comparisons:
        gains = " to ".join(f"{gain:g}" for gain in result.comparisons)
        lines.append(f"Two trials that never ran together are taken to do {gains} times the work of one: --gain.")
    if result.watts is not None and math.isnan(result.watts[0]):
        lines.append("Energy is that of busy GPUs; that of idle ones is not known: --watts IDLE,BUSY.")
    return Group(table, "", *map(escape, lines))


def _share(found: PoolComparison, rule: str) -> float:
    """Return the share of the oracle's gain.

    It is NaN where that gain is too small to be divided.
    """
    least = (1 - LEAST_GAIN) * found.outcomes["exclusive"].makespan_s
    return found.share_of_gain(rule) if found.outcomes["oracle"].makespan_s < least else math.nan


def _range(cells: Sequence[str]) -> str:
    """Return one cell for all cases, first to last."""
    return cells[0] if cells[0] == cells[-1] else f"{cells[0]}\nto {cells[-1]}"

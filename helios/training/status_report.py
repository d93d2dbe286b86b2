"""Answers about a pool for a person, in a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape

from helios.targets import write_number
from helios.training.pool.state import TrialRecord
from helios.training.report import best_in_words, code_in_words, memory_in_words, trial_table
from helios.training.status import PoolStatus
from helios.units import bar, count_in_words, duration_in_words, rounded_duration

UNLIKELY = 0.05
"""Chance of a target below which no time is said."""
MOST_DEVICES, MOST_RUNNING, MOST_FAILED = 4, 8, 5
"""Devices and trials that the status lists, so that it fits on a screen; --json has all."""


def status_lines(status: PoolStatus, *, width: int) -> list[Any]:
    """Return how a pool is, on one screen."""
    counts, ended = status.counts, len(status.ended)
    words = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    share = ended / status.total if status.total else 0.0
    lines: list[Any] = [
        *map(escape, _run_lines(status)),
        f"{bar(share)} {ended:,} of {status.total:,} trials: {words}".strip(),
    ]
    if status.live:
        left_s = status.left_s
        lines.append(f"Time left: {'unknown' if left_s is None else f'about {duration_in_words(left_s)}'}")
    finished = {trial.number: (trial.metrics, trial.parameters) for trial in status.best()}
    lines += map(escape, best_in_words(finished, status.objectives, width=width))
    lines += map(escape, target_lines(status))
    if status.running:
        rows = [_running_cells(status, trial) for trial in status.running[:MOST_RUNNING]]
        lines.append(trial_table(("Trial", "Parameters", "Device", "Done", "Time"), rows, width=width))
        lines += _more(len(status.running) - MOST_RUNNING)
        for trial in [trial for trial in status.running[:MOST_RUNNING] if trial.changes]:
            changes = f"{count_in_words(trial.changes, 'change')}: {_size_in_words(trial.devices, trial.pause_s)}"
            lines.append(escape(f"Trial {trial.number} after {changes}"))
    for trial in status.failed[-MOST_FAILED:]:
        reason = trial.reason.partition("; see ")[0]
        lines.append(escape(f"Trial {trial.number} failed: {reason}; log: {status.log(trial)}"))
    lines += _more(len(status.failed) - MOST_FAILED)
    for order in status.orders[-MOST_FAILED:]:
        trials = ", ".join(map(str, order.numbers[:MOST_FAILED])) + (" ..." if len(order.numbers) > MOST_FAILED else "")
        chosen = f"trial{'s' * (len(order.numbers) > 1)} {trials}" if order.numbers else "all that failed"
        lines.append(escape(f"Ordered by {order.who}, not done yet: {order.what} {chosen}"))
    return lines


def target_lines(status: PoolStatus) -> list[str]:
    """Return how far the sweep is from its target."""
    if (found := status.target_json()) is None:
        return []
    best = "" if found["best"] is None else f", best so far {found['best']:.5g} of trial {found['trial']}"
    lines = [f"Target {found['target']}{best}"]
    if found["problem"]:
        lines.append(f"  Trials are without it: {found['problem']}")
    for tier in found["tiers"]:
        if (reached := tier["reached"]) is None:
            lines.append(f"  {write_number(tier['value'])} is not reached yet{_need_in_words(tier['need'])}")
            continue
        step = "" if reached["step"] is None else f" at step {reached['step']:,}"
        after = "" if reached["seconds"] is None else f" after {duration_in_words(reached['seconds'])}"
        at = "" if reached["time_s"] is None else f", {_clock(reached['time_s'])}"
        lines.append(f"  {write_number(reached['goal'])} was reached by trial {reached['trial']}{step}{after}{at}")
        if reached["goal"] != tier["value"]:
            lines.append(
                f"    That was the target then: {write_number(tier['value'])} counts as reached, and is not delivered."
            )
        delivered = tier["delivered"]
        lines.append(f"    {'not delivered yet' if delivered is None else 'delivered: ' + delivered['folder']}")
    return lines


def _need_in_words(need: Mapping[str, Any] | None) -> str:
    if need is None:
        return ""
    low, middle, high = map(rounded_duration, need["seconds"])
    how_likely = f"{need['reached']:.0%} likely"
    if need["reached"] < UNLIKELY:
        return f"; trial {need['trial']} will hardly reach it, {how_likely}"
    return f"; trial {need['trial']} is to in {middle} ({low} to {high}), {how_likely}"


def best_lines(status: PoolStatus, trials: Iterable[TrialRecord]) -> list[Any]:
    """Return the best trials with what reproduces them."""
    lines = [line for trial in trials for line in ("", *_result_lines(status, trial))][1:]
    return [*(lines or ["No trial has finished with a value yet."]), *map(escape, target_lines(status))]


def show_lines(status: PoolStatus, number: int, log: Iterable[str], attempts: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return all that is known of a trial."""
    lines = [*_result_lines(status, status.records.trials[number]), *map(escape, target_lines(status))]
    for attempt in attempts:
        used = [_devices_in_words(attempt["devices"]), f"from {_clock(attempt['started_s'])}"]
        if attempt["seconds"] is not None:
            used.append(rounded_duration(attempt["seconds"]))
        if attempt["peak_memory_mib"] is not None:
            used.append(memory_in_words(attempt["peak_memory_mib"]))
        if attempt["commit"] is not None:
            used.append(f"commit {attempt['commit'][:12]}")
        end = f"{attempt['outcome']}: {attempt['reason']}" if attempt["reason"] else attempt["outcome"]
        lines.append(escape(f"Attempt {attempt['attempt']}: {', '.join(used)}"))
        lines.append(escape(f"  started, since {attempt['why']}; {end}" if attempt["why"] else f"  {end}"))
        sizes = (
            f"{_size_in_words(each['devices'], each['pause_s'])}, {_clock(each['at_s'])}" for each in attempt["resized"]
        )
        lines += [escape(f"  {size}") for size in sizes]
    return [*lines, escape(f"Log: {status.log(status.records.trials[number])}"), *(escape(f"  {line}") for line in log)]


def _run_lines(status: PoolStatus) -> list[str]:
    """Return who runs the pool, or when it ran last."""
    lines = []
    for run, shown in status.live.items():
        about = status.records.runs.get(run)
        if about is None:
            lines.append(f"{status.folder.name} begins, process {shown.get('pid', 'unknown')}")
            continue
        began = f"since {_clock(about['at_s'])} on {about['host']}, process {about['pid']} of {about['user']}"
        lines.append(f"{status.folder.name} runs {began}")
        for device in about["devices"][:MOST_DEVICES]:
            slots, memory = count_in_words(device["slots"], "slot"), memory_in_words(device["memory_mib"])
            lines.append(f"  {device['name']}: {device['model'] or device['kind']}, {memory}, {slots}")
        lines += _more(len(about["devices"]) - MOST_DEVICES)
        if shown.get("hold"):
            lines.append(f"  No trial is started: {shown['hold']}")
    if not lines:
        last = status.about
        began = f"; its last run began {_clock(last['at_s'])} on {last['host']}" if last else ""
        lines.append(f"{status.folder.name} does not run{began}")
    return lines


def _running_cells(status: PoolStatus, trial: TrialRecord) -> list[str | Mapping[str, Any]]:
    progress = status.reports[trial.number].progress if trial.number in status.reports else None
    done = "" if progress is None else f"{progress:.0%}"
    return [
        str(trial.number),
        trial.parameters,
        _devices_in_words(trial.devices),
        done,
        rounded_duration(status.seconds(trial)),
    ]


def _result_lines(status: PoolStatus, trial: TrialRecord) -> list[str]:
    """Return a trial with its parameters, metrics and what reproduces it."""
    found = status.result_json(trial)
    made = found["provenance"]
    state = f"Trial {trial.number}: {trial.state}"
    if trial.reason:
        state += f": {trial.reason}"
    lines = [state]
    lines += [f"  {name} = {value}" for name, value in trial.parameters.items()]
    lines += [f"  {name}: {value:.6g}" for name, value in sorted(found["metrics"].items())]
    if found["checkpoints"] is not None:
        lines.append(f"Checkpoints: {found['checkpoints']}")
    if found["command"] is not None:
        lines.append(f"Command: {found['command']}")
    if trial.run:
        lines.append(code_in_words(made))
        lines.append(f"Seed: {'none' if made['seed'] is None else made['seed']}; on {made['host']} by {made['user']}")
    return [escape(line) for line in lines]


def _size_in_words(devices: Sequence[str], pause_s: float | None) -> str:
    """Return a trial's devices, and how long it stood still for their change."""
    pause = "" if pause_s is None else f", stood still for {pause_s:.2g} s"
    return f"{count_in_words(len(devices), 'device')}, {_devices_in_words(devices)}{pause}"


def _devices_in_words(devices: Sequence[str]) -> str:
    """Return names of devices, those that count up as a range."""
    words: list[str] = []
    for name in devices:
        kind, _, number = name.rpartition(":")
        last, _, end = words[-1].rpartition(":") if words else ("", "", "")
        begin, _, end = end.rpartition("-")
        if last == kind and number.isdigit() and end.isdigit() and int(number) == int(end) + 1:
            words[-1] = f"{kind}:{begin or end}-{number}"
        else:
            words.append(name)
    return ", ".join(words)


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def _more(count: int) -> list[str]:
    return [f"{count:,} more: --json"] if count > 0 else []

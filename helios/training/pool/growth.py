"""What may change in a sweep file whose trials have begun.

Spaces may change as long as every trial that was made lies in them, and so may how many trials there are and how they
are chosen. What changed is named, and what may not change as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from helios.errors import UsageError
from helios.training.pool.state import Records, StateFile
from helios.training.pool.sweep import TrainingSweep, Value, ValueRange, format_value, is_within, leave_out

LONGEST = 200
"""Characters of a value that a sentence quotes."""
SHOWN = 3
"""Trials that a sentence names."""


def describe(sweep: TrainingSweep) -> dict[str, Any]:
    """Return what results depend on, as plain values for the state file."""
    spaces = {}
    for name, space in sweep.parameters.items():
        spaces[name] = asdict(space) if isinstance(space, ValueRange) else {"values": space}
        spaces[name] |= {"when": sweep.conditions[name]} if name in sweep.conditions else {}
    described = {
        "command": sweep.command,
        "container": sweep.container and sweep.container.image,
        "fused": sweep.fused and sweep.fused.settings,
        "metrics": sweep.objectives,
        "target": sweep.target and str(sweep.target),
        "search": sweep.search and asdict(sweep.search),
        "listed": _describe_listed(sweep),
        "parameters": spaces,
    }
    plain: dict[str, Any] = json.loads(json.dumps(described))
    return plain


def _describe_listed(sweep: TrainingSweep) -> str | None:
    """Return the number of trials in a file, and their digest."""
    digest = hashlib.sha256(json.dumps(sweep.listed).encode()).hexdigest()[:8]
    return f"{len(sweep.listed):,} trials, digest {digest}" if sweep.listed else None


def take_over(sweep: TrainingSweep, state: StateFile) -> str:
    """Record what has changed in a sweep, and return it in words.

    Trials without a parameter that was added get its default.

    Raises
    ------
    UsageError
        The trials that were made are none of this sweep, or other pools of the folder run by the sweep as it was.
    """
    new = describe(sweep)
    changes, made = compare(sweep, state, state.path.parent)
    if not changes:
        return ""
    if state.others_run():
        raise UsageError(
            f"Another pool works in {state.path.parent} by the sweep file as it was. {changes}.",
            hint="Wait for it or end it; the next pool takes over what has changed.",
        )
    for number, parameters in made.items():
        if parameters != state.trials[number].parameters:
            state.record_created(number, parameters)
    state.record_sweep(new)
    return f"The sweep file has changed. {changes}"


def compare(sweep: TrainingSweep, records: Records, folder: Path) -> tuple[str, dict[int, dict[str, Value]]]:
    """Return changes of a sweep in words, and its trials with them.

    Raises
    ------
    UsageError
        The trials that were made are none of this sweep.
    """
    new, old = describe(sweep), records.sweep
    made = {trial.number: _complete(sweep, trial.parameters) for trial in records.trials.values()}
    if new == old:
        return "", made
    if refused := [*_fixed_changes(sweep, old, new), *_trials_outside(sweep, made, old, new)]:
        raise UsageError(
            f"{folder} holds trials of another sweep. {'; '.join(refused)}.",
            hint="Change that back to go on, or choose another place: --folder FOLDER",
        )
    return "; ".join(_changes(old, new)) or "It is written otherwise", made


def _complete(sweep: TrainingSweep, parameters: Mapping[str, Value]) -> dict[str, Value]:
    """Return the parameters of a trial, with defaults for missing ones."""
    complete = dict(parameters)
    for name, value in sweep.defaults.items():
        if name not in complete and sweep.has(name, complete):
            complete[name] = value
    return complete


def _fixed_changes(sweep: TrainingSweep, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return changes of what all trials must have in common."""
    added = new["parameters"].keys() - old["parameters"].keys()
    command = leave_out(sweep.command, added)  # which for the trials before was the command without their words
    before, after = _common(old), _common({**new, "command": command})
    if not (before["metric"] and after["metric"]):  # a grid may get a target, and lose it
        after |= {"metric": before["metric"], "direction": before["direction"]}
    return [
        _change(name, before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _common(described: Mapping[str, Any]) -> dict[str, Any]:
    metrics = described["metrics"]
    return {
        "command": " ".join(described["command"]),
        "container": described["container"],
        "metric": [*metrics],
        "direction": ["maximize" if each else "minimize" for each in metrics.values()],
        "who chooses trials": "the grid" if described["search"] is None else "Optuna",
        **{f"fused.{name}": value for name, value in (described["fused"] or {}).items()},
    }


def _trials_outside(
    sweep: TrainingSweep, made: Mapping[int, Mapping[str, Value]], old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[str]:
    """Return for each parameter why made trials cannot be of this sweep."""
    if sweep.listed:
        moved = [number for number, parameters in made.items() if [*sweep.listed[number : number + 1]] != [parameters]]
        return [f"The file of trials has changed for trials {_name(moved)}; new ones go at its end"] if moved else []
    outside: dict[tuple[str, str], list[int]] = {}
    for number, parameters in made.items():
        for name in {**sweep.parameters, **parameters}:
            space = sweep.parameters.get(name)
            if (is_there := name in parameters) != (space is not None and sweep.has(name, parameters)):
                why = "have it" if is_there else "lack it, and it has no default"
            elif not is_there or space is None or is_within(space, parameters[name]):
                continue
            else:
                why = "lie outside"
            outside.setdefault((name, why), []).append(number)
    return [
        f"{_change(name, _words(old, name), _words(new, name))}, but trials {_name(numbers)} {why}"
        for (name, why), numbers in outside.items()
    ]


def _name(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:SHOWN]))
    return shown + (f" and {len(numbers) - SHOWN:,} more" if len(numbers) > SHOWN else "")


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return everything that changed, in words."""
    before, after = (
        {**(each["search"] or {}), "file of trials": each["listed"], "target": each["target"]} for each in (old, new)
    )
    names = [*dict.fromkeys([*old["parameters"], *new["parameters"]])]
    changes = [
        _change(name, _words(old, name), _words(new, name))
        for name in names
        if old["parameters"].get(name) != new["parameters"].get(name)
    ]
    if old["command"] != new["command"]:
        changes.append(_change("command", " ".join(old["command"]), " ".join(new["command"])))
    return changes + [
        _change(name.replace("_", " "), before.get(name), after.get(name))
        for name in after
        if before.get(name) != after.get(name)
    ]


def _change(name: str, before: Any, after: Any) -> str:
    return f"{name}: {_quote(after)}, was {_quote(before)}"


def _quote(value: Any) -> str:
    words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    words = "none" if value in (None, "", {}) else words
    return words if len(words) <= LONGEST else f"{words[:LONGEST]} ..."


def _words(described: Mapping[str, Any], name: str) -> str | None:
    """Return the space of a parameter in words, None without it."""
    if (space := described["parameters"].get(name)) is None:
        return None
    when = " and ".join(
        f"{other} is {' or '.join(map(format_value, values))}" for other, values in space.get("when", {}).items()
    )
    if "values" in space:
        words = ", ".join(map(format_value, space["values"]))
    else:
        words = f"{space['low']:g} to {space['high']:g}"
        words += f" in steps of {space['step']:g}" if space["step"] is not None else ""
        words += (", whole" if space["whole"] else "") + (", log" if space["log"] else "")
    return f"{words}, when {when}" if when else words

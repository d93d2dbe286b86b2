"""Many replays: what a person asked for, less what is known, on whatever engine, into a file that grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from helios.app.cells import FAILED, FIGURES, Cell, Engine, Told, fingerprint_of, here
from helios.app.history import History
from helios.app.repeats import compared
from helios.app.results_file import results_in
from helios.app.sweep_plan import Cross
from helios.ports import Progress, in_silence
from helios.report.differences import Differences
from helios.report.sweep import Group, Row, Sweep


def sweep(
    history: History,
    asked: Cross,
    *,
    out: Path,
    engine: Engine = here,
    progress: Progress = in_silence,
) -> Sweep:
    """Replay every cell that ``out`` does not hold yet, and return all that were asked for.

    Interrupted, ``out`` keeps what was done, and the same call goes on from there. Cells that fail are written down
    with their reason, and tried again the next time.

    Raises
    ------
    Misuse, FileUnreadable
        ``out`` cannot be used.
    DaskUnavailable, DaskMismatch
        The engine has no workers, or others.
    """
    fingerprint = fingerprint_of(history)
    keys = [cell.key(fingerprint) for cell in asked.cells]
    with results_in(out) as results:
        left = [place for place, key in enumerate(keys) if not results.has(key)]
        progress("Replaying cells", 1 - len(left) / len(keys))
        # Closed here, not when its garbage is collected: workers elsewhere go on until then.
        with closing((engine if left else here)(history, [asked.cells[place] for place in left])) as replays:
            for number, done in enumerate(replays, start=1):
                place = left[done.place]
                results.add(keys[place], asked.cells[place], done.told)
                progress("Replaying cells", 1 - (len(left) - number) / len(keys))
        told = {key: results.known[key] for key in keys}
    return Sweep(
        cluster=history.cluster,
        timezone=history.timezone,
        results=str(out),
        cells=len(keys),
        known_before=len(keys) - len(left),
        groups=tuple(_groups(asked.cells, keys, told)),
        notes=(*history.notes, *asked.notes),
        lines=tuple(
            {"key": key, "cell": cell.to_json(), **told[key]} for key, cell in zip(keys, asked.cells, strict=True)
        ),
    )


def _groups(cells: Sequence[Cell], keys: Sequence[str], told: dict[str, Told]) -> Iterator[Group]:
    """Yield what is compared with each other: the cells that differ in plan and repeat only, in the order asked for."""
    numbered = zip(cells, keys, strict=True)
    for question, members in groupby(numbered, key=lambda member: replace(member[0].question, plans=())):
        these = [(cell, told[key]) for cell, key in members]
        yield Group(about=_about(these[0][0], question), rows=tuple(_rows(these)), differences=_differences(these))


def _about(cell: Cell, question: Any) -> dict[str, Any]:
    told = cell.to_json()
    return {name: told[name] for name in told if name in question.__slots__ and name != "plans"}


def _rows(members: Sequence[tuple[Cell, Told]]) -> Iterator[Row]:
    """Yield each plan of a group, its figures over all of its repeats."""
    by_plan: dict[Any, list[Told]] = {}
    for cell, told in members:
        by_plan.setdefault(cell.plan, []).append(told)
    for plan, outcomes in by_plan.items():
        found = [told[FIGURES] for told in outcomes if FIGURES in told]
        reasons = [told[FAILED] for told in outcomes if FAILED in told]
        named = ", ".join([plan.policy, plan.backfill, *(f"{name} {value}" for name, value in plan.options)])
        yield Row.of(found, reasons, named=named)


def _differences(members: Sequence[tuple[Cell, Told]]) -> Differences | None:
    """Return the differences to the baseline over the repeats in which every plan was replayed; None: too few."""
    by_repeat: dict[int, list[Told]] = {}
    for cell, told in members:
        by_repeat.setdefault(cell.repeat, []).append(told)
    whole = [outcomes for repeat, outcomes in by_repeat.items() if repeat and all(FIGURES in told for told in outcomes)]
    if len(whole) < 2:
        return None
    return compared([told[FIGURES] for outcomes in whole for told in outcomes])

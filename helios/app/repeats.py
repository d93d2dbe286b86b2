"""A what-if, repeated on weeks drawn anew: which of its differences are more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from helios.app.cells import FIGURES, Cell, Engine, here
from helios.app.history import History
from helios.app.whatif import Question
from helios.errors import NotEnoughHistory
from helios.ports import Progress, in_silence
from helios.report.differences import Differences, Over, figures_of, over_repeats

FEWEST_REPEATS = 5
"""Repeats below which their spread says too little."""


def repeats(
    history: History,
    question: Question,
    *,
    times: int,
    over: Over | None = None,
    engine: Engine = here,
    progress: Progress = in_silence,
) -> Differences:
    """Replay every plan of ``question`` on ``times`` draws, the same for all plans, and compare with the baseline.

    Parameters
    ----------
    over : Over, optional
        What is drawn; None: weeks, or what the window is long enough for (:func:`helios.app.draws.urn_of`).
    engine : Engine
        Where; the answer is the same wherever.

    Raises
    ------
    NotEnoughHistory
        A replay failed, with the reason.
    """
    cells = [
        Cell(question=replace(question, plans=(plan,)), repeat=repeat, over=over)
        for repeat in range(1, times + 1)
        for plan in question.plans
    ]
    told: dict[int, Mapping[str, Any]] = {}
    progress("Repeating", 0.0)
    for done in engine(history, cells):
        if FIGURES not in done.told:
            raise NotEnoughHistory(f"A repeat could not be replayed: {next(iter(done.told.values()))}")
        told[done.place] = done.told[FIGURES]
        progress("Repeating", len(told) / len(cells))
    return compared([told[place] for place in range(len(cells))])


def compared(told: Sequence[Mapping[str, Any]]) -> Differences:
    """Compare the figures of cells that are alike but in plan and repeat, every plan on the same repeats in order."""
    by_label: dict[str, list[dict[str, float | None]]] = {}
    for figures in told:
        by_label.setdefault(figures["label"], []).append(figures_of(figures))
    today = next((figures["label"] for figures in told if figures["is_today"]), told[0]["label"])
    return over_repeats(by_label, baseline=today, over=Over(told[0]["over"]), blocks=told[0]["blocks"])

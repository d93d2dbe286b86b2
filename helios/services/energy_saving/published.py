"""Rule of the paper for how many nodes stay awake.

Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters", SC'21, section 4.3, doi 10.1145/3458817.3476223, with the values of its released scripts. Nodes are put to
sleep only where use has fallen and is expected to fall, and are woken once too few are awake. Their forecast for three
hours ahead contains true values of two of these hours. Here it uses only what was known. Nothing is tuned: the rule is
a comparison, and an option.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.model import STEP_S

Nodes = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedValues:
    """Values of the rule for one cluster of the paper.

    Attributes
    ----------
    reserve : float
        Nodes awake beyond those in use, the paper's sigma.
    recent_steps : int
        Steps before the current one over which use must have fallen.
    ahead_h : int
        Hours over which use must be expected to fall; over twice as many it must not be expected to rise.
    least_fall, least_expected_fall : float
        By how many nodes, the paper's xi_H and xi_P.
    hold_steps : int
        Nothing is put to sleep for so many steps after nodes were woken.
    """

    reserve: float
    recent_steps: int
    ahead_h: int
    least_fall: float
    least_expected_fall: float
    hold_steps: int


EARTH = PublishedValues(
    reserve=5.0,
    recent_steps=3_600 // STEP_S,
    ahead_h=3,
    least_fall=1.0,
    least_expected_fall=1.0,
    hold_steps=7_200 // STEP_S,
)
PHILLY = PublishedValues(
    reserve=20.0,
    recent_steps=1_200 // STEP_S,
    ahead_h=5,
    least_fall=0.1,
    least_expected_fall=0.0,
    hold_steps=6_000 // STEP_S,
)
LARGE = 300
"""Nodes of a pool from which the values are those of Philly, otherwise those of Earth."""
EXPECTED_HOURS = 2 * PHILLY.ahead_h
"""Hours ahead of which the rule reads a forecast."""


def published_values(nodes: float) -> PublishedValues:
    """Return the authors' values for a pool of so many nodes."""
    return PHILLY if nodes >= LARGE else EARTH


def published_levels(
    busy: Nodes, total: Nodes, expected: Nodes, values: PublishedValues, *, powered: float | None = None
) -> Nodes:
    """Return the nodes to be awake from the end of each step on.

    Parameters
    ----------
    busy, total : float64 arrays of shape (n_steps,)
        Most nodes in use in each step of ``STEP_S``, and nodes in service.
    expected : float64 array of shape (n_steps, n_hours)
        Mean nodes in use expected in each hour after the end of a step; NaN without a forecast, where nothing is put to
        sleep. At least ``EXPECTED_HOURS`` hours.
    powered : float, optional
        Nodes awake before the first step; None: those in use and the reserve.
    """
    levels = np.zeros(len(busy))
    if not len(busy):
        return levels
    falls = _falls(busy, expected, values)
    level = min(busy[0] + values.reserve, total[0]) if powered is None else powered
    held_until = 0
    for step, (in_use, in_service) in enumerate(zip(busy.tolist(), total.tolist(), strict=True)):
        # The level is not cut to the nodes in service, as nodes that fail and return were not put to sleep.
        if in_use > level and level < in_service:
            level, held_until = max(level, min(in_service, in_use + values.reserve)), step + values.hold_steps
        elif step >= held_until and falls[step] and in_use + values.reserve <= level - 1:
            level = in_use + values.reserve
        levels[step] = level
    return levels


def _falls(busy: Nodes, expected: Nodes, values: PublishedValues) -> NDArray[np.bool_]:
    """Return where use has fallen and is expected to fall."""
    recent, steps = np.full(len(busy), np.nan), min(values.recent_steps, len(busy))
    summed = np.concatenate([[0.0], np.cumsum(busy)])
    recent[steps:] = (summed[steps:-1] - summed[: -1 - steps]) / steps
    soon, later = (expected[:, : times * values.ahead_h].mean(axis=1) for times in (1, 2))
    falls: NDArray[np.bool_] = (
        (recent - busy >= values.least_fall) & (busy - soon >= values.least_expected_fall) & (soon >= later)
    )
    return falls

"""Options of the energy-saving service (CES)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from helios.model import STEP_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CesOptions:
    """Options of the energy-saving service (CES).

    Attributes
    ----------
    every_s : int
        Time between two decisions, s.
    rule : str
        ``helios``; ``published``, the rule of the paper without what it could not know; or ``max_3h``, the maximum of
        the last three hours plus five nodes, without a forecast. The last two are baselines.
    mechanism : str
        ``sleep`` to power nodes down, or ``keep_awake`` to let the cluster's idle timer do it, except for listed nodes.
    risk : float
        Largest chance that a job, whenever it comes, finds fewer nodes awake than are needed and waits for a boot.
    wake_ups_per_day : float, optional
        How often a day, on average, nodes of a pool may be woken; more only where it pays very well. None for as often
        as the published rule would have in the same weeks, between every other day and twice a day.
    worth : float
        How many per cent more sleep one per cent more wake-ups must bring. Larger means fewer wake-ups and less sleep.
    spare : int
        Number of idle nodes of a pool below which nodes are woken ahead of need.
    weeks : int
        Weeks of history on which thresholds are chosen.
    sigma : float
        Published rule: nodes kept in reserve.
    hold_s : int
        Published rule: hold-off after a wake, s.
    xi_h, xi_p : float
        Published rule: nodes by which use must have fallen, and be expected to fall.
    h_s, f_s : int
        Published rule: the horizons of both, s.
    """

    every_s: int = STEP_S
    rule: Literal["helios", "published", "max_3h"] = "helios"
    mechanism: Literal["sleep", "keep_awake"] = "sleep"
    risk: float = 0.01
    wake_ups_per_day: float | None = None
    worth: float = 0.1
    spare: int = 2
    weeks: int = 3
    sigma: float = 5.0
    hold_s: int = 7_200
    xi_h: float = 1.0
    xi_p: float = 1.0
    h_s: int = 3_600
    f_s: int = 10_800

    def __post_init__(self) -> None:
        for holds, message in (
            (self.every_s > 0, "every_s must be positive"),
            (0 < self.risk < 1, "risk must lie between 0 and 1"),
            (0 < (self.wake_ups_per_day or 1.0) < np.inf, "wake_ups_per_day must be positive and finite"),
            (0 <= self.worth < np.inf, "worth must be finite and not negative"),
            (self.spare >= 0, "spare must not be negative"),
            (1 <= self.weeks <= 26, "weeks must lie between 1 and 26"),
            (0 <= self.sigma < np.inf, "sigma must be finite and not negative"),
            (self.hold_s >= 0, "hold_s must not be negative"),
            (self.h_s >= STEP_S, f"h_s must be at least {STEP_S}"),
            (self.f_s >= STEP_S, f"f_s must be at least {STEP_S}"),
        ):
            if not holds:
                raise ValueError(message)

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
        ``helios``, chosen by replay each day; ``published``, the rule of the paper without what it could not know; or
        ``max_3h``, the maximum of the last three hours plus five nodes, without a forecast. The last two are baselines.
    mechanism : str
        ``sleep`` to power nodes down, or ``keep_awake`` to let the cluster's idle timer do it, except for listed nodes.
    risk : float, optional
        Largest chance that a job, whenever it comes, finds fewer nodes awake than are needed and waits for a boot. None
        for that of the published rule.
    wake_ups_per_day : float, optional
        How often a day, on average, nodes of a pool may be woken. None for no oftener than the published rule in any
        week of the past, with no more nodes short.
    penalty : float
        How many hours a node must sleep to make up for an hour in which a node is short.
    spare : int
        Number of idle nodes of a pool below which nodes are woken ahead of need.
    weeks : int
        Most weeks of history on which a rule is chosen.
    sigma : float, optional
        Published rule: nodes kept in reserve. None, here and below, for its authors' value for a pool of this size.
    hold_s : int, optional
        Published rule: hold-off after a wake, s.
    xi_h, xi_p : float, optional
        Published rule: nodes by which use must have fallen, and be expected to fall.
    h_s, f_s : int, optional
        Published rule: the horizons of both, s.
    """

    every_s: int = STEP_S
    rule: Literal["helios", "published", "max_3h"] = "helios"
    mechanism: Literal["sleep", "keep_awake"] = "sleep"
    risk: float | None = None
    wake_ups_per_day: float | None = None
    penalty: float = 100.0
    spare: int = 2
    weeks: int = 8
    sigma: float | None = None
    hold_s: int | None = None
    xi_h: float | None = None
    xi_p: float | None = None
    h_s: int | None = None
    f_s: int | None = None

    def __post_init__(self) -> None:
        for holds, message in (
            (self.every_s > 0, "every_s must be positive"),
            (self.risk is None or 0 < self.risk < 1, "risk must lie between 0 and 1"),
            (0 < (self.wake_ups_per_day or 1.0) < np.inf, "wake_ups_per_day must be positive and finite"),
            (0 <= self.penalty < np.inf, "penalty must be finite and not negative"),
            (self.spare >= 0, "spare must not be negative"),
            (1 <= self.weeks <= 26, "weeks must lie between 1 and 26"),
            (0 <= (self.sigma or 0.0) < np.inf, "sigma must be finite and not negative"),
            ((self.hold_s or 0) >= 0, "hold_s must not be negative"),
            (self.h_s is None or self.h_s >= STEP_S, f"h_s must be at least {STEP_S}"),
            (self.f_s is None or self.f_s >= STEP_S, f"f_s must be at least {STEP_S}"),
        ):
            if not holds:
                raise ValueError(message)

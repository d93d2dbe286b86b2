"""Comparison of a replay's starts with the recorded ones.

Job by job, beside simple controls.

Start order follows submissions whatever the rules are, so that its rank correlation is high for any replay: read it
beside the control "in order of submission". The rank correlation of waits says more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.markup import escape

from helios.errors import NotEnoughHistory
from helios.metrics.statistics import rank_correlation
from helios.report.plain import plain
from helios.report.tables import plain_table

FEWEST_JOBS = 3
"""Jobs below which a rank correlation means nothing."""
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How near one replay's starts come to the recorded ones.

    Attributes
    ----------
    name : str
        What was replayed.
    jobs : int
    order_correlation, wait_correlation : float
        Spearman's, of starts and of waits; NaN where all are equal.
    median_error_s, p95_error_s : float
        Quantiles of the absolute difference of starts, s.
    mean_wait_s, recorded_wait_s : float
        Mean from eligible to start, s.
    """

    name: str
    jobs: int
    order_correlation: float
    wait_correlation: float
    median_error_s: float
    p95_error_s: float
    mean_wait_s: float
    recorded_wait_s: float

    @property
    def mean_wait_error(self) -> float:
        """Relative error of the mean wait.

        As a share of the recorded one; NaN where nobody waited.
        """
        return self.mean_wait_s / self.recorded_wait_s - 1 if self.recorded_wait_s else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values.

        What has no value is None.
        """
        return plain(asdict(self) | {"mean_wait_error": self.mean_wait_error})  # type: ignore[no-any-return]  # because of its parts


def fidelity(name: str, *, eligible_s: Times, recorded_s: Times, replayed_s: Times) -> Fidelity:
    """Compare replayed starts with the recorded ones.

    All arrays have the shape (jobs,), in s since the same moment.

    Raises
    ------
    NotEnoughHistory
        Fewer than ``FEWEST_JOBS`` jobs.
    """
    if len(recorded_s) < FEWEST_JOBS:
        raise NotEnoughHistory(
            f"{len(recorded_s)} recorded starts are too few to judge a replay by.", hint="Give a longer window."
        )
    error_s = np.abs(replayed_s - recorded_s)
    return Fidelity(
        name=name,
        jobs=len(recorded_s),
        order_correlation=rank_correlation(recorded_s, replayed_s),
        wait_correlation=rank_correlation(recorded_s - eligible_s, replayed_s - eligible_s),
        median_error_s=float(np.median(error_s)),
        p95_error_s=float(np.percentile(error_s, 95)),
        mean_wait_s=float(np.mean(replayed_s - eligible_s)),
        recorded_wait_s=float(np.mean(recorded_s - eligible_s)),
    )


def fidelity_table(rows: Sequence[Fidelity]) -> RenderableType:
    """Compare replays with the record, the first in bold."""
    table = plain_table("Beside the recorded starts", "Order", "Waits", "Median error", "p95", "Mean wait", "Error")
    for place, row in enumerate(rows):
        table.add_row(
            escape(row.name),
            _correlation(row.order_correlation),
            _correlation(row.wait_correlation),
            f"{row.median_error_s:,.1f} s",
            f"{row.p95_error_s:,.1f} s",
            f"{row.mean_wait_s:,.1f} s",
            "-" if np.isnan(row.mean_wait_error) else f"{100 * row.mean_wait_error:+.1f} %",
            style="" if place else "bold",
        )
    legend = (
        f"[dim]{rows[0].jobs:,} jobs; recorded mean wait {rows[0].recorded_wait_s:,.1f} s. Order, Waits: Spearman's "
        "rank correlation of starts, of waits. Errors: of starts.[/]"
    )
    return Group(table, legend)


def _correlation(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3f}"

"""The rules that CES is held against, made causal: as published, and the most of three hours plus five nodes.

Source of the first: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in
Large-Scale GPU Datacenters", SC'21, section 4.3, doi 10.1145/3458817.3476223, with the values of its released scripts.
There the forecast for three hours ahead contains true values of two of them; here it is whatever was known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.kernels import kept
from helios.services.ces.rule import highest_of_last


class Published(NamedTuple):
    """Values of the published rule.

    Attributes
    ----------
    recent_steps : int
        Steps of the recent trend: the mean of these less what is busy now.
    xi_h, xi_p : float
        Nodes by which use must have fallen, and be expected to fall, for some to be put to sleep.
    reserve : float
        Nodes kept above what is busy: the paper's sigma.
    least : float
        Fewer nodes than this are not put to sleep.
    hold_steps : int
        Nothing is put to sleep for so many steps after a wake.
    """

    recent_steps: int
    xi_h: float
    xi_p: float
    reserve: float
    least: float
    hold_steps: int


@kept
def published_levels(
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    soon: NDArray[np.float64],
    later: NDArray[np.float64],
    values: Published,
) -> NDArray[np.float64]:
    """Return the nodes awake after each step under the published rule; it begins with its reserve, as its authors do.

    Parameters
    ----------
    busy, total : float64 arrays of shape (n_steps,)
        Most nodes busy in each step, and nodes in service.
    soon, later : float64 arrays of shape (n_steps,)
        Busy nodes expected on average over the horizon of the rule, and over twice that; NaN: nothing was expected.
    """
    levels = np.minimum(busy + values.reserve, total)
    powered, held_until = levels[: values.recent_steps].max(), 0
    for t in range(values.recent_steps, len(busy)):
        if min(busy[t], total[t]) > powered:
            powered, held_until = min(total[t], busy[t] + values.reserve), t + values.hold_steps
        recent = busy[t - values.recent_steps : t].mean() - busy[t]
        falls = recent >= values.xi_h and busy[t] - soon[t] >= values.xi_p and not soon[t] < later[t]
        wanted = busy[t] + values.reserve
        if falls and t >= held_until and powered - wanted >= values.least:
            powered = wanted
        levels[t] = powered
    return levels


def most_plus_levels(
    busy: NDArray[np.float64], total: NDArray[np.float64], *, steps: int = 18, plus: float = 5.0
) -> NDArray[np.float64]:
    """Return the most that was busy in the last ``steps``, plus some nodes: no model, no memory."""
    return np.minimum(highest_of_last(busy, steps) + plus, total)

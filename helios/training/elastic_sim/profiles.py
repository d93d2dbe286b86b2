"""Read measured profiles of models whose batch may change.

A profile says what one step costs on a placement, how noisy gradients are in each epoch, and how far an epoch comes.
The files are those of the artifact of Pollux (OSDI'21). A placement is the number of GPUs on each node, as ``(4, 2)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator

from helios.errors import HeliosError
from helios.training.sizes.model import BatchLimits, Gradient, StepTime

Floats = NDArray[np.float64]

MOST_NODES = 16
"""Nodes up to which steps were measured; more are taken as so many."""


class ProfileInvalid(HeliosError):
    """The profile of a model cannot be read."""


class NotMeasured(HeliosError):
    """A placement or a batch lies outside of what was measured."""


@dataclass(slots=True)
class ModelProfile:
    """What was measured of one model.

    Attributes
    ----------
    epochs : int
        Length of a whole training.
    _iterations, _squares, _variances
        A row for each epoch, a column for each batch.
    """

    name: str
    limits: BatchLimits
    epochs: int
    _by_placement: dict[tuple[int, ...], Any]
    _scattered: LinearNDInterpolator
    _batches: NDArray[np.int64]
    _iterations: Floats
    _squares: Floats
    _variances: Floats
    _epoch_ends: tuple[float, ...]
    _steps: dict[tuple[tuple[int, ...], int], StepTime] = field(default_factory=dict)
    _gradients: dict[tuple[int, int], Gradient] = field(default_factory=dict)

    def step_time(self, placement: tuple[int, ...], local: int) -> StepTime:
        """Return the time of a step, linear between what was measured.

        Raises
        ------
        NotMeasured
            It lies outside of the measurements.
        """
        if known := self._steps.get((placement, local)):
            return known
        rotations = (placement[turn:] + placement[:turn] for turn in range(len(placement)))
        measured = self._by_placement.get(min(rotations))
        if measured is None:
            point = [min(len(placement), MOST_NODES), sum(placement), local]
            found = self._scattered(point)[0]
        else:
            sizes, steps, syncs = measured
            inside = sizes[0] <= local <= sizes[-1]
            found = [np.interp(local, sizes, times) if inside else np.nan for times in (steps, syncs)]
        if np.isnan(found[0]):
            raise NotMeasured(
                f"{self.name} was not measured on {placement} with {local} samples a GPU.",
                hint="Decide for whole nodes, and for batches within the limits of the model.",
            )
        time = self._steps[placement, local] = StepTime(float(found[0]), float(found[1]))
        return time

    def gradient(self, batch: int, epoch: int) -> Gradient:
        """Return the statistics of gradients in an epoch, linear between the measured batches."""
        if known := self._gradients.get((batch, epoch)):
            return known
        if not self._batches[0] <= batch <= self._batches[-1]:
            raise NotMeasured(
                f"{self.name} was not trained with a batch of {batch}.",
                hint=f"Use {self._batches[0]} to {self._batches[-1]}.",
            )
        found = (float(np.interp(batch, self._batches, rows[epoch])) for rows in (self._squares, self._variances))
        gradient = self._gradients[batch, epoch] = Gradient(*found)
        return gradient

    def progress_after(self, epochs: int) -> float:
        """Return the steps of the smallest batch that so many epochs are worth."""
        return self._epoch_ends[epochs - 1] if epochs else 0.0

    def iterations_after(self, batch: int, epoch: int) -> float:
        """Return the steps taken by the end of an epoch."""
        return float(np.interp(batch, self._batches, self._iterations[epoch]))


def read_profile(folder: Path, *, epochs: int, largest_local: int | None = None) -> ModelProfile:
    """Read the profile of a model.

    Parameters
    ----------
    folder : Path
        Holds ``placements.csv``, ``scalability.csv`` and one ``validation-BATCH.csv`` for each global batch.
    epochs : int
        Length of a training.
    largest_local : int, optional
        Most samples of a GPU in one pass, where the memory holds fewer than were measured.

    Raises
    ------
    ProfileInvalid
        A file or a column is missing.
    """
    try:
        placements = pd.read_csv(folder / "placements.csv", dtype={"placement": str})
        scalability = pd.read_csv(folder / "scalability.csv")
        trained = {int(path.stem.split("-")[1]): pd.read_csv(path) for path in folder.glob("validation-*.csv")}
        placements["num_nodes"] = placements["placement"].str.len()
        placements["num_replicas"] = [sum(map(int, digits)) for digits in placements["placement"]]
        axes, times = ["num_nodes", "num_replicas", "local_bsz"], ["step_time", "sync_time"]
        means = placements.groupby(axes, as_index=False)[times].mean()
        scattered = pd.concat([means, scalability])[[*axes, *times]]
        by_placement = {
            tuple(map(int, str(digits))): tuple(
                rows.sort_values("local_bsz")[column].to_numpy(float) for column in ("local_bsz", *times)
            )
            for digits, rows in placements.groupby("placement")
        }
        batches = np.array(sorted(trained))
        if short := [size for size, rows in trained.items() if len(rows) < epochs]:
            raise ValueError(f"batch {short[0]} has fewer than {epochs} epochs")
        progress, iterations, squares, variances = (
            np.array([trained[size][column].to_numpy(float)[:epochs] for size in batches]).T
            for column in ("progress", "iteration", "grad_sqr", "grad_var")
        )
        limits = BatchLimits(
            smallest=int(batches[0]),
            largest=int(batches[-1]),
            smallest_local=int(placements["local_bsz"].min()),
            largest_local=largest_local or int(placements["local_bsz"].max()),
        )
    except (OSError, KeyError, ValueError, IndexError) as reason:
        raise ProfileInvalid(
            f"The profile of a model cannot be read from {folder}: {reason}.",
            hint="It needs placements.csv, scalability.csv and validation-BATCH.csv for each batch.",
        ) from reason
    return ModelProfile(
        name=folder.name,
        limits=limits,
        epochs=epochs,
        _by_placement=by_placement,
        _scattered=LinearNDInterpolator(scattered[axes].to_numpy(float), scattered[times].to_numpy(float)),
        _batches=batches,
        _iterations=iterations,
        _squares=squares,
        _variances=variances,
        _epoch_ends=tuple(map(float, progress.min(axis=1))),
    )

"""Published speeds of trials alone and in pairs, for benchmarks of packing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from helios.errors import HeliosError
from helios.training.simulated_trials import PairProfiles


class ProfilesInvalid(HeliosError):
    """Measured speeds cannot be read."""


def read_pair_profiles(path: Path, *, gpu: str) -> PairProfiles:
    """Read measured speeds of one GPU type.

    Parameters
    ----------
    path : Path
        CSV with the columns ``gpu``, ``model``, ``gpus``, ``other_model``, ``steps_per_s`` and ``other_steps_per_s``,
        as published for Gavel (OSDI'20): alone where ``other_model`` is empty, 0 where two do not fit.
    gpu : str
        A value of the column ``gpu``.

    Raises
    ------
    ProfilesInvalid
        A column is missing, or nothing is there of that GPU.
    """
    try:
        rows = pd.read_csv(path)
        rows = rows[(rows["gpu"] == gpu) & (rows["gpus"] == 1)]
        alone = rows[rows["other_model"].isna()].drop_duplicates("model").set_index("model")["steps_per_s"]
        pairs = rows[rows["other_model"].notna()]
        families = tuple(sorted(alone.index, key=_natural))
        speeds = pairs.pivot_table(index="model", columns="other_model", values="steps_per_s")
        mirrored = pairs.pivot_table(index="other_model", columns="model", values="other_steps_per_s")
    except (OSError, KeyError, ValueError) as reason:
        raise ProfilesInvalid(
            f"Speeds cannot be read from {path}: {reason}.",
            hint="Give a CSV with gpu, model, gpus, other_model, steps_per_s and other_steps_per_s.",
        ) from reason
    if not families:
        raise ProfilesInvalid(f"{path} has no speeds of {gpu!r}.", hint="Name a GPU of its column gpu.")
    table = speeds.reindex(index=families, columns=families)
    table = table.fillna(mirrored.reindex(index=families, columns=families))
    grid = table.to_numpy(dtype=np.float64)
    steps = alone.reindex(families).to_numpy(dtype=np.float64)
    beside = np.where(grid > 0, grid / steps[:, None], np.nan)
    return PairProfiles(families=families, alone=steps, beside=np.where(np.isnan(beside.T), np.nan, beside))


def _natural(name: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))

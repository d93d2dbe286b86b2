"""Signs of GPUs in a history that names none.

Slurm records GPUs only where ``AccountingStorageTRES`` of slurm.conf names ``gres/gpu``, which a fresh one does not.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.units import in_number

UNTRACKED = "no row names gres/gpu"
"""How the note begins."""
MOST_NAMES = 3
"""Names that the note shows at most."""
_NOT_NO = r"(?<!no)(?<!non)(?<!no[-_.])(?<!non[-_.])"
_SERVER = rf"{_NOT_NO}gpu|(?<![a-z])[dh]gx"
# Model names of two characters (T4, L4), and names of persons (Volta), are left out: too much else is called so.
_MODEL = (
    r"(?<![a-z0-9])"
    r"(?:a10|a16|a30|a40|a[18]00|a[456]000|[hb][1238]00|g[hb]200|h20|k80|l40|[pv]100|mi\d{2,3}|[rg]tx)(?!\d)"
)
# Nodes are numbered: a100 may be the hundredth of rack a.
_SIGNS = (
    ("partition", "partition", re.compile(rf"{_SERVER}|{_MODEL}")),
    ("node", "node_list", re.compile(_SERVER)),
    ("QOS", "qos", re.compile(rf"{_SERVER}|{_MODEL}")),
)
_COMMA = re.compile(r",(?![^\[]*\])")
_TRES = ("tres_requested", "tres_allocated")
_NAMES_GPU = re.compile(r"gres/gpu(?![a-z])")
_NAMES_PART = re.compile(r"gres/(?:shard|mps)")


class UntrackedGpus:
    """The signs in a history, which may come in parts."""

    def __init__(self) -> None:
        self._names_gpus = False
        self._found: dict[str, set[str]] = {}

    def add(self, jobs: pd.DataFrame) -> UntrackedGpus:
        """Add jobs with the known columns of ``JOBS``, and return this object."""
        lists = [jobs[name].astype("category") for name in _TRES if name in jobs]
        if not lists or self._names_gpus:
            return self
        if (jobs["gpus"] > 0).any():
            self._names_gpus = True
            return self
        self._names_gpus = any(_matches(column, _NAMES_GPU).any() for column in lists)
        known = np.logical_or.reduce([column.notna().to_numpy() for column in lists])
        rows = known & ~np.logical_or.reduce([_matches(column, _NAMES_PART) for column in lists])
        for kind, name, sign in _SIGNS:
            if name in jobs:
                names = (str(text) for text in jobs[name][rows].dropna().unique())
                parts = (part for text in names if sign.search(text.lower()) for part in _COMMA.split(text))
                self._found.setdefault(kind, set()).update(part for part in parts if sign.search(part.lower()))
        return self

    def note(self) -> str:
        """Return the note, empty where GPUs are named or nothing looks like them."""
        kind, names = next(((kind, sorted(names)) for kind, names in self._found.items() if names), ("", []))
        if self._names_gpus or not names:
            return ""
        shown = ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if (more := len(names) - MOST_NAMES) > 0 else "")
        looks = f"{kind} {shown} looks like a GPU {kind}"
        if len(names) > 1:
            kinds = kind if kind == "QOS" else f"{kind}s"
            looks = f"{kinds} {shown} look like GPU {kinds}"
        return (
            f"{UNTRACKED}, though {looks}: this site may not account for GPUs, and those that jobs held are"
            " not known. Add gres/gpu to AccountingStorageTRES in slurm.conf; for jobs that ran before, give the nodes:"
            " setting ingest.gpus_from, or helios trace load --gpus-from slurm.conf (docs/formats.md, Parts of a GPU)"
        )


def unknown_gpus_note(jobs: pd.DataFrame) -> str:
    """Return the note on jobs whose GPUs are not recorded, empty without any.

    Sums of GPUs and of their hours leave such jobs out. Jobs may have any columns of ``JOBS``.
    """
    if "gpus" not in jobs:
        return ""
    unknown = jobs["gpus"].isna().to_numpy()
    if not unknown.any():
        return ""
    example = jobs["job_id"].iloc[int(unknown.argmax())] if "job_id" in jobs else ""
    return note_unknown_gpus(int(unknown.sum()), example)


def note_unknown_gpus(count: int, example: str) -> str:
    """Return the note on so many jobs without a record of their GPUs."""
    if not count:
        return ""
    such_as = f", such as {example}" if example else ""
    left_out = f"jobs have no record of their GPUs{such_as}: sums of GPUs and GPU hours are without such jobs"
    return in_number(count, left_out)


def _matches(column: pd.Series, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return which rows of a categorical column have the pattern."""
    found = [pattern.search(str(text)) is not None for text in column.cat.categories]
    return np.array([*found, False], dtype=np.bool_)[column.cat.codes.to_numpy()]

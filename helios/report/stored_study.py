"""Latest study of a cluster, stored with figures for the web."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from helios.private_files import file_name

REASONS = ("worth a try", "may be worth a try")
"""Verdicts of statements that argue for something, the clearer first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStudy:
    """The latest study of a cluster, with its figures drawn.

    Attributes
    ----------
    made_at : datetime
    subtitle : str
    values : dict
        As ``helios study --json`` gives them.
    sections : tuple of dict
        ``title``, ``sentences``, ``figures`` (pairs of SVG, wide and narrow), ``tables`` (``header``, ``rows``) and
        ``notes``.
    """

    made_at: datetime
    subtitle: str
    values: Mapping[str, Any]
    sections: tuple[Mapping[str, Any], ...]

    def first_statements(self, most: int) -> list[Mapping[str, Any]]:
        """Return the statements with a reason to act, those with most hours at stake first."""
        chosen = [
            one
            for one in self.values.get("statements", ())
            if one.get("verdict") in REASONS and one.get("hours_per_week")
        ]
        return sorted(chosen, key=lambda one: (REASONS.index(one["verdict"]), -one["hours_per_week"]))[:most]

    def to_bytes(self) -> bytes:
        """Return the study in the form that ``latest_study`` reads."""
        stored = {
            "made_at": self.made_at.isoformat(),
            "subtitle": self.subtitle,
            "values": self.values,
            "sections": self.sections,
        }
        return json.dumps(stored, default=str).encode()


def study_path(folder: Path, cluster: str) -> Path:
    """Return the file of the latest study of a cluster."""
    return folder / f"study-{file_name(cluster)}.json"


def latest_study(folder: Path, cluster: str) -> StoredStudy | None:
    """Return a cluster's latest study, None where none can be read."""
    try:
        stored = json.loads(study_path(folder, cluster).read_text(encoding="utf-8"))
        return StoredStudy(
            made_at=datetime.fromisoformat(stored["made_at"]),
            subtitle=str(stored["subtitle"]),
            values=stored["values"],
            sections=tuple(stored["sections"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None

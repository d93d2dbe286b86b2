"""Export of history in files, as it is or anonymous.

Nothing is left behind where an export is refused or fails. An anonymous export carries two reports, on the risk that
remains and on what was lost; its key stays at the site.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from helios.app.history import LoadedHistory
from helios.app.whatif import choose_window
from helios.errors import RiskTooHigh
from helios.ports import Progress, no_progress
from helios.study.export.anonymous import (
    WEEK_S,
    Coarseness,
    anonymise,
    clock_offset_s,
    coarsen,
    shift_weeks,
)
from helios.study.export.comparison import compare_exports
from helios.study.export.files import (
    note_other_files,
    publish,
    refuse_foreign_files,
    staging_folder,
    write_json,
    write_layouts,
)
from helios.study.export.key import choose_key, key_fingerprint, new_key_file
from helios.study.export.reidentification import Risk, assess_risk, traced_share
from helios.study.export.request import LOSS, RISK, ExportRequest
from helios.units import DAY_S, HOUR_S, percent

COARSER_S = (600, HOUR_S, 6 * HOUR_S, DAY_S, WEEK_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What was exported.

    Attributes
    ----------
    files : tuple of Path
    lost : dict
        Columns with values that a file's layout cannot hold, by file name.
    risk, loss : optional
        Risk and loss of an anonymous export.
    key_file : Path, optional
        Where the key lies.
    notes : tuple of str
        For a person.
    """

    cluster: str
    jobs: int
    files: tuple[Path, ...]
    lost: dict[str, list[str]]
    risk: Risk | None = None
    loss: dict[str, Any] | None = None
    key_file: Path | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "cluster": self.cluster,
            "jobs": self.jobs,
            "files": [str(path) for path in self.files],
            "lost": self.lost,
            "risk": None if self.risk is None else self.risk.to_json(),
            "loss": self.loss,
            "key": None if self.key_file is None else str(self.key_file),
        }


def export_history(history: LoadedHistory, request: ExportRequest, *, progress: Progress = no_progress) -> ExportResult:
    """Write a window of a history into a folder.

    Raises
    ------
    NotEnoughHistory
        No job was submitted in the window.
    RiskTooHigh
        The export is anonymous, and gives more jobs back than the bound allows.
    UsageError
        The folder holds files of others that have the same names, or the key cannot be used.
    FileUnwritable
        Folder or files cannot be written.
    """
    jobs = choose_window(history, request.since, request.until, warm_up=timedelta(0)).jobs.reset_index(drop=True)
    previous = refuse_foreign_files(request.out)
    if not request.anonymous:
        with staging_folder(request.out) as staging:
            lost, notes = write_layouts(staging, jobs, history, request, progress)
            files = publish(staging, previous, {"anonymous": False, "jobs": len(jobs)})
        notes += note_other_files(request.out, files)
        return ExportResult(cluster=history.cluster, jobs=len(jobs), files=files, lost=lost, notes=notes)
    key_file, key = choose_key(request, history.cluster)
    exported, risk = _anonymise(history, jobs, key, request, progress)
    loss = compare_exports(jobs, exported, timezone=history.timezone, progress=progress)
    with new_key_file(key_file, key), staging_folder(request.out) as staging:
        lost, notes = write_layouts(staging, exported, history, request, progress)
        write_json(staging / RISK, {"bound_on_traced_jobs": request.risk_bound, **risk.to_json()})
        write_json(staging / LOSS, loss)
        files = publish(staging, previous, {"anonymous": True, "key": key_fingerprint(key), "jobs": len(jobs)})
    return ExportResult(
        cluster=history.cluster,
        jobs=len(jobs),
        files=files,
        lost=lost,
        risk=risk,
        loss=loss,
        key_file=key_file,
        notes=(*notes, *note_other_files(request.out, files)),
    )


def _anonymise(
    history: LoadedHistory, jobs: pd.DataFrame, key: bytes, request: ExportRequest, progress: Progress
) -> tuple[pd.DataFrame, Risk]:
    progress("Anonymising", 0.0)
    how = Coarseness(round_s=request.round_s, fewest_jobs=request.fewest_jobs, timezone=history.timezone)
    exported = anonymise(jobs, key, how)
    progress("Measuring the risk", 0.0)
    steps = {"offset_s": clock_offset_s(jobs, history.timezone)}
    weeks = shift_weeks(jobs, key, history.timezone)
    log = coarsen(history.jobs, how, like=jobs)
    risk = assess_risk(exported, log, round_s=request.round_s, weeks=weeks, **steps)
    if risk.traced_jobs > request.risk_bound and not request.accept_risk:
        coarser = {
            step_s: traced_share(exported, round_s=step_s, **steps)
            for step_s in COARSER_S
            if step_s > request.round_s and step_s % request.round_s == 0
        }
        raise _risk_error(risk, request.risk_bound, coarser)
    progress("Measuring the risk", 1.0)
    return exported, risk


def _risk_error(risk: Risk, bound: float, coarser: dict[int, float]) -> RiskTooHigh:
    steps = "; ".join(f"--round {_format_step(step_s)}: {percent(share)}" for step_s, share in coarser.items())
    return RiskTooHigh(
        f"Nothing was exported. Somebody who knows size and submission of a job finds its user in "
        f"{percent(risk.traced_jobs)} of the cases, and the bound is {percent(bound)}; "
        f"{percent(risk.traced_users)} of the users can be found so.",
        hint=(f"Coarser times lower it: {steps}. " if steps else "")
        + "More is allowed by --risk-bound SHARE, or by --accept-risk with people whom you trust.",
    )


def _format_step(step_s: int) -> str:
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h")):
        if step_s % unit_s == 0:
            return f"{step_s // unit_s}{unit}"
    return f"{step_s // 60}min"

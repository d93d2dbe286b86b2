"""Export of history in files, as it is or anonymous.

Nothing is left behind where an export is refused or fails. An anonymous export carries two reports, on the risk that
remains and on what was lost; its key stays at the site.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from helios.study.export.cohorts import FEWEST_USERS
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
from helios.study.export.reidentification import Risk, assess_risk
from helios.study.export.request import LOSS, RISK, RISK_BOUND, ExportRequest
from helios.units import DAY_S, percent

COARSER_S = {"1d": DAY_S, "7d": WEEK_S}
BLURS = ((1.0, False), (1.0, True), (0.1, True), (0.05, True), (0.02, True), (0.0, True))
"""Values of ``most_given`` and ``limits_by_kind``, tried until the risk is below the bound. The first leaves no job out
and lets limits nearly as they are; each blurs more than the one before."""


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
        write_json(staging / RISK, {"bound": RISK_BOUND, **risk.to_json()})
        write_json(staging / LOSS, loss)
        files = publish(staging, previous, {"anonymous": True, "key": key_fingerprint(key), "jobs": len(exported)})
    return ExportResult(
        cluster=history.cluster,
        jobs=len(exported),
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
    coarseness = Coarseness(round_s=request.round_s, timezone=history.timezone)
    offset_s, weeks = clock_offset_s(jobs, history.timezone), shift_weeks(jobs, key, history.timezone)
    log, found = coarsen(history.jobs, coarseness, like=jobs), list[Risk]()
    for number, (most_given, limits_by_kind) in enumerate(BLURS):
        progress("Anonymising", number / len(BLURS))
        how = replace(coarseness, most_given=most_given, limits_by_kind=limits_by_kind)
        made = anonymise(jobs, key, how)
        if made.jobs.empty:
            break
        found.append(assess_risk(made, jobs, log, round_s=request.round_s, offset_s=offset_s, weeks=weeks))
        if request.accept_risk or found[-1].highest <= RISK_BOUND:
            progress("Anonymising", 1.0)
            return made.jobs, found[-1]
    raise _risk_error(found[0], request.round_s)


def _risk_error(risk: Risk, round_s: int) -> RiskTooHigh:
    ways = {
        "who knows size and submission of a job": risk.traced,
        "who has a list of each user's jobs or hours": risk.by_usage_list,
        "who knows three jobs of each user": risk.by_known_jobs,
        "who has the first half of the site's log": risk.by_half_a_log,
    }
    too_much = [f"{who}, {percent(claim.jobs)} of the jobs" for who, claim in ways.items() if claim.jobs > RISK_BOUND]
    if 0 < risk.users < FEWEST_USERS:
        too_much.append(f"who is one of the only {risk.users} users")
    coarser = " or ".join(name for name, step_s in COARSER_S.items() if step_s > round_s)
    hint = f"Coarser times make jobs harder to know by their submission: --round {coarser}. " if coarser else ""
    return RiskTooHigh(
        f"Nothing was exported. Too many jobs can be given back to their user: by somebody {'; '.join(too_much)}. The "
        f"bound is {percent(RISK_BOUND)}, and leaving jobs out did not reach it.",
        hint=hint + "A longer window has more users to hide among: --from, --to. --accept-risk exports nevertheless, "
        "for people whom you trust.",
    )

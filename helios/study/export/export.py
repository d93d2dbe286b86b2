"""Export of history in files, as it is or anonymous.

Nothing is left behind where an export is refused or fails. An anonymous export carries two reports, on the risk that
remains and on what was lost; its key stays at the site.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helios.app.history import LoadedHistory
from helios.app.replay_cluster import POOL, replay_cluster_for
from helios.app.whatif import choose_window, refuse_reversed
from helios.choices import ExportLayout
from helios.errors import FileUnreadable, FileUnwritable, RiskTooHigh, UsageError
from helios.ingest import helios_csv, swf
from helios.ingest.lines import file_sha256
from helios.ingest.parquet import write_parquet
from helios.model import JOBS
from helios.ports import Progress, no_progress
from helios.private_files import OWN, file_name, fsync_directory, make_folder, open_private, write_private
from helios.report.history import describe
from helios.simulate import ORDERS
from helios.study.export.anonymous import (
    KEY_BYTES,
    OTHERS,
    WEEK_S,
    Coarseness,
    anonymise,
    clock_offset_s,
    coarsen,
    shift_weeks,
)
from helios.study.export.reidentification import Risk, assess_risk, traced_share
from helios.study.study import study
from helios.study.text import Statement
from helios.units import DAY_S, HOUR_S, duration_in_words, percent

NAMES = {ExportLayout.PARQUET: "jobs.parquet", ExportLayout.HELIOS: "jobs.csv.gz", ExportLayout.SWF: "jobs.swf.gz"}
ANONYMOUS = "anonymous"
"""Name of the cluster in an anonymous export."""
MANIFEST, RISK, LOSS = "export.json", "risk.json", "loss.json"
RISK_BOUND = 0.2
"""Largest share of traced jobs. Five real histories have 5 to 18 % if submissions are true to the day, 36 to 68 % if to
the hour (docs/decisions/0032)."""
COARSER_S = (600, HOUR_S, 6 * HOUR_S, DAY_S, WEEK_S)
MOST_REPLAYED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What to export.

    Attributes
    ----------
    out : Path
        The folder; made if missing.
    layouts : sequence of ExportLayout
        One file for each.
    since, until : datetime, optional
        Only jobs submitted in [since, until).
    anonymous : bool
        What follows is for anonymous exports.
    round_s, fewest_jobs : int
        See :class:`~helios.study.export.anonymous.Coarseness`.
    risk_bound : float
        Largest share of traced jobs.
    accept_risk : bool
        Whether a greater risk is accepted.
    key_file : Path, optional
        The key; made if missing. None for a new one in ``key_folder``.
    """

    out: Path
    layouts: Sequence[ExportLayout] = tuple(ExportLayout)
    since: datetime | None = None
    until: datetime | None = None
    anonymous: bool = False
    round_s: int = DAY_S
    fewest_jobs: int = 5
    risk_bound: float = RISK_BOUND
    accept_risk: bool = False
    key_file: Path | None = None
    key_folder: Path = Path()

    def __post_init__(self) -> None:
        refuse_reversed(self.since, self.until)
        if self.round_s < 1 or WEEK_S % self.round_s:
            raise UsageError(
                f"Times cannot be rounded to {duration_in_words(self.round_s)}: it does not divide a week.",
                hint="Write --round 1min, 10min, 1h, 6h, 1d or 7d",
            )


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
    previous = _refuse_foreign_files(request.out)
    if not request.anonymous:
        with _staging(request.out) as staging:
            lost, notes = _write_layouts(staging, jobs, history, request, progress)
            files = _publish(staging, previous, {"anonymous": False, "jobs": len(jobs)})
        notes += _note_other_files(request.out, files)
        return ExportResult(cluster=history.cluster, jobs=len(jobs), files=files, lost=lost, notes=notes)
    key_file, key = _choose_key(request, history.cluster)
    exported, risk = _anonymise(history, jobs, key, request, progress)
    loss = compare_exports(jobs, exported, timezone=history.timezone, progress=progress)
    with _new_key_file(key_file, key), _staging(request.out) as staging:
        lost, notes = _write_layouts(staging, exported, history, request, progress)
        _write_json(staging / RISK, {"bound_on_traced_jobs": request.risk_bound, **risk.to_json()})
        _write_json(staging / LOSS, loss)
        files = _publish(staging, previous, {"anonymous": True, "key": _fingerprint(key), "jobs": len(jobs)})
    return ExportResult(
        cluster=history.cluster,
        jobs=len(jobs),
        files=files,
        lost=lost,
        risk=risk,
        loss=loss,
        key_file=key_file,
        notes=(*notes, *_note_other_files(request.out, files)),
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


# Comparison of a history before and after.


def compare_exports(
    before: pd.DataFrame, after: pd.DataFrame, *, timezone: str, progress: Progress = no_progress
) -> dict[str, Any]:
    """Compare a history before and after anonymisation.

    Parameters
    ----------
    before, after : DataFrame
        Columns of ``JOBS``.

    Returns
    -------
    dict
        ``before`` and ``after`` by the name of the figure; None where it is not known. Statements of a study also have
        ``title`` and ``unit``. Users with few jobs are one user after it, as whoever gets the export will read it.
    """
    waits = _replayed_waits(before, after, progress)
    found = [
        _figures(jobs, timezone) | {f"replayed_mean_wait_s.{name}": mean for name, mean in of_one.items()}
        for jobs, of_one in zip((before, after), waits, strict=True)
    ]
    names = list(dict.fromkeys(name for figures in found for name in figures))
    figures = {name: {"before": found[0].get(name), "after": found[1].get(name)} for name in names}
    progress("Comparing studies", 0.0)
    earlier, later = _statements(before, timezone), _statements(after, timezone)
    progress("Comparing studies", 1.0)
    statements = {
        f"statements.{name}": {"before": one.value, "after": later[name].value, "title": one.title, "unit": one.unit}
        for name, one in earlier.items()
    }
    return figures | statements


def _figures(jobs: pd.DataFrame, timezone: str) -> dict[str, Any]:
    described = describe(jobs, cluster="", timezone=timezone)
    quantiles = ("mean", "p10", "p50", "p90", "p99")
    return {
        "jobs": described.jobs,
        "users": described.users - int((jobs["user"] == OTHERS).any()),
        f"{described.unit.lower()}_hours": described.resource_hours,
        **{f"run_time_s.{name}": described.run_time_s.get(name) for name in quantiles},
        **{f"wait_s.{name}": described.wait_s.get(name) for name in quantiles},
        **{f"share_of_hours.{row['size']}": row["share_of_hours"] for row in described.sizes},
    }


def _statements(jobs: pd.DataFrame, timezone: str) -> dict[str, Statement]:
    """Return the statements of a study by name."""
    found = study(LoadedHistory(cluster=ANONYMOUS, jobs=jobs, timezone=timezone))
    return {statement.name: statement for statement in found.statements}


def _replayed_waits(
    before: pd.DataFrame, after: pd.DataFrame, progress: Progress
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean wait under two orders with EASY, before and after.

    All on one pool as large as the mean demand, so that there is a queue. Empty where no job can be replayed, or more
    than ``MOST_REPLAYED``.
    """
    resource = "gpus" if bool((before["gpus"] > 0).any()) else "cpus"
    jobs, later = (frame[frame["run_time_s"].notna() & (frame[resource] > 0)] for frame in (before, after))
    if not 0 < len(jobs) <= MOST_REPLAYED:
        return {}, {}
    span_s = max((jobs["submitted_at"].max() - jobs["submitted_at"].min()).total_seconds(), 1.0)
    demand = float((jobs[resource] * jobs["run_time_s"]).sum()) / span_s
    largest = max(float(jobs[resource].max()), float(later[resource].max()))
    pool = int(np.ceil(max(demand, largest)))
    found: tuple[dict[str, float], dict[str, float]] = {}, {}
    for number, frame in enumerate((jobs, later)):
        machine = replay_cluster_for(frame, resource=resource, nodes={POOL: 1}, gpus_per_node=pool)
        for place, name in enumerate(("fifo", "fewest_gpus")):
            progress("Comparing replays", (2 * number + place) / 4)
            result = machine.replay(ORDERS[name], default_limit_s=7 * DAY_S)
            found[number][name] = float(result.wait_s.mean())
    progress("Comparing replays", 1.0)
    return found


# Files.


def _refuse_foreign_files(out: Path) -> frozenset[str]:
    """Return the files of an earlier export in the folder.

    Raises
    ------
    UsageError
        It holds a file of another origin under a name that an export uses.
    """
    written_names = {*NAMES.values(), MANIFEST, RISK, LOSS}
    try:
        present = {path.name for path in out.iterdir()} & written_names
        listed = set(json.loads((out / MANIFEST).read_bytes())["helios_export"]) if MANIFEST in present else set()
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, KeyError, TypeError) as reason:
        if isinstance(reason, OSError):
            raise FileUnwritable(
                f"{out} cannot be used: {reason.strerror}.", hint="Choose another: --out DIR"
            ) from reason
        listed = set()
    if foreign := sorted(present - listed - ({MANIFEST} if listed else set())):
        raise UsageError(
            f"{out} holds {', '.join(foreign)}, and no export of Helios wrote it.",
            hint="Move it away, or choose another folder: --out DIR",
        )
    return frozenset(present)


def _write_layouts(
    folder: Path, jobs: pd.DataFrame, history: LoadedHistory, request: ExportRequest, progress: Progress
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Write a file in each layout, and return their limits."""
    notes, lost, timezone = [*history.notes], {}, history.timezone
    for place, layout in enumerate(request.layouts):
        progress("Writing", place / len(request.layouts))
        path = folder / NAMES[layout]
        os.close(open_private(path))
        if layout is ExportLayout.PARQUET:
            write_parquet(jobs, path, cluster=ANONYMOUS if request.anonymous else history.cluster, timezone=timezone)
            continue
        if layout is ExportLayout.HELIOS:
            held = helios_csv.COLUMNS_HELD
            helios_csv.write_helios_csv(jobs, path, timezone=timezone)
            notes.append(f"Times in {path.name} carry no zone: load it with --timezone {timezone}.")
        else:
            held = swf.COLUMNS_HELD
            named = None if request.anonymous else history.cluster
            notes += swf.write_swf(jobs, path, timezone=timezone, cluster=named, machine=history.machine)
            notes.append(f"Hours in {path.name} are the cluster's own if it is loaded with --timezone {timezone}.")
        present = (jobs["gpus"] > 0).any(), jobs.notna().any()
        valued = [name for name in JOBS.names if (present[0] if name == "gpus" else present[1][name])]
        if missing := [name for name in valued if name not in held | {"restart"}]:
            lost[path.name] = missing
    progress("Writing", 1.0)
    return lost, tuple(notes)


def _publish(staging: Path, previous: frozenset[str], about: dict[str, Any]) -> tuple[Path, ...]:
    """Move the written files to their folder."""
    sums = {path.name: file_sha256(path) for path in sorted(staging.iterdir())}
    _write_json(staging / MANIFEST, {"helios_export": sums, **about})
    # The files of an earlier export go first: its plain ones must not lie beside anonymous ones.
    for name in previous:
        (staging.parent / name).unlink(missing_ok=True)
    for name in (*sums, MANIFEST):
        (staging / name).replace(staging.parent / name)
    fsync_directory(staging.parent)
    return tuple(staging.parent / name for name in (*sums, MANIFEST))


def _note_other_files(out: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """Return a note on other files in the folder."""
    others = sorted({path.name for path in out.iterdir()} - {path.name for path in files})
    return (f"{out} also holds {', '.join(others[:5])}, which is no part of this export.",) if others else ()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_private(path, json.dumps(content, indent=2, allow_nan=False).encode() + b"\n", mode=OWN)


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Yield a folder within ``out`` that is gone afterwards.

    So is ``out`` if it was made here and all failed.

    Raises
    ------
    FileUnwritable
        Something cannot be written.
    """
    missing = [part for part in (out, *out.parents) if not part.exists()]
    staging = out / f".export.{os.getpid()}"
    try:
        make_folder(out)
        staging.mkdir(mode=0o700)
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except BaseException as reason:
        for part in missing:
            with suppress(OSError):
                part.rmdir()
        if isinstance(reason, OSError):
            raise FileUnwritable(
                f"{out} cannot be written: {reason.strerror or reason}.",
                hint="Make room or choose another folder: --out DIR",
            ) from reason
        raise


# The key of an anonymous export.


def _choose_key(request: ExportRequest, cluster: str) -> tuple[Path, bytes]:
    """Return the key and where it is or will be kept.

    Raises
    ------
    UsageError
        The file is no key, or lies in the folder that is to be given away.
    """
    path, key = request.key_file, secrets.token_bytes(KEY_BYTES)
    if path is None:
        path = request.key_folder / f"{file_name(cluster)}-{_fingerprint(key)}.key"
    if path.resolve().is_relative_to(request.out.resolve()):
        raise UsageError(
            f"The key {path} would lie in the folder that is given away.", hint="Keep it elsewhere: --key FILE"
        )
    try:
        if not path.exists():
            return path, key
        key = bytes.fromhex(path.read_text("ascii").strip())
    except OSError as reason:
        raise FileUnreadable(
            f"{path} cannot be read: {reason.strerror}.", hint="Choose another: --key FILE"
        ) from reason
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise UsageError(
            f"{path} is not a key of an export, which is one line of {2 * KEY_BYTES} hexadecimal digits.",
            hint="Name a file that does not exist to make a new one: --key FILE",
        )
    return path, key


def _fingerprint(key: bytes) -> str:
    """Return a fingerprint of a key.

    It stands in the export.
    """
    return blake2b(b"export", key=key, digest_size=6).hexdigest()


@contextmanager
def _new_key_file(path: Path, key: bytes) -> Iterator[None]:
    """Write a new key, and remove it again if the export fails.

    Raises
    ------
    FileUnwritable
        It cannot be written.
    """
    if path.exists():
        yield
        return
    try:
        make_folder(path.parent)
        write_private(path, key.hex().encode() + b"\n", mode=OWN, lasting=True)
    except OSError as reason:
        raise FileUnwritable(
            f"The key cannot be written to {path}: {reason.strerror or reason}.", hint="Keep it elsewhere: --key FILE"
        ) from reason
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise

"""Files of an export, published together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd

from helios.app.history import LoadedHistory
from helios.choices import ExportLayout
from helios.errors import FileUnwritable, UsageError
from helios.ingest import helios_csv, swf
from helios.ingest.lines import file_sha256
from helios.ingest.parquet import write_parquet
from helios.model import JOBS
from helios.ports import Progress
from helios.private_files import OWN, fsync_directory, make_folder, open_private, write_private
from helios.study.export.request import ANONYMOUS, LOSS, MANIFEST, RISK, ExportRequest

NAMES = {ExportLayout.PARQUET: "jobs.parquet", ExportLayout.HELIOS: "jobs.csv.gz", ExportLayout.SWF: "jobs.swf.gz"}


def refuse_foreign_files(out: Path) -> frozenset[str]:
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


def write_layouts(
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


def publish(staging: Path, previous: frozenset[str], about: dict[str, Any]) -> tuple[Path, ...]:
    """Move the written files to their folder."""
    sums = {path.name: file_sha256(path) for path in sorted(staging.iterdir())}
    write_json(staging / MANIFEST, {"helios_export": sums, **about})
    # The files of an earlier export go first: its plain ones must not lie beside anonymous ones.
    for name in previous:
        (staging.parent / name).unlink(missing_ok=True)
    for name in (*sums, MANIFEST):
        (staging / name).replace(staging.parent / name)
    fsync_directory(staging.parent)
    return tuple(staging.parent / name for name in (*sums, MANIFEST))


def note_other_files(out: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """Return a note on other files in the folder."""
    others = sorted({path.name for path in out.iterdir()} - {path.name for path in files})
    return (f"{out} also holds {', '.join(others[:5])}, which is no part of this export.",) if others else ()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file that only its owner reads and writes."""
    write_private(path, json.dumps(content, indent=2, allow_nan=False).encode() + b"\n", mode=OWN)


@contextmanager
def staging_folder(out: Path) -> Iterator[Path]:
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

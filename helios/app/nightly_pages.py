"""The report of a night: a page, a text and a mail, written such that a reader never finds a part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pandas as pd

from helios.app.desk import LONGEST_HELD, Ask, Desk, opened
from helios.config import Energy
from helios.errors import Misuse, NotEnoughHistory
from helios.private_files import make_folder, tighten, write_private
from helios.report.admin.mail import as_mail, as_text
from helios.report.admin.nightly import WEEKS_BEFORE, Digest, Night, NightEnergy, digest_of
from helios.report.admin.shadow import ShadowDay

ENERGY_DAYS = timedelta(days=14)
"""Days whose savings the nightly report shows side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightlyReport:
    """The files of one night.

    Attributes
    ----------
    subject : str
        The day in a line.
    alarming : bool
        Whether something did not go as it should.
    page, text, mail : Path
        The HTML page, the plain text, and a message that ``sendmail -t`` takes.
    removed : int
        Older reports of this cluster that were removed.
    """

    subject: str
    alarming: bool
    page: Path
    text: Path
    mail: Path
    removed: int


def nightly_pages(
    url: str,
    cluster: str | None,
    day: str,
    folder: Path,
    *,
    now: datetime,
    keep: int = 60,
    nodes: Mapping[str, int] | None = None,
    gpus_per_node: int = 8,
    default_time_limit_s: int = 7 * 86_400,
    energy: Energy | None = None,
    sender: str = "helios",
    recipient: str = "root",
) -> NightlyReport:
    """Write the report of a day: a page, a text, and a mail with both; the same day again replaces them.

    Parameters
    ----------
    day : str
        As sacct writes one: ``yesterday``, ``2026-11-20``.
    folder : Path
        Made if missing.
    keep : int
        Reports of this cluster kept there, the newest.
    energy : Energy, optional
        What nodes draw; None: as the built-in defaults say.

    Raises
    ------
    Misuse
        The folder cannot be written.
    """
    ask = Ask(url=url, cluster=cluster, now=now)
    with opened(ask) as desk:
        begin, end = desk.day(day)
        shadow = desk.shadow(
            begin, end, nodes=nodes, gpus_per_node=gpus_per_node, default_time_limit_s=default_time_limit_s
        )
        night = _night(desk, begin, end, shadow)
        digest = digest_of(replace(night, energy=_energy(desk, begin, end, energy=energy or Energy())))
    from helios.report.admin.page import render_nightly  # noqa: PLC0415 - drawing takes a second to import

    return _written(digest, render_nightly(digest), folder, keep=keep, sender=sender, recipient=recipient)


def _night(desk: Desk, begin: datetime, end: datetime, shadow: ShadowDay) -> Night:
    earliest = begin - timedelta(weeks=WEEKS_BEFORE) - LONGEST_HELD
    warehouse, cluster = desk.warehouse, desk.cluster
    return Night(
        cluster=cluster,
        timezone=desk.timezone,
        begin=begin,
        end=end,
        jobs=desk.jobs(earliest, end),
        past=warehouse.jobs(cluster, until=end, columns=["user", "ended_at", "run_time_s"]),
        predictions=warehouse.predictions(cluster, since=begin - LONGEST_HELD, until=end),
        decisions=warehouse.decisions(cluster, since=begin, until=end),
        turns=warehouse.turns(cluster, since=begin, until=end),
        shadow=shadow,
    )


def _energy(desk: Desk, begin: datetime, end: datetime, *, energy: Energy) -> NightEnergy | None:
    """Return what the nodes drew on the day and the days before; None where the history names no nodes."""
    try:
        return NightEnergy(
            day=desk.ledger(begin, end, energy=energy, by="partition"),
            days=desk.ledger(begin - ENERGY_DAYS + timedelta(days=1), end, energy=energy, by="day"),
        )
    except NotEnoughHistory:
        return None


def _written(digest: Digest, page: str, folder: Path, *, keep: int, sender: str, recipient: str) -> NightlyReport:
    stem = f"{_file_name(digest.cluster)}-{pd.Timestamp(digest.begin).tz_convert(digest.timezone):%Y-%m-%d}"
    mail = as_mail(digest, page=page, page_name=f"{stem}.html", sender=sender, recipient=recipient)
    contents = {".html": page.encode(), ".txt": as_text(digest).encode(), ".eml": mail}
    try:
        make_folder(folder)
        for ending, content in contents.items():
            write_private(folder / f"{stem}{ending}", content)
        removed = _thin_out(folder, _file_name(digest.cluster), keep=keep)
    except OSError as reason:
        raise Misuse(
            f"The nightly report cannot be written: {reason}", remedy="Choose another place: report.folder"
        ) from reason
    page_at, text_at, mail_at = (folder / f"{stem}{ending}" for ending in contents)
    return NightlyReport(
        subject=digest.subject, alarming=digest.alarming, page=page_at, text=text_at, mail=mail_at, removed=removed
    )


def _file_name(cluster: str) -> str:
    return re.sub(r"[^\w.-]", "_", cluster).lstrip(".") or "cluster"


def _thin_out(folder: Path, name: str, *, keep: int) -> int:
    """Remove all but the newest ``keep`` reports of a cluster, close those to others; return how many were removed."""
    of_a_day = re.compile(rf"{re.escape(name)}-\d{{4}}-\d\d-\d\d")
    found = [path for path in folder.iterdir() if of_a_day.fullmatch(path.stem)]
    for path in found:
        tighten(path)
    stems = sorted({path.stem for path in found})
    outdated = stems[:-keep]
    for stem in outdated:
        for ending in (".html", ".txt", ".eml"):
            (folder / f"{stem}{ending}").unlink(missing_ok=True)
    return len(outdated)

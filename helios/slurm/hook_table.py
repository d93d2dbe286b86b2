"""File format, publication and reading of the priority hook's table.

slurmctld runs ``deploy/slurm/job_submit.lua`` under its locks, so the hook may only look up values in a file. Lua
without libraries must be able to distinguish a complete, current table from a damaged or old one. The file therefore
has a first line with generation, times, size and checksum, a line for each row, and a last line that repeats the
generation and the number of rows.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, unquote

from helios.actions import JobSetting
from helios.errors import HookTableInvalid
from helios.ownership import MARK, MINUTE_MARK, has_helios_mark
from helios.private_files import atomic_write, fsync_directory
from helios.slurm.backend import RawJob

TABLE = Path("hook") / "table"
"""Path of the table below ``control.state_folder``."""
PUBLISHED = TABLE.with_name("published")
"""File of the rows that were published and when, which proves that a value on a job is the hook's."""
KEPT = timedelta(days=7)
"""Time that a row stays in that file. By then a cycle has recorded its jobs in ``jobs.undo``."""

FORMAT = "helios-hook 1"
MOST_ROWS = 200_000
MOST_BYTES = 32 * 1024 * 1024
SKEW = timedelta(minutes=5)
"""A table from further in the future comes from a wrong clock. The Lua script has the same bounds."""

PAUSED = "PAUSED"
"""Name of the pause files that the Lua script looks for beside the table and one folder above."""
_NOT_LOCAL = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "afs",
    "9p",
    "fuse.sshfs",
    "fuse.gluster",
    "panfs",
)
"""How the kinds of network file systems begin in /proc/self/mountinfo."""

_ANY = "*"
# 15 digits are enough for every number of the header, and Lua's numbers represent them exactly.
_HEADER = re.compile(rf"{FORMAT} ([0-9]{{1,15}}(?: [0-9]{{1,15}}){{4}}) ([0-9]{{1,10}})")
_ROW = re.compile(
    r"([A-Za-z0-9_.~%*-]+) ([A-Za-z0-9_.~%*-]+) ([0-9]{1,10}|\*) ([0-9]{1,10}|\*) (-?[0-9]{1,10}) ([0-9]{1,10})"
)
_SPAN = re.compile(r"(\d+) (\d+|-) (site_factor|time_min) (\S+) (\S+) (\d+|\*) (-?\d+)", re.ASCII)
_ANEW = "Jobs are submitted unchanged meanwhile; the daemon publishes another with its next cycle, if it acts."
_MODULUS = 2**31 - 1

_TOO_LARGE = 2**31
_LAST_S = int(datetime.max.replace(tzinfo=UTC).timestamp())

Key = tuple[str | None, str | None, int | None, int | None]

_KINDS = {
    (True, True, True, True),
    (True, True, True, False),
    (True, True, False, False),
    (False, True, True, False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRow:
    """Values that jobs of one kind get at submission.

    There are four kinds of keys, looked up with the most specific first: user, partition, GPUs and limit; user,
    partition and GPUs; user and partition; partition and GPUs. The first row found decides both values.

    Attributes
    ----------
    user, partition : str, optional
        None for any user. A partition is always named.
    gpus : int, optional
        GPUs of the whole job; None for any.
    limit_min : int, optional
        Its time limit, whole minutes; None for any.
    site_factor : int
        0 for none, else a value with Helios' mark: its last two digits are 37.
    time_min : int
        Soft limit, minutes; 0 for none, else a value with Helios' mark: its last digit is 7.

    Raises
    ------
    ValueError
        The key is none of the four kinds, or a value lacks the mark.
    """

    user: str | None = None
    partition: str | None = None
    gpus: int | None = None
    limit_min: int | None = None
    site_factor: int
    time_min: int = 0

    def __post_init__(self) -> None:
        named = tuple(part is not None for part in self.key)
        if named not in _KINDS or "" in (self.user, self.partition):
            raise ValueError(f"no look-up of the hook has the key {self.key}")
        if (self.gpus or 0) < 0 or (self.limit_min or 0) < 0:
            raise ValueError(f"the key {self.key} has a negative number")
        if self.site_factor and not has_helios_mark(self.site_factor):
            raise ValueError(f"SiteFactor {self.site_factor} of {self.key} does not end in {MARK}")
        if self.time_min and (self.time_min < 0 or self.time_min % 10 != MINUTE_MARK):
            raise ValueError(f"TimeMin {self.time_min} of {self.key} does not end in {MINUTE_MARK}")

    @property
    def key(self) -> Key:
        """The kind of jobs that the row is for."""
        return (self.user, self.partition, self.gpus, self.limit_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookTable:
    """Table as the hook reads it.

    Attributes
    ----------
    generation : int
        Number of the publication.
    published_at, expires_at : datetime
        Aware, UTC, whole seconds. The hook ignores the table from ``expires_at`` on.
    rows : mapping
        Its rows by key.
    """

    generation: int
    published_at: datetime
    expires_at: datetime
    rows: Mapping[Key, HookRow]

    def row_for(self, *, user: str, partition: str, gpus: int, limit_min: int | None) -> HookRow | None:
        """Return the row for a job of this kind.

        None where such a job is left as submitted.
        """
        keys: tuple[Key, ...] = (
            (user, partition, gpus, limit_min),
            (user, partition, gpus, None),
            (user, partition, None, None),
            (None, partition, gpus, None),
        )
        return next((self.rows[key] for key in keys if key in self.rows), None)


def render(rows: Iterable[HookRow], *, generation: int, now: datetime, lasts: timedelta) -> str:
    """Return the table's text, with rows in the order of their keys.

    Parameters
    ----------
    generation : int
        A number that grows from one publication to the next, not negative.
    now : datetime
        When it is published, aware.
    lasts : timedelta
        Age from which the hook ignores it, at least a second.

    Raises
    ------
    ValueError
        Two rows have the same key, or the table is larger than the hook reads.
    """
    lines = [_format_row(row) for row in rows]
    if len({line.rsplit(" ", 2)[0] for line in lines}) < len(lines):
        raise ValueError("two rows of the hook's table have the same key")
    body = "".join(sorted(lines))
    if len(lines) > MOST_ROWS or len(body) > MOST_BYTES:
        raise ValueError(f"the hook reads {MOST_ROWS} rows and {MOST_BYTES} bytes, not {len(lines)} and {len(body)}")
    published = int(now.timestamp())
    expires = published + int(lasts.total_seconds())
    facts = f"{generation} {published} {expires} {len(lines)} {len(body)}"
    return f"{FORMAT} {facts} {_table_checksum(facts, body)}\n{body}{_last_line(generation, len(lines))}"


def publish(path: Path, text: str) -> None:
    """Replace the table at ``path`` atomically.

    The folder is created if missing. Who may read the folder may read the file, since slurmctld may run as another
    user. The rows are first recorded in the file ``published`` beside it, by which their values on jobs are recognised
    later.

    Raises
    ------
    HookTableInvalid
        The folder cannot be written. The previous table stays.
    """
    try:
        _remember(path, text)
        atomic_write(path, text)
    except OSError as reason:
        raise HookTableInvalid(
            f"the hook's table cannot be published at {path}: {reason}",
            hint=f"Let the user that Helios runs as write to {path.parent}.",
        ) from reason


def retract(path: Path) -> bool:
    """Remove the table, so that jobs are submitted unchanged.

    Returns False where there was none.

    Raises
    ------
    HookTableInvalid
        It cannot be removed.
    """
    try:
        path.lstat()  # a read-only file system refuses to remove also what is not there
        path.unlink()
        with suppress(OSError):  # removed it is; after a crash it would last until it expires
            fsync_directory(path.parent)
        with suppress(OSError):  # without this record more values than necessary count as the hook's
            _remember(path, "")
    except FileNotFoundError:
        return False
    except OSError as reason:
        raise HookTableInvalid(
            f"the hook's table at {path} cannot be removed: {reason}",
            hint=f"Remove it by hand, or create {path.parent / 'PAUSED'}.",
        ) from reason
    return True


def read_table(path: Path, now: datetime) -> HookTable:
    """Read and check the table as the hook does.

    Raises
    ------
    HookTableInvalid
        It is missing, damaged, expired or from the future; the reason is given.
    """
    table = _parse(path)
    if now >= table.expires_at or now < table.published_at - SKEW:
        raise HookTableInvalid(
            f"the hook's table {path} is good from {table.published_at} to {table.expires_at}, not at {now}",
            hint="See that the daemon runs and that the clocks agree.",
        )
    return table


def why_unsafe(path: Path) -> str:
    """Return why slurmctld must not open the table or the pause files.

    Empty where it may. slurmctld opens them under its locks, and Lua cannot look at a file before it opens it: a pipe
    that nobody writes to stops all submissions.
    """
    folder, state = path.parent, path.parent.parent
    try:
        trusted = {state.stat().st_uid, 0}
        for place in (state, folder):
            status = place.stat()
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_uid not in trusted:
                return f"accounts other than Helios' own can put files into {place}"
        if (kind := _file_system(folder)).startswith(_NOT_LOCAL):
            return f"{folder} is on a network file system ({kind}): where that hangs, slurmctld hangs"
    except OSError:
        return ""  # there is no folder, or it cannot be looked at: another check says so
    for file in (path, folder / PAUSED, state / PAUSED):
        with suppress(FileNotFoundError):
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode):
                return f"{file} is no plain file: if slurmctld opens it, submissions may stop until it is restarted"
            if file == path and (status.st_uid not in trusted or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
                return f"accounts other than Helios' own can write {file}"
    return ""


def _file_system(path: Path) -> str:
    """Return the kind of the file system of a path.

    Empty where it is not known.
    """
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.split(" ")[2] == number:
                return line.partition(" - ")[2].partition(" ")[0]
    return ""


_What = tuple[str, str, str, str, str]
"""``site_factor`` or ``time_min``, user, partition, time limit (min) and value, as text in the table's form."""
_Span = tuple[int, int | None]
"""Begin and end of a publication, s since the epoch; None as end where it is still published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTables:
    """Rows that were published recently, with the times of publication.

    ``problem`` says why they could not be read; empty where they could, or there are none.
    """

    spans: Mapping[_What, _Span] = field(default_factory=dict)
    problem: str = ""

    def has(self, setting: JobSetting, job: RawJob, value: int) -> bool:
        """Return whether the hook's table had ``value`` for ``job`` at its submission."""
        if not self.spans or not value:
            return False
        limit_s = job["time_limit_s"]
        limit = str(round(limit_s / 60)) if isinstance(limit_s, (int, float)) else "-"
        word, limit = ("site_factor", _ANY) if setting is JobSetting.ORDER else ("time_min", limit)
        user, partition = _quote(job["user"] or ""), _quote(job["partition"] or "")
        found = (self.spans.get((word, who, partition, limit, str(value))) for who in (user, _ANY))
        return any(span is not None and _is_within(job["submitted"], span) for span in found)


def read_published(path: Path) -> PublishedTables:
    """Return the rows that were published.

    Lines that cannot be read are left out, and prove nothing.
    """
    try:
        lines = path.read_text(encoding="ascii", errors="replace").split("\n")
    except FileNotFoundError:
        return PublishedTables()
    except OSError as reason:
        return PublishedTables(problem=f"{path} cannot be read: {reason.strerror}")
    spans: dict[_What, _Span] = {}
    for found in filter(None, map(_SPAN.fullmatch, lines)):
        since, until, word, user, partition, limit, value = found.groups()
        spans[word, user, partition, limit, value] = (int(since), None if until == "-" else int(until))
    return PublishedTables(spans=spans)


def _remember(table: Path, text: str) -> None:
    """Record the rows of the next table.

    Rows that are no longer published stay recorded for ``KEPT``.
    """
    path, now = table.with_name(PUBLISHED.name), int(datetime.now(UTC).timestamp())
    before, has = read_published(path).spans, dict.fromkeys(_parse_rows(text))
    oldest = now - int(KEPT.total_seconds())
    after: dict[_What, _Span] = {
        what: (since, now if until is None else until)
        for what, (since, until) in before.items()
        if what not in has and (until is None or until >= oldest)
    }
    after |= {what: (before[what][0] if what in before else now, None) for what in has}
    if after != before:
        lines = (
            f"{since} {'-' if until is None else until} {' '.join(what)}\n" for what, (since, until) in after.items()
        )
        atomic_write(path, "".join(lines), mode=0o640)


def _parse_rows(text: str) -> Iterable[_What]:
    for row in filter(None, map(_ROW.fullmatch, text.splitlines())):
        user, partition, _, limit, site_factor, time_min = row.groups()
        if site_factor != "0":
            yield "site_factor", user, partition, _ANY, site_factor
        if time_min != "0":
            yield "time_min", user, partition, limit, time_min


def _is_within(submitted: int, span: _Span) -> bool:
    skew = int(SKEW.total_seconds())
    return span[0] - skew <= submitted and (span[1] is None or submitted <= span[1] + skew)


def _quote(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape")


def checksum(body: bytes) -> int:
    """Return the checksum of the table.

    Words of four bytes are the digits of a number in base 31, taken modulo a prime. It was chosen for Lua 5.1, which
    computes exactly up to 2**53 and has no bit operations.
    """
    padded = body + bytes(-len(body) % 8)
    total = 0
    for word in struct.unpack(f"<{len(padded) // 4}I", padded):
        total = (total * 31 + word) % _MODULUS
    return total


def _table_checksum(facts: str, body: str) -> int:
    return (checksum(facts.encode("ascii")) * 31 + checksum(body.encode("ascii"))) % _MODULUS


def _format_row(row: HookRow) -> str:
    names = (_ANY if name is None else _quote(name) for name in row.key[:2])
    numbers = (_ANY if number is None else str(number) for number in row.key[2:])
    return f"{' '.join((*names, *numbers))} {row.site_factor} {row.time_min}\n"


def _last_line(generation: int, rows: int) -> str:
    return f"end {generation} {rows}\n"


def _parse(path: Path) -> HookTable:
    try:
        # A pipe is not waited for.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise HookTableInvalid(f"the hook's table {path} is no plain file", hint=f"Remove it: rm {path}")
            text = file.read(MOST_BYTES + 1024).decode("ascii")
    except (OSError, UnicodeDecodeError) as reason:
        raise HookTableInvalid(f"the hook's table {path} cannot be read: {reason}", hint=_ANEW) from reason
    header, _, rest = text.partition("\n")
    facts = _HEADER.fullmatch(header)
    if facts is None:
        raise HookTableInvalid(f"the hook's table {path} has no header of the format {FORMAT}", hint=_ANEW)
    generation, published, expires, count, size = map(int, facts[1].split(" "))
    body = rest[:size]
    if len(body) != size or rest[size:] != _last_line(generation, count):
        raise HookTableInvalid(f"the hook's table {path} is cut short or too long", hint=_ANEW)
    if _table_checksum(facts[1], body) != int(facts[2]):
        raise HookTableInvalid(f"the hook's table {path} has a wrong checksum", hint=_ANEW)
    if max(published, expires) > _LAST_S:
        raise HookTableInvalid(f"the hook's table {path} has an impossible time", hint=_ANEW)
    rows = [_row(line, path) for line in body.split("\n")[:-1]]
    if len(rows) != count:
        raise HookTableInvalid(f"the hook's table {path} has {len(rows)} rows, not {count}", hint=_ANEW)
    return HookTable(
        generation=generation,
        published_at=datetime.fromtimestamp(published, UTC),
        expires_at=datetime.fromtimestamp(expires, UTC),
        rows={row.key: row for row in rows},
    )


def _row(line: str, path: Path) -> HookRow:
    parts = _ROW.fullmatch(line)
    try:
        if parts is None:
            raise ValueError("it does not have six fields")
        user, partition, gpus, limit, site_factor, time_min = parts.groups()
        if max(abs(int(site_factor)), int(time_min)) >= _TOO_LARGE:
            raise ValueError("a value is larger than Slurm has")
        return HookRow(
            user=_name(user),
            partition=_name(partition),
            gpus=_number(gpus),
            limit_min=_number(limit),
            site_factor=int(site_factor),
            time_min=int(time_min),
        )
    except ValueError as reason:
        raise HookTableInvalid(
            f"the hook's table {path} has a row {line!r} that is not understood: {reason}", hint=_ANEW
        ) from reason


def _name(text: str) -> str | None:
    return None if text == _ANY else unquote(text, errors="surrogateescape")


def _number(text: str) -> int | None:
    return None if text == _ANY else int(text)

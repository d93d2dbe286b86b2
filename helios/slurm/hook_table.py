"""The table that the priority hook looks jobs up in: how it is written down, published and read back.

slurmctld runs ``deploy/slurm/job_submit.lua`` under its locks, so the hook may do no more than a look-up in a file.
The file is made so that Lua without libraries can tell a whole, current table from a damaged or old one: a first line
with generation, expiry, size and checksum, a row a line, a last line that repeats generation and row count.
"""

from __future__ import annotations

import re
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
"""Where the table lies, below ``control.state_folder``."""
PUBLISHED = TABLE.with_name("published")
"""Where it stands what tables ever had, and when: the proof that a value on a job is the hook's."""
KEPT = timedelta(days=7)
"""How long a row is remembered that is no longer published; by then a cycle has taken its jobs into ``jobs.undo``."""

FORMAT = "helios-hook 1"
MOST_ROWS = 200_000
MOST_BYTES = 32 * 1024 * 1024
SKEW = timedelta(minutes=5)
"""A table from further in the future comes from a wrong clock. These bounds are the Lua side's too."""

_ANY = "*"
# A number of more digits than this none of them has; Lua counts them exactly.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRow:
    """What jobs of one kind get at submission.

    Four kinds of key are looked up, the most specific first: user, partition, GPUs and limit; user, partition and
    GPUs; user and partition; partition and GPUs. The first row found decides both values.

    Attributes
    ----------
    user, partition : str, optional
        None: any. A partition is always named.
    gpus : int, optional
        GPUs of the whole job; None: any.
    limit_min : int, optional
        Its time limit, whole minutes; None: any.
    site_factor : int
        0 for none, else with Helios's mark: its last two digits are 37.
    time_min : int
        Soft limit, minutes; 0 for none, else with Helios's mark: its last digit is 7.

    Raises
    ------
    ValueError
        It is none of the four kinds, or a value lacks the mark.
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
        """The jobs it is for."""
        return (self.user, self.partition, self.gpus, self.limit_min)


_KINDS = {
    (True, True, True, True),
    (True, True, True, False),
    (True, True, False, False),
    (False, True, True, False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookTable:
    """A table as the hook has it before it.

    Attributes
    ----------
    generation : int
        Which publication it is.
    published_at, expires_at : datetime
        Aware, UTC, whole seconds; the hook does not believe it from ``expires_at`` on.
    rows : mapping
        Its rows by key.
    """

    generation: int
    published_at: datetime
    expires_at: datetime
    rows: Mapping[Key, HookRow]

    def row_for(self, *, user: str, partition: str, gpus: int, limit_min: int | None) -> HookRow | None:
        """Return the row that a job of this kind gets, None: it is left as submitted."""
        keys: tuple[Key, ...] = (
            (user, partition, gpus, limit_min),
            (user, partition, gpus, None),
            (user, partition, None, None),
            (None, partition, gpus, None),
        )
        return next((self.rows[key] for key in keys if key in self.rows), None)


def render(rows: Iterable[HookRow], *, generation: int, now: datetime, lasts: timedelta) -> str:
    """Return the table's text, rows in the order of their keys.

    Parameters
    ----------
    generation : int
        A number that grows from one publication to the next, not negative.
    now : datetime
        When it is published, aware.
    lasts : timedelta
        Age at which the hook stops believing it, at least a second.

    Raises
    ------
    ValueError
        Two rows have the same key, or the table is larger than the hook reads.
    """
    lines = [_line(row) for row in rows]
    if len({line.rsplit(" ", 2)[0] for line in lines}) < len(lines):
        raise ValueError("two rows of the hook's table have the same key")
    body = "".join(sorted(lines))
    if len(lines) > MOST_ROWS or len(body) > MOST_BYTES:
        raise ValueError(f"the hook reads {MOST_ROWS} rows and {MOST_BYTES} bytes, not {len(lines)} and {len(body)}")
    published = int(now.timestamp())
    expires = published + int(lasts.total_seconds())
    facts = f"{generation} {published} {expires} {len(lines)} {len(body)}"
    return f"{FORMAT} {facts} {_sum_of_all(facts, body)}\n{body}{_last_line(generation, len(lines))}"


def publish(path: Path, text: str) -> None:
    """Put the table at ``path`` in one step: a reader sees the old one whole or the new one whole.

    The folder is made if missing. Who may read the folder may read the file, since slurmctld may run as another user.
    What it has is written down beside it first: by that its values on jobs are known again.

    Raises
    ------
    HookTableInvalid
        The folder cannot be written; the table that was there stands.
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
    """Remove the table, so that jobs are submitted unchanged from now on; False: there was none.

    Raises
    ------
    HookTableInvalid
        It cannot be removed.
    """
    try:
        path.unlink()
        fsync_directory(path.parent)
        with suppress(OSError):  # it then takes more for the hook's than it need
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
    """Read the table as the hook does.

    Raises
    ------
    HookTableInvalid
        It is missing, damaged, expired or from the future; the reason is given.
    """
    table = _parsed(_content(path), path)
    if now >= table.expires_at or now < table.published_at - SKEW:
        raise HookTableInvalid(
            f"the hook's table {path} is good from {table.published_at} to {table.expires_at}, not at {now}",
            hint="See that the daemon runs and that the clocks agree.",
        )
    return table


_What = tuple[str, str, str, str, str]
"""What jobs were given: ``site_factor`` or ``time_min``, user, partition, time limit (min), value; as in the table."""
_Span = tuple[int, int | None]
"""From when until when, s since the epoch; None: it is published now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTables:
    """What the tables had that were published lately, and when."""

    spans: Mapping[_What, _Span] = field(default_factory=dict)

    def has(self, setting: JobSetting, job: RawJob, value: int) -> bool:
        """Return whether the hook was told to write ``value`` to such a job when ``job`` was submitted."""
        if not self.spans or not value:
            return False
        word, limit = ("site_factor", _ANY) if setting is JobSetting.ORDER else ("time_min", _limit(job))
        user, partition = _quoted(job["user"] or ""), _quoted(job["partition"] or "")
        found = (self.spans.get((word, who, partition, limit, str(value))) for who in (user, _ANY))
        return any(span is not None and _within(job["submitted"], span) for span in found)


def read_published(path: Path) -> PublishedTables:
    """Return what was published; what cannot be read proves nothing."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").split("\n")
    except OSError:
        return PublishedTables()
    spans: dict[_What, _Span] = {}
    for found in filter(None, map(_SPAN.fullmatch, lines)):
        since, until, word, user, partition, limit, value = found.groups()
        spans[word, user, partition, limit, value] = (int(since), None if until == "-" else int(until))
    return PublishedTables(spans=spans)


def _remember(table: Path, text: str) -> None:
    """Write down beside the table what it is about to have; what it has no longer is kept for a while."""
    path, now = table.with_name(PUBLISHED.name), int(datetime.now(UTC).timestamp())
    before, has = read_published(path).spans, dict.fromkeys(_what(text))
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


def _what(text: str) -> Iterable[_What]:
    for row in filter(None, map(_ROW.fullmatch, text.splitlines())):
        user, partition, _, limit, site_factor, time_min = row.groups()
        if site_factor != "0":
            yield "site_factor", user, partition, _ANY, site_factor
        if time_min != "0":
            yield "time_min", user, partition, limit, time_min


def _within(submitted: int, span: _Span) -> bool:
    skew = int(SKEW.total_seconds())
    return span[0] - skew <= submitted and (span[1] is None or submitted <= span[1] + skew)


def _limit(job: RawJob) -> str:
    limit = job["time_limit_s"]
    return str(round(limit / 60)) if isinstance(limit, (int, float)) else "-"


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape")


def checksum(body: bytes) -> int:
    """Return the sum that guards against damage: words of four bytes as digits in base 31, modulo a prime.

    It is chosen for Lua 5.1, which counts exactly up to 2**53 and has no bit operations.
    """
    padded = body + bytes(-len(body) % 8)
    total = 0
    for word in struct.unpack(f"<{len(padded) // 4}I", padded):
        total = (total * 31 + word) % _MODULUS
    return total


def _sum_of_all(facts: str, body: str) -> int:
    return (checksum(facts.encode("ascii")) * 31 + checksum(body.encode("ascii"))) % _MODULUS


def _line(row: HookRow) -> str:
    names = (_ANY if name is None else _quoted(name) for name in row.key[:2])
    numbers = (_ANY if number is None else str(number) for number in row.key[2:])
    return f"{' '.join((*names, *numbers))} {row.site_factor} {row.time_min}\n"


def _last_line(generation: int, rows: int) -> str:
    return f"end {generation} {rows}\n"


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1024).decode("ascii")
    except (OSError, UnicodeDecodeError) as reason:
        raise HookTableInvalid(f"the hook's table {path} cannot be read: {reason}", hint=_ANEW) from reason


def _parsed(text: str, path: Path) -> HookTable:
    header, _, rest = text.partition("\n")
    facts = _HEADER.fullmatch(header)
    if facts is None:
        raise HookTableInvalid(f"the hook's table {path} has no header of the format {FORMAT}", hint=_ANEW)
    generation, published, expires, count, size = map(int, facts[1].split(" "))
    body = rest[:size]
    if len(body) != size or rest[size:] != _last_line(generation, count):
        raise HookTableInvalid(f"the hook's table {path} is cut short, or goes on after its end", hint=_ANEW)
    if _sum_of_all(facts[1], body) != int(facts[2]):
        raise HookTableInvalid(f"the hook's table {path} has a wrong checksum", hint=_ANEW)
    if max(published, expires) > _LAST_S:
        raise HookTableInvalid(f"the hook's table {path} is from a time that no clock has", hint=_ANEW)
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
            raise ValueError("it has not six fields")
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

"""The table that the priority hook looks jobs up in: how it is written down, published and read back.

slurmctld runs ``deploy/slurm/job_submit.lua`` under its locks, so the hook may do no more than a look-up in a file.
The file is made so that Lua without libraries can tell a whole, current table from a damaged or old one: a first line
with generation, expiry, size and checksum, a row a line, a last line that repeats generation and row count.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, unquote

from helios.errors import HookTableInvalid
from helios.marks import MARK, MINUTE_MARK, is_ours
from helios.slurm.lasting import make_lasting, put

TABLE = Path("hook") / "table"
"""Where the table lies, below ``control.state_folder``."""

FORMAT = "helios-hook 1"
MOST_ROWS = 200_000
MOST_BYTES = 32 * 1024 * 1024
SKEW = timedelta(minutes=5)
"""A table from further in the future comes from a wrong clock. These bounds are the Lua side's too."""

_ANY = "*"
_HEADER = re.compile(rf"{FORMAT} (\d+ \d+ \d+ \d+ \d+) (\d+)")
_ROW = re.compile(r"(\S+) (\S+) (\d+|\*) (\d+|\*) (-?\d+) (\d+)")
_MODULUS = 2**31 - 1

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
        if self.site_factor and not is_ours(self.site_factor):
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

    Raises
    ------
    HookTableInvalid
        The folder cannot be written; the table that was there stands.
    """
    try:
        put(path, text)
    except OSError as reason:
        raise HookTableInvalid(
            f"the hook's table cannot be published at {path}: {reason}",
            remedy=f"Let the user that Helios runs as write to {path.parent}.",
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
        make_lasting(path.parent)
    except FileNotFoundError:
        return False
    except OSError as reason:
        raise HookTableInvalid(
            f"the hook's table at {path} cannot be removed: {reason}",
            remedy=f"Remove it by hand, or create {path.parent / 'PAUSED'}.",
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
            remedy="See that the daemon runs and that the clocks agree.",
        )
    return table


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
    names = (_ANY if name is None else quote(name, safe="", errors="surrogateescape") for name in row.key[:2])
    numbers = (_ANY if number is None else str(number) for number in row.key[2:])
    return f"{' '.join((*names, *numbers))} {row.site_factor} {row.time_min}\n"


def _last_line(generation: int, rows: int) -> str:
    return f"end {generation} {rows}\n"


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1024).decode("ascii")
    except (OSError, UnicodeDecodeError) as reason:
        raise HookTableInvalid(f"the hook's table {path} cannot be read: {reason}") from reason


def _parsed(text: str, path: Path) -> HookTable:
    header, _, rest = text.partition("\n")
    facts = _HEADER.fullmatch(header)
    if facts is None:
        raise HookTableInvalid(f"the hook's table {path} has no header of the format {FORMAT}")
    generation, published, expires, count, size = map(int, facts[1].split(" "))
    body = rest[:size]
    if len(body) != size or rest[size:] != _last_line(generation, count):
        raise HookTableInvalid(f"the hook's table {path} is cut short, or goes on after its end")
    if _sum_of_all(facts[1], body) != int(facts[2]):
        raise HookTableInvalid(f"the hook's table {path} has a wrong checksum")
    rows = [_row(line, path) for line in body.splitlines()]
    if len(rows) != count:
        raise HookTableInvalid(f"the hook's table {path} has {len(rows)} rows, not {count}")
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
            f"the hook's table {path} has a row {line!r} that is not understood: {reason}"
        ) from reason


def _name(text: str) -> str | None:
    return None if text == _ANY else unquote(text, errors="surrogateescape")


def _number(text: str) -> int | None:
    return None if text == _ANY else int(text)

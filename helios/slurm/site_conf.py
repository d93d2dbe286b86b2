"""Parser of ``slurm.conf`` and of what ``scontrol show`` prints.

Source: slurm.conf(5) and ``parse_config.c``. Keys may have any case, ``#`` begins a comment, a backslash at the end
continues on the next line, values may be quoted, and a line about nodes or a partition has many ``Key=Value``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from helios.errors import ConfigurationInvalid, FileUnreadable

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
_KEY = r"[A-Za-z][\w/.]*(?:\[\d+\])?"
PAIR = re.compile(rf"({_KEY})\s*[+-]?=\s*(?:\"([^\"]*)\"|(\S*))")
_PRINTED_PAIR = re.compile(rf"(?<!\S)({_KEY})=(\S*)")
_WHOLE_LINE = re.compile(rf"\s*({_KEY})\s*=\s*(.*)")
_INCLUDE = re.compile(r"\s*include\s+(\S.*)", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_NO_LIMIT = frozenset({"unlimited", "infinite", "-1"})
_NOTHING = frozenset({"", "(null)", "none", "n/a"})
_TITLES = frozenset({"nodename", "partitionname", "nodeset", "downnodes", "frontendname", "switchname"})
"""Keys that begin a line of many ``Key=Value``. Any other line is one setting, whose value may contain blanks."""
_DEEPEST_INCLUDE = 8
"""Files that may include each other; more are a circle. Nobody's slurm.conf has more than two or three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfLine:
    """Statement of a configuration, with its keys in lower case.

    Attributes
    ----------
    number : int
        Line number in the text, from 1; the first one of a statement over several lines.
    title : str
        Its first key, in lower case; ``include`` for a file to be read too.
    words : mapping of str to str
        Values by key.
    spelled : str
        The first key as it is written.
    """

    number: int
    title: str
    words: Mapping[str, str]
    spelled: str = ""

    def text(self, key: str, otherwise: str = "") -> str:
        """Return the value of ``key``, or ``otherwise``.

        What Slurm prints for no value, such as ``(null)``, counts as none.
        """
        value = self.words.get(key, otherwise)
        return otherwise if value.lower() in _NOTHING else value

    def whole(self, key: str, otherwise: int) -> int:
        """Return the value of ``key`` as a whole number.

        Raises
        ------
        ConfigurationInvalid
            It is not one.
        """
        value = self.text(key)
        if not value:
            return otherwise
        if not re.fullmatch(r"-?\d+", value):
            raise self.error(key, "is not a whole number", "Write it in digits alone.")
        return int(value)

    def length_s(self, key: str, otherwise: int | None) -> int | None:
        """Return the value of ``key`` as a length of time, s.

        None for no limit.

        Raises
        ------
        ConfigurationInvalid
            It is not a length of time.
        """
        value = self.text(key)
        if not value:
            return otherwise
        try:
            return length_s(value)
        except ValueError:
            raise self.error(
                key, "is not a length of time", "Write minutes, HH:MM:SS, D-HH:MM:SS or UNLIMITED."
            ) from None

    def weights(self, key: str) -> dict[str, float]:
        """Return TRES weights like ``CPU=1.0,Mem=0.25G,GRES/gpu=2.0``.

        The unit of the weight of memory is the amount that it is for: ``Mem=0.25G`` is 0.25 for each GiB. The result is
        for each MiB.

        Raises
        ------
        ConfigurationInvalid
            It is not a list of weights.
        """
        found: dict[str, float] = {}
        for word in filter(None, self.text(key).split(",")):
            name, _, value = word.partition("=")
            weight = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)([KMGTP]?)", value.strip(), re.IGNORECASE)
            if weight is None:
                raise self.error(key, "is not a list of weights", "Write CPU=1.0,Mem=0.25G,GRES/gpu=3.0.")
            found[name.strip().lower()] = float(weight[1]) / _MIB.get(weight[2].upper(), 1.0)
        return found

    def error(self, key: str, what: str, hint: str) -> ConfigurationInvalid:
        """Return an error about ``key`` in this line."""
        return ConfigurationInvalid(f"line {self.number}: {key}={self.words.get(key, '')} {what}", hint=hint)


def lines(text: str) -> Iterator[ConfLine]:
    """Yield the statements of a text, in order.

    Raises
    ------
    ConfigurationInvalid
        A line is neither a comment nor a setting.
    """
    for number, statement in statements(text):
        if (line := parse_statement(number, statement)) is not None:
            yield line


def parse_statement(number: int, statement: str) -> ConfLine | None:
    """Return a statement with its keys, None for a heading.

    Raises
    ------
    ConfigurationInvalid
        It is no setting.
    """
    if include := _INCLUDE.fullmatch(statement):
        return ConfLine(number=number, title="include", words={"include": include[1].strip()})
    whole = _WHOLE_LINE.fullmatch(statement)
    if whole is None:
        if _is_a_heading(statement):
            return None
        raise ConfigurationInvalid(
            f"line {number}: {statement.strip()[:80]!r} is not Key=Value",
            hint="Give the text of slurm.conf, or what scontrol show config prints.",
        )
    title = whole[1].lower()
    words = {title: whole[2].strip().strip('"')}
    if title in _TITLES:
        pairs = PAIR.finditer(statement)
        words = {pair[1].lower(): pair[2] if pair[2] is not None else pair[3] for pair in pairs}
    return ConfLine(number=number, title=title, words=words, spelled=whole[1])


def read_statements(
    path: Path, *, hint: str, notes: list[str] | None = None, depth: int = 0
) -> Iterator[tuple[Path, int, str]]:
    """Yield the statements of a file and of those that it includes.

    Each has its file and line number. Includes are replaced by what they include.

    Parameters
    ----------
    hint : str
        What to give where a file cannot be read.
    notes : list of str, optional
        Gets the included files that cannot be read, which are left out. None: such a file is an error.
    depth : int
        Number of files that include this one.

    Raises
    ------
    FileUnreadable
        A file cannot be read.
    ConfigurationInvalid
        Files include each other without an end.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as reason:
        error = FileUnreadable(f"{path} cannot be read: {reason.strerror}.", hint=hint)
        if not depth or notes is None:
            raise error from reason
        notes.append(f"{error.message} NodeName lines in it are missing here.")
        return
    for number, statement in statements(text):
        include = _INCLUDE.fullmatch(statement)
        if include is None:
            yield path, number, statement
            continue
        if depth == _DEEPEST_INCLUDE:
            raise ConfigurationInvalid(
                f"{path}, line {number}: files include each other without an end",
                hint="Remove the Include lines that lead back, or give one file without them.",
            )
        included = path.parent / include[1].strip().strip('"')
        yield from read_statements(included, hint=hint, notes=notes, depth=depth + 1)


@contextmanager
def in_file(name: str | Path) -> Iterator[None]:
    """Add the name of the file to errors about its content."""
    try:
        yield
    except ConfigurationInvalid as reason:
        raise ConfigurationInvalid(f"{name}, {reason.message}", hint=reason.hint) from reason


def records(text: str, title: str) -> Iterator[ConfLine]:
    """Yield the records that ``scontrol show node`` or ``show partition`` prints.

    A record may have one line or several.

    Parameters
    ----------
    title : str
        Key that begins a record, in lower case.
    """
    for number, block in _blocks(text, title):
        words = {found[1].lower(): found[2] for found in _PRINTED_PAIR.finditer(block)}
        yield ConfLine(number=number, title=title, words=words)


def length_s(text: str) -> int | None:
    """Parse a length of time in Slurm's configuration, s.

    The forms are minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS.

    Returns
    -------
    int or None
        None for ``UNLIMITED`` or ``INFINITE``.

    Raises
    ------
    ValueError
        It is not a length.
    """
    word = text.strip().lower()
    if word in _NO_LIMIT:
        return None
    found = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", word)
    if found is None:
        raise ValueError(text)
    parts = [int(part) for part in found[2].split(":")]
    units = [HOUR_S, MINUTE_S, 1]
    if found[1] is None and len(parts) < 3:
        units = units[1:]
    return int(found[1] or 0) * DAY_S + sum(unit * part for unit, part in zip(units, parts, strict=False))


def amount(text: str) -> int:
    """Parse a count like ``8``, ``2K`` or ``-1``.

    Raises
    ------
    ValueError
        It is not a count.
    """
    found = re.fullmatch(r"(-?\d+)([kKmMgG]?)", text.strip())
    if found is None:
        raise ValueError(text)
    return int(found[1]) * {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}[found[2].upper()]


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each statement, without comments."""
    began, pending = 0, ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = re.sub(r"(?<!\\)#.*", "", raw).replace("\\#", "#")
        began = began or number
        if line.rstrip().endswith("\\"):
            pending += line.rstrip()[:-1] + " "
            continue
        statement, at = pending + line, began
        began, pending = 0, ""
        if statement.strip():
            yield at, statement
    if pending.strip():
        yield began, pending


def _is_a_heading(statement: str) -> bool:
    """Return whether ``scontrol show config`` prints this line between settings."""
    words = statement.strip()
    return words.startswith("Configuration data as of") or words.endswith(":") or words.startswith("Slurmctld(")


def _blocks(text: str, title: str) -> Iterator[tuple[int, str]]:
    began, block = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip().lower().startswith(f"{title}="):
            if block:
                yield began, block
            began, block = number, line
        elif block and line.startswith((" ", "\t")) and line.strip():
            block += " " + line
        elif block:
            yield began, block
            block = ""
    if block:
        yield began, block

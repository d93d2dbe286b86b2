"""Record of what Helios would have to revert on nodes.

The file can be read by a shell, and ``helios-release.sh`` uses it. Lines have words separated by tabs: ``asleep NODE``,
``weight NODE OWN`` and ``keep_awake LIST``, with ``(null)`` for an empty list. It is written before any change, so that
it names at least every changed node, whatever happens to the database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from helios.errors import FileUnreadable, HeliosError
from helios.private_files import atomic_write
from helios.slurm import parse

UNDO_FILE = "nodes.undo"
"""Its name within ``[control] state_folder``."""
_LOOK = "Look at it; helios-release.sh uses the lines that it knows."
_NODE = re.compile(r"[\w.-]+", re.ASCII)
_WEIGHT = re.compile(r"[0-9]{1,10}", re.ASCII)
_LIST = re.compile(r"[\w.,:\[\]-]+|\(null\)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesUndo:
    """Changes on nodes that would have to be reverted.

    Attributes
    ----------
    asleep : tuple of str
        Nodes that Helios put to sleep, or was about to.
    weights : mapping
        The site's own weight of each node whose weight Helios changed.
    keep_awake : str, optional
        The site's own keep-awake list; None where Helios did not change it.
    """

    asleep: tuple[str, ...] = ()
    weights: Mapping[str, int] = field(default_factory=dict)
    keep_awake: str | None = None


class UndoNotWritten(HeliosError):
    """The record of what to revert could not be written."""


def write_undo(
    path: Path, *, asleep: Iterable[str] = (), weights: Mapping[str, int] | None = None, keep_awake: str | None = None
) -> None:
    """Replace the content of the undo file.

    The replacement is atomic and synced to the disk.

    Parameters
    ----------
    path : Path
        The file.
    asleep, weights, keep_awake
        As in :class:`NodesUndo`.

    Raises
    ------
    UndoNotWritten
        The folder cannot be written to, or a name is one that the shell could not read back.
    """
    rows = [f"asleep\t{node}" for node in asleep]
    rows += [f"weight\t{node}\t{own}" for node, own in (weights or {}).items()]
    rows += [] if keep_awake is None else [f"keep_awake\t{parse.text(keep_awake.strip()) or '(null)'}"]
    text = "".join(f"{row}\n" for row in rows)
    if _parse(text) is None:
        raise UndoNotWritten(f"A node's name or the keep-awake list cannot be written to {path}: {text!r:.200}")
    try:
        atomic_write(path, text)
    except OSError as reason:
        raise UndoNotWritten(
            f"{path} cannot be written: {reason.strerror}", hint="Give Helios its [control] state_folder."
        ) from reason


def read_undo(path: Path) -> NodesUndo:
    """Return the content of the undo file.

    It is empty where there is no file.

    Raises
    ------
    FileUnreadable
        The file cannot be read, or is damaged.
    """
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return NodesUndo()
    except (OSError, UnicodeDecodeError) as reason:
        raise FileUnreadable(f"{path} cannot be read: {reason}", hint=_LOOK) from reason
    if (found := _parse(text)) is None:
        raise FileUnreadable(f"{path} is damaged.", hint=_LOOK)
    return found


def _parse(text: str) -> NodesUndo | None:
    """Return the content of the file, or None where it is damaged."""
    asleep: list[str] = []
    weights: dict[str, int] = {}
    keep_awake: str | None = None
    for line in text.splitlines():
        match line.split("\t"):
            case ["asleep", node] if _NODE.fullmatch(node):
                asleep.append(node)
            case ["weight", node, own] if _NODE.fullmatch(node) and _WEIGHT.fullmatch(own):
                weights[node] = int(own)
            case ["keep_awake", own] if _LIST.fullmatch(own) and keep_awake is None:
                keep_awake = parse.text(own) or ""
            case _:
                return None
    return NodesUndo(asleep=tuple(asleep), weights=weights, keep_awake=keep_awake)

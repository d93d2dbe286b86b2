"""What a policy can be told beside its name: one table, by which plans, keys of results and replays go.

An option is written as a person does (``least = "3h"``) and kept as what it is read from there (``least_s``, 10800), by
which name the bound on waiting takes it. A new bound gets its rows in ``OPTIONS`` and its line in :func:`bound_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from helios.app.lengths import length
from helios.errors import Misuse
from helios.simulate import Backlog, Guard

Options = tuple[tuple[str, int | float | None], ...]
"""Names and values as they are kept, in the order of the names."""

NEVER = "never"
BALANCED, SRTF = "balanced", "srtf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a policy.

    Attributes
    ----------
    kept_as : str
        By which name the bound takes it.
    read : callable
        Returns the value of what was written; raises Misuse.
    of : str
        The policy that has it; empty: all that order a queue.
    told : str
        What it is, for a person.
    """

    kept_as: str
    read: Callable[[Any], int | float | None]
    of: str
    told: str


def _length_s(text: Any) -> int:
    return int(length(text).total_seconds())


def _length_or_never_s(text: Any) -> int | None:
    return None if text == NEVER else _length_s(text)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise Misuse(f"{value!r} is not a share.", remedy="Write 0.9, or 0 for none")
    return float(value)


OPTIONS: Mapping[str, Option] = {
    "patience": Option(
        kept_as="patience_s",
        read=_length_or_never_s,
        of="",
        told='who has waited so long goes first: "12h"; "never"; instead of the bound by the backlog',
    ),
    "share": Option(kept_as="share", read=_share, of=BALANCED, told="of the longest backlog that a job waits at most"),
    "least": Option(kept_as="least_s", read=_length_s, of=BALANCED, told='the bound is never shorter: "3h"'),
    "known": Option(kept_as="known_s", read=_length_s, of=BALANCED, told='longest wait of the site\'s past: "20h"'),
    "every": Option(kept_as="every_s", read=_length_s, of=BALANCED, told='how often the backlog is looked at: "1h"'),
}


def read_options(policy: str, written: Mapping[str, Any]) -> Options:
    """Return the options of a policy as they are kept.

    Raises
    ------
    Misuse
        The policy has no such option, a value is not understood, or the options contradict each other.
    """
    there = {name: option for name, option in OPTIONS.items() if option.of in ("", policy) and policy != SRTF}
    if unknown := [name for name in written if name not in there]:
        has = "; ".join(f"{name}: {option.told}" for name, option in there.items()) or "none"
        raise Misuse(f"{policy} has no option {', '.join(unknown)}.", remedy=f"Its options: {has}")
    read = {there[name].kept_as: there[name].read(value) for name, value in written.items()}
    if "patience_s" in read and len(read) > 1:
        raise Misuse(
            f"{', '.join(name for name in written if name != 'patience')} of {policy} has no part where patience is "
            "told.",
            remedy="Write a second table, as [[options.balanced]] twice: one with patience, one with the others.",
        )
    options = tuple(sorted(read.items()))
    bound_of(policy, options)  # refuses what no bound can be
    return options


def bound_of(policy: str, options: Options) -> Guard | Backlog | None:
    """Return what bounds the waits under a policy: what its options say, else its own; None: nothing does."""
    told: dict[str, Any] = dict(options)
    if "patience_s" in told:
        return None if told["patience_s"] is None else Guard.constant(told["patience_s"])
    return Backlog(**told) if policy == BALANCED else None

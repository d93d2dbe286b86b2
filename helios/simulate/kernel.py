"""How the core is compiled, once for all of its functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from helios.kernels import kept, part

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Without reference counts: the core allocates nothing and its arrays outlive it, but numba would still count them
# in and out of every call, which took nine tenths of the time of a replay (numba 0.68).
_OPTIONS: dict[str, Any] = {"_nrt": False}
# Kernels are copied into their callers: the state has some seventeen arrays of seven words each, which every call would
# pass on the stack. That took four fifths of a replay's time, and fourteen fifteenths where nodes are counted.
_INSIDE: dict[str, Any] = {"forceinline": True}


def kernel(function: _Function) -> _Function:
    """Compile ``function`` as a part of the entry points that call it; nobody else can."""
    return part(function, **_OPTIONS, **_INSIDE)


def entry_point(function: _Function) -> _Function:
    """Compile ``function`` when it is first called, and keep it on disk with all it calls."""
    return kept(function, **_OPTIONS)

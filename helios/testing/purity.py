"""What a piece of code asks of the world outside its arguments: the clock, chance, files, the network."""

from __future__ import annotations

import gc
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import numpy as np

CLOCKS = frozenset({"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime"})
CLOCK_METHODS = frozenset({"datetime.now", "datetime.utcnow", "datetime.today", "date.today"})
CLOCK_NAMES = frozenset({"now", "utcnow", "today"})
OUTSIDE = {
    "io": "the disk",
    "_io": "the disk",
    "posix": "the operating system",
    "nt": "the operating system",
    "_socket": "the network",
    "_posixsubprocess": "another program",
}
HARMLESS = frozenset({"fspath", "text_encoding"})


@contextmanager
def watched() -> Iterator[list[str]]:
    """Collect what the code inside asks of the outside, a sentence each, with where it was asked.

    It sees calls that Python makes; what compiled code reads by itself (``pd.Timestamp.now``) it cannot see, for that
    there is :func:`clocks_named_in`.
    """
    seen: list[str] = []
    before, chance = sys.getprofile(), _global_chance()

    def watch(frame: FrameType, event: str, called: Any) -> None:
        asked = _asked(called) if event == "c_call" else ""
        if asked:
            seen.append(f"{asked}, at {frame.f_code.co_filename}:{frame.f_lineno}")

    with _undisturbed():
        sys.setprofile(watch)
        try:
            yield seen
        finally:
            sys.setprofile(before)
    if _global_chance() != chance:
        seen.append("numpy.random asks chance")


def clocks_named_in(service_class: type[Any]) -> list[str]:
    """Return the functions of a class, and of its module, that name ``now``, ``utcnow`` or ``today``."""
    module = inspect.getmodule(service_class)
    own = [function for _, function in inspect.getmembers(module, inspect.isfunction)]
    functions = [
        *inspect.getmembers(service_class, inspect.isfunction),
        *((function.__name__, function) for function in own if function.__module__ == service_class.__module__),
    ]
    return sorted({name for name, function in functions if _names_a_clock(function)})


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the garbage collector still: whoever listens to it (a test framework that times it) runs in between."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _asked(called: Any) -> str:
    module, name = getattr(called, "__module__", None), getattr(called, "__qualname__", "")
    if (module == "time" and name in CLOCKS) or name in CLOCK_METHODS:
        return f"{name} asks the clock"
    if getattr(called, "__self__", None) is _MODULE_CHANCE or name == "urandom":
        return f"{name} asks chance"
    outside = OUTSIDE.get(module or "", "")
    return f"{name} asks {outside}" if outside and name not in HARMLESS else ""


def _global_chance() -> tuple[int, ...]:
    state: Any = np.random.get_state(legacy=False)
    return (int(state["state"]["pos"]), *map(int, state["state"]["key"][:4]))


def _names_a_clock(function: Callable[..., Any]) -> bool:
    return any(CLOCK_NAMES & set(code.co_names) for code in _codes(inspect.unwrap(function).__code__))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


_MODULE_CHANCE: Any = getattr(random.random, "__self__", None)
"""The generator behind ``random.random`` and its like; a seeded one of a service's own is allowed."""

"""Compiled code on disk that is recompiled when anything behind it changes.

Numba's own cache checks the file of the cached function alone, and not what that function calls or names in other
files: after an edit there, old code would silently stay in use.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache

_Function = TypeVar("_Function", bound=Callable[..., Any])
_INSIDE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def inline_jit(function: _Function, **options: Any) -> _Function:
    """Compile ``function`` for use by other compiled functions alone.

    It gets no wrappers for Python and C, and no cache of its own, which would hold the code of all that it calls once
    more.
    """
    compiled: _Function = njit(**_INSIDE, **options)(function)
    return compiled


def cached_jit(function: _Function, **options: Any) -> _Function:
    """Compile ``function`` at its first call, and cache it on disk.

    The cache holds everything that it calls.
    """
    compiled: Any = njit(cache=True, **options)(function)
    compiled._cache = _Cache(compiled)
    return cast(_Function, compiled)


class _Cache(FunctionCache):
    def __init__(self, compiled: Any) -> None:
        super().__init__(compiled.py_func)  # type: ignore[no-untyped-call]  # because numba's is untyped
        self._compiled = compiled

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        key = super()._index_key(sig, codegen)  # type: ignore[no-untyped-call]  # because numba's is untyped
        return (*key, fingerprint(self._compiled), _laid_out(sig))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the cached code, or None.

        A cache that an older release wrote under other class names is flushed.
        """
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]  # as above
        except (AttributeError, ImportError, pickle.UnpicklingError, EOFError):
            try:
                self.flush()  # type: ignore[no-untyped-call]  # as above
            except OSError:
                self.disable()  # type: ignore[no-untyped-call]  # as above
            return None


def _laid_out(kinds: Iterable[Any]) -> tuple[Any, ...]:
    """Return the order of the fields of named tuples among ``kinds``.

    Numba's own key has their names and types alone.
    """
    return tuple((getattr(kind, "fields", ()), _laid_out(kind.types)) for kind in kinds if hasattr(kind, "types"))


def fingerprint(function: Callable[..., Any]) -> str:
    """Return a digest of everything that ``function`` is compiled from.

    Its code, and the code and values of all that it names, in whatever module they are. What does not change without
    its name (a type, a function of another library) counts by its name.
    """
    return hashlib.sha256("\n".join(_told(function, seen=set())).encode()).hexdigest()


def _told(thing: Any, *, seen: set[int]) -> Iterator[str]:
    """Yield lines that describe ``thing`` and everything that it names."""
    function = getattr(thing, "py_func", thing)
    if not isinstance(function, FunctionType):
        yield _value(thing)
    elif id(function) in seen:
        yield function.__qualname__  # which also ends a recursion
    else:
        seen.add(id(function))
        code = function.__code__
        yield f"{function.__qualname__} {getattr(thing, 'targetoptions', {})}"
        yield f"{code.co_varnames[: code.co_argcount]} {_value(function.__defaults__)}"
        yield from _told_of_code(code, _named_by(function), seen=seen)


def _told_of_code(code: CodeType, named: Mapping[str, Any], *, seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _told_of_code(constant, named, seen=seen)
        else:
            yield _value(constant)
    for name in (*code.co_names, *code.co_freevars):
        yield name
        if isinstance(named.get(name), ModuleType):
            yield from _told_of_module(named[name], code.co_names, seen=seen)
        elif name in named:
            yield from _told(named[name], seen=seen)


def _told_of_module(module: ModuleType, names: tuple[str, ...], *, seen: set[int]) -> Iterator[str]:
    """Yield the lines of those members of a module that ``names`` may mean.

    Only of Helios' own modules.
    """
    if module.__name__.partition(".")[0] == __name__.partition(".")[0]:
        for name in names:
            if hasattr(module, name):
                yield from _told(getattr(module, name), seen=seen)


def _named_by(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}


def _value(thing: Any) -> str:
    if isinstance(thing, np.ndarray):
        return f"{thing.dtype.descr} {thing.shape} {thing.tobytes().hex()}"
    if isinstance(thing, (tuple, frozenset)):
        members = [_value(member) for member in thing]
        told = ", ".join(sorted(members) if isinstance(thing, frozenset) else members)
        return f"{getattr(thing, '_fields', '')}({told})"
    if thing is None or isinstance(thing, (int, float, complex, str, bytes, np.generic)):
        return repr(thing)
    if hasattr(thing, "_fields"):
        return (
            f"{thing.__module__}.{thing.__qualname__} {thing._fields} {_value(tuple(thing._field_defaults.values()))}"
        )
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"


# How the core is compiled, once for all of its functions.

# Without reference counts: the core allocates nothing and its arrays outlive it, but numba would still count them
# in and out of every call, which took nine tenths of the time of a replay (numba 0.68).
_OPTIONS: dict[str, Any] = {"_nrt": False}
# Kernels are copied into their callers: the state has some seventeen arrays of seven words each, which every call would
# pass on the stack. That took four fifths of a replay's time, and fourteen fifteenths where nodes are counted.
_INLINED: dict[str, Any] = {"forceinline": True}


def kernel(function: _Function) -> _Function:
    """Compile ``function`` as an inlined part of entry points.

    Python cannot call it.
    """
    return inline_jit(function, **_OPTIONS, **_INLINED)


def entry_point(function: _Function) -> _Function:
    """Compile ``function`` at its first call, and cache it on disk.

    With everything that it calls.
    """
    return cached_jit(function, **_OPTIONS)


# Constants that the compiler must treat as variables.


@kernel
def plain(number: int) -> int:
    """Return ``number`` as a value that is no constant to the compiler.

    Numba compiles a callee anew for each constant that it is called with.
    """
    return number + 0

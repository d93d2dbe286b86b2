"""Compiled code on disk, and the tables that it receives.

Functions that Python calls are compiled at their first call and kept in a folder named by a digest of the sources that
they may depend on. So they are compiled anew after an edit of any of these. ``helios compile`` compiles all of them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import event
from numba.core.datamodel import models
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import NativeValue, register_model, unbox
from numba.np import arrayobj
from numba.np.numpy_support import from_dtype

SHIPPED = Path(sys.prefix) / "compiled"
"""What a package has compiled when it was built, for every processor of its architecture."""
if SHIPPED.is_dir():
    # Numba takes code only from the kind of processor that it believes to be on.
    os.environ |= {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}

_log = logging.getLogger(__name__)
_numba: Any = config
# Numba reads .numba_config.yaml in the current folder, whoever's that is, again before each compilation.
_numba._config_fname = ""
_numba.reload_config()

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NO_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# Reference counts took a tenth of the time of a replay, and the core allocates nothing.
_NO_REFERENCE_COUNTS: dict[str, Any] = {"_nrt": False}
KEPT: list[Any] = []
"""Functions that are kept on disk, of all imported modules."""
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(helios[\w.]*)(?:\s+import\s+(?:\(([^)]*)|([^(#\n]*)))?", re.MULTILINE)

_WORD = ir.IntType(64)


def inline_jit(function: _Function, **options: Any) -> _Function:
    """Compile ``function`` for use by other compiled functions alone.

    It gets no wrappers for Python and C, and is not kept on disk, as its callers contain its code.
    """
    return cast(_Function, njit(**_NO_WRAPPERS, **options)(function))


def cached_jit(function: _Function, **options: Any) -> _Function:
    """Compile ``function`` at its first call, and keep it on disk.

    The kept code contains all functions that it calls.
    """
    settings: Any = config
    before, kept = settings.CACHE_DIR, digest(function.__module__)
    settings.CACHE_DIR = str(cache_folder() / kept)
    _copy_shipped(kept)
    try:
        compiled = njit(cache=True, **options)(function)
    finally:
        settings.CACHE_DIR = before
    KEPT.append(compiled)
    return cast(_Function, compiled)


def kernel(function: _Function) -> _Function:
    """Compile ``function`` of the simulator for use by its entry points alone.

    Forced inlining into every caller would make replays a quarter faster, 0.01 s in 10^5 jobs, and compilation take
    half as long again.
    """
    return inline_jit(function, **_NO_REFERENCE_COUNTS)


def entry_point(function: _Function) -> _Function:
    """Compile ``function`` at its first call, and cache it on disk.

    It releases the interpreter's lock, so that a forecast in the daemon does not hold up a cycle.
    """
    return cached_jit(function, nogil=True, **_NO_REFERENCE_COUNTS)


def cache_folder() -> Path:
    """Return the folder of compiled code, by default in the user's cache."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "helios" / "compiled"


@cache
def _copy_shipped(kept: str) -> None:
    """Copy a folder of shipped code to the cache.

    Numba uses no folder that it cannot write to.
    """
    target = cache_folder() / kept
    if not (SHIPPED / kept).is_dir() or target.exists():
        return
    copied = target.with_name(f".{kept}.{os.getpid()}")
    try:
        shutil.copytree(SHIPPED / kept, copied)
        copied.rename(target)
    except OSError as reason:
        _log.debug("%s is not copied: %s", SHIPPED / kept, reason)
        shutil.rmtree(copied, ignore_errors=True)


@cache
def digest(module: str) -> str:
    """Return a digest of the sources of a module and its imports."""
    total = hashlib.sha256()
    for name, source in sorted(_sources(module).items()):
        total.update(f"{name} {len(source)}\n".encode())
        total.update(source)
    return total.hexdigest()[:16]


def _sources(module: str) -> dict[str, bytes]:
    sources, to_read = dict[str, bytes](), [module]
    while to_read:
        name = to_read.pop()
        if name not in sources:
            sources[name], imported = _read(name)
            to_read += imported
    return sources


@cache
def _read(module: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a module's source and the Helios modules it imports."""
    path = _file_of(module)
    if path is None:
        return b"", ()
    source = path.read_bytes()
    modules = set[str]()
    for package, in_parentheses, on_line in _IMPORT.findall(source.decode()):
        members = (in_parentheses or on_line).split(",")
        modules |= {package, *(f"{package}.{member.split()[0]}" for member in members if member.strip())}
    return source, tuple(modules)


def _file_of(module: str) -> Path | None:
    if module.partition(".")[0] != __name__.partition(".")[0]:
        spec = find_spec(module)
        return Path(spec.origin) if spec is not None and spec.origin else None
    path = Path(__file__).parents[1].joinpath(*module.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


class _Reporter(event.Listener):
    """Logs each compiled entry point."""

    depth = 0

    def on_start(self, event: Any) -> None:
        if not self.depth:
            _log.info("Compiling %s", event.data["dispatcher"].py_func.__qualname__)
        self.depth += 1

    def on_end(self, event: Any) -> None:  # noqa: ARG002 - the signature is Numba's
        self.depth -= 1


event.register("numba:compile", _Reporter())


@kernel
def plain(number: int) -> int:
    """Return ``number`` as a value that is not a constant to the compiler.

    Numba compiles a callee anew for each constant argument.
    """
    return number + 0


# Tables that compiled code receives as one pointer.
#
# Numba passes a named tuple by value, with seven words or more for each array. A predictor has ninety arrays, and
# unpacking them took 50 microseconds of each call from Python.
class Table:
    """Base of classes whose instances compiled code receives as one pointer.

    A subclass is a frozen dataclass. Its fields are arrays in C order, tuples of integers, or tables.

    Attributes
    ----------
    address : int
        Address of the words that describe the fields.
    """

    address: int

    def __post_init__(self) -> None:
        """Store the addresses and shapes of the arrays.

        Raises
        ------
        ValueError
            An array is not in C order.
        """
        words, layouts = list[int](), list[Any]()
        for name in _names(cast(Any, type(self))):
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                flags = value.flags
                if not flags.c_contiguous:
                    raise ValueError("Compiled code takes only arrays in C order.")
                words.append(value.ctypes.data)
                words += value.shape
                layouts.append((value.dtype, value.ndim, flags.writeable))
            elif isinstance(value, Table):
                words.append(value.address)
                layouts.append(cast(Any, value)._numba_type_)
            else:
                words += value
                layouts.append(len(value))
        block = np.array(words, dtype=np.int64)
        object.__setattr__(self, "_words", block)
        object.__setattr__(self, "address", block.ctypes.data)
        object.__setattr__(self, "_numba_type_", _type_of(cast(Any, type(self)), tuple(layouts)))

    def __iter__(self) -> Iterator[Any]:
        """Return the values of the fields, in order."""
        return (getattr(self, name) for name in _names(cast(Any, type(self))))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the class and the fields, from which a copy is made."""
        return type(self), tuple(self)

    def by_name(self) -> dict[str, Any]:
        """Return the values of the fields by name."""
        return dict(zip(_names(cast(Any, type(self))), self, strict=True))


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cast(Any, kind)))


@cache
def _type_of(kind: type, layouts: tuple[Any, ...]) -> _TableType:
    members = dict[str, Any]()
    for name, layout in zip(_names(kind), layouts, strict=True):
        if isinstance(layout, tuple):
            dtype, dimensions, writeable = layout
            members[name] = types.Array(from_dtype(dtype), dimensions, "C", readonly=not writeable)
        else:
            members[name] = types.UniTuple(types.int64, layout) if isinstance(layout, int) else layout
    return _TableType(kind.__qualname__, members)


class _TableType(types.Type):
    def __init__(self, name: str, members: dict[str, Any]) -> None:
        self.members = members
        signature = f"{name}({', '.join(f'{member}: {kind.name}' for member, kind in members.items())})"
        # A short name, as numba writes it into each symbol. Long ones took a fifth of the time of compilation.
        super().__init__(name=f"{name}_{zlib.crc32(signature.encode()):08x}_{len(signature)}")

    def index(self, name: str) -> int:
        """Return the index of a field's first word."""
        index = 0
        for other, kind in self.members.items():
            if other == name:
                break
            index += _n_words(kind)
        return index


def _n_words(kind: Any) -> int:
    if isinstance(kind, types.Array):
        return 1 + int(kind.ndim)
    return int(kind.count) if isinstance(kind, types.UniTuple) else 1


@register_model(_TableType)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _WORD.as_pointer())


@unbox(_TableType)  # type: ignore[untyped-decorator]  # as Numba is
def _unboxed(_kind: Any, value: Any, context: Any) -> Any:
    address = context.pyapi.object_getattr_string(value, "address")
    word = context.pyapi.long_as_longlong(address)
    context.pyapi.decref(address)
    return NativeValue(context.builder.inttoptr(word, _WORD.as_pointer()))


@infer_getattr
class _Attributes(AttributeTemplate):
    key = _TableType

    def generic_resolve(self, value: Any, attr: str) -> Any:  # type: ignore[override]  # because Numba declares None
        return value.members.get(attr)


@lower_getattr_generic(_TableType)  # type: ignore[untyped-decorator]  # as Numba is
def _lowered(context: Any, builder: Any, kind: Any, block: Any, name: str) -> Any:
    member, first = kind.members[name], kind.index(name)
    words = [_load_constant(builder, block, first + index) for index in range(_n_words(member))]
    if isinstance(member, _TableType):
        return builder.inttoptr(words[0], _WORD.as_pointer())
    if isinstance(member, types.UniTuple):
        return context.make_tuple(builder, member, words)
    itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(member.dtype)))
    strides = [itemsize]
    for length in reversed(words[2:]):
        strides.insert(0, builder.mul(strides[0], length))
    array = arrayobj.make_array(member)(context, builder)
    data = builder.inttoptr(words[0], array.data.type)
    arrayobj.populate_array(array, data=data, shape=words[1:], strides=strides, itemsize=itemsize, meminfo=None)
    return array._getvalue()


def _load_constant(builder: Any, block: Any, index: int) -> Any:
    """Read a word as a constant for the compiler."""
    word = builder.load(builder.gep(block, [ir.IntType(32)(index)]))
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word

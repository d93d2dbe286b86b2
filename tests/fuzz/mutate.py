"""Mutations of valid inputs: bytes, lines, words, numbers, nesting, length."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

MOST_BYTES = 1_000_000
"""Nothing grows beyond it: what a site's file does by its size alone is measured elsewhere."""
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_WORD = re.compile(rb"[A-Za-z0-9_.:+-]+")
NUMBERS = (
    *(b"0", b"-1", b"-0", b"1e308", b"1e999", b"-1e999", b"nan", b"inf", b"0x10", b"1_000", b"00012", b"4294967294"),
    *(str(sign * (2**power + more)).encode() for power in (31, 32, 53, 63, 64) for more in (-1, 0) for sign in (1, -1)),
    b"9" * 400,
)
PIECES = (
    *(
        b"\0",
        b"\n",
        b"\r",
        b"\r\n",
        b"\t",
        b"|",
        b",",
        b";",
        b'"',
        b"'",
        b"\\",
        b"=",
        b"%",
        b"*",
        b"(",
        b"[",
        b"{",
        b"}",
    ),
    *(
        b"\xff",
        b"\xc3\x28",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        "\u2028".encode(),
        "\u0661".encode(),
        b"\x1b[31m",
        b"\x85",
    ),
    *(b"\x1f\x8b\x08", b"null", b"true", b"NaN", b"Infinity", b"None", b"Unknown", b"INVALID", b"n[1-999999999]"),
    *(b"n[1-3,5-4]", b"1970-01-01T00:00:00", b"9999-12-31T23:59:59", b"0000-00-00", b"99999-23:59:59", b"../../x"),
)

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def mutated(chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return one of ``seeds`` after one to six mutations."""
    data = chance.choice(seeds)
    for _ in range(min(1 + int(chance.expovariate(0.7)), 6)):
        data = chance.choice(MUTATIONS)(chance, data, seeds)[:MOST_BYTES]
    return data


def _span(chance: random.Random, data: bytes, most: int = 64) -> tuple[int, int]:
    first = chance.randrange(len(data) + 1)
    return first, min(first + chance.randint(1, most), len(data))


def _flip(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _place in range(chance.randint(1, 8) if data else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _drop(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    first, last = _span(chance, data)
    return data[:first] + data[last:]


def _repeat(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    first, last = _span(chance, data)
    return data[:last] + data[first:last] * chance.choice((1, 2, 50)) + data[last:]


def _splice(chance: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = chance.choice(seeds)
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _insert(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    first, last = _span(chance, data, 4)
    return data[:first] + chance.choice(PIECES) + data[chance.choice((first, last)) :]


def _replaced(chance: random.Random, data: bytes, kind: re.Pattern[bytes], new: bytes) -> bytes:
    begin = chance.randrange(len(data) + 1)
    found = kind.search(data, begin) or kind.search(data)
    return data if found is None else data[: found.start()] + new + data[found.end() :]


def _number(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return _replaced(chance, data, _NUMBER, chance.choice(NUMBERS))


def _word(chance: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    words = _WORD.findall(chance.choice(seeds)[:20_000]) or [b"x"]
    return _replaced(chance, data, _WORD, chance.choice((chance.choice(words), chance.choice(PIECES), b"")))


def _line(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(3):
        case 0:
            lines[one], lines[other] = lines[other], lines[one]
        case 1:
            lines.insert(other, lines[one])
        case _:
            del lines[one]
    return b"\n".join(lines)


def _nest(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    first, last = _span(chance, data)
    opens, closes = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b'"', b'"')))
    deep = chance.choice((3, 300, 100_000))
    return data[:first] + opens * deep + data[first:last] + closes * chance.choice((deep, 0)) + data[last:]


def _lengthen(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    first, _last = _span(chance, data)
    return (
        data[:first]
        + chance.choice((b"9", b"a", b" ", b",", b"|", b"\n", b"\\")) * chance.choice((300, 100_000))
        + data[first:]
    )


MUTATIONS: tuple[Mutation, ...] = (
    *(_flip, _cut, _drop, _repeat, _splice, _insert, _insert, _number, _number, _word, _word, _line, _line),
    *(_nest, _lengthen),
)

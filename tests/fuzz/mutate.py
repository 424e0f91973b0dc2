"""Changes to bytes, to JSON values and to command lines; the same for the same generator of random numbers."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

_WORDS = [
    b"\0", b"\n", b"\r\n", b"\x1b[31m", b"\xff\xfe", b"{", b"}", b"[", b"]", b'"', b"\\u0000", b"\\", b"null",
    b"true", b"-1", b"0", b"1e999", b"NaN", b"-0.0", b"18446744073709551616", b"9" * 400, b"[" * 3000,
    b'{"a":' * 1500, b"..", b"%s%n", b"${HOME}", b"\xe2\x80\xae", b"\xf0\x9f\x92\xa5", b"A" * 5000, b" " * 3000,
]  # fmt: skip
ODD: list[Any] = [
    None, True, 0, -1, 1, 2**31, 2**63 - 1, -(2**63), 2**64, 1e308, -0.0, 5e-324, "", "\0", "\x1b]0;x\x07", "a\nb",
    "..", "x" * 3000, "\u202e\ud7ff", [], {}, [[]], [0] * 300, {"": 0},
]  # fmt: skip


def changed(data: bytes, chance: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """One to eight changes."""
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        data = chance.choice(_CHANGES)(data, chance, others)
    return data


def _flipped(data: bytes, chance: random.Random, _others: Sequence[bytes]) -> bytes:
    new = bytearray(data)
    for _n in range(min(len(new), chance.choice((1, 2, 16)))):
        new[chance.randrange(len(new))] = chance.randrange(256)
    return bytes(new)


def _cut(data: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    begin, end = _span(data, chance)
    return data[:begin] + data[end:]


def _ended(data: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _repeated(data: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    begin, end = _span(data, chance)
    return data[:end] + data[begin:end] * chance.choice((1, 2, 50)) + data[end:]


def _inserted(data: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(_WORDS) + data[at:]


def _exchanged(data: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    begin, end = _span(data, chance)
    return data[:begin] + chance.choice(_WORDS) + data[end:]


def _joined(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    other = chance.choice(others) if others else data
    begin, end = _span(other, chance)
    at = chance.randrange(len(data) + 1)
    return data[:at] + other[begin:end] + data[at:]


def _lines(data: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    lines = data.splitlines(keepends=True)[:5000]
    chance.shuffle(lines)
    return b"".join(lines)


_CHANGES: list[Callable[[bytes, random.Random, Sequence[bytes]], bytes]] = [
    _flipped, _cut, _ended, _repeated, _inserted, _exchanged, _joined, _lines,
]  # fmt: skip


def _span(data: bytes, chance: random.Random) -> tuple[int, int]:
    begin = chance.randrange(len(data) + 1)
    return begin, min(len(data), begin + chance.choice((1, 4, 40, 400)))


def value(document: Any, chance: random.Random, count: int) -> Any:
    """A JSON value with so many changes below it; the value itself is changed."""
    places: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        part = pending.pop()
        keys = [*part] if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else []
        places += [(part, key) for key in keys]
        pending += [part[key] for key in keys]
    for holder, key in chance.sample(places, min(count, len(places))):
        _change(holder, key, places, chance)
    return document


def _change(holder: Any, key: Any, places: list[tuple[Any, Any]], chance: random.Random) -> None:
    """Mostly to something of the same type, which a reader takes."""
    there = _at(holder, key)
    kind = chance.randrange(10)
    if kind == 0:
        new: Any = chance.choice(ODD)
    elif kind == 1:
        new = copy.deepcopy(_at(*chance.choice(places)))
    elif isinstance(there, bool) or there is None:
        new = not there
    elif isinstance(there, int):
        new = chance.choice((0, 1, there + 1, there * 1000, 2**31, 2**53))
    elif isinstance(there, float):
        new = chance.choice((0.0, 1e-9, there * 1000, 1e300))
    elif isinstance(there, str):
        new = chance.choice(
            (there + "x", there[: len(there) // 2], there.upper(), "", "\x1b[2J\n" + there, "9" * 50)
        )
    elif isinstance(there, list):
        new = chance.choice(([], there * 2, there[::-1], there[:1]))
    elif isinstance(there, dict):
        new = {name: entry for name, entry in there.items() if chance.random() < 0.8}
    else:
        new = [*there]
    if isinstance(holder, dict) or key < len(holder):
        holder[key] = new


def _at(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict):
        return holder.get(key)
    return holder[key] if key < len(holder) else None

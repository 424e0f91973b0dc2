"""Folding: what is the same is said once, and names of nodes become gpu-a[17-18]."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)([0-9]{1,15})([^0-9]*)", re.DOTALL)
_MOST_CHARACTERS = 400  # of folded names: five lines of a terminal
_FEW = 12  # names, where all of them do not fit


def fold_names(names: Iterable[str]) -> str:
    """`a1, a2, a3, b` -> `a[1-3], b`, as Slurm writes host lists; order of first appearance."""
    parsed = [(name, _NUMBERED.fullmatch(name)) for name in dict.fromkeys(names)]
    padded = {(m[1], m[3], len(m[2])) for _, m in parsed if m and len(m[2]) > 1 and m[2].startswith("0")}
    groups: dict[tuple[str, str, int], list[int]] = {}
    for name, match in parsed:
        if match is None:
            groups.setdefault((name, "", -1), [])
            continue
        key = (match[1], match[3], len(match[2]))
        groups.setdefault(key if key in padded else (*key[:2], 0), []).append(int(match[2]))
    return ", ".join(_folded(*key, sorted(numbers)) for key, numbers in groups.items())


def fold_some(names: Iterable[str]) -> str:
    """The same, but of many gaps the first ones alone: every second of 10,000 nodes would fill 400 lines."""
    distinct = [*dict.fromkeys(names)]
    folded = fold_names(distinct)
    shown = _FEW
    if len(folded) <= _MOST_CHARACTERS or len(distinct) <= shown:
        return folded
    return f"{fold_names(distinct[:shown])} and {len(distinct) - shown:,} more"


def first_of(names: Iterable[str], shown: int) -> str:
    """The first so many in their order, and how many more there are."""
    listed = [*names]
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + more


def _folded(head: str, end: str, width: int, numbers: list[int]) -> str:
    if width < 0:
        return head
    if len(numbers) == 1:
        return f"{head}{numbers[0]:0{width}d}{end}"
    return f"{head}[{','.join(_ranges(numbers, width))}]{end}"


def _ranges(numbers: list[int], width: int) -> Iterable[str]:
    start = previous = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == previous + 1:
            previous = number
            continue
        yield f"{start:0{width}d}" if start == previous else f"{start:0{width}d}-{previous:0{width}d}"
        if number is not None:
            start = previous = number


def fold_numbers(numbers: Iterable[int], most: int = 12) -> str:
    """`0-3,7`; of very many ranges the first ones."""
    ordered = sorted({*numbers})
    parts = [*_ranges(ordered, 1)] if ordered else []
    return ",".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")


def fold_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-3,7`."""
    distinct = {*ranks}
    return f"rank{'s' * (len(distinct) != 1)} {fold_numbers(distinct)}"


def many(number: int, noun: str) -> str:
    """`1 process group`, `3 process groups`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def size(number: float) -> str:
    """Bytes as people write them: 64 MiB, 1 KiB, 512 B."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1023.5:
            return f"{_digits(number)} {unit}"
        number /= 1024
    return f"{_digits(number)} TiB"


def _digits(number: float) -> str:
    """Three digits, more only where they stand before the point."""
    return f"{number:.0f}" if abs(number) >= 999.5 else f"{number:.3g}"


def duration(us: float) -> str:
    """Microseconds as people write them."""
    for unit in ("us", "ms"):
        if us < 999.95:
            return f"{us:.1f} {unit}" if unit == "us" or us >= 99.995 else f"{us:.2f} {unit}"
        us /= 1000
    return f"{us:.2f} s"


def flops(gflop_s: float) -> tuple[float, str]:
    """What to divide by, and the unit: a GPU reaches hundreds of TFLOP/s, a CPU tens of GFLOP/s."""
    return (1000.0, "TFLOP/s") if gflop_s >= 1000 else (1.0, "GFLOP/s")

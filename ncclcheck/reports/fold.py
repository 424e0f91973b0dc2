"""Folding: what is the same is said once, and names of nodes become gpu-a[17-18]."""

from __future__ import annotations

import re
from collections.abc import Iterable


def fold_names(names: Iterable[str]) -> str:
    """`a1, a2, a3, b` -> `a[1-3], b`, as Slurm writes host lists; order of first appearance."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        match = re.fullmatch(r"(.*?)(\d+)(\D*)", name)
        if match:
            head, digits, end = match.groups()
            width = len(digits) if digits.startswith("0") else 0
            groups.setdefault((head, end, width), []).append(int(digits))
        else:
            groups.setdefault((name, "", -1), [])
    return ", ".join(_folded(*key, sorted(numbers)) for key, numbers in groups.items())


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


def size(number: float) -> str:
    """Bytes as people write them: 64 MiB, 1 KiB, 512 B."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} TiB"


def duration(us: float) -> str:
    """Microseconds as people write them."""
    if us < 1000:
        return f"{us:.1f} us"
    return f"{us / 1000:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"

"""One matrix product again and again, whose result is known exactly: a GPU that computes wrong gives no error.

All elements are whole numbers from -3 to 3, so that every sum is exact in any order (the largest element of the
product is 1146, and half precision holds whole numbers up to 2048): every GPU, library and order of summation
gives the same bits. What each column of the product must sum up to is worked out apart, in double precision.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_SIDE = {"cuda": 4096, "cpu": 256}  # 512 tiles of 128 x 256: every multiprocessor of an H100 computes some
_TYPE = {"cuda": torch.float16, "cpu": torch.float32}
_MOST = 1000  # products: chosen, so that a fast GPU ends before its time box


@dataclass(frozen=True)
class Products:
    """How many were computed, how many were wrong, and a hash of the sums of a right one, else of the last.

    count 0: none could be computed.
    """

    count: int = 0
    wrong: int = 0
    sum: str | None = None


def check(device: torch.device, seconds: float, tick: Callable[[], None]) -> Products:
    """Multiply and compare for so many seconds, once at least; how many products were wrong."""
    left, other = (_matrix(device, seed) for seed in (1, 2))
    product = torch.empty_like(left)
    try:
        torch.mm(left, other, out=product)
    except RuntimeError:  # what measures the speed of this very operation says why
        return Products()
    expected = left.sum(0, dtype=torch.float64) @ other.double()
    right: Tensor | None = None
    count, wrong, end = 0, 0, time.monotonic() + seconds
    while True:
        sums = _sums(product)
        if torch.equal(sums, expected) and (right is None or torch.equal(product, right)):
            right = product.clone() if right is None else right
        else:
            wrong += 1
        count += 1
        if count >= _MOST or time.monotonic() >= end:
            return Products(count, wrong, _hash(sums if right is None else _sums(right)))
        tick()
        torch.mm(left, other, out=product)


def _matrix(device: torch.device, seed: int) -> Tensor:
    """Each row is the one above moved by one element, so that a short list of numbers makes all of it."""
    side = _SIDE[device.type]
    row = torch.tensor([_number(seed * 2**20 + place) for place in range(2 * side - 1)], dtype=_TYPE[device.type])
    return row.to(device).unfold(0, side, 1).contiguous()


def _number(place: int) -> int:
    """From -3 to 3, as if by chance; no generator of torch, which may differ from version to version."""
    mixed = place * 2654435761 & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 15) * 2246822519 & 0xFFFFFFFF
    return (mixed ^ mixed >> 13) % 7 - 3


def _sums(product: Tensor) -> Tensor:
    return product.sum(0, dtype=torch.float64)


def _hash(sums: Tensor) -> str:
    return f"0x{hashlib.sha256(repr(sums.tolist()).encode()).hexdigest()[:16]}"

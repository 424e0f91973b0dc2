"""Test data of which every bit of the result is known, and the comparison with what came out.

Data are periodic: a pattern of a prime number of elements, so that no chunk of a power-of-two size lies a whole
number of periods from another. Filling and checking are then copies and comparisons of blocks, at the speed
of memory, in bounded memory, on any device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ncclcheck.probes.context import ReduceOp
from ncclcheck.probes.contributions import SYMBOLS, Reduction, hashed

PERIOD = 262_139
_STRIDE = 162_011  # between the starts of two ranks: far apart, and a multiple of no power of two
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Mismatch:
    """How many elements differ, and the first of them."""

    wrong: int
    offset: int
    expected_bits: str
    got_bits: str


class Pattern:
    """A periodic sequence of elements. `tolerance` 0 compares the bits."""

    def __init__(self, values: Tensor, tolerance: float = 0.0) -> None:
        self._values = values
        self._tolerance = tolerance

    def fill(self, into: Tensor, start: int = 0) -> None:
        """Write the sequence from element `start` on."""
        for piece, values in self._blocks(into, start):
            piece.copy_(values)

    def mismatch(self, got: Tensor, starts: Sequence[int] = (0,)) -> Mismatch | None:
        """Compare a buffer of equal pieces, piece k being the sequence from element `starts[k]` on."""
        wrong, first = 0, None
        size = got.numel() // len(starts)
        for index, start in enumerate(starts):
            offset = index * size
            for piece, values in self._blocks(got[offset : offset + size], start):
                if found := self._differing(piece, values):
                    wrong += found[0]
                    first = first or (offset + found[1], _hex(values, found[1]), _hex(piece, found[1]))
                offset += piece.numel()
        return Mismatch(wrong, *first) if first else None

    def _blocks(self, buffer: Tensor, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        done, period = 0, self._values.numel()
        while done < buffer.numel():
            place = (start + done) % period
            length = min(period - place, buffer.numel() - done)
            yield buffer[done : done + length], self._values[place : place + length]
            done += length

    def _differing(self, piece: Tensor, values: Tensor) -> tuple[int, int] | None:
        """How many elements differ and the first of them."""
        if torch.equal(bits(piece), bits(values)):
            return None
        if self._tolerance:
            differs = ~((piece.double() - values.double()).abs() <= self._tolerance)
        else:
            differs = bits(piece) != bits(values)
        wrong = int(differs.sum())
        return (wrong, int(differs.nonzero()[0])) if wrong else None


class Data:
    """The data of one rank: what it sends, what it contributes to a reduction, what must come out."""

    def __init__(
        self,
        dtype: torch.dtype,
        reduce_op: ReduceOp,
        rank: int,
        world: int,
        device: torch.device,
        period: int = PERIOD,
    ) -> None:
        self._dtype, self._rank, self._device, self._period = dtype, rank, device, period
        self._reduction = Reduction(reduce_op, dtype, world, min(SYMBOLS, period))

    @cached_property
    def moved(self) -> Pattern:
        """What operations send that only move data; rank r's own sequence begins at `start(r)`."""
        words = hashed(torch.arange(self._period), 0, 8)
        size = torch.empty((), dtype=self._dtype).element_size()
        narrow = words.to(_BITS[size])
        if self._dtype.is_floating_point:
            narrow = _without_nan(narrow, self._dtype)
        return Pattern(narrow.view(self._dtype).to(self._device))

    def start(self, rank: int) -> int:
        """Where a rank's own sequence begins in `moved`."""
        return rank * _STRIDE % self._period

    @cached_property
    def mine(self) -> Pattern:
        """What this rank contributes to the reduction."""
        return Pattern(self._reduction.inputs(self._symbols, self._rank).to(self._device))

    @cached_property
    def reduced(self) -> Pattern:
        """The result of the reduction over all ranks."""
        results = self._reduction.results(self._symbols).to(self._device)
        return Pattern(results, self._reduction.tolerance())

    def prepare_moved(self) -> None:
        """Compute now what would else be computed at the first use."""
        _ = self.moved

    def prepare_reduction(self) -> None:
        """Compute now what would else be computed at the first use."""
        _ = self.mine, self.reduced

    @cached_property
    def _symbols(self) -> Tensor:
        return self._reduction.symbols(torch.arange(self._period))


def spoil(buffer: Tensor) -> None:
    """Overwrite a result buffer, so that a result left over from before cannot pass for a new one."""
    bits(buffer).view(torch.uint8).fill_(0xA5)


def bits(values: Tensor) -> Tensor:
    """The same memory as whole numbers."""
    return values.view(_BITS[values.element_size()])


def _without_nan(words: Tensor, dtype: torch.dtype) -> Tensor:
    """No infinity and no NaN, which TORCH_NCCL_NAN_CHECK would take for the user's mistake."""
    exponent = torch.tensor(float("inf"), dtype=dtype).view(words.dtype)
    lowest_bit = torch.tensor(torch.finfo(dtype).tiny, dtype=dtype).view(words.dtype)
    return torch.where(words & exponent == exponent, words ^ lowest_bit, words)


def _hex(values: Tensor, index: int) -> str:
    size = values.element_size()
    return f"0x{int(bits(values)[index]) & (1 << 8 * size) - 1:0{2 * size}x}"

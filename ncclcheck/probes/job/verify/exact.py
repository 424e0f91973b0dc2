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

from ncclcheck.probes.job.context import ReduceOp
from ncclcheck.probes.job.verify.contributions import SYMBOLS, How, Reduction, hashed

# elements of the pattern: a prime just below 2**18, so that no chunk of a power-of-two size is a whole number of
# periods
PERIOD = 262_139
_STRIDE = 162_011  # between the starts of two ranks: far apart, and a multiple of no power of two
_TURN = 90_001  # elements by which the data of a round lie further than those of the round before
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_WRONG = 4096  # wrong elements that are kept to explain them: chosen, enough for all ranks to be told apart


@dataclass(frozen=True)
class WrongSample:
    """Some wrong elements: their places in the sequence, what was expected there and what there was."""

    places: Tensor
    expected: Tensor
    got: Tensor


@dataclass(frozen=True)
class Mismatch:
    """How many elements differ, the first and the last of them, and how.

    flipped: the bits in which any of them differs; pieces: the numbers of the pieces that they lie in, of `piece`
    elements each.
    """

    wrong: int
    offset: int
    expected_bits: str
    got_bits: str
    last: int = 0
    flipped: int = 0
    pieces: tuple[int, ...] = (0,)
    piece: int = 0
    sample: WrongSample | None = None


class ElementPattern:
    """A periodic sequence of elements. `tolerance` 0 compares the bits; `turn` shifts the whole sequence."""

    def __init__(self, values: Tensor, tolerance: float = 0.0) -> None:
        self._values = values
        self._tolerance = tolerance
        self.turn = 0

    def fill(self, into: Tensor, start: int = 0) -> None:
        """Write the sequence from element `start` on."""
        for piece, place in self._blocks(into, start):
            piece.copy_(self._at(place, piece))

    def mismatch(self, got: Tensor, starts: Sequence[int] = (0,)) -> Mismatch | None:
        """Compare a buffer of equal pieces, piece k being the sequence from element `starts[k]` on."""
        tally = _WrongElements(got.numel() // len(starts))
        for index, start in enumerate(starts):
            offset = index * tally.piece
            for piece, place in self._blocks(got[offset : offset + tally.piece], start):
                values = self._at(place, piece)
                if (wrong := self._differing(piece, values)) is not None:
                    tally.add(index, offset, place, wrong, values, piece)
                offset += piece.numel()
        return tally.mismatch()

    def _blocks(self, buffer: Tensor, start: int) -> Iterator[tuple[Tensor, int]]:
        """Stretches of the buffer that lie within one period, and where in it they begin."""
        done, period = 0, self._values.numel()
        while done < buffer.numel():
            place = (start + self.turn + done) % period
            length = min(period - place, buffer.numel() - done)
            yield buffer[done : done + length], place
            done += length

    def _at(self, place: int, like: Tensor) -> Tensor:
        return self._values[place : place + like.numel()]

    def _differing(self, piece: Tensor, values: Tensor) -> Tensor | None:
        """Indices of the elements of `values` that differ; None where all are right."""
        if torch.equal(bits(piece), bits(values)):
            return None
        if self._tolerance:
            differs = ~((piece.double() - values.double()).abs() <= self._tolerance)
        else:
            differs = bits(piece) != bits(values)
        places = differs.nonzero().flatten()
        return places if places.numel() else None


class _WrongElements:
    """Wrong elements of a buffer, as they are found block by block."""

    def __init__(self, piece: int) -> None:
        self.piece = piece
        self._wrong = self._first = self._last = self._flipped = self._sampled = 0
        self._bits = ("", "")
        self._pieces: list[int] = []
        self._samples: list[WrongSample] = []

    def add(self, index: int, offset: int, place: int, wrong: Tensor, values: Tensor, got: Tensor) -> None:
        """Wrong elements `wrong` of a block of piece `index` at `offset`, `place` in the sequence."""
        if not self._wrong:
            self._first, first = offset + int(wrong[0]), int(wrong[0])
            self._bits = _hex(values, first), _hex(got, first)
        self._wrong += wrong.numel()
        self._last = offset + int(wrong[-1])
        self._flipped |= _any_bit(bits(values)[wrong] ^ bits(got)[wrong])
        if index not in self._pieces:
            self._pieces.append(index)
        some = wrong[: _MOST_WRONG - self._sampled]
        self._sampled += some.numel()
        self._samples.append(WrongSample((place + some).cpu(), values[some].cpu(), got[some].cpu()))

    def mismatch(self) -> Mismatch | None:
        """The mismatch over all blocks; None where nothing was wrong."""
        if not self._wrong:
            return None
        sample = WrongSample(
            torch.cat([sample.places for sample in self._samples]),
            torch.cat([sample.expected for sample in self._samples]),
            torch.cat([sample.got for sample in self._samples]),
        )
        pieces = tuple(self._pieces)
        return Mismatch(
            self._wrong, self._first, *self._bits, self._last, self._flipped, pieces, self.piece, sample
        )


def _any_bit(words: Tensor) -> int:
    """The bits that are set in any of them."""
    size = words.element_size()
    mask = sum(1 << bit for bit in range(8 * size) if bool((words >> bit & 1).any()))
    return mask & (1 << 8 * size) - 1


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
    def moved(self) -> ElementPattern:
        """What operations send that only move data; rank r's own sequence begins at `start(r)`."""
        words = hashed(torch.arange(self._period), 0, 8)
        size = torch.empty((), dtype=self._dtype).element_size()
        narrow = words.to(_BITS[size])
        if self._dtype.is_floating_point:
            narrow = _without_nan(narrow, self._dtype)
        return ElementPattern(narrow.view(self._dtype).to(self._device))

    def start(self, rank: int) -> int:
        """Where a rank's own sequence begins in `moved`."""
        return rank * _STRIDE % self._period

    @cached_property
    def mine(self) -> ElementPattern:
        """What this rank contributes to the reduction."""
        return ElementPattern(self._reduction.inputs(self._symbols, self._rank).to(self._device))

    @cached_property
    def reduced(self) -> ElementPattern:
        """The result of the reduction over all ranks."""
        results = self._reduction.results(self._symbols).to(self._device)
        return ElementPattern(results, self._reduction.tolerance())

    def turn(self, number: int) -> None:
        """Other data for round `number`: what is left of the round before is wrong in it."""
        for name in {"moved", "mine", "reduced"} & self.__dict__.keys():
            self.__dict__[name].turn = number * _TURN % self._period

    def contributor(self, sample: WrongSample) -> tuple[int, How] | None:
        """Whose contribution to the reduction explains all of these wrong results, if exactly one rank's does."""
        return self._reduction.contributor(self._symbols[sample.places], sample.expected, sample.got)

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

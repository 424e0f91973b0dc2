"""What each rank puts into a reduction, so that the result is known exactly for any order of reduction.

A contribution is a function of a symbol (a number that the place in the buffer is given) and of the rank.
Floating point stays exact because no set of contributions leaves the range in which the type holds every
whole number; whole numbers wrap modulo 2^bits, which is exact in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from ncclcheck.probes.job.context import ReduceOp

PREMUL_FACTOR = 2  # any number but 1 shows that NCCL multiplies; 2 is exact in every floating-point type
# the largest prime below 2048: distinct contributions that are worked out once; prime, so that no chunk repeats
# them
SYMBOLS = 2039
How = Literal["missing", "doubled", "changed"]

_AT_ONCE = 32  # ranks worked out together: chosen, a tensor of 32 x 2039 numbers of 8 bytes has 0.5 MB
_ENOUGH = 32  # wrong results with different symbols: fewer could be explained by a rank by chance
_MASK31 = 2**31 - 1  # keeps a hash within 31 bits, so that its products fit int64 on every device
_MASK62 = 2**62 - 1  # keeps a hash non-negative, for a remainder of it

# The largest whole number up to which the type holds all of them.
_WHOLE = {
    torch.float64: 2**53,
    torch.float32: 2**24,
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
    torch.int8: 127,
    torch.uint8: 255,
    torch.int32: 2**31 - 1,
    torch.int64: 2**53,
}
# The largest power of two is 2 to this.
_EXPONENT = {torch.float64: 1023, torch.float32: 127, torch.float16: 15, torch.bfloat16: 127}
_BITWISE = ("band", "bor", "bxor")
_FOLDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def undefined(op: ReduceOp, dtype: torch.dtype) -> str:
    """Why there is no such reduction of such numbers; empty where there is one."""
    if op in _BITWISE and dtype.is_floating_point:
        return f"{op} works on the bits of whole numbers, and {str(dtype)[6:]} has none"
    if op == "premul_sum" and not dtype.is_floating_point:
        return f"premul_sum multiplies by a floating-point factor, and {str(dtype)[6:]} holds whole numbers"
    return ""


def hashed(values: Tensor, rank: Tensor | int = 0, salt: int = 0) -> Tensor:
    """64 well-mixed bits of each value, the same on every machine and with every torch.

    The steps stay below 2^62, so that nothing depends on what an overflow does.
    """
    high, low = _mix(values, rank, 2 * salt), _mix(values, rank, 2 * salt + 1)
    return (high << 33) ^ (low << 2) ^ (high >> 29)


def _mix(values: Tensor, rank: Tensor | int, salt: int) -> Tensor:
    x = (values & _MASK31) * 0x1E3779B1 + (rank * 0x05EBCA6B + (salt + 1) * 0x27D4EB2F)
    x &= _MASK31
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        x ^= x >> shift
        x *= factor
        x &= _MASK31
    x ^= x >> 15
    return x


def _below(limit: int, values: Tensor, rank: Tensor | int, salt: int) -> Tensor:
    """Pseudo-random numbers from 0 to limit - 1."""
    return (hashed(values, rank, salt) & _MASK62) % limit


class Reduction:
    """One reduction over a world: `inputs` is what a rank contributes, `results` what must come out."""

    def __init__(self, op: ReduceOp, dtype: torch.dtype, world: int, symbols: int = SYMBOLS) -> None:
        self.op, self.dtype, self.world = op, dtype, world
        self._every = torch.arange(symbols)
        self._turn = _below(2**31, self._every, 0, 5)
        self._floating = dtype.is_floating_point
        self._bits = 8 * torch.empty((), dtype=dtype).element_size()

    def symbols(self, places: Tensor) -> Tensor:
        """The symbol of each place of a buffer; few where the results have to be added up over all ranks.

        Elsewhere the symbol modulo the world size is the rank that decides: each in its turn, so that every
        rank matters as soon as there are as many elements as ranks.
        """
        if self._folded():
            return _below(len(self._every), places, 0, 1)
        words = _below(2**31, places, 0, 1)
        return words - words % self.world + places % self.world

    def inputs(self, symbols: Tensor, rank: Tensor | int) -> Tensor:
        """What a rank contributes at places with these symbols; a column of ranks gives a row each."""
        if not self._folded():
            return self._single(symbols, rank).to(self.dtype)
        return self._row(rank).to(self.dtype)[..., symbols]

    def results(self, symbols: Tensor) -> Tensor:
        """What the reduction over all ranks gives at places with these symbols."""
        if not self._folded():
            return self._single_result(symbols).to(self.dtype)
        return self._scaled(self._total()).to(self.dtype)[symbols]

    def tolerance(self) -> float:
        """How far an average may be off where 1/world is not exact: libraries divide at different moments."""
        exact = self.world & (self.world - 1) == 0
        if self.op != "avg" or not self._floating or exact:
            return 0.0
        # Twice the bound: half a unit for each of world additions of at most whole/world, one for each factor.
        return 2 * torch.finfo(self.dtype).eps * _WHOLE[self.dtype] * (0.5 + 2 / self.world)

    def contributor(self, symbols: Tensor, expected: Tensor, got: Tensor) -> tuple[int, How] | None:
        """Whose contribution explains all of these wrong results, if exactly one rank's does, and how."""
        if len(set(symbols.tolist())) < _ENOUGH or (self.op == "avg" and not self._floating):
            return None
        ways: dict[int, How] = {}
        for ranks in torch.split(torch.arange(self.world), _AT_ONCE):
            for how, explains in self._explained(self.inputs(symbols, ranks[:, None]), expected, got):
                for rank in ranks[explains.all(dim=1)].tolist():
                    ways.setdefault(rank, how)
        return next(iter(ways.items())) if len(ways) == 1 else None

    def _explained(self, inputs: Tensor, expected: Tensor, got: Tensor) -> Iterator[tuple[How, Tensor]]:
        """For each rank and place, whether its contribution was left out, counted twice, or differs in one bit."""
        fold, parts = _FOLDS.get(self.op, torch.add), self._scaled(self._wide(inputs))
        yield "missing", self._same(fold(self._wide(got), parts), expected)
        yield "doubled", self._same(fold(self._wide(expected), parts), got)
        if self.op == "sum":
            instead = (self._wide(inputs) + self._wide(got) - self._wide(expected)).to(self.dtype)
            flipped = _as_bits(instead) ^ _as_bits(inputs)
            yield "changed", (flipped != 0) & (flipped & (flipped - 1) == 0)

    def _same(self, result: Tensor, wanted: Tensor) -> Tensor:
        if limit := self.tolerance():
            return (result - wanted.double()).abs() <= limit
        return result.to(self.dtype) == wanted

    def _wide(self, values: Tensor) -> Tensor:
        return values.double() if self._floating else values.long()

    def _folded(self) -> bool:
        return self.op not in ("min", "max", "band", "bor")

    def _total(self) -> Tensor:
        fold = _FOLDS.get(self.op, torch.add)
        total = self._row(0)
        for ranks in torch.split(torch.arange(1, self.world), _AT_ONCE):
            total = reduce(fold, self._row(ranks[:, None]), total)
        return total

    def _scaled(self, total: Tensor) -> Tensor:
        if self.op == "premul_sum":
            return total * PREMUL_FACTOR
        if self.op == "avg":
            return total / self.world if self._floating else total // self.world
        return total

    def _row(self, rank: Tensor | int) -> Tensor:
        """A rank's part for each symbol: float64 for floating point (exact there), int64 for whole numbers."""
        draw = hashed(self._every, rank, 2)
        if not self._floating:
            return self._whole(draw, rank)
        if self.op == "product":
            size = _power_of_two(self._dose(draw, rank, _EXPONENT[self.dtype], least=0))
        else:
            limit = _WHOLE[self.dtype] // (PREMUL_FACTOR if self.op == "premul_sum" else 1)
            size = self._dose(draw, rank, limit, least=1).double()
        # No -0.0: its sum with itself would have another sign than its sum with 0.0.
        return torch.where((draw & 1 == 1) & (size != 0), -size, size)

    def _whole(self, draw: Tensor, rank: Tensor | int) -> Tensor:
        if self.op == "avg":
            return self._dose(draw, rank, _WHOLE[self.dtype], least=1)
        return draw | 1 if self.op == "product" else draw

    def _dose(self, draw: Tensor, rank: Tensor | int, limit: int, least: int) -> Tensor:
        """Sizes that add up to at most `limit` over all ranks; in a large world some ranks hold 0 somewhere."""
        active = min(self.world, max(1, limit // 2))
        size = least + (draw >> 1 & _MASK62) % (limit // active + 1 - least)
        return torch.where((self._turn + rank) % self.world < active, size, 0)

    def _single(self, symbols: Tensor, rank: Tensor | int) -> Tensor:
        """min and max: one rank decides each place. band and bor: one rank decides each bit of each place."""
        if self.op in ("min", "max"):
            return self._contest(symbols, rank)
        owned = hashed(symbols, 0, 6) & self._own_bits(symbols, rank)
        return owned if self.op == "bor" else ~owned

    def _single_result(self, symbols: Tensor) -> Tensor:
        if self.op in ("min", "max"):
            return self._contest(symbols, symbols % self.world)
        bits = hashed(symbols, 0, 6)
        return bits if self.op == "bor" else ~bits

    def _contest(self, symbols: Tensor, rank: Tensor | int) -> Tensor:
        wins = symbols % self.world == rank
        if self.dtype == torch.uint8:
            value = _below(128, symbols, rank, 7) + 128 * wins
            return value if self.op == "max" else 255 - value
        size = 1 + _below(_WHOLE[self.dtype], symbols, rank, 7)
        return torch.where(wins if self.op == "max" else ~wins, size, -size)

    def _own_bits(self, symbols: Tensor, rank: Tensor | int) -> Tensor:
        """The bits of each place that belong to a rank: bit b to the rank (symbol + b) modulo the world size."""
        every = sum(1 << bit for bit in range(0, self._bits, self.world))
        signed = every - 2**64 if every >= 2**63 else every
        first = (rank - symbols) % self.world
        return torch.where(first < self._bits, torch.tensor(signed) << first.clamp(max=63), 0)


def _as_bits(values: Tensor) -> Tensor:
    """The bits as int64, with nothing but zeros above those of the type."""
    size = values.element_size()
    words = values.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).long()
    return words if size == 8 else words & (1 << 8 * size) - 1


def _power_of_two(exponents: Tensor) -> Tensor:
    """2.0 ** exponents, made from the bits of a float64, since pow is not exact everywhere."""
    return ((exponents + 1023) << 52).view(torch.float64)

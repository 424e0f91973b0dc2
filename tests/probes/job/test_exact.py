"""The test data: the result is the predicted one in any order, and every planted defect shows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import get_args

import pytest
import torch
from torch import Tensor

from ncclcheck.probes.job.context import Dtype, ReduceOp
from ncclcheck.probes.job.verify.contributions import PREMUL_FACTOR, Reduction, undefined
from ncclcheck.probes.job.verify.exact import PERIOD, Data, ElementPattern, bits, spoil

CPU = torch.device("cpu")
SHORT = 331
COUNT = 1100
DTYPES = [getattr(torch, name) for name in get_args(Dtype)]
WORLDS = [1, 2, 3, 5, 8, 64, 300, 1024]
FOLDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "premul_sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
COUNTS_TWICE = ["sum", "product", "bxor", "premul_sum"]
DEFINED = [(dtype, op) for dtype in DTYPES for op in FOLDS if not undefined(op, dtype)]  # type: ignore[arg-type]
each_reduction = pytest.mark.parametrize(
    ("dtype", "op"), DEFINED, ids=lambda value: str(value).removeprefix("torch.")
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small only wait for threads that other processes keep from running."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def data(dtype: torch.dtype, op: ReduceOp, rank: int, world: int) -> Data:
    return Data(dtype, op, rank, world, CPU, period=SHORT)


@functools.lru_cache(maxsize=8)
def contributions(dtype: torch.dtype, op: ReduceOp, world: int) -> list[Tensor]:
    reduction = Reduction(op, dtype, world, SHORT)
    symbols = reduction.symbols(torch.arange(COUNT) % SHORT)
    parts = reduction.inputs(symbols, torch.arange(world)[:, None])
    return list(parts * PREMUL_FACTOR if op == "premul_sum" else parts)


def in_a_row(parts: list[Tensor], op: str) -> Tensor:
    return functools.reduce(FOLDS[op], parts)


def as_a_tree(parts: list[Tensor], op: str) -> Tensor:
    while len(parts) > 1:
        pairs = [FOLDS[op](a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def shuffled(parts: list[Tensor]) -> list[Tensor]:
    return [parts[index * 7919 % len(parts)] for index in range(len(parts))] if len(parts) > 1 else parts


@each_reduction
@pytest.mark.parametrize("world", WORLDS)
def test_any_order_gives_the_predicted_bits(dtype: torch.dtype, op: ReduceOp, world: int) -> None:
    parts = contributions(dtype, op, world)
    reduced = data(dtype, op, 0, world).reduced
    for result in (in_a_row(parts, op), in_a_row(parts[::-1], op), as_a_tree(shuffled(parts), op)):
        assert reduced.mismatch(result) is None


@each_reduction
@pytest.mark.parametrize("world", [2, 3, 8, 64, 300])
def test_a_rank_left_out_or_counted_twice_shows(dtype: torch.dtype, op: ReduceOp, world: int) -> None:
    parts = contributions(dtype, op, world)
    reduced = data(dtype, op, 0, world).reduced
    for rank in {0, 1, world // 2, world - 1}:
        others = parts[:rank] + parts[rank + 1 :]
        assert reduced.mismatch(in_a_row(others, op))
        replaced = [*others, parts[rank - 1]]
        assert reduced.mismatch(in_a_row(replaced, op))
        if op in COUNTS_TWICE:
            assert reduced.mismatch(in_a_row([*parts, parts[rank]], op))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("world", [2, 3, 8])
def test_an_average_within_rounding_is_right_and_a_missing_rank_is_not(dtype: torch.dtype, world: int) -> None:
    parts = contributions(dtype, "avg", world)
    reduced = data(dtype, "avg", 0, world).reduced
    whole = functools.reduce(torch.add, parts)
    if dtype.is_floating_point:
        early = functools.reduce(torch.add, [part * torch.tensor(1 / world, dtype=dtype) for part in parts])
        assert reduced.mismatch(early) is None
        assert reduced.mismatch((whole.double() / world).to(dtype)) is None
        assert reduced.mismatch(((whole - parts[-1]).double() / world).to(dtype))
    else:
        assert reduced.mismatch(whole // world) is None
        assert reduced.mismatch((whole - parts[-1]) // world)


@pytest.fixture(params=DTYPES, ids=str)
def moved(request: pytest.FixtureRequest) -> tuple[ElementPattern, Tensor]:
    pattern = data(request.param, "sum", 0, 2).moved
    buffer = torch.empty(COUNT, dtype=request.param)
    pattern.fill(buffer)
    return pattern, buffer


@each_reduction
def test_a_rank_fills_its_buffer_with_its_contribution(dtype: torch.dtype, op: ReduceOp) -> None:
    parts = contributions(dtype, op, 5)
    buffer = torch.empty(COUNT, dtype=dtype)
    data(dtype, op, 3, 5).mine.fill(buffer)
    assert torch.equal(buffer * PREMUL_FACTOR if op == "premul_sum" else buffer, parts[3])


def test_every_flipped_bit_shows_with_its_place_and_bits(moved: tuple[ElementPattern, Tensor]) -> None:
    pattern, buffer = moved
    words = bits(buffer)
    for bit in range(8 * buffer.element_size()):
        offset = (bit * 37 + 1) % COUNT
        before = int(words[offset])
        words[offset] ^= torch.tensor(1, dtype=words.dtype) << bit
        mismatch = pattern.mismatch(buffer)
        assert mismatch
        assert (mismatch.wrong, mismatch.offset) == (1, offset)
        assert int(mismatch.expected_bits, 16) ^ int(mismatch.got_bits, 16) == 1 << bit
        words[offset] = before
    assert pattern.mismatch(buffer) is None


def test_minus_zero_is_not_zero_and_a_nan_is_its_bits() -> None:
    pattern = ElementPattern(torch.tensor([0.0, float("nan")]))
    assert pattern.mismatch(torch.tensor([0.0, float("nan")])) is None
    mismatch = pattern.mismatch(torch.tensor([-0.0, float("nan")]))
    assert mismatch
    assert (mismatch.offset, mismatch.expected_bits, mismatch.got_bits) == (0, "0x00000000", "0x80000000")


@pytest.mark.parametrize("chunk", [1, 2, 64, 256])
def test_two_swapped_chunks_show(moved: tuple[ElementPattern, Tensor], chunk: int) -> None:
    pattern, buffer = moved
    swapped = buffer.clone()
    swapped[chunk : 2 * chunk] = buffer[3 * chunk : 4 * chunk]
    swapped[3 * chunk : 4 * chunk] = buffer[chunk : 2 * chunk]
    mismatch = pattern.mismatch(swapped)
    assert mismatch
    assert chunk <= mismatch.offset < 2 * chunk
    assert 2 <= mismatch.wrong <= 2 * chunk


@each_reduction
def test_swapped_chunks_of_a_reduction_show(dtype: torch.dtype, op: ReduceOp) -> None:
    reduced = data(dtype, op, 0, 8).reduced
    buffer = torch.empty(1024, dtype=dtype)
    reduced.fill(buffer)
    assert reduced.mismatch(buffer.view(4, 256)[[0, 2, 1, 3]].flatten())


def test_a_stale_buffer_shows(moved: tuple[ElementPattern, Tensor]) -> None:
    pattern, buffer = moved
    spoil(buffer)
    mismatch = pattern.mismatch(buffer)
    assert mismatch
    assert mismatch.wrong > COUNT * 0.97


def test_the_input_of_a_rank_cannot_pass_for_the_result() -> None:
    for dtype, op in DEFINED:
        own = data(dtype, op, 1, 2)  # type: ignore[arg-type]
        buffer = torch.empty(COUNT, dtype=dtype)
        own.mine.fill(buffer)
        assert own.reduced.mismatch(buffer), (dtype, op)


def test_pieces_of_different_senders_are_told_apart() -> None:
    own = data(torch.float32, "sum", 0, 3)
    starts = [own.start(rank) for rank in range(3)]
    buffer = torch.empty(300)
    for rank in range(3):
        own.moved.fill(buffer[100 * rank : 100 * rank + 100], starts[rank])
    assert own.moved.mismatch(buffer, starts) is None
    buffer[200:] = buffer[:100].clone()
    mismatch = own.moved.mismatch(buffer, starts)
    assert mismatch
    assert (mismatch.offset, mismatch.wrong) == (200, 100)


def test_no_chunk_of_a_power_of_two_lies_a_period_away() -> None:
    own = Data(torch.uint8, "sum", 0, 2, CPU)
    assert all(PERIOD % divisor for divisor in range(2, 1025))
    size = 3 * 2**20
    buffer = torch.empty(size, dtype=torch.uint8)
    own.moved.fill(buffer)
    assert own.moved.mismatch(buffer) is None
    assert own.moved.mismatch(torch.roll(buffer, 2**20))


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_floating_point], ids=str)
def test_floating_point_on_the_move_uses_every_bit_and_no_nan(dtype: torch.dtype) -> None:
    buffer = torch.empty(SHORT, dtype=dtype)
    data(dtype, "sum", 0, 2).moved.fill(buffer)
    assert bool(torch.isfinite(buffer).all())
    for bit in range(8 * buffer.element_size()):
        assert set((bits(buffer) >> bit & 1).tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("op", "dtype", "word"),
    [("band", torch.float32, "whole"), ("premul_sum", torch.int8, "floating-point"), ("sum", torch.int8, "")],
)
def test_reductions_that_do_not_exist_are_named(op: ReduceOp, dtype: torch.dtype, word: str) -> None:
    assert (word in undefined(op, dtype)) == bool(undefined(op, dtype) or not word)


def wrong_in(reduced: ElementPattern, result: Tensor, own: Data) -> tuple[int, str] | None:
    """Who is blamed for a result."""
    mismatch = reduced.mismatch(result)
    assert mismatch
    assert mismatch.sample
    return own.contributor(mismatch.sample)


@each_reduction
@pytest.mark.parametrize("world", [2, 8, 64])
def test_the_rank_that_is_left_out_is_named(dtype: torch.dtype, op: ReduceOp, world: int) -> None:
    parts, own, rank = contributions(dtype, op, world), data(dtype, op, 0, world), world // 2
    assert wrong_in(own.reduced, in_a_row(parts[:rank] + parts[rank + 1 :], op), own) in [(rank, "missing"), None]
    if world == 8 and op in ("sum", "max", "min", "bxor") and dtype != torch.uint8:
        assert wrong_in(own.reduced, in_a_row(parts[:rank] + parts[rank + 1 :], op), own)


@pytest.mark.parametrize("op", ["sum", "premul_sum", "product"])
def test_the_rank_that_is_counted_twice_is_named(op: ReduceOp) -> None:
    parts, own = contributions(torch.float32, op, 8), data(torch.float32, op, 0, 8)
    assert wrong_in(own.reduced, in_a_row([*parts, parts[5]], op), own) == (5, "doubled")


def test_few_or_unrelated_wrong_elements_are_blamed_on_nobody() -> None:
    parts, own = contributions(torch.float32, "sum", 8), data(torch.float32, "sum", 0, 8)
    result = in_a_row(parts, "sum")
    few = result.clone()
    few[:20] -= parts[3][:20]
    other = result.clone()
    other[100:300] = 3.0
    assert wrong_in(own.reduced, few, own) is None
    assert wrong_in(own.reduced, other, own) is None


def test_data_of_another_round_are_wrong() -> None:
    own = data(torch.float32, "sum", 0, 2)
    buffers = []
    for pattern in (own.moved, own.mine, own.reduced):
        buffers.append(torch.empty(COUNT))
        pattern.fill(buffers[-1])
    own.turn(1)
    for pattern, buffer in zip((own.moved, own.mine, own.reduced), buffers, strict=True):
        assert pattern.mismatch(buffer)
        pattern.fill(buffer)
        assert pattern.mismatch(buffer) is None

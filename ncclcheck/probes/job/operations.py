"""The table of operations: how each one's buffers are sized, filled, called and checked.

Sizes are nccl-tests' (doc/PERFORMANCE.md and the GetBw functions): for all_gather, reduce_scatter, all_to_all,
gather and scatter the bytes of a row are those of all ranks' pieces together. The root is rank 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from ncclcheck.probes.job.context import ReduceOp
from ncclcheck.probes.job.verify.contributions import PREMUL_FACTOR
from ncclcheck.probes.job.verify.exact import Data, Mismatch, spoil


def _nothing() -> None:
    """An operation without data has nothing to fill."""


def _unchecked() -> Mismatch | None:
    return None


@dataclass(frozen=True)
class PreparedOperation:
    """An operation with its buffers. reset fills the inputs and spoils the results; check reads the results.

    result: where they come out, if in a tensor.
    """

    call: Callable[[], object]
    reset: Callable[[], None] = _nothing
    check: Callable[[], Mismatch | None] = _unchecked
    result: Tensor | None = None


@dataclass(frozen=True)
class Ranks:
    """This rank among the others, and what they send each other: `data`, and `raw` where it is bytes."""

    rank: int
    world: int
    device: torch.device
    dtype: torch.dtype
    reduce_op: ReduceOp
    data: Data
    raw: Data

    def empty(self, elements: int) -> Tensor:
        """A buffer on the device under test."""
        return torch.empty(elements, dtype=self.dtype, device=self.device)

    @property
    def root(self) -> bool:
        """Whether this is the rank that sends or receives for all."""
        return self.rank == 0

    def reduction(self) -> Any:
        """torch's object for the reduction. Raises AttributeError where this torch has none."""
        if self.reduce_op == "premul_sum":
            return dist._make_nccl_premul_sum(float(PREMUL_FACTOR))  # type: ignore[attr-defined]
        return getattr(dist.ReduceOp, self.reduce_op.upper())


Build = Callable[[Ranks, int], PreparedOperation]


@dataclass(frozen=True)
class Operation:
    """One operation. `forms` are tried in order: the first that this torch and this backend have is measured.

    A form gets the elements of one piece. pieces: how many pieces make up the bytes of a row; most_pieces: how
    many a rank holds at most, with the copies that torch makes. sender: from whom a result comes where nothing is
    reduced: rank 0, of each piece the rank of its number, or the rank before this one.
    """

    forms: tuple[Build, ...]
    pieces: Callable[[int], int]
    most_pieces: Callable[[int], int]
    busbw_factor: Callable[[int], float] | None
    reduces: bool = False
    moves: Literal["elements", "bytes", "nothing"] = "elements"
    least_ranks: int = 1
    sender: Literal["root", "piece", "before"] = "root"


def _one(_world: int) -> int:
    return 1


def _world(world: int) -> int:
    return world


def _share(world: int) -> float:
    return (world - 1) / world


def _pieces(buffer: Tensor, ranks: Ranks) -> list[Tensor]:
    return list(buffer.chunk(ranks.world))


# Newer torch has renamed them and warns about the old names.
_all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _broadcast(ranks: Ranks, count: int) -> PreparedOperation:
    buffer, moved, start = ranks.empty(count), ranks.data.moved, ranks.data.start(0)
    return PreparedOperation(
        call=lambda: dist.broadcast(buffer, src=0),
        reset=lambda: moved.fill(buffer, start) if ranks.root else spoil(buffer),
        check=lambda: moved.mismatch(buffer, [start]),
        result=buffer,
    )


def _all_reduce(ranks: Ranks, count: int) -> PreparedOperation:
    buffer, op = ranks.empty(count), ranks.reduction()
    return PreparedOperation(
        call=lambda: dist.all_reduce(buffer, op=op),
        reset=lambda: ranks.data.mine.fill(buffer),
        check=lambda: ranks.data.reduced.mismatch(buffer),
        result=buffer,
    )


def _reduce(ranks: Ranks, count: int) -> PreparedOperation:
    buffer, op = ranks.empty(count), ranks.reduction()
    return PreparedOperation(
        call=lambda: dist.reduce(buffer, dst=0, op=op),
        reset=lambda: ranks.data.mine.fill(buffer),
        check=lambda: ranks.data.reduced.mismatch(buffer) if ranks.root else None,
        result=buffer,
    )


def _all_gather(ranks: Ranks, count: int, *, as_list: bool) -> PreparedOperation:
    own, result, data = ranks.empty(count), ranks.empty(count * ranks.world), ranks.data
    listed = _pieces(result, ranks)
    return PreparedOperation(
        call=(lambda: dist.all_gather(listed, own)) if as_list else (lambda: _all_gather_single(result, own)),
        reset=lambda: _send(ranks, own, ranks.rank, result),
        check=lambda: data.moved.mismatch(result, [data.start(rank) for rank in range(ranks.world)]),
        result=result,
    )


def _gather(ranks: Ranks, count: int) -> PreparedOperation:
    own, data = ranks.empty(count), ranks.data
    result = ranks.empty(count * ranks.world if ranks.root else 0)
    listed = _pieces(result, ranks) if ranks.root else None
    starts = [data.start(rank) for rank in range(ranks.world)]
    return PreparedOperation(
        call=lambda: dist.gather(own, listed, dst=0),
        reset=lambda: _send(ranks, own, ranks.rank, result),
        check=lambda: data.moved.mismatch(result, starts) if ranks.root else None,
        result=result,
    )


def _scatter(ranks: Ranks, count: int) -> PreparedOperation:
    result, data = ranks.empty(count), ranks.data
    all_parts = ranks.empty(count * ranks.world if ranks.root else 0)
    listed = _pieces(all_parts, ranks) if ranks.root else None
    return PreparedOperation(
        call=lambda: dist.scatter(result, listed, src=0),
        reset=lambda: _send(ranks, all_parts, 0, result),
        check=lambda: data.moved.mismatch(result, [data.start(0) + ranks.rank * count]),
        result=result,
    )


def _reduce_scatter(ranks: Ranks, count: int, *, as_list: bool) -> PreparedOperation:
    parts, result, op = ranks.empty(count * ranks.world), ranks.empty(count), ranks.reduction()
    listed = _pieces(parts, ranks)

    def reset() -> None:
        ranks.data.mine.fill(parts)
        spoil(result)

    return PreparedOperation(
        call=(lambda: dist.reduce_scatter(result, listed, op=op))
        if as_list
        else (lambda: _reduce_scatter_single(result, parts, op=op)),
        reset=reset,
        check=lambda: ranks.data.reduced.mismatch(result, [ranks.rank * count]),
        result=result,
    )


def _all_to_all(ranks: Ranks, count: int, *, as_list: bool) -> PreparedOperation:
    sent, result, data = ranks.empty(count * ranks.world), ranks.empty(count * ranks.world), ranks.data
    parts, listed = _pieces(sent, ranks), _pieces(result, ranks)
    starts = [data.start(rank) + ranks.rank * count for rank in range(ranks.world)]
    return PreparedOperation(
        call=(lambda: dist.all_to_all(listed, parts))
        if as_list
        else (lambda: dist.all_to_all_single(result, sent)),
        reset=lambda: _send(ranks, sent, ranks.rank, result),
        check=lambda: data.moved.mismatch(result, starts),
        result=result,
    )


def _sendrecv(ranks: Ranks, count: int) -> PreparedOperation:
    sent, result, data = ranks.empty(count), ranks.empty(count), ranks.data
    after, before = (ranks.rank + 1) % ranks.world, (ranks.rank - 1) % ranks.world
    both = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, result, before)]

    def call() -> None:
        for request in dist.batch_isend_irecv(both):
            request.wait()

    return PreparedOperation(
        call=call,
        reset=lambda: _send(ranks, sent, ranks.rank, result),
        check=lambda: data.moved.mismatch(result, [data.start(before)]),
        result=result,
    )


def _send(ranks: Ranks, source: Tensor, sender: int, result: Tensor) -> None:
    ranks.data.moved.fill(source, ranks.data.start(sender))
    spoil(result)


def barrier(device: torch.device) -> None:
    """Wait for all ranks; on a GPU the host waits as well."""
    dist.barrier(device_ids=[device.index or 0] if device.type == "cuda" else None)


def _barrier(ranks: Ranks, _count: int) -> PreparedOperation:
    return PreparedOperation(call=lambda: barrier(ranks.device))


def _broadcast_object_list(ranks: Ranks, count: int) -> PreparedOperation:
    """Our own bytes, pickled and unpickled by torch: what many programs hand their settings round with."""
    words = torch.empty(count, dtype=torch.uint8)
    ranks.raw.moved.fill(words)
    payload = ctypes.string_at(words.data_ptr(), count)
    box: list[Any] = [None]

    def reset() -> None:
        box[0] = payload if ranks.root else None

    def check() -> Mismatch | None:
        if not isinstance(box[0], bytes) or len(box[0]) != count:
            return Mismatch(count, 0, f"{count} bytes", f"{type(box[0]).__name__} of another length")
        return ranks.raw.moved.mismatch(torch.frombuffer(bytearray(box[0]), dtype=torch.uint8))

    return PreparedOperation(lambda: dist.broadcast_object_list(box, src=0), reset, check)


def _forms(build: Callable[..., PreparedOperation]) -> tuple[Build, ...]:
    """One tensor first; the list of tensors is what older torch and some backends have instead."""
    return partial(build, as_list=False), partial(build, as_list=True)


OPERATIONS: Mapping[str, Operation] = {
    "broadcast": Operation((_broadcast,), _one, _one, lambda _: 1.0),
    "all_reduce": Operation((_all_reduce,), _one, _one, lambda n: 2 * _share(n), reduces=True),
    "all_gather": Operation(_forms(_all_gather), _world, lambda n: 2 * n + 1, _share, sender="piece"),
    "reduce_scatter": Operation(_forms(_reduce_scatter), _world, lambda n: 2 * n + 1, _share, reduces=True),
    "all_to_all": Operation(_forms(_all_to_all), _world, lambda n: 2 * n, _share, sender="piece"),
    "reduce": Operation((_reduce,), _one, _one, lambda _: 1.0, reduces=True),
    "gather": Operation((_gather,), _world, lambda n: 2 * n + 1, _share, sender="piece"),
    "scatter": Operation((_scatter,), _world, lambda n: n + 1, _share),
    "sendrecv": Operation((_sendrecv,), _one, lambda _: 2, lambda _: 1.0, least_ranks=2, sender="before"),
    "barrier": Operation((_barrier,), _one, lambda _: 0, None, moves="nothing"),
    "broadcast_object_list": Operation((_broadcast_object_list,), _one, lambda _: 5, None, moves="bytes"),
}

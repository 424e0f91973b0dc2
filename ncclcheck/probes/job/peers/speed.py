"""What each rank and each node reaches alone, without a network: to tell a slow machine from a slow link.

All ranks measure at the same time, as they would work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ncclcheck.probes.facts import Measurements, NodeSpeed, RankSpeed, replace
from ncclcheck.probes.job.context import Context
from ncclcheck.probes.job.operations import barrier
from ncclcheck.probes.job.timing import timed
from ncclcheck.probes.job.verify import exact_product
from ncclcheck.probes.machine.host.cores import Cores

# By the name of the fact: the bytes or operations of one call, and the call.
_Works = dict[str, tuple[float, Callable[[], object]]]

_MIB = 2**20  # bytes
_LEAST, _MOST = 3, 30  # calls: chosen, three make a median, after 30 it does not move any more
_SHARES = 6  # of the budget: five things that a rank measures at most, and its node


def run(context: Context) -> None:
    """Each rank emits its own speeds, the lowest rank of each node that of the node."""
    assert context.plan.speed
    share = context.plan.speed.budget_s / _SHARES
    context.step("speed of each rank alone")
    barrier(context.device)
    context.emit(Measurements(rank_speeds=[_rank_speed(context, share)]))
    context.step("all_reduce within each node")
    barrier(context.device)
    if (speed := _node_speed(context, share)) is not None:
        context.emit(Measurements(node_speeds=[speed]))


def _rank_speed(context: Context, share: float) -> RankSpeed:
    speeds: dict[str, float] = {}
    reason, cores = "", Cores()
    try:
        for name, (amount, call) in _works(context.device).items():
            context.tick()
            speeds[name] = amount / _median_s(call, context.device, share) / 1e9
    except (RuntimeError, MemoryError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error) else type(error).__name__
    device, waited = str(context.device), cores.waited()
    products = exact_product.check(context.device, share, context.tick)
    return RankSpeed(
        rank=context.rank, node=context.node, device=device, waited=waited, reason=reason, products=products.count,
        wrong_products=products.wrong, product_sum=products.sum, **speeds,
    )  # fmt: skip


def _works(device: torch.device) -> _Works:
    on_gpu = device.type == "cuda"
    source = torch.ones(32 * _MIB * (8 if on_gpu else 1), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    side = 8192 if on_gpu else 384
    matrix = torch.ones(side, side, dtype=torch.float16 if on_gpu else torch.float32, device=device)
    product = torch.empty_like(matrix)
    works: _Works = {
        "memory_gb_s": (2.0 * source.numel(), lambda: target.copy_(source)),  # read and written
        "matmul_gflop_s": (2.0 * side**3, lambda: torch.mm(matrix, matrix, out=product)),
    }
    return works | _host_copies(device) if on_gpu else works


def _host_copies(device: torch.device) -> _Works:
    here = torch.ones(64 * _MIB, dtype=torch.uint8).pin_memory()
    there = torch.empty(64 * _MIB, dtype=torch.uint8, device=device)
    size = float(here.numel())
    return {
        "to_device_gb_s": (size, lambda: there.copy_(here, non_blocking=True)),
        "from_device_gb_s": (size, lambda: here.copy_(there, non_blocking=True)),
    }


def _median_s(call: Callable[[], object], device: torch.device, share: float) -> float:
    """Seconds of a call, after one that only warms up."""
    seconds: list[float] = []
    timed(call, device)
    end = time.monotonic() + share
    while len(seconds) < _LEAST or (len(seconds) < _MOST and time.monotonic() < end):
        seconds.append(timed(call, device))
    return statistics.median(seconds)


def _node_speed(context: Context, share: float) -> NodeSpeed | None:
    """busbw of an all_reduce among the ranks of this node; its lowest rank tells."""
    ranks = [rank for rank, node in enumerate(context.node_of) if node == context.node]
    size = (64 if context.device.type == "cuda" else 4) * _MIB
    speed = NodeSpeed(node=context.node, ranks=len(ranks), bytes=size)
    if len(ranks) == 1:
        return replace(speed, reason="one rank on the node")
    group = dist.new_group(ranks, use_local_synchronization=True)
    cores = Cores()
    seconds = _all_reduce_s(context, group, torch.ones(size // 4, device=context.device), share)
    dist.destroy_process_group(group)
    busbw = 2 * (len(ranks) - 1) / len(ranks) * size / seconds / 1e9
    return replace(speed, busbw_gb_s=busbw, waited=cores.waited()) if context.rank == ranks[0] else None


def _all_reduce_s(context: Context, group: dist.ProcessGroup, data: Tensor, share: float) -> float:
    """The median of the slowest rank's seconds; how often, all agree on after the second run."""
    own = [timed(lambda: dist.all_reduce(data, group=group), context.device) for _ in range(2)]
    estimate = _slowest(own[1:], context.device, group)[0]
    count = max(_LEAST, min(_MOST, int(share / max(estimate, 1e-6))))
    own = []
    for _ in range(count):
        context.tick()
        dist.barrier(group=group, device_ids=[context.device.index] if context.device.type == "cuda" else None)
        own.append(timed(lambda: dist.all_reduce(data, group=group), context.device))
    return statistics.median(_slowest(own, context.device, group))


def _slowest(own: list[float], device: torch.device, group: dist.ProcessGroup) -> list[float]:
    shared = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=group)
    return [float(value) for value in shared.tolist()]

"""All_reduce among some of the nodes: rank 0 announces a round of disjoint groups, which run at the same time.

Each group is a process group of its own, made for one measurement: what fails in it stays in it, and the world,
which may have failed itself, is not used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any
from uuid import uuid4

import msgspec
import torch
import torch.distributed as dist
from msgspec import Struct

from ncclcheck.probes.facts import GroupTime, Measurements
from ncclcheck.probes.job.board import Board, RankOrders, order_key
from ncclcheck.probes.job.context import Context, GroupPlan
from ncclcheck.probes.job.peers.exchange import bounded
from ncclcheck.probes.job.peers.pairs import ranks_of

NextGroups = Callable[[list[GroupTime]], Sequence[Sequence[str]]]

_END = b"null"
_SLACK_S = 2.0  # beyond the limit of a measurement, for starts that are apart and for the store: chosen
_BATCHES = 2  # the better counts: a burst of other traffic passes
_ITERATIONS = 3  # of a batch
_PER_RANK_S = 0.02  # s more for each rank of a group to connect in


class GroupOrder(Struct, frozen=True, kw_only=True):
    """A group that measures. name: of no other group, ever; its members stand on the board under it."""

    name: str
    round: int


def run(context: Context, next_groups: NextGroups) -> None:
    """Measure rounds of disjoint groups of nodes; `next_groups` is asked on rank 0 alone, and none is the end.

    Rank 0 emits what it heard in time, for by that the next round is chosen.
    """
    assert context.plan.groups
    context.step("groups")
    member = _GroupMember(context, context.plan.groups)
    if context.rank == 0:
        _GroupConductor(context, context.plan.groups, member).conduct(next_groups)
    else:
        member.follow()


class _GroupMember:
    """A rank that measures with whom it is told to."""

    def __init__(self, context: Context, plan: GroupPlan) -> None:
        self._context, self._plan = context, plan
        self.board = Board("groups", context.store)

    def follow(self) -> None:
        """Do what rank 0 orders, until the end. Raises RuntimeError where it orders nothing until the deadline."""
        number = 0
        while order := self._next(number):
            number += 1
            if not self.board.has(order_key(self._context.rank, number)):  # else it is over: we come too late
                self.obey(order)

    def _next(self, number: int) -> GroupOrder | None:
        left = self._context.deadline - time.monotonic()
        note = self.board.take(order_key(self._context.rank, number), left)
        if note is None:
            raise RuntimeError("rank 0 announced no further round of groups until the deadline")
        self.board.tidy()
        return msgspec.json.decode(note, type=GroupOrder | None)

    def obey(self, order: GroupOrder) -> None:
        """Measure in the group; its lowest rank reports."""
        note = self.board.read(f"members/{order.name}", self._plan.limit_s)
        ranks = msgspec.json.decode(note or b"[]", type=list[int])
        if self._context.rank not in ranks:
            return
        self._context.step(f"groups, round {order.round + 1}: {len(ranks)} ranks")
        result = _Measurement(self._context, self._plan, order, ranks).run()
        if self._context.rank == ranks[0]:
            self.board.put_own(f"result/{order.name}", msgspec.json.encode(result))


class _Measurement:
    """One rank's part in one group."""

    def __init__(self, context: Context, plan: GroupPlan, order: GroupOrder, ranks: list[int]) -> None:
        self._context, self._order, self._ranks = context, order, ranks
        self._limit = limit_s(plan, len(ranks))
        self._bytes = min(plan.bytes_a_rank * len(ranks), plan.most_bytes)
        every: Any = dist
        self._store = every.PrefixStore(order.name, context.store or every.distributed_c10d._get_default_store())
        self._group: Any = None

    def run(self) -> GroupTime:
        """Measure; what the transport raises or withholds is told in the GroupTime, within the limit."""
        begun = time.monotonic()
        try:
            seconds = bounded(self._measure, self._limit + 1)
        except (RuntimeError, TimeoutError) as error:
            late = isinstance(error, TimeoutError) or time.monotonic() - begun > self._limit - 0.1
            message = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            return self._told(None, "timed_out" if late else "failed", message)
        finally:
            self._close()
        if seconds is None:
            return self._told(None, "failed", "the sum over the ranks of the group was wrong")
        share = 2 * (len(self._ranks) - 1) / len(self._ranks)
        return self._told(self._bytes / seconds / 1e9 * share, "ok", "")

    def _close(self) -> None:
        """NCCL may take its time to end what has failed, and is not waited for; gloo ends with its last user."""
        group, self._group = self._group, None
        end = getattr(group, "abort", None) or getattr(group, "_abort", None)
        if self._context.device.type == "cuda" and end:
            threading.Thread(target=end, daemon=True).start()

    def _measure(self) -> float | None:
        """Seconds of one all_reduce of the slowest rank, of the better batch; None where the sum is wrong."""
        if self._context.device.type == "cuda":
            torch.cuda.set_device(self._context.device)  # it holds for one thread only
        self._group = self._made()
        count = torch.ones(1, dtype=torch.float64, device=self._context.device)
        self._reduced(count)
        if int(count.item()) != len(self._ranks):
            return None
        data = torch.zeros(self._bytes // 4, device=self._context.device)
        self._reduced(data)  # the first at this size allocates
        return min(self._batch(data) for _ in range(_BATCHES))

    def _batch(self, data: torch.Tensor) -> float:
        """Seconds of one all_reduce on the slowest rank, the mean over a batch; the same on all ranks."""
        begun = time.perf_counter()
        for _ in range(_ITERATIONS):
            self._reduced(data)
        spent = (time.perf_counter() - begun) / _ITERATIONS
        slowest = torch.tensor([spent], dtype=torch.float64, device=self._context.device)
        self._reduced(slowest, dist.ReduceOp.MAX)
        return float(slowest.item())

    def _reduced(self, tensor: torch.Tensor, op: Any = None) -> None:
        self._context.tick()
        every: Any = dist
        options = every.AllreduceOptions()
        options.reduceOp = op or dist.ReduceOp.SUM
        self._group.allreduce([tensor], options).wait()
        if tensor.device.type == "cuda":
            torch.cuda.synchronize(tensor.device)

    def _made(self) -> Any:
        every: Any = dist
        place, count = self._ranks.index(self._context.rank), len(self._ranks)
        if self._context.device.type != "cuda":
            return every.ProcessGroupGloo(self._store, place, count, timeout=timedelta(seconds=self._limit))
        options = every.ProcessGroupNCCL.Options()  # its watchdog ends the process at the limit: beyond ours
        options._timeout = timedelta(seconds=max(60.0, self._context.deadline - time.monotonic()))
        return every.ProcessGroupNCCL(self._store, place, count, options)

    def _told(self, busbw: float | None, state: Any, reason: str) -> GroupTime:
        return GroupTime(
            nodes=[*dict.fromkeys(self._context.node_of[rank] for rank in self._ranks)],
            ranks=len(self._ranks),
            round=self._order.round,
            bytes=self._bytes,
            busbw_gb_s=busbw,
            state=state,
            reason=reason,
        )


class _GroupConductor:
    """Rank 0: announces rounds and hears how they went."""

    def __init__(self, context: Context, plan: GroupPlan, member: _GroupMember) -> None:
        self._context, self._plan, self._member = context, plan, member
        self._ranks = ranks_of(context.node_of)
        self._orders = RankOrders(member.board)
        self._end = time.monotonic() + plan.budget_s

    def conduct(self, next_groups: NextGroups) -> None:
        """Announce rounds and hear of them, until there is none left or the time is used up."""
        done: list[GroupTime] = []
        number = 0
        while time.monotonic() < self._end and (wanted := next_groups(done)):
            done += self._round(number, [[*nodes] for nodes in wanted])
            number += 1
        self._orders.give(dict.fromkeys(range(1, self._context.world_size), _END))

    def _round(self, number: int, wanted: list[list[str]]) -> list[GroupTime]:
        groups = [(GroupOrder(name=uuid4().hex, round=number), nodes) for nodes in wanted]
        ranks = {order.name: [*chain.from_iterable(self._ranks[n] for n in nodes)] for order, nodes in groups}
        board = self._member.board
        board.put({f"members/{name}": msgspec.json.encode(members) for name, members in ranks.items()})
        notes = {rank: msgspec.json.encode(order) for order, _ in groups for rank in ranks[order.name]}
        self._orders.give({rank: note for rank, note in notes.items() if rank})
        begun = time.monotonic()
        for order, _ in groups:
            if 0 in ranks[order.name]:
                self._member.obey(order)
        longest = max(limit_s(self._plan, len(members)) for members in ranks.values())
        left = begun + longest + 2 * _SLACK_S - time.monotonic()
        results = board.read_all([f"result/{order.name}" for order, _ in groups], left)
        times = [self._heard(order, nodes, results.get(f"result/{order.name}")) for order, nodes in groups]
        self._context.emit(Measurements(groups=times))
        return times

    def _heard(self, order: GroupOrder, nodes: list[str], note: bytes | None) -> GroupTime:
        if note is not None:  # the nodes in the order in which they were asked for
            return msgspec.structs.replace(msgspec.json.decode(note, type=GroupTime), nodes=nodes)
        return GroupTime(
            nodes=nodes,
            ranks=sum(len(self._ranks[node]) for node in nodes),
            round=order.round,
            state="timed_out",
            reason=f"{nodes[0]} did not answer",
        )


def limit_s(plan: GroupPlan, ranks: int) -> float:
    """Seconds within which so many ranks must have connected and measured."""
    return plan.limit_s + _PER_RANK_S * ranks

"""Exchanges between nodes, two by two: rank 0 announces a round, all its pairs run at once, then it hears of them.

Nothing here is a collective of the world: a pair that times out would close gloo's world with it (measured).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import uuid4

import msgspec
from msgspec import Struct

from ncclcheck.probes.facts import Measurements, PairTime
from ncclcheck.probes.job.board import Board, RankOrders, order_key
from ncclcheck.probes.job.context import Context, PairPlan
from ncclcheck.probes.job.peers.exchange import Exchange, ExchangeView

NextRound = Callable[[list[PairTime]], Sequence[tuple[str, str]]]

_END = b"null"
_SLACK_S = 2.0  # beyond the limit of a measurement, for starts that are apart and for the store: chosen


class PairOrder(Struct, frozen=True, kw_only=True):
    """Two ranks that measure each other; a is the lower one, and reports. name: of no other exchange, ever."""

    name: str
    round: int
    rail: int
    a: int
    b: int

    def key(self, what: str, rank: int) -> str:
        """Where a rank notes something of this exchange."""
        return f"{what}/{self.name}/{rank}"


def run(context: Context, next_round: NextRound) -> list[PairTime]:
    """Measure rounds of disjoint pairs of nodes; `next_round` is asked on rank 0 alone, and none is the end.

    Each PairTime is emitted by its lower rank at once; by rank 0 only where that rank said nothing in time. Rank 0
    is handed all of them.
    """
    assert context.plan.pairs
    context.step("pairs")
    member = _PairMember(context, context.plan.pairs)
    if context.rank == 0:
        return _PairConductor(context, context.plan.pairs, member).conduct(next_round)
    member.follow()
    return []


class _PairMember:
    """A rank that measures with whom it is told to."""

    def __init__(self, context: Context, plan: PairPlan) -> None:
        self._context, self._plan = context, plan
        self.board = Board("pairs", context.store)

    def follow(self) -> None:
        """Do what rank 0 orders, until the end. Raises RuntimeError where it orders nothing until the deadline."""
        number = 0
        while order := self._next(number):
            number += 1
            if not self.board.has(self._order(number)):  # else it is over: we come too late for it
                self.obey(order)

    def obey(self, order: PairOrder) -> None:
        """Measure with the other rank; what both saw is put together on the lower one."""
        peer = order.b if self._context.rank == order.a else order.a
        self._context.step(
            f"pairs, round {order.round + 1}: {self._context.node} with {self._context.node_of[peer]}"
        )
        view = self._met(order, peer)
        self.board.put_own(order.key("view", self._context.rank), msgspec.json.encode(view))
        if self._context.rank == order.a:
            self._report(order, view)

    def _next(self, number: int) -> PairOrder | None:
        left = self._context.deadline - time.monotonic()
        note = self.board.take(self._order(number), left)
        if note is None:
            raise RuntimeError("rank 0 announced no further round of pairs until the deadline")
        self.board.tidy()
        return msgspec.json.decode(note, type=PairOrder | None)

    def _order(self, number: int) -> str:
        return order_key(self._context.rank, number)

    def _met(self, order: PairOrder, peer: int) -> ExchangeView:
        """What this side saw; nothing is connected before both sides are there."""
        self.board.put_own(order.key("here", self._context.rank), b"1")
        if self.board.read(order.key("here", peer), self._plan.limit_s) is None:
            who = f"rank {peer} on {self._context.node_of[peer]}"
            reason = f"{who} did not come to it within {self._plan.limit_s:g} s"
            return ExchangeView(state="timed_out", reason=reason, met=False)
        return Exchange(self._context, self._plan, peer, order.name).run()

    def _report(self, order: PairOrder, mine: ExchangeView) -> None:
        seconds = self._plan.limit_s + _SLACK_S
        note = self.board.read(order.key("view", order.b), seconds) if mine.met else None
        pair = _together(
            order, self._context, mine, msgspec.json.decode(note, type=ExchangeView) if note else None
        )
        self._context.emit(Measurements(pairs=[pair]))
        self.board.put_own(order.key("result", order.a), msgspec.json.encode(pair))


class _PairConductor:
    """Rank 0: announces rounds and hears how they went."""

    def __init__(self, context: Context, plan: PairPlan, member: _PairMember) -> None:
        self._context, self._plan, self._member = context, plan, member
        self._ranks = ranks_of(context.node_of)
        self._given = RankOrders(member.board)
        self._end = time.monotonic() + plan.budget_s

    def conduct(self, next_round: NextRound) -> list[PairTime]:
        """Announce rounds; all exchanges, once there is no round left or the time is used up."""
        done: list[PairTime] = []
        number = 0
        while time.monotonic() < self._end and (wanted := next_round(done)):
            done += self._round([order for pair in wanted for order in self._orders(number, pair)])
            number += 1
        self._given.give(dict.fromkeys(range(1, self._context.world_size), _END))
        return done

    def _orders(self, number: int, pair: tuple[str, str]) -> list[PairOrder]:
        """Orders for a pair of nodes, one for each rail: local ranks of the same number."""
        rails = [*zip(*(self._ranks[node] for node in pair), strict=False)]
        several = self._plan.level == "full" and self._context.backend == "nccl"
        return [
            PairOrder(name=uuid4().hex, round=number, rail=rail, a=min(ranks), b=max(ranks))
            for rail, ranks in enumerate(rails if several else rails[:1])
        ]

    def _round(self, orders: list[PairOrder]) -> list[PairTime]:
        notes = {rank: msgspec.json.encode(order) for order in orders for rank in (order.a, order.b)}
        self._given.give({rank: note for rank, note in notes.items() if rank})
        begun = time.monotonic()
        for order in orders:
            if order.a == 0:
                self._member.obey(order)
        self._context.step(f"pairs, round {orders[0].round + 1}: the other nodes")
        left = begun + 3 * self._plan.limit_s + 2 * _SLACK_S - time.monotonic()
        results = self._member.board.read_all([order.key("result", order.a) for order in orders], left)
        self._member.board.tidy()
        return [self._heard(order, results.get(order.key("result", order.a))) for order in orders]

    def _heard(self, order: PairOrder, note: bytes | None) -> PairTime:
        if note is not None:
            return msgspec.json.decode(note, type=PairTime)
        lost = ExchangeView(
            state="timed_out", reason=f"rank {order.a} on {self._context.node_of[order.a]} did not answer"
        )
        pair = _together(order, self._context, lost, None)
        self._context.emit(Measurements(pairs=[pair]))
        return pair


def ranks_of(node_of: Sequence[str]) -> dict[str, list[int]]:
    """The ranks of each node, by local rank."""
    ranks: dict[str, list[int]] = {}
    for rank, node in enumerate(node_of):
        ranks.setdefault(node, []).append(rank)
    return ranks


def _together(order: PairOrder, context: Context, mine: ExchangeView, other: ExchangeView | None) -> PairTime:
    """What a and b saw. Where one timed out, the other's error is but its consequence."""
    silent = ExchangeView(
        state="timed_out", reason=f"rank {order.b} on {context.node_of[order.b]} did not say how it went"
    )
    other = other or (silent if mine.state == "ok" else ExchangeView())
    worst = min((mine, other), key=lambda view: ("timed_out", "failed", "ok").index(view.state))
    reasons = [view.reason for view in (mine, other) if view.state == worst.state and view.reason]
    return PairTime(
        a=context.node_of[order.a],
        b=context.node_of[order.b],
        bytes=min([view.bytes for view in (mine, other) if view.bytes], default=0),
        rail=order.rail,
        round=order.round,
        a_to_b_gb_s=other.gb_s,
        b_to_a_gb_s=mine.gb_s,
        a_to_b_changed=other.changed,
        b_to_a_changed=mine.changed,
        latency_us=mine.latency_us,
        waited=round(mine.waited + other.waited, 3),
        state=worst.state,
        reason="; ".join(dict.fromkeys(reasons)),
    )

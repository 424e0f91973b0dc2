"""Who waits for whom: rank -> the call it stands in -> the ranks that keep this call from its end -> ...

Where the chain ends is the cause: a rank that stands in no call, a rank without a dump, a call that all have
entered; or it does not end, and ranks wait for each other in a circle. All other groups wait as a consequence.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ncclcheck.probes.facts import FlightCall
from ncclcheck.reports.subjects.logs.flight.match import CallMismatch, mismatches
from ncclcheck.reports.subjects.logs.flight.state import FlightState


@dataclass(frozen=True)
class AwaitedCall:
    """A collective by its number; or the sends or receives of one rank with another, where src is not None."""

    group: int
    seq: int = -1
    op: str = ""
    src: int | None = None
    dst: int | None = None


Node = int | AwaitedCall


@dataclass
class Waits:
    """What waits for what. standing: rank -> the call that it stands in, with its own record of it."""

    state: FlightState
    standing: dict[int, tuple[AwaitedCall, FlightCall]]
    after: dict[Node, list[int] | list[AwaitedCall]]
    mismatched: dict[int, CallMismatch]

    @property
    def causes(self) -> list[int]:
        """Ranks that others wait for and that wait for nobody themselves."""
        awaited = {rank for node, after in self.after.items() if isinstance(node, AwaitedCall) for rank in after}
        return sorted(rank for rank in awaited if isinstance(rank, int) and not self.after.get(rank))

    @property
    def proven(self) -> bool:
        """Whether a rank's own dump tells that it is to blame: then one without a dump is less likely to be."""
        return bool(self.state.stopped) or any(rank in self.state.dumps for rank in self.causes)

    @property
    def hanging(self) -> list[AwaitedCall]:
        """Calls that nobody keeps from their end, and that do not end."""
        return [
            node for node, after in self.after.items()
            if isinstance(node, AwaitedCall) and not after and not self.is_mismatched(node)
        ]  # fmt: skip

    def is_mismatched(self, call: AwaitedCall) -> bool:
        """Whether ranks had called different things in this group before: what follows is a consequence."""
        mismatch = self.mismatched.get(call.group)
        return mismatch is not None and (call.src is not None or mismatch.seq <= call.seq)

    def waiting(self, call: AwaitedCall) -> list[int]:
        """Ranks that stand in this call."""
        return sorted(rank for rank, (standing, _) in self.standing.items() if standing == call)

    def awaiting(self, rank: int) -> list[AwaitedCall]:
        """Calls that do not end because of this rank."""
        return [node for node, after in self.after.items() if isinstance(node, AwaitedCall) and rank in after]

    def circle(self) -> list[int]:
        """Ranks that wait for each other, and whose chains end nowhere else."""
        left = _without_end(self.after)
        while True:
            followed = {node for waiter in left for node in self.after[waiter] if node in left}
            if followed == left:
                return sorted(node for node in left if isinstance(node, int))
            left = followed


def waits(state: FlightState) -> Waits:
    """Who waits for whom in a job."""
    standing: dict[int, tuple[AwaitedCall, FlightCall]] = {}
    for rank, pending in state.pending.items():
        if first := _first(pending):
            standing[rank] = (_named(rank, first), first)
    made = Waits(state, standing, {}, {mismatch.group: mismatch for mismatch in mismatches(state)})
    ranks: list[int] = [*standing]
    made.after.update({rank: [standing[rank][0]] for rank in ranks})
    for call in dict.fromkeys(named for named, _ in standing.values()):
        made.after[call] = [] if made.is_mismatched(call) else _blockers(made, call)
    return made


def _first(pending: list[FlightCall]) -> FlightCall | None:
    """What the rank has waited for longest; a send that nobody has taken holds up no program by itself."""
    return next((call for call in pending if call.op != "send"), next(iter(pending), None))


def _named(rank: int, call: FlightCall) -> AwaitedCall:
    if call.peer is None:
        return AwaitedCall(call.group, call.seq)
    src, dst = (rank, call.peer) if call.op == "send" else (call.peer, rank)
    return AwaitedCall(call.group, op=call.op, src=src, dst=dst)


def _blockers(made: Waits, call: AwaitedCall) -> list[int]:
    return _keep_pair(made, call) if call.src is not None else _keep_all(made, call)


def _keep_all(made: Waits, call: AwaitedCall) -> list[int]:
    """Who did not enter, by what dumps say; else who shows nothing of this group; else who left no dump.

    Where all have entered: whose record stopped, or who stands in another call before this one.
    """
    state, members = made.state, made.state.members(call.group)
    entered = state.entered[call.group]
    behind = [rank for rank in members if entered.get(rank, call.seq) < call.seq]
    unseen = [rank for rank in members if rank in state.dumps and rank not in entered]
    lost = [rank for rank in members if rank not in state.dumps]
    stopped = [rank for rank in members if rank in state.stopped and rank not in behind]
    if absent := [*behind, *stopped] or unseen or lost:
        return absent
    own = made.standing
    ahead = (rank for rank in members if rank in own and own[rank][0] != call)
    return [rank for rank in ahead if _order(state, rank, call) > own[rank][1].order]


def _order(state: FlightState, rank: int, call: AwaitedCall) -> int:
    """When the rank entered this call, among its own; -1 where it is over or not told."""
    own = state.own(rank, call.group, call.seq)
    return own.order if own else -1


def _keep_pair(made: Waits, call: AwaitedCall) -> list[int]:
    """Sends are taken in their order: who has fewer in hand than the other side did not call it."""
    src, dst = call.src or 0, call.dst or 0
    sends = _in_hand(made.state, call.group, src, "send", dst)
    receives = _in_hand(made.state, call.group, dst, "recv", src)
    other, own, others = (dst, sends, receives) if call.op == "send" else (src, receives, sends)
    if others < own:
        return [other]
    standing = made.standing.get(other)
    if standing is None or {standing[0].src, standing[0].dst} == {src, dst}:
        return []
    return [other]


def _in_hand(state: FlightState, group: int, rank: int, op: str, peer: int) -> int:
    calls = state.pending.get(rank, [])
    return sum((call.group, call.op, call.peer) == (group, op, peer) for call in calls)


def _without_end(after: dict[Node, list[int] | list[AwaitedCall]]) -> set[Node]:
    """Nodes from which no chain comes to an end."""
    before: dict[Node, list[Node]] = defaultdict(list)
    for node, follows in after.items():
        for follow in follows:
            before[follow].append(node)
    ends = [node for node in {*after, *before} if not after.get(node)]
    ending = set(ends)
    while ends:
        for node in before[ends.pop()]:
            if node not in ending:
                ending.add(node)
                ends.append(node)
    return after.keys() - ending

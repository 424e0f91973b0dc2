"""How packets and streams fared between nodes: loss by direction, and the rates of bursts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclcheck.probes.facts import Burst, PeerReach, Unread, value_or
from ncclcheck.reports.subjects.links.reached import Pair, Reached

LEAST_LOST = 4  # packets of one direction: fewer may be stray ones; chosen
# of a whole burst, about one initial TCP window of 10 segments and what follows: chosen, nothing flows
_STALL_BYTES = 65536
# share of a burst in which a side had no core: chosen, so that a rate is never raised more than tenfold for it
_MOST_STARVED = 0.9
# Times slower than else where a machine had no cores to spare: nodes of one machine differed by up to 5 at a load
# of 6 on 2 cores. A link that fell to a tenth is left, and so is what a limit or a detour leaves.
_FAR_SLOWER = 8.0
OF_PEERS, ENOUGH = 50.0, 2.0  # NET008.of_peers_percent and NET008.enough_gbit, whose page gives the reasons


@dataclass(frozen=True)
class PacketLoss:
    """Lost of sent, in one direction."""

    lost: int = 0
    sent: int = 0

    @property
    def percent(self) -> float:
        """0 where nothing was sent."""
        return 100 * self.lost / self.sent if self.sent else 0.0

    def __add__(self, other: PacketLoss) -> PacketLoss:
        return PacketLoss(self.lost + other.lost, self.sent + other.sent)

    def __str__(self) -> str:
        return f"{self.lost} of {self.sent} ({self.percent:.1f} %)"


def total(losses: Iterable[PacketLoss]) -> PacketLoss:
    """The sum."""
    return sum(losses, PacketLoss())


def udp_losses(reached: Reached) -> dict[Pair, PacketLoss]:
    """Small packets by direction: ours to the peer, and its answers to us.

    A pair without any answer is a filter or a broken path, not loss. What a host dropped itself, because this
    tool was too slow to read it, is not counted.
    """
    losses: dict[Pair, PacketLoss] = {}
    for (a, b), peer in reached.seen.items():
        echoes = peer.echoes
        if isinstance(echoes, Unread) or not echoes.returned:
            continue
        there = PacketLoss(echoes.sent - echoes.arrived, echoes.sent)
        back = PacketLoss(echoes.arrived - echoes.returned, echoes.arrived)
        losses[a, b] = losses.get((a, b), PacketLoss()) + there
        losses[b, a] = losses.get((b, a), PacketLoss()) + back
    return {
        pair: PacketLoss(max(0, loss.lost - _overflows(reached, pair[1])), loss.sent)
        for pair, loss in losses.items()
    }


def _overflows(reached: Reached, node: str) -> int:
    return reached.of_node[node].udp_overflows if node in reached.of_node else 0


def tcp_losses(reached: Reached) -> dict[Pair, PacketLoss]:
    """Segments that the bursts had to send again."""
    losses: dict[Pair, PacketLoss] = {}
    for pair, peer in reached.seen.items():
        for burst in peer.bursts:
            again, segments = burst.retransmits, burst.segments
            if not isinstance(again, Unread) and not isinstance(segments, Unread):
                losses[pair] = losses.get(pair, PacketLoss()) + PacketLoss(again, max(again, segments))
    return losses


def is_lossy(loss: PacketLoss | None, percent: float) -> bool:
    """More than so many percent, and not just a stray packet."""
    return loss is not None and loss.lost >= LEAST_LOST and loss.percent > percent


def cut_short(peer: PeerReach) -> bool:
    """Whether full-size packets to this peer vanish while smaller ones, of 576 bytes at least, arrive.

    Where none of any size was confirmed no MTU explains it: a host that was short of a core (seen at a load of 35
    on 2 cores, beside small packets that came back) or a filter of UDP.
    """
    mtu = peer.path_mtu
    return not isinstance(mtu, Unread) and 0 < mtu.arrived < mtu.sent


def stalls(bursts: Iterable[Burst]) -> bool:
    """Whether a connection that was open carried next to nothing."""
    return any(burst.bytes < _STALL_BYTES for burst in bursts)


def gbit(burst: Burst) -> float:
    """Gb/s as counted at the receiver."""
    return burst.bytes * 8 / burst.seconds / 1e9 if burst.seconds > 0 else 0.0


def rates(reached: Reached, loss_percent: float) -> dict[Pair, float]:
    """The best burst of every pair whose packets arrive: loss and a short path MTU are causes of their own.

    A burst that waited for a core tells of a busy host, not of a link: it is taken for what it would have been.
    """
    losses = udp_losses(reached)
    return {
        pair: max(gbit(burst) / (1 - min(_MOST_STARVED, burst.starved)) for burst in peer.bursts)
        for pair, peer in reached.seen.items()
        if peer.bursts and not is_lossy(losses.get(pair), loss_percent) and not cut_short(peer)
    }


@dataclass(frozen=True)
class SlowBursts:
    """A node whose best burst in a direction is far below the median of the other nodes' best."""

    node: str
    sends: bool
    best: float
    others: float


def slow_nodes(
    best_of_pair: Mapping[Pair, float], percent: float, enough: float, busy: Collection[str] = ()
) -> list[SlowBursts]:
    """Slow senders and slow receivers among three or more nodes; a rate of `enough` Gb/s is never slow.

    busy: nodes without cores to spare, of which much more is asked; of all nodes where most are.
    """
    all_busy = 2 * len({*busy}) > len({node for pair in best_of_pair for node in pair})
    slows: list[SlowBursts] = []
    for sends in (True, False):
        best: dict[str, float] = {}
        for pair, rate in best_of_pair.items():
            node = pair[0] if sends else pair[1]
            best[node] = max(best.get(node, 0.0), rate)
        ordered = sorted(best.values())
        for node, rate in best.items() if len(best) > 2 else ():
            others = _median_without(ordered, rate)
            least = others * percent / 100 / (_FAR_SLOWER if all_busy or node in busy else 1.0)
            if rate < min(enough, least):
                slows.append(SlowBursts(node, sends, rate, others))
    return slows


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of sorted values when one of them is left out."""
    place, count = bisect_left(ordered, value), len(ordered) - 1
    low, high = (ordered[middle + (middle >= place)] for middle in ((count - 1) // 2, count // 2))
    return (low + high) / 2


def slow_pairs(
    best_of_pair: Mapping[Pair, float], percent: float, enough: float, busy: Collection[str] = ()
) -> set[Pair]:
    """Directions far slower than the other direction of the same two nodes."""
    return {
        (a, b)
        for (a, b), rate in best_of_pair.items()
        if rate
        < min(
            enough,
            best_of_pair.get((b, a), 0.0) * percent / 100 / (_FAR_SLOWER if {a, b} & {*busy} else 1.0),
        )
    }


def slow_beside(rate: float, others: float) -> bool:
    """Whether a rate is far below what others carry."""
    return rate < min(ENOUGH, others * OF_PEERS / 100)


def reported_gbit(speed_mbit: int | Unread) -> float:
    """What an interface says of itself; 0 where it says nothing."""
    return value_or(speed_mbit, 0) / 1000

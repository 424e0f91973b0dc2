"""Slow ways of which the cause was seen on a node before the job: what the job measures there follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, Unread, at, value_or
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.failures.limits import shaping
from ncclcheck.reports.subjects.links import delays, flows
from ncclcheck.reports.subjects.links.flows import SlowBursts
from ncclcheck.reports.subjects.links.reached import Pair, reached
from ncclcheck.reports.subjects.nccl import lan

KIB = 1024.0  # bytes
# KiB. What is under way on 10 Gb/s with a round trip of 0.2 ms, within a data centre, is 250 KB. With 4.5 KiB a
# job of gloo on two hosts was 17 times slower.
LEAST_KIB = 256.0

# Times slower than the others that a pair must be in a single exchange of the job, where a cause for it was seen
# before. Pairs of one machine differ by up to 5 at loads of 6 on 2 cores in exchanges of 4 MB.
FAR_SLOWER = 8.0


@dataclass(frozen=True)
class Slowness:
    """The rates of bursts, and who is slow by them: of two nodes a direction, of more nodes a node.

    doubtful: nodes that would be slow if there had been cores to spare.
    """

    rates: Mapping[Pair, float]
    nodes: tuple[SlowBursts, ...] = ()
    pairs: frozenset[Pair] = frozenset()
    doubtful: frozenset[str] = frozenset()

    def beside_others(self, pair: Pair) -> float | None:
        """What the other pairs carry (median), where this one is slow beside them."""
        others = sorted(rate for other, rate in self.rates.items() if other not in (pair, pair[::-1]))
        if pair not in self.rates or not others:
            return None
        usual = others[len(others) // 2]
        return usual if flows.slow_beside(self.rates[pair], usual) else None


def in_the_job(cluster: Cluster, pair: Pair) -> tuple[float, float] | None:
    """Gbit/s that a pair carried in the job, and the median of the others, where it is far slower than these."""
    carried: dict[Pair, float] = {}
    for time in cluster.measurements.pairs:
        for ends, rate in (((time.a, time.b), time.a_to_b_gb_s), ((time.b, time.a), time.b_to_a_gb_s)):
            if rate:
                carried[ends] = max(carried.get(ends, 0.0), rate * 8)
    others = sorted(rate for ends, rate in carried.items() if ends not in (pair, pair[::-1]))
    usual = others[len(others) // 2] if others else 0.0
    return (carried[pair], usual) if carried.get(pair, usual) < usual / FAR_SLOWER else None


@dataclass(frozen=True)
class HeldUp:
    """A cause on a node, by the rule that tells it, and the directions that it slows."""

    code: str
    node: str
    pairs: frozenset[Pair]


@derived
def slowness(cluster: Cluster) -> Slowness:
    """What the bursts say."""
    reach, limits = reached(cluster), cluster.policy.thresholds
    rates = flows.rates(reach, limits.get("NET009.loss_percent", 1.0)) if reach else {}
    bounds = (
        limits.get("NET008.of_peers_percent", flows.OF_PEERS),
        limits.get("NET008.enough_gbit", flows.ENOUGH),
    )
    two = len({node for pair in rates for node in pair}) == 2
    busy = reach.busy if reach else set()
    slow, pairs = flows.slow_nodes(rates, *bounds, busy), flows.slow_pairs(rates, *bounds, busy) if two else set()
    at_leisure = {(node.node, node.sends) for node in flows.slow_nodes(rates, *bounds)} if busy else set()
    doubtful = {node for node, _ in at_leisure - {(node.node, node.sends) for node in slow}}
    if two and busy:
        doubtful |= {node for pair in flows.slow_pairs(rates, *bounds) - pairs for node in pair}
    return Slowness(rates, tuple(slow), frozenset(pairs), frozenset(doubtful))


@derived
def held_up(cluster: Cluster) -> list[HeldUp]:
    """All causes that were seen."""
    pace = slowness(cluster)
    asked = {
        (node.node, node.sends): frozenset(pair for pair in pace.rates if pair[not node.sends] == node.node)
        for node in pace.nodes
    }
    for pair in pace.pairs:
        asked |= {(pair[0], True): frozenset({pair}), (pair[1], False): frozenset({pair})}
    nodes = {node.name: node for node in cluster.nodes}
    links = {link.node: link for link in lan.read_links(cluster)}
    causes = []
    for (name, sends), pairs in asked.items():
        best = max(pace.rates[pair] for pair in pairs)
        if name not in nodes:
            continue
        if small_buffer(cluster, name, sends=sends):
            causes.append(HeldUp("NET016", name, pairs))
        elif shaping.limit(cluster, nodes[name], links.get(name), best, sends=sends):
            causes.append(HeldUp("NET008", name, pairs))
    far = [
        HeldUp("NET018", delayed.node or min(delayed.pairs)[0], delayed.pairs)
        for delayed in delays.delayed(cluster)
    ]
    return [*far, *causes, *_by_detours(cluster, pace)]


def _by_detours(cluster: Cluster, pace: Slowness) -> Iterator[HeldUp]:
    """Ways that leave a node by another interface than the chosen one, unless bursts were as fast as elsewhere."""
    reach = reached(cluster)
    if reach is None:
        return
    for pair, peer in reach.seen.items():
        meant, taken, seen_as = reach.interface(pair[0]), value_or(peer.interface, ""), value_or(peer.seen_as, "")
        if pair in pace.rates and not pace.beside_others(pair):
            continue
        if taken and taken != meant:
            yield HeldUp("NET003", pair[0], frozenset({pair}))
        elif pace.beside_others(pair) and holder(cluster, pair[0], seen_as) not in ("", meant):
            yield HeldUp("NET006", pair[0], frozenset({pair}))


def holder(cluster: Cluster, node: str, address: str) -> str:
    """The interface of this very node that has the address."""
    listed = [at(candidate, "network.interfaces") for candidate in cluster.nodes if candidate.name == node]
    addresses = (
        (interface.name, each.address)
        for interfaces in listed
        if not isinstance(interfaces, Unread)
        for interface in interfaces
        for each in value_or(interface.addresses, [])
    )
    return next((name for name, each in addresses if each == address), "")


def small_buffer(cluster: Cluster, node: str, *, sends: bool) -> bool:
    """Whether TCP there buffers less than is under way."""
    least = cluster.policy.thresholds.get("NET016.kib", LEAST_KIB) * KIB
    name = "tcp_wmem" if sends else "tcp_rmem"
    facts = next((candidate for candidate in cluster.nodes if candidate.name == node), None)
    return facts is not None and value_or(at(facts, f"system.{name}"), least) < least

"""Round trips that are far too long for nodes of one job: another room, another site, or a detour."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import median

from ncclcheck.probes.facts import Cluster, Unread
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.failures.limits import shaping
from ncclcheck.reports.subjects.links import flows
from ncclcheck.reports.subjects.links.reached import Pair, Reached, reached
from ncclcheck.reports.subjects.nccl import lan

# Milliseconds. Within a data centre a round trip takes 0.05 to 0.5 ms; light in fibre takes 5 for 500 km and back.
# The fastest of seven counts: at loads of 16 on 2 cores it stays below 1 ms.
LEAST_MS = 5.0
# Times the median of the other pairs, where there are others.
_FAR_LONGER = 10.0
# The longest by the shortest of a node's round trips, each the fastest of seven. A queue that other traffic keeps
# full varies (1.11 in the lab, 300 Mbit/s); distance does not.
_VARIES = 1.05
# The longest by the shortest round trip, each the fastest of seven, of a node that is far; times the limit that a
# single pair must take where cores are short: chosen. At loads of 25 and 29 on 2 cores one pair of healthy hosts
# took 6.0 and 6.8 ms, both ways.
_ALIKE, _WITHOUT_CORES = 1.3, 10.0
# Share of the reported speed from which other traffic fills a link; chosen.
_FULL = 0.5


@dataclass(frozen=True)
class Delayed:
    """Pairs whose round trips are long. node: in all of them; empty where it is one pair."""

    node: str
    pairs: frozenset[Pair]
    ms: float
    others_ms: float | None


@derived
def delayed(cluster: Cluster) -> list[Delayed]:
    """One a node that explains them, the rest by pair."""
    reach = reached(cluster)
    times = {
        pair: peer.rtt_us / 1000
        for pair, peer in (reach.seen.items() if reach else ())
        if not isinstance(peer.rtt_us, Unread)
    }
    least = cluster.policy.thresholds.get("NET018.ms", LEAST_MS)
    usual = sorted(times.values())[: max(1, len(times) // 2)]
    long = {
        pair for pair, ms in times.items() if ms >= least and (len(times) < 3 or ms >= _FAR_LONGER * median(usual))
    }
    busy = {node.name for node in cluster.nodes if shaping.compared(node)}  # NET008, NET009: no distance
    long = {pair for pair in long if not busy & {*pair}}
    crowded = reach.busy if reach else set()
    blamed: list[Delayed] = []
    for node in sorted(
        {name for pair in long for name in pair}, key=lambda name: -sum(name in pair for pair in long)
    ):
        mine = {pair for pair in times if node in pair}
        if len({*map(frozenset, mine)}) > 1 and mine <= long and len(mine) < len(times):
            waits = reach and _waits_in_a_queue(cluster, reach, node, [times[pair] for pair in mine])
            if not waits and (not crowded or _is_distance(mine, times)):
                blamed.append(_of(node, mine, times))
            long -= mine
    ends = sorted({tuple(sorted(pair)) for pair in long})
    two = [{(a, b), (b, a)} & {*times} for a, b in ends]
    far = [
        pairs
        for pairs in two
        if not any({*pair} & crowded for pair in pairs) or min(times[p] for p in pairs) >= _WITHOUT_CORES * least
    ]
    return [*blamed, *(_of("", pairs, times) for pairs in far)]


def _is_distance(pairs: AbstractSet[Pair], times: Mapping[Pair, float]) -> bool:
    """Whether all take about as long, which those of a machine without cores to spare do not."""
    ms = [times[pair] for pair in pairs]
    return len(ms) > 1 and max(ms) <= _ALIKE * min(ms)


def _of(node: str, pairs: set[Pair], times: dict[Pair, float]) -> Delayed:
    others = [ms for pair, ms in times.items() if pair not in pairs]
    own = min(times[pair] for pair in pairs)
    return Delayed(node, frozenset(pairs), own, median(others) if others else None)


def _waits_in_a_queue(cluster: Cluster, reach: Reached, node: str, ms: list[float]) -> bool:
    """Whether its link is full of others' traffic, behind which packets wait: a slow link (NET008)."""
    link = next((link for link in lan.read_links(cluster) if link.node == node), None)
    rates = flows.rates(reach, cluster.policy.thresholds.get("NET009.loss_percent", 1.0))
    for sends in (True, False) if link else ():
        best = max((rate for pair, rate in rates.items() if pair[not sends] == node), default=None)
        if link and best is not None and shaping.filled(cluster, link, best, sends=sends):
            reported = flows.reported_gbit(link.interface.speed_mbit)
            others = shaping.of_others(cluster, node, sends=sends)
            return others >= _FULL * reported if reported else max(ms) >= _VARIES * min(ms)
    return False

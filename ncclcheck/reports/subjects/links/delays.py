"""Round trips that are far too long for nodes of one job: another room, another site, or a detour."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from ncclcheck.probes.facts import Cluster, Unread
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.links.reached import Pair, reached

# Milliseconds. Within a data centre a round trip takes 0.05 to 0.5 ms; light in fibre takes 5 for 500 km and back.
# The fastest of seven counts: at loads of 16 on 2 cores it stays below 1 ms.
LEAST_MS = 5.0
# Times the median of the other pairs, where there are others.
_FAR_LONGER = 10.0


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
    found = reached(cluster)
    times = {
        pair: peer.rtt_us / 1000
        for pair, peer in (found.seen.items() if found else ())
        if not isinstance(peer.rtt_us, Unread)
    }
    least = cluster.policy.thresholds.get("NET018.ms", LEAST_MS)
    usual = sorted(times.values())[: max(1, len(times) // 2)]
    long = {
        pair for pair, ms in times.items() if ms >= least and (len(times) < 3 or ms >= _FAR_LONGER * median(usual))
    }
    blamed: list[Delayed] = []
    for node in sorted({one for pair in long for one in pair}, key=lambda one: -sum(one in pair for pair in long)):
        mine = {pair for pair in times if node in pair}
        if len({*map(frozenset, mine)}) > 1 and mine <= long and len(mine) < len(times):
            blamed.append(_of(node, mine, times))
            long -= mine
    ends = sorted({tuple(sorted(pair)) for pair in long})
    return [*blamed, *(_of("", {(a, b), (b, a)} & {*times}, times) for a, b in ends)]


def _of(node: str, pairs: set[Pair], times: dict[Pair, float]) -> Delayed:
    others = [ms for pair, ms in times.items() if pair not in pairs]
    own = min(times[pair] for pair in pairs)
    return Delayed(node, frozenset(pairs), own, median(others) if others else None)

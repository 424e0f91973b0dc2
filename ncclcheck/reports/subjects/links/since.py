"""What became of the network while a job ran: the same measurements, before it and after it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import median

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.subjects.failures import held_up
from ncclcheck.reports.subjects.links import flows, in_job, losses
from ncclcheck.reports.subjects.links.losses import LostPackets
from ncclcheck.reports.subjects.links.reached import Pair, after_the_job, reached

# Times slower than before the job, and than the others after it. Two bursts of one healthy pair differ by up to 5
# on machines that share cores; without a core to spare more is asked. Both chosen.
_SLOWER, _WITHOUT_CORES = 8.0, 30.0
_SLOW_ITERATION_US = 1e6  # of an operation of a MiB at most, which takes milliseconds on any network; chosen
_SMALL = 2**20  # bytes
_FAR_BELOW = 20.0  # times that an exchange of the job is slower than the burst before it; chosen, it costs a look


@dataclass(frozen=True)
class SlowerThanBefore:
    """A node, or a way from it to a peer, that carries a part of what it did. Gb/s."""

    node: str
    peer: str
    ways: tuple[str, ...]
    before: float
    after: float
    others: float | None


def doubtful(cluster: Cluster) -> bool:
    """Whether a job that came to its end shows that it may be worth while to measure the ways once more."""
    rows = cluster.measurements.collectives
    slow = any(row.time_us and row.bytes <= _SMALL and row.time_us.max >= _SLOW_ITERATION_US for row in rows)
    return slow or bool(in_job.cuts(cluster) or in_job.lost(cluster)) or _far_below(cluster)


def _far_below(cluster: Cluster) -> bool:
    rates = held_up.slowness(cluster).rates
    carried: dict[Pair, float] = {}
    for time in cluster.measurements.pairs:
        for ends, rate in (((time.a, time.b), time.a_to_b_gb_s), ((time.b, time.a), time.b_to_a_gb_s)):
            if rate is not None:
                carried[ends] = max(carried.get(ends, 0.0), 8 * rate)
    return any(rate * _FAR_BELOW < rates.get(ends, 0.0) for ends, rate in carried.items())


def slower(cluster: Cluster) -> list[SlowerThanBefore]:
    """Nodes of which all bursts became far slower, while others did not; of two nodes a direction, or both."""
    reach = reached(after_the_job(cluster))
    was, now = held_up.slowness(cluster).rates, held_up.slowness(after_the_job(cluster)).rates
    both = {pair: (was[pair], rate) for pair, rate in now.items() if pair in was}
    times = _WITHOUT_CORES if reach and reach.busy else _SLOWER
    slow = {pair for pair, (before, after) in both.items() if after * times <= before and after < flows.ENOUGH}
    if len({node for pair in both for node in pair}) < 3:
        return _of_two({pair: both[pair] for pair in slow})
    named: dict[str, list[tuple[str, set[Pair]]]] = {}
    while worst := _most(slow, both):
        node, way, pairs = worst
        slow -= pairs
        others = [rate for pair, (_, rate) in both.items() if pair not in pairs]
        if max(both[pair][1] for pair in pairs) * times <= median(others):
            named.setdefault(node, []).append((way, pairs))
    return [_slower(node, ways, both) for node, ways in named.items()]


def _most(slow: AbstractSet[Pair], both: Mapping[Pair, object]) -> tuple[str, str, set[Pair]] | None:
    """The node and direction of which all bursts are slow, that explains most of them."""
    ends = {(pair[end], end) for pair in slow for end in (0, 1)}
    whole = {side: {pair for pair in both if pair[side[1]] == side[0]} for side in sorted(ends)}
    able = [(node, end) for (node, end), pairs in whole.items() if pairs <= slow and pairs != both.keys()]
    if not able:
        return None
    node, end = max(able, key=lambda side: len(whole[side]))
    return node, ("sends", "receives")[end], whole[node, end]


def _slower(
    node: str, ways: list[tuple[str, set[Pair]]], both: Mapping[Pair, tuple[float, float]]
) -> SlowerThanBefore:
    pairs = {pair for _, of_way in ways for pair in of_way}
    rest = [rate for pair, (_, rate) in both.items() if pair not in pairs]
    before, after = (max(both[pair][place] for pair in pairs) for place in (0, 1))
    return SlowerThanBefore(node, "", tuple(way for way, _ in ways), before, after, median(rest) if rest else None)


def _of_two(slow: Mapping[Pair, tuple[float, float]]) -> list[SlowerThanBefore]:
    if not slow:
        return []
    (a, b), (before, after) = min(slow.items(), key=lambda item: item[1][1])
    return [SlowerThanBefore(a, b, ("there", "back") if len(slow) > 1 else ("there",), before, after, None)]


def lossy(cluster: Cluster) -> list[LostPackets]:
    """Who loses packets now, and did not before the job."""
    known = {node for loss in losses.lost(cluster) for node in loss.nodes}
    return [loss for loss in losses.lost(after_the_job(cluster)) if loss.node and not loss.nodes & known]

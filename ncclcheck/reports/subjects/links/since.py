"""What became of the network while a job ran: the same measurements, before it and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.subjects.failures import held_up
from ncclcheck.reports.subjects.links import flows, in_job, losses
from ncclcheck.reports.subjects.links.losses import Lost
from ncclcheck.reports.subjects.links.reached import Pair, after_the_job, reached

# Times slower than before the job, and than the others after it. Two bursts of one healthy pair differ by up to 5
# on machines that share cores; without a core to spare more is asked. Both chosen.
_SLOWER, _WITHOUT_CORES = 8.0, 30.0
_SLOW_ITERATION_US = 1e6  # of an operation of a MiB at most, which takes milliseconds on any network; chosen
_SMALL = 2**20  # bytes
_FAR_BELOW = 20.0  # times that an exchange of the job is slower than the burst before it; chosen, it costs a look


@dataclass(frozen=True)
class Slower:
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


def slower(cluster: Cluster) -> list[Slower]:
    """Nodes whose best burst became far slower, while others did not; of two nodes a direction, or both."""
    after, found = after_the_job(cluster), reached(after_the_job(cluster))
    was, now = held_up.slowness(cluster).rates, held_up.slowness(after).rates
    both = {pair: rate for pair, rate in now.items() if pair in was}
    times = _WITHOUT_CORES if found and found.busy else _SLOWER
    names = {node for pair in both for node in pair}
    if len(names) < 3:
        return _of_two({pair: (was[pair], rate) for pair, rate in both.items()}, times)
    found_slow: dict[str, list[tuple[str, float, float, float]]] = {}
    for end, way in ((0, "sends"), (1, "receives")):
        best_was, best = _best(was, both, end), _best(now, both, end)
        for node, rate in best.items():
            others = median(each for name, each in best.items() if name != node)
            if rate * times <= min(best_was[node], others) and rate < flows.ENOUGH:
                found_slow.setdefault(node, []).append((way, best_was[node], rate, others))
    return [
        Slower(node, "", tuple(each[0] for each in told), *min(told, key=lambda each: each[2])[1:])
        for node, told in found_slow.items()
    ]


def _best(rates: Mapping[Pair, float], pairs: Mapping[Pair, float], end: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for pair in pairs:
        best[pair[end]] = max(best.get(pair[end], 0.0), rates[pair])
    return best


def _of_two(rates: Mapping[Pair, tuple[float, float]], times: float) -> list[Slower]:
    slow = {pair: two for pair, two in rates.items() if two[1] * times <= two[0] and two[1] < flows.ENOUGH}
    if not slow:
        return []
    (a, b), (before, after) = min(slow.items(), key=lambda item: item[1][1])
    return [Slower(a, b, ("there", "back") if len(slow) > 1 else ("there",), before, after, None)]


def lossy(cluster: Cluster) -> list[Lost]:
    """Who loses packets now, and did not before the job."""
    known = {node for one in losses.lost(cluster) for node in one.nodes}
    return [one for one in losses.lost(after_the_job(cluster)) if one.node and not one.nodes & known]

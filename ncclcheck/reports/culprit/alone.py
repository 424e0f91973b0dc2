"""Ranks that come late, and GPUs, hosts and nodes that are slow by themselves: no network takes part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeVar

from ncclcheck.probes.facts import Cluster, Lateness, RankSpeed, at, value_or
from ncclcheck.reports.culprit.pairs.samples import slowness_at
from ncclcheck.reports.culprit.pairs.suspects import by
from ncclcheck.reports.subjects.failures.limits.crowded import own_limits

FEW = 3  # values: with fewer there is no usual one, and a spread needs one more; chosen
# us per iteration: a smaller straggle is not worth a finding, however short the iteration; chosen
_STEADY_US = 200.0
# Of the time in which a rank wants a core, the share that it has none. With 12 other processes and more on 2 cores
# the ranks of healthy jobs lacked one for 67 to 95 % of it; a rank that has its core for some 5 %.
_LACKING = 0.5
# Threads of the whole machine that could run, for each of its cores. 4.1 to 6.2 were seen with three ranks and
# some four to six other processes on 2 cores; what the ranks alone make was not seen on a quiet machine.
_BUSY = 3.0
# Of its iterations, the share in which a rank is the last. The latest rank of healthy jobs without cores was it in
# 0.48 of them, one that was held up on purpose on the same machine in all.
_ALWAYS = 0.9
_WAITED = (
    0.1  # the same while a speed is measured, which it lessens by as much; that of healthy ranks is 0.85 and more
)
_SPREADS = 7  # a spread of few values is often underestimated: with 4, one sound cluster in twenty had an outlier
_MAD = 1.4826  # median absolute deviation -> standard deviation of a normal distribution
T = TypeVar("T")
Reason = Literal["starved", "stopped", "busy", "idle", "unseen"]

METRICS = {
    "matmul_gflop_s": "matrix product",
    "memory_gb_s": "memory copy",
    "to_device_gb_s": "copy to the GPU",
    "from_device_gb_s": "copy from the GPU",
}


@dataclass(frozen=True)
class Late:
    """A rank that others wait for. by_us: later than most, an iteration; share: of the iteration's time."""

    fact: Lateness
    by_us: float
    share: float
    reason: Reason
    others_cpu: float
    others_runqueue: float
    others_lack: bool

    @property
    def by_chance(self) -> bool:
        """Whether the others lack cores as well, and nothing but that shows in its own process.

        One that lacks a core does not run when it is due, as one that is stopped; but a stopped one wants none.
        Nor is it chance that always takes the same rank, which lacks cores no more than the others do.
        """
        stopped = self.reason == "stopped" and self.fact.stalled_s > (self.fact.runqueue_s or 0.0)
        always = self.reason in ("idle", "unseen") and self.fact.last >= _ALWAYS * self.fact.iterations
        return self.others_lack and self.reason != "busy" and not stopped and not always


@dataclass(frozen=True)
class Outlier:
    """One number that is an outlier among its peers. rank and device: None where it is the whole node's."""

    node: str
    rank: int | None
    device: str | None
    metric: str
    value: float
    healthy: float
    peers: int

    @property
    def percent(self) -> float:
        """Per cent of what its peers reach."""
        return 100 * self.value / self.healthy


def late_ranks(cluster: Cluster) -> list[Late]:
    """Ranks that are late in most iterations, or so much in some that it costs time. The latest first."""
    return [late for late in _all_late(cluster) if not _by_chance(cluster, late)]


def late_by_chance(cluster: Cluster) -> list[Late]:
    """Ranks that seem late where all of them lack cores: which of them waits longest changes with the next run."""
    return [late for late in _all_late(cluster) if _by_chance(cluster, late)]


def _by_chance(cluster: Cluster, late: Late) -> bool:
    """A quota, a priority or a mask that the other nodes do not have is no chance."""
    return late.by_chance and own_limits(cluster, late.fact.node) is None


def _all_late(cluster: Cluster) -> list[Late]:
    facts = [
        lateness for lateness in cluster.measurements.lateness if lateness.iterations > 0 and lateness.wall_s > 0
    ]
    if len(facts) < 2:
        return []
    least = cluster.policy.thresholds.get("BEN003.percent", 10.0) / 100
    usual = _Usual(facts)
    lates = (_late(lateness, usual, least) for lateness in facts)
    return sorted((late for late in lates if late), key=lambda late: (-late.by_us, late.fact.rank))


class _Usual:
    """Lateness, CPU and waiting of most ranks; of two ranks the lateness of the one that waits."""

    def __init__(self, facts: Sequence[Lateness]) -> None:
        self.steady = _limits([lateness.late_us.p50 for lateness in facts])
        self.mean = _limits([lateness.late_us.mean for lateness in facts])
        self.often = _limits([lateness.late_us.p95 for lateness in facts])
        self.cpu = median(lateness.cpu_s / lateness.wall_s for lateness in facts)
        self.runqueue = median((lateness.runqueue_s or 0.0) / lateness.wall_s for lateness in facts)
        self.lack = 2 * sum(map(lacks_cores, facts)) > len(facts)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """The lower median, and how far above it a value must lie to be no accident."""
    usual = sorted(values)[(len(values) - 1) // 2]
    spread = _MAD * median(abs(value - usual) for value in values) if len(values) > FEW else 0.0
    return usual, 4 * spread


def _over(value: float, limits: tuple[float, float]) -> float:
    return value - limits[0] if value - limits[0] > limits[1] else 0.0


def _late(fact: Lateness, usual: _Usual, least: float) -> Late | None:
    """Late in most iterations; or on average, where some are late by half of one or its process says why."""
    iteration = fact.wall_s / fact.iterations * 1e6
    steady, seldom = _over(fact.late_us.p50, usual.steady), _over(fact.late_us.mean, usual.mean)
    by_us = steady if (is_steady := steady >= least * iteration) else seldom
    if by_us < max(_STEADY_US, least * iteration) or fact.last < 2 or not iteration:
        return None
    reason = _reason(fact, by_us * fact.iterations / 1e6, usual.cpu, usual.runqueue)
    by_much = _over(fact.late_us.p95, usual.often) >= iteration / 2
    if not (is_steady or by_much or reason in ("starved", "stopped")):
        return None
    return Late(fact, by_us, min(1.0, by_us / iteration), reason, usual.cpu, usual.runqueue, usual.lack)


def lacks_cores(lateness: Lateness) -> bool:
    """Its threads had no core for most of the time in which they wanted one, on a machine that has too few."""
    waited = lateness.runqueue_s or 0.0
    return waited > _LACKING * (waited + lateness.cpu_s) and (lateness.running or 0.0) > _BUSY


def _reason(fact: Lateness, lost_s: float, cpu: float, runqueue: float) -> Reason:
    """What its process did in the time that the others lost, beyond what theirs did."""
    if fact.stalled_s >= 0.3 * lost_s:
        return "stopped"
    if (fact.runqueue_s or 0.0) - runqueue * fact.wall_s >= 0.3 * lost_s:
        return "starved"
    if fact.cpu_s - cpu * fact.wall_s >= 0.3 * lost_s:
        return "busy"
    return "unseen" if fact.runqueue_s is None else "idle"


def slow_ranks(cluster: Cluster) -> list[Outlier]:
    """GPUs and hosts that are outliers among ranks of the same hardware."""
    percent = cluster.policy.thresholds.get("BEN015.percent", 85.0)
    models = _models(cluster)
    alike = by(cluster.measurements.rank_speeds, lambda rank: (rank.device[:4], models.get(rank.node, ())))
    slows: list[Outlier] = []
    for metric in METRICS:
        for peers in alike.values():
            values = [
                (peer, getattr(peer, metric)) for peer in peers if getattr(peer, metric) and _had_cores(peer)
            ]
            for speed, value, healthy in _outliers(values, percent):
                slows.append(Outlier(speed.node, speed.rank, speed.device, metric, value, healthy, len(values)))
    return slows


def _had_cores(speed: RankSpeed) -> bool:
    """Whether a speed may be judged: on a GPU always, on a CPU where the rank had cores."""
    return speed.device != "cpu" or speed.waited <= _WAITED


def _models(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """What hardware a node has: only alike ones are compared."""
    models: dict[str, tuple[str, ...]] = {}
    for node in cluster.nodes:
        devices = value_or(at(node, "gpus.cards"), [])
        models[node.name] = tuple(sorted({value_or(gpu.model, "") for gpu in devices}))
    return models


def slow_nodes(cluster: Cluster) -> list[Outlier]:
    """Nodes whose own ranks are slower with each other than those of other nodes."""
    percent = cluster.policy.thresholds.get("BEN016.percent", 85.0)
    models = _models(cluster)
    alike = by(cluster.measurements.node_speeds, lambda node: (node.ranks, node.bytes, models.get(node.node, ())))
    slows: list[Outlier] = []
    for peers in alike.values():
        values = [(peer, peer.busbw_gb_s) for peer in peers if peer.busbw_gb_s and peer.waited <= _WAITED]
        for speed, value, healthy in _outliers(values, percent):
            slows.append(Outlier(speed.node, None, None, "busbw_gb_s", value, healthy, len(values)))
    return slows


def _outliers(values: Sequence[tuple[T, float]], percent: float) -> list[tuple[T, float, float]]:
    """Who stays below so many percent of the median, and below what noise explains. Needs three peers."""
    if len(values) < FEW:
        return []
    logs = [math.log(value) for _, value in values]
    middle = median(logs)
    spread = _MAD * median(abs(log - middle) for log in logs)
    limit = middle - max(slowness_at(percent), _SPREADS * spread)
    return [(peer, value, math.exp(middle)) for peer, value in values if math.log(value) < limit]


def by_node(slow: Iterable[Outlier]) -> dict[tuple[str, int | None], list[Outlier]]:
    """The outliers of each rank; None for those of the whole node."""
    return by(slow, lambda slow: (slow.node, slow.rank))


def ranks_of(speeds: Iterable[RankSpeed | Lateness]) -> dict[str, list[int]]:
    """The ranks of each node, in order: the first stands for rail 0."""
    of_node: dict[str, list[int]] = {}
    for speed in speeds:
        of_node.setdefault(speed.node, []).append(speed.rank)
    return {node: sorted(set(ranks)) for node, ranks in of_node.items()}

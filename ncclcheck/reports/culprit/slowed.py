"""Ways that the job found slow and of which the cause was seen before it: loss, or what holds a node up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.culprit.machines import lack_cores, usual_noise
from ncclcheck.reports.culprit.pairs import two
from ncclcheck.reports.culprit.pairs.blame import FEW
from ncclcheck.reports.culprit.pairs.samples import PERCENT, Ends, OneWay, PairSamples, ends_of, read, slowness_at
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.failures.held_up import HeldUp, held_up, in_the_job
from ncclcheck.reports.subjects.links import losses
from ncclcheck.reports.subjects.links.losses import LostPackets

_LEAST_TIMES = 2  # once is an accident: a burst hits one measurement in a hundred


@dataclass(frozen=True)
class Slowed:
    """A cause, and the ways of the job that it made slow. slowness: that of the worst of them."""

    cause: LostPackets | HeldUp
    ways: tuple[OneWay, ...]
    slowness: float

    @property
    def ends(self) -> set[Ends]:
        """The pairs of nodes that say nothing more of their nodes."""
        return {ends_of(way) for way in self.ways}

    @property
    def what(self) -> str:
        """Words for how slow the worst of its paths is."""
        worst = max(self.ways, key=lambda way: way.slowness)
        share = "nothing" if worst.is_dead else f"{100 * math.exp(-self.slowness):.2g} % of a healthy way"
        return f"{worst.source} to {worst.target} carries {share}"


@derived
def slowed_by_loss(cluster: Cluster) -> list[Slowed]:
    """Only what is below the limit of a failure in BEN004, and in more than one measurement."""
    lossy = [lost for lost in losses.lost(cluster) if lost.node]
    if not lossy or not cluster.measurements.pairs:
        return []
    slow = _slow_ways(cluster)
    explained = [(lost, [way for way in slow if _loses(lost, way)]) for lost in lossy]
    return [Slowed(lost, tuple(ways), max(slow[way] for way in ways)) for lost, ways in explained if ways]


def _loses(lost: LostPackets, way: OneWay) -> bool:
    loss = lost.by_pair.get((way.source, way.target))
    return loss is not None and loss.lost > 0


def _slow_ways(cluster: Cluster, causes: Sequence[HeldUp] = ()) -> dict[OneWay, float]:
    """The slow ways of the job with their slowness; of two nodes the slower direction.

    One exchange that was far slower is enough where a cause for it was seen before.
    """
    limits = cluster.policy.thresholds
    samples = read(cluster.measurements.pairs, limits.get("BEN004.percent", PERCENT), usual_noise(cluster))
    least = slowness_at(limits.get("BEN004.fail_percent", 50.0))
    if len(samples.names) < FEW:
        slower = two.slower(cluster.measurements.pairs)
        proven = slower is not None and slower.is_proven(short_of_cores=lack_cores(cluster))
        return {slower.way: -math.log(slower.share)} if slower and proven else {}
    far = {pair for cause in causes for pair in cause.pairs if in_the_job(cluster, pair)}
    return {
        way: way.slowness
        for way in samples.ways
        if _is_slow(samples, way, least) or (way.source, way.target) in far
    }


def _is_slow(samples: PairSamples, way: OneWay, least: float) -> bool:
    return way.times >= _LEAST_TIMES and way.slowness >= max(least, samples.least(way.times))


@derived
def slowed_by_cause(cluster: Cluster) -> list[Slowed]:
    """What a limit, small buffers, a foreign stream or a detour made slow."""
    causes = held_up(cluster)
    if not causes or not cluster.measurements.pairs:
        return []
    slow = _slow_ways(cluster, causes)
    explained = [(cause, [way for way in slow if (way.source, way.target) in cause.pairs]) for cause in causes]
    return [Slowed(cause, tuple(ways), max(slow[way] for way in ways)) for cause, ways in explained if ways]

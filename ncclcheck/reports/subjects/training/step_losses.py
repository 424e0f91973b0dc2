"""Why several ranks are slower than so many times one: the largest loss of a step, in one plain sentence."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from ncclcheck.probes.facts import Cluster, Unread
from ncclcheck.probes.facts.training import Communication
from ncclcheck.reports.subjects.training import step_times
from ncclcheck.reports.subjects.training.step_times import StepRow, Steps, Straggler
from ncclcheck.reports.text.words.fold import duration

# all ranks of a node together against one alone; some slowdown (clocks, memory) is usual on every host: chosen
CONTENDED = 1.25
_LITTLE = 0.1  # of a step
# of a rank on CPUs, microseconds: a turn of the kernel's scheduler takes as long, and 0.6 ms were seen by chance
_LEAST_CPU_US = 1000.0


@dataclass(frozen=True)
class StepLoss:
    """What a step loses, microseconds, and the words for it."""

    us: float
    words: str


def straggler_ratio(cluster: Cluster, measured: Steps) -> float:
    """From when on a rank is slow. Ranks on CPUs differ by more than GPUs do."""
    return cluster.policy.thresholds.get("TRN020.ratio", 1.10 if measured.on_gpus else 1.5)


def hungry(cluster: Cluster, measured: Steps) -> list[StepRow]:
    """Ranks that wait for data."""
    limits = cluster.policy.thresholds
    share, least = limits.get("TRN019.percent", 10.0) / 100, limits.get("TRN019.ms", 1.0) * 1000
    return [row for row in measured.rows if row.full.phases.data > max(least, share * measured.step)]


def slow(cluster: Cluster, measured: Steps) -> list[Straggler]:
    """Ranks whose own work takes longer, the slowest first; not those that only wait for data."""
    starved = {row.fact.rank for row in hungry(cluster, measured)}
    stragglers = step_times.stragglers(measured, straggler_ratio(cluster, measured))
    named = [
        straggler for straggler in stragglers if straggler.phase != "data" or straggler.fact.rank not in starved
    ]
    seen = [straggler for straggler in named if not step_times.by_chance(measured, straggler)]
    if measured.on_gpus:
        return seen
    return [straggler for straggler in seen if straggler.own - straggler.usual > _LEAST_CPU_US]


def slow_by_chance(cluster: Cluster, measured: Steps) -> list[Straggler]:
    """Ranks that seem slow where all lack cores."""
    stragglers = step_times.stragglers(measured, straggler_ratio(cluster, measured))
    return [straggler for straggler in stragglers if step_times.by_chance(measured, straggler)]


def communication(cluster: Cluster) -> Communication | None:
    """What the steps have to communicate, where it was measured alone."""
    smoke = cluster.measurements.smoke
    return smoke.side.communication if smoke and smoke.side else None


def sentence(cluster: Cluster, measured: Steps) -> str:
    """How much faster the ranks are than one, and what costs most."""
    worst = max(losses(cluster, measured), key=lambda loss: loss.us)
    if worst.us <= _LITTLE * measured.step:
        return f"{_compared(measured)}; nothing costs more than 10 % of a step of {duration(measured.step)}."
    return f"{_compared(measured)}: {worst.words}."


def _compared(measured: Steps) -> str:
    ranks, speedup = len(measured.rows), measured.speedup
    if ranks == 1:
        return "One rank alone"
    if speedup is None:
        return f"{ranks} ranks reach {measured.efficiency:.0%} of what they would without collectives"
    if speedup < 1:
        return f"{ranks} ranks together are slower than one alone ({speedup:.2f} times its samples a second)"
    return f"{ranks} ranks train {speedup:.2f} times as fast as one alone ({ranks} would be ideal)"


def losses(cluster: Cluster, measured: Steps) -> list[StepLoss]:
    """All that a step loses; none that is not there."""
    return [
        _data(measured),
        _straggler(cluster, measured),
        _contention(measured),
        _communication(cluster, measured),
    ]


def _data(measured: Steps) -> StepLoss:
    worst = max(measured.rows, key=lambda row: row.full.phases.data)
    waits = worst.full.phases.data
    return StepLoss(
        waits,
        f"rank {worst.fact.rank} on {worst.fact.node} waits {duration(waits)} of each step of "
        f"{duration(measured.step)} for its data, and the others wait for it",
    )


def _straggler(cluster: Cluster, measured: Steps) -> StepLoss:
    stragglers = slow(cluster, measured)
    if not stragglers:
        return StepLoss(0.0, "")
    worst = stragglers[0]
    return StepLoss(
        worst.own - worst.usual,
        f"all wait for rank {worst.fact.rank} on {worst.fact.node}, whose own work takes {duration(worst.own)} a "
        f"step where that of the others takes {duration(worst.usual)}; most of it is lost in "
        f"{step_times.PHASES[worst.phase]}",
    )


def _contention(measured: Steps) -> StepLoss:
    nodes = step_times.contended(measured, CONTENDED)
    if not nodes:
        return StepLoss(0.0, "")
    node = max(nodes, key=lambda name: nodes[name][1] - nodes[name][0])
    alone, together = nodes[node]
    return StepLoss(
        together - alone,
        f"the ranks of {node} take each other's cores: a step without collectives takes {duration(alone)} for one "
        f"rank alone and {duration(together)} when all compute, which is the host, not the network",
    )


def _communication(cluster: Cluster, measured: Steps) -> StepLoss:
    words = (
        f"of each step of {duration(measured.step)}, {duration(measured.exposed)} are communication"
        f"{_link(cluster)} that the backward pass does not hide"
    )
    exchange = communication(cluster)
    if exchange is None:
        return StepLoss(measured.exposed, words)
    alone, backward = exchange.alone_us.p50, median(row.twin.phases.backward for row in measured.rows)
    words += f"; by itself it takes {duration(alone)}"
    if alone > backward:
        words += f", longer than the backward pass of {duration(backward)}: the batch is too small to hide it"
    elif not measured.on_gpus:
        words += ", and on CPUs it takes their cores from the backward pass as well"
    return StepLoss(measured.exposed, words)


def _link(cluster: Cluster) -> str:
    """What carries it, where that was seen."""
    kinds = {
        connection.kind
        for rank in cluster.measurements.transport
        if not isinstance(rank.connections, Unread)
        for connection in rank.connections
        if connection.count
    }
    return f" over {', '.join(sorted(kinds))}" if kinds else ""

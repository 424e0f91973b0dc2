"""What the times of a training step say: who is slow by himself, what communication costs, what more ranks bring.

All ranks take equally long for a step with collectives, for they wait for each other in its backward pass. Only
the same step without collectives, the twin, shows what each rank's own work takes: the slowest twin sets the pace,
what a rank has left to that it waits, and what the step takes beyond the slowest twin is communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeGuard

from ncclcheck.probes.facts import Cluster, Times
from ncclcheck.probes.facts.training import Communication, StepTimes, Timed

_LEAST_US = 300.0  # a step of a small model differs by this much from jitter of the host alone: chosen
_SHORTEST_US = 0.1  # a step below it was not timed: divisions by it would be without meaning


@dataclass(frozen=True)
class StepRow:
    """One rank's step, microseconds. wait: for slower ranks; comm: communication that backward does not hide."""

    fact: StepTimes
    full: Timed
    twin: Timed
    wait: float
    comm: float


@dataclass(frozen=True)
class Steps:
    """The steps of all ranks that measured both kinds. exposed: the step less the slowest twin."""

    rows: list[StepRow]
    step: float
    slowest: float
    typical: float
    exposed: float

    @property
    def on_gpus(self) -> bool:
        """Whether the ranks compute on GPUs."""
        return all(row.fact.device != "cpu" for row in self.rows)

    @property
    def samples(self) -> int:
        """Of all ranks together, in one step."""
        return sum(row.fact.samples for row in self.rows)

    @property
    def samples_a_second(self) -> float:
        """Of all ranks together."""
        return self.samples / self.step * 1e6

    @property
    def alone(self) -> float | None:
        """A step of one rank while the others of its node rest; None where nobody tried."""
        seen = [solo.step_us.p50 for row in self.rows if _took(solo := row.fact.solo)]
        return median(seen) if seen else None

    @property
    def efficiency(self) -> float:
        """Of what the ranks would reach without collectives; 1 is ideal."""
        return min(1.0, self.typical / self.step)

    @property
    def speedup(self) -> float | None:
        """How many times as many samples a second as one rank alone; ideal is the number of ranks."""
        return len(self.rows) * self.alone / self.step if self.alone else None


def steps(cluster: Cluster) -> Steps | None:
    """None where no rank measured both kinds of steps."""
    smoke = cluster.measurements.smoke
    facts = smoke.steps if smoke else []
    both = [(fact, fact.full, fact.twin) for fact in facts if _took(fact.full) and _took(fact.twin)]
    if not both:
        return None
    twins = [twin.step_us.p50 for _, _, twin in both]
    step, slowest = max(full.step_us.p50 for _, full, _ in both), max(twins)
    rows = [StepRow(fact, full, twin, *_left(full, twin, slowest)) for fact, full, twin in both]
    return Steps(
        sorted(rows, key=lambda row: row.fact.rank), step, slowest, median(twins), max(0.0, step - slowest)
    )


def _took(timed: Timed | None) -> TypeGuard[Timed]:
    """Whether it was timed, and took any time."""
    return timed is not None and timed.step_us.p50 >= _SHORTEST_US


def _left(full: Timed, twin: Timed, slowest: float) -> tuple[float, float]:
    """What of a rank's step is not its own work: waiting for the slowest rank, and communication."""
    left = max(0.0, full.step_us.p50 - twin.step_us.p50)
    wait = min(left, slowest - twin.step_us.p50)
    return wait, left - wait


@dataclass(frozen=True)
class Straggler:
    """A rank whose own work takes longer than that of most. phase: in which it loses most of it."""

    fact: StepTimes
    own: float
    usual: float
    phase: str
    phase_by: float

    @property
    def ratio(self) -> float:
        """Own time over that of most."""
        return self.own / self.usual if self.usual else float("inf")


PHASES = {
    "data": "waiting for data",
    "to_device": "copying to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
}


def stragglers(measured: Steps, ratio: float) -> list[Straggler]:
    """Ranks that are slow in the twin steps and, where each worked alone too, in those as well; the slowest first.

    Time without a core is not a rank's own. The lower end of the median's interval must be above the limit.
    """
    rows = measured.rows
    if len(rows) < 2:
        return []
    own = usual([row.twin.own_us.p50 for row in rows])
    alone = [row.fact.solo.own_us.p50 for row in rows if row.fact.solo]
    confirmed = usual(alone) if len(alone) == len(rows) else None
    most = {name: usual([getattr(row.twin.phases, name) for row in rows]) for name in PHASES}
    slow = [row for row in rows if _is_slow(row, own, confirmed, ratio)]
    slowest = [Straggler(row.fact, row.twin.own_us.p50, own, *_phase(row, most)) for row in slow]
    return sorted(slowest, key=lambda straggler: -straggler.own)


def usual(values: Sequence[float]) -> float:
    """What most ranks take; of two the faster one."""
    return min(values) if len(values) == 2 else median(values)


def _is_slow(row: StepRow, own: float, alone: float | None, ratio: float) -> bool:
    if not _above(_low(row.twin.own_us), own, ratio):
        return False
    return alone is None or row.fact.solo is None or _above(_low(row.fact.solo.own_us), alone, ratio)


def _above(mine: float, others: float, ratio: float) -> bool:
    return mine > ratio * others and mine - others > _LEAST_US


def _low(times: Times) -> float:
    return times.p50 if times.median_low is None else times.median_low


def _phase(row: StepRow, most: dict[str, float]) -> tuple[str, float]:
    """Where the rank loses most against the others, and how much."""
    lost = {name: getattr(row.twin.phases, name) - most[name] for name in PHASES}
    worst = max(lost, key=lambda name: lost[name])
    return worst, lost[worst]


def contended(measured: Steps, ratio: float) -> dict[str, tuple[float, float]]:
    """Nodes whose ranks slow each other down -> microseconds of a step of a rank alone, and of all at once."""
    nodes: dict[str, list[tuple[float, float]]] = {}
    for row in measured.rows:
        if _took(solo := row.fact.solo):
            nodes.setdefault(row.fact.node, []).append((solo.step_us.p50, row.twin.step_us.p50))
    medians = {node: (median(s for s, _ in both), median(t for _, t in both)) for node, both in nodes.items()}
    return {node: (solo, twin) for node, (solo, twin) in medians.items() if _above(twin, solo, ratio)}


def starved(measured: Steps, ratio: float) -> list[StepRow]:
    """Ranks that take longer than most because they have no core for a quarter of their step."""
    if len(measured.rows) < 2:
        return []
    most = usual([row.twin.step_us.p50 for row in measured.rows])
    return [
        row for row in measured.rows if _above(_low(row.twin.step_us), most, ratio) and _lacks_a_core(row.twin)
    ]


def _lacks_a_core(timed: Timed) -> bool:
    return (timed.core_us or 0.0) > timed.step_us.p50 / 4


def _short_of_cores(timed: Timed) -> bool:
    """Whether it had no core for a twentieth of its step (chosen), or that is not known."""
    return timed.core_us is None or timed.core_us > timed.step_us.p50 / 20


def lack_cores(measured: Steps) -> bool:
    """Whether most ranks have no core for a quarter of their twin step.

    Of four ranks of healthy jobs on 2 cores that other processes used as well it was 54 to 58 % of it.
    """
    return 2 * sum(_lacks_a_core(row.twin) for row in measured.rows) > len(measured.rows)


def by_chance(measured: Steps, straggler: Straggler) -> bool:
    """Whether all lack cores, or ranks on CPUs this one, and it loses no more than the time in which it had none.

    Its threads wait for each other, so its own time grows as well; which rank loses most changes with the run. On
    CPUs that others use too, a rank that was not timed alone is not told from one that got fewer cores.
    """
    twin = straggler.fact.twin
    if (
        not measured.on_gpus
        and straggler.fact.solo is None
        and any(_short_of_cores(row.twin) for row in measured.rows)
    ):
        return True
    shared = not measured.on_gpus or lack_cores(measured)
    return shared and twin is not None and straggler.own - straggler.usual <= (twin.core_us or 0.0)


def exposure(communication: Communication, measured: Steps) -> float:
    """Microseconds that backward cannot hide: the last bucket, and what is longer than backward itself."""
    alone = communication.alone_us.p50
    backward = median(row.twin.phases.backward for row in measured.rows)
    whole = sum(communication.buckets)
    last = communication.buckets[-1] / whole if whole else 1.0
    return max(alone * last, alone - backward)

"""Who makes all ranks wait in the steps of the training run."""

from __future__ import annotations

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import StepTimes
from ncclcheck.reports.judgement.findings import Culprit, Where
from ncclcheck.reports.subjects.training import step_losses, step_times
from ncclcheck.reports.text.words.fold import duration

# An order, no probability: slow with all ranks at once and alone; in the first only; waiting for data.
_ALONE, _TOGETHER, _HUNGRY = 0.95, 0.8, 0.7
_MOST = 4  # ranks of each kind that are named: a step has few stragglers worth a line; chosen


def in_training(cluster: Cluster) -> list[Culprit]:
    """Ranks that are slow by themselves, and such as wait for data when most do not."""
    measured = step_times.steps(cluster)
    if measured is None or len(measured.rows) < 2:
        return []
    slow = [
        _culprit(
            straggler.fact,
            _ALONE if straggler.fact.solo else _TOGETHER,
            "TRN020",
            f"its own work takes {duration(straggler.own)} a step, that of the others {duration(straggler.usual)}",
        )
        for straggler in step_losses.slow(cluster, measured)
    ]
    hungry = step_losses.hungry(cluster, measured)
    few = hungry if 2 * len(hungry) <= len(measured.rows) else []
    waits = [
        _culprit(
            row.fact, _HUNGRY, "TRN019", f"it waits {duration(row.full.phases.data)} of each step for its data"
        )
        for row in few
    ]
    return [*slow[:_MOST], *waits[:_MOST]]


def _culprit(fact: StepTimes, confidence: float, code: str, why: str) -> Culprit:
    return Culprit(
        kind="rank",
        names=[f"{fact.node}/rank {fact.rank}"],
        where=[Where(node=fact.node, rank=fact.rank)],
        confidence=confidence,
        explains=[code],
        why=why,
    )

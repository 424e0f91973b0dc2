"""Who is to blame for what is slow, and which pairs must be measured to know it."""

from __future__ import annotations

from ncclcheck.reports.culprit.alone import late_by_chance, late_ranks, slow_nodes, slow_ranks
from ncclcheck.reports.culprit.machines import between_real_machines, lack_cores, with_cores_of_their_own
from ncclcheck.reports.culprit.naming import (
    culprits,
    seen_once,
    through_network,
    unproven_of_two,
    without_cores,
    wrong_of_two,
)
from ncclcheck.reports.culprit.pairs.rounds import next_round
from ncclcheck.reports.culprit.pairs.samples import slowness_at
from ncclcheck.reports.culprit.slowed import Slowed, slowed_by_loss

__all__ = [
    "Slowed",
    "between_real_machines",
    "culprits",
    "lack_cores",
    "late_by_chance",
    "late_ranks",
    "next_round",
    "seen_once",
    "slow_nodes",
    "slow_ranks",
    "slowed_by_loss",
    "slowness_at",
    "through_network",
    "unproven_of_two",
    "with_cores_of_their_own",
    "without_cores",
    "wrong_of_two",
]

"""Who is to blame for what is slow, and which pairs must be measured to know it."""

from __future__ import annotations

from ncclcheck.reports.culprit.alone import late_ranks, slow_nodes, slow_ranks
from ncclcheck.reports.culprit.machines import between_real_machines, with_cores_of_their_own
from ncclcheck.reports.culprit.naming import culprits, seen_once, through_network
from ncclcheck.reports.culprit.rounds import next_round
from ncclcheck.reports.culprit.samples import slowness_at

__all__ = [
    "between_real_machines",
    "culprits",
    "late_ranks",
    "next_round",
    "seen_once",
    "slow_nodes",
    "slow_ranks",
    "slowness_at",
    "through_network",
    "with_cores_of_their_own",
]

"""Who is to blame for what is slow, and which pairs must be measured to know it."""

from __future__ import annotations

from ncclcheck.reports.culprit.alone import late_ranks, slow_nodes, slow_ranks
from ncclcheck.reports.culprit.naming import between_real_machines, culprits, through_network
from ncclcheck.reports.culprit.rounds import next_round

__all__ = [
    "between_real_machines",
    "culprits",
    "late_ranks",
    "next_round",
    "slow_nodes",
    "slow_ranks",
    "through_network",
]

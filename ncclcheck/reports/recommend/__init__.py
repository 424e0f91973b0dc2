"""Cluster and verdicts -> recommended settings, each with its evidence. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.findings import Verdict
from ncclcheck.reports.jsondoc import Recommendation


def recommend(cluster: Cluster, verdicts: Sequence[Verdict]) -> list[Recommendation]:
    """What to set, to unset and to try; nothing where NCCL's own choice is right on every node."""
    del cluster, verdicts
    return []

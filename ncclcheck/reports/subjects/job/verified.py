"""What a run with the recommended settings says of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.jsondoc import Recommendation


def kept(cluster: Cluster, recommendations: Sequence[Recommendation]) -> list[Recommendation]:
    """Without what was tried and did not survive."""
    tried = cluster.measurements.verified
    if tried is None or tried.survived:
        return [*recommendations]
    return [
        recommendation
        for recommendation in recommendations
        if recommendation.action not in ("set", "unset") or recommendation.variable not in tried.variables
    ]

"""Whether it is worth while to try groups: every pair is sound, and the whole is not."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import Cluster, Collective, PairTime
from ncclcheck.reports.culprit.pairs.blame import blame
from ncclcheck.reports.culprit.pairs.samples import read
from ncclcheck.reports.subjects.failures import lost
from ncclcheck.reports.subjects.links.filters import volleys
from ncclcheck.reports.subjects.links.reached import closed_to

# Share of the slowest pair that the whole must reach. On CPUs no share tells: four healthy hosts that lacked
# cores reached 0.03 of it (lab, load 24).
_LEAST = {"nccl": 0.4}
_LARGE = 2**20  # bytes: below that it is latency that counts


def pairs_are_sound(pairs: Sequence[PairTime], *, whole_failed: bool = False) -> bool:
    """All exchanges came to their end, and none of them is to blame.

    A pair that is slow explains a whole that is, and none that gets nothing through.
    """
    passed = bool(pairs) and all(pair.state == "ok" for pair in pairs)
    return passed and (whole_failed or not blame(read(pairs)))


def whole_is_bad(rows: Sequence[Collective], pairs: Sequence[PairTime], backend: str) -> bool:
    """The largest all_reduce is far below what the slowest pair carries one way."""
    whole = [row.busbw_gb_s for row in rows if row.op == "all_reduce" and row.bytes >= _LARGE and row.busbw_gb_s]
    ways = [way for pair in pairs for way in (pair.a_to_b_gb_s, pair.b_to_a_gb_s) if way and pair.bytes >= _LARGE]
    return bool(whole and ways) and max(whole) < _LEAST.get(backend, 0.0) * min(ways)


def whole_has_failed(cluster: Cluster) -> bool:
    """The job did not come to its end though every rank was there, and nothing explains it."""
    limit = cluster.policy.thresholds.get("NET009.loss_percent", 1.0)
    explained = closed_to(cluster) or volleys.stops_a_job(cluster, limit)
    return not explained and lost.none_to_blame(cluster)

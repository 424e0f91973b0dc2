"""Whether nodes are machines of their own, and how steady the ways between them are at best."""

from __future__ import annotations

from statistics import median

from ncclcheck.probes.facts import Cluster, at, value_or
from ncclcheck.reports.culprit.alone import lacks_cores
from ncclcheck.reports.judgement.rule import NothingToJudge

# Spread of the logarithm of one measurement. RDMA and sockets: assumed. Where cores are shared 0.11 to 0.19 was
# measured, and the exchanges of one second are slow together. Where they are short, with 12 other processes or
# more on 2 cores, ways of healthy hosts carried 0.24 to 1.8 GB/s in turn: 0.5 to 0.8.
_RDMA, _SOCKETS, _SHARED, _STARVED = 0.02, 0.08, 0.25, 0.8
_LONG = 0.25  # of the wall time, all threads together


def between_real_machines(cluster: Cluster, *, but_for: str = "none") -> None:
    """Simulated nodes share one machine: what differs between them is no fault. Raises NothingToJudge.

    but_for: the kind of injected fault that makes them differ all the same.
    """
    if not machines_differ(cluster, but_for=but_for):
        raise NothingToJudge("simulated nodes are one machine")


def with_cores_of_their_own(cluster: Cluster) -> None:
    """Where ranks take cores from each other, what one reaches alone says little. Raises NothingToJudge."""
    between_real_machines(cluster)
    if share_cores(cluster):
        raise NothingToJudge("the ranks have too few cores, or share them: they waited for one much of the time")


def machines_differ(cluster: Cluster, *, but_for: str = "none") -> bool:
    """Whether nodes are machines of their own, or a fault that makes them differ was injected."""
    return not cluster.job.simulated or any(fault.startswith(but_for) for fault in cluster.job.injected)


def share_cores(cluster: Cluster) -> bool:
    """Two nodes are under one kernel (the boot id is its own), or most ranks waited long for a core."""
    boots = [boot for node in cluster.nodes if (boot := value_or(at(node, "host.boot_id"), ""))]
    waits = [
        (lateness.runqueue_s or 0.0) / lateness.wall_s
        for lateness in cluster.measurements.lateness
        if lateness.wall_s > 0
    ]
    return len(boots) > len({*boots}) or (bool(waits) and median(waits) > _LONG)


def lack_cores(cluster: Cluster) -> bool:
    """Whether most ranks lacked cores; False with GPUs, which work on without."""
    lacking = [lacks_cores(lateness) for lateness in cluster.measurements.lateness if lateness.wall_s > 0]
    return cluster.job.backend != "nccl" and 2 * sum(lacking) > len(lacking)


def exchanges_lacked_cores(cluster: Cluster) -> bool:
    """Whether most exchanges of two nodes were short of cores, or most ranks were in the collectives."""
    waits = [pair.waited for pair in cluster.measurements.pairs]
    waited = cluster.job.backend != "nccl" and bool(waits) and median(waits) > _LONG
    return waited or lack_cores(cluster)


def usual_noise(cluster: Cluster) -> float:
    """What measurements differ by where nothing is wrong; few of them would show less by accident."""
    if exchanges_lacked_cores(cluster):
        return _STARVED
    if share_cores(cluster):
        return _SHARED
    return _SOCKETS if cluster.job.backend == "gloo" else _RDMA

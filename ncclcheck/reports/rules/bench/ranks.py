"""BEN: ranks that come late, and what ranks and nodes reach without a network."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.culprit import (
    between_real_machines,
    late_by_chance,
    late_ranks,
    slow_nodes,
    slow_ranks,
    with_cores_of_their_own,
)
from ncclcheck.reports.culprit.alone import FEW, Late, Outlier
from ncclcheck.reports.culprit.words import late, slow
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, fail, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.failures.limits.crowded import held_back

# What a rank did meanwhile that something outside of its process may have caused.
_HELD = ("starved", "stopped", "idle", "unseen")


@rule(
    "BEN003", "no rank is a straggler", worst=State.FAIL, over="measurements.lateness", at_least=2,
    ground=("VER017",),
    commands=("bench",),
)  # fmt: skip
def no_rank_is_late(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    All ranks enter each iteration of a collective at about the same time.

    ## Why it matters
    A collective starts for nobody before the last has come: one rank that is late by 20 ms makes every other one
    wait 20 ms, a thousand GPUs or ten thousand. It looks like a slow network, and it is none.

    ## Seen as
    slow

    ## How we know
    The late rank waits least: how late a rank is, is the longest wait of any rank less its own, so no clocks are
    compared, and the one that takes longest is not the one to blame. A warning where a rank is later than most
    by 10 % of the iteration (BEN003.percent), in most iterations, or on average where its process shows why; a
    failure from 50 % on (BEN003.fail_percent): most of the time. /proc shows what it did meanwhile: waited for a
    core, computed, was stopped, or none of these. What held it back is named where it was counted on its node: a
    CPU quota that was used up (cpu.stat), nice, SCHED_IDLE, a narrow affinity mask, other processes with their
    owner and share, memory.high, pressure (/proc/pressure). Where most ranks have no core for most of the time in
    which they want one, on machines with more than three running threads a core, chance decides who is late: a
    note, unless the process computed or was stopped, or lacks them no more than the others do and is the last in
    nine of ten iterations.

    ## Fix
    - **you** runnable without a core: fewer data loader workers, `--cpus-per-task`, other jobs on the node.
      Computing: garbage collection, input, logging on this rank.
    - **admin** on the named node: `top`, cgroup CPU quotas, swapping, clocks, processes that nobody asked for.

    ## Source
    proc(5) manual page, /proc/PID/schedstat; NVIDIA/nccl#701 (a late rank taken for a slow network).
    """
    between_real_machines(cluster, but_for="slow-rank")
    least = cluster.policy.thresholds.get("BEN003.fail_percent", 50.0) / 100
    for late_rank in late_ranks(cluster):
        make = fail if late_rank.share >= least else warn
        exhausted = (
            held_back(cluster, late_rank.fact.node, _pid(cluster, late_rank.fact.rank))
            if late_rank.reason in _HELD
            else None
        )
        yield make(
            Where(node=late_rank.fact.node, rank=late_rank.fact.rank),
            f"{exhausted.words}; it {late(late_rank)}" if exhausted else late(late_rank),
            why="All other ranks wait for it in every collective.",
            owner=exhausted.owner if exhausted else "job" if late_rank.reason == "busy" else "node",
            evidence=[
                seen(
                    "waits of all ranks and /proc/self/schedstat", f"p95 {late_rank.fact.late_us.p95:.0f} us late"
                ),
                *(exhausted.evidence if exhausted else ()),
            ],
            fix=[*exhausted.fix] if exhausted else _mend(late_rank),
        )
    yield from (_by_chance(straggler) for straggler in late_by_chance(cluster))


def _pid(cluster: Cluster, rank: int) -> int | None:
    return next((state.pid for state in cluster.run.ranks if state.rank == rank), None)


def _by_chance(straggler: Late) -> Finding:
    """All ranks lack cores: nobody in particular is to blame."""
    return note(
        Where(node=straggler.fact.node, rank=straggler.fact.rank),
        f"not judged, for the ranks wait for cores: {late(straggler)}",
        why="Where every rank lacks a core, the one that is late is another one in the next run.",
        owner="node",
        evidence=[
            seen(
                "/proc/self/schedstat",
                f"others wait {100 * straggler.others_runqueue:.0f} % of the time",
            )
        ],
        fix=[
            you("Run again when the machines are quiet, or give the job cores of its own."),
            admin("See what else takes the cores.", "top -b -n 1 | head -20"),
        ],
    )


def _mend(straggler: Late) -> list[Remedy]:
    node = straggler.fact.node
    if straggler.reason == "busy":
        return [
            you(
                "Look at what this rank computes between collectives.",
                f"py-spy top --pid PID  # on {node}",
            )
        ]
    if straggler.reason == "idle":
        return [
            you(
                "See whether it reads files or sleeps between collectives.", f"py-spy dump --pid PID  # on {node}"
            ),
            admin("See whether the node waits for disks or swaps.", "vmstat 1 5"),
        ]
    return [
        you("Give the job its cores: fewer workers, or --cpus-per-task."),
        admin(
            "See what else runs on the node, and whether a cgroup limits the job.",
            "top -b -n 1 | head -20",
            "vmstat 1 5",
        ),
    ]


@rule(
    "BEN015", "every GPU and host is as fast as its peers", worst=State.FAIL, over="measurements.rank_speeds",
    ground=("VER017",),
    at_least=FEW, commands=("bench",),
)  # fmt: skip
def every_rank_is_as_fast(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    A matrix product, a memory copy and copies between host and GPU, on each rank alone, beside those of the
    other ranks on the same hardware.

    ## Why it matters
    Training goes at the pace of the slowest GPU. One that is throttled, or a host with one memory channel fewer,
    slows all others, and in the collectives it looks like a slow network.

    ## Seen as
    slow

    ## How we know
    Ranks with the same GPU models are compared with their median. A warning below 85 % of it (BEN015.percent)
    that the spread of all does not explain, a failure below 50 % (BEN015.fail_percent). Needs three ranks
    with cores of their own: not containers on one machine (the same boot id), nor ranks that waited for a core
    for a quarter of the time (/proc/self/schedstat), or for a tenth of it while this was measured on a CPU.

    ## Fix
    - **you** leave the named node out until it is repaired.
    - **admin** clocks, power and temperature (`nvidia-smi -q -d PERFORMANCE,CLOCK`), PCIe width, memory modules.

    ## Source
    pytorch/torchtitan#915 (slow nodes found by a matrix product before training).
    """
    with_cores_of_their_own(cluster)
    yield from _outliers(cluster, slow_ranks(cluster), "BEN015")


@rule(
    "BEN016", "intra-node bandwidth is the same on all nodes", worst=State.FAIL,
    ground=("VER017",),
    over="measurements.node_speeds", at_least=FEW, commands=("bench",),
)  # fmt: skip
def every_node_is_as_fast_inside(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    An all_reduce among the ranks of one node alone, beside those of the other nodes.

    ## Why it matters
    No network takes part: a node that is slow here has an NVLink down, peer access off, or a slow host, and makes
    all collectives over all nodes slow as well.

    ## Seen as
    slow

    ## How we know
    Nodes with the same GPU models and as many ranks are compared with their median. A warning below 85 % of it
    (BEN016.percent), a failure below 50 % (BEN016.fail_percent). Needs three nodes, and
    cores as BEN015 does.

    ## Fix
    - **you** leave the named node out until it is repaired.
    - **admin** `nvidia-smi nvlink -s`, `nvidia-smi topo -m`, ACS and IOMMU settings, as on a healthy node.

    ## Source
    NVIDIA/DCGM#198 (NVLink faults that only a real collective shows).
    """
    with_cores_of_their_own(cluster)
    measured = [node_speed for node_speed in cluster.measurements.node_speeds if node_speed.busbw_gb_s]
    if len(measured) < FEW:
        raise NothingToJudge("fewer than three nodes measured a collective of their own")
    yield from _outliers(cluster, slow_nodes(cluster), "BEN016")


def _outliers(cluster: Cluster, slows: list[Outlier], code: str) -> Iterator[Finding]:
    least = cluster.policy.thresholds.get(f"{code}.fail_percent", 50.0)
    for outlier in slows:
        make = fail if outlier.percent < least else warn
        exhausted = held_back(cluster, outlier.node, None if outlier.rank is None else _pid(cluster, outlier.rank))
        yield make(
            Where(node=outlier.node, rank=outlier.rank, device=outlier.device),
            f"{slow(outlier)}; {exhausted.words}" if exhausted else slow(outlier),
            why="All other ranks wait for the slowest one in every step.",
            owner=exhausted.owner if exhausted else "node",
            evidence=[
                seen(
                    outlier.metric, f"{outlier.value:.6g}, median of {outlier.peers} peers {outlier.healthy:.6g}"
                ),
                *(exhausted.evidence if exhausted else ()),
            ],
            fix=[*exhausted.fix]
            if exhausted
            else [
                you("Leave the node out and run again.", f"sbatch --exclude={quote(outlier.node)} JOB"),
                admin(
                    "Compare clocks, power and links with a healthy node.", "nvidia-smi -q -d PERFORMANCE,CLOCK"
                ),
            ],
        )

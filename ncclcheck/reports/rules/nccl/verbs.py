"""Settings of NCCL's verbs transport that are better left to NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, State, note, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl.settings import nodes_with
from ncclcheck.reports.subjects.nccl.variables import Version

_TIMEOUTS: tuple[tuple[Version, int], ...] = (((2, 23, 4), 20), ((2, 14, 3), 18), ((0, 0, 0), 14))
_RETRIES = 7  # NCCL's default, and the most that the 3 bits of InfiniBand's retry count hold


@rule("NCC031", "InfiniBand timeout and retry count are not lowered", worst=State.WARN, needs=("job.variables",))
def lowered_timeout(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_IB_TIMEOUT below the default of this NCCL, or NCCL_IB_RETRY_CNT below 7. Down to two below the default it
    is a note: it still waits for seconds.

    ## Why it matters
    Together they say how long a lost packet or a switch that restarts is waited for: 18 gives up after some 8
    seconds, 20 after half a minute, 22 after two. NCCL raised its default from 14 over 18 to 20, and a value that
    once made jobs more patient makes them less so today: `got completion with error 12` in a long run.

    ## Seen as
    dies

    ## How we know
    The default is 14 before NCCL 2.14, 18 from 2.14 to 2.22, 20 from 2.23 on. An unknown version counts as new.

    ## Fix
    - **you** remove both; on large clusters NCCL_IB_TIMEOUT=22 is common.

    ## Source
    NCCL user guide, NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT; NVIDIA/nccl src/transport/net_ib (2.3 to 2.30).
    """
    for settings in nodes_with(cluster, "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"):
        for name, wanted in least(settings.version).items():
            number = settings.number(name)
            if number is None or number >= wanted or (name == "NCCL_IB_TIMEOUT" and number <= 0):
                continue
            level = warn if number < lowest(settings.version)[name] else note
            yield level(
                settings.where,
                f"{name}={number} is below the default of {wanted}",
                why="A brief failure of a link or switch then ends the job with error 12.",
                owner="job",
                evidence=settings.evidence(name),
                fix=[you("Remove it.", f"unset {name}")],
            )


def least(version: Version | None) -> dict[str, int]:
    """The defaults of a version, below which neither should be; an unknown version counts as new."""
    default = next(value for since, value in _TIMEOUTS if (version or (99, 0, 0)) >= since)
    return {"NCCL_IB_TIMEOUT": default, "NCCL_IB_RETRY_CNT": _RETRIES}


def lowest(version: Version | None) -> dict[str, int]:
    """What is no more than a little impatient: NeMo's and many DGX scripts have 19 where the default is 20."""
    wanted = least(version)
    return {**wanted, "NCCL_IB_TIMEOUT": wanted["NCCL_IB_TIMEOUT"] - 2}


@rule("NCC032", "NCCL_NET_GDR_C2C is left to NCCL from 2.27 on", worst=State.NOTE, needs=("job.variables",))
def forced_gpudirect(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_NET_GDR_C2C with NCCL 2.27 and later.

    ## Why it matters
    Before 2.27 it had to be 1 for GPUDirect through the processor of Grace machines. It is 1 by itself since, and
    0 takes that path from them. Training frameworks removed it.

    ## How we know
    The variable and the version of the libnccl that torch would load. NCCL_NET_GDR_LEVEL is not judged: without it
    NCCL goes no farther than one tree of PCIe switches (PXB), in every version, and whether more is better only a
    measurement shows it.

    ## Fix
    - **you** remove it.

    ## Source
    NCCL user guide, NCCL_NET_GDR_C2C; NVIDIA/nccl src/graph/paths.cc; NVIDIA-NeMo/Megatron-Bridge#1638 and #1639.
    """
    for settings in nodes_with(cluster, "NCCL_NET_GDR_C2C"):
        number = settings.number("NCCL_NET_GDR_C2C")
        if settings.since(2, 27, 0) and number is not None:
            what = "has no effect, for it is the default" if number else "turns GPUDirect over C2C off"
            yield note(
                settings.where,
                f"NCCL_NET_GDR_C2C={number} {what}",
                why="NCCL 2.27 and later have it on by themselves.",
                evidence=settings.evidence("NCCL_NET_GDR_C2C"),
                fix=[you("Remove it.", "unset NCCL_NET_GDR_C2C")],
            )

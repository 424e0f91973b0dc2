"""Settings of NCCL's verbs transport that are better left to NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.findings import Finding, State, note, warn, you
from ncclcheck.reports.rule import rule
from ncclcheck.reports.settings import nodes_with
from ncclcheck.reports.variables import Version

_TIMEOUTS: tuple[tuple[Version, int], ...] = (((2, 23, 4), 20), ((2, 14, 3), 18), ((0, 0, 0), 14))
_RETRIES = 7


@rule("NCC031", "InfiniBand's timeout and retries are not lowered", worst=State.WARN, needs=("job.variables",))
def lowered_timeout(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_IB_TIMEOUT below the default of this NCCL, or NCCL_IB_RETRY_CNT below 7.

    ## Why it matters
    Together they say how long a lost packet or a switch that restarts is waited for: 18 gives up after some 8
    seconds, 20 after half a minute, 22 after two. NCCL raised its default from 14 over 18 to 20, and a value that
    once made jobs more patient makes them less so today: `got completion with error 12` in a long run.

    ## How we know
    The default is 14 before NCCL 2.14, 18 from 2.14 to 2.22, 20 from 2.23 on. An unknown version counts as new.

    ## Fix
    - **you** remove both; on large clusters NCCL_IB_TIMEOUT=22 is common.

    ## Source
    NCCL user guide, NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT; NVIDIA/nccl src/transport/net_ib (2.3 to 2.30).
    """
    for found in nodes_with(cluster, "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"):
        for name, wanted in least(found.version).items():
            number = found.number(name)
            if number is None or number >= wanted or (name == "NCCL_IB_TIMEOUT" and number <= 0):
                continue
            yield warn(
                found.where,
                f"{name}={number} is below the default of {wanted}",
                why="A short fault of a link or switch then ends the job with error 12.",
                owner="job",
                evidence=found.evidence(name),
                fix=[you("Remove it.", f"unset {name}")],
            )


def least(version: Version | None) -> dict[str, int]:
    """The defaults of a version, below which neither should be; an unknown version counts as new."""
    default = next(value for since, value in _TIMEOUTS if (version or (99, 0, 0)) >= since)
    return {"NCCL_IB_TIMEOUT": default, "NCCL_IB_RETRY_CNT": _RETRIES}


@rule("NCC032", "GPUDirect is left to NCCL from 2.27 on", worst=State.NOTE, needs=("job.variables",))
def forced_gpudirect(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ and NCCL_NET_GDR_C2C with NCCL 2.27 and later.

    ## Why it matters
    They went around limits of older versions. Since 2.27 NCCL judges the way between GPU and NIC itself; forced
    across sockets GPUDirect can be slower than a copy through the host. Training frameworks removed them.

    ## How we know
    The variables and the version of the libnccl that torch would load.

    ## Fix
    - **you** remove them and compare with `ncclcheck bench`; keep what the vendor's profile for your machine sets.

    ## Source
    NCCL user guide, NCCL_NET_GDR_LEVEL; NVIDIA-NeMo/Megatron-Bridge#1638 and #1639.
    """
    names = ("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_NET_GDR_C2C")
    for found in nodes_with(cluster, *names):
        if found.since(2, 27, 0):
            evidence = found.evidence(*names)
            said = ", ".join(item.value for item in evidence)
            why = "NCCL 2.27 and later choose better by themselves on most machines."
            fix = [you("Remove them and measure again.", f"unset {' '.join(names)}")]
            yield note(found.where, f"GPUDirect is forced: {said}", why=why, evidence=evidence, fix=fix)

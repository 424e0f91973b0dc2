"""Settings by which NCCL knows who and where it is, and on which machines its costs agree."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, at, known
from ncclcheck.reports.judgement.findings import Finding, State, Where, fail, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl.settings import Settings, nodes_with, settings_of
from ncclcheck.reports.subjects.nodes.agree.agreement import group
from ncclcheck.reports.text.words.fold import fold_names

_MIXED_CPUS = ((2, 18, 1), (2, 19, 3))


@rule("NCC025", "NCCL_COMM_ID is left to torch", worst=State.FAIL, needs=("job.variables",))
def comm_id(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_COMM_ID, which names one address and port for the start of all communicators.

    ## Why it matters
    torch shares a fresh id for every communicator through its store. With this variable NCCL ignores that id, so
    that the second process group meets the first one at the same port and hangs. NCCL 2.29.2 to 2.29.7 compare
    subnets the wrong way round with it and take `lo`. A loopback address cannot be reached from another node.

    ## Seen as
    hangs, does not start, setting without effect

    ## How we know
    The variable. A failure where it names loopback and there are several nodes, else a warning.

    ## Fix
    - **you** remove it; it is for programs that start NCCL without torch or MPI.

    ## Source
    NCCL user guide, NCCL_COMM_ID; NVIDIA/nccl#2047.
    """
    for node in cluster.nodes:
        settings = settings_of(node)
        if "NCCL_COMM_ID" not in settings.all:
            continue
        value = settings.text("NCCL_COMM_ID")
        unreachable = _is_loopback(value) and cluster.job.nodes_asked > 1 and not cluster.job.simulated
        level = fail if unreachable else warn
        yield level(
            settings.where,
            f"NCCL_COMM_ID={value} is set" + (", an address that no other node reaches" if unreachable else ""),
            why="All communicators then meet at one port: a second process group hangs.",
            owner="job",
            evidence=settings.evidence("NCCL_COMM_ID"),
            fix=[you("Remove it; torch hands the id over by itself.", "unset NCCL_COMM_ID")],
        )


def _is_loopback(value: str) -> bool:
    host = value.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@rule(
    "NCC026",
    "no two machines have the same NCCL_HOSTID",
    worst=State.FAIL,
    needs=("job.variables", "host.boot_id"),
    at_least=2,
    between_machines=True,
)
def host_id(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_HOSTID with one value on several machines.

    ## Why it matters
    It replaces host name and boot id. Ranks with the same value count as neighbours: NCCL tries shared memory
    and CUDA IPC between machines, and hangs or fails with `invalid argument` or `Duplicate GPU detected`. A fixed
    value in a job script or an image is enough.

    ## Seen as
    hangs

    ## How we know
    The effective value and /proc/sys/kernel/random/boot_id of each node.

    ## Fix
    - **you** remove it. Where containers of one machine must count as different hosts, take what differs:
      `NCCL_HOSTID=$(hostname)-$SLURM_PROCID`.

    ## Source
    NCCL user guide, NCCL_HOSTID; NVIDIA/nccl#879, NVIDIA/nccl#187.
    """
    settings = {settings.node.name: settings for settings in nodes_with(cluster, "NCCL_HOSTID")}
    for value, names in group({name: settings.text("NCCL_HOSTID") for name, settings in settings.items()}).groups:
        boots = {str(known(at(settings[name].node, "host.boot_id"))) for name in names}
        if len(boots) > 1:
            yield fail(
                Where(node=names[0], peer=names[1]),
                f"NCCL_HOSTID={value} on {len(names)} machines",
                why="NCCL takes them for one machine and tries shared memory between them.",
                owner="job",
                evidence=[seen(fold_names(names), f"NCCL_HOSTID={value}")],
                fix=[you("Remove it, or let it differ.", "unset NCCL_HOSTID")],
            )


@rule("NCC027", "blocking mode of communicators is left to torch", worst=State.WARN, needs=("job.variables",))
def comm_blocking(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_COMM_BLOCKING.

    ## Why it matters
    It overrides what the program asks for. torch creates its communicators in one of the two ways and waits for
    them accordingly; with the other one it reads a communicator that is not ready yet, or never sees the time-out.

    ## Seen as
    hangs, setting without effect

    ## How we know
    The variable, in the environment or in nccl.conf.

    ## Fix
    - **you** remove it. torch has TORCH_NCCL_USE_COMM_NONBLOCKING for it.

    ## Source
    NCCL user guide, NCCL_COMM_BLOCKING (2.14 and later); torch c10d/NCCLUtils.hpp.
    """
    for settings in map(settings_of, cluster.nodes):
        if "NCCL_COMM_BLOCKING" in settings.all:
            yield warn(
                settings.where,
                f"NCCL_COMM_BLOCKING={settings.text('NCCL_COMM_BLOCKING')} overrides what torch asks for",
                why="torch then waits wrongly for its communicators.",
                owner="job",
                evidence=settings.evidence("NCCL_COMM_BLOCKING"),
                fix=[you("Remove it.", "unset NCCL_COMM_BLOCKING")],
            )


@rule(
    "NCC036",
    "NCCL's cost model is the same on CPUs of all vendors",
    worst=State.FAIL,
    needs=("job.variables", "nccl.loaded.version", "system.cpu"),
    at_least=2,
    between_machines=True,
)
def mixed_processors(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Nodes with processors of different vendors, with NCCL 2.18.1 to 2.19.3.

    ## Why it matters
    These versions took the cost of the network from the processor's vendor. Ranks on AMD and on Intel nodes then
    chose different algorithms for the same collective, and the job hung in it without a message.

    ## Seen as
    hangs

    ## How we know
    vendor_id of /proc/cpuinfo on each node, the version of libnccl, and NCCL_NET_OVERHEAD, which gives all of them
    the same cost.

    ## Fix
    - **you** use NCCL 2.19.4 or later; until then `export NCCL_NET_OVERHEAD=1000` on all nodes.

    ## Source
    NVIDIA/nccl#1136 (2.18.1 to 2.19.3).
    """
    touched = [settings for settings in map(settings_of, cluster.nodes) if _counts_by_vendor(settings)]
    if not touched:
        raise NothingToJudge("only NCCL 2.18.1 to 2.19.3 count costs by the processor's vendor")
    vendors = group({node.name: str(known(at(node, "system.cpu"))).split()[0] for node in cluster.nodes})
    if vendors.agree:
        return
    yield fail(
        Where(),
        f"processors of different vendors: {vendors}",
        why="This NCCL lets ranks choose different algorithms on them, and the job hangs.",
        owner="job",
        evidence=[
            seen("/proc/cpuinfo", str(vendors)),
            seen("NCCL", str(at(touched[0].node, "nccl.loaded.version"))),
        ],
        fix=[you("Give all nodes the same cost, until a newer NCCL is there.", "export NCCL_NET_OVERHEAD=1000")],
    )


def _counts_by_vendor(settings: Settings) -> bool:
    low, high = _MIXED_CPUS
    inside = settings.version is not None and low <= settings.version <= high
    return inside and "NCCL_NET_OVERHEAD" not in settings.all

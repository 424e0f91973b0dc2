"""LOG059: NCCL counts as many machines as there are."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, Where, seen, you
from ncclcheck.reports.subjects.logs.logged import events_of, log_rule
from ncclcheck.reports.subjects.logs.logged import lines as quoted
from ncclcheck.reports.subjects.logs.logged_node import BY_NCCL, cuda_errors
from ncclcheck.reports.subjects.logs.reported import settings_seen
from ncclcheck.reports.subjects.logs.start.machines import (
    all_ranks,
    behind_one_bridge,
    different,
    machines,
    of_the_job,
    on_two_machines,
)

_IPC = (
    "invalid argument",
    "unknown error",
    "invalid resource handle",
    "invalid device context",
    "mapping of buffer",
)


@log_rule("LOG059", "NCCL counts the right number of machines", told_by="the checks of its nodes", risk=True)
def counted(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL takes several machines for one, or one machine for several. It knows a machine by its host name and
    boot id, or by NCCL_HOSTID where that is set.

    ## Why it matters
    Two machines that are called `localhost` (up to 2.4), were booted from one image with the same boot id, or
    were given the same NCCL_HOSTID, seem to be one: NCCL then opens GPU memory of another machine, which fails
    with errors that explain nothing, or finds "duplicate" GPUs. Containers of one machine with names of their
    own seem to be several: their GPUs talk over the network instead of NVLink.

    ## How we know
    nNodes (2.20 and later), host names and bootstrap addresses of all ranks, and the connections that NCCL
    made. Several taken for one: more addresses than nNodes, and an error in CUDA IPC, its socket (`UDS: Sending
    data`) or a duplicate GPU on two hosts. One taken for several: all ranks were seen, and nNodes is above the
    number of addresses; or a single machine uses NET. Also where a rank of each node was seen, and all are on
    docker's bridge, which does not leave the machine.

    ## Fix
    - **you** a host name for each machine; no NCCL_HOSTID in images; unset it everywhere.
    - **you** containers of one machine: `--ipc=host --uts=host --net=host` and all GPUs in each; or one container.

    ## Source
    NVIDIA/nccl#187, NVIDIA/nccl#375, NVIDIA/nccl#129, NVIDIA/nccl#248, NVIDIA/nccl#324; NCCL user guide,
    Environment variables, NCCL_HOSTID.
    """
    job = of_the_job(logs)
    if errors := taken_for_one(logs, job):
        yield _several(logs, errors, job)
    elif split := events_of(logs, "ipc-socket"):
        yield _cut_off(logs, split)
    elif reason := _taken_for_several(job):
        yield _one(logs, reason, job)


def taken_for_one(logs: Logs, job: list[LogProcess]) -> list[LogEvent]:
    """The errors that it led to, where several machines seem to be one; none where they do not."""
    duplicates = [event for event in events_of(logs, "gpu-duplicate") if on_two_machines(logs, event)]
    named = [process for process in job if "NCCL_HOSTID" in process.settings] or job
    nodes = min((process.nnodes for process in job if process.nnodes), default=0)
    ids = {process.settings.get("NCCL_HOSTID", process.host) for process in named}
    if not duplicates and not (nodes or len(ids)) < different(named if not nodes else job):
        return []
    broken = [*cuda_errors(logs, *_IPC, by=BY_NCCL), *events_of(logs, "ipc-handle", "ipc-socket", "shm-segment")]
    return sorted([*duplicates, *broken], key=lambda event: event.order)


def _taken_for_several(job: list[LogProcess]) -> str:
    """How it shows that one machine seems to be several; empty where it does not."""
    nodes, there = max((process.nnodes or 0 for process in job), default=0), machines(job)
    if nodes > 1 and len({process.host for process in job}) == nodes and behind_one_bridge(job):
        return f"nNodes {nodes}, and all of them are behind docker's bridge of one machine"
    if len(job) < 2 or not all_ranks(job):
        return ""
    if nodes > len(there):
        return f"nNodes {nodes}, and all {len(job)} ranks are on {len(there)} machine(s)"
    if len(there) == 1 and any(kind.startswith("NET/") for process in job for kind in process.vias):
        return f"connections via NET, and all {len(job)} ranks are on one machine"
    return ""


def _of_machines(job: list[LogProcess]) -> list[Evidence]:
    places = {
        f"{process.host} {process.bootstrap.address if process.bootstrap else ''}".strip() for process in job
    }
    nodes = {process.nnodes for process in job if process.nnodes}
    all_evidence = [seen("host and bootstrap address", ", ".join(sorted(places)[:6]))]
    return [*all_evidence, seen("nNodes", max(nodes))] if nodes else all_evidence


def _several(logs: Logs, errors: list[LogEvent], job: list[LogProcess]) -> Finding:
    return Finding(
        state=State.FAIL,
        where=Where(node=errors[0].host or None, rank=errors[0].rank),
        what=f"NCCL takes {different(job)} machines for fewer: they have one name, boot id or NCCL_HOSTID",
        why="It opens GPU memory of another machine as if it were its own, and fails.",
        owner="site",
        evidence=[*quoted(errors), *_of_machines(job), *settings_seen(logs, "NCCL_HOSTID")],
        remedies=[
            you(
                "Confirm: both must differ between the machines.",
                "hostname; cat /proc/sys/kernel/random/boot_id",
                "echo $NCCL_HOSTID",
            ),
            you(
                "Give each its own, or a different NCCL_HOSTID.",
                "hostnamectl set-hostname node1",
                "unset NCCL_HOSTID",
            ),
        ],
    )


def _cut_off(logs: Logs, events: list[LogEvent]) -> Finding:
    """2.18 and later pass handles of memory through a Unix socket, which a network namespace shuts in."""
    return Finding(
        state=State.FAIL,
        where=Where(node=events[0].host or None, rank=events[0].rank),
        what="ranks of one node cannot hand each other memory: they are in different containers, or the other "
        "one died",
        why="NCCL takes them for one machine and shares memory between them, which their containers do not allow.",
        owner="job",
        evidence=[*quoted(events), *settings_seen(logs, "NCCL_HOSTID")],
        remedies=[
            you("Confirm: the same for all ranks of the node.", "readlink /proc/self/ns/net /proc/self/ns/ipc"),
            you("Put them into one container, or share the namespaces.", "docker run --net=host --ipc=host ..."),
            you(
                "Or make them different machines for NCCL, which is slower.",
                "export NCCL_HOSTID=$(hostname)-$(readlink /proc/self/ns/net)",
            ),
        ],
    )


def _one(logs: Logs, reason: str, job: list[LogProcess]) -> Finding:
    off = settings_seen(logs, "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_LEVEL", "NCCL_HOSTID")
    blame = "by its settings" if off else "in different containers or with different NCCL_HOSTID"
    return Finding(
        state=State.WARN,
        where=Where(node=job[0].host),
        what=f"GPUs of one machine talk over the network, {blame}: {reason}",
        why="What could go over NVLink or shared memory goes through the network stack, many times slower.",
        owner="job",
        evidence=[*_of_machines(job), *off],
        remedies=[
            you(
                "Confirm: the same on all ranks of the machine.",
                "hostname; readlink /proc/self/ns/ipc",
                "env | grep -E 'NCCL_(HOSTID|P2P|SHM)'",
            ),
            you("Unset what forbids the short path.", "unset NCCL_HOSTID NCCL_P2P_DISABLE NCCL_SHM_DISABLE"),
            you(
                "Put all ranks of a machine into one container, or share the namespaces.",
                "docker run --gpus all --ipc=host --uts=host --net=host ...",
            ),
        ],
    )

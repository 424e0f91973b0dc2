"""LOG110-LOG112: by the log, GPUs of a host talk directly, and nothing that slows a job was left on."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, Where, admin, note, seen, you
from ncclcheck.reports.subjects.logs.logged import by_host, cause, events_of, lines, log_rule
from ncclcheck.reports.subjects.logs.reported import processes_by_host
from ncclcheck.reports.text.words.fold import fold_names

_OFF_IF_SET = frozenset({"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_CHECK_POINTERS", "NCCL_NVB_DISABLE",
                         "NCCL_IGNORE_DISABLED_P2P"})  # fmt: skip
_OFF_IF_ZERO = frozenset({"NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE", "NCCL_RUNTIME_CONNECT"})
_LEVELS = frozenset({"NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"})
_DEFAULTS = {
    "NCCL_BUFFSIZE": "4194304",
    "NCCL_NTHREADS": "512",
    "NCCL_LAUNCH_MODE": "PARALLEL",
    "NCCL_CHUNK_SIZE": "0",
}
_OWN_PROFILES = ("AWS", "GPUDirectTCPX", "FasTrak", "gIB", "Libfabric")
_MOST_OPERATIONS = 0.5  # of all lines of NCCL in a file
# lines of NCCL in a file; of fewer, which the start of a job may be, a share says nothing: chosen
_FEW_RECORDS = 200
_SEEN = 5  # such lines, where the setting is told too


@log_rule("LOG110", "GPUs of a host use peer-to-peer transfers where they can", worst=State.WARN)
def direct(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    All connections within a host go `via SHM` (shared memory) or over the network, none `via P2P`, though its GPUs
    have NVLinks, other hosts of the job use P2P, or GPUDirect RDMA shows that they are data centre cards.

    ## Why it matters
    Each byte goes through the host's memory: all_reduce within the host is several times slower, and every ring
    goes through it.

    ## Seen as
    slow

    ## How we know
    The `via` lines, and what else the log shows of these GPUs (the topology with NCCL_DEBUG_SUBSYS=GRAPH, other
    hosts, GDRDMA). Without any of these it is a note: GeForce cards and GPUs below different processors are right
    with SHM. Where NCCL_P2P_DISABLE or NCCL_P2P_LEVEL is set, LOG111 names that.

    ## Fix
    - **you** run all ranks of a host in one container (or with `--ipc=host`). Confirm: `nvidia-smi topo -p2p r`.
    - **admin** turn ACS and the IOMMU's translation off on bare metal; in virtual machines ask for a type with
      P2P.

    ## Source
    NVIDIA/nccl#2079, NVIDIA/nccl#631, NVIDIA/nccl#324; NCCL user guide, Troubleshooting, GPU-to-GPU communication.
    """
    direct_hosts = [host for host, members in processes_by_host(logs).items() if _kinds(members, "P2P")]
    topology = by_host(events_of(logs, "nvlink-seen", "p2p-missing"))
    for host, processes in processes_by_host(logs).items():
        detour = _kinds(processes, "SHM") or (_kinds(processes, "NET") if _alone(processes) else [])
        if (
            not detour
            or host in direct_hosts
            or any(process.settings.keys() & _P2P_SETTINGS for process in processes)
        ):
            continue
        why = _able(topology.get(host, []), processes, direct_hosts)
        what = f"GPUs of {host} talk over {' and '.join(detour)}, none directly"
        evidence = seen(f"{processes[0].file}:{processes[0].first_line}", "via " + ", ".join(detour))
        if not why:
            yield note(
                Where(node=host),
                what,
                why="Right for GPUs without peer access, slow for others.",
                evidence=[evidence],
            )
            continue
        yield Finding(
            state=State.WARN,
            where=Where(node=host),
            what=f"{what}, though they could",
            why="All data within the host takes a detour through its memory: several times slower.",
            owner="node",
            evidence=[evidence, *why],
            remedies=[
                you("Confirm what the GPUs can do, and share IPC between containers of one job.",
                    "nvidia-smi topo -p2p r", "docker run --ipc=host IMAGE"),
                admin("Look for ACS on the bridges above the GPUs.", "lspci -vvv | grep -i acsctl"),
            ],
        )  # fmt: skip


_P2P_SETTINGS = frozenset({"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"})


def _kinds(processes: list[LogProcess], start: str) -> list[str]:
    return sorted({kind for process in processes for kind in process.vias if kind.startswith(start)})


def _alone(processes: list[LogProcess]) -> bool:
    """Whether these processes are a job within one host: then nothing should go over the network."""
    return all(process.nnodes == 1 and (process.nranks or 0) > 1 for process in processes)


def _able(topology: list[LogEvent], processes: list[LogProcess], direct_hosts: list[str]) -> list[Evidence]:
    """What shows that these GPUs could talk directly."""
    all_evidence = lines(event for event in topology if event.sign == "nvlink-seen")[:1]
    if direct_hosts:
        all_evidence.append(seen("other hosts", f"{fold_names(direct_hosts)} use P2P"))
    if any("GDRDMA" in kind for process in processes for kind in process.vias):
        all_evidence.append(seen("via lines", "GDRDMA is used: these are data centre GPUs"))
    if all_evidence:
        all_evidence += lines(event for event in topology if event.sign == "p2p-missing")[:1]
    return all_evidence


@log_rule("LOG111", "no NCCL debugging setting was left on", worst=State.WARN, risk=True)
def nothing_left_on(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `NCCL_ALGO set by environment to Tree`, NCCL_P2P_DISABLE=1 and the like: variables of the section Debugging of
    NVIDIA's documentation, at a value that takes something away.

    ## Why it matters
    A setting that once helped to find a fault stays in a script for years and makes every job slower:
    NCCL_P2P_DISABLE=1 sends data through the host's memory that could use NVLink, a fixed NCCL_ALGO or NCCL_PROTO
    is wrong for most sizes (and NCCL 2.24 and later fails where it does not fit an operation).

    ## Seen as
    slow

    ## How we know
    NCCL prints each variable that it reads (subsystem ENV, at NCCL_DEBUG=INFO). Values at their default are fine.
    With the plugins of AWS and Google Cloud, whose own profiles set some of these, ALGO and PROTO are left out.

    ## Fix
    - **you** `unset` them, and confirm by measuring with and without: `ncclcheck bench`.
    - **admin** take them out of /etc/nccl.conf and of images.

    ## Source
    NCCL user guide, Environment Variables, Debugging; NVIDIA/nccl#790, NVIDIA/nccl#698, NVIDIA/nccl#2408.
    """
    profiled = any(
        name in process.network or name in process.plugin for process in logs.processes for name in _OWN_PROFILES
    )
    events = [
        event
        for event in events_of(logs, "debug-setting")
        if _harmful(event.fields["name"], event.fields["value"], profiled)
    ]
    settings = {event.fields["name"]: event.fields["value"] for event in events}
    if settings:
        firsts = [next(event for event in events if event.fields["name"] == name) for name in settings]
        shown = ", ".join(f"{name}={value}" for name, value in settings.items())
        yield cause(
            firsts,
            f"settings for debugging are on: {shown}",
            why="Each denies NCCL a path or a choice that is usually the faster one.",
            owner="job",
            fix=[you("Take them out, and confirm by measuring with and without.",
                     f"unset {' '.join(map(quote, settings))}", "ncclcheck bench")],
            state=State.WARN,
            at=Where(),
        )  # fmt: skip


def _harmful(name: str, value: str, profiled: bool) -> bool:
    if name in _OFF_IF_SET:
        return value != "0"
    if name in _OFF_IF_ZERO:
        return value == "0"
    if name in _LEVELS:
        return value.upper() in ("LOC", "0")
    if value == _DEFAULTS.get(name):
        return False
    return not (profiled and name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE"))


@log_rule("LOG112", "NCCL does not log every collective", worst=State.WARN, slows=True)
def not_traced(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL_DEBUG=TRACE, or NCCL_DEBUG_SUBSYS with COLL, CALL or ALL: `NCCL CALL ncclAllReduce(..)` or
    `AllReduce: opCount ..` for every operation.

    ## Why it matters
    Each rank writes lines at the pace of its operations, mostly into one shared file: the job waits for the file
    system, and the log grows without end.

    ## Seen as
    hangs, slow

    ## How we know
    The setting, where it stands in the log and such lines too; lines of the level CALL; or a file of at least 200
    lines of NCCL, of which more than half are about single collectives.

    ## Fix
    - **you** `export NCCL_DEBUG=WARN` and `unset NCCL_DEBUG_SUBSYS`; for a diagnosis
      `NCCL_DEBUG_FILE=/tmp/nccl.%h.%p` on a local disk. Confirm: the log stops growing after the start.

    ## Source
    NCCL user guide, NCCL_DEBUG, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE.
    """
    full = [file for file in logs.files
            if file.records >= _FEW_RECORDS and file.operations > _MOST_OPERATIONS * file.records]  # fmt: skip
    calls = [event for event in events_of(logs, "call-trace") if event.level in ("CALL", "TRACE")]
    traced = bool(calls) or any(file.operations >= _SEEN for file in logs.files)
    settings = [event for event in events_of(logs, "trace-setting") if traced or "level" in event.fields]
    events = [*settings, *calls]
    if not events and not full:
        return
    counted = [
        seen(file.name, f"{file.operations} of {file.records} lines of NCCL are single collectives")
        for file in full
    ]
    yield Finding(
        state=State.WARN,
        where=Where(),
        what="NCCL prints a line for every collective",
        why="Every rank waits for its log to be written, and the file grows without end.",
        owner="job",
        evidence=[*lines(events), *counted],
        remedies=[
            you("Print warnings only; a diagnosis goes to a local disk.", "unset NCCL_DEBUG_SUBSYS",
                "export NCCL_DEBUG=WARN", "export NCCL_DEBUG_FILE=/tmp/nccl.%h.%p"),
        ],
    )  # fmt: skip

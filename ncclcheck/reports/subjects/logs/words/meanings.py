"""What signs mean that no rule names a cause by: those that follow from another fault, and harmless ones."""

from __future__ import annotations

import re

from ncclcheck.probes.facts import LogEvent

_FOLLOWS = re.compile(
    r"ChildFailedError|CheckpointException ranks:|Rendezvous\w{0,20}Error|"
    r"Caught \w{1,80} in (?:DataLoader worker process|pin memory thread|replica) |"
    r"SignalException|CancelledError|SIGTERMException|KeyboardInterrupt|SystemExit|DistNetworkError|DistStoreError|"
    r"DistBackendError|ncclRemoteError|Connection (?:closed|reset) by|Broken pipe|[Ss]ocket [Tt]imeout|"
    r"NCCL (?:error|Error \d|communicator was aborted)|is setting up NCCL communicator and retrieving|"
    r"Call to \w{1,60} method failed: |"  # vLLM's server, of what its engine raised
    r"Watchdog caught|RendezvousConnectionError|by signal: Terminated|"
    r"Application timeout caused pair closure|"
    r"Timed out initializing process group in store based barrier|"
    r"Timed out waiting \d+ms|connectFullMesh|EngineDead|Engine core|root cause above|stack trace for root cause|"
    r"ray\.exceptions\.(?!\w{0,20}Unschedulable|RuntimeEnvSetup|OutOfDisk|ObjectStoreFull)|RayTaskError|ActorDied|"
    r"client socket has timed out|ProcessRaisedException|ProcessExitedException|"
    r"CalledProcessError(?!: Command '\[?'?\S{0,80}(?:gcc|g\+\+|/cc|clang|nvcc|ninja|hipcc))|"
    r"RendezvousTimeout|monitoredBarrier|seconds waiting for clients"
)

# A warning of NCCL that tells what may happen.
_MAY = re.compile(r"\b(?:can|may|might|could) (?:lead|cause|result|hang|affect|degrade|reduce|impact|be slow)")

# Its own words, and the calls within it: none of them hands anything to the program.
_SERVICE = re.compile(r"\[(?:Proxy )?Service(?: thread| \d{1,6})?\]|^(?:misc/socket|proxy)\.cc:\d{1,6} ")
# What a loader's thread or a queue's raises when the process at its other end has gone.
_OTHER_END = ("EOFError", "ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "FileNotFoundError")

CONSEQUENCES = {
    "remote-closed": "the process at the other end had gone away",
    "connection-reset": "the process at the other end had gone away",
    "broken-pipe": "the process at the other end had gone away",
    "ofi-peer-gone": "the EFA queue at the other end is gone, with its process or its container",
    "proxy-failed": "a peer did not answer any more",
    "remote-error": "NCCL's own word for: another process went away first",
    "store-broken": "the rank that holds the store had ended",
    "loader-wrapper": "the loader repeats what one of its workers raised; the line itself stands below",
    "flushed": "an RDMA connection was torn down after an error elsewhere",
    "aborted-by-watchdog": "torch ends the process after an error or a time-out",
    "propagated": "NCCL passes an error on to its caller",
    "sigterm-to-peers": "torchrun ends the other processes of its node",
    "signal-exception": "torchrun itself was ended",
    "child-failed": "the launcher reports that one of its processes failed",
    "mpi-abort": "a rank's program ended the job; what it printed before says why",
    "step-cancelled": "Slurm ends the step after a task failed, or by order",
}

AT_THE_END = frozenset(("store-broken", "connection-reset", "broken-pipe"))  # seen at the end of healthy jobs, too

CONTEXT = frozenset(
    (
        "traceback",
        "frame",
        "native-frame",
        "rule",
        "long-bar",
        "explains",
        "unreadable",
        "crashed-thread",
        "kernel-named",
        "last-error",
        "root-cause-block",
        "root-cause-host",
        "root-cause-rank",
        "no-flight-recorder",
        "config-net",
        "plugin-taken",
        "ranks-met",
    )
)

HARMLESS = {
    "no-plugin": "no external plugin is there, and NCCL uses its own; bad only where the site needs one (EFA)",
    "gdrcopy": "an optional library for small copies; NCCL continues without it",
    "no-verbs": "there is no libibverbs, and NCCL uses sockets; a problem only where the host has HCAs",
    "no-libmlx5": "an optional library for Mellanox cards; NCCL continues without it",
    "ib-notice": "something of the fabric changed (its manager, an address); bad only where errors follow",
    "speed-not-told": "a virtual interface has no speed; NCCL assumes one",
    "virtual-network-card": "a virtual interface (bond) has no place on the PCI bus; NCCL assumes the first CPU",
    "no-nvls": "NVLink SHARP needs NVSwitches of the third generation; NCCL takes rings and trees",
    "value-corrected": "NCCL does not take the value that is set, but its own limit or default, and continues",
    "not-a-device-plugin": "how the network plugin is called, nothing more",
    "no-profiler": "no profiler plugin; nothing is measured, nothing is lost",
    "omp-threads": "torchrun's default; raise OMP_NUM_THREADS where the CPU prepares data slowly",
    "not-destroyed": "at the normal end of a program nothing is lost; call dist.destroy_process_group() last",
    "ddp-slower": "DDP costs a little speed so; nothing is wrong",
    "hostname-not-found": "the address of a peer has no name in the DNS; torch uses the address",
    "collnet-given-up": "NCCL continues without SHARP (CollNet), with rings and trees",
    "connect-retried": "ranks start at different times, and NCCL dials again; bad only where the last try fails",
    "rccl-numa-balancing": "speed may vary; kernel.numa_balancing=0 steadies it (healthy hosts have it too)",
    "rccl-fine-grain": "RCCL asks for it on hosts whose GPUs share memory over PCIe; it costs speed at most",
    "rccl-iommu": "RCCL says it on every host without that kernel parameter; bad only where the job hangs",
    "rccl-no-profiler": "no profiler, or no MSCCL algorithms; nothing is lost",
    "node-rank-not-used": "the rendezvous c10d numbers the nodes itself; --node-rank is not needed",
    "ipv6-not-there": "torch tries IPv6 first, and IPv4 next",
}

# A warning of torch's store about one connection, which torch may make anew; not of a server that is gone.
_OF_ONE_TRY = re.compile(r"\[W\d{0,4}\b[^\]]{0,60}\bTCPStore\.cpp:\d{1,5}\](?!.{0,200}dump\W)")


def of_one_try(event: LogEvent) -> bool:
    """Whether torch's store only warns of one connection."""
    return event.sign in AT_THE_END and _OF_ONE_TRY.search(event.text) is not None


def follows(event: LogEvent) -> bool:
    """Whether an exception only passes on what happened elsewhere or was said, or only warns."""
    kind = event.fields.get("type", "")
    return (
        kind.endswith("Warning")
        or ends_nothing(event)
        or ("helper" in event.fields and kind in _OTHER_END)
        or _FOLLOWS.search(f"{kind}: {event.fields.get('text', '')}") is not None
    )


def ends_nothing(event: LogEvent) -> bool:
    """Whether an exception or its traceback is one that Python only tells of (at exit, a logger, `__del__`)."""
    return event.fields.get("ends") == "nothing"


def of_a_service(event: LogEvent) -> bool:
    """Whether NCCL's thread that serves a process says it: where sockets close at the end it does so, too."""
    return event.sign in ("nccl-warning", "propagated", "proxy-failed") and _SERVICE.search(event.text) is not None


def of_a_thread(event: LogEvent) -> bool:
    """Whether it ended a thread, or a process that only feeds its program."""
    return event.fields.get("ends") in ("thread", "helper")


def tells_of_a_risk(event: LogEvent) -> bool:
    """Whether NCCL warns of what may happen, as it does at its start: what did happen outranks it."""
    return event.sign == "nccl-warning" and _MAY.search(event.text) is not None

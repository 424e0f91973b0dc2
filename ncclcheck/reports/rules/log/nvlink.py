"""LOG054 to LOG056, LOG074: NVLink's switches, what manages them, and what containers need of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Where, admin, you
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule
from ncclcheck.reports.subjects.logs.logged_node import BY_NCCL, cuda_errors, hosts, in_nvls, on
from ncclcheck.reports.subjects.logs.reported import settings_seen, version_seen, within_a_host

_STATE, _WRONG_STATE = "401", "performed in the present state"
_CONTAINER = re.compile(
    r"[0-9a-f]{12}|[a-z0-9-]{1,200}-[a-z0-9]{8,10}-[a-z0-9]{5}"
)  # docker's, a pod's of a Deployment
_MANAGER = admin(
    "Look at the fabric manager, of exactly the driver's version, and restart it; then reset the GPUs or reboot.",
    "systemctl status nvidia-fabricmanager",
    "nvidia-smi -q | grep -A4 Fabric",
    "systemctl restart nvidia-fabricmanager",
)


_WITHOUT = you(
    "Until it is put right the job runs without it, all_reduce somewhat slower.", "export NCCL_NVLS_ENABLE=0"
)


@log_rule("LOG054", "the fabric manager lets NCCL set up NVLink SHARP (NVLS)")
def nvls(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL could not set up multicast memory in the NVSwitches, which it uses for NVLink SHARP (NVLS), and the
    state of the fabric manager or of the switches is to blame.

    ## Why it matters
    NVLS is on by default since 2.17 where the GPUs say that they can do it. When the memory then cannot be bound,
    the job ends with an unhandled CUDA error, although NVLink itself is fine.

    ## Seen as
    dies

    ## How we know
    `Failed to bind NVLink SHARP (NVLS) Multicast memory ... CUDA error 401` (2.27 and later): the fabric
    manager or the switches are in a wrong state. Error 1 `invalid argument`, there or in transport/nvls.cc of
    any version, is that too, unless the lines show a container: then it is LOG074. "Out of memory" there is
    LOG063.

    ## Fix
    - **admin** restart the fabric manager and reset the GPUs, or reboot.
    - **you** NCCL_NVLS_ENABLE=0 lets the job run, all_reduce somewhat slower.

    ## Source
    pytorch/pytorch#177472, pytorch/ao#3841, NVIDIA/nccl#1488; NVIDIA Fabric Manager user guide.
    """
    for where, events in _refused(logs):
        if not _in_a_container(logs, where, events):
            yield cause(
                events,
                f"NVLink SHARP (NVLS) cannot be set up{on(where)}: {_refusal(events[0])}",
                why="NCCL takes it where GPUs offer it, and ends when its memory cannot be bound.",
                owner="node",
                fix=[_MANAGER, _WITHOUT],
                at=where,
                more=[*version_seen(logs, events[0]), *settings_seen(logs, "NCCL_NVLS_ENABLE")],
            )


def _refusal(event: LogEvent) -> str:
    """What may stand behind CUDA's refusal."""
    if "out of memory" in event.text:
        return (
            "CUDA has no memory for it: the multicast slots of the NVSwitches are used up by many communicators, "
            "or the fabric manager is in a wrong state"
        )
    return "the fabric manager or the NVSwitches are in a wrong state"


@log_rule("LOG074", "containers have what NVLink SHARP (NVLS) needs")
def nvls_in_containers(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL could not set up multicast memory in the NVSwitches in a container that was not given the driver's
    capability files (/dev/nvidia-caps), or not the right to use them.

    ## Why it matters
    The GPUs in the container say that they can do NVLink SHARP, NCCL takes it, and the job ends with an unhandled
    CUDA error. The machine is fine: the same job runs outside of the container.

    ## Seen as
    dies

    ## How we know
    Error 1 `invalid argument` in transport/nvls.cc, or when the memory is bound, and lines of a container: its
    generated host name, a path of /dev/nvidia-caps that is not there. Error 401 is the fabric manager's (LOG054).

    ## Fix
    - **you** start the container by the NVIDIA runtime (`--gpus all`), or give it all of /dev/nvidia-caps and
      /dev/nvidia-nvswitch*, not a hand-written list of devices; NCCL_NVLS_ENABLE=0 until then.

    ## Source
    pie-project/pie#500; NVIDIA Container Toolkit documentation, driver capabilities; CUDA Driver API,
    cuMulticastBindMem.
    """
    for where, events in _refused(logs):
        if _in_a_container(logs, where, events):
            yield cause(
                [*events[:2], *events_of(logs, "no-capability-files")[:1]],
                f"NVLink SHARP (NVLS) cannot be set up{on(where)}: the container lacks "
                f"/dev/nvidia-caps, or the right "
                "to it",
                why="NCCL takes it where GPUs offer it, and ends when its memory cannot be bound.",
                owner="job",
                fix=[
                    you("Confirm, inside of the container.", "ls -l /dev/nvidia-caps /dev/nvidia-nvswitch*"),
                    you("Let the NVIDIA runtime choose the devices.", "docker run --gpus all ..."),
                    _WITHOUT,
                    admin("Where the files are there, look at the fabric manager.", *_MANAGER.commands[:2]),
                ],
                at=where,
                more=[*version_seen(logs, events[0]), *settings_seen(logs, "NCCL_NVLS_ENABLE")],
            )


def _refused(logs: Logs) -> Iterator[tuple[Where, list[LogEvent]]]:
    return hosts([*events_of(logs, "nvls-bind"), *in_nvls(logs)])


def _in_a_container(logs: Logs, where: Where, events: list[LogEvent]) -> bool:
    """Whether the refusal is one of rights, and the lines show a container."""
    if any(event.fields.get("code") == _STATE or _WRONG_STATE in event.text for event in events):
        return False
    return bool(events_of(logs, "no-capability-files")) or _CONTAINER.fullmatch(where.node or "") is not None


_OF_A_CONTAINER = (
    you(
        "Confirm on the container's host: State must be Completed. Where it is, start the container anew, with "
        "all GPUs and the switches' files, by the NVIDIA runtime.",
        "nvidia-smi -q | grep -A4 Fabric",
        "ls -l /dev/nvidia-nvswitch* /dev/nvidia-caps",
        "docker run --gpus all ...",
    ),
)


@log_rule("LOG055", "the NVLink fabric is ready before the job starts")
def fabric(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    CUDA answered "system not yet initialized" (error 802).

    ## Why it matters
    On machines with NVSwitches no GPU can be used until the fabric manager has set up the switches. When it does
    not run, or is of another version than the driver, every CUDA program fails like this, also on one GPU.

    ## How we know
    The words of error 802, from NCCL, torch (`Error 802: system not yet initialized`) or nccl-tests. torch may say
    in the same log that it found no GPU. Where the host's name is a container's, the lines do not tell whether the
    host's fabric manager is to blame or what the container was given: on the host `nvidia-smi -q` tells it.

    ## Fix
    - **admin** `systemctl enable --now nvidia-fabricmanager`; its version must be the driver's, to the last digit.
    - **you** a container on a host whose State is Completed: start it anew, by the NVIDIA runtime.
    - **you** leave the node out until then.

    ## Source
    NVIDIA/nccl-tests#264; NVIDIA Fabric Manager user guide; CUDA Runtime API, cudaErrorSystemNotReady.
    """
    fix = [
        you(
            "Confirm: State must be Completed.",
            "nvidia-smi -q | grep -A4 Fabric",
            "systemctl is-active nvidia-fabricmanager",
        ),
        admin(
            "Start it, of exactly the driver's version.",
            "cat /proc/driver/nvidia/version",
            "nv-fabricmanager --version",
            "systemctl enable --now nvidia-fabricmanager",
        ),
    ]
    for where, events in hosts(events_of(logs, "fabric-not-ready")):
        contained = _CONTAINER.fullmatch(where.node or "") is not None or bool(
            events_of(logs, "no-capability-files")
        )
        yield cause(
            events,
            f"the GPUs are not ready in a container{on(where)} (CUDA error 802): the fabric manager of its host, "
            "or what the container was given"
            if contained
            else f"the fabric manager has not set up the NVSwitches{on(where)} (CUDA error 802)",
            why="Until it has, no program can use any GPU of this machine.",
            owner="node",
            fix=[*_OF_A_CONTAINER, *fix[1:]] if contained else fix,
            at=where,
        )


@log_rule("LOG056", "multi-node NVLink (MNNVL) works where it is present")
def mnnvl(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NVLink between nodes (MNNVL: GB200 and GB300) is there, and memory could not be shared through it.

    ## Why it matters
    The right to it comes from IMEX: a daemon on every node and a channel file, which containers must be given.
    Without them NCCL ends in the start; with NCCL_MNNVL_ENABLE=0 it goes over the slower network.

    ## Seen as
    slow, dies

    ## How we know
    `MNNVL (cliqueSize N) is available but not working`: with "channel configuration" the channel file
    /dev/nvidia-caps-imex-channels/channel0 is not there or may not be opened; with `nvidia-imex-ctl -N` the
    daemons do not reach each other. `Cuda failure 800 'operation not permitted'` of a job on several hosts is the
    same where GPUs have such NVLink, and a right that the container lacks where they have not (error 900, "...
    when stream is capturing", is not: a CUDA graph of the program).

    ## Fix
    - **admin** nvidia-imex running on all nodes of the domain with one list of nodes; the channel file.
    - **you** in Kubernetes a ComputeDomain; NCCL_MNNVL_ENABLE=0 only until it is repaired.

    ## Source
    NCCL user guide, Performance and tuning, MNNVL; NVIDIA IMEX service guide.
    """
    denied = cuda_errors(logs, "operation not permitted", by=BY_NCCL)
    denied = [event for event in denied if event not in in_nvls(logs) and "captur" not in event.fields["error"]]
    denied = [] if within_a_host(logs) else denied  # there it is LOG061
    for where, events in hosts([*events_of(logs, "mnnvl-broken"), *denied]):
        look = next((event.fields["look"] for event in events if "look" in event.fields), "")
        daemons = "nvidia-imex-ctl" in look
        blame = "the IMEX daemons do not reach each other" if daemons else "its IMEX channel cannot be used"
        sure = any(event.sign == "mnnvl-broken" for event in events)
        yield cause(
            events,
            f"NVLink between nodes cannot be used{on(where)}: {blame}"
            if sure
            else f"CUDA does not permit a rank to create, share or map GPU memory{on(where)}: it has no IMEX "
            "channel for NVLink between nodes, or its container lacks a right",
            why="NCCL does not start where this NVLink is offered and does not work."
            if sure
            else "Where GPUs have NVLink between nodes their memory asks for it; else a sandbox refuses.",
            owner="node",
            fix=[
                you(
                    "Confirm: all nodes must be READY, and the channel must be there.",
                    "nvidia-imex-ctl -N",
                    "ls -l /dev/nvidia-caps-imex-channels/",
                ),
                admin(
                    "Start IMEX with one list of nodes on all, and make the channel.",
                    "systemctl restart nvidia-imex",
                    "cat /etc/nvidia-imex/nodes_config.cfg",
                    "nvidia-modprobe -c 0 || grep imex /proc/devices",
                ),
                you("Until then go over the network.", "export NCCL_MNNVL_ENABLE=0"),
                *([] if sure else [you("Or use the older allocator.", "export NCCL_CUMEM_ENABLE=0")]),
            ],
            at=where,
            more=[*version_seen(logs, events[0]), *settings_seen(logs, "NCCL_MNNVL_ENABLE")],
        )

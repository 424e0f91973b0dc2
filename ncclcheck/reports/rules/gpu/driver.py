"""Rules about what the driver itself says: NVML, lost GPUs, Xids."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ncclcheck.probes.facts import Cluster, Gpu, Node, Unread, Xid, at, known, value_or
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nodes.cards import cards, leave_out, reset
from ncclcheck.reports.subjects.nodes.xids import (
    HARDWARE,
    LESSER,
    PROGRAM,
    RECOVERY,
    asked_for,
    is_fatal,
    of_switch,
)


@rule("GPU003", "NVML responds", worst=State.FAIL, needs=("gpus.nvml",))
def nvml_answers(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether NVIDIA's management library (libnvidia-ml.so.1) can be initialised on a node that shows GPUs.

    ## Why it matters
    After the driver's packages were upgraded without a reboot, the library is newer than the driver in the
    kernel: "Driver/library version mismatch". NCCL reads the topology through NVML, so init fails too. A call
    that never returns is how a GPU looks whose system processor (GSP) has stopped; a job would hang in the same
    place.

    ## Seen as
    hangs, does not start

    ## How we know
    nvmlInit and all other calls are made in a process of its own with a time limit; the call that did not come
    back is named. A missing pynvml or library leaves the GPU rules `unknown`, not failed.

    ## Fix
    - **admin** reboot, or unload and load the driver's modules; in containers restart them after an upgrade.
    - **admin** for a call that hangs: `dmesg | grep -i xid`, reset the GPU or reboot.

    ## Source
    NVML API reference, nvmlInit and nvmlReturn_t; leptonai/gpud (Xid 119 in its test data), sichek#67 and
    sglang PR#31229: nvidia-smi that never returns.
    """
    for node in cluster.nodes:
        if error := known(at(node, "gpus.nvml")):
            yield fail(
                Where(node=node.name),
                f"NVML cannot be used: {error}",
                why="NCCL and torch ask the same library about GPUs and their topology.",
                owner="node",
                evidence=[seen("nvmlInit", error)],
                fix=[
                    admin(
                        "Reboot, or load the driver that belongs to the library.",
                        "cat /proc/driver/nvidia/version",
                        "systemctl reboot",
                    ),
                    leave_out(),
                ],
            )


@rule(
    "GPU004",
    "no GPU is lost or needs a reset",
    worst=State.FAIL,
    over="nodes.gpus.cards",
    needs=(".trouble",),
)
def not_lost(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether NVML can talk to each GPU that the job may use, and whether the driver asks for a reset or a reboot.

    ## Why it matters
    A GPU that fell off the bus is still counted by some tools, while every CUDA call on it fails: one rank dies
    with "unspecified launch failure" or an unknown error, and all others hang in the next collective.

    ## Seen as
    hangs, dies

    ## How we know
    NVML's answers "GPU is lost" and "GPU requires reset" to any call, and from driver 570 on what it recommends
    itself (field GET_GPU_RECOVERY_ACTION). A lost GPU that the job may not use is a note.

    ## Fix
    - **admin** drain the node; reset the GPU; reboot; if it comes back lost, reseat or replace it.
    - **you** leave the node out.

    ## Source
    NVML API reference, nvmlReturn_t and field values; NVIDIA Xid errors, Xid 79; vllm-project/vllm#5222.
    """
    for card in cards(cluster):
        trouble = known(card.gpu.trouble)
        recovery = value_or(card.gpu.recovery, "none")
        if trouble:
            what, evidence = f"NVML cannot use it: {trouble}", card.seen("its answer", trouble)
        elif recovery in ("reset", "reboot", "drain_and_reset"):
            what = f"the driver asks for a {recovery.replace('_', ' ')}"
            evidence = card.seen("recovery action", recovery)
        else:
            continue
        why = "The rank on it dies, and all others wait for it."
        yield fail(card.where, what, why=why, owner="node", evidence=[evidence], fix=[reset(), leave_out()])
    for node in cluster.nodes:
        yield from (_lost_beside(node, gpu) for gpu in value_or(at(node, "gpus.others"), []) if _lost(gpu))


def _lost(gpu: Gpu) -> str:
    return value_or(gpu.trouble, "")


def _lost_beside(node: Node, gpu: Gpu) -> Finding:
    return note(Where(node=node.name, device=gpu.name), f"{_lost(gpu)}; the job does not use it", owner="node")


@rule("GPU005", "the driver logged no hardware Xid", worst=State.FAIL, needs=("gpus.xids",))
def hardware_xids(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Xid lines of the last 24 hours in the kernel log that point at the GPU, its memory or its links: 46, 48, 54,
    61, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 158, 167 to 169; and as warnings 63, 92, 94,
    144 to 150, 156, 157, 171, 172. 154 says what the driver asks for: a reset, or a reboot. Of NVSwitches the SXid
    lines that call themselves fatal. Every other number is a note.

    ## Why it matters
    The kernel log is often the only place that says why a rank died. The same node fails the next job again
    until the GPU is reset or replaced. In one 54-day run on 16,384 GPUs, GPUs and their memory were nearly half
    of all interruptions.

    ## Seen as
    dies

    ## How we know
    /dev/kmsg, `journalctl -k`, or the end of /var/log/kern.log, messages or syslog: the first that this user may
    read. Lines about GPUs that the job may not use, or older ones, are notes (`GPU005.hours`, default 24). Where
    the driver (570 and later) asks for nothing now, it is a warning: the GPU was reset since. A log that may not
    be read is `unknown`.

    ## Fix
    - **admin** drain the node, reset the GPU or reboot; replace it when the error comes back.
    - **you** leave the node out; keep the line for the ticket.

    ## Source
    NVIDIA's Xid catalog and its chapter on SXid errors (Fabric Manager user guide); leptonai/gpud (Xid 119);
    vllm-project/vllm#5222; "The Llama 3 Herd of Models", reliability.
    """
    recent = cluster.policy.thresholds.get("GPU005.hours", 24.0)
    for node, xid in _listed(cluster, lambda xid: xid.code not in PROGRAM):
        where, what = _place(node, xid), f"{xid.name}{_meaning(xid)}{_often(xid)}"
        if not _is_serious(xid):
            yield note(where, what, owner="node", evidence=_quoted(xid))
            continue
        if _foreign(node, xid) or value_or(xid.hours, 0.0) > recent:
            yield note(where, f"{what}: old, or not a GPU of this job", owner="node", evidence=_quoted(xid))
            continue
        level = warn if xid.code in LESSER or _well_again(node, xid) else fail
        yield level(
            where,
            what,
            why="The next job on this GPU is likely to die likewise.",
            owner="node",
            evidence=_quoted(xid),
            fix=[_repair(xid), leave_out()],
        )


def _is_serious(xid: Xid) -> bool:
    if of_switch(xid.name):
        return is_fatal(xid.line)
    return xid.code in HARDWARE or xid.code in LESSER or (xid.code == RECOVERY and bool(asked_for(xid.line)))


def _meaning(xid: Xid) -> str:
    if of_switch(xid.name):
        return ", an error of an NVSwitch" + (" that is fatal" if is_fatal(xid.line) else "")
    if xid.code == RECOVERY:
        return f", the driver asks for: {asked_for(xid.line) or 'nothing'}"
    meaning = (HARDWARE | LESSER).get(xid.code)
    return f", {meaning}" if meaning else ""


def _repair(xid: Xid) -> Remedy:
    if of_switch(xid.name):
        text = "Drain the node, then reset all GPUs and NVSwitches; if that does not help, reboot."
        return admin(text, "nvidia-smi --gpu-reset", "systemctl restart nvidia-fabricmanager")
    if "reboot" in asked_for(xid.line).lower():
        return admin("Drain the node and reboot it, as the driver asks.", "reboot")
    return reset()


def _listed(cluster: Cluster, wanted: Callable[[Xid], bool]) -> Iterator[tuple[Node, Xid]]:
    for node in cluster.nodes:
        yield from ((node, xid) for xid in known(at(node, "gpus.xids")) if wanted(xid))


def _at(gpus: list[Gpu] | Unread, pci: str) -> Gpu | None:
    return next((gpu for gpu in value_or(gpus, []) if gpu.pci == pci), None)


def _foreign(node: Node, xid: Xid) -> bool:
    return _at(at(node, "gpus.others"), xid.pci) is not None


def _well_again(node: Node, xid: Xid) -> bool:
    """Whether the driver says that it asks for nothing now."""
    gpu = _at(at(node, "gpus.cards"), xid.pci)
    return gpu is not None and gpu.trouble == "" and gpu.recovery == "none"


def _place(node: Node, xid: Xid) -> Where:
    gpu = _at(at(node, "gpus.cards"), xid.pci) or _at(at(node, "gpus.others"), xid.pci)
    return Where(node=node.name, device=gpu.name if gpu else xid.pci)


def _often(xid: Xid) -> str:
    ago = "" if isinstance(xid.hours, Unread) else f", {xid.hours:g} hours ago"
    return f" ({xid.times} times{ago})" if xid.times > 1 else ago


def _quoted(xid: Xid) -> list[Evidence]:
    return [seen("kernel log", xid.line)]


@rule("GPU006", "the driver logged no application Xid", worst=State.WARN, needs=("gpus.xids",))
def program_xids(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Xid lines of the last hour that a program brings about itself: 11, 13, 25, 31, 32, 43, 45, 69, 80, 137.

    ## Why it matters
    A rank whose kernel reads out of bounds dies, and the others report an NCCL time-out or "remote process has
    exited". Nodes are then drained for nothing, and the job fails again elsewhere. Xid 45 is what a kill leaves.

    ## Seen as
    hangs, dies

    ## How we know
    The kernel log, as for GPU005. Older lines (`GPU006.hours`, default 1), Xid 45 and lines about GPUs
    that the job may not use are notes. The line names the process.

    ## Fix
    - **you** run the program with `CUDA_LAUNCH_BLOCKING=1`, or under `compute-sanitizer`, on one GPU.
    - **admin** if several users see 13 or 31 on the same GPU only, run `dcgmi diag -r 3` on it.

    ## Source
    NVIDIA Xid errors (13, 31, 43, 45, 137 may be of the application); returnn#1486.
    """
    recent = cluster.policy.thresholds.get("GPU006.hours", 1.0)
    for node, xid in _listed(cluster, lambda xid: xid.code in PROGRAM):
        where, what = _place(node, xid), f"{xid.name}, {PROGRAM[xid.code]}{_often(xid)}"
        if xid.code == 45 or _foreign(node, xid) or value_or(xid.hours, 0.0) > recent:
            yield note(where, what, evidence=_quoted(xid))
            continue
        yield warn(
            where,
            what,
            why="The rank that did this died; what the other ranks reported was its echo.",
            owner="job",
            evidence=_quoted(xid),
            fix=[you("Find the kernel.", "CUDA_LAUNCH_BLOCKING=1 python TRAIN", "compute-sanitizer python TRAIN")],
        )

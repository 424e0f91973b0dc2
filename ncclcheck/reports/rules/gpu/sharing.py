"""Rules about who else is on the job's GPUs: other users, dead processes, memory without an owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ncclcheck.probes.facts import Cluster, GpuProcess, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, admin, fail, note, unknown, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nodes import containers
from ncclcheck.reports.subjects.nodes.cards import Card, cards, leave_out, reset
from ncclcheck.reports.text.words.fold import first_of, size

_GPUS = "nodes.gpus.cards"
_MIB = 2**20  # bytes
_GIB = 2**30  # bytes
_DEAD = ("gone", "Z", "X")


@rule(
    "GPU025",
    "no other process computes on the job's GPUs",
    worst=State.FAIL,
    over=_GPUS,
    needs=(".processes",),
    gates_job="by any failure",
)
def foreign(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Processes that hold at least 256 MiB (`GPU025.mib`) on a GPU that the job may use, before the job starts.

    ## Why it matters
    Somebody else's program takes memory and time: the rank on that GPU is late in every collective or runs out of
    memory, and what is measured is their load. Outside a job system nobody keeps two users apart.

    ## Seen as
    slow, out of memory

    ## How we know
    nvmlDeviceGetComputeRunningProcesses, and the owner from /proc. For `bench` and all that starts a job itself,
    any such process is a failure, the user's own too. For `env`, which may be run beside one's own job, only
    those of other users are a warning. In a container pids are the host's: whose they are is then `unknown`.

    ## Fix
    - **you** `nvidia-smi`, end what is yours; else choose other GPUs (CUDA_VISIBLE_DEVICES); `--force` measures
      all the same.
    - **admin** give out GPUs by a job system; `nvidia-smi -c EXCLUSIVE_PROCESS`.

    ## Source
    nvidia-smi(1); NVIDIA/nvidia-docker#179 (pids in containers); pytorch/pytorch#49481.
    """
    least = cluster.policy.thresholds.get("GPU025.mib", 256.0) * _MIB
    for card in cards(cluster):
        processes = [
            process
            for process in known(card.gpu.processes)
            if _holds(process, least) and process.state not in _DEAD
        ]
        own = value_or(at(card.node, "gpus.user"), "")
        if cluster.command == "env":
            yield from _beside_own_job(card, processes, own)
        elif processes:
            yield _taken(fail, card, processes)


def _holds(process: GpuProcess, least: float) -> bool:
    return isinstance(process.memory, Unread) or process.memory >= least


def _beside_own_job(card: Card, processes: list[GpuProcess], own: str) -> Iterator[Finding]:
    others = [process for process in processes if not isinstance(process.user, Unread) and process.user != own]
    hidden = [process for process in processes if isinstance(process.user, Unread)]
    if others:
        yield _taken(warn, card, others)
    if hidden:
        yield unknown(
            card.where,
            f"{len(hidden)} processes are on it, and whose they are cannot be seen from here",
            why="They may be your own job's, or somebody else's.",
            evidence=[card.seen("processes", _listed(hidden))],
            fix=[you("Look from the host.", "nvidia-smi")],
        )


def _taken(level: Callable[..., Finding], card: Card, processes: list[GpuProcess]) -> Finding:
    users = sorted({value_or(process.user, "an unknown user") for process in processes})
    return level(
        card.where,
        f"{len(processes)} process{'es' if len(processes) > 1 else ''} of {', '.join(users)} on it: "
        f"{_listed(processes)}",
        why="They take memory and time of this GPU, and all ranks wait for the one on it.",
        owner="site",
        evidence=[card.seen("processes", _listed(processes))],
        fix=[
            you("End what is yours, or choose other GPUs.", "nvidia-smi", "export CUDA_VISIBLE_DEVICES=..."),
            admin("Give out GPUs by a job system, so that two users do not meet on one."),
        ],
    )


def _listed(processes: list[GpuProcess]) -> str:
    """The three largest, and how many more."""
    largest = sorted(processes, key=lambda process: -value_or(process.memory, 0))
    return first_of(
        (f"{value_or(process.name, 'pid')} {process.pid} ({_memory(process)})" for process in largest), 3
    )


def _memory(process: GpuProcess) -> str:
    return "memory unread" if isinstance(process.memory, Unread) else size(process.memory)


@rule("GPU026", "no dead process holds GPU memory", worst=State.WARN, over=_GPUS, needs=(".processes",))
def dead(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Processes that NVML lists on a GPU and that have ended, or are zombies.

    ## Why it matters
    After a rank was killed, its data loader workers or a checkpoint process may live on with /dev/nvidia* open:
    the driver keeps the memory, and the next job runs out of it on what looks like an empty GPU. A zombie's
    parent hangs.

    ## Seen as
    hangs, dies

    ## How we know
    NVML's pids against /proc; only where this process sees all pids of the machine, else it is skipped.

    ## Fix
    - **you** end the rest of your old job: `fuser -v /dev/nvidia*` names who holds it.
    - **admin** the same as root; reset the GPU; a job epilog that ends all of a user's processes.

    ## Source
    pytorch/pytorch#1085, pytorch/pytorch#5736, pytorch/pytorch#8805; NVIDIA/Megatron-LM#3684.
    """
    for card in cards(cluster):
        gone = [process for process in known(card.gpu.processes) if process.state in _DEAD]
        if gone:
            pids = ", ".join(str(process.pid) for process in gone)
            yield warn(
                card.where,
                f"{_held(gone)} are still allocated to processes that have ended: {pids}",
                why="The next job runs out of memory on what looks like an empty GPU.",
                owner="node",
                evidence=[card.seen("processes that are gone", pids)],
                fix=[you("Find who keeps the device open, and end it.", "fuser -v /dev/nvidia*"), reset()],
            )


def _held(processes: list[GpuProcess]) -> str:
    return size(sum(value_or(process.memory, 0) for process in processes))


@rule(
    "GPU027",
    "no GPU memory is in use without an owner",
    worst=State.WARN,
    over=_GPUS,
    needs=(".processes", ".memory_used"),
)
def unowned(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Memory in use on a GPU on which no process is visible: at least 1 GiB (`GPU027.gib`).

    ## Why it matters
    It is missing to the job. Either somebody computes whom this container cannot see, or a dead process has left
    it behind, or ECC and MIG settings are half changed; only a reset gives it back in the last two cases.

    ## How we know
    nvmlDeviceGetMemoryInfo (what the driver reserves for itself is apart) and an empty list of processes. A
    GPU that is divided by MIG is skipped: its processes belong to its instances. In a container with a pid
    namespace of its own the list is always empty, also beside the job itself: there it is unknown. The list has
    programs that compute, not a desktop's windows: on a GeForce card in a job of one node it is a note.

    ## Fix
    - **you** on the host: `nvidia-smi`, `fuser -v /dev/nvidia*`.
    - **admin** end what holds it, else reset the GPU.

    ## Source
    pytorch/pytorch#1085; NVIDIA/nvidia-docker#179; NVIDIA/open-gpu-kernel-modules#614.
    """
    least = cluster.policy.thresholds.get("GPU027.gib", 1.0) * _GIB
    for card in cards(cluster):
        used = known(card.gpu.memory_used)
        if used < least or known(card.gpu.processes):
            continue
        evidence = [card.seen("memory in use", size(used)), card.seen("processes", "none")]
        if value_or(card.gpu.mig, False):
            yield note(card.where, f"{size(used)} in use by its MIG instances", evidence=evidence)
            continue
        if "GeForce" in card.model and cluster.job.nodes_asked < 2:
            yield note(card.where, f"{size(used)} in use, by a desktop perhaps", evidence=evidence)
            continue
        if containers.has_own_processes(card.node):
            yield unknown(
                card.where,
                f"{size(used)} of its memory are in use, and this container cannot see by whom",
                why="It may be this very job; what does not belong to it is missing to it.",
                evidence=evidence,
                fix=[you("Look from the host.", "nvidia-smi")],
            )
            continue
        yield warn(
            card.where,
            f"{size(used)} of its memory are in use, and no process is to be seen",
            why="It is missing to the job, and whoever holds it may compute as well.",
            owner="node",
            evidence=evidence,
            fix=[you("Look from the host.", "nvidia-smi", "fuser -v /dev/nvidia*"), reset(), leave_out()],
        )

"""Rules about modes that an administrator sets: MIG, compute mode, persistence."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, at, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, note, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nodes.cards import Card, cards, leave_out

_GPUS = "nodes.gpus.cards"


@rule("GPU022", "MIG is disabled", worst=State.WARN, over=_GPUS, needs=(".mig",))
def mig(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether a GPU that the job may use is partitioned into MIG instances, on all nodes or on some.

    ## Why it matters
    A process sees one instance only, with a seventh of the GPU or more; NCCL cannot join instances of one GPU:
    it stops with "Duplicate GPU detected". MIG stays on after a reboot, so one node of many is easily forgotten.

    ## Seen as
    does not start

    ## How we know
    nvmlDeviceGetMigMode. It is a warning where the job has several GPUs or nodes, else a note: one process on
    one instance is what MIG is for.

    ## Fix
    - **admin** `nvidia-smi -i N -mig 0` and reset the GPU, with no program on it.
    - **you** ask for whole GPUs (another partition, `--gres=gpu:h100:8`, `nvidia.com/gpu`).

    ## Source
    NVIDIA MIG user guide (limits: no NCCL between instances of a GPU); NCCL, "Duplicate GPU detected".
    """
    gpus = list(cards(cluster))
    several = len(gpus) > 1 or cluster.job.nodes_asked > 1
    for card in gpus:
        if not known(card.gpu.mig):
            continue
        instances = value_or(card.gpu.mig_instances, [])
        what = f"is divided into {len(instances)} MIG instances"
        evidence = [card.seen("MIG mode", "on")]
        if not several:
            yield note(card.where, what, owner="site", evidence=evidence)
            continue
        yield warn(
            card.where,
            what,
            why="A process sees one instance of it, and NCCL cannot join instances of one GPU.",
            owner="node",
            evidence=evidence,
            fix=[
                admin("Turn MIG off and reset the GPU.", "nvidia-smi -i N -mig 0"),
                you("Ask for whole GPUs.", "#SBATCH --gres=gpu:8"),
            ],
        )


@rule("GPU023", "the compute mode admits the job", worst=State.FAIL, over=_GPUS, needs=(".compute_mode",))
def compute_mode(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether each GPU accepts programs: its compute mode, and who is on it already.

    ## Why it matters
    In mode "prohibited" no program gets a context. In "exclusive process" only one does: a second rank, a data
    loader worker that touches CUDA, or a leftover of the last job gets "all CUDA-capable devices are busy or
    unavailable".

    ## How we know
    nvmlDeviceGetComputeMode. Prohibited is a failure; exclusive is one where a process is on the GPU already and
    this run is to start another, else a note.

    ## Fix
    - **admin** `nvidia-smi -i N -c DEFAULT`.
    - **you** end what is still on the GPU; one process a GPU where the mode is exclusive.

    ## Source
    nvidia-smi(1), --compute-mode; CUDA C++ programming guide, compute modes; CUDA error 46.
    """
    for card in cards(cluster):
        mode = known(card.gpu.compute_mode)
        taken = value_or(card.gpu.processes, [])
        if mode == "prohibited":
            yield _closed(card, "its compute mode is prohibited: no program may use it")
        elif mode.startswith("exclusive") and taken and cluster.command != "env":
            yield _closed(card, f"its compute mode is exclusive, and process {taken[0].pid} is on it")
        elif mode.startswith("exclusive"):
            what = "its compute mode is exclusive: one process at a time"
            yield note(card.where, what, owner="site", evidence=[card.seen("compute mode", mode)])


def _closed(card: Card, what: str) -> Finding:
    return fail(
        card.where,
        what,
        why='The rank on it gets "all CUDA-capable devices are busy or unavailable".',
        owner="node",
        evidence=[card.seen("compute mode", known(card.gpu.compute_mode))],
        fix=[admin("Set the default mode.", "nvidia-smi -i N -c DEFAULT"), leave_out()],
    )


_JETSON = "-tegra"  # the ending of their kernel's release


@rule("GPU024", "persistence mode is on", worst=State.WARN, over=_GPUS, needs=(".persistence",))
def persistence(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the driver keeps idle GPUs initialised (persistence mode).

    ## Why it matters
    Without it the driver lets go of a GPU when its last user ends, and sets it up again for the next: 1 to 3
    seconds a GPU at every start, clocks and power limits back to their defaults, error counters gone. On a node
    with eight GPUs tools that give nvidia-smi a few seconds take that for a fault.

    ## How we know
    nvmlDeviceGetPersistenceMode. A warning in a job of several nodes, where the slowest start counts; else a note.
    GeForce boards have it off wherever nobody turned it on, and a display keeps them initialised: a note. So it is
    of Jetson boards, whose GPU is a part of the processor.

    ## Fix
    - **admin** `systemctl enable --now nvidia-persistenced`; Ubuntu's unit starts it with
      `--no-persistence-mode`, which must go, or `nvidia-smi -pm 1` follows at each boot.

    ## Source
    NVIDIA driver persistence (GPU deployment and management documentation); nvidia-persistenced(1).
    """
    off: dict[str, list[str]] = {}
    gpus = list(cards(cluster))
    desktops = {card.node.name for card in gpus if "GeForce" in card.model}
    desktops |= {node.name for node in cluster.nodes if str(at(node, "host.kernel")).endswith(_JETSON)}
    for card in gpus:
        if not known(card.gpu.persistence):
            off.setdefault(card.node.name, []).append(card.gpu.name)
    for node, names in off.items():
        total = len(next(known(at(host, "gpus.cards")) for host in cluster.nodes if host.name == node))
        what = f"persistence mode is off on {len(names)} of {total} GPUs"
        evidence = [seen("NVML: persistence mode", "off on " + ", ".join(names))]
        if cluster.job.nodes_asked < 2 or node in desktops:
            yield note(
                Where(node=node), what, why="Each start takes seconds longer.", owner="site", evidence=evidence
            )
            continue
        yield warn(
            Where(node=node),
            what,
            why="The driver sets each GPU up anew for every program: all ranks wait for the slowest start.",
            owner="node",
            evidence=evidence,
            fix=[admin("Turn it on.", "systemctl enable --now nvidia-persistenced", "nvidia-smi -pm 1")],
        )

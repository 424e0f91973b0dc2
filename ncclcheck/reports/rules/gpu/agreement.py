"""Rules about GPUs that should be alike, and as many as there should be."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, Unread, at, known, value_or, variables
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements
from ncclcheck.reports.subjects.nodes.cards import cards, given_by_slurm, leave_out, odd_ones

_GPUS = "nodes.gpus.cards"


@rule("GPU028", "all GPUs are the same model", worst=State.WARN, over=_GPUS, needs=(".model",))
def model(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The models of all GPUs that the job may use, within each node and between nodes.

    ## Why it matters
    All ranks go at the pace of the slowest model, and have room for what fits into the smallest. NCCL's choice
    of algorithm differs between architectures, and features such as NVLS are off unless all have them. A node
    of another partition in the job, or a display card beside the compute cards, is the usual reason.

    ## Seen as
    slow

    ## How we know
    nvmlDeviceGetName; between nodes the odd one out by majority. Another VBIOS than on most GPUs of the model is
    a note: firmware sets limits of power and heat, and an exchanged GPU often has another one. So are unlike
    models where CUDA_VISIBLE_DEVICES takes some by number, for CUDA's order of unlike GPUs is its own.

    ## Fix
    - **you** ask for one type (`--gres=gpu:h100:8`, `--constraint`), or hide the other card with
      CUDA_VISIBLE_DEVICES.

    ## Source
    NCCL user guide, environment variables (NVLS); Slurm, sbatch(1) --constraint and --gres.
    """
    why = "All ranks go at the pace of the slowest model."
    fix = [you("Ask for one type of GPU, or hide the other card.", "#SBATCH --constraint=TYPE")]
    models: dict[str, set[str]] = {}
    chosen = {node.name for node in cluster.nodes if _picks(node)}
    for card in cards(cluster):
        models.setdefault(card.node.name, set()).add(card.model)
    for node, kinds in models.items():
        if len(kinds) > 1:
            text = " and ".join(sorted(kinds))
            evidence = [seen("NVML: models", text)]
            level = note if node in chosen else warn
            yield level(Where(node=node), f"has {text}", why=why, owner="job", evidence=evidence, fix=fix)
    if len(models) > 1:
        values = {node: " and ".join(sorted(own)) for node, own in models.items()}
        yield from disagreements(values, "GPU model", "NVML: models", level=warn, why=why, owner="job", fix=fix)
    yield from _firmware(cluster)


def _picks(node: Node) -> bool:
    """Whether CUDA shows fewer GPUs than there are: of unlike ones a number does not tell which."""
    count: int = value_or(at(node, "gpus.usable"), 0)
    return 0 < count < len(value_or(at(node, "gpus.cards"), []))


def _firmware(cluster: Cluster) -> Iterator[Finding]:
    readable = [card for card in cards(cluster) if not isinstance(card.gpu.vbios, Unread)]
    for card, mine, usual in odd_ones(readable, lambda card: str(card.gpu.vbios)):
        what = f"VBIOS {mine}, most others of its model have {usual}"
        yield note(card.where, what, owner="site", evidence=[card.seen("VBIOS", mine)])


@rule("GPU029", "the job sees all the GPUs that were allocated to it", worst=State.FAIL, needs=("gpus.cards",))
def given(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The GPUs that can be found on each node, against the number that Slurm gave and against the entries of
    CUDA_VISIBLE_DEVICES.

    ## Why it matters
    CUDA stops reading CUDA_VISIBLE_DEVICES at the first entry that names no GPU, without a word: `0,1,8,9` on a
    node of eight gives two, and torchrun's third rank dies with "invalid device ordinal". A GPU that Slurm gave
    and the driver does not list has fallen off the bus.

    ## Seen as
    dies, setting without effect

    ## How we know
    NVML's list of GPUs, SLURM_GPUS_ON_NODE, and each entry of CUDA_VISIBLE_DEVICES by number, UUID or MIG
    instance. Slurm counts MIG instances too, so its number is not compared where a GPU is divided.

    ## Fix
    - **you** correct CUDA_VISIBLE_DEVICES, or leave it to the job system.
    - **admin** `nvidia-smi -L`, `dmesg | grep -i xid`; drain the node until the GPU is back.

    ## Source
    CUDA C++ programming guide, CUDA_VISIBLE_DEVICES; sbatch(1), SLURM_GPUS_ON_NODE; NVIDIA/nccl#348.
    """
    asked = [node for node in cluster.nodes if _entries(node) or given_by_slurm(node)]
    if not asked:
        raise NothingToJudge("neither Slurm nor CUDA_VISIBLE_DEVICES says how many GPUs there should be")
    for node in asked:
        mine, all_here = len(known(at(node, "gpus.cards"))), _here(node)
        entries, slurm = _entries(node), given_by_slurm(node)
        if len(entries) > _named(node, mine):
            yield _bad_entry(node, entries, mine, all_here)
        elif slurm > all_here and not _divided(node):
            yield fail(
                Where(node=node.name),
                f"Slurm gave {slurm} GPUs, and the driver lists {all_here}",
                why="A rank has no GPU: it dies, or shares one with another rank.",
                owner="node",
                evidence=[seen("SLURM_GPUS_ON_NODE", slurm), seen("NVML: GPUs", all_here)],
                fix=[admin("Find the missing one.", "nvidia-smi -L", "dmesg | grep -i xid"), leave_out()],
            )


def _entries(node: Node) -> list[str]:
    text = variables(node).get("CUDA_VISIBLE_DEVICES", "")
    parts = [part.strip() for part in text.split(",")]
    return [] if parts[0] in ("", "-1", "NoDevFiles") else parts


def _here(node: Node) -> int:
    return len(known(at(node, "gpus.cards"))) + len(value_or(at(node, "gpus.others"), []))


def _named(node: Node, mine: int) -> int:
    """Entries that a GPU was found for: several MIG instances may be on one."""
    return len(_entries(node)) if _divided(node) else mine


def _divided(node: Node) -> bool:
    return any(value_or(gpu.mig, False) for gpu in known(at(node, "gpus.cards")))


def _bad_entry(node: Node, entries: list[str], mine: int, all_here: int) -> Finding:
    return fail(
        Where(node=node.name),
        f"CUDA_VISIBLE_DEVICES has {len(entries)} entries; by it CUDA can use {mine} of the {all_here} GPUs here",
        why="CUDA stops at the first entry that names no GPU; ranks beyond it have none.",
        owner="job",
        evidence=[seen("CUDA_VISIBLE_DEVICES", ",".join(entries)), seen("NVML: GPUs", all_here)],
        fix=[you("Name only GPUs that are here, each once; or leave it to the job system.", "nvidia-smi -L")],
    )


@rule(
    "GPU030",
    "every node has the same number of GPUs",
    worst=State.WARN,
    needs=("gpus.cards",),
    at_least=2,
    between_machines=True,
)
def number(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The number of GPUs that the job may use on each node.

    ## Why it matters
    torchrun is mostly started with one number of ranks a node for all nodes: the node that has fewer fails, and
    the others wait in the rendezvous until their time-out. A node that lost a GPU at boot lists seven, and
    nothing on that node alone looks wrong.

    ## Seen as
    hangs, does not start

    ## How we know
    NVML's list on each node, without what CUDA_VISIBLE_DEVICES or Slurm hides; the odd one out by majority.

    ## Fix
    - **admin** `nvidia-smi -L`, `lspci | grep -i nvidia`, `dmesg | grep -i xid` on the node that has fewer.
    - **you** leave the node out, or start it with its own number of ranks.

    ## Source
    torchrun, --nproc-per-node; NVIDIA Xid errors, 79; facebookresearch/gcm and NVIDIA/NVSentinel count GPUs.
    """
    values = {node.name: len(known(at(node, "gpus.cards"))) for node in cluster.nodes}
    yield from disagreements(
        values,
        "the number of GPUs",
        "NVML: GPUs",
        level=warn,
        why="With one number of ranks for all nodes, the node that has fewer fails and the others wait.",
        owner="node",
        fix=[admin("Find the missing one.", "nvidia-smi -L", "dmesg | grep -i xid"), leave_out()],
    )

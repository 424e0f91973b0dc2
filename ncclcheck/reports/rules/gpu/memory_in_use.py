"""Rules about GPU memory of the user's own job, judged by `env` while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ncclcheck.probes.facts import Cluster, Gpu, Node, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.text.words.fold import size

_MIB = 2**20  # bytes
_GIB = 2**30  # bytes
_SET_DEVICE = "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"


def _held(node: Node) -> dict[int, dict[str, int]]:
    """Process -> GPU -> memory, for what NVML tells the memory of."""
    by_process: dict[int, dict[str, int]] = {}
    for gpu in known(at(node, "gpus.cards")):
        for process in value_or(gpu.processes, []):
            if not isinstance(process.memory, Unread) and _is_own(node, process.user):
                by_process.setdefault(process.pid, {})[gpu.name] = process.memory
    return by_process


def _is_own(node: Node, user: str | Unread) -> bool:
    """Ours, or nobody's that can be named: in a container pids are the host's."""
    return isinstance(user, Unread) or user == value_or(at(node, "gpus.user"), user)


def _computing(cluster: Cluster) -> list[tuple[Node, dict[int, dict[str, int]]]]:
    """Nodes on which several processes are on GPUs."""
    nodes = [(node, processes) for node in cluster.nodes if len(processes := _held(node)) > 1]
    if not nodes:
        raise NothingToJudge("no job of several processes is on the GPUs now")
    return nodes


@rule(
    "MEM001",
    "no rank has a context on another rank's GPU",
    worst=State.WARN,
    needs=("gpus.cards",),
    commands=("env",),
)
def foreign_contexts(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    While your own job runs: processes that hold a little memory on a GPU beside the one that they compute on.

    ## Why it matters
    A rank that touches CUDA before `torch.cuda.set_device` opens a context on GPU 0: 300 to 900 MiB for each rank.
    With eight ranks GPU 0 loses 2 to 7 GiB, and rank 0 runs out of memory where the others have room. A
    `torch.load` without `map_location`, `barrier()` without a device, and a pin_memory thread do the same.

    ## Seen as
    out of memory

    ## How we know
    The same pid on several GPUs in NVML's lists: most of its memory on one, under 2 GiB (`MEM001.gib`) and less
    than half as much on the other. Several processes must run: one process that spreads a model over GPUs is
    sound. Pids of the host do as well, so it works in containers.

    ## Fix
    - **you** `torch.cuda.set_device(local_rank)` before anything else of CUDA, or CUDA_VISIBLE_DEVICES a rank.
    - **you** `torch.load(path, map_location="cpu")`; `init_process_group(device_id=...)`.

    ## Source
    pytorch/pytorch#49481 (871 MiB of each of seven ranks on GPU 0), pytorch/pytorch#135279, pytorch/examples#969,
    huggingface/peft#2193.
    """
    limit = cluster.policy.thresholds.get("MEM001.gib", 2.0) * _GIB
    for node, processes in _computing(cluster):
        guests: dict[str, list[tuple[int, int]]] = {}
        for pid, memory in processes.items():
            home = max(memory, key=lambda name: memory[name])
            for name, count in memory.items():
                if name != home and count < min(limit, memory[home] / 2):
                    guests.setdefault(name, []).append((pid, count))
        yield from (_crowded(node, name, visitors) for name, visitors in guests.items())


def _crowded(node: Node, gpu: str, guests: list[tuple[int, int]]) -> Finding:
    total = size(sum(count for _, count in guests))
    shown = ", ".join(f"{pid} ({size(count)})" for pid, count in guests[:8])
    return warn(
        Where(node=node.name, device=gpu),
        f"{len(guests)} processes that compute on other GPUs hold {total} on it",
        why="The rank on this GPU runs out of memory first, while the others have room.",
        owner="job",
        evidence=[seen("NVML: processes", shown)],
        fix=[
            you("Choose the device before anything else of CUDA.", _SET_DEVICE),
            you("Load checkpoints to the host first.", 'torch.load(path, map_location="cpu")'),
        ],
    )


@rule(
    "MEM002",
    "no GPU has far more memory in use than its peers",
    worst=State.WARN,
    needs=("gpus.cards",),
    commands=("env",),
)
def fuller(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    While your own job runs: the memory in use on each GPU, against that of the other GPUs of the node.

    ## Why it matters
    The fullest GPU sets the batch size of all. `nn.DataParallel` gathers outputs and losses on GPU 0; gathering
    metrics or a full state dict on rank 0, and stray contexts (MEM001), do the same to a DDP job.

    ## Seen as
    out of memory

    ## How we know
    nvmlDeviceGetMemoryInfo of GPUs on which the job's processes are, each with 1 GiB or more: over 1.3 times the
    median of the others (`MEM002.ratio`), and by more than 10 % of the GPU (`MEM002.share`). Pipeline stages and
    experts may differ on purpose.

    ## Fix
    - **you** DistributedDataParallel instead of DataParallel; gather on the CPU; sharded checkpoints.

    ## Source
    PyTorch, DataParallel (prefer DistributedDataParallel); pytorch/pytorch#49481; facebookresearch/DPR#104.
    """
    for node, processes in _computing(cluster):
        on = {name for memory in processes.values() for name in memory}
        used = {
            gpu.name: gpu
            for gpu in known(at(node, "gpus.cards"))
            if gpu.name in on and value_or(gpu.memory_used, 0) >= _GIB
        }
        for name, gpu in used.items() if len(used) > 1 else ():
            others = [value_or(other.memory_used, 0) for other in used.values() if other is not gpu]
            if _is_fuller(cluster, gpu, median(others)):
                yield _full(node, name, value_or(gpu.memory_used, 0), int(median(others)))


def _is_fuller(cluster: Cluster, gpu: Gpu, usual: float) -> bool:
    limits = cluster.policy.thresholds
    mine, total = value_or(gpu.memory_used, 0), value_or(gpu.memory_total, 0)
    more = mine - usual
    return mine > limits.get("MEM002.ratio", 1.3) * usual and more > limits.get("MEM002.share", 0.1) * total > 0


def _full(node: Node, gpu: str, mine: int, usual: int) -> Finding:
    return warn(
        Where(node=node.name, device=gpu),
        f"{size(mine)} are in use on it, {size(usual)} on its peers",
        why="The fullest GPU sets the batch size of all, and is the first to run out of memory.",
        owner="job",
        evidence=[seen("NVML: memory in use", f"{size(mine)}; median of the others {size(usual)}")],
        fix=[
            you(
                "See what only this rank keeps: gathered outputs, metrics, checkpoints.",
                "torch.cuda.memory_summary()",
            )
        ],
    )


@rule(
    "MEM003",
    "no two ranks share a GPU while another is idle",
    worst=State.WARN,
    needs=("gpus.cards",),
    commands=("env",),
)
def shared(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    While your own job runs: GPUs with two or more of its processes, while another GPU that it may use has none.

    ## Why it matters
    Ranks that lost their LOCAL_RANK all take GPU 0: memory runs out and each gets a part of its speed; with NCCL
    the job stops with "Duplicate GPU detected". A wrapper script, `mpirun` without binding, or the same
    CUDA_VISIBLE_DEVICES for all ranks brings it about.

    ## Seen as
    slow, out of memory

    ## How we know
    NVML's list of processes: at least two that hold 256 MiB (`MEM003.mib`) on this GPU and nothing elsewhere, and
    an empty GPU among those that the job may use.

    ## Fix
    - **you** `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`; not one CUDA_VISIBLE_DEVICES for all.

    ## Source
    NCCL, "Duplicate GPU detected"; volcengine/verl#161; pytorch/pytorch#49481.
    """
    least = cluster.policy.thresholds.get("MEM003.mib", 256.0) * _MIB
    for node, processes in _computing(cluster):
        idle = [gpu.name for gpu in known(at(node, "gpus.cards")) if gpu.processes == []]
        alone: dict[str, list[int]] = {}
        for pid, memory in processes.items():
            if len(memory) == 1 and (name := next(iter(memory))) and memory[name] >= least:
                alone.setdefault(name, []).append(pid)
        yield from (_doubled(node, name, pids, idle) for name, pids in alone.items() if len(pids) > 1 and idle)


def _doubled(node: Node, gpu: str, pids: list[int], idle: list[str]) -> Finding:
    return warn(
        Where(node=node.name, device=gpu),
        f"{len(pids)} processes of the job share it, and nothing runs on {', '.join(idle)}",
        why="Each gets a part of its memory and speed; NCCL refuses two ranks on one GPU.",
        owner="job",
        evidence=[seen("NVML: processes", ", ".join(map(str, pids)))],
        fix=[you("Give each rank its own GPU.", _SET_DEVICE)],
    )

"""Rules about the memory of the ranks of our own jobs, on GPUs and on CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Elsewhere, RankMemory
from ncclcheck.reports.judgement.findings import Finding, State, Where, fail, fine, seen, unknown, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.training import step_times
from ncclcheck.reports.text.words.fold import size

_MIB = 2**20  # bytes
_JOBS = ("bench", "smoke")
_LONGER = {"bench": "ncclcheck bench --soak 300", "smoke": "ncclcheck smoke --steps 500"}


def _ranks(cluster: Cluster, *, gpus: bool | None = None) -> list[RankMemory]:
    """The ranks whose memory was seen, by backend. Raises NothingToJudge."""
    ranks = cluster.measurements.memory.ranks
    chosen = [rank for rank in ranks if gpus is None or (rank.by != "rss") == gpus]
    if not chosen:
        raise NothingToJudge("no job ran" if not ranks else "the ranks ran on CPUs")
    return chosen


_SINCE = {
    "before_init": "before init_process_group",
    "after_init": "after init_process_group",
    "before_wrap": "before the model was wrapped",
    "after_wrap": "after the model was wrapped",
    "end": "at the end",
}


def _stray(other: Elsewhere) -> str:
    amount = "bytes not known" if other.bytes is None else size(other.bytes)
    return f"{other.device} ({amount}{f', first seen {_SINCE[other.since]}' if other.since else ''})"


def _where(rank: RankMemory) -> Where:
    return Where(node=rank.node, device=None if rank.by == "rss" else rank.device, rank=rank.rank)


@rule("MEM004", "no rank of the job has a context on a GPU that is not its own", worst=State.FAIL, commands=_JOBS)
def contexts(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Each rank of the job that we ran: the GPUs on which it has a CUDA context beside its own.

    ## Why it matters
    Such a context takes 300 to 900 MiB. With eight ranks that all touch GPU 0 it loses 2 to 7 GiB, rank 0 runs
    out of memory first, and the batch size of all must shrink.

    ## Seen as
    out of memory

    ## How we know
    Every rank asks libcuda (`cuDevicePrimaryCtxGetState`) for each visible device, which opens no context and
    holds in containers too; NVML adds the bytes where it knows the process by the same pid. They are asked
    before and after init_process_group and the wrap of the model, and at the end; the first time that it was
    seen is reported.

    ## Fix
    - **you** `torch.cuda.set_device(local_rank)` before anything else of CUDA; `init_process_group(device_id=...)`
      and `barrier(device_ids=[local_rank])`; `torch.load(path, map_location="cpu")`.
    - **you** in `bench` no code of yours runs: look for what Python loads by itself (sitecustomize, .pth files).

    ## Source
    pytorch/pytorch#49481, pytorch/pytorch#135279, pytorch/examples#969; CUDA Driver API, Primary Context
    Management.
    """
    for rank in _ranks(cluster, gpus=True):
        if rank.elsewhere is None:
            yield unknown(
                _where(rank),
                f"libcuda did not report on which GPUs rank {rank.rank} has a context",
                why="A context on another rank's GPU would take 300 to 900 MiB from it.",
            )
        elif rank.elsewhere:
            others = ", ".join(map(_stray, rank.elsewhere))
            yield fail(
                _where(rank),
                f"rank {rank.rank} computes on {rank.device} and has a context on {others} as well",
                why="The ranks that own those GPUs run out of memory first, while this one has room.",
                owner="job",
                evidence=[seen("cuDevicePrimaryCtxGetState in the rank", others)],
                fix=[
                    you(
                        "Choose the device before anything else of CUDA.",
                        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
                    )
                ],
            )


@rule("MEM005", "no rank uses far more memory than its peers", worst=State.FAIL, commands=_JOBS)
def skew(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The most memory that each rank of the job held, against the median of all ranks; of two, against the other one.

    ## Why it matters
    The ranks of this job do the same work, so they need the same memory. One that holds far more loads the model
    or gathers results for all, or carries what others left behind; it is the first to be killed.

    ## Seen as
    out of memory, dies

    ## How we know
    On GPUs NVML's count for the process (torch's allocator where NVML does not know it): 1.2 times the median
    (`MEM005.ratio`) and 30 % of the GPU (`MEM005.share`) is a warning, 1.3 times and 50 % a failure. On CPUs the
    peak of resident memory: 1.5 times the median and 512 MiB more (`MEM005.rss_mib`) is a warning.

    ## Fix
    - **you** see what only this rank keeps (`torch.cuda.memory_summary()`): gathered outputs, a full state dict.

    ## Source
    pytorch/pytorch#49481; facebookresearch/DPR#104; proc(5), VmHWM in /proc/PID/status.
    """
    ranks = [rank for rank in _ranks(cluster) if rank.peak is not None]
    if len(ranks) < 2:
        raise NothingToJudge("one rank has no peers")
    usual = step_times.usual([rank.peak or 0 for rank in ranks])
    for rank in ranks:
        level = _skewed(cluster, rank, usual)
        if level is not State.OK:
            peak = f"{size(rank.peak or 0)} at the peak, most ranks {size(int(usual))}"
            yield (fail if level is State.FAIL else warn)(
                _where(rank),
                f"rank {rank.rank} held {peak}",
                why="It is the first to run out of memory, and then the whole job ends.",
                owner="job",
                evidence=[seen({"rss": "VmHWM", "nvml": "NVML", "allocator": "torch.cuda"}[rank.by], peak)],
                fix=[you("See what only this rank keeps.", "torch.cuda.memory_summary()")],
            )


def _skewed(cluster: Cluster, rank: RankMemory, usual: float) -> State:
    limits, peak = cluster.policy.thresholds, rank.peak or 0
    if rank.by == "rss":
        more = limits.get("MEM005.rss_mib", 512.0) * _MIB
        return State.WARN if peak > 1.5 * usual and peak - usual > more else State.OK
    share = peak / rank.total if rank.total else 0.0
    if peak > 1.3 * usual and share > 0.5:
        return State.FAIL
    much = peak > limits.get("MEM005.ratio", 1.2) * usual and share > limits.get("MEM005.share", 0.3)
    return State.WARN if much else State.OK


@rule("MEM006", "memory does not grow from iteration to iteration", worst=State.WARN, commands=_JOBS)
def growth(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How much more memory each rank held after iterations that were all alike than before them.

    ## Why it matters
    What grows with every step ends a training run after hours, and looks like a fault of the node that dies first.

    ## Seen as
    out of memory, dies

    ## How we know
    Resident memory of the host, and on GPUs torch's allocated bytes too. Before each look the C library gives
    freed memory back (malloc_trim(3), glibc). Of rows up to 1 MiB: before and after the timed iterations, whose
    buffers are there beforehand; larger rows are left out, for their buffers are kept for later. Of a soak: the
    most that was held after any round of its first quarter against the least after any of its last, since a leak
    only rises. Of training steps: what tensors that Python still reaches hold, where that is less; what kernels
    keep compiled for shapes of their own is no leak. More than 32 MiB in all (`MEM006.mib`) and 1 KiB an iteration
    is reported. A leak of some hundred bytes a call, as in NCCL from 2.27.3, shows only in a soak of hours.

    ## Fix
    - **you** repeat with `--soak 300`: what goes on growing is a leak, what stops was a cache.
    - **you** compare with another version of torch, NCCL or the network plugin; report it there.

    ## Source
    pytorch/pytorch#116923 (gloo, all_reduce on CPUs), NVIDIA/nccl#1753 and NVIDIA/nccl#1944 (NCCL 2.27.3 and
    later, host memory with each call), NVIDIA/nccl#1534 (2.23); proc(5), VmRSS.
    """
    for rank in _ranks(cluster):
        if not rank.iterations:
            continue
        more = rank.grown > cluster.policy.thresholds.get("MEM006.mib", 32.0) * _MIB
        if more and rank.grown / rank.iterations > 1024:
            rise = f"{size(rank.grown)} more after {rank.iterations} iterations"
            yield warn(
                _where(rank),
                f"rank {rank.rank} holds {rise}",
                why="A run of hours would end for lack of memory.",
                owner="job",
                evidence=[seen("memory before and after the iterations", rise)],
                fix=[you("Repeat for longer: a cache stops growing, a leak does not.", _LONGER[cluster.command])],
            )


@rule("MEM007", "the job's GPUs have memory left at peak", worst=State.FAIL, commands=_JOBS)
def pressure(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The memory that each rank held at its peak, as a share of its GPU, and how often the allocator had to retry.

    ## Why it matters
    Close to the limit the next larger batch, a longer sequence or one more communicator of NCCL ends the job;
    before that the allocator gives back its cache and asks again, which stops the GPU each time.

    ## Seen as
    out of memory, dies

    ## How we know
    Peak over total: 92 % (`MEM007.share`) is a warning, 97 % a failure. `num_alloc_retries` of
    torch.cuda.memory_stats: any is a warning.

    ## Fix
    - **you** a smaller batch or activation checkpointing; `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`
      (torch 2.1 and later) against fragments.

    ## Source
    PyTorch, CUDA semantics, Memory management; torch.cuda.memory_stats.
    """
    for rank in _ranks(cluster, gpus=True):
        if rank.peak is None or not rank.total:
            continue
        share = rank.peak / rank.total
        peak = f"{size(rank.peak)} of {size(rank.total)} at the peak, {rank.retries} retries"
        if share <= cluster.policy.thresholds.get("MEM007.share", 0.92) and not rank.retries:
            yield fine(_where(rank), peak, seen("peak memory", peak))
            continue
        yield (fail if share > 0.97 else warn)(
            _where(rank),
            f"rank {rank.rank} held {peak}",
            why="The next larger allocation ends the job; retries stop the GPU meanwhile.",
            owner="job",
            evidence=[seen("peak memory; torch.cuda.memory_stats", peak)],
            fix=[you("See what holds it.", "torch.cuda.memory_summary()")],
        )

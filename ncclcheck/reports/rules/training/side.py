"""TRN: what was measured beside the training steps: find_unused_parameters, BatchNorm, workers, DataParallel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ncclcheck.probes.facts import Cluster, Times
from ncclcheck.probes.facts.training import BatchNorms, DataParallels, FindUnused, LoaderWorkers, WorkerStart
from ncclcheck.reports.judgement.findings import Finding, State, Where, fine, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.text.words.fold import duration, many, size

_JOBS = ("smoke",)


def _aspect(cluster: Cluster, what: str) -> Any:
    """One aspect of what was measured beside the steps. Raises NothingToJudge."""
    smoke = cluster.measurements.smoke
    side = smoke.side if smoke else None
    if side is None:
        raise NothingToJudge("no training steps were timed")
    if (aspect := getattr(side, what)) is None:
        raise NothingToJudge(
            next((unseen.why for unseen in side.unseen if unseen.what == what), "it was not reached")
        )
    return aspect


def _where(cluster: Cluster) -> Where:
    """The model and its data are everybody's; rank 0 tells of them."""
    smoke = cluster.measurements.smoke
    first = min(smoke.steps, key=lambda step: step.rank, default=None) if smoke else None
    return Where(node=first.node, rank=first.rank) if first else Where()


@rule("TRN022", "find_unused_parameters is not set without need", worst=State.WARN, commands=_JOBS)
def no_search_in_vain(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether DDP searches for unused parameters (`find_unused_parameters=True`) although there are none.

    ## Why it matters
    The search goes through the graph of every step, and all ranks must agree on what it found before the last
    bucket is sent. A model that needs it hangs or raises without it; all others pay for nothing.

    ## Seen as
    hangs, wrong results

    ## How we know
    All ranks search for parameters without a gradient. The flag is set and there are none: a warning. Steps
    with the flag and without are timed in turns, and both times are given; expected is no difference. A model
    whose control flow differs from batch to batch may still need the flag, with batches that were not tried.

    ## Fix
    - **you** leave out `find_unused_parameters=True`; `static_graph=True` where the same parameters are unused in
      each step.

    ## Source
    PyTorch, DistributedDataParallel (find_unused_parameters, static_graph); PyTorch, Distributed Data Parallel
    notes.
    """
    unused: FindUnused = _aspect(cluster, "find_unused")
    times = _with_and_without(unused)
    if unused.count:
        names = ", ".join(unused.unused[:4])
        raise NothingToJudge(f"{unused.count} parameters get no gradient ({names}): the search is needed")
    if not unused.asked:
        yield fine(Where(), f"the flag is not set; {times}", seen("steps with the flag and without", times))
        return
    yield warn(
        _where(cluster),
        f"find_unused_parameters is set, and every parameter of the model got its gradient; {times}",
        why="Every step searches for what is not there.",
        owner="job",
        evidence=[seen("steps with the flag and without", times)],
        fix=[you("Leave the flag out.", "DistributedDataParallel(model, device_ids=[local_rank])")],
    )


def _with_and_without(unused: FindUnused) -> str:
    if unused.with_us is None or unused.without_us is None:
        return "its cost was not measured"
    return f"a step takes {_interval(unused.with_us)} with it and {_interval(unused.without_us)} without"


def _interval(times: Times) -> str:
    """The median and where it may lie."""
    if times.median_low is None or times.median_high is None:
        return duration(times.p50)
    return f"{duration(times.p50)} ({duration(times.median_low)} to {duration(times.median_high)})"


@rule("TRN023", "BatchNorm sees enough samples per rank", worst=State.WARN, commands=_JOBS)
def enough_samples(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Layers that normalise over the batch (BatchNorm1d, 2d, 3d), and how many samples of its own a rank gives them.

    ## Why it matters
    DDP does not share these statistics: with 2 samples a rank the layer sees 2, however many ranks there are. The
    means are noise, training is worse than on one GPU with the whole batch, and evaluation uses averages
    of rank 0 alone.

    ## Seen as
    wrong results

    ## How we know
    The input of each layer in one forward pass. Fewer than 8 samples a rank (`TRN023.samples`) on several ranks is
    a warning. Beside it: how far the means over a rank's own batch lie from those over the batch of all ranks,
    in standard deviations (0 is expected with SyncBatchNorm).

    ## Fix
    - **you** `model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)` before the wrap; on GPUs.
    - **you** GroupNorm or LayerNorm, or more samples a rank; give `--batch` what your training uses.

    ## Source
    PyTorch, SyncBatchNorm; PyTorch, DistributedDataParallel (buffers are those of rank 0).
    """
    norms: BatchNorms = _aspect(cluster, "batch_norms")
    if not norms.layers:
        raise NothingToJudge(_no_layers(norms))
    if norms.samples is None or cluster.job.ranks == 1:
        raise NothingToJudge("one rank has the whole batch" if norms.samples else "no batch came to the layers")
    text = f"{norms.samples} samples a rank"
    if norms.off is not None:
        text += f"; means over them are off by {norms.off:.2g} standard deviations from those of all ranks"
    if norms.samples >= cluster.policy.thresholds.get("TRN023.samples", 8.0):
        yield fine(Where(), f"{norms.layers} layers see {text}", seen("input of the layers", text))
        return
    more = " and others" if norms.layers > len(norms.names[:3]) else ""
    yield warn(
        _where(cluster),
        f"{norms.layers} BatchNorm layers ({', '.join(norms.names[:3])}{more}) see only {text}",
        why="Their means are noise, and other ranks do not help: DDP does not share them.",
        owner="job",
        evidence=[seen("input of the layers, one forward pass", text)],
        fix=[
            you("Share them over ranks.", "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"),
            you("Or measure with the batch of your training.", "ncclcheck smoke --batch N"),
        ],
    )


def _no_layers(norms: BatchNorms) -> str:
    return f"its {norms.synced} BatchNorm layers are shared over ranks" if norms.synced else "it has no BatchNorm"


@rule("TRN024", "loader workers start quickly", worst=State.WARN, commands=_JOBS)
def workers_start_fast(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How long one worker of the DataLoader takes from its start to its first sample, and how much it is handed over.

    ## Why it matters
    With spawn and forkserver each worker is a new Python: it imports torch and gets the whole dataset by pickling.
    Without `persistent_workers` this is paid again in every epoch, times workers, times ranks.

    ## Seen as
    wrong results

    ## How we know
    One worker is started by `spawn`, and by the loader's own method, while the other ranks wait. Expected is the
    import of torch, which this job has timed as well, and a moment. A loader that starts its workers so and takes
    over 10 s (`TRN024.seconds`) a worker, or hands over more than 1 GiB (`TRN024.gib`), is a warning. What cannot
    be pickled is a note: from Python 3.14 on forkserver is the default on Linux.

    ## Fix
    - **you** `persistent_workers=True`; keep data out of the dataset object (paths and memory maps, not arrays).
    - **you** torch on a local file system, or a container image, where its import takes long.

    ## Source
    Python, multiprocessing, Contexts and start methods; pytorch/pytorch#169252, pytorch/pytorch#138957.
    """
    workers: LoaderWorkers = _aspect(cluster, "workers")
    text = _handed_over(cluster, workers)
    if slow := _slow_start(cluster, workers):
        yield warn(
            _where(cluster),
            f"{workers.count} workers a rank are started by {workers.used}: {slow}",
            why="It is paid for each worker of each rank, in every epoch without persistent_workers.",
            owner="job",
            evidence=[seen("one worker, from its start to its first sample", text)],
            fix=[
                you("Keep the workers.", f"DataLoader(..., num_workers={workers.count}, persistent_workers=True)")
            ],
        )
    elif workers.pickled is None:
        yield note(
            _where(cluster),
            f"the dataset cannot be pickled ({workers.error}): its workers can only be forked",
            why="From Python 3.14 on DataLoader starts them by forkserver on Linux, and then none would start.",
            evidence=[seen("pickle", workers.error)],
        )
    else:
        yield fine(Where(), text, seen("one worker, from its start to its first sample", text))


def _slow_start(cluster: Cluster, workers: LoaderWorkers) -> str:
    """Why the loader's own workers start slowly; empty where they do not, or where it forks or has none."""
    limits = cluster.policy.thresholds
    own = next((start for start in workers.starts if start.method == workers.used), None)
    if not workers.count or workers.used == "fork" or own is None:
        return ""
    if own.error:
        return f"one did not come to its first sample: {own.error}"
    if (workers.pickled or 0) > limits.get("TRN024.gib", 1.0) * 2**30:
        return f"each is handed over {size(workers.pickled or 0)}"
    if own.seconds > limits.get("TRN024.seconds", 10.0):
        return f"one takes {own.seconds:.1f} s; {_expected(cluster)}"
    return ""


def _handed_over(cluster: Cluster, workers: LoaderWorkers) -> str:
    starts = ", ".join(map(_one_start, workers.starts)) or "none was started"
    pickled = "" if workers.pickled is None else f"; {size(workers.pickled)} pickled in {workers.pickle_s:.2g} s"
    return f"{starts}{pickled}; {_expected(cluster)}"


def _one_start(start: WorkerStart) -> str:
    return f"{start.method} {start.error}" if start.error else f"{start.method} {start.seconds:.1f} s"


def _expected(cluster: Cluster) -> str:
    startup = cluster.measurements.startup_s
    if startup is None:
        return "no expectation: the import of torch was not timed"
    return f"the import of torch alone took {startup.import_:.1f} s"


@rule("TRN025", "every GPU has its own process", worst=State.WARN, commands=_JOBS)
def one_process_a_gpu(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether one process drives several GPUs: nn.DataParallel in the model, or GPUs that no rank of the job uses.

    ## Why it matters
    DataParallel copies the model to all GPUs in every step, runs Python for all of them in one process, and
    gathers outputs and gradients on the first GPU, whose memory then sets the batch size. Within DDP it also takes
    the GPUs of other ranks.

    ## Seen as
    wrong results

    ## How we know
    The modules of the model. Where a rank sees several GPUs, a process of its own times the same model over one of
    them and, with as many samples for each, over all: 1 is expected of their ratio, and what one process a GPU
    reaches stands in the table of steps. The model wrapped in DataParallel is a warning; fewer ranks on a node
    than GPUs that they see a note.

    ## Fix
    - **you** `torchrun --nproc-per-node gpu`, and DistributedDataParallel instead of DataParallel.

    ## Source
    PyTorch, DataParallel ("recommended to use DistributedDataParallel"); facebookresearch/DPR#104.
    """
    parallels: DataParallels = _aspect(cluster, "data_parallel")
    driven = _driven(parallels)
    start = "torchrun --nproc-per-node gpu SCRIPT"
    if parallels.wrapped:
        yield warn(
            _where(cluster),
            f"{', '.join(parallels.wrapped[:3])} is wrapped in nn.DataParallel{driven}",
            why="One process drives all GPUs and gathers everything on the first one.",
            owner="job",
            evidence=[seen("modules of the model", ", ".join(parallels.wrapped))],
            fix=[you("One process a GPU, with DistributedDataParallel.", start)],
        )
    elif not parallels.gpus:
        raise NothingToJudge("the ranks ran on CPUs, and the model has no DataParallel")
    elif parallels.gpus > parallels.ranks:
        yield note(
            _where(cluster),
            f"{many(parallels.ranks, 'rank')} on a node that has {parallels.gpus} GPUs for them{driven}",
            why="The other GPUs have nothing to do.",
            fix=[you("One process a GPU.", start)],
        )
    else:
        own = f"{many(parallels.ranks, 'rank')}, {many(parallels.gpus, 'GPU')}"
        yield fine(Where(), own + driven, seen("torch.cuda.device_count", driven))


def _driven(parallels: DataParallels) -> str:
    if not parallels.one_us or parallels.all_us is None:
        return ""
    return (
        f"; over all {parallels.gpus} GPUs a step of DataParallel takes {duration(parallels.all_us)}, over one "
        f"{duration(parallels.one_us)} ({parallels.all_us / parallels.one_us:.2f} times; 1 is expected)"
    )

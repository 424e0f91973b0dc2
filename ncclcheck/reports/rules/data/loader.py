"""DAT003 and DAT015: whether the loader runs at all: how its workers end, and what it says to its options."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Unread
from ncclcheck.probes.facts.data import DataReport, Streams
from ncclcheck.probes.facts.data.streams import Option, WorkerStop
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    fail,
    fine,
    note,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.data.streamed import epochs, streams

_DATA = ("data",)


@rule(
    "DAT003",
    "no worker crashes, hangs or deadlocks",
    worst=State.FAIL,
    over="",
    ground=("DAT028", "DAT005"),
    commands=_DATA,
)
def stops(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How the processes that read your samples end: workers of a real DataLoader over two short epochs, and processes
    that read one sample after the other.

    ## Why it matters
    A worker that crashes ends the job with "DataLoader worker is killed by signal", and names neither the sample
    nor the line. One that hangs ends nothing: with `timeout=0` the training waits for ever, and all ranks with it.

    ## Seen as
    hangs, wrong results, dies

    ## How we know
    Every worker notes each sample before and after it reads it, and its stacks at a crash or shortly before
    its time is over. So a crash, an exit and a hang are reported with the sample and your own line. An error
    that a worker raises counts here only where the same read does not raise outside of workers (those are
    DAT002). A hang means no answer in at least 4 s, and in four times as long as the reads take outside of
    workers; of the first sample, of which nothing is known, a process that computes all the while is a warning
    only. An error that only comes with several workers at once is a note: DAT004 and DAT005 find its cause.
    Workers are forked here; what they do wrong then does not count against a loader with another
    `multiprocessing_context`.

    ## Fix
    - **you** open files, connections and threads in the worker, at its first read, not in `__init__`.
    - **you** no `multiprocessing.Pool` in `__getitem__`: workers are daemonic and may have no children.
    - **you** `cv2.setNumThreads(0)`; no CUDA before the fork, or `multiprocessing_context="spawn"`.

    ## Source
    PyTorch, torch.utils.data, Multi-process data loading; pytorch/pytorch#96629, pytorch/pytorch#165832 (users ask
    for the stack of a hung worker), pytorch/pytorch#1355, pytorch/pytorch#45198 (threads and fork), fork(2).
    """
    judged = False
    for report in cluster.measurements.data:
        by_kind = {_kind(stop): stop for stop in reversed([*_stops(report)])}
        yield from (_stopped(report.node, stop) for stop in reversed(by_kind.values()))
        loaded = report.streams is not None and not isinstance(report.streams.depends, Unread)
        if not by_kind and report.streams and loaded:
            yield _well(report.node, report.streams)
        judged |= bool(by_kind) or loaded
    if not judged:
        epochs(cluster, 0)


def _well(node: str, loading: Streams) -> Finding:
    read = f"{loading.workers} workers read {loading.samples} samples in {loading.epochs} epochs"
    if loading.context != "fork":
        return fine(
            Where(node=node), f"{read}; they were forked here, and the loader starts its own by {loading.context}"
        )
    if loading.epochs:
        return fine(Where(node=node), f"{read} and ended well")
    return unknown(
        Where(node=node),
        f"the loader did not come to the end of an epoch within its time: {read}",
        why="Whether its workers come to an end is not known.",
        owner="job",
        evidence=[seen("start method", loading.context)],
        fix=[you("Give it more time.", "ncclcheck data MODULE:FACTORY --time-budget 120")],
    )


def _stops(report: DataReport) -> Iterator[WorkerStop]:
    """Those of the loader, then of processes that read alone. Errors that need no worker belong to DAT002."""
    for stop in report.streams.stops if report.streams else []:
        if stop.kind != "raised" or not stop.alone:
            yield stop
    yield from report.structure.died if report.structure else []


def _kind(stop: WorkerStop) -> tuple[str, str]:
    """What is told once: one sample that ends every reader, one line at which all hang."""
    return stop.kind, f"{stop.place} {stop.error}" if stop.kind in ("hung", "raised") else stop.index


def _stopped(node: str, stop: WorkerStop) -> Finding:
    if stop.together:
        return note(Where(node=node), f"{_who(stop)} {_how(stop)}{_doing(stop)}, only beside other workers")
    slow = stop.kind == "hung" and stop.busy and stop.usual is None
    return (warn if slow else fail)(
        Where(node=node),
        f"{_who(stop)} {_how(stop)}{_doing(stop)}",
        why="The training waits for ever for this batch, and all other ranks wait with it."
        if stop.kind == "hung"
        else "The job ends in mid-epoch, with an error that names neither the sample nor the line.",
        owner="job",
        evidence=_evidence(stop),
        fix=_remedies(stop),
    )


def _who(stop: WorkerStop) -> str:
    if stop.worker >= 0:
        return f"worker {stop.worker}"
    return "a process that only reads samples" if stop.alone else "the loader"


def _how(stop: WorkerStop) -> str:
    if stop.during == "queue" and stop.error:
        return f"makes a batch that cannot be sent, and the loader waits for ever: {stop.error}"
    if stop.kind == "hung":
        return f"gave no answer in {stop.seconds:.3g} s{' and was computing' if stop.busy else ''}"
    if stop.kind == "crashed":
        return f"was ended by {stop.signal}"
    if stop.kind == "left":
        return f"ended itself with exit status {stop.exit}"
    return f"raised {stop.error}"


def _doing(stop: WorkerStop) -> str:
    place = f" ({stop.place})" if stop.place else ""
    if stop.during == "sample":
        return f" at sample {stop.index}{place}" if stop.index else place
    if stop.during == "queue":
        return "" if stop.error else ", though no worker was reading"
    return f" in {stop.during}{place}" if stop.during != "start" else place


def _evidence(stop: WorkerStop) -> list[Evidence]:
    source = "read outside of workers" if stop.alone else "a real DataLoader"
    all_evidence = [seen(source, f"{_who(stop)} {_how(stop)}")]
    lines = [line.strip() for line in stop.stack.splitlines() if line.strip().startswith("File")]
    return [*all_evidence, *([seen("its stack, innermost first", "; ".join(lines[:4]))] if lines else [])]


def _remedies(stop: WorkerStop) -> list[Remedy]:
    if "daemonic" in stop.error:
        return [
            you("Workers may have no children: leave the parallel work to num_workers."),
            you("Or use threads.", "concurrent.futures.ThreadPoolExecutor(4)"),
        ]
    if stop.during == "queue":
        return [you("Give tensors, numbers, text, or objects that can be pickled.", "pickle.dumps(batch)")]
    if stop.kind == "hung":
        return [
            you("Locks and threads of the factory do not live in a worker: make them at its first read."),
            you("See where it waits while it does.", "py-spy dump --pid PID_OF_THE_WORKER"),
        ]
    if stop.kind == "raised":
        return [
            you(
                "Make what it needs in the worker, at its first read, not in the process that forks it; DAT005 "
                "names what is shared."
            )
        ]
    return [you("Read this sample alone.", f"dataset[{stop.index or 0}]")]


@rule("DAT015", "DataLoader accepts the options", worst=State.FAIL, commands=_DATA)
def options(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether DataLoader can be made with your keywords, and gives at least one batch.

    ## Why it matters
    Some options exclude each other, and the error names them without saying what to do. It often comes only on the
    cluster, where `num_workers` or the batch size are others than on the laptop. A loader that is shorter than one
    batch with `drop_last=True` gives nothing, without a word: the training ends at once.

    ## Seen as
    wrong results, dies, setting without effect

    ## How we know
    The loader was made with the very options, in a process of its own; `len(loader)` was asked.

    ## Fix
    - **you** `prefetch_factor`, `persistent_workers` and `multiprocessing_context` need `num_workers` > 0.
    - **you** either `shuffle`, or a `sampler`, or a `batch_sampler`; none of them with an IterableDataset.

    ## Source
    PyTorch, torch.utils.data.DataLoader (2.1 to 2.13: the checks in its constructor).
    """
    judged = [report for report in cluster.measurements.data if report.streams or _failed_in_loader(report)]
    if not judged:
        streams(cluster)
    for report in judged:
        if report.streams is None or report.streams.refused:
            yield _refused(report)
        elif report.streams.batches == 0:
            yield _empty(report.node, report.streams)
        else:
            yield fine(Where(node=report.node), "DataLoader takes the options")


def _failed_in_loader(report: DataReport) -> bool:
    """The factory makes the loader itself, and that raised."""
    return any(words in _failure(report) for words, _, _ in _REFUSALS)


def _failure(report: DataReport) -> str:
    return report.made.failure.error if report.made and report.made.failure else ""


def _refused(report: DataReport) -> Finding:
    refused = report.streams.refused if report.streams else None
    error = refused.error if refused else _failure(report)
    why, change = next(
        ((why, change) for words, why, change in _REFUSALS if words in error),
        ("The job ends where the loader is made.", "DataLoader(dataset, batch_size=32, num_workers=4)"),
    )
    given = _shown(refused.options) if refused else "within the factory"
    return fail(
        Where(node=report.node),
        f"DataLoader refuses its options: {error}",
        why=why,
        owner="job",
        evidence=[seen("the options", given), seen("DataLoader", error)],
        fix=[you("Change the options.", change)],
    )


def _shown(options: list[Option]) -> str:
    return ", ".join(f"{option.name}={option.value}" for option in options) or "none"


_REFUSALS = (
    (
        "prefetch_factor option could only",
        "Without workers nothing is fetched ahead.",
        "prefetch_factor=2 if num_workers > 0 else None",
    ),
    (
        "persistent_workers option needs",
        "Without workers there is none that could live on.",
        "persistent_workers=num_workers > 0",
    ),
    (
        "multiprocessing_context can only",
        "Without workers no process is started.",
        'multiprocessing_context="fork" if num_workers > 0 else None',
    ),
    (
        "sampler option is mutually exclusive with shuffle",
        "A sampler decides the order by itself.",
        "DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=True))",
    ),
    (
        "batch_sampler option is mutually exclusive",
        "A batch_sampler decides size, order and what is dropped.",
        "DataLoader(dataset, batch_sampler=batch_sampler)",
    ),
    (
        "batch_size=None option disables",
        "Without batches there is no last one to drop.",
        "DataLoader(dataset, batch_size=None)",
    ),
    (
        "DataLoader with IterableDataset",
        "An IterableDataset decides its order itself: shuffle within its __iter__.",
        "DataLoader(dataset, batch_size=32)",
    ),
    (
        "num_samples should be a positive integer",
        "The dataset is empty, here or on this rank.",
        "print(len(dataset))",
    ),
)


def _empty(node: str, loading: Streams) -> Finding:
    return fail(
        Where(node=node),
        "the loader gives not one batch",
        why="The epoch is over before it begins: the training ends without an error, and without having trained.",
        owner="job",
        evidence=[seen("len(loader)", 0), seen("batch_size", loading.batch_size)],
        fix=[you("Take a smaller batch, or keep the last one.", "DataLoader(dataset, drop_last=False)")],
    )

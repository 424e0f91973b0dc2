"""DAT024 and DAT025: whether workers can be started, and whether there are cores for them."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, known, value_or
from ncclcheck.probes.facts.data.resources import Cpu, DataResources, Pickled, Start
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
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.data import examined
from ncclcheck.reports.text.words.fold import size

_DATA = ("data",)


@rule("DAT024", "everything passed to workers can be pickled", worst=State.FAIL, commands=_DATA)
def pickles(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The dataset, collate_fn and worker_init_fn, pickled as for a worker that is started and not forked.

    ## Why it matters
    `spawn` and `forkserver` send them to the worker as pickles. `forkserver` is Linux's default from Python 3.14,
    so that a loader that works today fails on the next image: "cannot pickle ...". What cannot be pickled is
    often an open handle, a lock or a connection, which workers must not share anyway.

    ## Seen as
    wrong results

    ## How we know
    Python's own pickler for processes, in a child, without tensors, which go through shared memory, and without
    the sampler, which stays in the training process. A failure where the loader, the code or this Python starts
    workers so, a note where it forks: nothing is wrong today. The attribute named is the smallest that fails.

    ## Fix
    - **you** functions and classes of a module instead of lambdas and local ones; arguments by
      `functools.partial`.
    - **you** open handles at the first read in each worker, and leave them out of the pickle with `__getstate__`.

    ## Source
    Python, multiprocessing, Contexts and start methods; Python, pickle, What can be pickled and unpickled;
    pytorch/pytorch#169252, pytorch/pytorch#138957, pytorch/pytorch#167387.
    """
    judged, unread = examined.resources(cluster, "start")
    yield from unread
    for node, resources in judged:
        start = known(resources.start)
        bad = [pickled for pickled in start.pickled if pickled.error]
        yield from (_not_pickled(node, start, pickled) for pickled in bad)
        if not bad:
            total = size(sum(pickled.bytes for pickled in start.pickled))
            yield fine(Where(node=node), f"{total} for each worker that is not forked, beside tensors")


def _not_pickled(node: str, start: Start, pickled: Pickled) -> Finding:
    forks = start.method == "fork"
    place = f"{pickled.what}.{pickled.attribute}" if pickled.attribute else pickled.what
    since = "which this loader uses" if start.asked else "which is the default here"
    when = "with spawn or forkserver (the default from Python 3.14)" if forks else f"with {start.method}, {since}"
    return (note if forks else fail)(
        Where(node=node),
        f"{place} cannot be pickled, so that workers do not start {when}",
        why="The first worker ends the job with this error." if not forks else "A new Python, or a CUDA library "
        "that does not survive a fork, ends the job with this error.",
        owner="job",
        evidence=[seen(f"pickle of {pickled.what}", pickled.error), seen("start method", start.method)],
        fix=[_remedy(pickled)],
    )  # fmt: skip


def _remedy(pickled: Pickled) -> Remedy:
    name = pickled.attribute.partition(".")[0]  # what the dataset holds, whatever is deeper within
    if "lambda" in pickled.error or "local" in pickled.error or not name.isidentifier():
        return you(
            "Make it a function or a class at the top of a module; give arguments by functools.partial.",
            "functools.partial(collate, pad=0)",
        )
    return you(
        f"Leave {name} out of the pickle, and make it at the first read in each worker.",
        "def __getstate__(self):",
        f"    return {{**self.__dict__, {name!r}: None}}",
        f"if self.{name} is None:  # the first lines of __getitem__",
        f"    self.{name} = ...  # as __init__ makes it",
    )


@rule("DAT025", "the number of workers fits the available cores", worst=State.WARN, commands=_DATA)
def workers(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Workers of all ranks of a node, and the threads that each starts, against the cores that the job may use.

    ## Why it matters
    Workers that wait for each other's cores make samples later, not more of them, and take the cores of the ranks
    themselves. torch sets its own threads to one in a worker; OpenBLAS, OpenMP and OpenCV start one a core in
    each. A container's CPU quota does not show in the number of cores.

    ## Seen as
    wrong results

    ## How we know
    num_workers x ranks of the node x the share of time that a read spends on a core, against the affinity mask and
    the control group's quota (cpu.max): over twice the cores (`DAT025.ratio`) is a warning, so is eight times the
    cores in workers that only wait. More than the cores is a note. The threads that appeared in a child while it
    read count: workers x threads over four times the cores is a warning.

    ## Fix
    - **you** num_workers of cores / ranks at most; the curve of DAT026 says how many are of use.
    - **you** `OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1`, and `cv2.setNumThreads(0)` in worker_init_fn.
    - **admin** more cores for the job: `--cpus-per-task`, a larger CPU limit of the pod.

    ## Source
    PyTorch, torch.utils.data.DataLoader, num_workers; sched_getaffinity(2); Linux, Control Group v2, cpu.max;
    pytorch/pytorch#1355.
    """
    judged, unread = examined.resources(cluster, "cores")
    yield from unread
    ratio = cluster.policy.thresholds.get("DAT025.ratio", 2.0)
    for node, resources in judged:
        finding = _crowded(node, resources, ratio) if resources.asked else None
        yield finding or fine(Where(node=node), _told(resources))


def _told(resources: DataResources) -> str:
    ranks = max(1, resources.ranks_per_node)
    many = f"{resources.workers} workers" if resources.asked else "the loader does not say how many workers"
    return f"{many} x {ranks} rank{'s' if ranks > 1 else ''} on {known(resources.cores):g} cores"


def _crowded(node: str, resources: DataResources, ratio: float) -> Finding | None:
    cores = max(0.01, known(resources.cores))
    cpu = value_or(resources.cpu, Cpu(share=1.0, threads=0))
    many = resources.workers * max(1, resources.ranks_per_node)
    if many <= cores:
        return None
    busy = many * min(1.0, cpu.share)
    threads = many * (1 + cpu.threads)
    if busy <= ratio * cores and many <= 8 * cores and (threads <= 4 * cores or not cpu.threads):
        return note(Where(node=node), f"more workers than cores: {_told(resources)}", evidence=[_busy(cpu)])
    return warn(
        Where(node=node),
        f"too many workers for the cores: {_told(resources)}"
        + (f", {cpu.threads} more threads in each" * bool(cpu.threads)),
        why="They wait for each other, and the ranks wait for them and for a core.",
        owner="job",
        evidence=[seen("sched_getaffinity and cpu.max", f"{cores:g} cores"), _busy(cpu)],
        fix=[
            you(
                "Start no more than the cores of the rank.", f"DataLoader(..., num_workers={_fitting(resources)})"
            ),
            *(
                [you("One thread a worker.", "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1")]
                if cpu.threads
                else []
            ),
        ],
    )


def _fitting(resources: DataResources) -> int:
    return max(1, int(known(resources.cores) / max(1, resources.ranks_per_node)))


def _busy(cpu: Cpu) -> Evidence:
    threads = f", {cpu.threads} threads started" if cpu.threads else ""
    return seen("a process that reads", f"on a core {min(1.0, cpu.share):.0%} of the time{threads}")

"""DAT020 and DAT021: what a worker holds more with every sample that it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from ncclcheck.probes.facts import Cluster, known, value_or
from ncclcheck.probes.facts.data import Made
from ncclcheck.probes.facts.data.resources import DataResources, Growth
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
from ncclcheck.reports.subjects.data import examined, own_names
from ncclcheck.reports.text.words.fold import many, size

_MIB, _PAGE = 2**20, 4096  # bytes; a page is 4 KiB on x86, which looking itself copies
_DATA = ("data",)
# Of a leak: so much more where it is memory of the parent that became its own, which comes to an end. A sound
# dataset of torch.load copied 3 to 6 KiB a read for 400 reads, and nothing from then on.
_COPIES = 8
_NAME = re.compile(r"[A-Za-z_]\w*")
_MANY = 10_000_000  # of a stream without a length: samples that an epoch may have


@rule("DAT020", "reading a sample leaks no file descriptor", worst=State.FAIL, commands=_DATA)
def descriptors(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Open files, sockets and pipes of a process that reads samples: the same ones again and again, and new ones.

    ## Why it matters
    A worker that keeps one descriptor for each read reaches its limit (`ulimit -n`, often 1024) in mid-epoch and
    ends with "Too many open files". With persistent workers, or none, it only comes later.

    ## Seen as
    wrong results, out of memory, dies

    ## How we know
    The entries of /proc/self/fd after the samples were read for the third time and more, against those after the
    second: one in two reads that leaves one (`DAT020.leak`) is a failure, one in twenty a warning. A file that
    is opened once and kept does not count. Where each sample that was not read before opens one more and keeps it,
    the limit is compared with the number of samples: below it is a failure, below twice as many a warning.

    ## Fix
    - **you** close what a read opens: `with open(path, "rb") as file: ...`.
    - **you** one handle a worker, or a few in `functools.lru_cache(maxsize=64)`, where opening is slow.

    ## Source
    getrlimit(2), RLIMIT_NOFILE; proc(5), /proc/PID/fd; pytorch/pytorch#11201, pytorch/pytorch#973.
    """
    judged, unread = examined.resources(cluster, "again")
    yield from unread
    share = cluster.policy.thresholds.get("DAT020.leak", 0.5)
    for node, resources in judged:
        again, fresh = known(resources.again), value_or(resources.fresh, Growth(reads=0))
        if _leaves_open(again):
            yield _left_open(node, again, State.FAIL if again.descriptors >= share * again.reads else State.WARN)
        elif fresh.reads >= 32 and fresh.descriptors >= 0.95 * fresh.reads:
            yield from _one_each(node, resources, fresh)
        else:
            yield fine(Where(node=node), f"{again.reads} reads left no descriptor open")


def _leaves_open(growth: Growth) -> bool:
    return growth.descriptors >= 4 and growth.descriptors >= 0.05 * growth.reads


def _left_open(node: str, again: Growth, state: State) -> Finding:
    text = f"{again.descriptors} more are open after {again.reads} reads"
    return (fail if state is State.FAIL else warn)(
        Where(node=node),
        f"reading samples again leaves descriptors open: {text}",
        why='A worker ends with "Too many open files" once it has read enough samples.',
        owner="job",
        evidence=[seen("/proc/self/fd", text), *([seen("open on", _shown(again))] if again.opened else [])],
        fix=[you("Close what __getitem__ opens.", 'with open(path, "rb") as file:', "    data = file.read()")],
    )


def _shown(growth: Growth) -> str:
    return ", ".join(dict.fromkeys(growth.opened))


def _one_each(node: str, resources: DataResources, fresh: Growth) -> Iterator[Finding]:
    """Kept by sample: it ends at the limit, or at the last sample."""
    soft = value_or(resources.nofile, None)
    samples = _MANY if resources.length is None else resources.length
    if soft is None or soft.soft < 0 or samples < soft.soft / 2:
        return
    text = f"{fresh.descriptors} more are open after {fresh.reads} samples that were not read before"
    yield (fail if samples > soft.soft - resources.descriptors else warn)(
        Where(node=node),
        f"every sample keeps a descriptor of its own, and a worker may have {soft.soft}",
        why='A worker ends with "Too many open files" after so many different samples.',
        owner="job",
        evidence=[seen("/proc/self/fd", text), seen("ulimit -n", soft.soft), seen("open on", _shown(fresh))],
        fix=[you("Keep only a few handles.", "@functools.lru_cache(maxsize=64)", "def handle(path): ...")],
    )


@rule("DAT021", "worker memory does not grow as samples are read", worst=State.FAIL, commands=_DATA)
def memory(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Private memory of a process that reads samples: new memory that it keeps, and memory that it shared with the
    process which made the dataset and that reading made its own (copy-on-write).

    ## Why it matters
    Python writes a count of references into each object that it reads. A list of a million small objects is shared
    by all workers at first; over an epoch each gets its own copy, and the node runs out of memory after hours. It
    looks like a leak, and the kernel's choice whom to kill looks like a crash of NCCL.

    ## Seen as
    wrong results, out of memory, dies

    ## How we know
    /proc/self/smaps_rollup between runs of reads in a child whose objects are frozen (`gc.freeze()`), so that the
    garbage collector's own writing does not count: 40 MiB in any process with torch. Real workers copy at least as
    much. A leak is 1 KiB of new memory a read (`DAT021.leak`, bytes) in each of four runs over the same samples; 8
    KiB, where it was shared with the parent before, for that comes to an end. What was copied by runs spread over
    the index is worked out for all samples, at most the size of the lists that were found; few or slow reads make
    it coarse; without such a list the runs must be about equal. 32 MiB a worker (`DAT021.mib`) is a warning, more
    than all memory in all workers a failure. A cache that would exceed it with all samples in all workers is a
    warning; a list or dict of the dataset that gets an entry for each sample, and as large, is a note.

    ## Fix
    - **you** one array instead of many objects: `numpy.array(paths, dtype="S")`, a tensor of labels, Arrow, or all
      records pickled into one array of bytes with an array of offsets.
    - **you** keep nothing in `self` that grows; bound caches with `functools.lru_cache(maxsize=...)`.

    ## Source
    proc(5), /proc/PID/smaps_rollup; Python, gc.freeze; pytorch/pytorch#13246, pytorch/pytorch#5902,
    pytorch/pytorch#20433; ppwwyyxx/RAM-multiprocess-dataloader.
    """
    judged, unread = examined.resources(cluster, "again")
    yield from unread
    made = {report.node: report.made or Made() for report in cluster.measurements.data}
    for node, resources in judged:
        own = made.get(node, Made())
        copies = _copies(cluster, node, own, resources)
        finding = _leak(cluster, node, own, resources) or copies or _cache(cluster, node, own, resources)
        yield finding or fine(Where(node=node), "reading leaves nothing behind that grows")


def _leak(cluster: Cluster, node: str, made: Made, resources: DataResources) -> Finding | None:
    again = known(resources.again)
    kept = [new + copied for new, copied in zip(again.memory, again.copied, strict=False)]
    each = min(kept, default=0) * len(kept) / max(1, again.reads)
    new = min(again.memory, default=0) * len(kept) / max(1, again.reads)
    limit = cluster.policy.thresholds.get("DAT021.leak", 1024.0)
    if len(kept) < 2 or (new < limit and each < _COPIES * limit) or _leaves_open(again):
        return None
    text = f"{size(sum(kept))} more after {again.reads} reads of samples that had been read before"
    epoch = each * (resources.length or 0)
    rest = f", {size(epoch)} in an epoch" if epoch else ""
    return (fail if epoch > value_or(resources.memory, 2**60) else warn)(
        Where(node=node),
        f"each read keeps {size(each)}{rest}",
        why="If this continues, the node runs out of memory, and the kernel kills a worker or a rank.",
        owner="job",
        evidence=[
            *(seen("grows with each read", path) for path in again.growing[:3]),
            seen("/proc/self/smaps_rollup", text),
            *_available(resources),
        ],
        fix=[_without_growth(made, again)],
    )


def _without_growth(made: Made, again: Growth) -> Remedy:
    if again.growing:
        name, kind = again.growing[0], next(iter(again.kinds), "")
        advice = f"Do not keep every sample in {name}, or only the last few."
        if kind in ("dict", "set"):
            oldest = f"{name}.pop(next(iter({name})))" if kind == "dict" else f"{name}.pop()"
            where = f"the first line of {own_names.owner(made)}.__getitem__"
            return you(advice, f"while len({name}) > 64: {oldest}  # {where}")
        return you(
            advice,
            f"{name} = collections.deque(maxlen=64)  # in __init__, instead of a list that never ends",
        )
    return you(
        "Keep nothing in self that grows with reads; this shows where memory is allocated.",
        "import tracemalloc; tracemalloc.start()",
        "samples = [dataset[0] for _ in range(100)]; del samples",
        "print(*tracemalloc.take_snapshot().statistics('lineno')[:5], sep='\\n')",
    )


def _copies(cluster: Cluster, node: str, made: Made, resources: DataResources) -> Finding | None:
    each = _copied_each(resources)
    if not each or (resources.asked and not resources.workers):
        return None
    samples = _MANY if resources.length is None else resources.length
    most = sum(container.bytes for container in resources.containers) or resources.inherited
    worker = min(each * samples, most)
    if worker < cluster.policy.thresholds.get("DAT021.mib", 32.0) * _MIB:
        return None
    fresh = known(resources.fresh)
    workers = max(1, resources.workers) * max(1, resources.ranks_per_node)
    text = f"{size(sum(fresh.copied))} were copied by {fresh.reads} reads"
    large = [
        f"{container.path}: {container.kind}, {container.items} items, {size(container.bytes)}"
        for container in resources.containers[:3]
    ]
    return (fail if worker * workers > value_or(resources.memory, 2**60) else warn)(
        Where(node=node),
        f"reading copies the memory of the dataset: up to {size(worker)} in each worker"
        + (f", {size(worker * workers)} in {workers} of them" if workers > 1 else ""),
        why="Python counts references in every object that it reads, so that workers cannot share them.",
        owner="job",
        evidence=[
            seen("/proc/self/smaps_rollup", text),
            *(seen("Python objects in the dataset", kind) for kind in large),
            *_available(resources),
        ],
        fix=_packed(made, resources),
    )


def _copied_each(resources: DataResources) -> float:
    """Bytes that a read copies, without the page that looking costs. Without a list to blame each run must show
    it, about as much as the others, and more than reading the same samples again.

    What is made anew is put into memory that the parent had freed, which copies it as well: with what is kept, or
    less and less of it.
    """
    fresh = value_or(resources.fresh, Growth(reads=0))
    if not fresh.copied or not fresh.reads or sum(fresh.memory) > sum(fresh.copied) or _leaves_open(fresh):
        return 0.0
    a_run = fresh.reads / len(fresh.copied)
    if resources.containers:
        return max(0.0, median(fresh.copied) - _PAGE) / a_run
    if fresh.reads < 256 or min(fresh.copied) < median(fresh.copied) / 2:
        return 0.0
    return max(0.0, (min(fresh.copied) - _PAGE) / a_run - _copied_anyway(known(resources.again)))


def _copied_anyway(again: Growth) -> float:
    """Bytes a read of samples that were read before, which have nothing left to copy: Python's own writing."""
    return max(again.copied, default=0) * len(again.copied) / max(1, again.reads)


def _packed(made: Made, resources: DataResources) -> list[Remedy]:
    """A class that stands for the list, so that nothing else changes; of a dict or a set the words alone."""
    container = resources.containers[0] if resources.containers else None
    if (
        container is None
        or container.kind.partition(" ")[0] not in ("list", "tuple")
        or not _NAME.fullmatch(container.path)
    ):
        return [you("Pack the objects into arrays (numpy, Arrow), once, in __init__; unpack one in __getitem__.")]
    return [
        you(
            f"Pack self.{container.path} into two arrays, last in __init__ of {own_names.owner(made)}.",
            "import numpy, pickle",
            "class Packed:",
            "    def __init__(self, items):",
            "        packed = [pickle.dumps(item) for item in items]",
            "        self.ends = numpy.cumsum([0, *map(len, packed)])",
            '        self.data = numpy.frombuffer(b"".join(packed), numpy.uint8)',
            "    def __len__(self): return len(self.ends) - 1",
            "    def __getitem__(self, index):",
            "        place = range(len(self))[index]",
            "        return pickle.loads(self.data[self.ends[place] : self.ends[place + 1]].tobytes())",
            f"self.{container.path} = Packed(self.{container.path})  # last in __init__",
        )
    ]


def _cache(cluster: Cluster, node: str, made: Made, resources: DataResources) -> Finding | None:
    fresh = value_or(resources.fresh, Growth(reads=0))
    room = value_or(resources.memory, 2**60)
    if len(fresh.memory) < 2 or not fresh.reads or resources.length is None:
        return None
    each = max(0.0, min(fresh.memory) * len(fresh.memory) / fresh.reads)
    workers = max(1, resources.workers) * max(1, resources.ranks_per_node)
    whole = each * resources.length * workers
    worker = each * resources.length
    if whole <= room and (not fresh.growing or worker < cluster.policy.thresholds.get("DAT021.mib", 32.0) * _MIB):
        return None
    if whole <= room:
        return note(
            Where(node=node),
            f"every worker keeps all samples that it has read in {fresh.growing[0]}: {size(each)} each, up to "
            f"{size(worker)} in a worker and {size(whole)} in {many(workers, 'worker')}",
            why="They fit into the memory of this node, and are kept once for each worker; a larger dataset, more "
            "workers or persistent workers end it.",
            evidence=[seen("/proc/self/smaps_rollup", f"{size(sum(fresh.memory))} by {fresh.reads} reads")],
            fix=[_bounded(made, fresh.growing[0])],
        )
    return warn(
        Where(node=node),
        f"each sample that is read for the first time keeps {size(each)}: "
        f"{size(whole)} for all samples in {workers} workers",
        why="If nothing bounds this cache, the node runs out of memory before the first epochs are over.",
        owner="job",
        evidence=[
            seen("/proc/self/smaps_rollup", f"{size(sum(fresh.memory))} by {fresh.reads} reads"),
            *_available(resources),
        ],
        fix=[_bounded(made, fresh.growing[0] if fresh.growing else "")],
    )


def _bounded(made: Made, path: str) -> Remedy:
    if not path:
        return you("Bound the cache.", "@functools.lru_cache(maxsize=1000)")
    return you(
        f"Let {path} hold a few samples only, in __getitem__ of {own_names.owner(made)}, or leave it out: workers "
        "do not share it.",
        f"if len({path}) > 1000:  # before a sample is put in",
        f"    {path}.clear()",
    )


def _available(resources: DataResources) -> list[Evidence]:
    room = value_or(resources.memory, 0)
    return [seen("memory available on the node", size(room))] if room else []

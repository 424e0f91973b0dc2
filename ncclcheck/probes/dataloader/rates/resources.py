"""What samples and workers take of this node: descriptors, memory, shared memory, cores, pickles."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

import psutil
from msgspec import Struct
from torch.utils.data.dataloader import default_collate, default_convert

from ncclcheck.probes.dataloader.children import child, footprint
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.rates import weigh
from ncclcheck.probes.dataloader.samples import containers
from ncclcheck.probes.facts import Limits, Space, Unread
from ncclcheck.probes.facts.data.resources import CollatedBatch, DataResources, ObjectContainer, Start
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import cgroup

T = TypeVar("T")

_SHM = "/dev/shm"
_MOST_SAMPLES = 256  # of the batch that is made here; the loader's own is worked out from it
_BATCH_S = 0.3  # to read the samples of one batch: chosen
_READS_S = 1.5  # of slow samples
_BRIEFLY_S = 4.0  # within the slack after the budget: 40 reads of 10 ms on a tenth of a core; chosen
_GIVEN = ("dataset", "collate_fn", "worker_init_fn")


class _ResourceAnswer(Struct):
    containers: list[ObjectContainer]


def look(made: FactoryLoader, plan: DataPlan, limit: float) -> DataResources:
    """Three children, one after the other: the reads, the batch, the pickles. Nothing is read in this process."""
    end = time.monotonic() + limit
    seconds = min(limit * 0.4, _READS_S)
    reads = child.run(lambda: footprint.measure(made, plan.seed, seconds), footprint.Footprint, limit * 0.6)
    if reads.timed_out:  # a busy machine; what hangs has been seen to do so, and does it again
        reads = child.run(
            lambda: footprint.measure(made, plan.seed, 0.0, briefly=True),
            footprint.Footprint,
            max(limit, _BRIEFLY_S),
        )
    batch: child.ChildEnd[Any] = reads  # what hangs once is not waited for twice
    if not reads.timed_out:
        batch = child.run(lambda: _batch(made, limit * 0.2), CollatedBatch, _left(end) * 0.5)
    start = child.run(lambda: _start(made), Start, _left(end) * 0.6)
    large = child.run(lambda: _ResourceAnswer(containers.large(made.dataset)), _ResourceAnswer, _left(end))
    workers = made.loader.get("num_workers")
    seen = reads.value
    return DataResources(
        length=made.length,
        workers=plan.workers if workers is None else workers,
        asked=workers is not None,
        prefetch=made.loader.get("prefetch_factor") or 2,
        ranks_per_node=max(1, plan.ranks_per_node),
        again=seen.again if seen else _why(reads),
        fresh=seen.fresh if seen else _why(reads),
        cpu=seen.cpu if seen else _why(reads),
        inherited=seen.inherited if seen else 0,
        descriptors=seen.descriptors if seen else 0,
        containers=large.value.containers if large.value else [],
        batch=batch.value if isinstance(batch.value, CollatedBatch) else _why(batch),
        start=start.value or _why(start),
        shm=_shm(),
        nofile=_nofile(),
        cores=cores(),
        memory=_memory(),
    )


def cores() -> float:
    """What affinity and quota leave of the cores."""
    mine = float(len(os.sched_getaffinity(0)))
    quota = cgroup.cores(Machine())
    return mine if quota is None else min(mine, quota[0])


def _left(end: float) -> float:
    return max(0.2, end - time.monotonic())


def _why(ended: child.ChildEnd[Any]) -> Unread:
    """That the user's code raises, hangs or crashes is told by the rules that look for it."""
    place = f" ({ended.place})" if ended.place else ""
    return Unread("absent", f"the process that looked {'raised ' if ended.error else ''}{ended.how}{place}"[:300])


def _batch(made: FactoryLoader, seconds: float) -> CollatedBatch:
    """The first samples, as the loader's collate function puts them together."""
    size = _batch_size(made)
    samples = _samples(made, max(1, min(size, _MOST_SAMPLES)), min(seconds, _BATCH_S), batched=size > 0)
    collate = made.loader.get("collate_fn")
    together = collate or (default_collate if size else default_convert)
    weight = weigh.weigh(together(samples if size else samples[0]))
    return CollatedBatch(
        samples=len(samples) if size else 1,
        size=size,
        tensors=len(weight.storages),
        used=weight.used,
        held=sum(weight.storages.values()),
        piped=weight.weight.piped,
        collate=str(getattr(collate, "__qualname__", type(collate).__name__))[:80] if collate else "",
        views=weigh.views(samples[0]),
    )


def _batch_size(made: FactoryLoader) -> int:
    """0: the loader does not batch."""
    if (batches := made.loader.get("batch_sampler")) is not None:
        return int(getattr(batches, "batch_size", 0)) or len(next(iter(batches)))
    return int(made.loader.get("batch_size", 1) or 0)


def _samples(made: FactoryLoader, count: int, seconds: float, *, batched: bool) -> list[Any]:
    """As many as there is time for, one at least. A loader that does not batch may ask for lists of indices."""
    end = time.monotonic() + seconds
    samples: list[Any] = []
    own = None if batched else made.loader.get("sampler")
    indices = range(made.length or count) if own is None else own
    source = made.dataset if made.iterable else (made.dataset[index] for index in indices)
    for sample in islice(source, count):
        samples.append(sample)
        if time.monotonic() > end:
            break
    return samples


def _start(made: FactoryLoader) -> Start:
    """Asking for Python's default fixes it, so that it is done in a child."""
    method, asked = start_method(made)
    things = {"dataset": made.dataset, **{name: made.loader.get(name) for name in _GIVEN[1:]}}
    return Start(
        method=method,
        asked=asked,
        pickled=[weigh.pickled(n, thing, keep_locks=asked) for n, thing in things.items() if thing is not None],
    )


def start_method(made: FactoryLoader) -> tuple[str, bool]:
    """How the loader starts its workers, and whether somebody asked for it."""
    if made.context is not None:
        return made.context, True
    usual = multiprocessing.get_all_start_methods()[0]  # Python names its default first
    chosen = multiprocessing.get_start_method(allow_none=True) or usual  # a lock that is made fixes the default
    return chosen, chosen != usual


def _shm() -> Space | Unread:
    return _told(_SHM, lambda: _space(os.statvfs(_SHM)))


def _space(space: os.statvfs_result) -> Space:
    return Space(size=space.f_blocks * space.f_frsize, free=space.f_bavail * space.f_frsize, path=_SHM)


def _nofile() -> Limits | Unread:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Limits(soft=soft, hard=hard)


def _memory() -> int | Unread:
    return _told("/proc/meminfo", _available)


def _available() -> int:
    available = int(psutil.virtual_memory().available)
    limit = cgroup.memory(Machine())
    return available if limit is None else min(available, limit)


def _told(source: str, call: Callable[[], T]) -> T | Unread:
    try:
        return call()
    except FileNotFoundError:
        return Unread("absent", f"there is no {source}")
    except OSError as error:
        return Unread("denied", f"{source}: {error}")

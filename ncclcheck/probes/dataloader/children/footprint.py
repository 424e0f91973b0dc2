"""What reading leaves behind in a process: descriptors, new memory, and memory that stops being shared.

Garbage collection writes into every object that was there at the fork: 40 MiB in a worker that holds nothing but
torch. Objects of the parent are frozen, so that only what reading itself does is counted.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import time
from collections import deque
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from ncclcheck.probes.dataloader.children import holding
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.samples.graph import walk
from ncclcheck.probes.dataloader.samples.read.reading import ReadSamples, Run
from ncclcheck.probes.facts import Unread
from ncclcheck.probes.facts.data.resources import Cpu, Growth

_RUNS = 8  # of a look, with equal numbers of reads: chosen, what leaks does so in each of them
_LEAST_RUNS = 2  # of a look, whatever time they take: one alone says nothing
_AGAIN = 4  # runs of passes over the same samples
_MOST_RUN = 256  # reads
_MOST_AGAIN = 128  # reads of the same samples in a run: chosen, a descriptor left by one in 100 is seen
_GROWS = 512  # bytes a read in every run, half of what DAT021 calls a leak: then it is looked at again
_LEAST_LOOKS = 3  # that have to show it, whatever time they take: torch.load warms caches of its own for two
_MOST_LOOKS = 10  # a dataset of Arrow copied pages of its parent for 2,800 reads, and was flat from then on
_SHOWN = 5  # paths in a finding: chosen
_ENOUGH = 128 * 2**20  # bytes; what grew so much has been seen
_ENOUGH_OPEN = 128  # descriptors that stay: chosen, no question any more, and far below the usual limit of 1024
_SETTLED = 6  # looks; each of the first makes some of the parent's memory its own
_PART_S = 0.12  # of a fast dataset, for each of the two


class Footprint(Struct, frozen=True, kw_only=True):
    """What one child saw. descriptors: open before the first read; inherited: private memory of its parent."""

    again: Growth | Unread
    fresh: Growth | Unread
    cpu: Cpu
    inherited: int
    descriptors: int


def measure(made: FactoryLoader, seed: int, seconds: float, *, briefly: bool = False) -> Footprint:
    """In a child that is thrown away. Raises what reading the first sample raises.

    briefly: only what is left by reading two samples again and again, for a machine too busy for the rest.
    """
    gc.disable()
    gc.freeze()
    _more_descriptors()
    before, threads = holding.now(), holding.threads()
    samples = ReadSamples(made, seed)
    each = samples.warm_up(0.0 if briefly else seconds / 5)
    samples.again()
    for _ in range(_SETTLED):
        holding.now()
    wall, cpu = time.perf_counter(), time.process_time()
    before_fresh = _lengths(made)
    late = Unread("absent", "there was no time for samples that had not been read")
    fresh = late if briefly else _fresh(made, samples, seconds / 3, each)
    if isinstance(fresh, Growth) and _grows(fresh):
        longer = _longer(before_fresh, _lengths(made), fresh.reads // 2)
        fresh = replace(fresh, growing=longer, kinds=_kinds(made, longer))
    again = _again(samples, seconds / 3, each)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if _grows(again):
        longer = _growing(made, samples)
        again = replace(again, growing=longer, kinds=_kinds(made, longer))
    return Footprint(
        again=again,
        fresh=fresh,
        cpu=Cpu(share=cpu / max(wall, 1e-6), threads=max(0, holding.threads() - threads)),
        inherited=before.anonymous,
        descriptors=len(before.descriptors),
    )


def _growing(made: FactoryLoader, samples: ReadSamples) -> list[str]:
    """The containers of the dataset that are longer once the same samples were read again."""
    before = _lengths(made)
    samples.again()
    return _longer(before, _lengths(made), samples.count)


def _longer(before: dict[str, int], after: dict[str, int], least: int) -> list[str]:
    return [path for path, length in after.items() if length - before.get(path, length) >= least][:_SHOWN]


def _lengths(made: FactoryLoader) -> dict[str, int]:
    containers = (
        (path, value) for path, value in walk(made.dataset) if isinstance(value, list | dict | set | deque)
    )
    return {path: len(value) for path, value in containers}


def _kinds(made: FactoryLoader, paths: list[str]) -> list[str]:
    names = {dict: "dict", set: "set", list: "list", deque: "deque"}
    kinds = {
        path: name
        for path, value in walk(made.dataset)
        for kind, name in names.items()
        if path in paths and isinstance(value, kind)
    }
    return [kinds.get(path, "") for path in paths]


def _more_descriptors() -> None:
    """A leak is to be counted, not to be met."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _fresh(made: FactoryLoader, samples: ReadSamples, seconds: float, each: float) -> Growth | Unread:
    """Runs of neighbours: objects made one after the other share pages, as they do over a whole epoch."""
    reads = int(min(seconds, _PART_S if each < 1e-3 else seconds) / _RUNS / max(each, 1e-7))
    reads = max(2, min(reads, _MOST_RUN))
    if not made.iterable:
        if made.length is None:
            return Unread("absent", "the dataset has no length")
        reads = min(reads, made.length // _RUNS - 1)
        if reads < 1:
            return Unread("absent", f"it has only {made.length} samples")
    return _grown(samples.fresh(_RUNS, reads), reads, seconds)


def _again(samples: ReadSamples, seconds: float, each: float) -> Growth:
    """The last four runs; each is one pass at least, of a fast dataset several.

    What copies pages of its parent, or warms a cache, comes to an end; what leaks grows in every look.
    """
    passes = max(1, min(int(_PART_S / _AGAIN / max(each, 1e-7)), _MOST_AGAIN) // samples.count)

    def run() -> None:
        for _ in range(passes):
            samples.again()

    end = time.perf_counter() + seconds
    for number in range(1, _MOST_LOOKS + 1):
        begun = time.perf_counter()
        grown = _grown([run] * _AGAIN, passes * samples.count, max(end - begun, seconds / _LEAST_LOOKS))
        now = time.perf_counter()
        cut_short = end - now < 2 * (now - begun)  # the next one would be, and say nothing
        if not _grows(grown) or (cut_short and number >= _LEAST_LOOKS):
            break
    return grown


def _grows(grown: Growth) -> bool:
    """In each of its runs."""
    kept = [new + copied for new, copied in zip(grown.memory, grown.copied, strict=True)]
    return min(kept) * len(kept) > _GROWS * grown.reads


def _grown(runs: Iterable[Run], reads: int, seconds: float) -> Growth:
    """Run by run, until the time is over or it is plain to see."""
    first = last = holding.now()
    end = time.perf_counter() + seconds
    memory: list[int] = []
    copied: list[int] = []
    for run in runs:
        run()
        memory_now = holding.now()
        memory.append(memory_now.anonymous - last.anonymous)
        copied.append(memory_now.own - last.own - memory[-1])
        last = memory_now
        enough = sum(memory) > _ENOUGH or len(last.descriptors) - len(first.descriptors) > _ENOUGH_OPEN
        if enough or (time.perf_counter() > end and len(memory) >= _LEAST_RUNS):
            break
    opened = [last.descriptors[number] for number in sorted(last.descriptors.keys() - first.descriptors.keys())]
    return Growth(
        reads=reads * len(memory),
        descriptors=len(last.descriptors) - len(first.descriptors),
        opened=[name[:200] for name in opened[-_SHOWN:]],
        memory=memory,
        copied=copied,
    )

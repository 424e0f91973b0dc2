"""Several workers reading the same samples at once, against what a lone reader gets."""

from __future__ import annotations

import errno
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from ncclcheck.probes.dataloader.children import child, inside
from ncclcheck.probes.dataloader.children.child import ChildEnd, Gate
from ncclcheck.probes.dataloader.races.written import FileWrites, watch_writes
from ncclcheck.probes.dataloader.randomness import seeds
from ncclcheck.probes.dataloader.randomness.oracle import Oracle
from ncclcheck.probes.dataloader.samples.read import glance
from ncclcheck.probes.dataloader.samples.read.glance import (
    GeneratorStates,
    Pass,
    ReadingOrder,
    SampleGlance,
    SampleSource,
)
from ncclcheck.probes.dataloader.samples.read.reader import SampleReader
from ncclcheck.probes.facts.data.content import Contest, Wrong

_ENOUGH = 50  # wrong reads of one worker, after which it stops: chosen
_MOST_READS = 4000  # of a worker, and _LEAST_S: a dataset in memory gives more in a third of the time
_LEAST_S = 0.3  # of reading before _MOST_READS ends it: chosen
_EXAMPLES = 6  # in a finding, the rest is counted: chosen
_SHORT_OF = tuple(f"[Errno {n}]" for n in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EAGAIN))


class Touched(msgspec.Struct):
    """What one worker read first, and the files that it wrote meanwhile."""

    read: Pass
    writes: FileWrites
    seconds: float


class Stressed(msgspec.Struct):
    """What one worker found wrong while all were reading."""

    reads: int
    wrong: int
    examples: list[Wrong]


def first_touch(
    reader: SampleReader, indices: Sequence[int], salt: int, seconds: float
) -> list[ChildEnd[Touched]]:
    """All workers read the same samples, which nobody has read before, in the same order at once."""
    workers = reader.plan.workers
    reader.pristine.restore()
    reader.mark.clear()
    works = [
        partial(
            _touch,
            reader,
            ReadingOrder(indices, salt, number, workers, whole=reader.made.iterable, seconds=seconds),
        )
        for number in range(workers)
    ]
    return child.run_all(works, Touched, seconds + reader.patience)


def _touch(reader: SampleReader, order: ReadingOrder, gate: Gate) -> Touched:
    writes = watch_writes()
    begun = time.monotonic()
    samples = glance.read(reader.made, order, reader.mark, gate)[0]
    return Touched(samples, writes, time.monotonic() - begun)


def compare_touched(touched: Sequence[ChildEnd[Touched]], oracle: Oracle) -> Contest:
    """A first read is wrong where the workers disagree and the lone reader later got something else."""
    seen = {number: ended.value.read for number, ended in enumerate(touched) if ended.ok and ended.value}
    wrong = [
        difference
        for number, read in seen.items()
        for index, sample in read.items()
        if index in oracle.truth and any(not _alike(sample, other.get(index), oracle) for other in seen.values())
        if (difference := compare(index, number, sample, oracle)) is not None
    ]
    return Contest(
        workers=len(touched),
        reads=sum(len(read) for read in seen.values()),
        wrong=len(wrong),
        examples=wrong[:_EXAMPLES],
        stuck=_stuck(touched),
    )


def _alike(sample: SampleGlance, other: SampleGlance | None, oracle: Oracle) -> bool:
    if other is None:
        return True
    if sample.error or other.error:
        return bool(sample.error) == bool(other.error)
    return all(sample.leaves.get(leaf) == other.leaves.get(leaf) for leaf in oracle.judged)


def stress(reader: SampleReader, oracle: Oracle, seconds: float) -> Contest:
    """All workers read the same samples in orders of their own, under pinned seeds, for so long."""
    reader.pristine.restore()
    reader.mark.clear()
    works = [partial(_stress, reader, oracle, number, seconds) for number in range(reader.plan.workers)]
    ended = child.run_all(works, Stressed, seconds + reader.patience)
    done = [ending.value for ending in ended if ending.ok and ending.value]
    return Contest(
        workers=len(works),
        reads=sum(stressed.reads for stressed in done),
        wrong=sum(stressed.wrong for stressed in done),
        examples=[example for stressed in done for example in stressed.examples[:2]][:_EXAMPLES],
        stuck=_stuck(ended),
    )


def has_drifted(reader: SampleReader, oracle: Oracle) -> bool:
    """Whether the lone reader no longer gets most of what it got: a slow clock, not damage that workers did."""
    again = next(iter(reader.passes(oracle.order)), {})
    changed = sum(compare(index, 0, sample, oracle) is not None for index, sample in again.items())
    return changed > len(oracle.truth) / 2


def _stress(reader: SampleReader, oracle: Oracle, number: int, seconds: float, gate: Gate) -> Stressed:
    sys.setswitchinterval(1e-4)
    order = oracle.order
    glance.be_worker(reader.made, replace(order, worker=number))
    source = SampleSource(reader.made)
    if order.warm is not None:
        _read(source, order.warm, glance.WARM, 0)
    streams = GeneratorStates(reader.made) if order.reset else None
    shuffle = random.Random(number)
    done = Stressed(0, 0, [])
    gate()
    begun = time.monotonic()
    end = begun + seconds
    while time.monotonic() < end and done.wrong < _ENOUGH:
        if done.reads > _MOST_READS and time.monotonic() > begun + _LEAST_S:
            break
        source.begin(order.salt)
        turn = list(oracle.truth)
        if not reader.made.iterable:
            shuffle.shuffle(turn)
        for index in turn:
            if time.monotonic() > end:
                break
            reader.mark.at(index, number)
            if streams:
                streams.put_back()
            _note(done, compare(index, number, _read(source, index, order.salt, index), oracle))
            if source.ended:
                break
        if not oracle.restarts:
            break
    return done


def _read(source: SampleSource, index: int, salt: int, seed: int) -> SampleGlance:
    seeds.reseed(salt, seed)
    try:
        return glance.sample_of(source.read(index))
    except Exception as error:
        return SampleGlance(error=inside.in_words(error), place=inside.place_of(error))


def _note(done: Stressed, wrong: Wrong | None) -> None:
    done.reads += 1
    if wrong is not None:
        done.wrong += 1
        if len(done.examples) < _EXAMPLES:
            done.examples.append(wrong)


def compare(index: int, worker: int, sample: SampleGlance, oracle: Oracle) -> Wrong | None:
    """What is wrong with a read, for leaves whose content is settled by the index and the seed."""
    alone = oracle.truth[index]
    if alone.error:
        return None
    if sample.error:
        if not oracle.is_in_order or _is_shortage(sample.error):
            return None
        return Wrong(index=index, worker=worker, error=f"{sample.error} ({sample.place})")
    for leaf in oracle.judged:
        expected, got = alone.leaves.get(leaf), sample.leaves.get(leaf)
        if expected is not None and got is not None and expected.digest != got.digest:
            return Wrong(
                index=index, worker=worker, leaf=leaf, alone=expected.brief, got=got.brief,
                of_index=_owner(leaf, got.digest, oracle.truth),
            )  # fmt: skip
    return None


def _is_shortage(error: str) -> bool:
    """Of memory, descriptors or processes: that says nothing about races."""
    return error.startswith("MemoryError") or any(word in error for word in _SHORT_OF)


def _owner(leaf: str, digest: str, truth: Pass) -> int | None:
    """The sample whose content this is, where it is the only one."""
    owners = [i for i, sample in truth.items() if leaf in sample.leaves and sample.leaves[leaf].digest == digest]
    return owners[0] if len(owners) == 1 else None


def _stuck(ended: Sequence[ChildEnd[Any]]) -> list[str]:
    return [f"worker {number} {end.how}\n{end.stacks[:1500]}" for number, end in enumerate(ended) if not end.ok]

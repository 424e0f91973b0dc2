"""What samples look like, over as many as there is time for, and whether they stack."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace
from torch.utils.data.dataloader import default_collate

from ncclcheck.probes.dataloader import indices, ours
from ncclcheck.probes.dataloader.children import stops
from ncclcheck.probes.dataloader.children.notes import ReadingMark
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.samples import pairing, stacking
from ncclcheck.probes.dataloader.samples.fingerprint import leaves
from ncclcheck.probes.dataloader.samples.read.glance import SampleSource
from ncclcheck.probes.dataloader.samples.read.visit import become_worker
from ncclcheck.probes.dataloader.samples.signatures import Tally, signature
from ncclcheck.probes.dataloader.samples.stacking import KeptSamples
from ncclcheck.probes.facts.data import Structure
from ncclcheck.probes.facts.data.streams import WorkerStop
from ncclcheck.probes.facts.data.structure import Unpaired, Unstacked
from ncclcheck.probes.job.context import DataPlan

_MOST_SAMPLES = 20_000  # chosen: one in 10,000 is found in 86 of 100 looks (1 - 0.9999**20000), if time suffices
_WITHOUT_LENGTH = 256  # indices that are tried where the dataset has no length: chosen
_READ_S = 0.6  # for reading, and at most _SHARE of the limit: chosen
_SHARE = 0.4  # of the limit: the rest is for batches and for samples that end the child; chosen
_HUNG_S = 4.0  # beyond it, before the child counts as hung: chosen, as long as one sample may take (reader.py)
_MOST_DEAD = 3  # samples that end the process, each costs a child: chosen
_MOST_WINDOWS = 3  # batches that are refused or compared: chosen


def look(made: FactoryLoader, plan: DataPlan, limit: float) -> Structure:
    """Read in a child; where one sample ends it, read those before it again and go on behind it."""
    end = time.monotonic() + limit
    order = _order(made, plan.seed + 3)
    died: list[WorkerStop] = []
    seconds = min(_READ_S, limit * _SHARE)
    while True:
        mark = ReadingMark()
        left = max(0.5, end - time.monotonic())
        sweep = _Sweep(made, order, mark, seconds)
        ended, stop = stops.read_alone(sweep, Structure, min(left, _HUNG_S + seconds), mark)
        if ended.value is not None:
            return replace(ended.value, died=died)
        if stop is None or ended.error:
            return replace(_empty(made), raised=1)
        died.append(stop)
        order = [index for index in order if index != mark.last()]
        if not order or made.iterable or ended.timed_out or len(died) == _MOST_DEAD or time.monotonic() > end:
            return replace(_empty(made), died=died)


def _order(made: FactoryLoader, seed: int) -> list[int]:
    """Both ends and the middle, then at random, so that the part that is read is like the rest."""
    if made.iterable or made.length is None:
        return indices.chosen(made, _MOST_SAMPLES if made.iterable else _WITHOUT_LENGTH, seed)
    few = indices.chosen(made, 3, seed)
    others = random.Random(seed).sample(range(made.length), min(made.length, _MOST_SAMPLES))
    return [*few, *(index for index in others if index not in few)]


def _empty(made: FactoryLoader) -> Structure:
    name, custom = stacking.name_of(made)
    return Structure(length=made.length, collate=name, custom=custom, batch_size=stacking.size_of(made))


class _Sweep:
    """Read the samples in this order until the time is over; then make batches of those that differ."""

    def __init__(self, made: FactoryLoader, order: Sequence[int], mark: ReadingMark, seconds: float) -> None:
        self.made, self.order, self.mark, self.seconds = made, order, mark, seconds
        self.read = self.raised = 0
        self.refused: list[Unstacked] = []
        self.collated: list[str] = []
        self.window: list[tuple[int, Any]] = []
        self.first: list[tuple[int, Any]] = []

    def __call__(self) -> Structure:
        become_worker(self.made, 2, 1)
        kept = KeptSamples(Tally(), {})
        for index, sample in self._samples():
            kept.add(index, sample)
            self.read += 1
            if len(self.first) < pairing.MOST:
                self.first.append((index, sample))
            if self.made.iterable:
                self._meet(index, sample)
        structure = replace(_empty(self.made), read=self.read, raised=self.raised)
        if not self.read:
            return structure
        if structure.batch_size not in (0, 1):
            refused, collated = stacking.try_batches(self.made, kept)
            self.refused += refused
            self.collated = collated or self.collated
        return replace(
            structure, shapes=kept.tally.shapes(), mixed=kept.tally.mixed(), unstacked=self.refused[:8],
            collated=self.collated, unpaired=self._unpaired(structure) if structure.custom else None,
            overwritten=self._overwritten(structure) if structure.custom else [],
        )  # fmt: skip

    def _unpaired(self, structure: Structure) -> Unpaired | None:
        """Of a batch as the loader would bring it together."""
        if structure.batch_size in (0, 1) or self.refused or not pairing.enough(self.first):
            return None
        samples = [sample for _, sample in self.first]
        try:
            batch = self.made.loader["collate_fn"](samples)
        except Exception as error:
            ours.pass_on(error)
            return None
        return pairing.unpaired(batch, samples, [index for index, _ in self.first])

    def _overwritten(self, structure: Structure) -> list[str]:
        """The parts of a batch that change when the next one is made."""
        if structure.batch_size in (0, 1) or self.refused or len(self.first) < _MOST_WINDOWS:
            return []
        samples, collate = [sample for _, sample in self.first], self.made.loader["collate_fn"]
        try:
            batch = collate(samples)
            before = {name: leaf.digest for name, leaf in leaves(batch).items()}
            collate(samples[::-1])
        except Exception as error:
            ours.pass_on(error)
            return []
        return [
            name[:80] or "the batch" for name, leaf in leaves(batch).items() if before.get(name) != leaf.digest
        ][:8]

    def _samples(self) -> Iterator[tuple[int, Any]]:
        end, source = time.monotonic() + self.seconds, SampleSource(self.made)
        for number, index in enumerate(self.order):
            if number > 1 and time.monotonic() > end:
                return
            self.mark.at(index)
            try:
                sample = source.read(index)
            except Exception as error:
                ours.pass_on(error)
                self.raised += 1
                if self.made.iterable:
                    return
                continue
            if source.ended:
                return
            yield index, sample

    def _meet(self, index: int, sample: Any) -> None:
        """Samples of a stream that follow each other meet in a batch."""
        size = stacking.size_of(self.made)
        self.window.append((index, sample))
        if len(self.window) < (stacking.UNKNOWN_SIZE if size is None else max(size, 1)):
            return
        window, self.window = self.window, []
        samples = [sample for _, sample in window]
        mixed = len({signature(sample) for sample in samples}) > 1
        if size in (0, 1) or not mixed or len(self.refused) >= _MOST_WINDOWS or self.collated:
            return
        collate = self.made.loader.get("collate_fn") or default_collate
        failed, self.collated = stacking.attempt(
            collate, samples, [index for index, _ in window], alike=False, certain=size is not None
        )  # fmt: skip
        self.refused += failed

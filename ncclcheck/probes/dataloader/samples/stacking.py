"""Whether the collate function makes batches of the samples that the loader would bring together."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data.dataloader import default_collate

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.dataloader.children.inside import in_words, place_of
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.samples.signatures import Signature, Tally, signature
from ncclcheck.probes.facts.data.structure import Unstacked

UNKNOWN_SIZE = 8  # of batches of a loader that nobody showed us
_MOST_KINDS = 6  # of samples that are tried with the usual one, in both orders: chosen
_MOST_BATCHES = 64  # of a sampler's order that are looked at: chosen
# batches of a loader that reads in order, for a rare sample has its place in one of them: chosen
_MOST_IN_ORDER = 4096
_TIME_S = 0.4  # for whole batches through the collate function: chosen


@dataclass
class KeptSamples:
    """Samples that are kept to make batches of: two of each kind, by index; and the ones with the fewest and the
    most elements: how many, and the index.
    """

    tally: Tally
    samples: dict[Signature, dict[int, Any]]
    smallest: tuple[int, int, Any] | None = None
    largest: tuple[int, int, Any] | None = None

    def add(self, index: int, sample: Any) -> None:
        """Count a sample, and keep it where its kind is new or has one so far."""
        kind = signature(sample)
        self.tally.add(index, kind)
        elements = sum(math.prod(look.shape) for _, look in kind)
        if self.smallest is None or elements < self.smallest[0]:
            self.smallest = (elements, index, sample)
        if self.largest is None or elements > self.largest[0]:
            self.largest = (elements, index, sample)
        known = self.samples.get(kind)
        if known is not None and len(known) < 2:
            known[index] = sample
        elif known is None and len(self.samples) < 4 * _MOST_KINDS:
            self.samples[kind] = {index: sample}

    @property
    def usual(self) -> Signature:
        """How most samples look, among the kinds of which samples are kept."""
        return max(self.samples, key=lambda kind: self.tally.counts[kind])


def name_of(made: FactoryLoader) -> tuple[str, bool]:
    """The collate function's name, and whether it is the user's own."""
    own = made.loader.get("collate_fn")
    if own is None or own is default_collate:
        return "default_collate", False
    return str(getattr(own, "__qualname__", type(own).__name__))[:80], True


def size_of(made: FactoryLoader) -> int | None:
    """The batch size as given; 0 where DataLoader does not batch, None where it was not given."""
    if (batches := made.loader.get("batch_sampler")) is not None:
        return getattr(batches, "batch_size", None) or UNKNOWN_SIZE
    if "batch_size" not in made.loader:
        return None
    return made.loader["batch_size"] or 0


def try_batches(made: FactoryLoader, kept: KeptSamples) -> tuple[list[Unstacked], list[str]]:
    """What cannot be stacked; else what becomes of samples that differ. One refusal a kind of sample is enough."""
    collate = made.loader.get("collate_fn") or default_collate
    batches = _alike(kept) if len(kept.tally.counts) == 1 else itertools.chain(_alike(kept), _mixtures(made, kept))
    refused: list[Unstacked] = []
    collated: list[str] = []
    for indices, samples, certain in batches:
        alike = len({signature(sample) for sample in samples}) == 1
        failed, made_of_it = attempt(collate, samples, indices, alike=alike, certain=certain)
        refused += failed
        collated = made_of_it if not alike and made_of_it else collated
        if refused and (refused[-1].alike or len(refused) == 4):
            break
    return refused, collated


Batch = tuple[list[int], list[Any], bool]


def _alike(kept: KeptSamples) -> Iterator[Batch]:
    """Two samples that look as most do."""
    usual = kept.samples[kept.usual]
    yield [*usual], [*usual.values()], True


def _mixtures(made: FactoryLoader, kept: KeptSamples) -> Iterator[Batch]:
    """Batches with samples that differ: the loader's own where its order is known, else pairs."""
    if made.iterable or not _is_shuffled(made):
        yield from _of_loader(made, kept)
        return
    usual = next(iter(kept.samples[kept.usual].items()))
    for extreme in (kept.largest, kept.smallest):  # what is padded or cut to a fixed length fails with these
        if extreme is not None and extreme[1] != usual[0]:
            yield [usual[0], extreme[1]], [usual[1], extreme[2]], False
    others = [kind for kind, _ in kept.tally.counts.most_common() if kind in kept.samples and kind != kept.usual]
    for kind in others[:_MOST_KINDS]:
        other = next(iter(kept.samples[kind].items()))
        for first, two in ((usual, other), (other, usual)):  # default_collate goes by the first
            yield [first[0], two[0]], [first[1], two[1]], False


def _is_shuffled(made: FactoryLoader) -> bool:
    """Whether any two samples may meet in a batch; a dataset alone will be shuffled by whoever trains on it."""
    if made.loader.get("batch_sampler") is not None:
        return False
    if (sampler := made.loader.get("sampler")) is not None:
        return isinstance(sampler, RandomSampler)
    return bool(made.loader.get("shuffle")) or size_of(made) is None


def _of_loader(made: FactoryLoader, kept: KeptSamples) -> Iterator[Batch]:
    """Whole batches as the loader makes them, those with samples that are known to differ first."""
    if made.iterable:
        return
    unusual = {i for kind, known in kept.tally.indices.items() if kind != kept.tally.usual for i in known}
    end = time.monotonic() + _TIME_S
    for batch in sorted(_batches(made), key=unusual.isdisjoint):
        if time.monotonic() > end:
            return
        if samples := _read(made, batch):
            yield [*batch], samples, True


def _read(made: FactoryLoader, batch: list[int]) -> list[Any]:
    """Nothing where one of them raises: that is told where samples are read one by one."""
    try:
        return [made.dataset[index] for index in batch]
    except Exception as error:
        ours.pass_on(error)
        return []


def _batches(made: FactoryLoader) -> list[list[int]]:
    """The first batches, and of a loader that reads in order all."""
    loader = made.make_loader()
    most = _MOST_IN_ORDER if isinstance(loader.sampler, SequentialSampler) else _MOST_BATCHES
    return [list(batch) for batch in itertools.islice(loader.batch_sampler or (), most)]


def attempt(
    collate: Callable[[Any], Any], samples: list[Any], indices: list[int], *, alike: bool, certain: bool
) -> tuple[list[Unstacked], list[str]]:
    """Collate them: the refusal, or what the batch looks like."""
    try:
        batch = collate(samples)
    except Exception as error:
        refusal = Unstacked(
            indices=indices[:UNKNOWN_SIZE],
            error=in_words(error),
            place=place_of(error),
            alike=alike,
            certain=certain,
        )
        return [refusal], []
    return [], [f"{path or 'batch'}: {look}"[:120] for path, look in signature(batch)[:12]]

"""Samples that change while they are held: buffers that the dataset returns, and fills again."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from ncclcheck.probes.dataloader.randomness import seeds
from ncclcheck.probes.dataloader.samples.fingerprint import leaves
from ncclcheck.probes.dataloader.samples.read import glance
from ncclcheck.probes.dataloader.samples.read.reader import SampleReader
from ncclcheck.probes.facts.data.content import Overwritten

_HELD = 6  # samples: chosen, more than a ring of two or three buffers has


def look(reader: SampleReader, indices: Sequence[int]) -> list[Overwritten]:
    """Hold a few samples, read others, and look at those that are held again."""
    ended = reader.in_child(lambda: _hold(reader, indices[:_HELD]), list[Overwritten], 0.5)
    return ended.value or [] if ended.ok else []


def _hold(reader: SampleReader, indices: Sequence[int]) -> list[Overwritten]:
    order = glance.ReadingOrder(indices, reader.plan.seed, workers=reader.plan.workers, whole=reader.made.iterable)
    glance.be_worker(reader.made, order)
    source = glance.SampleSource(reader.made)
    source.begin(order.salt)
    samples = []
    for index in (index for index in indices if index not in reader.unreadable):
        seeds.reseed(order.salt, index)
        sample = source.read(index)
        if source.ended:
            break
        samples.append((index, sample, copy.copy(leaves(sample))))
    return [
        Overwritten(index=index, leaf=path, before=leaf.brief, after=now.brief)
        for index, sample, before in samples
        for path, now in leaves(sample).items()
        if (leaf := before.get(path)) is not None and leaf.digest != now.digest
    ]

"""What reading changed of what the dataset held before its first read: in-place work, and no cache that grew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ncclcheck.probes.dataloader.randomness import seeds
from ncclcheck.probes.dataloader.samples import graph
from ncclcheck.probes.dataloader.samples.fingerprint import leaves
from ncclcheck.probes.dataloader.samples.read import glance
from ncclcheck.probes.dataloader.samples.read.reader import SampleReader

_FIRST = 8  # of a long list only the first items are walked, so the first samples are read too
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_MOST_BYTES = 64 * 2**20  # of one array; a digest takes about 1 ms for 1 MiB
_MOST = 3  # paths in a finding: chosen


def look(reader: SampleReader, indices: Sequence[int]) -> list[str]:
    """The paths, such as `self.records[0][boxes]`, in a child that reads each sample once: twice may undo it."""
    first = range(min(_FIRST, reader.made.length or 0))
    ended = reader.in_child(
        lambda: _altered(reader, [*dict.fromkeys((*first, *indices[:_FIRST]))]), list[str], 0.5
    )
    return ended.value or [] if ended.ok else []


def _altered(reader: SampleReader, indices: Sequence[int]) -> list[str]:
    order = glance.ReadingOrder(indices, reader.plan.seed, workers=reader.plan.workers)
    glance.be_worker(reader.made, order)
    source = glance.SampleSource(reader.made)
    source.begin(order.salt)
    before = dict(_held(reader.made.dataset))
    for index in [index for index in indices if index not in reader.unreadable]:
        seeds.reseed(order.salt, index)
        source.read(index)
    after = dict(_held(reader.made.dataset))
    return [path for path, value in before.items() if path in after and after[path] != value][:_MOST]


def _held(dataset: Any) -> Iterator[tuple[str, str]]:
    """Numbers, texts and arrays that the dataset holds: path, and digest."""
    for path, value in graph.walk(dataset):
        if _is_array(value):
            if value.nbytes <= _MOST_BYTES:
                yield path, leaves(value)[""].digest
        else:
            yield from ((name, repr(item)) for name, item in _items(path, value) if type(item) in _SCALARS)


def _items(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What it holds directly: `walk` passes numbers and texts over."""
    if isinstance(value, dict):
        yield from ((f"{path}[{key}]", item) for key, item in graph.first(value.items()) if type(key) in _SCALARS)
    elif isinstance(value, list):
        yield from ((f"{path}[{position}]", item) for position, item in enumerate(graph.first(value)))
    elif isinstance(attributes := graph.attributes(value), dict) and not callable(value):
        yield from ((f"{path}.{name}", item) for name, item in attributes.items())


def _is_array(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and value.layout is torch.strided
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and not value.dtype.hasobject

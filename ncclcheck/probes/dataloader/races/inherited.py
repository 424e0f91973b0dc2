"""What was open before the fork and is used by workers: offsets that move, handles without which reading fails."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from ncclcheck.probes.dataloader.children.pristine import offsets
from ncclcheck.probes.dataloader.children.surroundings import library_of, position
from ncclcheck.probes.dataloader.randomness.oracle import Oracle
from ncclcheck.probes.dataloader.samples.graph import walk
from ncclcheck.probes.dataloader.samples.read import glance
from ncclcheck.probes.dataloader.samples.read.glance import Pass, SampleGlance
from ncclcheck.probes.dataloader.samples.read.reader import SampleReader
from ncclcheck.probes.facts.data.content import Inherited

_SAMPLES = 8  # read to see which offsets move: chosen, each read moves it
_LOST_SAMPLES = 3  # read without the handle: chosen, all three must fail
_MOST_SOCKETS = 4  # tried one by one, each a child: chosen
# What is closed to see whether it is used; what hangs on it (a cursor, an h5py group) dies with it.
_CLOSABLE = ("File", "Environment", "Connection", "connection", "Redis", "StrictRedis", "InputContainer")


class MovedDescriptors(msgspec.Struct):
    """Descriptors whose offset reading moved, each with the first sample that did."""

    by_number: dict[int, int]


def moved_offsets(reader: SampleReader, indices: Sequence[int]) -> list[Inherited]:
    """Files of which an offset, shared by all workers, moves while samples are read."""
    if reader.made.workers_unpickle or not offsets(reader.made):
        return []
    ended = reader.in_child(lambda: _watch(reader, indices), MovedDescriptors, 0.5)
    targets = {handle.number: handle.target for handle in reader.made.handles}
    moved = ended.value.by_number if ended.ok and ended.value else {}
    return [
        Inherited(how="offset", what=targets[number], path=_path_to(reader, number), index=index)
        for number, index in moved.items()
    ]


def _path_to(reader: SampleReader, number: int) -> str:
    """The attribute of the dataset that holds this descriptor: `self.file`; empty where none is found."""
    for path, value in walk([reader.made.dataset]):
        if isinstance(value, io.IOBase | socket.socket):
            with contextlib.suppress(OSError, ValueError):
                if value.fileno() == number:
                    return _from_self(path)
    return ""


def _watch(reader: SampleReader, indices: Sequence[int]) -> MovedDescriptors:
    order = glance.ReadingOrder(indices, reader.plan.seed, workers=reader.plan.workers, whole=reader.made.iterable)
    # Copies share the offset for good; the number itself may be closed and given to a file of the worker's own.
    copies = {number: os.dup(number) for number in offsets(reader.made)}
    before = {number: position(copy) for number, copy in copies.items()}
    glance.be_worker(reader.made, order)
    source = glance.SampleSource(reader.made)
    source.begin(order.salt)
    changes: dict[int, int] = {}
    for index in indices[:_SAMPLES]:
        with contextlib.suppress(Exception):  # that it cannot be read is told elsewhere
            source.read(index)
        now = {number: position(copy) for number, copy in copies.items()}
        changes = {**{number: index for number in before if now[number] != before[number]}, **changes}
    return MovedDescriptors(changes)


def needed(reader: SampleReader, oracle: Oracle) -> list[Inherited]:
    """Sockets and handles of libraries that samples come through: without them reading is another."""
    if reader.made.workers_unpickle:
        return []
    return [
        inherited
        for inherited, lose in (*_sockets(reader), *_processes(reader), *_libraries(reader))
        if reader.left > 0 and _is_needed(reader, oracle, lose)
    ]


Losing = tuple[Inherited, Callable[[], Any]]


def _sockets(reader: SampleReader) -> Iterator[Losing]:
    sockets = [handle for handle in reader.made.handles if handle.kind == "socket"]
    for handle in sockets[:_MOST_SOCKETS]:
        yield (
            Inherited(how="socket", what=handle.target, path=_path_to(reader, handle.number)),
            partial(_replace, handle.number),
        )


def _processes(reader: SampleReader) -> Iterator[Losing]:
    """Child processes that are asked and answer over pipes: a decoder, a tokenizer, a simulator."""
    if not any(handle.kind == "pipe" for handle in reader.made.handles):
        return
    for path, value in walk([reader.made.dataset]):
        if isinstance(value, subprocess.Popen) and (pipes := [*filter(None, (value.stdin, value.stdout))]):
            given = value.args if isinstance(value.args, str | bytes | os.PathLike) else next(iter(value.args), "")
            yield (
                Inherited(how="process", what=os.path.basename(os.fsdecode(given)), path=_from_self(path)),
                partial(_replace_all, [pipe.fileno() for pipe in pipes]),
            )


def _replace_all(numbers: Sequence[int]) -> None:
    for number in numbers:
        _replace(number)


def _from_self(path: str) -> str:
    return path.replace("self[0]", "self", 1)


def _replace(number: int) -> None:
    """By /dev/null: the number stays taken, so that nothing else gets it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, number)
    os.close(nothing)


def _libraries(reader: SampleReader) -> Iterator[Losing]:
    for path, value in walk([reader.made.dataset, reader.made.loader.get("collate_fn")]):
        kind = library_of(value)
        if kind.rpartition(".")[2] in _CLOSABLE:
            yield Inherited(how="library", what=kind, path=_from_self(path)), value.close


def _is_needed(reader: SampleReader, oracle: Oracle, lose: Callable[[], Any]) -> bool:
    order = replace(oracle.order, indices=list(oracle.truth)[:_LOST_SAMPLES])

    def read() -> list[Pass]:
        with contextlib.suppress(Exception):
            lose()
        return glance.read(reader.made, order, reader.mark)

    ended = reader.in_child(read, list[Pass], 0.5)
    if not ended.ok or not ended.value:
        return True
    return any(_differs(sample, oracle.truth[index], oracle) for index, sample in ended.value[0].items())


def _differs(sample: SampleGlance, alone: SampleGlance, oracle: Oracle) -> bool:
    if sample.error or alone.error:
        return sample.error != alone.error
    return any(sample.leaves.get(leaf) != alone.leaves.get(leaf) for leaf in oracle.judged)

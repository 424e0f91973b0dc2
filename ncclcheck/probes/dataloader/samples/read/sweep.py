"""Reads as many samples as time allows, each once: those that cannot be read, and errors that are swallowed."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import msgspec

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.dataloader.children import inside
from ncclcheck.probes.dataloader.randomness import seeds
from ncclcheck.probes.dataloader.samples import finite
from ncclcheck.probes.dataloader.samples.read import glance
from ncclcheck.probes.dataloader.samples.read.glance import ReadingOrder, SampleGlance, SampleSource
from ncclcheck.probes.dataloader.samples.read.reader import SampleReader
from ncclcheck.probes.facts.data.content import Fallback, NotFinite, UnreadableSample

_MOST = 100_000  # samples in a random order: more are not read within any limit, and a list of them is small
_MOST_RAISED = 200  # kept with their place, the rest is counted: chosen
_MOST_SWALLOWED = 200  # kept, the rest is counted: chosen
_EXAMPLES = 5  # suspects that are read again beside others: chosen
_MINORITY = 0.3  # share of samples: an error that is caught in more of them is how the dataset works; chosen
_TELLING_BYTES = 8  # smaller leaves, such as labels, are equal by chance
_READS = "__getitem__"
_ANOTHER = ""  # no error: `return self[random.randrange(len(self))]`
_EXPECTED = (StopIteration, GeneratorExit, AttributeError)  # of protocols, not of data


class Swallowed(msgspec.Struct):
    """A read during which an error was raised and caught by user code, or (no error) another sample was read."""

    index: int
    error: str
    place: str


class Swept(msgspec.Struct):
    """What a sweep saw. contents: digest of the largest leaf -> the first sample that had it."""

    count: int = 0
    raised: list[UnreadableSample] = msgspec.field(default_factory=list)
    raised_count: int = 0
    swallowed: list[Swallowed] = msgspec.field(default_factory=list)
    swallowed_count: int = 0
    dropped: int = 0
    dropped_first: Swallowed | None = None
    not_finite: dict[str, NotFinite] = msgspec.field(default_factory=dict)


def sweep(reader: SampleReader, seconds: float) -> Swept:
    """Samples that end or hang their reader are noted by `reader`, and the sweep begins anew without them."""
    for _ in range(3):
        ended = reader.in_child(lambda: _sweep(reader, seconds), Swept, seconds)
        if ended.ok and ended.value:
            return ended.value
        reader.note_end(ended, reader.mark.last())
        if reader.stuck or reader.left < seconds:
            break
    return Swept()


def _sweep(reader: SampleReader, seconds: float) -> Swept:
    glance.be_worker(reader.made, ReadingOrder([], reader.plan.seed, workers=reader.plan.workers))
    source, swept, tracer = SampleSource(reader.made), Swept(), Tracer()
    end = time.monotonic() + seconds
    for index in _all_indices(reader):
        if time.monotonic() > end:
            break
        if reader.is_fatal(index):
            continue
        reader.mark.at(index)
        seeds.reseed(reader.plan.seed, index)
        _try(source, index, swept, tracer)
    return swept


def _all_indices(reader: SampleReader) -> Iterator[int]:
    """The ends first, then the rest in a random order: a stride would miss what lies between."""
    length = reader.made.length or 0
    ends = {0, length - 1} if length else set()
    yield from ends
    if length <= _MOST:
        rest = list(range(length))
        random.Random(reader.plan.seed).shuffle(rest)
    else:
        rest = random.Random(reader.plan.seed).sample(range(length), _MOST)
    yield from (index for index in rest if index not in ends)


def _try(source: SampleSource, index: int, swept: Swept, tracer: Tracer) -> None:
    swept.count += 1
    tracer.caught.clear()
    try:
        with tracer:
            sample = source.read(index)
    except Exception as error:
        swept.raised_count += 1
        if len(swept.raised) < _MOST_RAISED:
            message, place = inside.in_words(error), inside.place_of(error)
            swept.raised.append(UnreadableSample(index=index, kind="raised", error=message, place=place))
        return
    finite.add(swept.not_finite, index, sample)
    text, where = next(iter(tracer.caught.items()), ("", ""))
    if sample is None and text and not source.ended:
        swept.dropped += 1
        swept.dropped_first = swept.dropped_first or Swallowed(index, text, where)
    if tracer.caught:
        swept.swallowed_count += 1
        if len(swept.swallowed) < _MOST_SWALLOWED:
            swept.swallowed.append(Swallowed(index, *next(iter(tracer.caught.items()))))


class Tracer:
    """What a read met on its way in the user's own code, with its place: errors, and a read of another sample."""

    def __init__(self) -> None:
        self.caught: dict[str, str] = {}

    def __enter__(self) -> None:
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if inside.is_library(frame.f_code.co_filename):
            return None
        frame.f_trace_lines = False
        caller = frame.f_back
        if frame.f_code.co_name == _READS and caller is not None and caller.f_code is frame.f_code:
            self.caught.setdefault(_ANOTHER, f"line {caller.f_lineno} in {_READS}")
        return self._inside

    def _inside(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "exception" and not isinstance(argument[1], _EXPECTED) and argument[1] is not None:
            self.caught.setdefault(
                inside.in_words(argument[1]), f"line {frame.f_lineno} in {frame.f_code.co_name}"
            )
        return self._inside


def fallbacks(reader: SampleReader, swept: Swept) -> list[Fallback]:
    """Samples with a swallowed error, which most others have not, whose content is that of another sample.

    That other one is known where the content is one that was seen, or it changes with the seed and others do not.
    Where several of them hold the same, it is a placeholder.
    """
    suspects = swept.swallowed[:_EXAMPLES]
    if not suspects or swept.swallowed_count > _MINORITY * swept.count:
        return []
    ended = reader.in_child(lambda: _resolve(reader, suspects, swept), list[Fallback], 1.0)
    return ended.value or [] if ended.ok else []


def _resolve(reader: SampleReader, suspects: list[Swallowed], swept: Swept) -> list[Fallback]:
    glance.be_worker(reader.made, ReadingOrder([], reader.plan.seed, workers=reader.plan.workers))
    source, salt = SampleSource(reader.made), reader.plan.seed
    strange = {swallowed.index for swallowed in swept.swallowed}
    healthy = [index for index in _all_indices(reader) if not reader.is_fatal(index) and index not in strange]
    moving = any(_content(source, index, salt) != _content(source, index, salt + 1) for index in healthy[2:6])
    end = time.monotonic() + 0.8
    wanted = {
        swallowed.index: {_content(source, swallowed.index, salt + n) for n in range(3)} for swallowed in suspects
    }
    owners: dict[str, int] = {}
    near = [
        n
        for swallowed in suspects
        for n in (swallowed.index + 1, swallowed.index - 1)
        if n in range(reader.made.length or 0)
    ]
    for index in (*near, *healthy):
        if time.monotonic() > end:
            break
        if index not in strange:
            owners.setdefault(_content(source, index, salt), index)
    replaced = []
    alike = _placeholders(wanted)
    for suspect in suspects:
        if suspect.index in alike and suspect.error:
            other = next(index for index in alike if index != suspect.index)
            replaced.append(
                Fallback(
                    index=suspect.index, of_index=other, error=suspect.error, place=suspect.place, placeholder=True
                )
            )
            continue
        owner = next((owners[content] for content in wanted[suspect.index] if content in owners), None)
        if owner is not None or (len(wanted[suspect.index]) > 1 and not moving):
            replaced.append(
                Fallback(index=suspect.index, of_index=owner, error=suspect.error, place=suspect.place)
            )
    return replaced


def _placeholders(wanted: dict[int, set[str]]) -> list[int]:
    """Those of the suspects, two at least and half of them, that hold one and the same content under any seed."""
    settled = {index: next(iter(contents)) for index, contents in wanted.items() if len(contents) == 1}
    if not settled:
        return []
    ((content, count),) = Counter(settled.values()).most_common(1)
    return (
        [index for index, digest in settled.items() if digest == content]
        if count > 1 and 2 * count >= len(wanted)
        else []
    )


def _content(source: SampleSource, index: int, salt: int) -> str:
    """The digest of the largest leaf; of what says nothing an answer that is never another's."""
    seeds.reseed(salt, index)
    try:
        sample = glance.sample_of(source.read(index))
    except Exception as error:
        ours.pass_on(error)
        sample = SampleGlance()
    largest = max(sample.leaves.values(), key=lambda value: value.bytes, default=None)
    return f"no content {index}" if largest is None or largest.bytes < _TELLING_BYTES else largest.digest

"""How workers ended that did not end well: from what they noted, and from what the loader said."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from ncclcheck.probes.dataloader.children import child, notes
from ncclcheck.probes.dataloader.children.child import ChildEnd
from ncclcheck.probes.dataloader.children.notes import Diary, Note, ReadingMark
from ncclcheck.probes.dataloader.rates.loaded import Ran
from ncclcheck.probes.facts.data.streams import WorkerStop
from ncclcheck.probes.facts.run.course import signal_name

T = TypeVar("T")

_MOST = 8  # of one run: chosen, workers of one loader end for one reason
# without a note at the end of the time limit: a worker hung then; one that reads notes each sample. Chosen
_QUIET_S = 2.5
_MOST_STACK = 2000  # characters of one thread in a finding: chosen, some twenty frames
_BUSY = 0.05  # of a core; others want it too, and what only waits takes nothing
_FRAME = re.compile(r'File "(.+?)", line (\d+) in (\S+)')
_NOT_THE_USERS = ("/site-packages/", "/lib/python", "/ncclcheck/probes/", "<frozen")


def of_loader(ended: ChildEnd[Ran], diaries: Sequence[Diary]) -> list[WorkerStop]:
    """Of a run of the loader: workers first, then what is left without one."""
    stops = [*_raised(diaries), *_gone(ended.value, diaries)]
    if ended.queued:
        return stops[:_MOST]
    if ended.timed_out:
        stops += _hung(diaries, ended.limit, time.monotonic() - _QUIET_S)
    elif ended.value is None:
        stops.append(alone(ended))
    elif ended.value.error and not stops:
        stops.append(WorkerStop(kind="raised", during="start", error=ended.value.error, place=ended.value.place))
    return stops[:_MOST]


def read_alone(
    work: Callable[[], T], result: type[T], seconds: float, mark: ReadingMark
) -> tuple[ChildEnd[T], WorkerStop | None]:
    """Run in a child that marks what it reads: how it ended, and what to tell of it where that was not well."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = child.run(work, result, seconds)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    computed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if ended.value is not None:
        return ended, None
    stop = alone(ended, mark.last())
    return ended, replace(stop, usual=mark.usual(), busy=computed > _BUSY * seconds)


def alone(ended: ChildEnd[T], index: int | None = None) -> WorkerStop:
    """Of a child without workers, which was reading this sample."""
    at, place = "" if index is None else str(index), place_in(ended.stacks)
    stop = WorkerStop(kind="left", index=at, place=place, stack=_telling(ended.stacks), alone=True)
    if ended.timed_out:
        return replace(stop, kind="hung", seconds=ended.limit)
    if ended.signal:
        return replace(stop, kind="crashed", signal=signal_name(ended.signal))
    if ended.error:
        return replace(stop, kind="raised", error=ended.error, place=ended.place)
    return replace(stop, exit=ended.exit)


def _raised(diaries: Sequence[Diary]) -> Iterator[WorkerStop]:
    """One for each kind of error."""
    seen: set[str] = set()
    for note in [*notes.of(diaries, "init"), *notes.of(diaries, "raised"), *notes.of(diaries, "unsendable")]:
        if note.error and (kind := f"{note.event} {note.error.partition(':')[0]} {note.place}") not in seen:
            seen.add(kind)
            yield _stop(note, note.error)


def _stop(note: Note, error: str) -> WorkerStop:
    if note.event == "unsendable":
        return WorkerStop(kind="hung", during="queue", worker=note.worker, error=error)
    return WorkerStop(
        kind="raised", during="worker_init_fn" if note.event == "init" else "sample", worker=note.worker,
        index=note.index, error=error, place=note.place,
    )  # fmt: skip


def _gone(ran: Ran | None, diaries: Sequence[Diary]) -> Iterator[WorkerStop]:
    """Workers that ended before their time."""
    by_pid = {diary.pid: diary for diary in diaries}
    for gone in ran.exits if ran else []:
        diary = by_pid.get(gone.pid)
        note = diary.open if diary else None
        stack = diary.stack if diary else ""
        yield WorkerStop(
            kind="crashed" if gone.code < 0 else "left",
            during="sample" if note else "collate_fn",
            worker=gone.worker,
            index=note.index if note else "",
            signal=signal_name(-gone.code) if gone.code < 0 else "",
            exit=max(0, gone.code),
            place=place_in(stack),
            stack=_telling(stack),
        )


def _hung(diaries: Sequence[Diary], seconds: float, before: float) -> Iterator[WorkerStop]:
    """Samples that were begun and not ended; where there is none, the loader waits for a batch that is lost.

    before: what was noted later than this is slow, and not hung.
    """
    waiting = [(diary, note) for diary in diaries if (note := diary.open)]
    for diary, note in waiting:
        if note.at < before:
            yield WorkerStop(
                kind="hung", worker=note.worker, index=note.index, place=place_in(diary.stack),
                stack=_telling(diary.stack), seconds=seconds,
            )  # fmt: skip
    last = max((note.at for diary in diaries for note in diary.notes), default=0.0)
    if not waiting and last < before and not notes.of(diaries, "unsendable"):
        began = bool(notes.of(diaries, "init"))
        yield WorkerStop(kind="hung", during="queue" if began else "start", seconds=seconds)


def _telling(stack: str) -> str:
    """Of the thread that runs the user's code the frames that are not ours."""
    threads = [part for part in stack.split("\n\n") if place_in(part)]
    lines = (threads or [stack])[0].splitlines()
    return "\n".join(line for line in lines if "/ncclcheck/probes/" not in line)[:_MOST_STACK]


def place_in(stack: str) -> str:
    """The innermost frame of the user's own code, as faulthandler wrote it: `file.py:12 in __getitem__`."""
    frames = [match.groups() for match in _FRAME.finditer(stack)]
    for file, line, name in frames:
        if not any(part in file for part in _NOT_THE_USERS):
            return f"{file.rpartition('/')[2]}:{line} in {name}"
    return ""

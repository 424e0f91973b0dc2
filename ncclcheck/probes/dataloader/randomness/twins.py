"""Which workers and epochs were at the same place of the same random stream, by what the workers noted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclcheck.probes.dataloader.children import notes
from ncclcheck.probes.dataloader.children.notes import Diary, Note
from ncclcheck.probes.facts.data.streams import Repeated, Shared

Reads = dict[int, list[Note]]


def shared(diaries: Sequence[Diary], names: Sequence[str]) -> Iterator[Shared]:
    """For each generator the workers of the first epoch that passed through the same state."""
    reads = _by_worker(diaries, 0)
    for name in names:
        for state, where in _states(reads, name).items():
            if len(where) > 1:
                samples = [notes_of[0] for notes_of in where.values()]
                yield Shared(
                    generator=name,
                    workers=sorted(where),
                    state=state,
                    indices=[note.index for note in samples],
                    samples=all(note.digests == samples[0].digests for note in samples),
                )
                break


def repeated(diaries: Sequence[Diary], names: Sequence[str]) -> Iterator[Repeated]:
    """For each generator the workers that were, in the second epoch, where they had been in the first."""
    first, second = _by_worker(diaries, 0), _by_worker(diaries, 1)
    for name in names:
        again = {worker: states for worker in second if (states := _again(first, second, worker, name))}
        if again:
            yield Repeated(
                generator=name, workers=sorted(again), state=next(iter(again.values()))[0], of=len(second)
            )


def _again(first: Reads, second: Reads, worker: int, name: str) -> list[str]:
    """States of the second epoch that were there in the first. Where a worker lives on and draws nothing,
    its state stays: that is no repetition.
    """
    kept = {note.before.get(name) for note in second[worker][:1]}
    old = {note.after.get(name) for note in first.get(worker, [])}
    if _pids(first, worker) != _pids(second, worker):
        kept = set()
    return [state for note in second[worker] if (state := note.after.get(name)) and state in old - kept]


def _pids(reads: Reads, worker: int) -> set[str]:
    return {note.place for note in reads.get(worker, [])}


def _by_worker(diaries: Sequence[Diary], epoch: int) -> Reads:
    """The noted samples of each worker, in order. `place` holds the process."""
    reads: Reads = {}
    for diary in diaries:
        for note in notes.of([diary], "end"):
            if note.epoch == epoch and note.after:
                note.place = str(diary.pid)
                reads.setdefault(note.worker, []).append(note)
    return reads


def _states(reads: Reads, name: str) -> dict[str, dict[int, list[Note]]]:
    """State -> worker -> the samples after which it was in it."""
    states: dict[str, dict[int, list[Note]]] = {}
    for worker, ended in reads.items():
        for note in ended:
            if state := note.after.get(name):
                states.setdefault(state, {}).setdefault(worker, []).append(note)
    return states

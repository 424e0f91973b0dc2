"""The soak: checked collectives, round after round, each round with data of its own.

What is left over from the round before is wrong in the next one, so that a result that is stuck is seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from ncclcheck.probes.facts import Collective, Measurements, Soak, replace
from ncclcheck.probes.job.context import Context
from ncclcheck.probes.job.operations import Build, Ranks
from ncclcheck.probes.job.timing import RankPeers, batch
from ncclcheck.probes.job.verify.exact import Mismatch
from ncclcheck.probes.job.verify.wrong import as_fact

# chosen, seldom enough to cost nothing, often enough that a rank that hangs is seen in its collective
_TOLD_EVERY_S = 4.0
_MOST_TOLD = 20  # wrong results of a rank: later ones are only counted


@dataclass(frozen=True)
class Proven:
    """A row that was measured, and how it is built. seconds: of one run with filling and checking."""

    row: Collective
    form: Build
    count: int
    seconds: float


class Soaker:
    """Repeats proven rows. All ranks go by the same times, so all of them stop after the same result."""

    def __init__(self, context: Context, ranks: Ranks, peers: RankPeers, tick: Callable[[], None]) -> None:
        assert context.plan.soak
        self._context, self._plan, self._tick = context, context.plan.soak, tick
        self._ranks, self._peers = ranks, peers
        self._begun = time.monotonic()
        self._announced = 0.0
        self._said = 0
        self._soak = Soak(asked_s=self._plan.seconds, seconds=0.0, rounds=0, results=0, wrong=0, bytes=0)

    def run(self, proven: Sequence[Proven]) -> None:
        """Round after round, until the time is over; rank 0 tells from time to time how far it is."""
        rows = chosen(proven, self._plan.longest_s)
        growth = _SoakGrowth(self._plan.seconds)
        for number in count(1) if rows else ():
            for data in (self._ranks.data, self._ranks.raw):
                data.turn(number)
            if not all(self._result(row, number) for row in rows):
                break
            self._soak = replace(self._soak, rounds=number)
            growth.add(self._context.memory.now(), self._soak)
        self._context.memory.count(growth.bytes, growth.results)
        self._tell()

    def _result(self, proven: Proven, number: int) -> bool:
        """Run a row once on fresh data, and see whether there is time for the next."""
        self._announce(proven.row, number)
        work = proven.form(self._ranks, proven.count)
        work.reset()
        batch(work.call, 1, self._context.device, self._tick)
        wrong = work.check()
        if wrong:
            self._say(proven.row, wrong, number)
        any_wrong, seconds = self._peers.worst([1.0 if wrong else 0.0, time.monotonic() - self._begun])
        self._soak = replace(
            self._soak,
            seconds=seconds,
            results=self._soak.results + 1,
            wrong=self._soak.wrong + (any_wrong > 0),
            bytes=self._soak.bytes + proven.row.bytes,
        )
        return seconds < self._plan.seconds

    def _announce(self, row: Collective, number: int) -> None:
        """Each result takes longest_s at most; the shortest are announced once in a while, alike on all ranks."""
        passed = self._soak.seconds
        if number == 1 or passed - self._announced > _TOLD_EVERY_S - self._plan.longest_s:
            self._announced = passed
            far = f"{passed:.0f} of {self._plan.seconds:g} s, round {number}"
            self._context.step(f"soak, {far}: from {row.op} of {row.bytes} bytes on")
            self._tell()

    def _tell(self) -> None:
        if self._context.rank == 0:
            self._context.emit(Measurements(soak=self._soak))

    def _say(self, row: Collective, wrong: Mismatch, number: int) -> None:
        """At once: a rank that gives wrong results may not live long."""
        self._said += 1
        if self._said <= _MOST_TOLD:
            fact = as_fact(row, wrong, self._ranks, self._context.node, number, soak=True)
            self._context.emit(Measurements(wrong=[fact]))


class _SoakGrowth:
    """From the first quarter of the time to the last: a leak goes on, what is kept for later goes up and down.

    So the most that was held between two rounds of the first quarter is set against the least in the last one.
    """

    def __init__(self, seconds: float) -> None:
        self._quarter = seconds / 4
        self._most = self._from = 0
        self._least: int | None = None
        self._to = 0

    def add(self, memory: int, soak: Soak) -> None:
        """Note the bytes that are held after a round."""
        if soak.seconds <= self._quarter:
            self._most, self._from = max(self._most, memory), soak.results
        elif soak.seconds >= 3 * self._quarter and self._most:
            self._least, self._to = min(memory, self._least or memory), soak.results

    @property
    def bytes(self) -> int:
        """By how much it grew; nothing where there were too few rounds to tell."""
        return 0 if self._least is None else max(0, self._least - self._most)

    @property
    def results(self) -> int:
        """The number of results in which it grew so."""
        return 0 if self._least is None else self._to - self._from


def chosen(proven: Sequence[Proven], longest_s: float) -> list[Proven]:
    """Of every operation whose results are checked the smallest, a middle and the largest size."""
    by_op: dict[str, list[Proven]] = {}
    for proof in proven:
        if proof.row.bytes and proof.seconds <= longest_s:
            by_op.setdefault(proof.row.op, []).append(proof)
    return [proven for of_op in by_op.values() for proven in {id(o): o for o in _few(of_op)}.values()]


def _few(rows: list[Proven]) -> list[Proven]:
    return [rows[0], rows[len(rows) // 2], rows[-1]]

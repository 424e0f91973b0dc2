"""Which settings are measured next, and what the pairs of jobs say of each. Pure.

Candidates take turns with the job as it is. After each look those without promise are left out, so that the time
goes to the others; every interval is so wide that all of them hold together, over candidates, rows and looks. What
gains is measured once more as a whole, in pairs of its own: the figure of a winner of many is too good.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from statistics import median
from typing import Literal

from ncclcheck.probes.facts import Candidate, Measurements, TrialRow, Tried, Tuning, replace
from ncclcheck.reports.subjects.job import trial

Word = Literal["gains", "loses", "mixed", "same", "unknown", "failed"]
Medians = Mapping[tuple[str, int], float]
Answer = tuple[Medians, Medians] | str  # without and with, in microseconds; or how the job with them ended
Pairs = Generator[list[Candidate], Answer, None]

_TRIMMED = 6  # one in so many pairs is left out at either end; chosen
_OUT = ("loses", "mixed", "failed")
_OPEN = 1.1  # an interval that reaches beyond this speed-up leaves open what would be worth having; chosen
_PROMISE = 1.01  # median speed-up of the best row below which a candidate is measured no further; trial's limit


class TuningSearch:
    """The pairs so far. looks: after how many pairs of each candidate it is decided who goes on."""

    def __init__(self, candidates: Sequence[Candidate], looks: Sequence[int]) -> None:
        self._looks = looks
        self._tried = [Tried(settings=[candidate]) for candidate in candidates]
        self._whole: Tried | None = None
        self._concluded = False

    def pairs(self) -> Pairs:
        """Yields the settings of the next pair of jobs, and is sent what came of it."""
        yield from self._each_alone()
        if chosen := self.winners():
            self._whole = Tried(settings=chosen)
            for _ in range(self._looks[-1]):
                if not self._whole.failed:
                    answer = yield chosen
                    self._whole = added(self._whole, answer)

    def _each_alone(self) -> Pairs:
        left, done = [*range(len(self._tried))], 0
        for look in self._looks:
            for number in range(done, look):
                for place in left if number % 2 == 0 else reversed(left):
                    if self._concluded:
                        return
                    if not self._tried[place].failed:
                        answer = yield self._tried[place].settings
                        self._tried[place] = added(self._tried[place], answer)
            done = look
            left = self._promising(left)

    def conclude(self) -> None:
        """Time runs out: what gains by now is tried as a whole next. Where nothing does, the search goes on.

        It stands in for a later look, so that the intervals hold. The second measurement decides in any case.
        """
        enough = all(tried.failed or tried.pairs >= self._looks[0] for tried in self._tried)
        self._concluded = enough and bool(self.winners())

    def tuning(self) -> Tuning:
        """What is known by now, with all that follows from the times."""
        rows = max((len(tried.rows) for tried in self._tried), default=0)
        comparisons = max(1, len(self._tried) * rows * len(self._looks))
        return _completed(Tuning(comparisons=comparisons, tried=self._tried, whole=self._whole))

    def winners(self) -> list[Candidate]:
        """What gains and loses nowhere; of one variable the value that gains most."""
        best: dict[str, Tried] = {}
        for tried in self.tuning().tried:
            name = tried.settings[0].variable
            if verdict(tried) == "gains" and (name not in best or _promise(tried) > _promise(best[name])):
                best[name] = tried
        return [winner.settings[0] for winner in best.values()]

    def _promising(self, left: Sequence[int]) -> list[int]:
        """The better half of those that gain or still may; what gains now may have done so by chance."""
        judged = self.tuning().tried
        open_ = [i for i in left if verdict(judged[i]) not in _OUT and _promise(judged[i]) >= _PROMISE]
        best = sorted(open_, key=lambda i: -_promise(judged[i]))[: math.ceil(len(left) / 2)]
        return sorted(best)


def added(tried: Tried, answer: Answer) -> Tried:
    """With one pair of jobs more."""
    if isinstance(answer, str):
        return replace(tried, failed=answer)
    without, with_ = answer
    rows = {(row.op, row.bytes): row for row in tried.rows}
    for key in without.keys() & with_.keys():
        row = rows.get(key, TrialRow(op=key[0], bytes=key[1], without_us=[], with_us=[]))
        rows[key] = replace(row, without_us=[*row.without_us, without[key]], with_us=[*row.with_us, with_[key]])
    return replace(tried, pairs=tried.pairs + 1, rows=[rows[key] for key in sorted(rows)])


def completed(measured: Measurements) -> Measurements:
    """The measurements with what follows from the times of `tune`."""
    return measured if measured.tuning is None else replace(measured, tuning=_completed(measured.tuning))


def _completed(tuning: Tuning) -> Tuning:
    """A file may say of fewer comparisons than it has."""
    comparisons = max(tuning.comparisons, sum(len(tried.rows) for tried in tuning.tried), 1)
    tried = [replace(tried, rows=[_judged(row, comparisons) for row in tried.rows]) for tried in tuning.tried]
    whole = tuning.whole
    if whole is not None:
        whole = replace(whole, rows=[_judged(row, max(1, len(whole.rows))) for row in whole.rows])
    return replace(tuning, tried=tried, whole=whole)


def _judged(row: TrialRow, comparisons: int) -> TrialRow:
    return trial.judged(row, comparisons, trimmed=len(row.without_us) // _TRIMMED)


def verdict(tried: Tried) -> Word:
    """What all rows say together."""
    verdicts = {row.verdict for row in tried.rows}
    if tried.failed:
        return "failed"
    if {"gains", "loses"} <= verdicts:
        return "mixed"
    words: tuple[Word, ...] = ("gains", "loses", "same")
    return next((word for word in words if word in verdicts), "unknown")


def may_gain(row: TrialRow) -> bool:
    """It looks like a gain, and the jobs differ too much from one to the next to tell."""
    return row.verdict == "same" and (row.speedup or 0.0) >= _PROMISE and row.high is not None and row.high > _OPEN


def recommended(tuning: Tuning | None) -> Tried | None:
    """What gained, and gained again as a whole without a loss; nothing else was measured well enough."""
    whole = tuning.whole if tuning else None
    return whole if whole is not None and verdict(whole) == "gains" else None


def named(tried: Tried) -> str:
    """As it was set."""
    return " ".join(f"{setting.variable}={setting.value or ''}" for setting in tried.settings)


def _promise(tried: Tried) -> float:
    """The best row's median, for of few pairs one burst spoils the mean; infinite where nothing was compared."""
    ratios = [[a / b for a, b in zip(row.without_us, row.with_us, strict=False) if b > 0] for row in tried.rows]
    return max((median(ratio) for ratio in ratios if ratio), default=math.inf)

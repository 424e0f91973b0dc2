"""What one setting changes: pairs of jobs -> by how much it is faster, with an interval. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from ncclcheck.probes.facts import Cluster, Measurements, Trial, TrialRow, replace
from ncclcheck.reports.subjects.job.student import quantile
from ncclcheck.reports.subjects.nccl.variables import effective
from ncclcheck.reports.text.words.fold import size

Word = Literal["failed", "gains", "loses", "mixed", "same", "unknown"]

CONFIDENCE = 0.95  # of all rows of a trial together
LEAST_PAIRS = 3  # pairs of jobs: with fewer Student's interval is too wide to tell anything
_LEAST_EFFECT = 0.01  # smaller ones are no reason to carry a setting along
_MOST_PAIRS = 100  # pairs of jobs that count: far more than any trial runs; bounds hostile files
_NAMED = 3  # rows in a sentence; the others are counted; chosen
_LARGEST = 30.0  # e to this is 1e13: beyond it no ratio of times is one


def completed(measured: Measurements) -> Measurements:
    """The measurements with what follows from the times of the trial."""
    trial = measured.trial
    if trial is None:
        return measured
    rows = [judged(row, len(trial.rows)) for row in trial.rows]
    return replace(measured, trial=replace(trial, rows=rows))


def judged(row: TrialRow, comparisons: int, trimmed: int = 0) -> TrialRow:
    """The mean of the pairs' ratios, as logarithms, with Student's interval; Bonferroni's share for each.

    trimmed: pairs that are left out at either end, since a burst of other traffic slows one job of a pair.
    """
    pairs = [two for two in zip(row.without_us, row.with_us, strict=False) if min(two) > 0][:_MOST_PAIRS]
    if len(pairs) < LEAST_PAIRS:
        return replace(row, speedup=None, low=None, high=None, verdict="unknown")
    ratios = sorted(math.log(without) - math.log(with_) for without, with_ in pairs)
    left = len(ratios) - 2 * trimmed
    middle = statistics.fmean(ratios[trimmed : trimmed + left])
    # Yuen: the spread of what is left with the outermost of it in place of what was cut off
    clipped = [min(max(ratio, ratios[trimmed]), ratios[-1 - trimmed]) for ratio in ratios]
    error = statistics.stdev(clipped) * math.sqrt(len(ratios)) / left
    reach = error * quantile(1 - (1 - CONFIDENCE) / comparisons, left - 1)
    speedup, low, high = (_ratio(logarithm) for logarithm in (middle, middle - reach, middle + reach))
    return replace(row, speedup=speedup, low=low, high=high, verdict=_verdict(speedup, low, high))


def _ratio(logarithm: float) -> float:
    return math.exp(max(-_LARGEST, min(_LARGEST, logarithm)))


def _verdict(speedup: float, low: float, high: float) -> Literal["gains", "loses", "same"]:
    if low > 1 and speedup >= 1 + _LEAST_EFFECT:
        return "gains"
    return "loses" if high < 1 and speedup <= 1 - _LEAST_EFFECT else "same"


def verdict(trial: Trial) -> Word:
    """What all rows say together."""
    verdicts = {row.verdict for row in trial.rows}
    if trial.failed:
        return "failed"
    if {"gains", "loses"} <= verdicts:
        return "mixed"
    return next((word for word in ("gains", "loses", "same") if word in verdicts), "unknown")


def setting(trial: Trial) -> str:
    """As it was given."""
    return f"{trial.variable}={trial.value or ''}"


def against(cluster: Cluster, trial: Trial) -> str:
    """What the runs without it had: nothing, or what stands there today."""
    return held_against(cluster, trial.variable)


def held_against(cluster: Cluster, variable: str) -> str:
    """The same of a variable."""
    values = {effective(node)[variable].value for node in cluster.nodes if variable in effective(node)}
    return f"the job as it is, with {variable}={', '.join(sorted(values))}" if values else "the job without it"


def change(ratio: float | None) -> str:
    """+8.1 %: how much faster it is."""
    return "-" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def interval(row: TrialRow) -> str:
    """-2.1 to +4.0 %."""
    if row.low is None or row.high is None:
        return "-"
    return f"{change(row.low).removesuffix(' %')} to {change(row.high)}"


def effect(row: TrialRow) -> str:
    """all_reduce of 64 MiB +8.1 % (+2.0 to +14.3 %)."""
    return f"{name(row)} {change(row.speedup)} ({interval(row)})"


def middle(times: Sequence[float]) -> float:
    """The usual time of a job."""
    return statistics.median(times)


def name(row: TrialRow) -> str:
    """The operation with its size, where it has one."""
    return f"{row.op} of {size(row.bytes)}" if row.bytes else row.op


def of(trial: Trial, *verdicts: str) -> list[TrialRow]:
    """The rows of which this is true, the largest effect first."""
    rows = [row for row in trial.rows if row.verdict in verdicts]
    return sorted(rows, key=lambda row: -abs(math.log(row.speedup or 1.0)))


def sentence(trial: Trial) -> str:
    """The whole in a sentence."""
    what, word = setting(trial), verdict(trial)
    if word == "failed":
        return f"{what}: the job does not run with it ({trial.failed})"
    if word == "unknown":
        return f"{what}: too few pairs of jobs to judge ({trial.pairs}; {LEAST_PAIRS} are needed)"
    if word == "same":
        return f"{what}: no difference beyond noise, in {trial.pairs} pairs of jobs"
    kinds = [(kind, of(trial, kind)) for kind in ("gains", "loses")]
    return f"{what} " + "; ".join(f"{kind} in {_listed(rows)}" for kind, rows in kinds if rows)


def _listed(rows: Sequence[TrialRow]) -> str:
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return ", ".join(effect(row) for row in rows[:_NAMED]) + more

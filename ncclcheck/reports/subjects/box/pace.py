"""A job that became slow and did not stall: since when, which rank or node holds it up, what changed there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import NamedTuple

from ncclcheck.probes.facts import Box, BoxProcess, BoxSample, Cluster
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.box import failure

# All numbers are judgements, tried on gloo jobs of a lab only.
_MOST_BINS, _LEAST_BIN_S = 120, 2.0  # of the time line that is searched for a change
# Seconds before the change, for a pace to be known, and after it: shorter ones are checkpoints and evaluations.
_BEFORE_S, _LEAST_S = 8.0, 15.0
_LEAST_BINS = 4  # before the change and after it: chosen, of fewer a median is one look
_TRAINS = 0.3  # of the busiest tenth's traffic: less is the start, before there are steps
_SLOWER = 0.6  # of the traffic before: a step takes two thirds longer, which no user overlooks
_WRITES = 0.25  # share of looks at which a rank had written something, for its pace to be known
_STALLED = 0.005  # of it: that is no slow job but one that stands still
_STANDS_OUT = 0.25  # share of looks by which one rank is busier than all the others, now and since the change
_BUSY = 0.5  # share of looks in which the busiest rank is busy: chosen, less is no rank that all wait for
_CLOCK, _CLOCK_OTHERS = 0.85, 0.95  # of the clock before; what GPUs in the same room may vary by
_WAITS_TO_SEND = 0.5  # share of looks with unsent data
_CORES = 0.05  # by which what a rank uses must differ to be told: it is shown with one digit
_NEAR_S = 60.0  # of the change: what the kernel or a counter said then may be why


class SlowSince(NamedTuple):
    """t: since when; ratio: how much longer the same takes. process: a rank, None for all of the node."""

    t: float
    ratio: float
    box: Box
    process: BoxProcess | None
    what: str
    changes: list[str]


class _PaceChange(NamedTuple):
    start: float
    t: float
    end: float
    ratio: float


_Found = tuple[Box, BoxProcess | None, str]
_Series = list[tuple[Sequence[BoxSample], Sequence[float]]]  # of each node of it: samples, and a value for each


@derived
def slow(cluster: Cluster) -> SlowSince | None:
    """None where the job kept its pace, or where nobody stands out."""
    boxes = [box for box in cluster.measurements.boxes if len(box.samples) > 2 * _LEAST_BINS]
    # Where the ranks' own pace is known, what goes over the node's wires besides says nothing of it.
    traffic = None if _all_write(boxes) else _change(boxes, [_traffic(boxes)])
    for change in (_of_ranks(boxes), traffic):
        culprit = _culprit(boxes, change) if change is not None else None
        if change is not None and culprit is not None:
            box, process, what = culprit
            return SlowSince(change.t, change.ratio, box, process, what, [*_changes(box, process, change)])
    return None


def _culprit(boxes: Sequence[Box], change: _PaceChange) -> _Found | None:
    return _by_clock(boxes, change) or _by_rank(boxes, change) or _by_queue(boxes, change)


def _traffic(boxes: Sequence[Box]) -> _Series:
    """What the job's nodes send, which on a shared node other jobs send too."""
    return [(box.samples, [float(sample.sent) for sample in box.samples]) for box in boxes]


def _of_ranks(boxes: Sequence[Box]) -> _PaceChange | None:
    """By what each rank writes, where all of them became slower at once: gloo's messages, a line a step."""
    ranks: list[_Series] = [
        [(box.samples, process.wrote)]
        for box in boxes
        for process in box.processes
        if process.role == "rank" and process.wrote
    ]
    return _change(boxes, ranks) if len(ranks) > 1 else None


def _all_write(boxes: Sequence[Box]) -> bool:
    """Whether each rank writes something all the time, as those on gloo do."""
    ended = _ended(boxes)
    shares = []
    for box in boxes:
        for process in box.processes:
            if process.role == "rank":
                looks = [
                    wrote for sample, wrote in zip(box.samples, process.wrote, strict=False) if sample.t < ended
                ]
                first = next((at for at, wrote in enumerate(looks) if wrote), len(looks))
                shares.append(fmean([float(wrote > 0) for wrote in looks[first:]] or [0.0]))
    return len(shares) > 1 and min(shares) > _WRITES


def _change(boxes: Sequence[Box], each: Sequence[_Series]) -> _PaceChange | None:
    """When the bytes a second of each became fewer for good: every step sends the same."""
    begun, ended = min((b.started for b in boxes), default=0.0), _ended(boxes)
    width = max(_LEAST_BIN_S, (ended - begun) / _MOST_BINS)
    edges = [begun + at * width for at in range(int((ended - begun) / width) + 1)]
    binned = [[_rate(series, start, start + width) for start in edges[:-1]] for series in each]
    rates = [fmean(column) for column in zip(*map(_scaled, binned), strict=True)]
    if len(rates) < 2 * _LEAST_BINS:
        return None
    high = sorted(rates)[int(len(rates) * 0.9)]
    trains = [rate >= _TRAINS * high for rate in rates]
    # One alone is a burst of the start.
    first = next((at for at, both in enumerate(itertools.pairwise(trains)) if all(both)), 0)
    rates, start = rates[first:], begun + first * width
    while rates and rates[-1] <= _STALLED * high:  # one long wait at the end is no slow step
        rates.pop()
    ended = min(ended, start + len(rates) * width)
    least = max(_LEAST_BINS, int(_LEAST_S / width))
    splits = range(max(_LEAST_BINS, int(_BEFORE_S / width)), len(rates) - least + 1)
    logs = [
        math.log(max(rate, _STALLED * (high or 1.0))) for rate in rates
    ]  # a burst, as of a checkpoint, weighs little
    at = max(splits, key=lambda k: k * (len(logs) - k) * (fmean(logs[:k]) - fmean(logs[k:])) ** 2, default=0)
    if not at or not all(_fell(own[first:], at) for own in binned):
        return None
    before, after = sorted(rates[:at]), sorted(rates[at:])
    apart = after[len(after) * 3 // 4] < before[len(before) // 4]
    if not apart or not _STALLED * median(before) <= median(after) <= _SLOWER * median(before):
        return None
    return _PaceChange(start, start + at * width, ended, median(before) / median(after))


def _rate(series: _Series, start: float, end: float) -> float:
    """Of all nodes of it together."""
    total = 0.0
    for samples, values in series:
        inside = [value for sample, value in zip(samples, values, strict=False) if start <= sample.t < end]
        total += fmean(inside) if inside else 0.0
    return total


def _scaled(rates: Sequence[float]) -> list[float]:
    """To the one's own pace, whatever it writes a step."""
    high = sorted(rates)[int(len(rates) * 0.9)] if rates else 0.0
    return [rate / high if high else 0.0 for rate in rates]


def _fell(rates: Sequence[float], at: int) -> bool:
    return 0 < median(rates[at:]) <= _SLOWER * median(rates[:at])


def _ended(boxes: Sequence[Box]) -> float:
    """The first end or failure of a rank, else the end of all; of a job that stalled the last sign of life."""
    gone = [
        process.gone
        for box in boxes
        for process in box.processes
        if process.role == "rank" and process.gone is not None
    ]
    failed = [raised.t for box in boxes for raised in box.raised if not raised.thread]
    stalled = [box.stalls[-1].t - box.stalls[-1].silent for box in boxes if box.stalls and box.status != 0]
    return min([*gone, *failed, *stalled, *(box.samples[-1].t for box in boxes)], default=0.0)


def _both(box: Box, change: _PaceChange, values: Sequence[float]) -> tuple[float, float]:
    """Means of values that go with the samples, before the change and after it."""
    pairs = [*zip(box.samples, values, strict=False)]
    before = [value for sample, value in pairs if change.start <= sample.t < change.t]
    after = [value for sample, value in pairs if change.t <= sample.t < change.end]
    return fmean(before or [0.0]), fmean(after or [0.0])


def _by_clock(boxes: Sequence[Box], change: _PaceChange) -> _Found | None:
    """One GPU whose clock fell while those of the others stayed."""
    shares: dict[tuple[int, int], float] = {}
    for number, box in enumerate(boxes):
        for gpu in range(max((len(sample.clocks) for sample in box.samples), default=0)):
            clocks = [float(sample.clocks[gpu]) if gpu < len(sample.clocks) else -1.0 for sample in box.samples]
            before, after = _both(box, change, clocks)
            if before > 0:
                shares[number, gpu] = after / before
    slowest = min(shares, key=lambda key: shares[key], default=None)
    others = [share for key, share in shares.items() if key != slowest]
    if slowest is None or not others or shares[slowest] > _CLOCK or min(others) < _CLOCK_OTHERS:
        return None
    box, gpu = boxes[slowest[0]], slowest[1]
    on_it = {*box.gpu_pids[gpu]} if gpu < len(box.gpu_pids) else set()
    rank = next((process for process in box.processes if process.role == "rank" and process.pid in on_it), None)
    return box, rank, f"the clock of GPU {gpu} fell to {shares[slowest]:.0%} of what it was"


def _by_rank(boxes: Sequence[Box], change: _PaceChange) -> _Found | None:
    """One rank that waits for nobody, while all the others wait more than before."""
    apart: list[tuple[float, float, Box, BoxProcess]] = []
    for box in boxes:
        for process in box.processes:
            if process.role == "rank" and process.apart:
                before, after = _both(box, change, process.apart)
                apart.append((after, after - before, box, process))
    apart.sort(key=lambda row: row[0], reverse=True)
    if len(apart) < 2 or apart[0][0] < _BUSY or apart[0][0] - apart[1][0] < _STANDS_OUT:
        return None
    if apart[0][1] - median(row[1] for row in apart[1:]) < _STANDS_OUT:
        return None
    return (
        apart[0][2],
        apart[0][3],
        f"it waits for no other process in {apart[0][0]:.0%} of all looks, the next one in {apart[1][0]:.0%}",
    )


def _by_queue(boxes: Sequence[Box], change: _PaceChange) -> _Found | None:
    """One node whose data waits to be sent, while that of the others does not."""
    queues = []
    for number, box in enumerate(boxes):
        before, after = _both(box, change, [float(sample.unsent > 0) for sample in box.samples])
        queues.append((after - before, after, number))
    queues.sort(reverse=True)
    if len(queues) < 2 or queues[0][1] < _WAITS_TO_SEND or queues[0][0] - queues[1][0] < _STANDS_OUT:
        return None  # not by the share alone: a node may have other connections that are slow all the time
    grown, after, number = queues[0]
    return boxes[number], None, f"what it sends waits in its queues at {after:.0%} of all looks, {grown:+.0%}"


def _changes(box: Box, process: BoxProcess | None, change: _PaceChange) -> Iterator[str]:
    """What else became different on this node at that time."""
    signs: tuple[tuple[str, Callable[[BoxSample], float], float, str], ...] = (
        ("cores in use by other processes", lambda sample: sample.others, 0.5, ".1f"),
        ("cores taken by the hypervisor", lambda sample: sample.stolen, 0.1, ".1f"),
        ("pages read from swap a second", lambda sample: sample.swapped, 10.0, ".0f"),
        ("seconds a second held back by a CPU limit", lambda sample: sample.held, 0.05, ".2f"),
    )
    if process is not None and process.cores:
        before, after = _both(box, change, process.cores)
    if process is not None and process.cores and abs(after - before) >= _CORES:
        yield f"cores in use by this rank: {before:.1f} before, {after:.1f} since"
    for name, value, least, form in signs:
        before, after = _both(box, change, [value(sample) for sample in box.samples])
        if after - before >= least and after >= 1.5 * before:
            yield f"{name}: {before:{form}} before, {after:{form}} since"
    for gpu in range(max((len(sample.clocks) for sample in box.samples), default=0)):
        clocks = [float(sample.clocks[gpu]) if gpu < len(sample.clocks) else 0.0 for sample in box.samples]
        before, after = _both(box, change, clocks)
        if 0 < after <= _CLOCK * before:
            yield f"clock of GPU {gpu}: {before:.0f} MHz before, {after:.0f} since"
    for row in [*failure.by_kernel(box), *box.network]:
        if abs(row.t - change.t) < _NEAR_S:
            yield row.text

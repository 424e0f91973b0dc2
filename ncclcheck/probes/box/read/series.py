"""The samples of a box -> what its node and its ranks did over time, thinned to what can be judged and drawn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ncclcheck.probes.facts import BoxSample

_TICKS, _PAGE_KIB = os.sysconf("SC_CLK_TCK"), 10
_US = 1e6  # microseconds in a second, as the watcher counts
_Raw = dict[str, Any]


def thinned(rows: Sequence[_Raw], most: int) -> list[list[_Raw]]:
    """The rows in groups that follow each other: a sample is what happened from one group's end to the next."""
    step = len(rows) // most + 1
    return [[*rows[at : at + step]] for at in range(0, len(rows), step)]


def samples(groups: Sequence[Sequence[_Raw]]) -> list[BoxSample]:
    """Of the node, and of all processes of the job together."""
    series: list[BoxSample] = []
    before: _Raw = {}
    for group in groups:
        row = group[-1]
        series.append(_sample(before or row, row, group))
        before = row
    return series


def _sample(before: _Raw, row: _Raw, group: Sequence[_Raw]) -> BoxSample:
    passed = max(row["t"] - before["t"], 0.1)
    job = _cores(before, row, passed)
    node, earlier = row.get("node", [0, 0, 0]), before.get("node", [0, 0, 0])
    used, stolen, swapped = (max(0, now - then) for now, then in zip(node, earlier, strict=True))
    received, sent = (_moved(before, row, way) / passed for way in (0, 1))
    cards = row.get("gpus", [])
    return BoxSample(
        t=row["t"],
        rss=sum(rss << _PAGE_KIB for _, _, rss, *_ in row["p"]),
        cores=round(sum(job.values()), 2),
        others=round(max(0.0, used / _TICKS / passed - sum(job.values())), 2),
        stolen=round(stolen / _TICKS / passed, 2),
        sent=round(sent),
        received=round(received),
        unsent=sorted(entry.get("unsent", 0) for entry in group)[len(group) // 2],
        swapped=round(swapped / passed, 1),
        held=round(max(0, row.get("held", 0) - before.get("held", 0)) / _US / passed, 2),
        busy=[_number(card, 0) for card in cards],
        watts=[_number(card, 1, 1000) for card in cards],
        clocks=[_number(card, 2) for card in cards],
    )


def _number(card: Sequence[int | None], at: int, divisor: int = 1) -> int:
    value = card[at] if at < len(card) else None
    return -1 if value is None else value // divisor


def _cores(before: _Raw, row: _Raw, passed: float) -> dict[int, float]:
    """Of each process that was there before too."""
    cpu = {pid: used for pid, used, *_ in before["p"]}
    return {pid: max(0, used - cpu.get(pid, used)) / _TICKS / passed for pid, used, *_ in row["p"]}


def _moved(before: _Raw, row: _Raw, way: int) -> int:
    then = before.get("net", {})
    return sum(max(0, both[way] - then.get(name, both)[way]) for name, both in row.get("net", {}).items())


class OfProcess(NamedTuple):
    """For each sample: cores in use, the share of looks at which it waited for nobody, bytes written a second."""

    cores: list[float]
    apart: list[float]
    wrote: list[int]


def of_process(pid: int, groups: Sequence[Sequence[_Raw]]) -> OfProcess:
    """0 where it was not there."""
    of = OfProcess([], [], [])
    before: _Raw = {}
    for group in groups:
        row = group[-1]
        earlier = before or row
        passed = max(row["t"] - earlier["t"], 0.1)
        of.cores.append(round(_cores(earlier, row, passed).get(pid, 0.0), 2))
        seen = [process[5] for each in group for process in each["p"] if process[0] == pid and len(process) > 5]
        of.apart.append(round(sum(seen) / len(seen), 2) if seen else 0.0)
        now, then = _wrote(row, pid), _wrote(earlier, pid)
        of.wrote.append(round(max(0, now - then) / passed) if now and then else 0)
        before = row
    return of


def _wrote(row: _Raw, pid: int) -> int:
    return next((process[6] for process in row["p"] if process[0] == pid and len(process) > 6), 0)

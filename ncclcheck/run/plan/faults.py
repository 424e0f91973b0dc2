"""`--inject`: the faults that the user wants to see, from words to what the ranks do. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

import msgspec

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.job.context import Injection, Op, Row, TrainingFault

FORMS = (
    "slow-rank=RANK[:20ms], slow-link=NODE-NODE[:20ms], corrupt=RANK, "
    "hang=RANK[@ITERATION], crash=RANK[@ITERATION]"
)
NUMBERED = "RANK as torchrun numbers ranks, NODE by its place in the launcher's order, both from 0"
TRAINING_FORMS = (
    "slow-rank=RANK[:20ms], slow-data=RANK[:20ms], rank-init=RANK, no-sync=RANK, skip-step=RANK[@STEP], "
    "uneven=RANK, leak=RANK, stray=RANK, unused, no-set-epoch, one-file, hang=RANK[@STEP], crash=RANK[@STEP]"
)
# What every rank has a checked result of; the first one that is measured is corrupted.
_CORRUPTED: tuple[Op, ...] = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "scatter", "sendrecv"),
)
_NUMBER = r"(\d{1,6})"
_TIME = r"(?::(\d{1,5}(?:\.\d{1,3})?)(ms|s))?"
_AT = r"(?:@([1-9]\d{0,6}))?"
_USUAL = ("20", "ms")
_OF_BOTH = ("slow-rank", "hang", "crash")
LASTING = ("unused", "no-sync", "no-set-epoch", "uneven")  # a run that goes on must be the same again


def read(given: Iterable[str], *, training: bool = False) -> tuple[str, ...]:
    """The faults of all options, each one understood and one that the command can show. Raises UsageError."""
    faults = tuple(part.strip() for option in given for part in option.split(","))
    for fault in faults:
        kind = _read(fault)[0].kind
        if kind not in _OF_BOTH and (kind in get_args(TrainingFault)) is not training:
            allowed = TRAINING_FORMS if training else FORMS
            raise UsageError(f"--inject {fault}: this command cannot show it; allowed are {allowed}")
    slow = Counter(injection.rank for injection, _ in map(_read, faults) if injection.kind == "slow-rank")
    for rank, times in slow.items():
        if times > 1:
            raise UsageError(f"--inject slow-rank={rank}: given {times} times; allowed is one slow-rank a rank")
    return faults


def injections(faults: Sequence[str], nodes: Sequence[str], ranks: int, rows: Sequence[Row]) -> list[Injection]:
    """What the ranks of this job are to do. Raises UsageError for ranks and nodes that there are not."""
    planned = []
    for fault in faults:
        injection, indexes = _read(fault)
        if injection.rank >= ranks:
            raise UsageError(f"--inject {fault}: there is no rank {injection.rank}; allowed are 0 to {ranks - 1}")
        if indexes and max(indexes) >= len(nodes):
            raise UsageError(
                f"--inject {fault}: there is no node {max(indexes)}; allowed are 0 to {len(nodes) - 1}"
            )
        if indexes:
            injection = Injection(
                kind=injection.kind, nodes=[nodes[index] for index in indexes], seconds=injection.seconds
            )
        if injection.kind == "corrupt":
            injection = Injection(kind=injection.kind, rank=injection.rank, op=_corrupted(fault, rows))
        planned.append(injection)
    return planned


def _corrupted(fault: str, rows: Sequence[Row]) -> Op:
    measured = {row.op for row in rows}
    for op in _CORRUPTED:
        if op in measured:
            return op
    raise UsageError(f"--inject {fault}: needs one of these operations: {', '.join(_CORRUPTED)}")


def _read(fault: str) -> tuple[Injection, list[int]]:
    """The fault, and for a link the numbers of its nodes."""
    for pattern, make in _PATTERNS:
        if (match := re.fullmatch(pattern, fault)) is not None:
            injection, nodes = make(match)
            if len(set(nodes)) == 1:
                raise UsageError(f"--inject {fault}: a link has two different nodes")
            return injection, nodes
    raise UsageError(f"--inject: {fault!r} is not understood; allowed are {FORMS}; in smoke {TRAINING_FORMS}")


def _slow_rank(match: re.Match[str]) -> tuple[Injection, list[int]]:
    return Injection(kind="slow-rank", rank=int(match[1]), seconds=_seconds(match[2], match[3])), []


def _slow_link(match: re.Match[str]) -> tuple[Injection, list[int]]:
    seconds = _seconds(match[3], match[4])
    return Injection(kind="slow-link", seconds=seconds), [int(match[1]), int(match[2])]


def _corrupt(match: re.Match[str]) -> tuple[Injection, list[int]]:
    return Injection(kind="corrupt", rank=int(match[1])), []


def _hang(match: re.Match[str]) -> tuple[Injection, list[int]]:
    return Injection(kind="hang", rank=int(match[1]), iteration=int(match[2] or 1)), []


def _crash(match: re.Match[str]) -> tuple[Injection, list[int]]:
    return Injection(kind="crash", rank=int(match[1]), iteration=int(match[2] or 1)), []


def _training(match: re.Match[str]) -> tuple[Injection, list[int]]:
    kind = msgspec.convert(match[1], TrainingFault)
    return Injection(kind=kind, rank=int(match[2]), iteration=int(match[3] or 1)), []


def _of_all_ranks(match: re.Match[str]) -> tuple[Injection, list[int]]:
    return Injection(kind=msgspec.convert(match[0], TrainingFault)), []


def _slow_data(match: re.Match[str]) -> tuple[Injection, list[int]]:
    return Injection(kind="slow-data", rank=int(match[1]), seconds=_seconds(match[2], match[3])), []


def _seconds(number: str | None, unit: str | None) -> float:
    number, unit = (number, unit) if number and unit else _USUAL
    return float(number) / (1000 if unit == "ms" else 1)


_PATTERNS: tuple[tuple[str, Callable[[re.Match[str]], tuple[Injection, list[int]]]], ...] = (
    (f"slow-rank={_NUMBER}{_TIME}", _slow_rank),
    (f"slow-link={_NUMBER}-{_NUMBER}{_TIME}", _slow_link),
    (f"corrupt={_NUMBER}", _corrupt),
    (f"hang={_NUMBER}{_AT}", _hang),
    (f"crash={_NUMBER}{_AT}", _crash),
    (f"(skip-step)={_NUMBER}{_AT}", _training),
    (f"(rank-init|no-sync|uneven|leak|stray)={_NUMBER}()", _training),
    (f"slow-data={_NUMBER}{_TIME}", _slow_data),
    ("unused|no-set-epoch|one-file", _of_all_ranks),
)

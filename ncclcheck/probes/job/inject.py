"""Faults that the user asked for, so that anybody can see what the report would say of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from ncclcheck.probes.job.context import Context, Injection, Op
from ncclcheck.probes.job.operations import Build, PreparedOperation, Ranks
from ncclcheck.probes.job.verify.exact import bits

_MIB = 2**20  # bytes: a slow link is asked for in seconds a MiB
_FLIPPED = 4  # the bit of one element; the lowest byte, which no type is too narrow for


def iterations(context: Context) -> Callable[[], None]:
    """The tick of a rank before each of its iterations; late, or the last one, where that was asked for."""
    mine = [injection for injection in context.plan.injected if injection.rank == context.rank]
    faults = [injection for injection in mine if injection.kind in ("slow-rank", "hang", "crash")]
    return _Faulty(context.tick, faults) if faults else context.tick


class _Faulty:
    """Counts iterations and does what was asked for."""

    def __init__(self, tick: Callable[[], None], faults: list[Injection]) -> None:
        self._tick, self._faults, self._count = tick, faults, 0

    def __call__(self) -> None:
        self._count += 1
        for fault in self._faults:
            if fault.kind == "slow-rank":
                time.sleep(fault.seconds)
            elif self._count >= fault.iteration:
                _end(fault)
        self._tick()


def _end(fault: Injection) -> None:
    if fault.kind == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(1)


def corrupting(context: Context, op: Op, form: Build) -> Build:
    """The form of an operation; on a rank that is to be corrupted, with one bit of its results flipped."""
    asked = any(
        injection.kind == "corrupt" and (injection.rank, injection.op) == (context.rank, op)
        for injection in context.plan.injected
    )
    return _corrupted(form) if asked else form


def _corrupted(form: Build) -> Build:
    def build(ranks: Ranks, elements: int) -> PreparedOperation:
        work = form(ranks, elements)
        result = work.result
        assert result is not None

        def call() -> None:
            work.call()
            _flip(result)

        return replace(work, call=call)

    return build


def _flip(result: Tensor) -> None:
    bits(result)[result.numel() // 2] ^= 1 << _FLIPPED


def seconds_a_byte(context: Context, peer: int) -> float:
    """By how much later all is sent between this rank's node and that of another one, for each byte."""
    ends = {context.node, context.node_of[peer]}
    slow = (
        injection
        for injection in context.plan.injected
        if injection.kind == "slow-link" and set(injection.nodes) == ends
    )
    return sum(injection.seconds for injection in slow) / _MIB

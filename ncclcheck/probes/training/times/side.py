"""What is measured beside the steps: each aspect is handed over as soon as it is there, or why it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import repeat
from typing import Any

from torch import nn

from ncclcheck.probes.facts import Measurements, replace
from ncclcheck.probes.facts.training import FindUnused, Side, Smoke, UnseenStep
from ncclcheck.probes.job.timing import summary
from ncclcheck.probes.training.equal import norms
from ncclcheck.probes.training.feed import Batch
from ncclcheck.probes.training.loop import TrainingSetting, stream, wrap
from ncclcheck.probes.training.times import buckets, starts
from ncclcheck.probes.training.times.stopwatch import Lap
from ncclcheck.probes.training.times.twin import TwinLoop
from ncclcheck.probes.training.wraps import parallel
from ncclcheck.probes.training.wraps.sharding import Unsupported

# turns of both kinds, steps of each, steps that are not counted: chosen, 24 steps in all
_ROUNDS, _STEPS, _WARM = 2, 5, 2
_NAMED = 20  # unused parameters in a finding, the rest is counted: chosen

# What is looked at, by whom, and the seconds that must be left of the time box.
_Aspect = Callable[[TrainingSetting, Batch], Any]


def run(setting: TrainingSetting) -> None:
    """All ranks take part in each aspect, or none does."""
    aspects: list[tuple[str, _Aspect, float]] = [
        ("communication", buckets.alone, 0.5),
        ("find_unused", find_unused, 1.0),
        ("batch_norms", norms.seen, 0.2),
        ("data_parallel", parallel.seen, 0.2),
        ("workers", starts.seen, 4.0),
    ]
    batch = next(stream(setting))  # one for all of it: loading is timed elsewhere
    for what, look, seconds in aspects:
        setting.context.step(f"training: {what.replace('_', ' ')}")
        _tell(setting, batch, what, look, seconds)


def _tell(setting: TrainingSetting, batch: Batch, what: Any, look: _Aspect, seconds: float) -> None:
    try:
        if setting.left() < seconds:
            raise Unsupported("the time was up")
        part = Side(**{what: look(setting, batch)})
    except Unsupported as reason:
        part = Side(unseen=[UnseenStep(what=what, why=str(reason))])
    if setting.context.rank == 0:
        setting.context.emit(Measurements(smoke=Smoke(side=part)))


def find_unused(setting: TrainingSetting, batch: Batch) -> FindUnused:
    """Steps with the flag and without, in turns. Without it a model with unused parameters does not train."""
    if setting.plan.strategy != "ddp":
        raise Unsupported(f"{setting.plan.strategy} has no find_unused_parameters")
    unused = FindUnused(asked=setting.plan.find_unused, unused=setting.unused[:_NAMED], count=len(setting.unused))
    if setting.unused:
        return unused
    loops = [TwinLoop.of(setting, _wrapped(setting, flag), repeat(batch)) for flag in (True, False)]
    for loop in loops:
        loop.run(_WARM)
    laps: list[list[Lap]] = [[], []]
    for number in (0, 1) * _ROUNDS:
        laps[number] += loops[number].run(_STEPS)
    with_flag, without = (summary(setting.peers.worst([lap.whole for lap in kept])) for kept in laps)
    return replace(unused, with_us=with_flag, without_us=without)


def _wrapped(setting: TrainingSetting, flag: bool) -> nn.Module:
    return wrap(dataclasses.replace(setting, plan=replace(setting.plan, find_unused=flag)), setting.fresh_model())

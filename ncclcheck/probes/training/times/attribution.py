"""Where the time of a step goes: steps with collectives and without them in turns, then one rank at a time."""

from __future__ import annotations

from dataclasses import dataclass

from ncclcheck.probes.facts import Measurements
from ncclcheck.probes.facts.training import Side, Smoke, StepTimes, UnseenStep
from ncclcheck.probes.training.equal.state import bytes_of_tensors
from ncclcheck.probes.training.loop import TrainingSetting, wrap
from ncclcheck.probes.training.times.stopwatch import Lap, timed
from ncclcheck.probes.training.times.twin import TwinLoop, slowest, solo, turns

# steps that are not counted: DDP rebuilds its buckets in the first, allocators and clocks settle; chosen
_WARM = 5
_ROUNDS = 2  # of both kinds in turns, so that drift hits both: chosen
_LEAST, _MOST = 3, 15  # steps of a round
_SOLO_STEPS = 6  # of one rank alone, whose median counts: chosen
_MOST_TURNS = 64  # ranks one after the other: chosen, more takes longer than the rest of the run
_SHARE = 0.4  # of the time that is left


def run(setting: TrainingSetting) -> None:
    """Every rank hands over its own steps."""
    memory, context = setting.context.memory, setting.context
    context.step("training: steps with collectives and without")
    memory.mark("before_wrap")
    full = TwinLoop.of(setting, wrap(setting, setting.fresh_model()))
    memory.mark("after_wrap")
    twin = TwinLoop.of(setting, setting.fresh_model())
    budget = _SHARE * setting.left()
    plan = _plan(setting, budget, full.run(_WARM), twin.run(_WARM))
    both = _in_turns(setting, full, twin, plan.steps)
    alone = _alone(setting, twin, plan)
    times = StepTimes(
        rank=context.rank,
        node=context.node,
        device=str(setting.device),
        steps=len(both[0]),
        samples=full.samples,
        full=timed(both[0]),
        twin=timed(both[1]),
        solo=timed(alone) if alone else None,
    )
    context.emit(Measurements(smoke=Smoke(steps=[times])))


@dataclass(frozen=True)
class _Plan:
    """Steps of a round; solo: of each rank alone, 0 where the time does not allow it."""

    steps: int
    solo: int


def _plan(setting: TrainingSetting, budget: float, full: list[Lap], twin: list[Lap]) -> _Plan:
    """The same on all ranks: it rests on numbers that they have exchanged."""
    a_step, a_twin = slowest(setting, full), slowest(setting, twin)
    alone = turns(setting) * _SOLO_STEPS * a_twin
    fits = turns(setting) <= _MOST_TURNS and alone < budget / 2 and not setting.called
    steps = int((budget - alone * fits) / (_ROUNDS * max(a_step + a_twin, 1e-6)))
    most = min(_MOST, max(_LEAST, setting.plan.steps // _ROUNDS))
    return _Plan(max(_LEAST, min(most, steps)), _SOLO_STEPS if fits else 0)


def _in_turns(setting: TrainingSetting, full: TwinLoop, twin: TwinLoop, steps: int) -> tuple[list[Lap], list[Lap]]:
    """What else the machine does meanwhile hits both kinds alike."""
    memory = setting.context.memory
    memory.begin_steps()
    memory_before, kept, laps = memory.now(), bytes_of_tensors(), (list[Lap](), list[Lap]())
    for _ in range(_ROUNDS):
        laps[0].extend(full.run(steps))
        laps[1].extend(twin.run(steps))
    # What kernels and allocators keep for themselves grows as well for a while; a leak is held by an object.
    memory.count(min(memory.now() - memory_before, bytes_of_tensors() - kept), 2 * _ROUNDS * steps)
    memory.end_steps()
    return laps


def _alone(setting: TrainingSetting, twin: TwinLoop, plan: _Plan) -> list[Lap]:
    if plan.solo:
        setting.context.step("training: one rank of each node at a time")
        return solo(twin, plan.solo)
    if setting.context.rank == 0:
        why = f"{turns(setting)} ranks on a node, one after the other, take longer than the time that is left"
        if setting.called:
            why = f"no rank can train alone: the model or the loss calls {setting.called[0]} itself"
        setting.context.emit(Measurements(smoke=Smoke(side=Side(unseen=[UnseenStep(what="solo", why=why)]))))
    return []

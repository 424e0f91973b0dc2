"""The training smoke run, inside the job on every rank: its parts in their order, within the time box."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ncclcheck.probes.facts import Measurements
from ncclcheck.probes.facts.data.resources import Pickled
from ncclcheck.probes.facts.training import Checks, Setup, Smoke
from ncclcheck.probes.job.context import Context

if TYPE_CHECKING:
    from ncclcheck.probes.training.loop import TrainingSetting

# Each is a module with `run(setting)`.
_PARTS = ("equal.checks", "saves.checkpoint", "saves.merge", "times.attribution", "times.side", "saves.sharded")
_ZERO3 = ("zero3", "saves.checkpoint", "saves.merge")


def run(context: Context) -> Callable[[], None] | None:
    """All parts; of a job that goes on from a checkpoint, only that.

    What comes back kills a rank, once the caller has told all: the next job goes on from the checkpoint.
    """
    from ncclcheck.probes.training import loop  # noqa: PLC0415 - torch takes seconds
    from ncclcheck.probes.training.course import unreduced  # noqa: PLC0415 - torch takes seconds
    from ncclcheck.probes.training.saves import places, resume  # noqa: PLC0415 - torch takes seconds

    setting = loop.make(context)
    if context.rank == 0:
        checks = Checks(before_wrap=setting.apart, entered=setting.parted) if setting.stopped else None
        context.emit(Measurements(smoke=Smoke(setup=_setup(setting), checks=checks)))
    if context.rank == 0 and setting.plan.spawned and not setting.plan.resume and not setting.builtin:
        context.emit(Measurements(pickled=_pickled(setting)))
    if setting.stopped:
        return None
    if setting.plan.resume:
        resume.resumed(setting)
        return None
    with unreduced.named(setting.model):
        _parts(setting)
    if setting.plan.kill:
        return resume.interrupted(setting)
    places.unseen(setting, "resume", "--no-kill was given")
    places.remove(setting)
    return None


def _parts(setting: TrainingSetting) -> None:
    for name in _ZERO3 if setting.plan.strategy == "zero3" else _PARTS:
        importlib.import_module(f"{__name__}.{name}").run(setting)


def _pickled(setting: TrainingSetting) -> list[Pickled]:
    """The user's model and dataset, weighed as arguments of mp.spawn."""
    from ncclcheck.probes.dataloader.rates import weigh  # noqa: PLC0415 - torch takes seconds

    setting.context.step("training: weigh model and data as arguments of mp.spawn")
    things = {"model": setting.model, "dataset": setting.feed.loader.dataset}
    return [weigh.pickled(what, thing, keep_locks=True) for what, thing in things.items()]


def _setup(setting: TrainingSetting) -> Setup:
    plan = setting.plan
    return Setup(
        model=plan.model,
        data=plan.data or plan.model,
        strategy=plan.strategy,
        precision=plan.precision,
        steps=plan.steps,
        batch=(setting.feed.loader.batch_size or 0) * plan.accumulate,
        accumulate=plan.accumulate,
        find_unused=plan.find_unused,
        parameters=sum(parameter.numel() for parameter in setting.model.parameters()),
    )

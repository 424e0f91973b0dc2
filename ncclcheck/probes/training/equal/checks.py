"""The checks of the training run, in the order in which one explains the next; told as soon as each is made."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ncclcheck.probes.facts import Measurements
from ncclcheck.probes.facts.training import Checks, Smoke, Unchecked
from ncclcheck.probes.training.equal import equality, reference, rows, streams
from ncclcheck.probes.training.equal.own import own_step, variables
from ncclcheck.probes.training.loop import TrainingSetting, wrap
from ncclcheck.probes.training.saves import own_checkpoint

_SHARE = 0.5  # of the time box; the rest is for what is measured after the checks

Check = Callable[[TrainingSetting], Checks]


def run(setting: TrainingSetting) -> None:
    """All of them, as far as time allows."""
    trained = _SharedModel()
    named: list[tuple[str, str, Check]] = [
        ("before_wrap", "weights before the wrap", equality.before_wrap),
        ("lengths", "batches of ranks", rows.lengths),
        ("samples", "samples and their order", rows.samples),
        ("unused", "parameters without a gradient", streams.unused),
        ("gradients", "gradients against one process", reference.one_batch),
        ("trained", "steps, parameters compared over ranks", trained.steps),
        *([("own_step", "the given step", own_step.seen)] if setting.plan.step else []),
        *([("own_checkpoint", "the given save and load", own_checkpoint.seen)] if setting.plan.save else []),
        ("accumulation", "gradients of micro-batches", reference.accumulation),
        ("metric", "a metric summed up over ranks", trained.metric),
        ("generators", "random generators", streams.generators),
        ("fixed_batch", "one batch again and again", equality.fixed_batch),
    ]
    for name, words, check in named:
        if setting.share_left() < 1 - _SHARE:
            _tell(
                setting,
                Checks(unchecked=[Unchecked(check=name, why="the time box was used up before", late=True)]),
            )
            continue
        if setting.parted is not None and name == "own_checkpoint":
            why = "ranks enter different collectives in the given step (TRN028)"
            _tell(setting, Checks(unchecked=[Unchecked(check=name, why=why)]))
            continue
        setting.context.step(f"training: {words}")
        with variables.anew(setting.globals_begun):  # some checks let the step run on one rank alone
            checks = check(setting)
        _tell(setting, checks)


class _SharedModel:
    """The model that two of the checks share."""

    def __init__(self) -> None:
        self._model: nn.Module | None = None

    def steps(self, setting: TrainingSetting) -> Checks:
        """Train it."""
        self._model = wrap(setting, setting.fresh_model())
        return equality.trained(setting, self._model)

    def metric(self, setting: TrainingSetting) -> Checks:
        """Look at its loss."""
        if self._model is None:
            return Checks(unchecked=[Unchecked(check="metric", why="nothing was trained")])
        return streams.metric(setting, self._model)


def _tell(setting: TrainingSetting, checks: Checks) -> None:
    """What all ranks know is told once."""
    if setting.peers.rank == 0:
        setting.context.emit(Measurements(smoke=Smoke(checks=checks)))

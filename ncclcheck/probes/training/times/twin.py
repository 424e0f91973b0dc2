"""The same steps with collectives and without: only the twin without them shows what a rank's own work takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from ncclcheck.probes.job.operations import barrier
from ncclcheck.probes.training.feed import Batch, samples_of
from ncclcheck.probes.training.loop import TrainingSetting, stream, train_step
from ncclcheck.probes.training.times.stopwatch import Lap, Stopwatch


@dataclass
class TwinLoop:
    """A model with its optimizer and batches, wrapped or bare, that is trained step by step."""

    setting: TrainingSetting
    model: nn.Module
    optimizer: Optimizer
    batches: Iterator[Batch]
    samples: int = 0  # of the last step's micro-batches together

    @classmethod
    def of(cls, setting: TrainingSetting, model: nn.Module, batches: Iterator[Batch] | None = None) -> TwinLoop:
        """Ready for its first step; on the batches of the setting unless others are given."""
        return cls(setting, model, setting.optimizer(model), stream(setting) if batches is None else batches)

    def run(self, steps: int) -> list[Lap]:
        """So many steps. All ranks begin together."""
        barrier(self.setting.device)
        return self.steps(steps)

    def steps(self, count: int) -> list[Lap]:
        """So many steps, now."""
        watch, laps = Stopwatch(self.setting.device), []
        for _ in range(count):
            self.samples = 0
            watch.start()
            train_step(self.setting, self.model, self.optimizer, self._counted(), timer=watch)
            laps.append(watch.lap())
        return laps

    def _counted(self) -> Iterator[Batch]:
        for batch in self.batches:
            self.samples += samples_of(batch)
            yield batch


def slowest(setting: TrainingSetting, laps: Sequence[Lap]) -> float:
    """Seconds of a step on the slowest rank, each at its best; all ranks get the same answer."""
    return setting.peers.worst([min(lap.whole for lap in laps)])[0]


def turns(setting: TrainingSetting) -> int:
    """How many ranks the fullest node has."""
    return max(Counter(setting.context.node_of).values())


def solo(twin: TwinLoop, steps: int) -> list[Lap]:
    """Steps of this rank while the others of its node rest: one after the other, on all nodes at once."""
    context, laps = twin.setting.context, list[Lap]()
    before = context.node_of[: context.rank].count(context.node)
    for turn in range(turns(twin.setting)):
        barrier(twin.setting.device)
        if turn == before:
            laps = twin.steps(steps)
    barrier(twin.setting.device)
    return laps

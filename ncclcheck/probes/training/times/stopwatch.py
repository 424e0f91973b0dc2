"""Times the parts of training steps, with the host's clock on CPUs and with events on GPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from ncclcheck.probes.facts.training import Phases, Timed
from ncclcheck.probes.job.peers.lateness import SCHEDSTAT, runqueues
from ncclcheck.probes.job.timing import summary

_FIELDS = {
    "data": "data",
    "to device": "to_device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
}


@dataclass(frozen=True)
class Lap:
    """One step of this rank, seconds. core: in which a thread could have run and had no core."""

    parts: dict[str, float]
    core: float

    @property
    def whole(self) -> float:
        """The whole step."""
        return sum(self.parts.values())


@dataclass
class Stopwatch:
    """Handed to `train_step` as its timer; `lap` after each step."""

    device: torch.device
    _marks: list[tuple[str, Any]] = field(default_factory=list)
    _waited: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """Before a step: what came before it does not count."""
        self._marks, self._waited = [], runqueues()

    def __call__(self, part: str) -> None:
        """A part begins."""
        self._marks.append((part, self._now()))

    def lap(self) -> Lap:
        """The step is over, on the GPU as well."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        parts = dict.fromkeys(_FIELDS, 0.0)
        for (part, begin), (_, end) in pairwise(self._marks):
            parts[part] += self._between(begin, end)
        return Lap(parts, self._without_a_core())

    def _without_a_core(self) -> float:
        """Of the thread that waited longest: threads that wait at the same time do not add up."""
        return max((now - self._waited.get(task, 0.0) for task, now in runqueues().items()), default=0.0)

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1e3 if self.device.type == "cuda" else float(end - begin)


def timed(laps: Sequence[Lap]) -> Timed:
    """Medians over steps."""
    own = [lap.whole - min(max(lap.core, 0.0), 0.9 * lap.whole) for lap in laps]
    parts = {name: median(lap.parts[part] for lap in laps) * 1e6 for part, name in _FIELDS.items()}
    return Timed(
        step_us=summary([lap.whole for lap in laps]),
        own_us=summary(own),
        phases=Phases(**parts),
        core_us=max(0.0, median(lap.core for lap in laps)) * 1e6 if SCHEDSTAT.exists() else None,
    )

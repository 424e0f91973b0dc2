"""Whether a step sets the seed of a random generator itself: to the same in each step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ncclcheck.probes.training.equal.seeds import SEED, seed_all, states

_LEAST_STEPS = 3  # that must end alike: two could by a schedule of seeds


@dataclass
class ReseededSteps:
    """Before each step every generator gets a seed of its own, other ones on other ranks: what then ends a step in
    a known state was set by the step. device, rank: of this process.
    """

    device: torch.device
    rank: int
    _steps: int = 0
    _ends: dict[str, list[str]] = field(default_factory=dict)

    def begin(self) -> None:
        """A step is about to begin."""
        self._steps += 1
        seed_all(SEED + 1009 * self._steps + 100_003 * (1 + self.rank))

    def end(self) -> None:
        """It ended."""
        for name, state in states(self.device).items():
            self._ends.setdefault(name, []).append(state)

    def always(self) -> list[str]:
        """The generators that are in the same state after each step."""
        return [name for name, ends in self._ends.items() if len(ends) >= _LEAST_STEPS and len({*ends}) == 1]

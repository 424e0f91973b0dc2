"""What the training smoke run saw: its setup, its checks, the time of its steps, its saves."""

from __future__ import annotations

from ncclcheck.probes.facts.training.checks import Checks
from ncclcheck.probes.facts.training.saves import Saves
from ncclcheck.probes.facts.training.setup import Setup
from ncclcheck.probes.facts.training.smoke import Smoke
from ncclcheck.probes.facts.training.steps import Side, StepTimes

__all__ = ["Checks", "Saves", "Setup", "Side", "Smoke", "StepTimes"]

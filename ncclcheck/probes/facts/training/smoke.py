"""All that the smoke run saw, told in parts."""

from __future__ import annotations

from msgspec import Struct, field

from ncclcheck.probes.facts.training.checks import Checks
from ncclcheck.probes.facts.training.saves import Saves
from ncclcheck.probes.facts.training.settings import SettingsFile
from ncclcheck.probes.facts.training.setup import Setup
from ncclcheck.probes.facts.training.steps import Side, StepTimes


class Smoke(Struct, frozen=True, kw_only=True):
    """The training run; None: not reached."""

    setup: Setup | None = None
    checks: Checks | None = None
    saves: Saves | None = None
    side: Side | None = None
    steps: list[StepTimes] = field(default_factory=list)
    settings: list[SettingsFile] = field(default_factory=list)

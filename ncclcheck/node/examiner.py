"""What an agent starts to look at the user's dataset: user code runs in this process and its children only."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ncclcheck.base import wire
from ncclcheck.node.agent_socket import RUN_VARIABLE, Mouth
from ncclcheck.probes.facts import Measurements
from ncclcheck.probes.facts.data import DataReport
from ncclcheck.probes.job import warned
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.probes.machine.process import die_with_parent


def main() -> None:
    """Examine what the plan names, and tell every aspect as soon as it is known."""
    die_with_parent()
    folder = os.environ.pop(RUN_VARIABLE)
    plan = replace(msgspec.json.decode(Path(folder, "plan.json").read_bytes(), type=DataPlan), scratch=folder)
    mouth = Mouth(folder)
    mouth.say(wire.StepNotice(text="import torch"))
    from ncclcheck.probes import dataloader  # noqa: PLC0415 - it imports torch

    warned.only_shown()

    def emit(report: DataReport) -> None:
        mouth.say(wire.RankResult(part=Measurements(data=[report])))

    os.chdir(plan.directory)
    dataloader.examine(plan, lambda text: mouth.say(wire.StepNotice(text=text)), emit)


if __name__ == "__main__":
    main()

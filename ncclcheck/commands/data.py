"""`ncclcheck data`: the user's dataset examined on every node, in processes of its own, then the verdict."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import msgspec

from ncclcheck.base import wire
from ncclcheck.launch.given import must_be_here, working_directory
from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import State
from ncclcheck.run.conduct import conduct
from ncclcheck.run.own_command import OwnCommand
from ncclcheck.run.plan import data_plan
from ncclcheck.run.plan.data_plan import DataOptions
from ncclcheck.run.plan.options import Options
from ncclcheck.run.stages import Stages, report_time

# The verdict is about the dataset, not about the machine that it is tried on; `--only` says otherwise.
_JUDGED = ("DAT", "RUN")


def run(options: Options, data: DataOptions) -> int:
    """The whole of `data`; the exit code. Raises UsageError."""

    if options.from_file is None:
        must_be_here("FACTORY", data.factory)

    def work(stages: Stages) -> tuple[Callable[[], None], Callable[[], Cluster]]:
        def stages_of_data() -> None:
            stages.facts()
            examine(stages, data)

        return stages_of_data, stages.cluster

    options = dataclasses.replace(options, only=options.only or _JUDGED)
    own = OwnCommand(data=data_plan.named(data, directory=working_directory()), nproc_per_node=data.nproc_per_node)
    return conduct(options, options.deadline or data_plan.default_deadline(data), work, own=own)


def examine(stages: Stages, data: DataOptions) -> None:
    """Let every node examine the dataset; what was told counts, whatever happens later. Raises Interrupted."""
    nodes, session = dict(stages.indexed()), stages.session
    seconds = max(1.0, stages.deadline.left - report_time(stages.deadline) - 2.0)
    stages.progress.say(
        f"{data.factory} on {len(nodes)} node{'s' * (len(nodes) > 1)}; the factory's own time, then up to "
        f"{min(data_plan.stated_seconds(data), seconds):.0f} s; ends within {stages.deadline.left:.0f} s"
    )
    with stages.stage("data", "examining the dataset") as outcome:
        plans = {index: data_plan.plan(data, nodes, index, directory=os.getcwd()) for index in nodes}
        session.examine(
            {
                index: wire.Examine(plan=msgspec.Raw(msgspec.json.encode(plan)), seconds=seconds)
                for index, plan in plans.items()
            },
            seconds + 2.0,
        )
        if silent := session.gathered.silent_of_examination:
            outcome.state, outcome.reason = State.UNKNOWN, f"no end was reported by {', '.join(silent)}"

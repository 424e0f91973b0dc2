"""`ncclcheck smoke`: a small DDP training run over all nodes, killed and resumed, then the verdict."""

from __future__ import annotations

import os
from collections.abc import Callable

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.given import must_be_here, working_directory
from ncclcheck.node import rundir
from ncclcheck.probes.facts import Cluster, Measurements, replace
from ncclcheck.probes.facts.training import Smoke
from ncclcheck.probes.facts.training.settings import SettingsFile
from ncclcheck.probes.training.saves import settings_files
from ncclcheck.run.conduct import conduct
from ncclcheck.run.jobs import TorchJob
from ncclcheck.run.own_command import OwnCommand
from ncclcheck.run.plan import faults, smoke_plan
from ncclcheck.run.plan.options import Options
from ncclcheck.run.plan.smoke_plan import SmokeOptions
from ncclcheck.run.stages import Stages


def run(options: Options, smoke: SmokeOptions) -> int:
    """The whole of `smoke`; the exit code. Raises UsageError."""
    settings = _read_settings(smoke)
    for option, reference in (
        ("--model", smoke.model),
        ("--data", smoke.data),
        ("--loss", smoke.loss),
        ("--step", smoke.step),
        ("--checkpoint-save", smoke.save),
        ("--checkpoint-load", smoke.load),
    ):
        must_be_here(option, reference)

    def work(stages: Stages) -> tuple[Callable[[], None], Callable[[], Cluster]]:
        this = TorchJob(stages, smoke)
        stages.session.gathered.parts.append(Measurements(smoke=Smoke(settings=settings)))

        def stages_of_smoke() -> None:
            stages.facts()
            stages.reach()
            train(this, smoke)

        return stages_of_smoke, this.cluster

    own = OwnCommand(
        training=smoke_plan.training(smoke, directory=working_directory()),
        nproc_per_node=smoke.nproc_per_node,
        injected=bool(smoke.inject),
        begin=smoke.begin,
    )
    return conduct(options, options.deadline or smoke_plan.default_deadline(smoke), work, own=own)


def _read_settings(smoke: SmokeOptions) -> list[SettingsFile]:
    try:
        return settings_files.read_all(smoke.settings)
    except settings_files.NoSettings as error:
        raise UsageError(f"--settings: {error}") from None


def train(job: TorchJob, smoke: SmokeOptions) -> None:
    """Train, and go on from the checkpoint after a rank was killed, in a job of its own on a new store."""
    if (shape := job.prepare("smoke")) is None:
        return
    smoke_plan.refuse_strategy(smoke, [*job.members.values()])
    parts = smoke_plan.job(smoke, shape, [*job.members.values()], directory=os.getcwd(), run_id=job.run_id)
    job.announce(smoke_plan.stated_seconds(smoke))
    try:
        if job.run("smoke", parts) and _was_interrupted(job) and parts.training is not None:
            lasting = [injection for injection in parts.injected if injection.kind in faults.LASTING]
            again = replace(parts, training=replace(parts.training, resume=True), injected=lasting)
            job.run("resume", again, only=("smoke",))
    finally:
        job.session.stop_job()  # after Ctrl-C ranks may still write
        if parts.training is not None:
            rundir.remove_scratch(parts.training.run_folder)


def _was_interrupted(job: TorchJob) -> bool:
    """Whether a checkpoint was left to go on from."""
    smoke = job.session.gathered.measurements().smoke
    saves = smoke.saves if smoke else None
    return saves is not None and saves.interrupted is not None and saves.resumed is None

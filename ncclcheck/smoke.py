"""`ncclcheck smoke`: a small DDP training run over all nodes, killed and resumed, then the verdict."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder

from ncclcheck import faults, plan_smoke, rundir
from ncclcheck.conduct import conduct
from ncclcheck.errors import UsageError
from ncclcheck.jobs import TorchJob
from ncclcheck.options import Options
from ncclcheck.own_command import OwnCommand, here
from ncclcheck.plan_smoke import SmokeOptions
from ncclcheck.probes import training_settings
from ncclcheck.probes.facts import Cluster, Measurements, replace
from ncclcheck.probes.facts.training import Smoke
from ncclcheck.probes.facts.training.settings import SettingsFile
from ncclcheck.stages import Stages


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
        training=plan_smoke.training(smoke, directory=here()),
        nproc_per_node=smoke.nproc_per_node,
        injected=bool(smoke.inject),
    )
    return conduct(options, options.deadline or plan_smoke.default_deadline(smoke), work, own=own)


def _read_settings(smoke: SmokeOptions) -> list[SettingsFile]:
    try:
        return training_settings.read_all(smoke.settings)
    except training_settings.Unreadable as error:
        raise UsageError(f"--settings: {error}") from None


def must_be_here(option: str, reference: str) -> None:
    """Look for the user's file or module, but run nothing of it. Raises UsageError."""
    place, colon, _ = reference.partition(":")
    if not colon:
        return
    if place.endswith(".py"):
        if not os.path.isfile(place):
            raise UsageError(f"{option} {reference}: there is no file {place}")
    elif PathFinder.find_spec(place.partition(".")[0], [os.getcwd(), *sys.path]) is None:
        raise UsageError(
            f"{option} {reference}: there is no module {place}, neither here nor among those installed"
        )


def train(job: TorchJob, smoke: SmokeOptions) -> None:
    """Train, and go on from the checkpoint after a rank was killed, in a job of its own on a new store."""
    if (shape := job.prepare("smoke")) is None:
        return
    plan_smoke.refuse_strategy(smoke, [*job.members.values()])
    parts = plan_smoke.job(smoke, shape, [*job.members.values()], directory=os.getcwd(), run_id=job.run_id)
    job.announce(plan_smoke.stated_seconds(smoke))
    try:
        if job.run("smoke", parts) and _was_interrupted(job) and parts.training is not None:
            lasting = [one for one in parts.injected if one.kind in faults.LASTING]
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

"""One rank of a real gloo job that checks several trainings:

python -m tests.jobs.training_job RANK WORLD FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from ncclcheck.probes import training
from ncclcheck.probes.facts import Cluster, Job, Measurements, Node, RankState, Run, together
from ncclcheck.probes.facts.training import Checks, Setup, Smoke
from ncclcheck.probes.job.context import Context, Injection, JobPlan, TrainingPlan
from ncclcheck.probes.job.usage.memory import MemoryWatch
from ncclcheck.probes.training import loop
from ncclcheck.probes.training.equal import checks

ROOT = Path(__file__).parents[2]


class Case(msgspec.Struct, kw_only=True):
    """A training, and the faults of it. whole: all of the run, not the checks alone."""

    name: str
    plan: TrainingPlan
    injected: list[Injection] = []
    whole: bool = False


class Outcome(msgspec.Struct, kw_only=True):
    """What one rank handed over; digest: of its model after some steps."""

    name: str
    told: Measurements
    steps: list[str] = []
    digest: str = ""


def measure(case: Case, rank: int, world: int) -> Outcome:
    """Make the setting and check it, as the smoke run does."""
    parts: list[Measurements] = []
    steps: list[str] = []
    if case.whole:
        training.run(context(case, rank, world, parts, steps))
        return Outcome(name=case.name, told=together(parts), steps=steps)
    setting = loop.make(context(case, rank, world, parts, steps))
    if setting.stopped:
        measurements = Measurements(smoke=Smoke(checks=Checks(before_wrap=setting.apart, entered=setting.parted)))
        return Outcome(name=case.name, told=measurements, steps=steps)
    checks.run(setting)
    model = loop.wrap(setting, setting.fresh_model())
    optimizer, batches = setting.optimizer(model), loop.stream(setting)
    for _ in range(2):
        loop.train_step(setting, model, optimizer, batches)
    return Outcome(name=case.name, told=together(parts), steps=steps, digest=loop.digest(model))


def context(case: Case, rank: int, world: int, parts: list[Measurements], steps: list[str]) -> Context:
    """As worker.py makes it: two ranks a node."""
    return Context(
        rank=rank,
        local_rank=rank % 2,
        world_size=world,
        node=f"sim{rank // 2}",
        node_of=[f"sim{number // 2}" for number in range(world)],
        nodes=(world + 1) // 2,
        backend="gloo",
        device=torch.device("cpu"),
        plan=JobPlan(training=case.plan, injected=case.injected),
        deadline=time.monotonic() + 200,
        step=steps.append,
        tick=lambda: None,
        emit=parts.append,
        done=lambda: None,
        memory=MemoryWatch(torch.device("cpu")),
    )


def outcomes_of(cases: list[Case], world: int) -> dict[str, list[Outcome]]:
    """What the ranks of a job over all cases handed over, by case."""
    with TemporaryDirectory() as folder:
        Path(folder, "cases.json").write_bytes(msgspec.json.encode(cases))
        command = [sys.executable, "-m", "tests.jobs.training_job"]
        env = os.environ | {"WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(world), folder],
                stderr=subprocess.PIPE,
                cwd=ROOT,
                env=env | {"RANK": str(rank)},
            )
            for rank in range(world)
        ]
        try:
            errors = [rank.communicate(timeout=280)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * world, b"\n".join(errors).decode()
        texts = [Path(folder, f"{rank}.json").read_bytes() for rank in range(world)]
    outcomes = [msgspec.json.decode(text, type=list[Outcome]) for text in texts]
    return {ranks[0].name: [*ranks] for ranks in zip(*outcomes, strict=True)}


def cluster_of(case: Case, world: int, measurements: Measurements) -> Cluster:
    """What the rules are given."""
    plan = case.plan
    setup = Setup(
        model=plan.model,
        data=plan.data or plan.model,
        strategy=plan.strategy,
        precision=plan.precision,
        steps=plan.steps,
        batch=plan.batch,
        find_unused=plan.find_unused,
    )
    assert measurements.smoke
    smoke = measurements.smoke if case.whole else Smoke(setup=setup, checks=measurements.smoke.checks)
    return Cluster(
        command="smoke",
        nodes=[Node(name=f"sim{number}") for number in range((world + 1) // 2)],
        job=Job(ranks=world, backend="gloo"),
        run=Run(ranks=[RankState(rank=rank, node=f"sim{rank // 2}") for rank in range(world)], started_job=True),
        measurements=Measurements(smoke=smoke),
    )


def main() -> None:
    """Join the world, check all cases, leave the outcomes in FOLDER/RANK.json."""
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    cases = msgspec.json.decode((folder / "cases.json").read_bytes(), type=list[Case])
    outcomes = [measure(case, rank, world) for case in cases]
    (folder / f"{rank}.json").write_bytes(msgspec.json.encode(outcomes))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

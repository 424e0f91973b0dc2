"""Real gloo ranks time their training steps: healthy ones warn of nothing, each defect is named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import torch

from ncclcheck.probes.facts import Cluster, Job, Node, RankMemory, together
from ncclcheck.probes.facts.training import Side, StepTimes
from ncclcheck.probes.job.context import Injection, TrainingPlan
from ncclcheck.probes.training.wraps import parallel
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.conftest import ROOT
from tests.helpers import fake_nvml
from tests.jobs.steps_job import Case, Outcome

BAD = (State.FAIL, State.WARN)
SHORT = TrainingPlan(steps=12, budget_s=60.0)
RULES = [rule for rule in all_rules() if rule.code.startswith("MEM") or "TRN019" <= rule.code <= "TRN025"]


class Ran:
    """What a job handed over and what the rules say of it."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        measurements = together([outcome.part for outcome in outcomes])
        assert measurements.smoke
        self.steps: list[StepTimes] = sorted(measurements.smoke.steps, key=lambda step: step.rank)
        self.side = measurements.smoke.side or Side()
        self.memory: list[RankMemory] = sorted(measurements.memory.ranks, key=lambda rank: rank.rank)
        nodes = sorted({step.node for step in self.steps})
        job = Job(ranks=len(self.steps), nodes_asked=len(nodes), nodes_answered=len(nodes), backend="gloo")
        cluster = Cluster(command="smoke", nodes=[Node(name=n) for n in nodes], job=job, measurements=measurements)
        self.findings: dict[str, list[Finding]] = {v.code: v.findings for v in judge(cluster, RULES)}

    @property
    def bad(self) -> dict[str, set[int | None]]:
        """Code -> the ranks that failures and warnings name."""
        ranks_of = {
            code: {f.where.rank for f in all_of if f.state in BAD} for code, all_of in self.findings.items()
        }
        return {code: ranks for code, ranks in ranks_of.items() if ranks}


def train(case: Case, *environments: dict[str, str]) -> Ran:
    """The job, a process a rank."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = [{**os.environ, **more} for more in environments or [{}] * len(case.node_of)]
    with TemporaryDirectory() as folder:
        Path(folder, "case.json").write_bytes(msgspec.json.encode(case))
        world = len(case.node_of)
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.jobs.steps_job", str(rank), str(world), port, folder],
                stderr=subprocess.PIPE, cwd=ROOT, env=env[rank],
            )
            for rank in range(world)
        ]  # fmt: skip
        try:
            errors = [rank.communicate(timeout=115)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * world, b"\n".join(errors).decode()
        texts = [Path(folder, f"{rank}.json").read_bytes() for rank in range(world)]
    return Ran([msgspec.json.decode(text, type=Outcome) for text in texts])


@pytest.mark.nightly
def test_two_healthy_ranks() -> None:
    """Nothing is bad; every aspect was seen, and the parts of a step are where they should be."""
    ran = train(Case(plan=TrainingPlan(budget_s=60.0), node_of=["a", "a"], side=True))
    assert ran.bad == {}
    assert [part.what for part in ran.side.unseen] == ["workers"]  # of the built-in data nothing is to be learned
    assert ran.side.communication
    assert sum(ran.side.communication.buckets) == 4 * 417_344
    for step in ran.steps:
        assert (step.steps, step.samples, step.device) == (20, 8, "cpu")
        assert step.full
        assert step.twin
        assert step.solo
        assert step.full.phases.backward > step.twin.phases.backward
        assert step.twin.phases.backward > step.twin.phases.optimizer > 0
    for memory in ran.memory:
        assert memory.before_wrap
        assert memory.in_steps
        assert memory.peak
        assert memory.before_wrap <= memory.in_steps <= memory.peak
        assert memory.iterations == 40


@pytest.mark.nightly
def test_four_healthy_ranks_that_share_cores() -> None:
    """However much they take each other's cores, that is nobody's fault."""
    ran = train(Case(plan=SHORT, node_of=["a"] * 4))
    assert ran.bad == {}
    solo = [step.solo.step_us.p50 for step in ran.steps if step.solo]
    assert len(solo) == 4
    if len(os.sched_getaffinity(0)) == 2:
        assert [(f.state, f.where.node, f.where.rank) for f in ran.findings["TRN020"]] == [(State.NOTE, "a", None)]


@pytest.mark.parametrize("node_of", [["a", "a"], pytest.param(["a", "a", "b", "b"], marks=pytest.mark.nightly)])
def test_the_rank_that_is_slow_in_backward_is_named(node_of: list[str]) -> None:
    """+50 ms there, which DDP makes all ranks wait for."""
    slow = Injection(kind="slow-rank", rank=1, seconds=0.05)
    ran = train(Case(plan=SHORT, node_of=node_of, injected=[slow]))
    assert ran.bad == {"TRN020": {1}}
    finding = next(candidate for candidate in ran.findings["TRN020"] if candidate.state in BAD)
    assert "most of it lost in the backward pass" in finding.what
    backward = [step.full.phases.backward for step in ran.steps if step.full]
    assert max(backward) < 1.5 * min(backward), "DDP hides it"


@pytest.mark.nightly
def test_a_slow_loader_and_a_leak_are_named() -> None:
    """Each on a rank of its own."""
    faults = [Injection(kind="slow-data", rank=0, seconds=0.05), Injection(kind="leak", rank=1)]
    ran = train(Case(plan=SHORT, node_of=["a", "a"], injected=faults))
    assert ran.bad == {"TRN019": {0}, "MEM006": {1}}
    assert "ncclcheck smoke --steps 500" in ran.findings["MEM006"][0].remedies[0].commands


def test_a_stray_tensor_is_named() -> None:
    """704 MiB more than the other rank."""
    ran = train(Case(plan=SHORT, node_of=["a", "a"], injected=[Injection(kind="stray", rank=1)]))
    assert ran.bad["MEM005"] == {1}


@pytest.mark.nightly
def test_a_model_with_costs_of_its_own() -> None:
    """The search for unused parameters, BatchNorm over 3 samples, a part in DataParallel; a forked worker."""
    plan = TrainingPlan(
        steps=8,
        batch=3,
        find_unused=True,
        budget_s=60.0,
        model="tests.samples.step_models:model",
        data="tests.samples.step_models:forked",
    )
    ran = train(Case(plan=plan, node_of=["a", "a"], side=True))
    assert {"TRN022", "TRN023", "TRN025"} <= ran.bad.keys()
    assert ran.side.batch_norms
    assert (ran.side.batch_norms.layers, ran.side.batch_norms.samples) == (1, 3)
    assert ran.side.batch_norms.off
    assert 0.2 < ran.side.batch_norms.off < 0.7, "1 / sqrt(6) is what chance gives two ranks of 3 samples each"
    assert ran.side.workers
    assert (ran.side.workers.used, ran.side.workers.count) == ("fork", 1)
    assert [(start.method, start.error) for start in ran.side.workers.starts] == [("fork", ""), ("spawn", "")]


@pytest.mark.nightly
def test_what_fsdp_has_not() -> None:
    """No buckets and no search: unseen, with the reason; a dataset that cannot be pickled is a note."""
    plan = TrainingPlan(
        steps=6, strategy="fsdp", data="tests.samples.step_models:unpicklable", model="torch.nn:Linear"
    )
    plan = msgspec.structs.replace(plan, model_kwargs={"in_features": 16, "out_features": 4})
    ran = train(Case(plan=plan, node_of=["a", "a"], side=True))
    assert {step.what for step in ran.side.unseen} == {"communication", "find_unused"}
    assert [finding.state for finding in ran.findings["TRN024"]] == [State.NOTE]


@pytest.mark.nightly
@fake_nvml.needs_gcc
def test_stray_contexts_in_a_smoke_run(tmp_path: Path) -> None:
    """Rank 1 has a context on rank 0's GPU as well, and both have memory as the fake libraries tell."""
    (tmp_path / "libraries").mkdir()
    libraries = fake_nvml.built(tmp_path / "libraries")
    lines_of = [["0 context = 1"], ["0 context = 1", "1 context = 1", "* total_mib = 16384"]]
    environments = [
        fake_nvml.environment(libraries, tmp_path / f"told {rank}", "gpus = 2", *lines)
        for rank, lines in enumerate(lines_of)
    ]
    ran = train(Case(plan=SHORT, node_of=["a", "a"], gpus=True), *environments)
    assert ran.bad == {"MEM004": {1}}
    assert [
        (memory.device, memory.elsewhere and memory.elsewhere[0].device, memory.total) for memory in ran.memory
    ] == [
        ("cuda:0", [], 81559 * 2**20),
        ("cuda:1", "cuda:0", 2**34),
    ]
    assert [elsewhere.since for elsewhere in ran.memory[1].elsewhere or []] == ["before_init"]


@pytest.mark.nightly
def test_a_process_of_its_own_drives_all_gpus() -> None:
    """On CPUs there is one to drive; a child that fails says nothing."""
    own = torch.Generator().manual_seed(0)
    batch = (torch.randint(64, (8, 32), generator=own), torch.randint(64, (8, 32), generator=own))
    apart, over_all = parallel.apart(TrainingPlan(), batch, 0)
    assert apart
    assert over_all
    assert parallel.apart(TrainingPlan(model="tests.samples.step_models:missing"), batch, 0) == (None, None)

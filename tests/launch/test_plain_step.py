"""What a plain srun meets: through a program that stands for srun and says what a real one said (Slurm 22.05)."""

from __future__ import annotations

import os
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.launch.choose import choose
from ncclcheck.launch.remote import plain_step
from ncclcheck.probes.facts import Cluster, Job, OtherStep, PlainStep, replace
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.rules.run.plain_step import plain_step as body
from ncclcheck.run.plan.options import Options
from tests.helpers.clusters import node

_BUSY = "srun: error: Unable to create step for job 7: Requested nodes are busy"
_SLEEP = OtherStep(id="7.0", name="sleep", nodes="h[1-2]")


def _tried(folder: Path, srun: str, squeue: str = "exit 1", *command: str) -> PlainStep | None:
    for name, text in (("srun", srun), ("squeue", squeue)):
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "MASTER_ADDR": "h1",
        "MY_TOKEN": "s3cret",
    }
    trial = plain_step.PlainStepTrial(env, command)
    trial.begin()
    trial.settle(20)
    return trial.fact


_RUNS = 'while [ "$1" != /bin/sh ]; do shift; done; '


def test_a_step_that_starts_is_given_all(tmp_path: Path) -> None:
    step = _tried(tmp_path, f'{_RUNS}exec "$@"')
    assert step is not None
    assert (step.outcome, step.lost) == ("starts", [])


def test_variables_that_do_not_reach_a_task_are_named_and_no_secret_is(tmp_path: Path) -> None:
    step = _tried(tmp_path, f'{_RUNS}exec env -i "$@"')
    assert step is not None
    assert (step.outcome, step.lost) == ("starts", ["MASTER_ADDR", "PATH"])


def test_a_step_that_waits_names_the_one_that_holds(tmp_path: Path) -> None:
    steps = "echo '7.0|sleep|h[1-2]'; echo '7.1|ncclcheck|h[1-2]'; echo '7.batch|batch|h1'"
    step = _tried(tmp_path, f"echo '{_BUSY}' >&2; exit 1", steps)
    assert step is not None
    assert (step.outcome, step.others) == ("waits", [_SLEEP])


def test_a_step_that_waits_for_nobody_else_says_nothing(tmp_path: Path) -> None:
    """Our own step holds nothing; what kept this one is not known."""
    assert _tried(tmp_path, f"echo '{_BUSY}' >&2; exit 1", "echo '7.1|ncclcheck|h[1-2]'") is None


def test_a_refusal_is_told_in_the_words_of_srun(tmp_path: Path) -> None:
    step = _tried(tmp_path, "echo 'srun: error: h1: task 0: Killed' >&2; echo 'srun: fatal: No.' >&2; exit 1")
    assert step is not None
    assert (step.outcome, step.said) == ("refused", "No.")


@pytest.mark.parametrize("srun", ["exit 1", "echo slow >&2; exit 0"])
def test_what_is_not_understood_is_not_known(tmp_path: Path, srun: str) -> None:
    assert _tried(tmp_path, srun) is None


@pytest.mark.parametrize(
    ("command", "given"),
    [
        (["/usr/bin/srun", "--overlap", "-n2", "python", "--export=NONE"], ["--overlap"]),
        (["srun", "--export", "ALL", "python"], ["--export=ALL"]),
        (["srun", "--export=NONE", "a"], ["--export=NONE"]),
        (["python", "--overlap"], []),
        (["srun", "--export"], ["--export"]),
        ([], []),
    ],
)  # fmt: skip
def test_options_of_the_users_own_srun(command: list[str], given: list[str]) -> None:
    assert plain_step.given(command) == given


def _judged(step: PlainStep | None, nodes: int = 2, launcher: Any = "slurm") -> Verdict:
    cluster = Cluster(
        command="env",
        nodes=[node(f"h{number}", env={"SLURM_EXPORT_ENV": "NONE"}) for number in range(nodes)],
        job=Job(launcher=launcher, step=step),
    )
    return judge(cluster, [rule for rule in all_rules() if rule.body is body])[0]


_WAITS = PlainStep(outcome="waits", said=_BUSY, others=[_SLEEP])


def _lost(*names: str, typed: bool) -> PlainStep:
    return PlainStep(outcome="starts", lost=[*names], typed=typed)


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (None, State.SKIPPED),
        (PlainStep(outcome="starts"), State.OK),
        (_lost("OMP_NUM_THREADS", typed=True), State.WARN),
        (_lost("PATH", "VIRTUAL_ENV", typed=True), State.WARN),  # srun /venv/bin/python needs neither
        (_lost("NCCL_DEBUG", "OMP_NUM_THREADS", typed=True), State.FAIL),
        (_lost("MASTER_ADDR", "PATH", typed=False), State.WARN),
        (_lost("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", typed=False), State.OK),
        (PlainStep(outcome="refused", said="More processors requested than permitted"), State.WARN),
        (_WAITS, State.FAIL),
    ],
)
def test_judged(step: PlainStep | None, state: State) -> None:
    assert _judged(step).state is state


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (_WAITS, State.WARN),
        (replace(_WAITS, typed=True), State.FAIL),
        (PlainStep(outcome="refused", said="Invalid job id specified"), State.OK),  # a shell of a job that is over
        (_lost("MASTER_ADDR", typed=False), State.WARN),
    ],
)
def test_in_a_join_nobody_knows_that_srun_starts_the_job(step: PlainStep, state: State) -> None:
    assert _judged(step, launcher="join").state is state


@pytest.mark.parametrize(
    ("env", "possible"),
    [
        ({"SLURM_JOB_ID": "7"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290"}, True),  # salloc's own
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, False),
        ({"SLURM_JOB_ID": "7; reboot"}, False),
        ({}, False),
    ],
)
def test_where_it_is_tried(env: dict[str, str], possible: bool) -> None:
    assert plain_step.is_possible(env) is possible


def test_a_join_in_an_allocation_tries_it() -> None:
    place = {"nodes": 2, "node_rank": 0, "rdzv_endpoint": "127.0.0.1:29500"}
    options = Options(command="env", **place)  # type: ignore[arg-type]
    assert choose(options, {"SLURM_JOB_ID": "7"}).step is not None
    assert choose(options, {}).step is None
    assert choose(changed(options, node_rank=1), {"SLURM_JOB_ID": "7"}).step is None


def test_whose_srun_it_is_is_kept(tmp_path: Path) -> None:
    for command, typed in ((("srun", "--overlap", "a"), True), (("torchrun", "a"), False), ((), False)):
        step = _tried(tmp_path, f'{_RUNS}exec env -i "$@"', "exit 1", *command)
        assert step is not None
        assert step.typed is typed


def test_a_refusal_of_all_is_told_by_the_silent_nodes() -> None:
    assert _judged(PlainStep(outcome="refused", said="No."), nodes=0).state is State.SKIPPED


def test_the_first_names_are_those_that_a_job_needs() -> None:
    lost = [f"OMP_{letter}" for letter in "ABCDEFGHIJ"] + ["MASTER_ADDR"]
    (finding,) = _judged(_lost(*lost, typed=True)).findings
    assert "tasks, for SLURM_EXPORT_ENV=NONE is set: MASTER_ADDR, OMP_A" in finding.what
    assert finding.what.endswith(" and 3 more")

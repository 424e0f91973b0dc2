"""What a plain srun meets: through a program that stands for srun and says what a real one said (Slurm 22.05)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ncclcheck.launch.remote import plain_step
from ncclcheck.probes.facts import Cluster, Job, OtherStep, PlainStep
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.rules.run.plain_step import plain_step as body
from tests.clusters import node

_BUSY = "srun: error: Unable to create step for job 7: Requested nodes are busy"
_SLEEP = OtherStep(id="7.0", name="sleep", nodes="h[1-2]")


def _tried(folder: Path, srun: str, squeue: str = "exit 1", *given: str) -> PlainStep | None:
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
    trial = plain_step.Trial(env, given)
    trial.begin()
    trial.settle(20)
    return trial.fact


_RUNS = 'while [ "$1" != /bin/sh ]; do shift; done; '


def test_a_step_that_starts_is_given_all(tmp_path: Path) -> None:
    found = _tried(tmp_path, f'{_RUNS}exec "$@"')
    assert found is not None
    assert (found.outcome, found.lost) == ("starts", [])


def test_variables_that_do_not_reach_a_task_are_named_and_no_secret_is(tmp_path: Path) -> None:
    found = _tried(tmp_path, f'{_RUNS}exec env -i "$@"')
    assert found is not None
    assert (found.outcome, found.lost) == ("starts", ["MASTER_ADDR", "PATH"])


def test_a_step_that_waits_names_the_one_that_holds(tmp_path: Path) -> None:
    steps = "echo '7.0|sleep|h[1-2]'; echo '7.1|ncclcheck|h[1-2]'; echo '7.batch|batch|h1'"
    found = _tried(tmp_path, f"echo '{_BUSY}' >&2; exit 1", steps)
    assert found is not None
    assert (found.outcome, found.others) == ("waits", [_SLEEP])


def test_a_step_that_waits_for_nobody_else_says_nothing(tmp_path: Path) -> None:
    """Our own step holds nothing; what kept this one is not known."""
    assert _tried(tmp_path, f"echo '{_BUSY}' >&2; exit 1", "echo '7.1|ncclcheck|h[1-2]'") is None


def test_a_refusal_is_told_in_the_words_of_srun(tmp_path: Path) -> None:
    found = _tried(tmp_path, "echo 'srun: error: h1: task 0: Killed' >&2; echo 'srun: fatal: No.' >&2; exit 1")
    assert found is not None
    assert (found.outcome, found.said) == ("refused", "No.")


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
    assert plain_step.typed(command) == given


def _judged(step: PlainStep | None, nodes: int = 2) -> Verdict:
    cluster = Cluster(
        command="env",
        nodes=[node(f"h{number}", env={"SLURM_EXPORT_ENV": "NONE"}) for number in range(nodes)],
        job=Job(launcher="slurm", step=step),
    )
    return judge(cluster, [rule for rule in all_rules() if rule.body is body])[0]


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (None, State.SKIPPED),
        (PlainStep(outcome="starts"), State.OK),
        (PlainStep(outcome="starts", lost=["OMP_NUM_THREADS"]), State.WARN),
        (PlainStep(outcome="starts", lost=["NCCL_DEBUG", "OMP_NUM_THREADS"]), State.FAIL),
        (PlainStep(outcome="refused", said="More processors requested than permitted"), State.WARN),
        (PlainStep(outcome="waits", said=_BUSY, others=[_SLEEP]), State.FAIL),
    ],
)
def test_judged(step: PlainStep | None, state: State) -> None:
    assert _judged(step).state is state


def test_a_refusal_of_all_is_told_by_the_silent_nodes() -> None:
    assert _judged(PlainStep(outcome="refused", said="No."), nodes=0).state is State.SKIPPED


def test_the_first_names_are_those_that_a_job_needs() -> None:
    lost = [f"OMP_{letter}" for letter in "ABCDEFGHIJ"] + ["MASTER_ADDR"]
    (found,) = _judged(PlainStep(outcome="starts", lost=lost)).findings
    assert "tasks, for SLURM_EXPORT_ENV=NONE is set: MASTER_ADDR, OMP_A" in found.what
    assert found.what.endswith(" and 3 more")

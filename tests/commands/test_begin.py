"""--start, --init and --init-method as they are run: the real command, spawn and torchrun, gloo ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.jsondoc import Document
from tests.conftest import Command, Ran

QUICK = ("bench", "--nodes", "2", "--nproc-per-node", "1", "--quick", "--deadline", "150", "-o", "json")


def _verdict(document: Document, code: str) -> Verdict:
    return next(verdict for verdict in document.verdicts if verdict.code == code)


def _bench(ncclcheck: Command, *arguments: str) -> Ran:
    return ncclcheck(*QUICK, *arguments, seconds=200)


@pytest.mark.parametrize(
    ("arguments", "init", "code"),
    [
        (("--start", "spawn"), "", ""),
        (("--init", "tcp"), "tcp://", "INI003"),
        (("--init", "file"), "file:///", "INI006"),
    ],
)
def test_ranks_of_spawn_do_what_those_of_torchrun_do(
    ncclcheck: Command, tmp_path: Path, arguments: tuple[str, ...], init: str, code: str
) -> None:
    ran = _bench(ncclcheck, *arguments)
    assert ran.code == 0, ran.err
    job = ran.document.job
    assert (job.start, job.init_method[: len(init)]) == ("spawn", init)
    assert {rank.phase for rank in ran.document.run.ranks} == {"done"}
    assert _verdict(ran.document, "BEN001").state is State.OK
    if code:
        assert _verdict(ran.document, code).state is State.OK
    assert list(tmp_path.iterdir()) == []


def test_no_job_is_started_on_a_stale_file(ncclcheck: Command, tmp_path: Path) -> None:
    stale = tmp_path / "init"
    stale.write_bytes(b"left by a run that was killed")
    ran = _bench(ncclcheck, "--init-method", f"file://{stale}")
    assert ran.code == 1
    assert _verdict(ran.document, "INI004").state is State.FAIL
    assert not ran.document.run.started_job
    assert stale.read_bytes() == b"left by a run that was killed"


def test_no_job_is_started_where_torchrun_opens_no_store(ncclcheck: Command) -> None:
    ran = _bench(ncclcheck, "--start", "torchrun", "--init", "tcp")
    assert ran.code == 1
    assert _verdict(ran.document, "INI007").state is State.FAIL
    assert not ran.document.run.started_job


def test_a_rank_of_spawn_that_crashes_is_named(ncclcheck: Command) -> None:
    ran = _bench(ncclcheck, "--start", "spawn", "--inject", "crash=1")
    assert ran.code == 1
    failed = [finding for verdict in ran.document.verdicts for finding in verdict.findings
              if verdict.code.startswith("RUN") and finding.state is State.FAIL]  # fmt: skip
    assert {finding.where.rank for finding in failed} == {1}
    assert not any("torchrun" in finding.what for finding in failed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--start", "fork"), "torchrun"),
        (("--init", "udp"), "env"),
        (("--init-method", "file://shared/init"), "file:///shared/init"),
        (("--init", "tcp", "--init-method", "file:///a"), "name two methods"),
    ],
)
def test_wrong_values_end_at_once(ncclcheck: Command, arguments: tuple[str, ...], words: str) -> None:
    ran = ncclcheck("bench", "--nodes", "2", *arguments)
    assert ran.code == 2
    assert words in ran.err


def test_more_ranks_than_gpus_is_said_with_both_numbers(ncclcheck: Command) -> None:
    ran = ncclcheck("bench", "--nodes", "2", "--backend", "nccl", "--start", "spawn", "--deadline", "60")
    assert ran.code == 2
    assert "GPU" in ran.err


@pytest.mark.nightly
def test_a_training_whose_ranks_are_killed_leaves_no_file(ncclcheck: Command, tmp_path: Path) -> None:
    """Else the next run would find it, and rightly refuse to start."""
    arguments = ("--steps", "4", "--time-budget", "1", "--deadline", "200", "-o", "json")
    ran = ncclcheck("smoke", "--nodes", "2", "--nproc-per-node", "1", "--init-method", f"file://{tmp_path}/init",
                    *arguments, seconds=250)  # fmt: skip
    assert ran.code == 0, ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_preflight_begins_all_its_jobs_in_the_same_way(ncclcheck: Command, tmp_path: Path) -> None:
    ran = ncclcheck("preflight", "--simulate", "--nproc-per-node", "1", "--level", "quick", "--no-verify",
                    "--init-method", f"file://{tmp_path}/init", "--deadline", "300", "-o", "json",
                    seconds=350)  # fmt: skip
    assert ran.code == 0, ran.err
    assert (ran.document.job.start, ran.document.job.init_method) == ("spawn", f"file://{tmp_path}/init")
    assert [stage.name for stage in ran.document.stages].count("init") == 1
    assert _verdict(ran.document, "INI006").state is State.OK
    assert list(tmp_path.iterdir()) == []


def test_preflight_tries_the_place_before_its_first_job(ncclcheck: Command, tmp_path: Path) -> None:
    stale = tmp_path / "init"
    stale.write_bytes(b"left by a run that was killed")
    ran = ncclcheck("preflight", "--simulate", "--nproc-per-node", "1", "--level", "quick", "--no-verify",
                    "--init-method", f"file://{stale}", "-o", "json", seconds=150)  # fmt: skip
    assert ran.code == 1
    assert _verdict(ran.document, "INI004").state is State.FAIL
    assert not ran.document.run.started_job
    assert stale.exists()

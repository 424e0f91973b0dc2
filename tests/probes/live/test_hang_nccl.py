"""Real NCCL and torch's own ProcessGroupNCCL in a hang, without a GPU: who is named by RAS and Flight Recorder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ncclcheck.probes.facts import Cluster, Measurements, replace
from ncclcheck.probes.live import received, stream
from ncclcheck.probes.live.received import Received
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.subjects.live.running import START_S
from tests.lab import PYTHON, Lab
from tests.nccl.job import Job, Rank
from tests.nccl.ras_states import STATES
from tests.nccl.torch_cuda import made
from tests.nccl.wheels import need

_TROUBLE = Path(__file__).resolve().parents[2] / "nccl/trouble.py"
_PORT = 29471
_STARTS_S = 150.0  # three sound steps; 20 on a quiet machine of 2 cores
_SETTLES_S = 5.0
_HEARS_S = 90.0  # until the others have launched and RAS knows; 3 on a quiet machine


def _judged(heard: Received, job: str) -> dict[str, list[Finding]]:
    """Its processes are seconds old; the rules would say that they are starting, so they are made older."""
    mine = [
        replace(process, age_s=process.age_s + START_S) for process in heard.live.processes if process.job == job
    ]
    cluster = Measurements(
        live=[replace(heard.live, processes=mine)],
        ras=[ras for ras in heard.ras if ras.job == job],
        records=[record for record in received.records(heard.pieces) if record.job == job],
    )
    verdicts = judge(Cluster(command="hang", measurements=cluster))
    return {verdict.code: verdict.findings for verdict in verdicts if verdict.findings}


def _in_the_job(rank: Rank, place: int) -> Rank:
    env = {"RANK": place, "WORLD_SIZE": 4, "LOCAL_RANK": place % 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": _PORT}
    names = {name: str(value) for name, value in env.items()}
    steps = rank.steps.replace("sync:30", "sync:120").replace("sleep:30", "sleep:120")  # a busy machine is slow
    return Rank(rank.host, rank.device, steps, {**rank.env, **names, "MASTER_ADDR": "10.77.0.11"})


@pytest.mark.nightly
@pytest.mark.timeout(420)
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("version", ["2.24.3", "2.26.2", "2.27.3", "2.27.5", "2.27.7"])
def test_ras_of_real_ranks_is_asked_by_the_program_that_is_streamed(version: str, tmp_path: Path) -> None:
    need(version)
    (state,) = (state for state in STATES if state.name == "skipped")
    program = tmp_path / "program.py"
    program.write_bytes(stream.program())
    heard: list[str] = []
    with Lab(hosts=2, mgmt=False, own_pids=True) as lab:  # of many jobs of a machine only the first are asked

        def look(job: Job) -> None:
            state.before(job)
            argv = [*PYTHON, str(program), *stream.arguments(2, passive=True, ras="always")]
            until = time.monotonic() + _HEARS_S
            while not heard or ("MISMATCH" not in heard[-1] and time.monotonic() < until):
                heard.append(lab["h1"].run(argv, seconds=60).stdout)

        ranks = [_in_the_job(rank, place) for place, rank in enumerate(state.ranks)]
        Job(lab, ranks, version=version).run(seconds=0, during=look)
    node = received.host(heard[-1])
    [ras] = [ras for ras in node.ras if ras.job == f"10.77.0.11:{_PORT}"]
    assert (ras.version, ras.problem, len(ras.looks)) == (version, "", 2)
    findings = _judged(node, ras.job)["HNG021"]
    assert any("launched 1" in finding.what for finding in findings)


@contextmanager
def _torch_job(kind: str, culprit: int, folder: Path) -> Iterator[None]:
    cuda = made(folder / "cuda", {"": {"FAKECUDA_DEVICES": "4"}})
    env = cuda.environment(
        TROUBLE_TIMEOUT_S="300", TROUBLE_MARKS=str(folder), OMP_NUM_THREADS="1", TORCH_NCCL_DUMP_ON_TIMEOUT="1",
        TORCH_FR_BUFFER_SIZE="2000", TORCH_NCCL_TRACE_BUFFER_SIZE="2000",
        TORCH_FR_DUMP_TEMP_FILE=f"{folder}/fr_", TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{folder}/fr_",
        NCCL_RAS_ADDR=f"localhost:{_PORT + 1}",
    )  # fmt: skip
    argv = [cuda.python, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-addr", "127.0.0.1",
            "--master-port", str(_PORT), str(_TROUBLE), kind, str(culprit)]  # fmt: skip
    with (folder / "log").open("w") as log:
        job = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + _STARTS_S
            while not all((folder / f"begins.{rank}").exists() for rank in range(3)):
                assert time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.5)
            time.sleep(_SETTLES_S)
            yield
        finally:
            job.terminate()
            with suppress(subprocess.TimeoutExpired):
                job.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait(10)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["away", "other-size"])
def test_a_hang_of_process_group_nccl_is_named_while_it_lasts(kind: str, tmp_path: Path) -> None:
    """By Flight Recorder (another size: HNG020), or by RAS alone where the machine is too busy."""
    with _torch_job(kind, 1, tmp_path):
        ran = subprocess.run(
            [sys.executable, "-", *stream.arguments(6, ras="always")],
            input=stream.program(), capture_output=True, timeout=120, check=True,
        )  # fmt: skip
    node = received.host(ran.stdout.decode())
    job = next(process.job for process in node.live.processes if process.job.endswith(f":{_PORT}"))
    said_of = _judged(node, job)
    findings = [
        finding
        for code in ("HNG020", "HNG021")
        for finding in said_of.get(code, [])
        if finding.state is State.FAIL
    ]
    assert {finding.where.rank for finding in findings} == {1}
    assert [ras.version for ras in node.ras if ras.job == job] == ["2.27.5"]

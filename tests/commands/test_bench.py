"""`bench` as it is run: the real command, real torchrun, real gloo ranks; and what is said when they fail."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import psutil
import pytest

from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.jsondoc import Document
from tests.conftest import OURS, ROOT, Command, Ran, environment

LONG = ("bench", "--nodes", "2", "--nproc-per-node", "1", "--time-budget", "60", "--deadline", "80", "-o", "json")


def _verdict(document: Document, code: str) -> Verdict:
    return next(verdict for verdict in document.verdicts if verdict.code == code)


def _ours() -> list[str]:
    """Agents and ranks of these tests that run now, by command line."""
    lines = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            mine = process.environ().get("TMPDIR", "").startswith(str(OURS))
        except psutil.Error:
            continue
        if mine and ("ncclcheck.node.agent" in line or "ncclcheck.node.ranks.worker" in line):
            lines.append(line)
    return lines


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No process and no folder is left by any of these runs."""
    yield
    end = time.monotonic() + 5
    while _ours() and time.monotonic() < end:
        time.sleep(0.1)
    assert _ours() == []
    assert list(OURS.glob("ncclcheck-*")) == []


def test_two_simulated_nodes(ncclcheck: Command) -> None:
    ran = ncclcheck("bench", "--nodes", "2", "--quick", "-o", "json", "--save", "saved.json")
    assert ran.code == 0, ran.err
    jsonschema.validate(json.loads(ran.out), json.loads((ROOT / "ncclcheck/reports/schema.json").read_text()))
    document = ran.document
    job = document.job
    assert (job.launcher, job.simulated, job.backend, job.nodes_answered) == ("local", True, "gloo", 2)
    assert [node.name for node in document.nodes] == ["sim0", "sim1"]
    assert {rank.phase for rank in document.run.ranks} == {"done"}
    assert {rank.node for rank in document.run.ranks} == {"sim0", "sim1"}
    assert _verdict(document, "BEN001").state is State.OK
    assert _verdict(document, "NET003").state is State.SKIPPED
    assert document.measurements.startup_s is not None
    rows = document.measurements.collectives
    assert {row.op for row in rows} == {"broadcast", "all_reduce", "all_gather", "barrier"}
    for row in rows:
        if row.op == "barrier":
            assert row.busbw_gb_s is None
        elif row.state == "ok":
            assert row.correct is True
            assert row.time_us is not None
            assert row.algbw_gb_s == pytest.approx(row.bytes / row.time_us.p50 / 1000)
    text = ncclcheck("bench", "--from", "saved.json")
    assert text.code == 0
    assert "SIMULATED" in text.out.splitlines()[0]
    assert "No second machine was tested" in " ".join(text.out.split())
    assert "--node-rank 1" in " ".join(text.out.split())


def test_one_node_one_rank_says_that_there_is_no_bandwidth(ncclcheck: Command) -> None:
    ran = ncclcheck("bench", "--nproc-per-node", "1", "--ops", "all_reduce,barrier", "--sizes", "1K")
    assert ran.code == 0, ran.err
    assert "none for one rank" in " ".join(ran.out.split())
    assert "SIMULATED" not in ran.out


def test_where_no_row_can_be_measured_nothing_is_called_ready(ncclcheck: Command) -> None:
    ran = ncclcheck("bench", "--nproc-per-node", "1", "--ops", "all_reduce,reduce", "--dtype", "int8",
                    "--reduce-op", "avg", "--quick")  # fmt: skip
    assert ran.code == 0, ran.err
    text = " ".join(ran.out.split())
    assert "no row could be measured: all_reduce: torch" in text
    assert "Ready." not in text
    assert "nothing was measured either: see BEN001." in text
    assert "1 unknown" in text


@contextmanager
def _running(*arguments: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "ncclcheck", *arguments]
    started = subprocess.Popen(
        argv, cwd="/", env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait(10)


def _below(parent: subprocess.Popen[bytes], words: str, count: int) -> list[psutil.Process]:
    """Processes below the command whose line ends with these words, once there are so many."""
    end = time.monotonic() + 45
    while time.monotonic() < end:
        processes = []
        for process in psutil.Process(parent.pid).children(recursive=True):
            try:
                line = process.cmdline()
            except psutil.Error:
                continue
            if words in " ".join(line) and "torch.distributed.run" not in line:
                processes.append(process)
        if len(processes) >= count:
            return processes
        time.sleep(0.1)
    raise AssertionError(f"no {count} processes of {words}")


def _ranks(parent: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return _below(parent, "ncclcheck.node.ranks.worker", 2)


def _end(parent: subprocess.Popen[bytes], seconds: float) -> Ran:
    begun = time.monotonic()
    out, err = parent.communicate(timeout=seconds + 30)
    assert time.monotonic() - begun < seconds
    assert b"Traceback" not in err
    return Ran(subprocess.CompletedProcess([], parent.returncode, out, err))


@pytest.mark.parametrize(("number", "state", "exit_"), [(signal.SIGKILL, "gone", -9), (signal.SIGSTOP, "T", None)])
def test_a_killed_or_stopped_rank_is_named(number: int, state: str, exit_: int | None) -> None:
    with _running(*LONG) as bench:
        ranks = _ranks(bench)
        time.sleep(6)
        os.kill(ranks[0].pid, number)
        ran = _end(bench, 20)
    assert ran.code == 1
    document = ran.document
    failed = [v for v in document.verdicts if v.state is State.FAIL]
    assert [v.code for v in failed] in (["RUN002"], ["RUN003"])
    victim = next(rank for rank in document.run.ranks if rank.pid == ranks[0].pid)
    (finding,) = failed[0].findings
    assert (finding.where.node, finding.where.rank) == (victim.node, victim.rank)
    assert str(victim.pid) in finding.what
    assert victim.proc_state == state
    assert victim.exit == exit_
    assert victim.last_step
    assert victim.last_step in finding.what


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_a_report(number: int, tmp_path: Path) -> None:
    with _running(*LONG, "--save", str(tmp_path / "saved.json")) as bench:
        _ranks(bench)
        bench.send_signal(number)
        ran = _end(bench, 12)
    assert ran.code == 128 + number
    assert ran.document.exit_code == ran.code
    assert (tmp_path / "saved.json").read_text() == ran.out
    assert ran.document.state == "incomplete"


def test_a_killed_launcher_leaves_nothing() -> None:
    with _running(*LONG) as bench:
        _ranks(bench)
        bench.kill()
        bench.wait(10)


def test_a_killed_agent_is_a_silent_node() -> None:
    with _running(*LONG) as bench:
        _ranks(bench)
        victim = _below(bench, "main() --node 1", 1)[0]
        victim.kill()
        ran = _end(bench, 20)
    assert ran.code == 3
    assert [s.node for s in ran.document.run.silent] == ["sim1"]
    assert _verdict(ran.document, "RUN001").state is State.UNKNOWN


def test_a_killed_torchrun_is_named_not_its_ranks() -> None:
    with _running(*LONG) as bench:
        _ranks(bench)
        victim = next(p for p in psutil.Process(bench.pid).children(recursive=True) if _is_torchrun(p))
        victim.kill()
        ran = _end(bench, 20)
    assert ran.code == 1
    failed = [f for v in ran.document.verdicts for f in v.findings if f.state is State.FAIL]
    assert ["torchrun itself was killed by SIGKILL" in f.what for f in failed] == [True]


def _is_torchrun(process: psutil.Process) -> bool:
    try:
        return "torch.distributed.run" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def test_nohup_is_honoured() -> None:
    """SIGHUP was ignored by whoever started us: it ends nothing."""
    argv = ["nohup", sys.executable, "-m", "ncclcheck", "env", "--nodes", "2", "-o", "json"]
    with subprocess.Popen(
        argv, cwd="/", env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        time.sleep(0.3)
        run.send_signal(signal.SIGHUP)
        out, _ = run.communicate(timeout=30)
    assert run.returncode == 0
    assert json.loads(out)["exit_code"] == 0


def test_an_agent_that_cannot_start(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "msgspec").mkdir()
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'ncclcheck.node.agent' in ' '.join(sys.orig_argv): sys.exit('this Python is broken')\n"
        if sys.version_info >= (3, 10) else ""
    )  # fmt: skip
    ran = ncclcheck("env", "-o", "json", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert ran.code == 3
    (silence,) = ran.document.run.silent
    assert "this Python is broken" in silence.detail


def test_a_taken_port_names_its_holder(ncclcheck: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        ran = ncclcheck("bench", "--nodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "-o", "json", seconds=30)
    assert ran.code == 1
    (finding,) = _verdict(ran.document, "RUN002").findings
    assert f"pid {os.getpid()}" in finding.what
    assert "--rdzv-endpoint" in finding.remedies[0].text


def test_torch_that_cannot_be_imported_is_a_finding(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        "raise ImportError('libfoo.so.1: cannot open shared object file')\n"
    )
    (tmp_path / "torch/version.py").write_text("__version__ = '2.6.0a0+nv24.10'\ncuda = None\n")
    ran = ncclcheck("bench", "--nodes", "2", "-o", "json", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert ran.code == 1
    assert "libfoo.so.1" in _verdict(ran.document, "RUN002").findings[0].what
    assert ncclcheck("env", PYTHONPATH=f"{tmp_path}:{ROOT}").code == 0


@pytest.mark.parametrize("seconds", [4, 11])
def test_the_deadline_holds(ncclcheck: Command, seconds: int) -> None:
    """Too short to start a job, and too short to import torch on any machine (PYTHONPATH makes it slow)."""
    begun = time.monotonic()
    ran = ncclcheck("bench", "--nodes", "2", "--deadline", str(seconds), "-o", "json", PYTHONPATH=_slow_torch())
    assert time.monotonic() - begun < seconds + 2
    assert ran.code == 3
    assert ran.document.state == "incomplete"
    assert ran.document.run.stopped_by == "deadline"
    assert "deadline" in ran.out or "time was over" in ran.out


def _slow_torch() -> str:
    """A path on which torch takes a minute to import."""
    return f"{ROOT / 'tests/data/slow_torch'}:{ROOT}"


@pytest.mark.nightly
def test_a_temporary_directory_without_room_is_survived(ncclcheck: Command) -> None:
    """The run folder goes elsewhere, the job is measured, and the report says what is wrong with TMPDIR."""
    ran = ncclcheck("bench", "--quick", "--ops", "barrier", "-o", "json", TMPDIR="/proc")
    assert [row.state for row in ran.document.measurements.collectives] == ["ok"]
    assert {v.code for v in ran.document.verdicts if v.state is State.FAIL} == {"HST004"}


def test_gpus_that_cannot_be_used_stop_it(ncclcheck: Command) -> None:
    """Slurm gave GPUs, and CUDA sees none: no silent fallback to gloo, unless gloo is asked for."""
    ran = ncclcheck("bench", "--nodes", "2", "--quick", "-o", "json", SLURM_JOB_GPUS="0,1", SLURM_JOB_ID="7")
    assert ran.code == 1
    assert _verdict(ran.document, "GPU001").state is State.FAIL
    assert not ran.document.run.started_job
    assert "GPU001" in (ran.document.stages[-1].reason or "")
    asked = ncclcheck(
        "bench", "--ops", "barrier", "--backend", "gloo", "-o", "json", SLURM_JOB_GPUS="0,1", SLURM_JOB_ID="7"
    )
    assert asked.code == 0
    assert asked.document.measurements.collectives


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace of its own")
def test_without_a_loopback_interface(tmp_path: Path) -> None:
    """A fresh network namespace: lo is down. The report says so, and no job is tried."""
    argv = ["unshare", "--net", sys.executable, "-m", "ncclcheck", "bench", "--nodes", "2", "-o", "json"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, timeout=60, check=False)
    ran = Ran(done)
    assert ran.code == 1, ran.err
    assert _verdict(ran.document, "NET012").state is State.FAIL
    assert not ran.document.run.started_job


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount of its own")
def test_a_full_tmp_is_survived(tmp_path: Path) -> None:
    """/tmp is a full file system of 64 KiB: the run folder goes elsewhere, and the report says what is wrong."""
    fill = "mount -t tmpfs -o size=64k full /tmp && head -c 65536 /dev/zero > /tmp/full"
    command = f"{sys.executable} -m ncclcheck bench --ops barrier -o json"
    if str(tmp_path).startswith("/tmp") and str(ROOT).startswith("/tmp"):
        pytest.skip("this checkout stands in /tmp")
    if sys.executable.startswith("/tmp"):
        pytest.skip("this interpreter stands in /tmp")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{fill}; {command}"],
        cwd="/", env=environment(TMPDIR="/tmp"), capture_output=True, timeout=90, check=False,
    )  # fmt: skip
    ran = Ran(done)
    assert [row.state for row in ran.document.measurements.collectives] == ["ok"], ran.err
    assert _verdict(ran.document, "HST004").state is State.FAIL

"""What a rank has used up as it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclcheck.probes.box import limits
from ncclcheck.probes.box.processes import Process
from ncclcheck.probes.live.machine.proc import Proc

_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max file size             {size}            unlimited            bytes
Max open files            {files}                 1048576              files
Max address space         {space}            unlimited            bytes
"""


def _rank(root: Path, size: str = "unlimited", files: str = "unlimited", space: str = "unlimited") -> Process:
    folder = root / "proc/7"
    (folder / "fd").mkdir(parents=True)
    for name in range(20):
        (folder / "fd" / str(name)).touch()
    (folder / "limits").write_text(_LIMITS.format(size=size, files=files, space=space))
    (folder / "status").write_text("Name:\tpython\nVmPeak:\t  1000 kB\nThreads:\t5\n")
    return Process(7, "1", 1, 0.0, rank=0)


@pytest.mark.parametrize(("limit", "words"), [
    ({}, []),
    ({"files": "21"}, ["process 7 had 20 of at most 21 open files (ulimit -n)"]),
    ({"files": "256", "space": "9000000"}, []),
    ({"space": "1030000"}, ["process 7 had 1024000 of at most 1030000 bytes of address space (ulimit -v)"]),
    ({"size": "6144000"}, ["process 7 may write no file of more than 6144000 bytes (ulimit -f)"]),
])  # fmt: skip
def test_a_limit_is_told_where_it_is_used_up(tmp_path: Path, limit: dict[str, str], words: list[str]) -> None:
    assert limits.used_up(Proc(str(tmp_path)), _rank(tmp_path, **limit), []) == words


def test_a_full_cgroup_is_told_with_what_the_rank_has_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = _rank(tmp_path)
    (tmp_path / "proc/7/cgroup").write_text("4:memory:/x\n3:pids:/slurm/job_1/step_0\n")
    folder = tmp_path / "pids/slurm/job_1"
    (folder / "step_0").mkdir(parents=True)
    monkeypatch.setattr(limits, "_ROOT", str(tmp_path))
    (folder / "step_0/pids.max").write_text("max\n")
    for name, text in (("pids.max", "70\n"), ("pids.current", "50\n")):
        (folder / name).write_text(text)
    below = [Process(8, "1", 7, 1.0), Process(9, "1", 8, 2.0), Process(10, "1", 1, 1.0)]
    assert limits.used_up(Proc(str(tmp_path)), rank, below) == []
    (folder / "pids.current").write_text("69\n")
    assert limits.used_up(Proc(str(tmp_path)), rank, below) == [
        "the cgroup slurm/job_1 has 69 of at most 70 processes and threads; process 7 has 5 threads and "
        "2 processes that it started"
    ]


def test_a_real_process_without_limits_has_used_up_none_but_the_size_of_a_file() -> None:
    argv = ["prlimit", "--fsize=1048576", sys.executable, "-c", "print(1, flush=True); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        words = limits.used_up(Proc(), Process(child.pid, "1", os.getpid(), 0.0, rank=0), [])
        assert f"process {child.pid} may write no file of more than 1048576 bytes (ulimit -f)" in words
        child.kill()

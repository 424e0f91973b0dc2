"""PYTHONWARNINGS=error: nothing of ours warns, and what torch warns of is raised only where jobs would die too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Command

_TINY = """
import torch

class Tiny(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index)), index % 2
"""
# What torch warns of when our worker calls it, and what a user's module warns of.
_WARNS = """
import warnings
from ncclcheck.probes.job import warned
warned.only_shown()
exec("import warnings; warnings.warn('of torch', FutureWarning)", {"__name__": "torch.distributed.nn"})
exec("import warnings; warnings.warn('of ours', DeprecationWarning)", {"__name__": "ncclcheck.node.ranks.worker"})
print("shown")
exec("import warnings; warnings.warn('of theirs', UserWarning)", {"__name__": "torchrec.modules"})
print("not raised")
"""


def _is_clean(ncclcheck: Command, *arguments: str) -> None:
    ran = ncclcheck(*arguments, seconds=300, PYTHONWARNINGS="error")
    assert ran.code == 0
    assert "Traceback" not in ran.err
    assert "Warning" not in ran.err


def test_env_report_and_logs_are_clean(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        "n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nstep 1200 loss 1.80 lr 3e-4\n"
    )
    _is_clean(ncclcheck, "env", "--nodes", "2", "--save", "result.json")
    _is_clean(ncclcheck, "report", "result.json", "--markdown", "result.md", "--junit", "result.xml")
    _is_clean(ncclcheck, "logs", str(tmp_path / "job.log"))


def test_bench_is_clean(ncclcheck: Command) -> None:
    _is_clean(ncclcheck, "bench", "--nodes", "2", "--quick", "--ops", "barrier")


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "arguments",
    [
        ("smoke", "--nodes", "2", "--time-budget", "10", "--steps", "8", "--save-mib", "4"),
        ("preflight", "--simulate", "--level", "quick"),
        ("data", "tiny.py:Tiny", "--time-budget", "10"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_the_other_commands_are_clean(ncclcheck: Command, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "tiny.py").write_text(_TINY)
    _is_clean(ncclcheck, *arguments)


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_join_is_clean(ncclcheck: Command, tmp_path: Path) -> None:
    where = ("--nodes", "2", "--rdzv-endpoint", "127.0.0.1:41877")
    other = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "ncclcheck", "env", *where, "--node-rank", "1"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTHONWARNINGS": "error"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with other:
        ran = ncclcheck("env", *where, "--node-rank", "0", PYTHONWARNINGS="error")
        output = other.communicate(timeout=60)[1]
    assert "Traceback" not in ran.err + output
    assert "Warning" not in ran.err + output


def test_warnings_of_torch_and_of_ours_are_shown_and_those_of_the_user_raised() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _WARNS],
        env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "shown\n"
    assert "FutureWarning: of torch" in done.stderr
    assert "DeprecationWarning: of ours" in done.stderr
    assert done.stderr.rstrip().endswith("UserWarning: of theirs")

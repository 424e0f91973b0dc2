"""`ncclcheck` beside a job: several processes of one node end alike, and a script may call preflight itself."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ncclcheck.commands.steps.in_code import NotReady, preflight
from tests.conftest import environment

_RANK = "{python} -m ncclcheck env -o short >/dev/null 2>&1; echo rank $RANK ends with $?"


def test_all_local_ranks_end_with_the_outcome_of_the_first(tmp_path: Path) -> None:
    script = tmp_path / "rank.sh"
    script.write_text(f"#!/bin/sh\n{_RANK.format(python=shlex.quote(sys.executable))}\n")
    script.chmod(0o755)
    argv = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", str(script)]
    ran = subprocess.run(
        argv, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert sorted(ran.stdout.split("\n"))[-2:] == ["rank 0 ends with 0", "rank 1 ends with 0"], ran.stderr


def test_what_is_not_ready_is_raised_with_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in environment(NCCL_SOCKET_IFNAME="nosuch0").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotReady) as raised:
        preflight("quick", "--only", "NET,NCC", deadline=120)
    result = raised.value.result
    assert (result.exit_code, result.ready) == (1, False)
    assert result.document is not None
    assert any(v.code == "NCC007" and v.state.value == "fail" for v in result.document.verdicts)


def test_wrong_arguments_are_raised_too() -> None:
    with pytest.raises(NotReady, match="--level"):
        preflight("quickly")

"""torch 2.1 to the newest, on Python 3.10 to 3.13, with numpy and without: healthy nodes are Ready there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ncclcheck.reports.judgement.findings import State
from tests.conftest import Ran
from tests.helpers.torches import Row, ready

# The oldest torch on its oldest and its newest Python, then each on the newest Python that it has wheels for.
_ROWS = [
    Row("3.10", "2.1.0"),
    Row("3.11", "2.1.2"),
    Row("3.12", "2.4.1"),
    Row("3.13", "2.8.0"),
    Row("3.13", ""),
    Row("3.10", ""),
]
_COMMANDS = {
    "env": ("env", "--nodes", "2"),
    "bench": ("bench", "--nodes", "2", "--quick"),
    "smoke": ("smoke", "--nodes", "2", "--time-budget", "10", "--steps", "8", "--save-mib", "4"),
    "preflight": ("preflight", "--simulate", "--level", "quick"),
    "data": ("data", "tiny.py:Tiny", "--time-budget", "15", "--workers", "2"),
}
_TINY = """
import torch

class Tiny(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index)), index % 2
"""
_WORSE = (State.FAIL, State.WARN, State.UNKNOWN)
_OF_LOAD = "the time box was used up"  # on a busy machine; it says nothing of a torch


@pytest.mark.nightly
@pytest.mark.timeout(7200)  # the first test of a row installs several GB
@pytest.mark.parametrize("command", _COMMANDS)
@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "no numpy"])
@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row.name)
def test_sound_nodes_are_ready(row: Row, numpy: bool, command: str, tmp_path: Path) -> None:
    ready(row)
    (tmp_path / "tiny.py").write_text(_TINY)
    argv = [row.interpreter, "-m", "ncclcheck", *_COMMANDS[command], "-o", "json"]
    done = subprocess.run(
        argv, cwd=tmp_path, env=row.environment(numpy=numpy), capture_output=True, timeout=300, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    ran = Ran(done)
    assert "Traceback" not in ran.err
    troubles = [
        f"{finding.state.word} {verdict.code} {finding.where} {finding.what}"
        for verdict in ran.document.verdicts
        for finding in verdict.findings
        if finding.state in _WORSE and _OF_LOAD not in finding.what
    ]
    assert (ran.code, troubles) == (0, [])

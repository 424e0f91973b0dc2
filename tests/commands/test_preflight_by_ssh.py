"""`preflight --need` by ssh in the lab: COMMAND starts here, once, and is told where the job may run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import environment
from tests.lab import PYTHON, Lab, faults, start_sshd

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("need", "code", "words"),
    [
        (1, 7, "selected: h1; sh starts here, and is to start there"),
        (2, 7, "selected: h1,h3; sh starts here, and is to start there"),
        (3, 1, "--need 3: 2 of 3 nodes are fit"),
    ],
)
def test_the_command_is_told_the_fit_nodes(need: int, code: int, words: str) -> None:
    script = "echo became on $(hostname) for $NCCLCHECK_SELECTED; exit 7"
    options = ("--hosts", "h1,h2,h3", "--level", "quick", "--need", str(need), "--healthy-file", "fit")
    with Lab(3) as lab:
        start_sshd(lab)
        with faults.clock(lab["h2"], 30):
            argv = [*PYTHON, "-m", "ncclcheck", "preflight", *options, "--", "sh", "-c", script]
            ran = lab["h1"].run(argv, seconds=200, env=environment(), cwd=str(lab.folder))
        assert (ran.returncode, words in ran.stderr) == (code, True), ran.stderr
        fit = ["h1", "h3"][: 1 if need == 1 else 2]
        assert Path(lab.folder, "fit").read_text().split() == fit
        became = [line for line in ran.stdout.splitlines() if line.startswith("became")]
        assert became == ([f"became on h1 for {','.join(fit)}"] if code == 7 else [])

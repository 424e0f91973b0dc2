"""What the report prints can be pasted: a shell reads it, and no word stands for one that the reader must know."""

from __future__ import annotations

import subprocess
from functools import lru_cache

import pytest

from ncclcheck.reports.judgement.judge import judge
from tests.helpers import stories
from tests.scenarios.fixes import PLACEHOLDER

# What a shell is to run: fixes of datasets and training are lines of Python, those of logs of somebody's job.
_FAMILIES = ("HST", "NET", "NCC", "GPU", "RDM", "FAB", "CON", "STO", "VER", "BEN", "RUN")
# Words that nobody but the reader knows: a rank's process on another host, a name that he gives or has given.
_OF_THE_READER = ("py-spy dump --pid PID", "docker network create", "kubectl label")


@lru_cache(maxsize=1)
def _commands() -> dict[str, str]:
    """Every command of every recorded cluster, with a rule that prints it."""
    return {
        line: verdict.code
        for name in stories.NAMES
        for verdict in judge(stories.load(name).cluster)
        if verdict.code.startswith(_FAMILIES)
        for finding in verdict.findings
        for remedy in finding.remedies
        for line in remedy.commands
    }


def test_a_shell_reads_every_command() -> None:
    typed = [line for line in _commands() if not line.startswith("--")]  # options of this program
    assert len(typed) > 150
    script = "\n".join(f"{{ :\n{line}\n}}" for line in typed)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=20, check=False)
    assert not done.stderr


def test_no_word_stands_for_another() -> None:
    unfilled = {line: code for line, code in _commands().items() if PLACEHOLDER.search(line.partition(" #")[0])}
    assert not {line: code for line, code in unfilled.items() if not line.startswith(_OF_THE_READER)}


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("export MASTER_ADDR=ADDRESS", True),
        ("ping -c 2 OTHER_NODE", True),
        ("ssh <host> true", True),
        ("export NCCL_SOCKET_IFNAME==eth0", False),
        ("srun bash -c 'NODE_RANK=$SLURM_NODEID torchrun x'", False),
        ("for c in INPUT OUTPUT; do iptables -I $c -j ACCEPT; done", False),
    ],
)
def test_what_counts_as_such_a_word(line: str, is_one: bool) -> None:
    assert bool(PLACEHOLDER.search(line)) is is_one

"""RUN001 on nodes that could not be entered: the words of ssh and srun become what is wrong and its mend."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from ncclcheck.probes.facts import Cluster, Job, Run, Silence
from ncclcheck.reports.findings import Finding, State
from ncclcheck.reports.judge import judge
from ncclcheck.reports.rule import all_rules
from tests.conftest import ROOT, Command


def run001(detail: str, node: str = "h3") -> Finding:
    silent = Silence(node=node, last_step="its agent was started", since_s=3.0, detail=detail)
    job = Job(
        launcher="ssh", chosen_by="--hosts", simulated=False, nodes_asked=1, nodes_answered=0, missing=[node]
    )
    cluster = Cluster(command="env", nodes=[], job=job, run=Run(silent=[silent]))
    verdict = judge(cluster, [rule for rule in all_rules() if rule.code == "RUN001"])[0]
    assert verdict.state is State.UNKNOWN
    assert len(verdict.findings) == 1
    return verdict.findings[0]


_SAID = "srun: error: "
_CASES = [
    (
        "root@h3: Permission denied (publickey,password).",
        "permission denied (publickey,password)",
        "ssh-copy-id h3",
    ),
    ("No ED25519 host key is known\nHost key verification failed.", "host's key", "ssh true"),
    ("ssh: connect to host h3 port 22: Connection refused", "refuses", "systemctl enable"),
    ("ssh: connect to host h3 port 22: Connection timed out", "no answer from its ssh port", "ping -c 3 h3"),
    ("Connection timed out during banner exchange\nConnection to 10.0.0.1 port 22 timed out", "no answer", "ping"),
    ("ssh: connect to host h3 port 22: No route to host", "no route", "ip route"),
    ("ssh: Could not resolve hostname h3: Name or service not known", "does not resolve", "getent hosts h3"),
    ("Timeout, server h3 not responding.", "connection broke", "BatchMode=yes h3 true"),
    ("kex_exchange_identification: Connection closed by remote host", "connection broke", "journalctl"),
    ("Error response from daemon: No such container: box", "container of --via", "docker ps"),
    ("ncclcheck: h3: no interpreter /v x/python there", "/v x/python", "ls -l '/v x/python'"),
    (
        "ncclcheck: h3: no ncclcheck 0.1.0 there that /v/python can import: No module named 'ncclcheck'",
        "no ncclcheck there: No module named 'ncclcheck'",
        "/v/python -m pip install ncclcheck==0.1.0",
    ),
    (
        "ncclcheck: h3: ncclcheck 0.0.9 there speaks protocol 0, 0.1.0 here speaks 1",
        "another ncclcheck there",
        "pip install ncclcheck==0.1.0",
    ),
    (
        f"{_SAID}Task launch for StepId=2.0 failed on node h3: Socket timed out on send/recv operation",
        "could not start a task there: Socket timed out",
        "scontrol show node h3",
    ),
    ("ncclcheck: h3: srun started no agent there in 25 s", "no task there in 25 s", "scontrol show node h3"),
    (f"{_SAID}Task launch for 2.0 failed on node h3: Job credential expired", "credential", "restart munge"),
    (f"{_SAID}Node failure on h3", "lost this node", "scontrol show node h3"),
    (
        f"{_SAID}Unable to create step for job 1: Requested node configuration is not available",
        "no job step",
        "resume",
    ),
    (f"{_SAID}Unable to confirm allocation for job 99: Invalid job id specified", "has ended", "salloc"),
]


@pytest.mark.parametrize(("detail", "what", "command"), _CASES)
def test_known_words(detail: str, what: str, command: str) -> None:
    found = run001(f"a line before\n{detail}\nand one after")
    assert what in found.what
    mends = [line for remedy in found.remedies for line in (remedy.text, *remedy.commands)]
    assert any(part in line for line in mends for part in (command, command.replace("ssh true", "ssh h3 true")))
    assert found.evidence[0].value in detail


def test_other_words_are_told_as_they_are() -> None:
    found = run001("Traceback: ConnectionRefusedError: Connection refused")
    assert found.what.startswith("no answer")
    assert "Connection refused" in found.evidence[1].value


def test_names_in_commands_are_quoted() -> None:
    found = run001("ssh: connect to host x port 22: Connection timed out", node="$(id) {x}")
    assert found.remedies[0].commands[0] == "ping -c 3 '$(id) {x}'"


def test_a_deadline_that_came_too_early_is_blamed_and_no_node() -> None:
    silent = [
        Silence(node=f"h{n}", last_step="survey", since_s=0.5, detail="its process is alive") for n in (1, 2)
    ]
    job = Job(launcher="ssh", nodes_asked=2, missing=["h1", "h2"])
    cluster = Cluster(command="bench", job=job, run=Run(silent=silent, stopped_by="deadline"))
    (finding,) = judge(cluster, [rule for rule in all_rules() if rule.code == "RUN001"])[0].findings
    assert (finding.state, finding.owner, finding.where.node) == (State.UNKNOWN, "job", None)
    assert finding.what == "--deadline is too short: it came before the facts of h[1-2] were there"
    assert finding.remedies[0].commands == ["ncclcheck bench --deadline 60"]


@pytest.mark.parametrize("command", ["env", "bench"])
def test_so_it_is_on_a_machine_that_is_slow(ncclcheck: Command, tmp_path: Path, command: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\nif 'ncclcheck.agent' in sys.orig_argv: time.sleep(20)\n"
    )
    ran = ncclcheck(command, "--deadline", "1", "-o", "short", seconds=20, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert ran.code == 3
    assert ran.out.splitlines()[-1].startswith("Not finished. RUN001 --deadline is too short")
    assert "did not answer" not in ran.out
    assert not [p for p in psutil.process_iter() if str(tmp_path) in " ".join(_line(p))]  # killed, though it slept


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []

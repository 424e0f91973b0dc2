"""RUN001 on nodes that could not be entered: the words of ssh and srun become what is wrong and its mend."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from ncclcheck.probes.facts import Cluster, Job, Node, Run, Silence
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.conftest import ROOT, Command


def run001(detail: str, node: str = "h3", last_step: str = "") -> Finding:
    silent = Silence(node=node, last_step=last_step, since_s=3.0, detail=detail)
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
    (
        "Connection timed out during banner exchange\nConnection to 10.0.0.1 port 22 timed out",
        "sent no banner in 10 s: the port is open",
        "console",
    ),
    ("Connection timed out during banner exchange", "sent no banner", "console"),
    (
        "@@@@@@@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nHost key verification failed.",
        "not the one that is known",
        "ssh-keygen -R h3",
    ),
    (
        "Host key for h3 has changed and you have requested strict checking.\nHost key verification failed.",
        "not the one that is known",
        "ssh-keygen -R h3",
    ),
    (
        "@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @\nroot@h3: Permission denied (publickey).",
        "others may read it",
        "chmod 600",
    ),
    (
        "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\n"
        "Disconnected from 10.0.0.1 port 22",
        "too many keys",
        "IdentitiesOnly=yes",
    ),
    (
        "Unable to negotiate with 10.0.0.1 port 22: no matching host key type found. Their offer: ssh-rsa",
        "no matching host key type found. Their offer: ssh-rsa",
        "allow an algorithm",
    ),
    ("/root/.ssh/config: line 3: Bad configuration option: portt", "its own settings", "file and line"),
    ("WARNING: Your password has expired.", "password of this account has expired", "ssh -t h3 true"),
    (
        "channel 0: open failed: connect failed: No route to host\nstdio forwarding failed\n"
        "Connection closed by UNKNOWN port 65535",
        "jump host (ProxyJump) does not come through to it: connect failed",
        "ssh -v",
    ),
    ("kex_exchange_identification: read: Connection reset by peer", "before any login", "MaxStartups"),
    ("ssh_exchange_identification: Connection closed by remote host", "before any login", "MaxStartups"),
    ("Connection closed by 10.0.0.1 port 22", "during the login", "pam_slurm_adopt"),
    ("rbash: line 1: exec: restricted", "restricted", "getent passwd h3"),
    (
        "ssh: connect to host h3 port 22: No route to host",
        "no route to it from here (No route to host)",
        "ip route",
    ),
    ("ssh: Could not resolve hostname h3: Name or service not known", "does not resolve", "getent hosts h3"),
    ("Timeout, server h3 not responding.", "connection broke", "BatchMode=yes h3 true"),
    ("Error response from daemon: No such container: box", "container of --via", "docker ps"),
    ("ncclcheck: h3: no interpreter /v x/python there", "/v x/python", "ls -l '/v x/python'"),
    (
        "ncclcheck: h3: no ncclcheck 0.1.0 there that /v/python can import: No module named 'ncclcheck'",
        "no ncclcheck there: No module named 'ncclcheck'",
        "/v/python -m pip install ncclcheck==0.1.0",
    ),
    (
        "ncclcheck: h3: no ncclcheck 0.1.0 there that /v/python can import: ; tight limits: RLIMIT_DATA 10240000",
        "limits are too tight: RLIMIT_DATA 10240000",
        "ulimit -a",
    ),
    ("EOFError: marshal data too short", "a compiled Python file (.pyc) there is damaged", "-delete"),
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
    (
        f"{_SAID}Task launch for StepId=2.0 failed on node h3: Job prolog failed",
        "Slurm's prolog failed there",
        "state=resume",
    ),
    (
        f"{_SAID}Unable to create step for job 5: Required node not available (down, drained or reserved)",
        "taken a node of the job out: Required node not available (down, drained or reserved)",
        "state=resume",
    ),
    (
        "slurmstepd: error: execve(): /home/u/venv/bin/python: No such file or directory",
        "/home/u/venv/bin/python: No such file or directory",
        "srun -w h3 ls -l /home/u/venv/bin/python",
    ),
    ("slurmstepd: error: Exceeded job memory limit at some point.", "for its memory: Exceeded job", "--mem=0"),
    (f"{_SAID}Nodes h3 are still not ready", "still waits for this node", "scontrol show node h3"),
    (f"{_SAID}h3: task 0: Out Of Memory", "for its memory", "--mem=0"),
]
_OFFERED = (
    "root@10.78.0.33: Permission denied (publickey).\nssh -v: Authentications that can continue: publickey\n"
    "ssh -v: keys that were offered: /root/.ssh/id (ED25519)"
)
_CASES += [
    (
        "ssh -v: Authentications that can continue: publickey\n"
        'ssh -v: Authenticated to 10.78.0.33 ([10.78.0.33]:22) using "publickey".\n'
        "ssh -v: channel 0: open failed: connect failed: open failed",
        "the login works, and its sshd opens no session for it (MaxSessions 0): connect failed: open failed",
        "sed -i.before -E 's/^([[:space:]]*MaxSessions[[:space:]]+)[0-9]+/\\110/' /etc/ssh/sshd_config && {",
    ),
    (
        "ssh: connect to host 10.78.0.33 port 22: Connection refused\n"
        "ncclcheck: h3: nobody listens on port 22 of 10.78.0.33, and an sshd answers on port 2222: "
        "SSH-2.0-OpenSSH_9.2",
        "no sshd listens on port 22 there; one does on port 2222 (SSH-2.0-OpenSSH_9.2)",
        "HostKeyAlias %s\\n' h3 2222 10.78.0.33 >>~/.ssh/config",
    ),
    (
        "ncclcheck: h3: its sshd takes 13 s and more between the key exchange and the login",
        "its sshd takes 13 s and more to look at a login",
        "UseDNS",
    ),
    (
        "@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @\n"
        "Permissions 0644 for '/work/keys/my id' are too open.\nroot@h3: Permission denied (publickey).",
        "your private key /work/keys/my id: others may read it",
        "chmod 600 '/work/keys/my id'",
    ),
]
# What ends a whole step says nothing of a node: it is said once, of all.
_SHARED = [
    ("srun: error: Unable to confirm allocation for job 99: Invalid job id specified", "has ended: 99", "salloc"),
    ("srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 99", "has ended: 99", "salloc"),
    (
        "srun: error: Unable to create step for job 99: Job/step already completing or completed",
        "has ended: 99",
        "unset ${!SLURM_@}",
    ),
    (
        "slurmstepd-h3: error: *** STEP 3.0 ON h3 CANCELLED AT 2026-11-22T22:03:12 ***\n"
        "srun: error: h3: task 0: Killed",
        "STEP 3.0 was cancelled: by scancel",
        "sacct -j",
    ),
    (
        "slurmstepd: error: *** JOB 7 ON h3 CANCELLED AT 2026-11-22T22:03:12 DUE TO TIME LIMIT ***",
        "Slurm cancelled JOB 7: TIME LIMIT",
        "--time",
    ),
    (
        "srun: Job 9 step creation temporarily disabled, retrying (Requested nodes are busy)",
        "another step of the same job holds what srun asks for, so that it waits: Requested nodes are busy",
        "squeue --steps",
    ),
    (
        "srun: error: Unable to create step for job 9: More processors requested than permitted",
        "more than the job was given: More processors requested than permitted",
        "scontrol show job",
    ),
    (
        "srun: error: Unable to create step for job 9: Memory required by task is not available",
        "Memory required by task",
        "--mem=0",
    ),
    (
        "srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.",
        "srun starts nothing: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually",
        "unset SLURM_MEM_PER_CPU",
    ),
    ("srun ended on all nodes, for it failed on h4", "for it failed on h4", "sbatch --exclude=h4"),
    ("srun: error: Job allocation 7 has been revoked", "took back the allocation 7", "sacct -j 7"),
    ("srun: error: Unable to contact slurm controller (connect failure)", "slurmctld", "scontrol ping"),
]


@pytest.mark.parametrize(("detail", "what", "command"), _CASES)
def test_known_words(detail: str, what: str, command: str) -> None:
    finding = run001(f"a line before\n{detail}\nand one after")
    assert what in finding.what
    mends = [line for remedy in finding.remedies for line in (remedy.text, *remedy.commands)]
    assert any(part in line for line in mends for part in (command, command.replace("ssh true", "ssh h3 true")))
    assert finding.evidence[0].value in detail


@pytest.mark.parametrize(("detail", "what", "command"), _SHARED)
def test_words_of_a_whole_step(detail: str, what: str, command: str) -> None:
    finding = run001(f"a line before\n{detail}\nand one after", last_step="start torchrun")
    assert what in finding.what
    assert finding.what.endswith("(h3)")
    assert finding.where.node is None
    assert any(command in line for remedy in finding.remedies for line in (remedy.text, *remedy.commands))
    assert finding.evidence[0].value in detail


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ("srun: error: Invalid generic resource (gres) specification", "Invalid generic resource (gres)"),
        ("srun: fatal: No command given to execute.", "No command given"),
        ("srun: error: h1: task 0: Killed\nsrun: error: Couldn't find the specified plugin", "Couldn't find the"),
    ],
)
def test_words_of_srun_that_nobody_knows_stand_in_the_heading(detail: str, words: str) -> None:
    finding = run001(detail)
    assert finding.what.startswith(f"srun starts nothing: {words}")
    assert "srun -v --overlap -w h3 true" in finding.remedies[1].commands


@pytest.mark.parametrize(
    "detail", ["srun: error: h3: task 0: Exited with exit code 1", "srun: forcing job termination"]
)
def test_words_of_one_task_refuse_no_step(detail: str) -> None:
    assert "srun starts nothing" not in run001(detail).what


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ("Connection to h3 closed by remote host.", "sshd there ended its session in mid-run"),
        ("client_loop: send disconnect: Broken pipe", "its ssh connection broke"),
    ],
)
def test_a_connection_that_breaks_in_mid_run_is_no_refused_login(detail: str, words: str) -> None:
    assert run001(detail, last_step="start torchrun").what.startswith(words)


def test_other_words_are_told_as_they_are() -> None:
    finding = run001("Traceback: ConnectionRefusedError: Connection refused")
    assert finding.what.startswith("it never answered")
    assert "Connection refused" in finding.evidence[1].value


def test_names_in_commands_are_quoted() -> None:
    finding = run001("ssh: connect to host x port 22: Connection timed out", node="$(id) {x}")
    assert finding.remedies[0].commands[0] == "ping -c 3 '$(id) {x}'"


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
        "import sys, time\nif 'ncclcheck.node.agent' in ' '.join(sys.orig_argv): time.sleep(20)\n"
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


def test_an_account_that_one_host_alone_refuses() -> None:
    silent = Silence(node="h3", last_step="", since_s=3.0, detail=_OFFERED)
    job = Job(launcher="ssh", nodes_asked=3, nodes_answered=2, missing=["h3"])
    cluster = Cluster(command="env", nodes=[Node(name="h1"), Node(name="h2")], job=job, run=Run(silent=[silent]))
    (finding,) = judge(cluster, [rule for rule in all_rules() if rule.code == "RUN001"])[0].findings
    assert finding.what.startswith(
        "its sshd refuses root (permission denied), and h[1-2] did not: its authorized_keys"
    )
    assert "StrictModes" in finding.what
    first = finding.remedies[0]
    assert first.who == "admin"
    assert any("chmod go-w ~root ~root/.ssh" in line for line in first.commands)
    assert any("AllowUsers[[:space:]].*)$/\\1 root/I'" in line for line in first.commands)
    assert any("ssh-copy-id h3" in line for fix in finding.remedies for line in fix.commands)


def test_where_all_refuse_the_key_is_to_blame_first() -> None:
    assert run001(_OFFERED).what.startswith("ssh is not let in: permission denied (publickey); it offered")

"""RUN001 where no words are known: the agent's state or end, how far a node came, and what was heard of it."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Arrival, Cluster, Job, Look, Meeting, Run, Silence, StartStep
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.failures import silent

_STEP = "start torchrun"
_IN_STEP = {"last_step": _STEP, "since_s": 4.0, "step_s": 25.0, "waited_s": 40.0}
_NEVER = {"last_step": "", "since_s": 26.0, "waited_s": 26.0}


def findings_of(*silent: Silence, **job: Any) -> list[Finding]:
    names = [silence.node for silence in silent]
    cluster = Cluster(command="bench", job=Job(nodes_asked=3, missing=names, **job), run=Run(silent=list(silent)))
    verdict = judge(cluster, [rule for rule in all_rules() if rule.code == "RUN001"])[0]
    assert verdict.state is State.UNKNOWN
    return verdict.findings


def finding_of(**silence: Any) -> Finding:
    (finding,) = findings_of(Silence(**{"node": "h3", **silence}))
    return finding


def _fixes(finding: Finding) -> str:
    return " ".join(" ".join([fix.text, *fix.commands]) for fix in finding.remedies)


@pytest.mark.parametrize(
    ("silence", "what", "fix"),
    [
        (
            {**_IN_STEP, "look": Look(came="ran", state="T", wchan="do_signal_stop")},
            "is stopped (state T), 21 s into",
            "-CONT",
        ),
        (
            {**_IN_STEP, "detail": "ncclcheck: h3: its agent, pid 812, is stopped (state T)"},
            "is stopped (state T), 21 s into",
            "-CONT",
        ),
        (
            {**_IN_STEP, "detail": "ncclcheck: h3: its agent was ended by SIGKILL"},
            "was killed by SIGKILL, 21 s into",
            "killed process",
        ),
        (
            {**_IN_STEP, "via": "srun", "detail": "srun: error: h3: task 2: Killed"},
            "was killed by SIGKILL",
            "killed process",
        ),
        ({**_IN_STEP, "via": "agent", "exit": -9}, "was killed by SIGKILL", "killed process"),
        (
            {**_IN_STEP, "via": "ssh", "exit": 255, "look": Look(came="ran", state="gone")},
            "is gone without a word",
            "killed process",
        ),
        ({**_IN_STEP, "via": "ssh", "exit": 255}, "is gone without a word", "killed process"),
        (
            {**_NEVER, "via": "ssh", "mute": True},
            "ssh goes in, and its channel brings nothing back",
            "echo here",
        ),
        (
            {**_IN_STEP, "look": Look(came="ran", state="D", wchan="nvidia_ioctl")},
            "(state D in nvidia_ioctl)",
            "kernel log",
        ),
        (
            {**_NEVER, "via": "ssh", "exit": 1, "printed": "This account is currently not available."},
            "ran another command than ours, which ended with status 1 and said 'This account is currently not",
            "ForceCommand",
        ),
        (
            {**_NEVER, "via": "ssh", "exit": 0},
            "ran another command than ours, which ended with status 0; or its login shell ended first (exit",
            "first line of ~/.bashrc",
        ),
        ({**_NEVER, "via": "ssh", "exit": 255}, "sshd opened no session (MaxSessions)", "maxsessions"),
        (
            {**_NEVER, "via": "ssh", "exit": 1, "detail": "rrsync: only rsync is allowed"},
            "let us in and ran another command than ours, which refused it: 'rrsync: only rsync is allowed'",
            "command=",
        ),
        (
            {**_NEVER, "via": "ssh", "exit": 1, "detail": "qemu: unsupported syscall"},
            "ssh ended with status 1: qemu: unsupported syscall, before",
            "by hand",
        ),
        (
            {**_NEVER, "via": "ssh", "look": Look(came="in")},
            "its login shell did not run our command in 26 s",
            ".bashrc",
        ),
        (
            {**_NEVER, "via": "ssh", "look": Look(came="ran")},
            "our agent did not begin to speak in 26 s",
            "time ssh h3",
        ),
        ({**_NEVER, "via": "ssh", "look": Look(came="no")}, "neither came in nor was refused in 26 s", "ssh -v"),
        (
            {**_IN_STEP, "detail": "its connection closed; it had joined from 10.0.0.3"},
            "its ncclcheck is gone",
            "ping -c 3 10.0.0.3",
        ),
        (
            {**_IN_STEP, "detail": "nothing was heard from it for 15 s; it had joined from 10.0.0.3"},
            "nothing came from it for 15 s",
            "ping -c 3 10.0.0.3",
        ),
        (
            {**_IN_STEP, "detail": "ncclcheck on this node was ended by signal 2"},
            "ended there by signal 2",
            "tmux",
        ),
        (
            {**_NEVER, "detail": "h3 (10.0.0.3) joined and left again before the run began"},
            "left again before the run began",
            "Start the same command",
        ),
    ],
)
def test_signs(silence: dict[str, Any], what: str, fix: str) -> None:
    finding = finding_of(**silence)
    assert what in finding.what
    assert fix in _fixes(finding)
    assert ("kernel log" in _fixes(finding)) is (fix == "kernel log")


def test_a_node_that_was_never_started_is_to_be_started() -> None:
    meeting = Meeting(
        endpoint="10.0.0.1:29500",
        told_by="--rdzv-endpoint",
        outcome="open",
        arrivals=[Arrival(outcome="joined", node_rank=1, name="h2", address="10.0.0.2", nodes=3)],
    )
    silence = Silence(node="node rank 2", last_step="", since_s=2.0, detail="it did not join within 10 s")
    (finding,) = findings_of(silence, launcher="join", meeting=meeting)
    assert "did not join within 10 s" in finding.what
    line = "ncclcheck bench --nodes 3 --node-rank 2 --rdzv-endpoint 10.0.0.1:29500"
    assert finding.remedies[0].commands == [line]


def test_a_prolog_that_fails_comes_before_the_job_that_ends_of_it() -> None:
    ended = "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 2"
    failed = "srun: error: Task launch for StepId=2.0 failed on node h3: Job prolog failed"
    nodes = {"h1": ended, "h2": ended, "h3": failed}
    first, second = findings_of(
        *(Silence(node=name, last_step="", since_s=1.0, detail=detail) for name, detail in nodes.items())
    )
    assert (first.where.node, "prolog failed there" in first.what) == ("h3", True)
    assert second.what == "nothing was started on h[1-2]: Slurm ended the job, for its prolog failed on h3"
    assert second.remedies[0].commands == ["sbatch --exclude=h3 ..."]


def test_what_befell_all_of_a_step_is_said_once() -> None:
    detail = "slurmstepd: error: *** STEP 1.0 ON e0 CANCELLED AT 2026-11-22T10:00:00 ***"
    (finding,) = findings_of(
        *(Silence(node=f"e{n}", last_step=_STEP, since_s=3.0, detail=detail) for n in range(4))
    )
    assert finding.what.endswith("(e[0-3])")


@pytest.mark.parametrize(
    ("silence", "what"),
    [
        (_IN_STEP, f"it fell silent 4 s before the end, 21 s into {_STEP!r}"),
        ({"last_step": _STEP, "since_s": 4.0}, f"it fell silent 4 s before the end; its last step was {_STEP!r}"),
        (_NEVER, "it never answered in 26 s"),
        ({"last_step": "", "since_s": 26.0}, "it never answered in 26 s"),
    ],
)
def test_times_say_what_they_count(silence: dict[str, Any], what: str) -> None:
    finding = finding_of(**silence)
    assert finding.what == what
    assert "kernel log" not in _fixes(finding)


def test_a_probe_that_was_the_last_word_points_at_a_driver() -> None:
    finding = finding_of(last_step="probes nccl gpu storage", since_s=20.0, step_s=20.0, waited_s=21.0)
    assert "kernel log" in _fixes(finding)


def test_everything_that_was_seen_is_evidence() -> None:
    look = Look(came="no", said="down*, reason: Not responding")
    finding = finding_of(
        last_step="",
        since_s=9.0,
        via="srun",
        detail="srun: words of another kind",
        printed="Welcome",
        exit=1,
        look=look,
    )
    assert [(seen.source, seen.value) for seen in finding.evidence] == [
        ("last step", "none: its agent never spoke"),
        ("srun", "srun: words of another kind"),
        ("printed before our agent spoke", "Welcome"),
        ("exit status of srun", "1"),
        ("a second look", "Slurm says of the node: down*, reason: Not responding"),
    ]


def test_names_cannot_become_commands() -> None:
    finding = finding_of(node="$(id)", last_step="", since_s=9.0, via="ssh", look=Look(came="in"))
    assert "ssh -o BatchMode=yes '$(id)' true" in _fixes(finding)


def test_a_suspended_job_is_told_as_that() -> None:
    silence = Silence(
        node="b",
        last_step="start torchrun",
        since_s=20,
        look=Look(came="no", said="job 12: SUSPENDED"),
        via="srun",
    )
    (finding,) = silent.findings(Cluster(run=Run(silent=[silence])))
    assert "Slurm has suspended job 12" in finding.what
    assert any("scontrol resume 12" in remedy.commands for remedy in finding.remedies)


def test_an_agent_that_the_kernel_did_not_kill_was_ended_by_somebody() -> None:
    gone = Look(came="ran", state="gone", oom=False)
    silence = Silence(node="b", last_step="start torchrun", since_s=2, via="ssh", exit=255, look=gone)
    (finding,) = silent.findings(Cluster(run=Run(silent=[silence])))
    assert "killed, not by the OOM killer (dmesg)" in finding.what
    assert not any("memory" in remedy.text for remedy in finding.remedies)


_SHELL = StartStep(step="shell", at_s=1.0)


@pytest.mark.parametrize(
    ("start", "look", "what", "fix"),
    [
        (
            [_SHELL],
            Look(came="ran", state="S", wchan="poll"),
            "25 s later Python has not come to its first line",
            "-I -S",
        ),
        (
            [_SHELL],
            Look(
                came="ran",
                state="D",
                hangs="PYTHONPATH /nfs/sw/lib",
                mounts=["nfs4 /", "nfs4 /nfs/sw", "nfs4 /nfs"],
            ),
            "leads to /nfs/sw/lib, and a look into it does not come back, on the nfs4 mount /nfs/sw",
            "umount -l /nfs/sw",
        ),
        (
            [_SHELL, StartStep(step="python", at_s=16.0)],
            Look(came="ran", state="S", wchan="hrtimer_nanosleep", custom=["/run/site/sitecustomize.py"]),
            "Python takes 15 s to come to its first line there: /run/site/sitecustomize.py, which each start",
            "cat /run/site/sitecustomize.py",
        ),
        (
            [_SHELL, StartStep(step="python", at_s=1.2)],
            Look(came="ran", state="D", wchan="rpc_wait", files=["/nfs/x/msgspec.so"], mounts=["nfs4 /nfs"]),
            "`import ncclcheck`: it has /nfs/x/msgspec.so open (state D in rpc_wait), on the nfs4 mount /nfs",
            "time ssh h3",
        ),
        (
            [_SHELL],
            Look(came="ran", state="S", children=["lmutil lmstat -a"]),
            "it waits for a process that it started, 'lmutil lmstat -a'",
            "time ssh h3",
        ),
    ],
)
def test_the_start_of_an_agent_is_told_step_by_step(
    start: list[StartStep], look: Look | None, what: str, fix: str
) -> None:
    finding = finding_of(**_NEVER, via="ssh", start=start, look=look)
    assert what in finding.what
    assert fix in _fixes(finding)
    assert "shell after 1 s" in str(finding.evidence)


def test_limits_of_a_login_explain_an_end_without_a_word() -> None:
    finding = finding_of(**_NEVER, via="ssh", exit=255, look=Look(came="ran", tight=["stack size 65536"]))
    assert "limits of a login there: stack size 65536" in finding.what
    assert "ulimit" in _fixes(finding)


def test_an_agent_whose_output_comes_as_errors_is_told_as_that() -> None:
    words = "ncclcheck: its agent's words come on its error output"
    finding = finding_of(**_NEVER, via="ssh", look=Look(came="in"), detail=words)
    assert "turns output into errors (exec 1>&2" in finding.what

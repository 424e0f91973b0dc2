"""A second look at a silent node, and what a link keeps of a child that never spoke as an agent does."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclcheck.launch.agents import Closed, Events, ProcessLink
from ncclcheck.launch.remote import look
from ncclcheck.probes.facts import Look
from ncclcheck.run.follower import ended

_ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child
        child.kill()


def test_it_sees_a_process_that_is_stopped_and_lets_it_go_on(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    assert look.take(look.words(sleeper.pid), _ENV, sleeper.pid, 10).state == "T"
    subprocess.run(look.go_on(sleeper.pid), check=True, timeout=10)
    os.waitid(os.P_PID, sleeper.pid, os.WCONTINUED)
    assert look.take(look.words(sleeper.pid), _ENV, sleeper.pid, 10).state == "S"


def test_it_sees_a_process_that_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    looked = look.take(look.words(sleeper.pid), _ENV, sleeper.pid, 10)
    assert (looked.came, looked.state) == ("ran", "gone")  # whether the kernel's log may be read is the host's


def test_without_a_process_it_says_that_a_command_runs() -> None:
    looked = look.take(look.words(None), _ENV, None, 10)
    assert (looked.came, looked.state) == ("ran", "")


@pytest.mark.parametrize(
    ("words", "came"),
    [
        ('Authenticated to h3 ([10.0.0.3]:22) using "publickey".', "in"),  # OpenSSH 8.8 and later
        ("Authenticated to h3 ([10.0.0.3]:22).", "in"),
        ("ssh: connect to host h3 port 22: Connection timed out", "no"),
    ],
)
def test_how_far_ssh_came(words: str, came: str) -> None:
    swallows = ["/bin/sh", "-c", 'echo "$1" >&2; exec sleep 60', "sh", words]
    assert look.take(swallows, _ENV, 7, 0.5) == Look(came=came)  # type: ignore[arg-type]


def test_a_name_of_a_process_cannot_pass_for_its_state() -> None:
    line = "ncclcheck-stat 7 (x) T (y) S 1 7 7 0"
    assert look.take(["/bin/echo", line], _ENV, 7, 10).state == "S"


def test_what_a_child_prints_before_it_ends_is_kept_with_its_status() -> None:
    events = Events()
    argv = ["/bin/sh", "-c", "echo This account is currently not available.; echo why >&2; exit 3"]
    link = ProcessLink({4: "h3"}, argv, _ENV, events)
    assert events.get(timeout=10) == Closed(4, "why", "This account is currently not available.", "agent", 3)
    link.close(5)


def test_a_child_that_speaks_for_many_speaks_for_none() -> None:
    events = Events()
    link = ProcessLink({0: "h1", 1: "h2"}, ["/bin/sh", "-c", "echo Welcome; exit 3"], _ENV, events)
    assert [events.get(timeout=10) for _ in "12"] == [Closed(0, "", "", "agent"), Closed(1, "", "", "agent")]
    link.close(5)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-9, "last words\nncclcheck: h2: its agent was ended by SIGKILL"),
        (1, "last words"),
        (None, "last words"),
    ],
)
def test_a_node_of_a_join_says_which_signal_ended_its_agent(status: int | None, words: str) -> None:
    assert ended("h2", Closed(1, "last words", exit=status)) == words


def test_what_holds_up_the_start_of_an_agent_is_seen(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("")
    path = tmp_path / "held.txt"
    path.write_text("x")
    script = f"exec 7<{path}; sleep 60 & echo ready; wait"
    env = {**_ENV, "PYTHONPATH": f"{tmp_path}:/not/there"}
    with subprocess.Popen(
        ["/bin/sh", "-c", script], env=env, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        looked = look.take(look.words(child.pid, begun=False), _ENV, child.pid, 10)
        subprocess.run(look.end(child.pid), timeout=10, check=False)  # no process of ours: it is left alone
        assert child.poll() is None
        os.killpg(child.pid, signal.SIGKILL)
    assert looked.custom == [f"{tmp_path}/sitecustomize.py"]
    assert looked.children == ["sleep 60"]
    assert str(path) in looked.files
    assert (looked.hangs, looked.tight) == ("", [])


def test_a_folder_that_does_not_answer_and_a_tight_limit_are_read() -> None:
    lines = "ncclcheck-stat 7 (python) D 1\nncclcheck-limit Max stack size  65536  unlimited  bytes\n"
    lines += "ncclcheck-mount nfs4 /nfs\nncclcheck-hangs PYTHONPATH /nfs/lib"
    looked = look.take(["/bin/echo", lines], _ENV, 7, 10)
    assert (looked.hangs, looked.mounts) == ("PYTHONPATH /nfs/lib", ["nfs4 /nfs"])
    assert looked.tight == ["stack size 65536"]


def test_records_that_come_on_stderr_are_told_as_that_and_not_kept() -> None:
    script = "echo login >&2; echo 'ncclcheck-step h1 shell 7' >&2; echo '3 0 1/1 {}' >&2"
    events = Events()
    ProcessLink({3: "h1"}, ["/bin/sh", "-c", script], _ENV, events)
    closed = events.get(timeout=10)
    assert isinstance(closed, Closed)
    assert closed.detail == "login\nncclcheck: its agent's words come on its error output"

"""The file by which nodes find out whether they stand in one directory: real children, real ways to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from ncclcheck.base import wire
from ncclcheck.probes.facts import Door, Marks, Unread
from ncclcheck.probes.reach import MarkFile
from tests.conftest import ROOT, environment


def door(node: int, file: str) -> Door:
    return Door(
        node=node, name=f"h{node}", interface="lo", address="127.0.0.1", tcp_port=1, udp_port=1, mtu=1500,
        token="", file=file,
    )  # fmt: skip


@pytest.fixture
def child() -> Iterator[Callable[[MarkFile], psutil.Process]]:
    """The child of a mark; it goes on after the test."""
    stopped: list[psutil.Process] = []

    def find(mark: MarkFile) -> psutil.Process:
        assert mark._child is not None
        stopped.append(psutil.Process(mark._child.pid))
        return stopped[0]

    yield find
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _seen(*folders: Path, look_s: float = 0.3) -> list[Marks]:
    """What a node in each of these folders finds, and that nothing is left."""
    made = [MarkFile(str(folder), look_s=look_s) for folder in folders]
    doors = [door(number, mark.file()) for number, mark in enumerate(made)]
    for mark, me in zip(made, doors, strict=True):
        mark.look(me, doors)
    marks_of = [mark.marks() for mark in made]
    for mark in made:
        mark.close(20)  # seconds; it takes some hundredths
    assert not [name for folder in folders for name in folder.glob(".ncclcheck-*")]
    assert all(isinstance(marks, Marks) for marks in marks_of), marks_of
    return [marks for marks in marks_of if isinstance(marks, Marks)]


def test_one_directory_by_two_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    begun = time.monotonic()
    here, there = _seen(tmp_path / "real", tmp_path / "link", look_s=60)
    assert time.monotonic() - begun < 50  # what is there is not waited for
    assert (here.seen, here.missing, there.seen, there.missing) == (["h1"], [], ["h0"], [])
    assert isinstance(here.written_s, float)


def test_a_directory_apart(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    seen = _seen(tmp_path / "a", tmp_path / "a", tmp_path / "b")
    assert [marks.seen for marks in seen] == [["h1"], ["h0"], []]
    assert [marks.missing for marks in seen] == [["h2"], ["h2"], ["h0", "h1"]]


def test_a_file_that_comes_late_is_found(tmp_path: Path) -> None:
    late = f".ncclcheck-{0:032x}"
    with closing(MarkFile(str(tmp_path))) as mark:
        me = door(0, mark.file())
        mark.look(me, [me, door(1, late)])
        time.sleep(0.1)
        (tmp_path / late).touch()
        marks = mark.marks()
    assert isinstance(marks, Marks)
    assert marks.seen == ["h1"]


def test_only_names_of_our_own_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with closing(MarkFile(str(tmp_path))) as mark:
        me = door(0, mark.file())
        mark.look(me, [me, door(1, "other"), door(2, "../../etc/passwd"), door(3, "")])
        marks = mark.marks()
    assert isinstance(marks, Marks)
    assert (marks.seen, marks.missing) == ([], [])


def test_a_directory_that_takes_no_file() -> None:
    with closing(MarkFile("/proc/self")) as mark:
        assert mark.file() == ""
        mark.look(door(0, ""), [door(0, "")])
        marks = mark.marks()
    assert isinstance(marks, Marks)
    assert isinstance(marks.written_s, Unread)
    assert marks.written_s.kind == "denied"


def test_a_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with closing(MarkFile()) as mark:
        assert mark.file() == ""
        mark.look(door(0, ""), [door(0, "")])
        assert isinstance(mark.marks(), Unread)


def test_a_server_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, child: Callable[[MarkFile], psutil.Process]
) -> None:
    begun = time.monotonic()
    mark = MarkFile(str(tmp_path), patience_s=1.0)
    child(mark).suspend()
    assert mark.file() == ""
    mark.look(door(0, ""), [door(0, ""), door(1, f".ncclcheck-{1:032x}")])
    marks = mark.marks()
    mark.close()
    assert isinstance(marks, Unread)
    assert marks.kind == "timed_out"
    assert time.monotonic() - begun < 2.5


def test_a_loaded_disk_is_waited_for(tmp_path: Path, child: Callable[[MarkFile], psutil.Process]) -> None:
    with closing(MarkFile(str(tmp_path))) as mark:
        making = child(mark)
        making.suspend()
        threading.Timer(1.5, making.resume).start()
        assert mark.file()


def test_a_server_that_dies_in_between(tmp_path: Path, child: Callable[[MarkFile], psutil.Process]) -> None:
    with closing(MarkFile(str(tmp_path), patience_s=1.5)) as mark:
        me = door(0, mark.file())
        child(mark).suspend()
        mark.look(me, [me, door(1, f".ncclcheck-{1:032x}")])
        marks = mark.marks()
    assert isinstance(marks, Unread)
    assert marks.kind == "timed_out"


def _agent(folder: Path) -> tuple[subprocess.Popen[bytes], list[Path]]:
    """A real agent whose door is open, and its files."""
    argv = [sys.executable, "-m", "ncclcheck.node.agent", "--node", "0", "--name", "a", "--probe-seconds", "5"]
    agent = subprocess.Popen(
        argv, cwd=folder, env=environment(PYTHONPATH=str(ROOT)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdin.write(wire.order(0, wire.Listen(address="127.0.0.1")))
    agent.stdin.flush()
    assert any(b'"listening"' in line for line in agent.stdout)
    return agent, list(folder.glob(".ncclcheck-*"))


def _wait(agent: subprocess.Popen[bytes]) -> None:
    agent.communicate(timeout=10)


@pytest.mark.parametrize(
    "end",
    [
        _wait,  # end of file on stdin
        lambda agent: agent.send_signal(signal.SIGKILL),
        lambda agent: agent.send_signal(signal.SIGTERM),
    ],
    ids=["launcher gone", "killed", "terminated"],
)
def test_the_file_is_removed_however_the_agent_ends(
    tmp_path: Path, end: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    agent, files = _agent(tmp_path)
    assert len(files) == 1
    end(agent)
    _wait(agent)
    limit = time.monotonic() + 3
    while os.listdir(tmp_path) and time.monotonic() < limit:
        time.sleep(0.02)
    assert os.listdir(tmp_path) == []

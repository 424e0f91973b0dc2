"""What COMMAND leaves in the background goes on printing after COMMAND's end, as without `watch`."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import environment
from tests.watch.test_terminal import Terminal
from tests.watch.test_wrapping import WATCH

_LATE = "(sleep 2; printf 'late\\0\\377'; echo e >&2; sleep 1; echo later; echo $? >code) & echo early; exit "


def _both_ways(folder: Path, shell: str) -> list[tuple[int, bytes, bytes]]:
    """Exit code, stdout to its end, stderr to its end; without and with `watch`."""
    ends = []
    for before in ([], [*WATCH, "--"]):
        done = subprocess.run(
            [*before, "sh", "-c", shell],
            cwd=folder,
            env=environment(),
            capture_output=True,
            timeout=60,
            check=False,
        )
        ends.append((done.returncode, done.stdout, done.stderr))
    return ends


def test_its_output_is_the_same_to_the_end(tmp_path: Path) -> None:
    bare, watched = _both_ways(tmp_path, _LATE + "0")
    assert watched == bare
    assert bare[1:] == (b"early\nlate\0\xfflater\n", b"e\n")
    assert (tmp_path / "code").read_text() == "0\n"


def test_it_is_not_waited_for_and_its_end_is(tmp_path: Path) -> None:
    """COMMAND's exit code comes at once; who reads the pipe sees its end with the last process."""
    argv = [*WATCH, "--", "sh", "-c", "(until [ -e go ]; do sleep 0.1; done; echo late) & exit 3"]
    with subprocess.Popen(
        argv, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.wait(60) == 3
        (tmp_path / "go").touch()
        assert process.stdout is not None
        assert process.stdout.read() == b"late\n"


def test_one_stream_for_both(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        argv = [*WATCH, "--", "sh", "-c", "(sleep 1; echo a; echo b >&2; echo c; touch done) & exit 0"]
        subprocess.run(argv, cwd=tmp_path, stdout=file, stderr=file, timeout=60, check=True, env=environment())
    _wait_for(tmp_path / "done")
    assert _settled(tmp_path / "log") == "a\nb\nc\n"


def test_a_reader_that_leaves_ends_it_by_sigpipe(tmp_path: Path) -> None:
    job = "(trap 'echo $? >code' EXIT; sleep 1; seq 1000000; echo $? >of_seq) & echo early"
    shell = f"{shlex.join([*WATCH, '--'])} sh -c {shlex.quote(job)} | head -n 1"
    done = subprocess.run(
        ["sh", "-c", shell], cwd=tmp_path, capture_output=True, timeout=60, check=True, env=environment()
    )
    assert done.stdout == b"early\n"
    _wait_for(tmp_path / "of_seq")
    assert (tmp_path / "of_seq").read_text() == f"{128 + signal.SIGPIPE}\n"


def test_at_a_terminal(tmp_path: Path) -> None:
    screen = Terminal(tmp_path, ["/bin/bash", "--norc", "--noprofile", "-i"])
    try:
        screen.shows("shell> ")
        screen.type(f"{shlex.join([*WATCH, '--'])} sh -c '(sleep 2; echo late; test -t 1; echo is $?) & exit 0'\n")
        screen.shows(r"(?s)shell> .*late\r\nis 0\r\n")
        screen.type("exit\n")
        assert screen.code() == 0
    finally:
        screen.end()


def test_python_left_behind_says_nothing_of_a_box_that_is_gone(tmp_path: Path) -> None:
    script = "import time, sys; time.sleep(3); print('late'); open('done', 'w').close()"
    bare, watched = _both_ways(tmp_path, f"{shlex.join([sys.executable, '-c', script])} & exit 0")
    assert watched == bare == (0, b"late\n", b"")


def test_nothing_of_ours_outlives_it(tmp_path: Path) -> None:
    argv = [*WATCH, "--", "sh", "-c", "sleep 2 & exit 0"]
    subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=60, check=True, env=environment())
    end = time.monotonic() + 20
    while _ours():
        assert time.monotonic() < end, _ours()
        time.sleep(0.1)


def _ours() -> list[str]:
    """Processes of ours that relay for this test's children."""
    commands = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if "watch/afterwards.py" in command and sys.executable in command:
            commands.append(command)
    return commands


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists() or (path.suffix == "" and path.name != "done" and not path.read_text()):
        assert time.monotonic() < end, path
        time.sleep(0.05)


def _settled(path: Path) -> str:
    """Once the relay, which is another process, has written what was printed."""
    end, text = time.monotonic() + 10, ""
    while text.count("\n") < 3 and time.monotonic() < end:
        time.sleep(0.05)
        text = path.read_text()
    return text

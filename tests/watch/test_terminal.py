"""Programs that use the whole terminal work under `ncclcheck watch`: keys, modes, size, Ctrl-Z."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import environment

WATCH = [sys.executable, "-m", "ncclcheck", "watch", "--"]
_LIMIT_S = 60.0  # of a start on a busy machine
_ROWS, _COLUMNS = 24, 80
_CURSES = """
import curses
def main(screen):
    screen.addstr(0, 0, "press a key"); screen.refresh()
    return screen.getch()
print("key", curses.wrapper(main))
"""
_SIZE = """
import os, signal, time
signal.signal(signal.SIGWINCH, lambda *_: print("size", *os.get_terminal_size(1), flush=True))
print("ready", flush=True)
time.sleep(120)
"""


class Terminal:
    """What a person at a terminal does and sees."""

    def __init__(self, folder: Path, argv: list[str]) -> None:
        self.pid, self.file = pty.fork()
        if not self.pid:
            os.chdir(folder)
            os.execve(argv[0], argv, {**environment(), "TERM": "xterm", "PS1": "shell> "})
        self.seen = b""
        self.resize(_ROWS, _COLUMNS)

    def resize(self, rows: int, columns: int) -> None:
        """The window gets another size."""
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Press them."""
        self.seen = b""
        os.write(self.file, keys.encode())

    def shows(self, words: str) -> None:
        """Wait for a pattern."""
        end = time.monotonic() + _LIMIT_S
        while not re.search(words.encode(), self.seen):
            assert time.monotonic() < end, self.seen[-2000:]
            if select.select([self.file], [], [], 1)[0]:
                with suppress(OSError):
                    self.seen += os.read(self.file, 65536)

    def code(self) -> int:
        """The exit code, once all is read."""
        end = time.monotonic() + _LIMIT_S
        while time.monotonic() < end:
            if select.select([self.file], [], [], 0.1)[0]:
                with suppress(OSError):
                    self.seen += os.read(self.file, 65536)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(self.seen[-2000:])

    def end(self) -> None:
        """Nothing is left of it."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.file)


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A folder with a file of 200 lines."""
    (tmp_path / "numbers").write_text("".join(f"line {n}\n" for n in range(1, 201)))
    return tmp_path


@pytest.mark.parametrize("program", ["less", "more"])
def test_a_pager_gets_its_keys_and_leaves_the_terminal_as_it_was(numbers: Path, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    screen = Terminal(numbers, [*WATCH, program, "numbers"])
    try:
        usual = termios.tcgetattr(screen.file)
        screen.shows(r"line 20\r")
        screen.type(" ")
        screen.shows(r"line 40\r")
        screen.type("q")
        assert screen.code() == 0
        assert termios.tcgetattr(screen.file) == usual
    finally:
        screen.end()


def test_a_program_of_curses_gets_its_keys(tmp_path: Path) -> None:
    pytest.importorskip("curses")
    screen = Terminal(tmp_path, [*WATCH, sys.executable, "-c", _CURSES])
    try:
        screen.shows("press a key")
        time.sleep(0.5)  # for its modes to be seen: a key that comes before is read as a line
        screen.type("x")
        screen.shows("key 120\r\n")
        assert screen.code() == 0
    finally:
        screen.end()


def test_the_size_of_the_window_is_the_jobs_before_it_hears_of_it(tmp_path: Path) -> None:
    screen = Terminal(tmp_path, [*WATCH, sys.executable, "-c", _SIZE])
    try:
        screen.shows("ready")
        screen.resize(33, 99)
        screen.shows("size 99 33\r\n")
    finally:
        screen.type("\x03")
        assert screen.code() != 0
        screen.end()


def test_ctrl_z_stops_it_and_fg_goes_on(numbers: Path) -> None:
    if shutil.which("less") is None:
        pytest.skip("needs less")
    screen = Terminal(numbers, ["/bin/bash", "--norc", "--noprofile", "-i"])
    try:
        screen.shows("shell> ")
        screen.type(f"{shlex.join(WATCH)} less numbers\n")
        screen.shows(r"line 20\r")
        screen.type("\x1a")
        screen.shows("(?s)Stopped.*shell> ")
        screen.type("echo $((6 * 7))\n")
        screen.shows(r"42\r\n")
        screen.type("fg\n")
        screen.shows(r"line 20\r")
        screen.type(" ")
        screen.shows(r"line 40\r")
        screen.type("q")
        screen.shows("shell> ")
        screen.type("echo code $?; exit\n")
        screen.shows(r"code 0\r\n")
        assert screen.code() == 0
    finally:
        screen.end()

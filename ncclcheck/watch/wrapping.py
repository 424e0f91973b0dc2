"""COMMAND as a child that notices nothing: its input and terminal, its output byte for byte, signals, exit status.

The child stays in the caller's process group, so that the terminal's Ctrl-C and Ctrl-Z reach it as without us. A
signal that is sent to us alone is passed on; one that was sent to the whole group, as the terminal, `timeout` and
srun do, has reached the child already: a second process of the group that does nothing else tells the two apart.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from ncclcheck.watch import afterwards
from ncclcheck.watch.fullscreen import FullScreen

_FORWARDED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGCONT, signal.SIGWINCH, signal.SIGTSTP),
)
_UNTOLD = (signal.SIGCONT, signal.SIGWINCH, signal.SIGTSTP)  # these end nothing
_STOPPED_S = 0.05  # for what it printed last to be relayed
_STOPS_S = 3.0  # after Ctrl-Z in which COMMAND tidies up the screen and stops; one that goes on has ignored it
# Seconds in which the other process of the group has reported the signal too: it only wakes and writes a byte. A
# judgement, not measured: a hundred times what two switches of a process take on an idle machine.
_TOGETHER_S = 0.2
# Seconds after COMMAND's failure in which what it left behind is heard for the box: while it prints, and at most.
_IDLE_S, _LAST_S = 0.5, 5.0
_CHUNK = 65536  # bytes of a read: the capacity of a pipe. Source: pipe(7)
OUTPUT = "NCCLCHECK_BOX_OUTPUT"  # by which a process of the job knows that it prints to us
_NO_SIZE = struct.pack("HHHH", 0, 0, 0, 0)


class Got(NamedTuple):
    """A signal that reached us. sender: the pid, 0 for the kernel; of_group: all processes of the group got it."""

    number: int
    sender: int
    of_group: bool


class Callbacks(NamedTuple):
    """What is to be said of the job while it runs."""

    printed: Callable[[str, bytes], None]
    signalled: Callable[[Got], None]
    started: Callable[[int], int]  # gives a descriptor that can be read when `spoke` is to be called
    spoke: Callable[[bytes], None]


def run(argv: Sequence[str], env: Mapping[str, str], callbacks: Callbacks) -> int:
    """Start it and wait for it; its status as subprocess gives it, negative for a signal. Raises OSError."""
    taken = [signals for signals in _FORWARDED if signal.getsignal(signals) != signal.SIG_IGN]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, taken)
    group = _SignalGroup(taken, before)
    try:
        streams = _OutputStreams()
        child = subprocess.Popen(
            [*argv], env={**env, OUTPUT: streams.identities()}, stdout=streams.given(1), stderr=streams.given(2),
            preexec_fn=lambda: _restore(before),  # noqa: PLW1509 - no thread has been started yet
            close_fds=False,
        )  # fmt: skip
        streams.started()
        return _Conversation(child, streams, group, callbacks).status()
    finally:
        group.end()


def _restore(mask: set[int | signal.Signals]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _SignalGroup:
    """The process that only notices which signals the group was sent."""

    def __init__(self, taken: Sequence[signal.Signals], before: set[int | signal.Signals]) -> None:
        self.taken = taken
        self.wakeup, tell = os.pipe()
        alive, self._hold = os.pipe()
        os.set_blocking(self.wakeup, False)
        self._pid = os.fork()
        if self._pid:
            os.close(tell)
            os.close(alive)
            return
        try:  # the child: it never returns
            os.close(self._hold)
            os.close(self.wakeup)
            for signals in taken:
                signal.signal(signals, lambda number, _: os.write(tell, bytes([number])) and None)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.read(alive, 1)
        finally:
            os._exit(0)

    def got(self, number: int) -> bool:
        """Whether it was sent this signal too, now."""
        until = time.monotonic() + _TOGETHER_S
        while (left := until - time.monotonic()) > 0:
            if select.select([self.wakeup], [], [], left)[0] and number in os.read(self.wakeup, 64):
                return True
        return False

    def end(self) -> None:
        """It leaves when we do; now where we go on."""
        os.close(self._hold)
        os.close(self.wakeup)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


class _OutputStreams:
    """A pipe for each of stdout and stderr, one for both where they are the same file; a pty for a terminal."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}  # of the job
        self.sources: dict[int, tuple[str, int]] = {}  # our end -> its name, and where it goes
        self._terminals: list[int] = []
        self.screens: list[FullScreen] = []
        same = _identity(1) is not None and _identity(1) == _identity(2)
        for number, name in ((1, "both" if same else "out"), (2, "err")):
            if _identity(number) is None:
                continue
            if number == 2 and same:
                self._ends[2] = self._ends[1]
                continue
            ours, theirs = self._terminal(number) if os.isatty(number) else os.pipe()
            self._ends[number] = theirs
            self.sources[ours] = (name, number)

    def _terminal(self, number: int) -> tuple[int, int]:
        ours, theirs = pty.openpty()
        with suppress(termios.error):
            modes = termios.tcgetattr(number)
            modes[1] &= ~termios.OPOST  # the user's own terminal does what is to be done with the lines
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(theirs, termios.TCSANOW, modes)
        self._terminals.append(ours)
        with suppress(OSError):
            self.screens.append(FullScreen(ours, theirs, number))
        self.resize(number)
        return ours, theirs

    def resize(self, number: int = 1) -> bool:
        """As large as the user's terminal; whether it was another size."""
        changed = False
        for ours in self._terminals:
            with suppress(OSError):
                size, before = (fcntl.ioctl(terminal, termios.TIOCGWINSZ, _NO_SIZE) for terminal in (number, ours))
                fcntl.ioctl(ours, termios.TIOCSWINSZ, size)
                changed |= size != before
        return changed

    def given(self, number: int) -> int | None:
        """What the job gets; None where it is closed here as well."""
        return self._ends.get(number)

    def identities(self) -> str:
        """Device and inode of the job's ends."""
        stats = [os.fstat(end) for end in {*self._ends.values()}]
        return " ".join(f"{stat.st_dev}:{stat.st_ino}" for stat in stats)

    def leave_screens(self) -> None:
        """The user's terminal is as it was."""
        for screen in self.screens:
            with suppress(termios.error):
                screen.end()

    def started(self) -> None:
        """The job has its ends."""
        for end in {*self._ends.values()}:
            os.close(end)


def _identity(number: int) -> tuple[int, int, int] | None:
    """What a descriptor leads to; None where it was closed when we began: its number may be another file's now."""
    if (sys.stdout, sys.stderr)[number - 1] is None:
        return None
    try:
        stat = os.fstat(number)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_rdev


class _Conversation:
    """What passes between the job and its surroundings until it ends."""

    def __init__(
        self, child: subprocess.Popen[bytes], streams: _OutputStreams, group: _SignalGroup, callbacks: Callbacks
    ) -> None:
        self._child, self._streams, self._group, self._told = child, streams, group, callbacks
        self._watcher = callbacks.started(child.pid)
        self._took, self._told_of = threading.Event(), threading.Event()
        self._ended, tell = os.pipe()
        threading.Thread(target=self._wait, args=(tell,), daemon=True).start()
        threading.Thread(target=self._take_signals, daemon=True).start()

    def _wait(self, tell: int) -> None:
        self._child.wait()
        os.close(tell)

    def _take_signals(self) -> None:
        while True:
            with suppress(InterruptedError):
                info = signal.sigwaitinfo(self._group.taken)
                self._took.set()
                if info.si_signo == signal.SIGWINCH:
                    if self._streams.resize():  # the job may have asked for the size before that
                        os.killpg(0, signal.SIGWINCH)
                    continue
                got = Got(info.si_signo, info.si_pid, self._group.got(info.si_signo))
                if not got.of_group:
                    with suppress(OSError):
                        self._child.send_signal(got.number)
                if got.number not in _UNTOLD:
                    self._told.signalled(got)
                self._told_of.set()
                if got.number == signal.SIGTSTP:
                    self._stop_too()

    def _stop_too(self) -> None:
        """Once COMMAND has stopped: its last words are relayed before, and who goes on is not left alone."""
        until = time.monotonic() + _STOPS_S
        while time.monotonic() < until:
            with suppress(OSError, IndexError), open(f"/proc/{self._child.pid}/stat", encoding="utf-8") as file:
                if file.read().rpartition(")")[2].split()[0] == "T":
                    time.sleep(_STOPPED_S)
                    self._streams.leave_screens()
                    os.kill(os.getpid(), signal.SIGSTOP)
                    return
            time.sleep(_STOPPED_S)

    def status(self) -> int:
        """Relay until the end of the job, and what it printed last."""
        screens = self._streams.screens
        while self._ended not in self._relayed(
            [self._ended], min((screen.wait_s for screen in screens), default=None)
        ):
            for screen in screens:
                screen.follow(self._child.pid)
        status = self._child.wait()
        idle_s = _IDLE_S if status else 0.0
        until = time.monotonic() + _LAST_S
        while self._streams.sources and time.monotonic() < until:
            if not self._relayed([], idle_s):
                break
        self._streams.leave_screens()
        if self._streams.sources:
            afterwards.hand_over({ours: target for ours, (_, target) in self._streams.sources.items()})
        if status < 0 and self._took.wait(_TOGETHER_S):  # it may have died before we were told of the same signal
            self._told_of.wait(2 * _TOGETHER_S)
        return status

    def _relayed(self, more: list[int], seconds: float | None) -> list[int]:
        """What was ready within so many seconds."""
        watcher = [self._watcher] if self._watcher >= 0 else []
        ready = select.select([*self._streams.sources, *watcher, *more], [], [], seconds)[0]
        for file in ready:
            if file in self._streams.sources:
                self._relay(file)
            elif file == self._watcher:
                self._hear()
        return [file for file in ready if file != self._watcher]

    def _hear(self) -> None:
        if data := os.read(self._watcher, _CHUNK):
            self._told.spoke(data)
        else:
            self._watcher = -1

    def _relay(self, file: int) -> None:
        name, target = self._streams.sources[file]
        try:
            data = os.read(file, _CHUNK)
        except OSError:  # EIO of a pty whose other end is closed
            data = b""
        if not data or not afterwards.written(target, data):
            del self._streams.sources[file]
            os.close(file)  # a job whose reader has left is told so by SIGPIPE, as without us
        if data:
            self._told.printed(name, data)

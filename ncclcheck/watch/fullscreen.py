"""A program such as `less` that sets the modes of the terminal which it was given, and reads its keys there.

That terminal is a pty of ours, for the copy of the output. What the program sets is set for the user's terminal
too; keys are handed on only while a process of the job is in a read of the pty: all others read the user's own.
"""

from __future__ import annotations

import os
import select
import termios
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_INPUT, _OUTPUT, _LOCAL = 0, 1, 3  # places in what termios.tcgetattr gives
_READ = ("0x0", "0", "63", "0x3f")  # read(2) on x86-64 and on aarch64, as /proc/PID/syscall has it
_MOST_KEYS = 1024  # bytes at once: what is pasted comes in pieces
_MOST_PROCESSES = 512  # of a job that are looked at for one that reads the terminal: chosen, several hosts' worth
WAIT_S, KEYS_S = 0.2, 0.03  # between looks at the modes; at keys: half of what people notice


class FullScreen:
    """One pty and the user's terminal behind it."""

    def __init__(self, ours: int, theirs: int, number: int) -> None:
        self._ours, self._users, self._name = ours, number, os.ttyname(theirs)
        self._usual: list[Any] | None = None  # of the user's terminal, while a program has other modes
        self._set: list[Any] = []
        self._keys = -1
        with suppress(OSError):
            self._keys = os.open(os.ttyname(number), os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)

    @property
    def wait_s(self) -> float:
        """Seconds after which it is to be looked at again."""
        return WAIT_S if self._usual is None else KEYS_S

    def follow(self, root: int) -> None:
        """The modes that a program has set since the last look, and keys for who reads the pty."""
        with suppress(OSError, termios.error):
            if os.tcgetpgrp(self._users) != os.getpgrp():
                return  # in the background: it would be stopped
            modes = termios.tcgetattr(self._ours)
            if modes[_LOCAL] & termios.ICANON:
                self.end()
            elif self._usual is None or modes[_LOCAL:] != self._set[_LOCAL:] or modes[_OUTPUT]:
                self._mirror(modes)
            pressed = self._usual is not None and self._keys >= 0 and select.select([self._keys], [], [], 0)[0]
            if pressed and any(_reads(pid, self._name) for pid in _below(root)):
                os.write(self._ours, os.read(self._keys, _MOST_KEYS))

    def _mirror(self, modes: list[Any]) -> None:
        if self._usual is None:
            self._usual = termios.tcgetattr(self._users)
        users = [*modes]
        if not modes[_OUTPUT] & termios.OPOST:
            users[_OUTPUT] = self._usual[_OUTPUT]
        termios.tcsetattr(self._users, termios.TCSANOW, users)
        modes[_OUTPUT] &= ~termios.OPOST  # lines are ended once, by the user's terminal
        self._set = modes
        termios.tcsetattr(self._ours, termios.TCSANOW, modes)

    def end(self) -> None:
        """The user's terminal as it was."""
        usual, self._usual = self._usual, None
        if usual is not None:
            termios.tcsetattr(self._users, termios.TCSADRAIN, usual)


def _below(root: int) -> Iterator[int]:
    """This process and all that come from it."""
    left, seen = [root], 0
    while left and seen < _MOST_PROCESSES:
        pid = left.pop()
        seen += 1
        yield pid
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                    left += map(int, file.read().split())


def _reads(pid: int, name: str) -> bool:
    """Whether its main thread is in a read of this file."""
    with suppress(OSError, IndexError, ValueError):
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            call = file.read().split()
        return call[0] in _READ and os.readlink(f"/proc/{pid}/fd/{int(call[1], 16)}") == name
    return False

"""The only door to the machine: files under a root prefix, programs, and answers of system calls.

Nothing here raises: what cannot be had is an Unread with its reason. A recorded machine (`--sysroot DIR`)
holds copies of /sys, /proc, /etc and /dev, and in `DIR/.ncclcheck/NAME.json` what comes from system calls.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine import process

T = TypeVar("T")

# of a file of /proc, /sys or /etc; chosen, they have some KB, /proc/mounts of a host of containers more
_MOST_BYTES = 2**20


class Machine:
    """A live machine (root "/"), a live host mounted in a container (`host_root`), or a recorded one."""

    def __init__(self, root: str = "/", *, recorded: bool = False) -> None:
        self.root = os.path.realpath(root)
        self.recorded = recorded

    def path(self, path: str) -> str:
        """Where an absolute path of the machine stands in this process's file system."""
        return path if self.root == "/" else self.root + path

    def read(self, path: str, most: int = _MOST_BYTES) -> str | Unread:
        """A text file, at most `most` bytes, undecodable bytes as backslash escapes."""
        data = self.read_bytes(path, most)
        return data if isinstance(data, Unread) else data.decode(errors="backslashreplace")

    def read_bytes(self, path: str, most: int = _MOST_BYTES, offset: int = 0) -> bytes | Unread:
        """A piece of a regular file; a pipe or a device is refused, for it could wait for ever."""
        if leaving := self._leaves(path):
            return leaving
        try:
            file = os.open(self.path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            return _unread(path, error)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return Unread("broken", f"{path} is not a regular file")
            return _read_all(file, most, offset)
        except OSError as error:
            return _unread(path, error)
        finally:
            os.close(file)

    def line(self, path: str) -> str | Unread:
        """A file of one line, without its blanks."""
        text = self.read(path, 65536)
        return text if isinstance(text, Unread) else text.strip()

    def number(self, path: str) -> int | Unread:
        """A file that holds one decimal number."""
        text = self.line(path)
        if isinstance(text, Unread):
            return text
        try:
            return int(text)
        except ValueError:
            return Unread("broken", f"{path} holds {text[:40]!r}, not a number")

    def names(self, path: str) -> list[str] | Unread:
        """The names in a directory, sorted."""
        if leaving := self._leaves(path):
            return leaving
        try:
            return sorted(os.fsdecode(os.fsencode(name)) for name in os.listdir(self.path(path)))
        except (OSError, ValueError) as error:
            return _unread(path, error)

    def exists(self, path: str) -> bool:
        """Whether there is such a path; False also where a directory above may not be searched."""
        return os.path.lexists(self.path(path))

    def link(self, path: str) -> str | Unread:
        """The target of a symbolic link, as it is written."""
        try:
            return os.readlink(self.path(path))
        except (OSError, ValueError) as error:
            return _unread(path, error)

    def run(
        self, argv: Sequence[str], seconds: float, env: Mapping[str, str] | None = None
    ) -> process.Output | Unread:
        """Run a program with a time limit and no stdin."""
        if self.recorded:
            return Unread("recorded", f"{argv[0]} cannot be run on a recorded machine")
        return process.run(argv, seconds, env=env)

    def ask(self, name: str, shape: type[T], call: Callable[[], T | Unread]) -> T | Unread:
        """What a system call answers; on a recorded machine what `.ncclcheck/NAME.json` holds."""
        if self.recorded:
            recorded: T | Unread = self._recorded(name, shape)
            return recorded
        try:
            return call()
        except PermissionError as error:
            return Unread("denied", f"{name}: {error}")
        except Exception as error:
            return Unread("broken", f"{name}: {type(error).__name__}: {error}")

    def _recorded(self, name: str, shape: Any) -> Any:
        path = f"/.ncclcheck/{name}.json"
        data = self.read_bytes(path)
        if isinstance(data, Unread):
            return Unread("recorded", f"{name} is not in this recording ({path})")
        try:
            return _decode(data, shape)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Unread("broken", f"{path}: {error}")

    def _leaves(self, path: str) -> Unread | None:
        """A recorded tree is input from outside: its links must not lead out of it."""
        if self.root == "/":
            return None
        try:
            real = os.path.realpath(self.path(path))
        except ValueError as error:
            return _unread(path, error)
        inside = real == self.root or real.startswith(self.root + "/")
        return None if inside else Unread("recorded", f"{path} leads out of the recorded tree")


def _decode(data: bytes, shape: Any) -> Any:
    """One of the two; not as a union, for msgspec takes none of a struct and a dict."""
    try:
        return msgspec.json.decode(data, type=Unread)
    except msgspec.ValidationError:
        return msgspec.json.decode(data, type=shape)


def _read_all(file: int, most: int, offset: int) -> bytes:
    if offset:
        os.lseek(file, offset, os.SEEK_SET)
    pieces: list[bytes] = []
    while most > 0 and (piece := os.read(file, min(most, 2**20))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def _unread(path: str, error: Exception) -> Unread:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return Unread("absent", f"there is no {path}")
    if isinstance(error, PermissionError):
        return Unread("denied", f"{path} may not be read by this user")
    return Unread("broken", f"{path}: {getattr(error, 'strerror', None) or error}")

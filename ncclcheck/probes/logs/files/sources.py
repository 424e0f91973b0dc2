"""Names on the command line -> files to read: files, folders, globs, gzip, standard input."""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import os
import select
import stat
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from ncclcheck.probes.logs.files import docker

_MOST_FILES = 20_000  # of one command: chosen, ten for each of 2,000 nodes
_MOST_DEPTH = 8  # of folders: chosen, launchers put logs three to five deep
_GZIP = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # what a shell of Windows makes of `kubectl logs > FILE`
_HEAD = len(docker.HEADS[0])
_SILENCE_S = 60.0  # of a pipe, after which its writer counts as stuck: chosen


class NotThere(Exception):
    """A name that stands for no file; the text says why."""


class LogSource(NamedTuple):
    """One file. name: as it is shown. file: open for reading; None: it could not be opened, `problem` says why.

    Neither: a folder that holds no file.
    """

    name: str
    file: BinaryIO | None
    problem: str = ""


def names(given: Sequence[str]) -> list[str]:
    """The files that names, folders and globs stand for, each once. Raises NotThere.

    A folder without a file stands for itself where there is something else to read: a rank that was killed
    leaves no dump.
    """
    paths: dict[str, None] = {}
    for name in given:
        for path in [name] if name == "-" else _expanded(name):
            paths.setdefault(path)
            if len(paths) > _MOST_FILES:
                raise NotThere(f"{name!r} stands for more than {_MOST_FILES} files; name fewer")
    if all(os.path.isdir(path) for path in paths):
        raise NotThere(f"{' and '.join(map(repr, paths))} hold{'s' * (len(paths) == 1)} no file")
    return [*paths]


def _expanded(name: str) -> list[str]:
    try:
        if os.path.isdir(name):
            return _below(name)
        if os.path.lexists(name):
            return [name]
        matched = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else []
    except ValueError as error:  # a zero byte
        raise NotThere(f"{name!r}: {error}") from None
    files = [path for path in matched if not os.path.isdir(path)]
    if not files:
        raise NotThere(f"{name!r} is no file, no folder and matches none")
    return files


def _below(folder: str) -> list[str]:
    """The regular files of a folder; links to folders are not followed."""
    paths: list[str] = []
    for here, folders, files in os.walk(folder):
        deep = os.path.relpath(here, folder).count(os.sep) + 1
        folders[:] = sorted(folders) if deep < _MOST_DEPTH else []
        paths += [path for file in sorted(files) if os.path.isfile(path := os.path.join(here, file))]
        if len(paths) > _MOST_FILES:
            raise NotThere(f"{folder!r} holds more than {_MOST_FILES} files; name fewer")
    return paths or [folder]


def opened(paths: Sequence[str], until: float) -> Iterator[LogSource]:
    """Each file, open; closed when the next is asked for. until: by time.monotonic, when pipes are given up."""
    for path in paths:
        if os.path.isdir(path):
            yield LogSource(path, None)
            continue
        try:
            file = _open(path, until)
        except OSError as error:
            yield LogSource(path, None, error.strerror or str(error))
            continue
        with file:
            yield LogSource("standard input" if path == "-" else path, file)


def head(file: BinaryIO, size: int) -> bytes:
    """The first bytes, which are read again after it; none where reading fails."""
    try:
        return file.peek(size)[:size]  # type: ignore[attr-defined,no-any-return]  # gzip and buffers have it
    except (OSError, EOFError, zlib.error):
        return b""


def _open(path: str, until: float) -> BinaryIO:
    """Raises OSError."""
    if path == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise OSError(9, "standard input is closed")
        raw: BinaryIO = _piped(os.dup(sys.stdin.fileno()), until)
    else:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISREG(kind):
            raw = os.fdopen(descriptor, "rb", buffering=2**16)
        elif stat.S_ISFIFO(kind):
            raw = _piped(descriptor, until)
        else:
            os.close(descriptor)
            raise OSError(22, "it is a device, a socket or a folder")
    try:
        begin = raw.peek(_HEAD)[:_HEAD]  # type: ignore[attr-defined]  # a BufferedReader has it
    except OSError:
        raw.close()
        raise
    head = begin[:2]
    if begin in docker.HEADS:
        return io.BufferedReader(docker.Unwrapped(raw), 2**16)
    if head in _UTF16:
        return io.BufferedReader(_Utf8(raw), 2**16)
    if head != _GZIP:
        return raw
    unpacked = gzip.GzipFile(fileobj=raw)
    unpacked.myfileobj = raw  # type: ignore[assignment]  # it is closed with it
    return unpacked  # type: ignore[return-value]


def _piped(descriptor: int, until: float) -> BinaryIO:
    return io.BufferedReader(_Pipe(descriptor, until), 2**16)


class _Utf8(io.RawIOBase):
    """UTF-16 as UTF-8, so that all that comes after sees one kind of text."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-16")("replace")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """The next bytes: two of UTF-16 become three at most."""
        while data := self._file.read1(len(buffer) // 2):  # type: ignore[attr-defined]
            if text := self._decoder.decode(data).encode(errors="replace"):
                buffer[: len(text)] = text
                return len(text)
        return 0

    def close(self) -> None:
        """Also the file."""
        self._file.close()
        super().close()


class _Pipe(io.RawIOBase):
    """A pipe or terminal that is not waited for without a limit."""

    def __init__(self, descriptor: int, until: float) -> None:
        self._descriptor, self._until = descriptor, until

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """The next bytes. Raises OSError where none came in time."""
        patience = min(_SILENCE_S, max(0.0, self._until - time.monotonic()))
        if not select.select([self._descriptor], [], [], patience)[0]:
            raise OSError(110, f"it brought nothing for {patience:.0f} s and was not waited for")
        data = os.read(self._descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Also the descriptor."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()

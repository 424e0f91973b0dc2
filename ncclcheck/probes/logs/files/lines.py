"""Bytes of a log -> records of NCCL and all other lines, whatever launchers wrote before and between them.

The form of a record, by NVIDIA/nccl src/debug.cc of 2.3 to 2.32:
`[time]host:pid:tid [device] file:line (function) NCCL LEVEL text`; all but host, pid, tid and level may be absent.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import BinaryIO, NamedTuple

LONGEST = 4096  # NCCL itself cuts its lines at 1024 bytes
# bytes read at once: chosen, large enough for the speed of the loops over it, small enough for memory
_BLOCK = 2**20
MARK = b"NCCL "
_LEVELS = {
    b"INFO ": "INFO",
    b"WARN ": "WARN",
    b"TRACE": "TRACE",
    b"CALL ": "CALL",
    b"ABORT": "ABORT",
    b"ATTN ": "ATTN",
}
_HOST = 64  # characters of a host's name: HOST_NAME_MAX of Linux
_WHO = (
    r":(\d{1,10}):(\d{1,10}) (?:\[(-?\d{1,5})\] )?(?:\d{1,15}\.\d{1,9} )?"
    r"(?:([\w./+@~%=<>-]{1,200}:\d{1,7}) (?:\(\S{1,100}\) )?)?"
)
_RECORD = re.compile(rf"{_WHO}NCCL (INFO|WARN|TRACE|CALL|ABORT|ATTN) ")
_HEAD = re.compile(rf"([^\s:\[\]/<>|]{{1,{_HOST}}}){_WHO}$")
_END_OF_HOST = re.compile(rf"[^\s:\[\]/<>|]{{1,{_HOST}}}$")
_COLOUR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")


class Record(NamedTuple):
    """What NCCL printed. number: the line of the log. device: the thread's CUDA device, which is not the rank."""

    number: int
    host: str
    pid: int
    tid: int
    device: int | None
    level: str
    place: str
    text: str


class OtherLine(NamedTuple):
    """A line, or the part of one before the first record, that NCCL's own form does not begin."""

    number: int
    text: str


class _LineHead(NamedTuple):
    before: str
    host: str
    pid: int
    tid: int
    device: int | None
    place: str


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """Whole lines, about a MiB of them at once; of an endless line its beginning. Raises what reading raises."""
    rest, endless = b"", False
    broken: list[Exception] = []
    for data in _pieces_of(file, broken):
        if endless:
            _, end, data = data.partition(b"\n")  # noqa: PLW2901
            endless, data = not end, end + data  # noqa: PLW2901
        data = rest + data  # noqa: PLW2901
        whole = data.rfind(b"\n") + 1
        rest = data[whole:]
        if len(rest) > _BLOCK:
            rest, endless = rest[:LONGEST], True
        if whole:
            yield data[:whole]
    if rest:
        yield rest
    if broken:
        raise broken[0]


def _pieces_of(file: BinaryIO, broken: list[Exception]) -> Iterator[bytes]:
    """What came before an error is given, and the error kept: gzip that is cut off ends within a read."""
    while not broken:
        parts, size = [], 0
        try:
            while size < _BLOCK and (data := file.read1(_BLOCK)):  # type: ignore[attr-defined]  # all readers have it
                parts.append(data)
                size += len(data)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            broken.append(error)
        if not size:
            return
        yield b"".join(parts)


def read(file: BinaryIO, most: int | None = None) -> Iterator[Record | OtherLine]:
    """Everything in a log, in its order; of the file at most about so many bytes."""
    number = size = 0
    for block in blocks(file):
        for number, line in enumerate(block.removesuffix(b"\n").split(b"\n"), number + 1):  # noqa: B020 - goes on
            size += len(line) + 1
            yield from split(line, number)
            if most is not None and size > most:
                return


def split(line: bytes, number: int = 0) -> Sequence[Record | OtherLine]:
    """The records in one line: ranks that share a pipe cut each other's lines short and glue them together."""
    if b"\x1b" in line:
        line = _COLOUR.sub(b"", line)
    at = line.find(MARK)
    if at >= 0 and line.find(MARK, at + 5) < 0 and (level := _LEVELS.get(line[at + 5 : at + 10])):
        head = _head(line[:at])  # nearly all records of a thread have the same
        if head is not None:
            before, host, pid, tid, device, place = head
            text = line[at + 5 + len(level) : LONGEST].decode(errors="backslashreplace").strip()
            record = Record(number, host, pid, tid, device, level, place, text)
            return (OtherLine(number, before), record) if before else (record,)
    text = line[:LONGEST].decode(errors="backslashreplace").rstrip("\r\n")
    if at >= 0:
        return tuple(_pieces(text, number))
    return (OtherLine(number, text),) if text else ()


@lru_cache(maxsize=4096)
def _head(data: bytes) -> _LineHead | None:
    """What stands before `NCCL LEVEL`."""
    if len(data) > LONGEST:
        return None
    text = data.decode(errors="backslashreplace")
    match = _HEAD.search(text)
    if match is None:
        return None
    host, pid, tid, device, place = match.groups()
    at = None if device is None else int(device)
    return _LineHead(text[: match.start()], host, int(pid), int(tid), at, place or "")


def _pieces(text: str, number: int) -> Iterator[Record | OtherLine]:
    matches = list(_RECORD.finditer(text))
    hosts = [_host_before(text, record.start()) for record in matches]
    begins = [*(record.start() - len(host) for record, host in zip(matches, hosts, strict=True)), len(text)]
    if before := text[: begins[0]]:
        yield OtherLine(number, before)
    for match, host, end in zip(matches, hosts, begins[1:], strict=True):
        pid, tid, device, place, level = match.groups()
        at = None if device is None else int(device)
        words = text[match.end() : end]
        words = words.rstrip() if end == len(text) else words  # its last word may be at the next one's host
        yield Record(number, host, int(pid), int(tid), at, level, place or "", words)


def _host_before(text: str, end: int) -> str:
    match = _END_OF_HOST.search(text[max(0, end - _HOST) : end])
    return match[0] if match else ""

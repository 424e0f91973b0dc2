"""Bytes of a log -> records of NCCL and all other lines, whatever launchers wrote before and between them.

The form of a record, by NVIDIA/nccl src/debug.cc of 2.3 to 2.30:
`[time]host:pid:tid [device] file:line (function) NCCL LEVEL text`; all but host, pid, tid and level may be absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

LONGEST = 4096  # NCCL itself cuts its lines at 1024 bytes
_HOST = 64
_FORM = (
    r":(\d{1,10}):(\d{1,10}) (?:\[(-?\d{1,5})\] )?(?:\d{1,15}\.\d{1,9} )?"
    r"(?:([\w./+-]{1,200}:\d{1,7}) (?:\(\w{1,100}\) )?)?"
    r"NCCL (INFO|WARN|TRACE|CALL|ABORT) "
)
_RECORD = re.compile(_FORM)
_WHOLE = re.compile(rf"([^\s:\[\]/<>|]{{1,{_HOST}}}){_FORM}")
_END_OF_HOST = re.compile(rf"[^\s:\[\]/<>|]{{1,{_HOST}}}$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


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


class Other(NamedTuple):
    """A line, or the part of one before the first record, that NCCL's own form does not begin."""

    number: int
    text: str


def read(file: BinaryIO, most: int | None = None) -> Iterator[Record | Other]:
    """Everything in a log, in its order; of the file at most about so many bytes."""
    number = size = 0
    while line := file.readline(LONGEST):
        number += 1
        size += len(line)
        yield from split(line, number)
        while not line.endswith(b"\n") and (line := file.readline(LONGEST)):
            size += len(line)  # the rest of an endless line
            if most is not None and size > most:
                return
        if most is not None and size > most:
            return


def split(line: bytes, number: int = 0) -> Iterator[Record | Other]:
    """The records in one line: ranks that share a pipe cut each other's lines short and glue them together."""
    text = line.decode(errors="backslashreplace").rstrip("\r\n")
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    places = text.count("NCCL ")
    if places == 1 and (whole := _WHOLE.match(text)):  # nearly all lines of a log are like this
        yield _record(number, whole[1], whole.groups()[1:], text[whole.end() :])
    elif places:
        yield from _pieces(text, number)
    elif text:
        yield Other(number, text)


def _pieces(text: str, number: int) -> Iterator[Record | Other]:
    found = list(_RECORD.finditer(text))
    hosts = [_host_before(text, one.start()) for one in found]
    begins = [*(one.start() - len(host) for one, host in zip(found, hosts, strict=True)), len(text)]
    if before := text[: begins[0]]:
        yield Other(number, before)
    for one, host, end in zip(found, hosts, begins[1:], strict=True):
        yield _record(number, host, one.groups(), text[one.end() : end])


def _record(number: int, host: str, told: Sequence[str | None], text: str) -> Record:
    pid, tid, device, place, level = told
    at = None if device is None else int(device)
    return Record(number, host, int(pid or 0), int(tid or 0), at, level or "", place or "", text.rstrip())


def _host_before(text: str, end: int) -> str:
    found = _END_OF_HOST.search(text[max(0, end - _HOST) : end])
    return found[0] if found else ""

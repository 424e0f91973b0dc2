"""What the streamed probe said of a host -> facts. It comes from another machine: nothing is taken unread.

What ranks have written themselves is read by the code of `ncclcheck logs`.
"""

from __future__ import annotations

import base64
import tempfile
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ncclcheck.probes.facts import Flight, JobRecord, Live, Logs, Ras, RasLook
from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole
from ncclcheck.probes.facts.log.flight import Nanoseconds
from ncclcheck.probes.live.answers import ras_json, ras_text
from ncclcheck.probes.logs import flight
from ncclcheck.probes.logs.reading import LogReading

_MOST_BYTES = 8 * 2**20  # of one piece, as the probe keeps it
_MOST_IN_ALL = 256 * 2**20  # of all hosts
_READ_S = 20.0  # for the logs of one host: chosen, their tails are small
_MOST_DIAGNOSTICS = 2000  # lines: chosen, what is told is not trusted to end


class ReceivedPiece(Struct, frozen=True, kw_only=True):
    """One file or answer: zlib in base64. age_s: since it was written."""

    job: str
    scope: str = ""
    rank: Count
    pid: Whole = 0
    source: Literal["file", "log", "server"]
    name: str
    age_s: Amount = 0.0
    at_ns: Nanoseconds = 0
    data: str = ""


class _ReceivedLook(Struct, kw_only=True):
    text: str = ""
    form: Literal["text", "json"] = "text"
    cut: bool = False
    tries: Whole = 1
    seconds: Amount = 0.0
    problem: str = ""


class _ReceivedRas(Struct, kw_only=True):
    job: str
    scope: str = ""
    version: str = ""
    port: Whole = 0
    looks: list[_ReceivedLook] = field(default_factory=list)
    apart_s: Amount = 0.0
    diagnostics: str = ""
    problem: str = ""


class _ReceivedBeside(Struct, kw_only=True):
    ras: list[_ReceivedRas] = field(default_factory=list)
    records: list[ReceivedPiece] = field(default_factory=list)


class Received(Struct, frozen=True, kw_only=True):
    """One host: what was seen, what RAS said there, what is still to be read."""

    live: Live
    ras: list[Ras] = field(default_factory=list)
    pieces: list[ReceivedPiece] = field(default_factory=list)


def host(line: str, name: str = "") -> Received:
    """The probe's line; name: of the host, as the user wrote it.

    Raises msgspec.MsgspecError, UnicodeError or RecursionError where it is none.
    """
    document = msgspec.json.decode(line, type=Live)
    name = name or document.host
    live = replace(document, host=name, processes=[replace(process, host=name) for process in document.processes])
    beside = msgspec.json.decode(line, type=_ReceivedBeside)
    return Received(live=live, ras=[_ras(name, answer) for answer in beside.ras], pieces=beside.records)


def _ras(name: str, answer: _ReceivedRas) -> Ras:
    looks, problem = [], answer.problem
    for look in answer.looks:
        try:
            looks.append(_look(look))
        except ras_text.NoStatus as error:
            problem = problem or look.problem or str(error)
    lines = answer.diagnostics.splitlines()[:_MOST_DIAGNOSTICS]
    return Ras(
        job=answer.job,
        scope=answer.scope,
        host=name,
        version=answer.version,
        port=answer.port,
        looks=looks,
        apart_s=answer.apart_s,
        diagnostics=[line[:500] for line in lines if "NCCL DIAG [INFO]" in line],
        problem=problem,
    )


def _look(look: _ReceivedLook) -> RasLook:
    read = ras_json.read(look.text) if look.form == "json" else ras_text.read(look.text)
    return replace(read, seconds=look.seconds, tries=look.tries, cut=look.cut)


def records(pieces: Iterable[ReceivedPiece]) -> list[JobRecord]:
    """What ranks have written, job by job."""
    jobs: dict[tuple[str, str], list[ReceivedPiece]] = {}
    for piece in pieces:
        jobs.setdefault((piece.job, piece.scope), []).append(piece)
    return [_record(pieces) for _, pieces in sorted(jobs.items())]


def _record(pieces: Sequence[ReceivedPiece]) -> JobRecord:
    dumps = [piece for piece in pieces if piece.source != "log"]
    ages = [dump.age_s for dump in dumps]
    return JobRecord(
        job=pieces[0].job,
        scope=pieces[0].scope,
        flight=_flight(dumps) if dumps else None,
        oldest_s=max(ages, default=0.0),
        youngest_s=min(ages, default=0.0),
        written_ns={str(dump.rank): dump.at_ns for dump in dumps},
        logs=_logs([piece for piece in pieces if piece.source == "log"]),
    )


def _flight(dumps: Sequence[ReceivedPiece]) -> Flight:
    """By the reader of `logs`, which takes files; their names are those on the host of the rank."""
    with tempfile.TemporaryDirectory(prefix="ncclcheck-") as folder:
        names: dict[str, str] = {}
        room = _MOST_IN_ALL
        for at, piece in enumerate(dumps):
            data = _data(piece)
            room -= len(data)
            if room < 0:
                break
            path = Path(folder) / f"{at}_rank_{piece.rank}"
            path.write_bytes(data)
            names[str(path)] = piece.name
        read = flight.read(names)
    renamed = [replace(dump, file=names.get(dump.file, dump.file)) for dump in read.dumps]
    refused = [
        replace(refused, file=names.get(refused.file, refused.file))
        for refused in read.refused
        if not refused.replaced
    ]
    return replace(read, dumps=renamed, refused=refused)


def _logs(pieces: Sequence[ReceivedPiece]) -> Logs | None:
    if not pieces:
        return None
    reading = LogReading(until=time.monotonic() + _READ_S)
    with tempfile.TemporaryDirectory(prefix="ncclcheck-") as folder:
        for at, piece in enumerate(pieces):
            path = Path(folder) / str(at)
            path.write_bytes(_data(piece))
            with path.open("rb") as file:
                reading.take(piece.name, file)
    return reading.logs()


def _data(piece: ReceivedPiece) -> bytes:
    """Its bytes, bounded; what is damaged is cut there, and its reader says so."""
    unpack = zlib.decompressobj()
    try:
        return unpack.decompress(base64.b64decode(piece.data, validate=True), _MOST_BYTES)
    except (ValueError, zlib.error):
        return b""

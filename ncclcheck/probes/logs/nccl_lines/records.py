"""Records of NCCL -> what each process said of itself and of its communicators, in bounded memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ncclcheck.probes.facts import Endpoint
from ncclcheck.probes.logs.files.lines import OtherLine, Record
from ncclcheck.probes.logs.nccl_lines import messages, vias

_MOST_PROCESSES = 65536  # in one log: chosen, more than the largest jobs with logs in one file have
_MOST_COMMUNICATORS = 1024  # of one process: chosen, a process of 5D parallelism has dozens
_MOST_PEERS = 65536  # connections of one communicator with their ends; beyond it they are only counted: chosen
_MOST_THREADS = 4096  # of a process: chosen, thread numbers are used again
_MOST_WARNINGS, _WARNING = 20, 500  # different warnings of a process, and characters of each: chosen
# lines that nobody understands, and characters of each: chosen, to see a new form of NCCL's log
_MOST_SAMPLES, _SAMPLE = 3, 160
_VERSION = re.compile(r"NCCL version (\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
_COMMUNICATOR = re.compile(r"comm (0x[0-9a-f]{1,16}) rank (\d{1,6}) n[rR]anks (\d{1,6})\b(.*)")
_OF_COMMUNICATOR = re.compile(r"\b(nNodes|localRanks|busId|commId|parent|splitCount|color) (-?\w{1,40}?)(?=-? |$)")

End = tuple[str, int | None, int, int]


@dataclass
class Communicator:
    """One communicator as one process sees it. began: its start was told, as NCCL does since 2.18.3.

    seen: connections by (kind, device, ranks at both ends); -1: not told. line: that of its start, else of the end
    of its start. splits: how many were split off it.
    """

    rank: int = -1
    nranks: int = 0
    nnodes: int = 0
    local_ranks: int = 0
    bus_id: str = ""
    comm_id: str = ""
    channels: int | None = None
    began: bool = False
    complete: bool = False
    ended: bool = False
    line: int = 0
    splits: int = 0
    seen: Counter[End] = field(default_factory=Counter)

    def holds(self, connection: vias.RankConnection) -> bool:
        """Whether this connection can be one of its own."""
        return self.rank < 0 or (
            self.rank in (connection.source, connection.target) and max(connection[:2]) < self.nranks
        )

    def keep(self, connection: vias.RankConnection) -> Counted:
        """Count a connection, beyond a bound without its ends; as what it was counted."""
        key = (connection.via.kind, connection.via.device, connection.source, connection.target)
        if key not in self.seen and len(self.seen) >= _MOST_PEERS:
            key = (connection.via.kind, None, -1, -1)
        self.seen[key] += 1
        return self, key


Counted = tuple[Communicator, End]


@dataclass
class NcclProcess:
    """What one process said. devices: number -> name and link of NET/IB; direct: HCA -> GPUDirect RDMA or not.

    number: of the line at hand; started_line: of the last that tells of a start that came through.
    connected: as what its last connection was counted. turns: rises when a thread turns to another communicator.
    """

    host: str
    pid: int
    version: str = ""
    driver: str = ""
    bootstrap: Endpoint | None = None
    oob: Endpoint | None = None
    network: str = ""
    plugin: str = ""
    tuner: str = ""
    no_infiniband: str = ""
    interfaces: list[Endpoint] = field(default_factory=list)
    devices: dict[int, tuple[str, str]] = field(default_factory=dict)
    speeds: dict[str, int] = field(default_factory=dict)
    direct: dict[str, bool] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    nvls: bool | None = None
    chunk: int | None = None
    rings: bool = False
    trees: bool = False
    communicators: dict[str, Communicator] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    number: int = 0
    started_line: int = 0
    unknown: int = 0
    samples: list[str] = field(default_factory=list)
    connected: Counted | None = None
    turns: int = 0
    _at: dict[int, Communicator] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Keep what one record says."""
        self.lines += 1
        self.number = record.number
        if record.level == "WARN":
            self._warn(record.text[:_WARNING])
        elif record.level == "INFO" and not self._understood(record):
            self.unknown += 1
            if len(self.samples) < _MOST_SAMPLES:
                self.samples.append(record.text[:_SAMPLE])

    def _warn(self, text: str) -> None:
        if text in self.warnings or len(self.warnings) < _MOST_WARNINGS:
            self.warnings[text] += 1

    def _understood(self, record: Record) -> bool:
        text = record.text
        if "comm 0x" in text and (match := _COMMUNICATOR.search(text)):
            self._communicator(record.tid, match)
        elif connection := vias.connection(text):
            self.connected = self._communicator_of(record.tid, connection).keep(connection)
        elif match := _VERSION.search(text):
            self.version = match[1]
        elif (channels := messages.channels(text)) is not None:
            self._at_thread(record.tid).channels = channels
        else:
            return messages.take(self, text)
        return True

    def _communicator(self, tid: int, match: re.Match[str]) -> None:
        """Before 2.18.3 only the end of an init was told: what its thread said until then belongs to it."""
        pointer, rest = match[1], match[4]
        known = self.communicators.get(pointer)
        if known is None or ((known.ended or known.complete) and "START" in rest):
            known = self._new(tid, pointer)
        fields = dict(_OF_COMMUNICATOR.findall(rest))
        known.began |= "Init START" in rest
        known.rank, known.nranks = int(match[2]), int(match[3])
        known.nnodes = _number(fields.get("nNodes")) or known.nnodes
        known.local_ranks = _number(fields.get("localRanks")) or known.local_ranks
        known.bus_id = fields.get("busId", known.bus_id)
        known.comm_id = fields.get("commId", known.comm_id)
        known.line = known.line or self.number
        if "parent" in fields and not known.comm_id:
            known.comm_id = self._split_of(fields)
        if "Init COMPLETE" in rest:
            known.complete, self.started_line = True, self.number
        known.ended |= "Destroy COMPLETE" in rest or "Abort COMPLETE" in rest
        self._enter(tid, known)

    def _split_of(self, fields: dict[str, str]) -> str:
        """What all ranks of a split call it alike, for it has no commId: its parent, its number there, its colour.

        Before 2.23 the number is not told, and is counted here. Empty where the parent's start is not in the log.
        """
        parent = self.communicators.get(fields["parent"])
        if parent is None or not parent.comm_id:
            return ""
        parent.splits += 1
        return f"{parent.comm_id}/{fields.get('splitCount', parent.splits)}/{fields.get('color', '')}"

    def _new(self, tid: int, pointer: str) -> Communicator:
        """What the thread has begun without a name, else a new one; addresses are used again."""
        begun = self._at.get(tid)
        known = begun if begun is not None and begun.rank < 0 else Communicator()
        if (before := self.communicators.pop(pointer, None)) is not None:
            self.communicators[f"{pointer} {len(self.communicators)}"] = before
        if len(self.communicators) < _MOST_COMMUNICATORS:
            self.communicators[pointer] = known
        return known

    def _enter(self, tid: int, communicator: Communicator) -> None:
        self.turns += 1
        if len(self._at) >= _MOST_THREADS:
            self._at.clear()
        self._at[tid] = communicator

    def _at_thread(self, tid: int) -> Communicator:
        if tid not in self._at:
            self._enter(tid, next(reversed(self.communicators.values()), None) or Communicator())
        return self._at[tid]

    def _communicator_of(self, tid: int, connection: vias.RankConnection) -> Communicator:
        """That of the thread, else the youngest one that can have this connection (2.22 connects late)."""
        mine = self._at.get(tid)
        if mine is not None and not mine.complete and mine.holds(connection):
            return mine
        young = (known for known in reversed(self.communicators.values()) if known.holds(connection))
        communicator = mine if mine is not None and mine.holds(connection) else next(young, None)
        if communicator is None or (communicator.complete and communicator.rank < 0):
            communicator = Communicator()
            self._enter(tid, communicator)
        return communicator

    @property
    def all(self) -> list[Communicator]:
        """Every communicator, also one of which no more was told than its connections."""
        communicators = [*self.communicators.values(), *self._at.values()]
        return list({id(communicator): communicator for communicator in communicators}.values())

    @property
    def largest(self) -> Communicator:
        """The communicator of the most ranks; one without ranks where none was told."""
        return max(self.all, key=lambda communicator: communicator.nranks, default=Communicator())


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 8 else 0


class Log:
    """All processes of one log, by host and pid. other: lines that are not NCCL's."""

    def __init__(self) -> None:
        self.processes: dict[tuple[str, int], NcclProcess] = {}
        self.version = ""
        self.records = self.other = 0

    def take(self, lines: Iterable[Record | OtherLine]) -> Log:
        """Read on; the log itself, for more."""
        for line in lines:
            if isinstance(line, Record):
                self.records += 1
                self.process(line.host, line.pid).take(line)
            else:
                self.other += 1
                if match := _VERSION.search(line.text):
                    self.version = match[1]
        return self

    def process(self, host: str, pid: int) -> NcclProcess:
        """The process of this name; one that nobody keeps where there are too many."""
        key = (host, pid)
        if key not in self.processes:
            key = self._name_of(host, pid)
        if key not in self.processes:
            if len(self.processes) >= _MOST_PROCESSES:
                return NcclProcess(host, pid)
            self.processes[key] = NcclProcess(host, pid)
        return self.processes[key]

    def _name_of(self, host: str, pid: int) -> tuple[str, int]:
        """Where a record begins in the middle of a line, its host has grown a head: `IPCnode1` is node1."""
        if len(self.processes) >= 4096:
            return host, pid
        same = [known for known in self.processes if known[1] == pid]
        if shorter := next((known for known in same if known[0] and host.endswith(known[0])), None):
            return shorter
        if longer := next((known for known in same if known[0].endswith(host)), None):
            process = self.processes.pop(longer)
            process.host = host
            self.processes[host, pid] = process
        return host, pid

"""NCCL's line for each collective (NCCL_DEBUG_SUBSYS=COLL), compared between the ranks of a communicator.

The form, by NVIDIA/nccl src/enqueue.cc of 2.4 to 2.30:
`AllReduce: opCount 0 sendbuff 0x.. recvbuff 0x.. count 1024 datatype 7 op 0 root 0 comm 0x.. [nranks=4] stream
0x..`
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ncclcheck.probes.facts.log.fields import LogFields, named_in
from ncclcheck.probes.logs.nccl_lines.records import Log

# Of each process and communicator the last calls are kept: a rank runs ahead by what its streams hold, hundreds.
_MOST_CALLS, _MOST_COMMUNICATORS = 256, 512  # 25 MB at most
_LONGEST = 400  # a line of it has 230 bytes
_MOST_TOLD = 64  # ranks
_UNCOUNTED = 8  # calls of one group; where more have number 0, nothing tells of a line that was lost between them
_COMM = b" comm 0x"
_CALL = re.compile(
    r"(?P<name>\w{1,30}): opCount (?P<number>[0-9a-f]{1,16}) .{0,80}?count (?P<count>\d{1,20}) "
    r"datatype (?P<datatype>\d{1,3}) op (?P<op>\d{1,10}) root (?P<root>-?\d{1,7})"
)


class LoggedCall(NamedTuple):
    """One collective as one rank called it. place: which one of its communicator, from 0."""

    host: str
    pid: int
    rank: int | None
    file: str
    line: int
    place: int
    text: str
    fields: LogFields


@dataclass
class _CommunicatorCalls:
    """Of one communicator in one process. whole: seen from its first call. total: collectives so far."""

    whole: bool
    total: int = 0
    last: deque[tuple[str, int, bytes]] = field(default_factory=lambda: deque(maxlen=_MOST_CALLS))

    @property
    def counted(self) -> bool:
        """Whether NCCL numbers them, as it did not for nccl-tests with 2.27: seen on a healthy job of two GPUs."""
        return self.total <= _UNCOUNTED or any(b": opCount 0 " not in text for _, _, text in self.last)


@dataclass
class CallReader:
    """Takes the lines one after the other, and tells where ranks differ."""

    _known: dict[tuple[bytes, bytes], _CommunicatorCalls] = field(default_factory=dict)

    def keep(self, file: str, number: int, line: bytes, at: int) -> None:
        """A line that begins an operation; `at` is where `NCCL INFO` stands."""
        comm = line.find(_COMM, at)
        if comm < 0 or len(line) > at + _LONGEST:
            return
        words = line[:at].split()
        writer = next((word for word in reversed(words) if word[:1] != b"["), b"")
        key = (writer.rpartition(b":")[0], line[comm + 6 : comm + 24].partition(b" ")[0])
        text = line[at + 10 : comm]
        known = self._known.get(key)
        if known is None or b": opCount 0 " in text:
            known = self._begun(key, known, text)
        if known is not None and not text.startswith((b"Send", b"Recv")):
            known.total += 1
            known.last.append((file, number, text))

    def _begun(
        self, key: tuple[bytes, bytes], known: _CommunicatorCalls | None, text: bytes
    ) -> _CommunicatorCalls | None:
        """A communicator's first call has number 0, and so have the others of its group."""
        first = b": opCount 0 " in text
        if known is not None and (
            not first or b": opCount 0 " in (known.last[-1][2] if known.last else b"opCount 0 ")
        ):
            return known
        if known is None and len(self._known) >= _MOST_COMMUNICATORS:
            return None
        self._known[key] = _CommunicatorCalls(whole=first)
        return self._known[key]

    def differing(self, log: Log) -> Iterator[LoggedCall]:
        """For each communicator what all ranks called at the first place where two of them differ."""
        for communicator, members in self._communicators(log).items():
            if len(members) > 1 and all(calls.whole and calls.counted for _, _, _, calls in members):
                for call in _first_difference(members):
                    call.fields["communicator"] = communicator
                    yield call

    def _communicators(self, log: Log) -> dict[str, list[tuple[str, int, int | None, _CommunicatorCalls]]]:
        by_communicator: dict[str, list[tuple[str, int, int | None, _CommunicatorCalls]]] = {}
        for (writer, pointer), calls in self._known.items():
            host, _, pid = writer.decode(errors="backslashreplace").rpartition(":")
            process = log.processes.get((host, int(pid))) if pid.isdecimal() and len(pid) < 11 else None
            communicator = (
                process.communicators.get(pointer.decode(errors="backslashreplace")) if process else None
            )
            if process and communicator and communicator.comm_id and communicator.rank >= 0:
                by_communicator.setdefault(communicator.comm_id, []).append(
                    (process.host, process.pid, communicator.rank, calls)
                )
        return by_communicator


def _first_difference(members: Iterable[tuple[str, int, int | None, _CommunicatorCalls]]) -> Iterator[LoggedCall]:
    places: dict[int, list[LoggedCall]] = {}
    for host, pid, rank, calls in members:
        first = calls.total - len(calls.last)
        for place, (file, line, text) in enumerate(calls.last, first):
            words = text.decode(errors="backslashreplace")
            if match := _CALL.match(words):
                places.setdefault(place, []).append(
                    LoggedCall(host, pid, rank, file, line, place, words, named_in(match))
                )
    differ = (here for _, here in sorted(places.items()) if len({_what(call) for call in here}) > 1)
    yield from sorted(next(differ, []), key=lambda call: call.rank or 0)[:_MOST_TOLD]


def _what(call: LoggedCall) -> tuple[str, ...]:
    """What must be the same on all ranks; the root counts where there is one."""
    fields = call.fields
    root = fields["root"] if fields["name"] in ("Broadcast", "Reduce") else ""
    return (
        fields["name"],
        fields["count"],
        fields["datatype"],
        fields["op"] if "Reduce" in fields["name"] else "",
        root,
    )

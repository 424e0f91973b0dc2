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
_PID_DIGITS = 10  # of a process: the kernel gives seven at most (4,194,304); a longer word is none
_LONGEST = 400  # a line of it has 230 bytes
_MOST_TOLD = 64  # ranks
_UNCOUNTED = 8  # calls of one group; where more have number 0, nothing tells of a line that was lost between them
_AGREED = 3  # calls that are alike before the difference, where the first ones are not seen: chosen
_COMM = b" comm 0x"
_NRANKS = re.compile(rb"\[nranks=(\d{1,7})\]")
_CALL = re.compile(
    r"(?P<name>\w{1,30}): opCount (?P<number>[0-9a-f]{1,16}) .{0,80}?count (?P<count>\d{1,20}) "
    r"datatype (?P<datatype>\d{1,3}) op (?P<op>\d{1,10}) root (?P<root>-?\d{1,7})"
)


class LoggedCall(NamedTuple):
    """One collective as one rank called it. place: from 0; None: seen in mid-run."""

    host: str
    pid: int
    rank: int | None
    file: str
    line: int
    place: int | None
    text: str
    fields: LogFields


@dataclass
class _CommunicatorCalls:
    """Of one communicator in one process.

    whole: seen from its first call. nranks: as its lines say, 0: not. total: collectives so far. sends: it has
    point to point calls too, which are numbered with the others, and other ones on each rank.
    """

    whole: bool
    nranks: int
    total: int = 0
    sends: bool = False
    last: deque[tuple[str, int, bytes]] = field(default_factory=lambda: deque(maxlen=_MOST_CALLS))

    @property
    def counted(self) -> bool:
        """Whether NCCL numbers them, as it did not for nccl-tests with 2.27: seen on a healthy job of two GPUs."""
        return self.total <= _UNCOUNTED or any(b": opCount 0 " not in text for _, _, text in self.last)


# Host, pid and rank of who called them.
_Member = tuple[str, int, "int | None", _CommunicatorCalls]


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
            nranks = _NRANKS.search(line, comm)
            known = self._begun(key, known, text, int(nranks[1]) if nranks else 0)
        if known is None:
            return
        if text.startswith((b"Send", b"Recv")):
            known.sends = True
        else:
            known.total += 1
            known.last.append((file, number, text))

    def _begun(
        self, key: tuple[bytes, bytes], known: _CommunicatorCalls | None, text: bytes, nranks: int
    ) -> _CommunicatorCalls | None:
        """A communicator's first call has number 0, and so have the others of its group."""
        first = b": opCount 0 " in text
        if known is not None and (
            not first or b": opCount 0 " in (known.last[-1][2] if known.last else b"opCount 0 ")
        ):
            return known
        if known is None and len(self._known) >= _MOST_COMMUNICATORS:
            return None
        self._known[key] = _CommunicatorCalls(first, nranks)
        return self._known[key]

    def differing(self, log: Log) -> Iterator[LoggedCall]:
        """For each communicator what all ranks called at the first place where two of them differ."""
        for communicator, members in self._communicators(log).items():
            if len(members) > 1 and all(calls.counted for _, _, _, calls in members):
                whole = all(calls.whole for _, _, _, calls in members)
                for call in _first_difference(members) if whole else _difference_in_mid_run(members):
                    call.fields["communicator"] = communicator
                    yield call

    def _communicators(self, log: Log) -> dict[str, list[_Member]]:
        by_communicator: dict[str, list[_Member]] = {}
        unknown: list[_Member] = []
        for (writer, pointer), calls in self._known.items():
            host, _, digits = writer.decode(errors="backslashreplace").rpartition(":")
            if not digits.isdecimal() or len(digits) > _PID_DIGITS:
                continue
            pid = int(digits)
            process = log.processes.get((host, pid))
            communicator = (
                process.communicators.get(pointer.decode(errors="backslashreplace")) if process else None
            )
            if process and communicator and communicator.comm_id and communicator.rank >= 0:
                by_communicator.setdefault(communicator.comm_id, []).append(
                    (process.host, process.pid, communicator.rank, calls)
                )
            else:
                unknown.append((host, pid, None, calls))
        return by_communicator or ({"": unknown} if _is_one(unknown) else {})


def _is_one(members: list[_Member]) -> bool:
    """Whether processes of whose start nothing is seen share their only communicator: as many as it has ranks."""
    processes = {(host, pid) for host, pid, _, _ in members}
    return len(processes) == len(members) and {calls.nranks for _, _, _, calls in members} == {len(members)}


def _difference_in_mid_run(members: Iterable[_Member]) -> Iterator[LoggedCall]:
    """The same by NCCL's own numbers, where a log begins behind the first call.

    Numbers of a rank may be others than the same calls' of another one, after sends: so nothing is told where
    there are any, or where the calls just before the difference are not the same on all ranks.
    """
    ranks = [_numbered(member) for member in members]
    if any(calls.sends for _, _, _, calls in members):
        return
    agreed = 0
    for number in sorted(set(ranks[0]).intersection(*ranks[1:])):
        for here in zip(*(calls[number] for calls in ranks), strict=False):
            if len({_what(call) for call in here}) > 1:
                yield from sorted(here, key=lambda call: call.rank or 0)[:_MOST_TOLD] if agreed >= _AGREED else ()
                return
            agreed += 1


def _numbered(member: _Member) -> dict[int, list[LoggedCall]]:
    """NCCL's number -> the calls of a rank; several are of one group, whose first ones a cut may have taken."""
    host, pid, rank, calls = member
    numbered: dict[int, list[LoggedCall]] = {}
    for file, line, text in calls.last:
        words = text.decode(errors="backslashreplace")
        if match := _CALL.match(words):
            call = LoggedCall(host, pid, rank, file, line, None, words, named_in(match))
            numbered.setdefault(int(match["number"], 16), []).append(call)
    if any(len(group) > 1 for group in numbered.values()):
        numbered.pop(next(iter(numbered)))
    return numbered


def _first_difference(members: Iterable[_Member]) -> Iterator[LoggedCall]:
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

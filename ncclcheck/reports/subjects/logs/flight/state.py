"""Dumps of all ranks side by side: who entered what, who saw its end, and whose record stopped too early."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ncclcheck.probes.facts import Flight, FlightCall, FlightDump, FlightGroup

# Nobody's part in these can end before everybody has entered them; a root of a broadcast may run ahead.
_NEED_ALL = ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "barrier")


@dataclass(frozen=True)
class StoppedRank:
    """A rank whose record ends before its peers': `calls` of one group that must have ended are unfinished in it.

    seen: the last of them that `peer` saw the end of.
    """

    rank: int
    group: int
    calls: list[FlightCall]
    seen: int
    peer: int


@dataclass
class FlightState:
    """The dumps by rank. entered, ended: group -> rank -> the number of the last collective.

    failed_too: groups of which `ended` also counts calls that failed.
    """

    flight: Flight
    dumps: dict[int, FlightDump]
    entered: dict[int, dict[int, int]]
    ended: dict[int, dict[int, int]]
    stopped: dict[int, StoppedRank] = field(default_factory=dict)
    pending: dict[int, list[FlightCall]] = field(default_factory=dict)
    failed_too: set[int] = field(default_factory=set)

    @property
    def missing(self) -> list[int]:
        """Ranks of known groups that left no dump."""
        return sorted({rank for group in self.flight.groups for rank in group.ranks} - self.dumps.keys())

    def members(self, group: int) -> list[int]:
        """Ranks of a group; where no dump tells them, those that used it."""
        return self.flight.groups[group].ranks or sorted(self.entered[group])

    def own(self, rank: int, group: int, seq: int) -> FlightCall | None:
        """A rank's own record of a collective that it waits for."""
        calls = (c for c in self.pending.get(rank, []) if (c.group, c.seq, c.peer) == (group, seq, None))
        return next(calls, None)

    def group(self, index: int) -> FlightGroup:
        """One process group."""
        return self.flight.groups[index]


def needs_all(op: str) -> bool:
    """Whether no rank's part of it ends before all have entered."""
    return op.lstrip("_").lower().startswith(_NEED_ALL)


def state(flight: Flight) -> FlightState:
    """What the dumps of a job say together."""
    entered: dict[int, dict[int, int]] = defaultdict(dict)
    ended: dict[int, dict[int, int]] = defaultdict(dict)
    for dump in flight.dumps:
        for count in dump.counts:
            if count.entered is not None:
                entered[count.group][dump.rank] = count.entered
            if count.ended is not None:
                ended[count.group][dump.rank] = count.ended
    made = FlightState(flight, {dump.rank: dump for dump in flight.dumps}, entered, ended)
    made.failed_too = {count.group for dump in flight.dumps for count in dump.counts if count.failed_too}
    certain = {group: ranks for group, ranks in ended.items() if group not in made.failed_too}
    latest = {group: max(ranks, key=lambda rank: ranks[rank]) for group, ranks in certain.items()}
    for dump in flight.dumps:
        if stopped := _stopped(made, dump, latest):
            made.stopped[dump.rank] = stopped
    made.pending = {dump.rank: _pending(made, dump) for dump in flight.dumps}
    return made


def _stopped(made: FlightState, dump: FlightDump, latest: dict[int, int]) -> StoppedRank | None:
    """A peer saw a collective end that needs this rank, so the rank had ended all that it entered before."""
    stops: list[StoppedRank] = []
    by_group: dict[int, list[FlightCall]] = defaultdict(list)
    for call in dump.calls:
        if call.state != "completed" and call.peer is None:
            by_group[call.group].append(call)
    for group, calls in by_group.items():
        if (peer := latest.get(group, dump.rank)) == dump.rank:
            continue
        seen = [call.seq for call in calls if call.seq <= made.ended[group][peer] and needs_all(call.op)]
        unnoticed = [call for call in calls if seen and call.seq < max(seen)]
        if unnoticed:
            stops.append(StoppedRank(dump.rank, group, unnoticed, max(seen), peer))
    return max(stops, key=lambda stopped: len(stopped.calls), default=None)


def _pending(made: FlightState, dump: FlightDump) -> list[FlightCall]:
    """What the rank waits for. Nothing is known of a rank whose record stopped."""
    if dump.rank in made.stopped:
        return []
    unfinished = (call for call in dump.calls if call.state != "completed")
    return [call for call in unfinished if not _is_over(made, dump.rank, call)]


def _is_over(made: FlightState, rank: int, call: FlightCall) -> bool:
    return call.peer is None and call.seq <= made.ended[call.group].get(rank, -1)

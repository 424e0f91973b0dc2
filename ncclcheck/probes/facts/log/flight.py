"""What torch's Flight Recorder wrote down on each rank before a job ended, reduced to what rules need."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ncclcheck.probes.facts.guard.bounds import Count, Whole

Nanoseconds = Annotated[int, Meta(ge=0, le=2**62)]


class FlightGroup(Struct, frozen=True, kw_only=True):
    """A process group. about: its description in the program; ranks: global, empty where no dump tells them."""

    name: str
    about: str = ""
    ranks: list[Count] = field(default_factory=list)


class FlightCount(Struct, frozen=True, kw_only=True):
    """How far a rank came in the collectives of a group: the last it entered, and the last it saw the end of.

    failed_too: `ended` counts calls that failed as well, because gloo does not tell them apart.
    """

    group: Count
    entered: Whole | None = None
    ended: Whole | None = None
    failed_too: bool = False


class FlightCall(Struct, frozen=True, kw_only=True):
    """One collective, send or receive. seq: its number in the group; of sends and receives, the rank's own count.

    peer: the other rank of a send or receive. order: its place among all calls of the rank. at_ns: when it was
    entered, by the rank's own clock. place: the line of the program, where stacks were recorded.
    """

    group: Count
    seq: Whole
    op: str
    order: Whole
    state: Literal["scheduled", "started", "completed"] = "scheduled"
    peer: Count | None = None
    elements_in: Whole = 0
    elements_out: Whole = 0
    dtype_in: str = ""
    dtype_out: str = ""
    at_ns: Nanoseconds = 0
    place: str = ""


class FlightDump(Struct, frozen=True, kw_only=True):
    """One rank's dump. told_by: what says which rank it is of. version: of the dump's form.

    calls: the unfinished ones, then the newest that ended, in their order; entries and unfinished: how many there
    were in the file.
    """

    rank: Count
    file: str
    told_by: Literal["file name", "content", "file name and content"] = "file name and content"
    version: str = ""
    entries: Whole = 0
    unfinished: Whole = 0
    counts: list[FlightCount] = field(default_factory=list)
    calls: list[FlightCall] = field(default_factory=list)


class FlightRefused(Struct, frozen=True, kw_only=True):
    """A file that was not taken. hostile: it asks for code to be run by whoever loads it.

    replaced: it was read, and another of the same rank is newer.
    """

    file: str
    why: str
    hostile: bool = False
    replaced: bool = False


class Flight(Struct, frozen=True, kw_only=True):
    """All dumps of a job; calls and counts name groups by their place in `groups`."""

    groups: list[FlightGroup] = field(default_factory=list)
    dumps: list[FlightDump] = field(default_factory=list)
    refused: list[FlightRefused] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises ValueError: a saved file may name a group that is not there."""
        counts = [count.group for dump in self.dumps for count in dump.counts]
        calls = [call.group for dump in self.dumps for call in dump.calls]
        if (last := max(counts + calls, default=-1)) >= len(self.groups):
            raise ValueError(f"group {last} is none of the {len(self.groups)} groups")

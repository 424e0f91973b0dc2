"""Plain data -> typed records of a dump, in the forms 2.0 to 2.10 (torch 2.4 to 2.11 and later)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from ncclcheck.probes.logs.flight.plain import RefusedDump

_MOST_ENTRIES = 200_000  # of one dump: a hundred times torch's own buffer of 2000; chosen, bounds memory
_MOST_NUMBERS = 8_000_000  # sizes of all entries together: chosen, 40 an entry at most; bounds memory
_MOST_RANKS = 1_000_000  # more than any job has: chosen
_Text = Annotated[str, Meta(max_length=1000)]
_Whole = Annotated[int, Meta(ge=0, le=2**60)]
_Time = Annotated[int, Meta(ge=0, le=2**62)]
_Sizes = Annotated[list[Annotated[list[_Whole], Meta(max_length=64)]], Meta(max_length=4096)]
_Types = Annotated[list[_Text], Meta(max_length=4096)]
_VERSION = re.compile(r"2\.\d{1,3}")
_RANKS = re.compile(r"\[?[\d,\s]{0,8000000}\]?")


class StackFrame(Struct, kw_only=True):
    """One line of a stack, the innermost first."""

    name: Annotated[str, Meta(max_length=10_000)] = ""
    filename: Annotated[str, Meta(max_length=10_000)] = ""
    line: int = 0


class FlightEntry(Struct, kw_only=True):
    """A call as torch wrote it down. JSON has 0 for a time that is not known."""

    profiling_name: _Text
    state: _Text
    record_id: _Whole = 0
    pg_id: int = 0
    process_group: tuple[_Text, _Text] | None = None
    seq_id: _Whole = 0
    collective_seq_id: _Whole | None = None
    p2p_seq_id: _Whole = 0
    time_created_ns: _Time = 0
    time_discovered_completed_ns: _Time | None = None
    input_sizes: _Sizes = field(default_factory=list)
    output_sizes: _Sizes = field(default_factory=list)
    input_dtypes: _Types = field(default_factory=list)
    output_dtypes: _Types = field(default_factory=list)
    is_p2p: bool | None = None
    retired: bool = False
    frames: Annotated[list[StackFrame], Meta(max_length=1000)] = field(default_factory=list)


class Status(Struct, kw_only=True):
    """How far a group came; JSON has texts for numbers. A group that was used for sends counts these too."""

    last_enqueued_collective: int | _Text = -1
    last_completed_collective: int | _Text = -1


class DumpGroup(Struct, kw_only=True):
    """A process group as its members know it."""

    name: _Text = ""
    desc: _Text = ""
    ranks: str | list[int] = ""


class DumpForm(Struct, kw_only=True):
    """A whole dump."""

    version: str
    entries: list[Any] = field(default_factory=list)
    pg_config: Annotated[dict[str, DumpGroup], Meta(max_length=10_000)] = field(default_factory=dict)
    pg_status: Annotated[dict[str | int, Status], Meta(max_length=10_000)] = field(default_factory=dict)
    rank: int | None = None


# A pickle can hold halves of characters, which no text has.
_NOT_OF_ITS_TYPE = (msgspec.ValidationError, UnicodeError)


def form(data: Any) -> tuple[DumpForm, list[FlightEntry]]:
    """The dump and its calls. Raises RefusedDump where a field is not of its type."""
    if not isinstance(data, dict) or not data.keys() & {"entries", "pg_config", "pg_status"}:
        raise RefusedDump("it is no dump of the Flight Recorder: neither entries nor process groups")
    try:
        whole = msgspec.convert(data, DumpForm)
        if not _VERSION.fullmatch(whole.version):
            raise RefusedDump(f"its form is of version {whole.version[:20]!r}, and 2.0 to 2.10 are known")
        if len(whole.entries) > _MOST_ENTRIES:
            raise RefusedDump(f"it has more than {_MOST_ENTRIES} entries")
        return whole, [*_entries(whole.entries)]
    except _NOT_OF_ITS_TYPE as error:
        raise RefusedDump(f"a field is not what it should be: {error}") from None


def _entries(listed: list[Any]) -> Iterator[FlightEntry]:
    """One at a time: a pickle may hold one long list in many places, and only its numbers are counted."""
    numbers = 0
    for number, raw in enumerate(listed):
        try:
            entry = msgspec.convert(raw, FlightEntry)
        except _NOT_OF_ITS_TYPE as error:
            raise RefusedDump(f"entry {number} is not what it should be: {error}") from None
        numbers += sum(map(len, (*entry.input_sizes, *entry.output_sizes))) + len(entry.frames)
        numbers += len(entry.input_dtypes) + len(entry.output_dtypes)
        if numbers > _MOST_NUMBERS:
            raise RefusedDump(f"it has more than {_MOST_NUMBERS} sizes")
        yield entry


def members(value: str | list[int]) -> tuple[int, ...]:
    """Global ranks of a group: torch writes a list as text. Raises RefusedDump."""
    ranks = _parsed(value) if isinstance(value, str) else tuple(value[: _MOST_RANKS + 1])
    if len(ranks) > _MOST_RANKS or any(not 0 <= rank <= _MOST_RANKS for rank in ranks):
        raise RefusedDump("the ranks of a process group are no ranks")
    return ranks


@lru_cache(4096)
def _parsed(text: str) -> tuple[int, ...]:
    if not _RANKS.fullmatch(text):
        raise RefusedDump("the ranks of a process group are no list of numbers")
    words = [word.strip() for word in text.strip("[] \n").split(",") if word.strip()]
    if any(len(word.split()) != 1 or len(word) > 7 for word in words):
        raise RefusedDump("the ranks of a process group are no ranks")
    return tuple(map(int, words))


def number(value: int | str) -> int | None:
    """A counter of a group's status; None where it has not begun (-1) or is no number."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else -1
    return value if 0 <= value <= 2**60 else None

"""Whose dump a file is: by the number that ends its name, and by the process groups in it."""

from __future__ import annotations

import re
from typing import Literal

from ncclcheck.probes.logs.flight.form import DumpForm, FlightEntry, members
from ncclcheck.probes.logs.flight.plain import RefusedDump

Teller = Literal["file name", "content", "file name and content"]
_NUMBER = re.compile(r"(\d{1,7})(?:\.(?:json|pkl|pickle|bin|dump|txt))*$")
_PAIR = re.compile(r"(?:send|recv) (\d{1,7})(?:->|<-)(\d{1,7})")


def pair(name: str) -> tuple[int, int] | None:
    """Own number and the other's in `nccl:send 0->3` or `nccl:recv 0<-3`: places in the group, not ranks."""
    match = _PAIR.search(name)
    return (int(match[1]), int(match[2])) if match else None


def rank_of(name: str, whole: DumpForm, entries: list[FlightEntry]) -> tuple[int, Teller]:
    """The dump's rank, and what tells it. Raises RefusedDump where nothing does, or name and content differ."""
    match = _NUMBER.search(name.rsplit("/", 1)[-1])
    named = int(match[1]) if match else None
    possible = _possible(whole, entries)
    if named is None:
        if len(possible) != 1:
            raise RefusedDump("no number ends its name, and its content does not show whose it is")
        return min(possible), "content"
    if not possible:
        return named, "file name"
    if named in possible:
        return named, "file name and content"
    if len(possible) == 1:
        return min(possible), "content"
    raise RefusedDump(f"its name says rank {named}, and no process group in it has that rank")


def _possible(whole: DumpForm, entries: list[FlightEntry]) -> set[int]:
    """Ranks whose dump it can be: a rank knows only the groups that it is a member of. Empty: any."""
    if whole.rank is not None:
        return {whole.rank} if 0 <= whole.rank <= 1_000_000 else set()
    groups = {name: members(group.ranks) for name, group in whole.pg_config.items()}
    for entry in entries:
        ranks = groups.get(entry.process_group[0], ()) if entry.process_group else ()
        if (ends := pair(entry.profiling_name)) and ends[0] < len(ranks):
            return {ranks[ends[0]]}
    smallest = sorted((ranks for ranks in groups.values() if ranks), key=len)
    return {rank for rank in smallest[0] if all(rank in ranks for ranks in smallest[1:])} if smallest else set()

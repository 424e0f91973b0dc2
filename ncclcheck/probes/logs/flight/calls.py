"""Typed records of one dump -> its calls, and how far it came in each process group."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ncclcheck.probes.facts import FlightCall
from ncclcheck.probes.logs.flight.form import DumpForm, FlightEntry, Status, members, number
from ncclcheck.probes.logs.flight.ranks import pair

Key = tuple[str, tuple[int, ...]]
_STATES = {"scheduled": "scheduled", "started": "started", "completed": "completed"}
_LIBRARY = ("/torch/", "\\torch\\", "/site-packages/", "/dist-packages/", "<frozen", "/lib/python3")
_MOST_ELEMENTS = 2**60  # keeps a product of sizes from outside within int64


@dataclass
class Came:
    """How far a rank came in one group. paired: the group was used for sends, which its status counts too.

    failed_too: what ended may have failed.
    """

    entered: int | None = None
    ended: int | None = None
    paired: bool = False
    failed_too: bool = False


@dataclass
class Dump:
    """One dump, its groups still by name and members. world: all ranks, where they are told apart from groups."""

    groups: dict[Key, str] = field(default_factory=dict)
    calls: list[tuple[Key, FlightCall]] = field(default_factory=list)
    seen: dict[Key, Came] = field(default_factory=dict)
    status: dict[Key, Came] = field(default_factory=dict)
    world: set[int] = field(default_factory=set)


def dump(whole: DumpForm, entries: list[FlightEntry]) -> Dump:
    """What one dump tells. Raises Refused."""
    made = Dump()
    keys: dict[str, Key] = {}
    named = {call.process_group[0] for call in entries if call.process_group}
    for name, group in whole.pg_config.items():
        if not name and name not in named:  # gloo writes down all ranks before the group has its name
            made.world.update(members(group.ranks))
            continue
        keys[name] = (name, members(group.ranks))
        made.groups[keys[name]] = clean(group.desc)
    together: dict[tuple[Key, bool, int], list[FlightEntry]] = defaultdict(list)
    for entry in entries:
        name, about = entry.process_group or (str(entry.pg_id), "")
        key = keys.setdefault(name, (name, ()))
        made.groups.setdefault(key, clean(about))
        together[key, _is_pair(entry), _seq(entry)].append(entry)
    for (key, paired, seq), batch in together.items():
        calls = _pairs(key, batch) if paired else [_collective(seq, batch)]
        made.calls += [(key, call) for call in calls]
        came = made.seen.setdefault(key, Came())
        came.failed_too |= any(map(_is_gloo, batch))
        _count(came, seq, paired, calls)
    made.calls.sort(key=lambda row: row[1].order)
    made.status = _statuses(whole, entries, keys)
    return made


def _is_pair(entry: FlightEntry) -> bool:
    return pair(entry.profiling_name) is not None if entry.is_p2p is None else entry.is_p2p


def _seq(entry: FlightEntry) -> int:
    if _is_pair(entry):
        return entry.p2p_seq_id
    return entry.seq_id if entry.collective_seq_id is None else entry.collective_seq_id


def _count(came: Came, seq: int, paired: bool, calls: list[FlightCall]) -> None:
    if paired:
        came.paired = True
        return
    came.entered = max(seq, came.entered or 0)
    if all(call.state == "completed" for call in calls):
        came.ended = max(seq, came.ended or 0)


def _collective(seq: int, batch: list[FlightEntry]) -> FlightCall:
    """Calls that were coalesced have one number and one end, which the last of them tells."""
    last = batch[-1]
    return _call(last, seq, _op(last), batch)


def _pairs(key: Key, batch: list[FlightEntry]) -> list[FlightCall]:
    """Sends and receives; of a batch only the closing `coalesced` is told its end."""
    closing = next((part for part in reversed(batch) if pair(part.profiling_name) is None), None)
    made = []
    for entry in batch:
        if ends := pair(entry.profiling_name):
            other = key[1][ends[1]] if ends[1] < len(key[1]) else ends[1]
            op = "send" if "->" in entry.profiling_name else "recv"
            made.append(_call(entry, entry.p2p_seq_id, op, [entry], peer=other, end=closing or entry))
    return made


def _call(
    entry: FlightEntry,
    seq: int,
    op: str,
    batch: Iterable[FlightEntry],
    *,
    peer: int | None = None,
    end: FlightEntry | None = None,
) -> FlightCall:
    batch = [*batch]
    state = "completed" if _is_over(end or entry) else (end or entry).state
    return FlightCall(
        group=0,
        seq=seq,
        op=op,
        order=batch[0].record_id,
        state=_STATES.get(state, "scheduled"),  # type: ignore[arg-type]
        peer=peer,
        elements_in=_elements(size for each in batch for size in each.input_sizes),
        elements_out=_elements(size for each in batch for size in each.output_sizes),
        dtype_in=_types(name for each in batch for name in each.input_dtypes),
        dtype_out=_types(name for each in batch for name in each.output_dtypes),
        at_ns=entry.time_created_ns,
        place=_place(entry),
    )


def _is_over(entry: FlightEntry) -> bool:
    """A call of NCCL that torch retired without its end has timed out; gloo retires what ended and what failed."""
    return bool(entry.time_discovered_completed_ns) or (entry.retired and _is_gloo(entry))


def _is_gloo(entry: FlightEntry) -> bool:
    return entry.profiling_name.startswith("gloo:")


def _op(entry: FlightEntry) -> str:
    return clean(entry.profiling_name.rpartition(":")[2].partition(" ")[0])[:60]


def _elements(sizes: Iterable[list[int]]) -> int:
    return min(sum(min(math.prod(size), _MOST_ELEMENTS) for size in sizes), _MOST_ELEMENTS)


def _types(names: Iterable[str]) -> str:
    return "+".join(sorted({clean(name)[:30] for name in names})[:4])


def _place(entry: FlightEntry) -> str:
    """The innermost line that is the program's own."""
    own = (frame for frame in entry.frames if not any(part in frame.filename for part in _LIBRARY))
    if frame := next(own, None):
        return clean(f"{frame.filename[-100:]}:{frame.line} {frame.name[:60]}")
    return ""


def clean(text: str) -> str:
    """What can be printed of a text from outside."""
    text = text[:200]
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def _statuses(whole: DumpForm, entries: list[FlightEntry], keys: dict[str, Key]) -> dict[Key, Came]:
    """The status of groups, which is told by another name than their members. Gloo's counts calls of all kinds."""
    names = {call.pg_id: call.process_group[0] for call in entries if call.process_group}
    statuses = {int(key): status for key, status in whole.pg_status.items() if str(key)[:9].isdigit()}
    names = _in_order(sorted(statuses), [*whole.pg_config], names) or names
    for entry in entries:
        if _is_gloo(entry):
            statuses.pop(entry.pg_id, None)
    return {
        keys[name]: _status(statuses[local]) for local, name in names.items() if local in statuses and name in keys
    }


def _in_order(local: list[int], names: list[str], sure: dict[int, str]) -> dict[int, str]:
    """Both count in the order in which groups were made; empty where that does not fit what calls tell."""
    if len(local) != len(names) or not all(name.isascii() and name.isdigit() for name in names):
        return {}
    by_number = dict(zip(local, sorted(names, key=lambda name: int(name[:18])), strict=True))
    return by_number if all(by_number.get(key) == name for key, name in sure.items()) else {}


def _status(status: Status) -> Came:
    return Came(number(status.last_enqueued_collective), number(status.last_completed_collective))

"""Many files -> `Flight`: one dump a rank, the same groups of all ranks under one number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from ncclcheck.probes.facts import Flight, FlightCall, FlightCount, FlightDump, FlightGroup, FlightRefused
from ncclcheck.probes.logs.flight.calls import Came, Dump, Key, clean, dump
from ncclcheck.probes.logs.flight.form import form
from ncclcheck.probes.logs.flight.plain import MOST_BYTES, RefusedDump, plain
from ncclcheck.probes.logs.flight.ranks import rank_of
from ncclcheck.probes.machine import files

# calls that are kept: of a rank, of all, and of each however many ranks there are: chosen, bounds memory
_MOST_CALLS, _MOST_IN_ALL, _LEAST_CALLS = 256, 65536, 24
_ALL = "default_pg"
_NAME = re.compile(r"(?:nccl_trace_rank_|comm_lib_trace_rank_|_dump_)\d{1,7}$")
_PICKLE = re.compile(rb"\x80[\x02-\x05][}(c\x95]")
_NESTED = re.compile(rb'\s*(?:\{\s*(?:"[^"]{0,80}"\s*:\s*)?|\[\s*){32}')  # no line of a log begins like this
_JSON = (b'"pg_config"', b'"pg_status"', b'"entries"', b'"nccl_version"', b'"comm_lib_version"')


def is_dump(head: bytes, name: str) -> bool:
    """Whether a file that begins like this is meant as a dump, by torch's own file names or by its first bytes."""
    if _NAME.search(name) or _PICKLE.match(head):
        return True
    return bool(_NESTED.match(head)) or (head.lstrip()[:1] == b"{" and any(key in head for key in _JSON))


@dataclass
class _ReadJob:
    """What was read up to now."""

    most: int
    places: dict[Key, int] = field(default_factory=dict)
    groups: list[FlightGroup] = field(default_factory=list)
    dumps: dict[int, FlightDump] = field(default_factory=dict)
    status: dict[int, dict[int, Came]] = field(default_factory=dict)
    paired: set[int] = field(default_factory=set)
    world: set[int] = field(default_factory=set)
    refused: list[FlightRefused] = field(default_factory=list)


def read(paths: Iterable[str]) -> Flight:
    """All dumps of a job; a file that is damaged or hostile is named in `refused`, and the rest goes on."""
    names = [*paths]
    job = _ReadJob(max(_LEAST_CALLS, min(_MOST_CALLS, _MOST_IN_ALL // max(1, len(names)))))
    for path in names:
        try:
            _take(job, path)
        except RefusedDump as refused:
            why = clean(str(refused))
            job.refused.append(
                FlightRefused(file=clean(path), why=why, hostile=refused.hostile, replaced=refused.replaced)
            )
    dumps = [_with_status(job, job.dumps[rank]) for rank in sorted(job.dumps)]
    return Flight(groups=[_with_world(job, group) for group in job.groups], dumps=dumps, refused=job.refused)


def _take(job: _ReadJob, path: str) -> None:
    whole, entries = form(plain(_bytes(path)))
    rank, told_by = rank_of(path, whole, entries)
    content = dump(whole, entries)
    made = FlightDump(
        rank=rank,
        file=clean(path),
        told_by=told_by,
        version=clean(whole.version),
        entries=len(entries),
        unfinished=sum(call.state != "completed" for _, call in content.calls),
    )
    if (other := job.dumps.get(rank)) and _newest(content) <= max((call.at_ns for call in other.calls), default=0):
        raise RefusedDump(f"{other.file} is of rank {rank} too, and not older", replaced=True)
    if other:
        why = f"{made.file} is of rank {rank} too, and newer"
        job.refused.append(FlightRefused(file=other.file, why=why, replaced=True))
    job.world |= content.world
    for key in content.groups:
        _place(job, key, content)
    job.status[rank] = {_place(job, key, content): came for key, came in content.status.items()}
    job.paired |= {_place(job, key, content) for key, came in content.seen.items() if came.paired}
    counts = [
        FlightCount(
            group=_place(job, key, content), entered=came.entered, ended=came.ended, failed_too=came.failed_too
        )
        for key, came in content.seen.items()
    ]
    job.dumps[rank] = replace(made, counts=counts, calls=_kept(job, content))


def _bytes(path: str) -> bytes:
    try:
        file = files.opened(path)
        with open(file, "rb"):
            return files.bounded(file, MOST_BYTES)
    except OSError as error:
        raise RefusedDump(f"it cannot be read: {error.strerror}") from None


def _newest(content: Dump) -> int:
    return max((call.at_ns for _, call in content.calls), default=0)


def _place(job: _ReadJob, key: Key, content: Dump) -> int:
    if key not in job.places:
        job.places[key] = len(job.groups)
        job.groups.append(FlightGroup(name=clean(key[0]), about=content.groups.get(key, ""), ranks=[*key[1]]))
    return job.places[key]


def _kept(job: _ReadJob, content: Dump) -> list[FlightCall]:
    """The first unfinished calls, and as many of the newest that ended as there is room for."""
    unfinished = [call for call in content.calls if call[1].state != "completed"][: job.most]
    room = job.most - len(unfinished)
    ended = [call for call in content.calls if call[1].state == "completed"][-room:] if room else []
    kept = sorted([*unfinished, *ended], key=lambda pair: pair[1].order)
    return [replace(call, group=_place(job, key, content)) for key, call in kept]


def _with_status(job: _ReadJob, made: FlightDump) -> FlightDump:
    """A group's status joins what its calls tell, unless the group was used for sends: it counts these too."""
    counts = {count.group: count for count in made.counts}
    for group, came in job.status[made.rank].items():
        if group not in job.paired:
            seen = counts.get(group, FlightCount(group=group))
            counts[group] = replace(
                seen, entered=_later(seen.entered, came.entered), ended=_later(seen.ended, came.ended)
            )
    return replace(made, counts=[counts[group] for group in sorted(counts)])


def _with_world(job: _ReadJob, group: FlightGroup) -> FlightGroup:
    """The group of all ranks, where only the ranks of a group without a name are told: torch leaves none out."""
    if group.ranks or group.about != _ALL or not job.world:
        return group
    return replace(group, ranks=[*range(max(job.world | job.dumps.keys()) + 1)])


def _later(*numbers: int | None) -> int | None:
    return max((number for number in numbers if number is not None), default=None)

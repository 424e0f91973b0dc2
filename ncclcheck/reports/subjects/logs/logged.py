"""What LOG rules share: the lines that say something, who said them, and a finding made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ncclcheck.probes.facts import Cluster, LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Evidence, Finding, Owner, Remedy, State, Where, seen
from ncclcheck.reports.judgement.rule import Body, NothingToJudge, rule
from ncclcheck.reports.subjects.failures import lost
from ncclcheck.reports.subjects.logs.attempts import latest
from ncclcheck.reports.subjects.logs.ending import TEXT, Ending
from ncclcheck.reports.subjects.logs.words import meanings
from ncclcheck.reports.subjects.logs.words.wording import with_meaning, with_reasons

# of a log in one finding: chosen, three are read at a glance, the number of all is told beside them
_MOST_LINES = 3
_SAY_WHY_THEMSELVES = ("LOG001", "LOG005")  # any failure; any warning
_OF_ANY_EXCEPTION = "LOG004"
_TOLD_BY_BOX = (_OF_ANY_EXCEPTION, "LOG006")  # any exception; an end from outside


def log_rule(
    code: str,
    title: str,
    *,
    worst: State = State.FAIL,
    symptom: bool = False,
    unfinished: bool = False,
    told_by: str = "",
    risk: bool = False,
    slows: bool = False,
    whole: bool = False,
    asks_why: bool = False,
) -> Callable[[Callable[[Logs], Iterator[Finding]]], Body]:
    """Make a body that wants what logs say a rule; skipped where none was read.

    What the job went on after is no failure. Of a run of our own only what ended it is told: its other checks
    measure the rest. symptom, unfinished: as in Rule. told_by: the check that tells it of a run of our own. risk:
    it costs speed at most, and is a note of a job that is seen to be sound; slows: where it has finished, too.
    whole: it sees all attempts, and not
    the last one only. asks_why: it tells what was seen, and a line right before that may say why.
    """

    def register(body: Callable[[Logs], Iterator[Finding]]) -> Body:
        @functools.wraps(body)
        def judged(cluster: Cluster) -> Iterator[Finding]:
            logs = cluster.measurements.logs
            if logs is None or not any(file.lines for file in logs.files):
                raise NothingToJudge("no log was read")
            if (symptom or told_by) and cluster.command != "logs":
                raise NothingToJudge(f"what was seen of this run is reported by {told_by or 'its other checks'}")
            if cluster.command == "watch" and code in _TOLD_BY_BOX:
                raise NothingToJudge("what ended a watched job is reported by the checks BOX")
            if cluster.command != "logs" and lost.raised(cluster.run):
                raise NothingToJudge("its ground failed: TRN026")
            logs = logs if whole else latest(logs)
            ending = Ending(logs)
            findings: Iterator[Finding] = map(ending.judged, body(logs))
            if code == _OF_ANY_EXCEPTION:
                findings = with_meaning(logs, findings)
            elif code not in _SAY_WHY_THEMSELVES:
                findings = with_reasons(logs, findings, always=asks_why)
            mild = risk or (slows and ending.finished)
            findings = map(ending.of_a_sound_job, findings) if mild else findings
            yield from (
                findings
                if cluster.command == "logs"
                else (finding for finding in findings if finding.state is State.FAIL)
            )

        made = rule(
            code,
            title,
            worst=worst,
            over="",
            ground=("VER017", "VER018"),
            symptom=symptom,
            unfinished=unfinished,
            costs_speed=risk or slows,
        )
        return made(judged)

    return register


def events_of(logs: Logs, *signs: str) -> list[LogEvent]:
    """The lines of these signs, in the order of the files."""
    return [event for event in logs.events if event.sign in signs]


def own_exceptions(logs: Logs) -> list[LogEvent]:
    """Exceptions of Python that do not merely follow from another process's end."""
    return [event for event in events_of(logs, "python-error") if not meanings.follows(event)]


def full_disk(logs: Logs) -> list[LogEvent]:
    """Files that could not be written, not those in memory; what other programs say only where no step follows."""
    proof = Ending(logs).proof
    events = (
        event for event in events_of(logs, "disk-full") if not event.fields.get("path", "").startswith("/dev/shm")
    )
    return [event for event in events if "program" not in event.fields or proof.get(event.file, 0) <= event.line]


def in_order(events: Iterable[LogEvent]) -> list[LogEvent]:
    """The first first: by the clock of the lines where each has one, else by their place in the files."""
    all_lines = [*events]
    clock = all(event.time is not None for event in all_lines)
    return sorted(
        all_lines, key=lambda event: (event.time if clock and event.time is not None else 0.0, event.order)
    )


def by_host(events: Iterable[LogEvent]) -> dict[str, list[LogEvent]]:
    """Host -> its lines, the hosts in the order of their first line; "" where the host is not known."""
    hosts: dict[str, list[LogEvent]] = {}
    for event in events:
        hosts.setdefault(event.host, []).append(event)
    return hosts


def by_known_host(events: Iterable[LogEvent]) -> dict[str, list[LogEvent]]:
    """Lines of one host each, the first in a log first; those of nobody known only where there are no others."""
    groups = by_host(sorted(events, key=lambda event: event.order))
    return {host: events for host, events in groups.items() if host} or groups


def process_of(logs: Logs, event: LogEvent) -> LogProcess | None:
    """The process that wrote the line, where NCCL told of it."""
    writers = (process for process in logs.processes if (process.host, process.pid) == (event.host, event.pid))
    return next(writers, None) or next(
        (process for process in logs.processes if process.rank == event.rank is not None), None
    )


def where(event: LogEvent) -> Where:
    """Who wrote the line."""
    return Where(node=event.host or None, rank=event.rank)


def at_host(host: str, events: list[LogEvent]) -> Where:
    """What is wrong with a host, whichever of its ranks told it first; the writer where the host is not known."""
    return Where(node=host) if host else where(events[0])


def at_teller(logs: Logs, events: list[LogEvent]) -> Where:
    """Who wrote the lines; where that is not known, whom torchrun's Root Cause block names.

    No rank where several said it, each in a line of its own or in the same words.
    """
    first = events[0]
    alone = len({event.rank for event in events if event.host == first.host}) == 1
    if first.host or first.rank is not None:
        return where(first) if alone else Where(node=first.host or None)
    root = root_cause(logs)
    alone = len({event.text for event in events}) == len(events) and first.count == 1
    return Where(node=root.host or None, rank=root.rank if alone else None) if root else Where()


class RootCause(NamedTuple):
    """Whom torchrun names as the first that failed, and how it ended."""

    host: str
    rank: int | None
    exitcode: LogEvent | None


def root_cause(logs: Logs) -> RootCause | None:
    """torchrun's Root Cause block; above it stand the others that failed, in the same form."""
    block = next(iter(events_of(logs, "root-cause-block")), None)
    if block is None:
        return None
    host, rank, exitcode = (
        next(
            (event for event in events_of(logs, sign) if event.file == block.file and event.line > block.line),
            None,
        )
        for sign in ("root-cause-host", "root-cause-rank", "root-cause-exit")
    )
    name = host.fields["host"].partition(".")[0] if host else ""
    return RootCause(name, int(rank.fields["rank"]) if rank else None, exitcode)


def lines(events: Iterable[LogEvent]) -> list[Evidence]:
    """The first lines as evidence: `train.log:812` and what it says."""
    return [line(event) for event in [*events][:_MOST_LINES]]


def line(event: LogEvent) -> Evidence:
    """A line of a log as evidence."""
    return seen(f"{event.file}:{event.line}", event.text[:TEXT], event.order)


def cause(
    events: list[LogEvent],
    what: str,
    *,
    why: str,
    owner: Owner,
    fix: list[Remedy],
    state: State = State.FAIL,
    at: Where | None = None,
    more: Iterable[Evidence] = (),
) -> Finding:
    """A cause that these lines show (at least one), at the writer of the first of them.

    The first remedy says how to confirm it. more: what else is known, such as the NCCL version.
    """
    return Finding(
        state=state,
        where=at or where(events[0]),
        what=what,
        why=why,
        owner=owner,
        evidence=[*lines(events), *more],
        remedies=fix,
    )

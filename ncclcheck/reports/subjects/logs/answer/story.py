"""LOG verdicts -> the story of a log: what came first, the causes with reasons, what only follows, the facts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, field

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, Verdict, Where, seen
from ncclcheck.reports.judgement.rule import flagged
from ncclcheck.reports.subjects.job.pairing import pairing
from ncclcheck.reports.subjects.logs.attempts import latest
from ncclcheck.reports.subjects.logs.logged import in_order, where
from ncclcheck.reports.subjects.logs.words import meanings
from ncclcheck.reports.subjects.logs.words.wording import LEFT_OPEN
from ncclcheck.reports.text.words.fold import fold_names, fold_numbers

# causes, kinds of what follows, characters of a line: chosen for one screen
_MOST_CAUSES, _MOST_TOLD, _TEXT = 8, 12, 200
_BAD = (State.FAIL, State.WARN)
_FIRST, _ANY = "LOG001", "LOG004"  # the first line of a failure; any exception, after what knows it better
_BY_SIGNAL = "LOG093"
_SEEN = 2  # of the levels of a cause: that of what was only seen
_GAVE_UP = "LOG189"  # NCCL, after a warning that nothing knows better
# Of one hang: what the watchdogs' lines say, and what the Flight Recorder's dumps do.
_ALSO_RECORDED = {
    "LOG080": ("LOG132",),
    "LOG084": ("LOG134", "LOG135"),
    "LOG094": ("LOG136",),
    "LOG097": ("LOG137",),
}
_ABSENT = ("LOG080", "LOG131", "LOG132")  # who did not come, or left no dump; not what became of it
_NOT_RECORDED = (
    "the only cause that the dumps show; a first send or receive that waits for its peer is not in them"
)
_EITHER = "the only cause that these lines show; either side of the send or receive may have to be looked at"
# Said by the kernel or by Slurm of what they ended, wherever it stands: what the others print follows from it.
_DECISIVE = frozenset(("oom-killed", "gpu-lost", "gpu-xid", "gpu-hang", "preempted", "node-lost"))
_LATER_S = 120.0  # seconds by the clock after which it is another event: a dead node is known to Slurm in a minute
_Ranked = tuple[str, Finding, LogEvent | None]
# A reason that is one of several: what was seen is sure, and the cause is not.
_GUESSED = re.compile(r"\b(?:as a rule|most often|mostly|usually|likely|perhaps|probably|may (?:be|have)|might)\b")
_FROM_OUTSIDE = ("LOG108",)  # Ray saw that a connection was gone, and says itself that it does not know why
TELL_LITTLE = (_FIRST, "LOG002", "LOG005")  # that something failed, or is not known


class KindOfLines(Struct, frozen=True, kw_only=True):
    """Lines of one kind. place: `train.log:812` of the first; count: how many there are; why: what they mean."""

    text: str
    place: str
    count: int = 1
    why: str = ""
    where: Where = Where()


class Cause(Struct, frozen=True, kw_only=True):
    """A candidate. confidence: how firmly it can be said; reason: why it stands where it does."""

    code: str
    what: str
    where: Where
    place: str
    confidence: Literal["sure", "likely", "possible"]
    reason: str


class LogDiagnosis(Struct, frozen=True, kw_only=True):
    """What logs say of the job that wrote them."""

    first: KindOfLines | None = None
    causes: list[Cause] = field(default_factory=list)
    consequences: list[KindOfLines] = field(default_factory=list)
    harmless: list[KindOfLines] = field(default_factory=list)
    facts: list[Evidence] = field(default_factory=list)


def diagnosis(logs: Logs | None, verdicts: Sequence[Verdict]) -> LogDiagnosis | None:
    """The story; None where no log was read."""
    if logs is None:
        return None
    logs = latest(logs)
    used = {evidence.event for row in _bad(verdicts) for evidence in row[1].evidence}
    return LogDiagnosis(
        first=_first(logs, verdicts),
        causes=_causes(logs, verdicts),
        consequences=_kinds(logs, meanings.CONSEQUENCES, set()),
        harmless=_kinds(logs, meanings.HARMLESS, used),
        facts=_facts(logs),
    )


def _bad(verdicts: Sequence[Verdict]) -> list[tuple[str, Finding]]:
    own = (verdict for verdict in verdicts if verdict.code.startswith("LOG"))
    return [(verdict.code, finding) for verdict in own for finding in verdict.findings if finding.state in _BAD]


def _first(logs: Logs, verdicts: Sequence[Verdict]) -> KindOfLines | None:
    """The earliest line that a failed check rests on."""
    orders = {e.event for _, finding in _bad(verdicts) if finding.state is State.FAIL for e in finding.evidence}
    bad = [event for event in logs.events if event.order in orders and event.sign not in meanings.CONSEQUENCES]
    return _told(in_order(bad)[:1]) if bad else None


def _causes(logs: Logs, verdicts: Sequence[Verdict]) -> list[Cause]:
    events = {event.order: event for event in logs.events}
    rows = [(code, finding, next(iter(_events(finding, events)), None)) for code, finding in _bad(verdicts)]
    clock = all(event.time is not None for _, _, event in rows if event)

    why = _why_absent(rows)
    began = min((event.time for _, _, event in rows if event and event.time is not None), default=None)

    def key(row: _Ranked) -> tuple[float, ...]:
        code, finding, event = row
        # What processes began as comes before any line; that they did not come through is no cause.
        none = float("inf" if code in TELL_LITTLE else "-inf")
        when = (event.time or 0.0, event.order) if event else (none, none)
        level = 2 if _is_explained(row, why) or _is_told_inside(row, rows) else _level(code)
        outranked = not _is_decisive(finding, events, began)
        return finding.state.rank, outranked, level, when[0] if clock else 0.0, when[1]

    ranked = sorted(rows, key=key)
    if ranked and ranked[0][0] not in TELL_LITTLE:
        ranked = [row for row in ranked if row[0] != _FIRST]  # `first` tells it
    if any(row[1].state is State.FAIL and _level(row[0]) < _SEEN for row in ranked):
        ranked = [row for row in ranked if row[1].state is State.FAIL or row[0] not in flagged("costs_speed")]
    ranked, twice = _told_once(ranked)
    causes = [_cause(ranked, index, why) for index in range(min(len(ranked), _MOST_CAUSES))]
    if not logs.events:
        causes = [_less_sure(cause, ("LOG132",), _NOT_RECORDED) for cause in causes]
    elif pairing(logs):
        causes = [_less_sure(cause, ("LOG080", "LOG132"), _EITHER) for cause in causes]
    return [_confirmed(cause) if cause.code in twice else cause for cause in causes]


def _is_told_inside(row: _Ranked, rows: Sequence[_Ranked]) -> bool:
    """Whether an abort's own exception, in the line below it, is what another check knows."""
    code, _, event = row
    if code != _BY_SIGNAL or event is None or not event.fields.get("thrown", "").startswith("gloo::"):
        return False
    below = event.order + 1
    return any(
        other != code and _level(other) < _SEEN and any(evidence.event == below for evidence in finding.evidence)
        for other, finding, _ in rows
        if finding.state is State.FAIL
    )


def _is_decisive(finding: Finding, events: dict[int, LogEvent], began: float | None) -> bool:
    """Whether the kernel or Slurm says it, not long after the first failure where both have a clock."""
    by = [event for event in _events(finding, events) if event.sign in _DECISIVE]
    late = all(began is not None and event.time is not None and event.time > began + _LATER_S for event in by)
    return bool(by) and not late


def _why_absent(rows: list[_Ranked]) -> dict[int, str]:
    """Rank -> the code that says what became of it, for ranks of which the log holds that."""
    tell_nothing = {
        *_ABSENT,
        *flagged("symptom"),
        *TELL_LITTLE,
        *(code for codes in _ALSO_RECORDED.values() for code in codes),
    }
    sure = [row for row in rows if row[1].state is State.FAIL and row[0] not in tell_nothing | {*_ALSO_RECORDED}]
    by_weight = sorted(sure, key=lambda row: row[0] != _ANY)  # an exception, where nothing knows it better
    return {f.where.rank: code for code, f, _ in by_weight if f.where.rank is not None}


def _is_explained(row: _Ranked, why: dict[int, str]) -> bool:
    return row[0] in _ABSENT and row[1].where.rank in why


def _told_once(ranked: list[_Ranked]) -> tuple[list[_Ranked], set[str]]:
    """What the log and the dumps both tell stands once, by the dumps, which name the call; and its codes."""
    twice: dict[str, str] = {}
    for code, finding, _ in ranked:
        same = [
            known_by
            for known_by, other, _ in ranked
            if known_by in _ALSO_RECORDED.get(code, ()) and _agree(finding, other)
        ]
        if same:
            twice[code] = same[0]
    by_code = {row[0]: row for row in reversed(ranked)}
    kept = [by_code[twice.get(row[0], row[0])] if row[0] in twice else row for row in ranked]
    return [row for place, row in enumerate(kept) if row not in kept[:place]], {*twice.values()}


def _agree(log: Finding, dumps: Finding) -> bool:
    """Whether they may mean the same rank; several ranks are no place."""
    return None in (log.where.rank, dumps.where.rank) or log.where.rank == dumps.where.rank


def _confirmed(cause: Cause) -> Cause:
    """Two witnesses are better than one."""
    if cause.confidence == "possible":
        return cause
    return msgspec.structs.replace(cause, reason=f"{cause.reason}; the watchdogs' lines and the dumps agree")


def _less_sure(cause: Cause, codes: Sequence[str], reason: str) -> Cause:
    """Who waits for its peer in a first send or receive seems absent."""
    if cause.code not in codes or cause.confidence != "sure":
        return cause
    return msgspec.structs.replace(cause, confidence="likely", reason=reason)


def _level(code: str) -> int:
    """What explains stands before what was only seen; last what somebody else saw from outside."""
    if code in TELL_LITTLE:
        return 4
    seen_only = _SEEN if code in flagged("symptom") else int(code in (_ANY, _GAVE_UP))
    return 3 if code in _FROM_OUTSIDE else seen_only


def _events(finding: Finding, events: dict[int, LogEvent]) -> list[LogEvent]:
    """The lines that it rests on."""
    orders = [evidence.event for evidence in finding.evidence if evidence.event is not UNSET]
    return [events[order] for order in orders if order in events]


def _cause(ranked: Sequence[_Ranked], index: int, why: dict[int, str]) -> Cause:
    code, finding, event = ranked[index]
    confidence, reason = _standing(ranked, index, why)
    return Cause(
        code=code,
        what=finding.what,
        where=finding.where,
        place=_place(event) if event else next((evidence.source for evidence in finding.evidence), ""),
        confidence=confidence,
        reason=reason,
    )


def _standing(
    ranked: Sequence[_Ranked], index: int, why: dict[int, str]
) -> tuple[Literal["sure", "likely", "possible"], str]:
    code, finding, _ = ranked[index]
    certain = [row for row in ranked if row[1].state is State.FAIL and not _is_explained(row, why)]
    exact = [row for row in certain if row[0] not in {*flagged("symptom"), _ANY}]
    if _is_explained(ranked[index], why):
        return "possible", f"says who was waited for; {why[finding.where.rank or 0]} says what became of it"
    if finding.state is State.WARN:
        return "possible", "a risk, or what makes it slow; it ends no job"
    if code == _ANY and not exact:
        return "likely", "the program's own exception or exit; nothing else is known to have failed"
    if code in flagged("symptom") or code == _ANY:
        if exact:
            return "possible", f"says what was seen; {exact[0][0]} says why"
        return "possible", "says what was seen; the cause is not in the log"
    if index:
        return "possible", f"comes after {ranked[0][0]}, and may follow from it"
    if LEFT_OPEN.search(finding.what) or _GUESSED.search(finding.why) or len(exact) > 1:
        others = f"the first of {len(exact)} causes that these lines show"
        return "likely", others if len(exact) > 1 else "the lines say what happened, and leave open why"
    further = any(row[1].state is State.FAIL for row in ranked[1:])
    return "sure", "no other failure here explains it" if further else "the only cause that these lines show"


def _kinds(logs: Logs, known: dict[str, str], used: Container[object]) -> list[KindOfLines]:
    """A line for each kind, with how often it is there. used: LogEvent.order of those that findings rest on."""
    kinds: dict[str, list[LogEvent]] = {}
    for event in logs.events:
        if event.sign in known and event.order not in used:
            kinds.setdefault(event.sign, []).append(event)
    tolds = [_told(events, known[sign]) for sign, events in kinds.items()]
    return tolds[:_MOST_TOLD]


def _told(events: Sequence[LogEvent], why: str = "") -> KindOfLines:
    first = events[0]
    return KindOfLines(
        text=first.text.strip()[:_TEXT],
        place=_place(first),
        count=sum(event.count for event in events),
        why=why,
        where=where(first),
    )


def _place(event: LogEvent) -> str:
    return f"{event.file}:{event.line}"


def _facts(logs: Logs) -> list[Evidence]:
    """The lines that a person looks for first."""
    facts = {
        "NCCL": _counted(process.version for process in logs.processes) or logs.version,
        "world": _world(logs),
        "nodes": fold_names(sorted({process.host for process in logs.processes})),
        "initialisation": _initialised(logs.processes),
        "bootstrap": _counted(process.bootstrap.interface for process in logs.processes if process.bootstrap),
        "network": _counted(process.network for process in logs.processes),
        "adapters": _counted(", ".join(process.devices) for process in logs.processes),
        "plugin": _counted(process.plugin for process in logs.processes),
        "transports": _transports(logs.processes),
        "settings": _settings(logs.processes),
    }
    return [seen(name, value) for name, value in facts.items() if value]


def _counted(values: Iterable[str]) -> str:
    """One value of all is told alone; several with how many processes have each."""
    common = Counter(value for value in values if value).most_common(4)
    if len(common) == 1:
        return common[0][0]
    return ", ".join(f"{value} ({count} process{'es' * (count != 1)})" for value, count in common)


def _world(logs: Logs) -> str:
    if logs.world is None:
        heard = f"{fold_numbers(logs.ranks)} {'are' if len(logs.ranks) > 1 else 'is'} heard of"
        return f"rank{'s' * (len(logs.ranks) > 1)} {heard}" if logs.ranks else ""
    missing = {*range(min(logs.world, 65536))} - {*logs.ranks}
    are = "are" if len(missing) > 1 else "is"
    silent = f"; {fold_numbers(missing)} {are} not in these files" if missing else ", all heard of"
    return f"{logs.world} ranks{silent}"


def _initialised(processes: Sequence[LogProcess]) -> str:
    began = [process for process in processes if process.began]
    done = [process for process in began if process.completed]
    joined = " rings and trees connected" if any(process.rings and process.trees for process in processes) else ""
    return f"{len(done)} of {len(began)} processes came to Init COMPLETE{joined and ','}{joined}" if began else ""


def _transports(processes: Sequence[LogProcess]) -> str:
    total: Counter[str] = Counter()
    for process in processes:
        total.update(process.vias)
    return ", ".join(f"{kind} x{count}" for kind, count in total.most_common(6))


def _settings(processes: Sequence[LogProcess]) -> str:
    """Those of most processes first; where processes differ, both are told."""
    total = Counter(f"{name}={value}" for process in processes for name, value in process.settings.items())
    some = "" if not total or min(total.values()) == len(processes) else " (not on all processes)"
    return ", ".join(name for name, _ in total.most_common(10)) + some

"""The words of a judgement: State, Finding, Remedy, Verdict. Types make it hard to leave out the why."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from ncclcheck.probes.facts import Unread
from ncclcheck.reports.subjects.nodes.fixes import touched

Owner = Literal["job", "node", "site", "tool"]
# Said of facts that this ncclcheck reads and that the one which wrote a document did not.
OLDER = "not in this document (older ncclcheck)"


class State(Enum):
    """States of a finding or a verdict, worst first."""

    FAIL = "fail"
    WARN = "warn"
    UNKNOWN = "unknown"
    NOTE = "note"
    OK = "ok"
    SKIPPED = "skipped"

    @property
    def rank(self) -> int:
        """0 is the worst."""
        return _ORDER[self]

    @property
    def word(self) -> str:
        """The word of the text report; FAIL is the only one in capitals."""
        return "FAIL" if self is State.FAIL else self.value


_ORDER = {state: index for index, state in enumerate(State)}


def worst(states: list[State]) -> State:
    """The worst of several states; SKIPPED where there are none."""
    return min(states, key=lambda s: s.rank, default=State.SKIPPED)


class Where(Struct, frozen=True, kw_only=True):
    """The place of a finding; what is None or not set does not narrow it. rail, gpu: numbers, from 0."""

    node: str | None = None
    device: str | None = None
    rank: int | None = None
    peer: str | None = None
    rail: int | UnsetType = UNSET
    gpu: int | UnsetType = UNSET

    def __str__(self) -> str:
        rank = None if self.rank is None else f"rank {self.rank}"
        peer = None if self.peer is None else f"to {self.peer}"
        return "  ".join(part for part in (self.node, self.device, rank, peer) if part)


class Evidence(Struct, frozen=True, kw_only=True):
    """How we know: where the value stands (a file, a call, a measurement) and the value.

    event: of a line of a log, LogEvent.order.
    """

    source: str
    value: str
    event: int | UnsetType = UNSET


class Remedy(Struct, frozen=True, kw_only=True):
    """What to do and who does it; `commands` can be pasted."""

    who: Literal["you", "admin"]
    text: str
    commands: list[str] = field(default_factory=list)


class UnreadFact(Struct, frozen=True, kw_only=True):
    """Why a finding is unknown. path: of the fact, where nothing else is said; kind, reason: as in Unread."""

    path: str
    kind: str
    reason: str


class Finding(Struct, frozen=True, kw_only=True):
    """One statement about one place. FAIL and WARN carry evidence and a remedy, or cannot be made.

    blocks_job: a job that is started in spite of it hangs or cannot start, so none is started (`--force` does).
    unread: the fact without which an unknown one could not be judged.
    """

    state: State
    where: Where
    what: str
    why: str
    owner: Owner
    evidence: list[Evidence]
    remedies: list[Remedy]
    blocks_job: bool = False
    unread: UnreadFact | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.state in (State.FAIL, State.WARN) and not (self.evidence and self.remedies and self.why):
            raise ValueError(f"a {self.state.value} finding needs why, evidence and a remedy: {self.what}")


class Verdict(Struct, frozen=True, kw_only=True):
    """What one rule says of the whole cluster; its state is the worst of its findings."""

    code: str
    title: str
    state: State
    reason: str | None = None
    url: str = ""
    findings: list[Finding] = field(default_factory=list)


class Culprit(Struct, frozen=True, kw_only=True):
    """Who is to blame, with what it explains.

    names: of a node NODE, of a nic or gpu NODE/DEVICE, of a rank NODE/rank R, of a link FROM and TO.
    scale: so many nodes or more, nodes that fail only together, or two groups.
    confidence: 0 to 1. explains: codes of the rules whose findings follow from it.
    """

    kind: Literal["node", "nic", "gpu", "rank", "link", "fabric", "scale"]
    names: list[str]
    where: list[Where]
    confidence: float
    explains: list[str]
    why: str


def you(text: str, *commands: str) -> Remedy:
    """A remedy within the user's reach."""
    return Remedy(who="you", text=touched.with_touched(text, commands), commands=list(commands))


def admin(text: str, *commands: str) -> Remedy:
    """A remedy that needs the node's administrator; what it touches beyond the job stands in its text."""
    return Remedy(who="admin", text=touched.with_touched(text, commands), commands=list(commands))


def seen(source: str, value: object, event: int | UnsetType = UNSET) -> Evidence:
    """One piece of evidence."""
    return Evidence(source=source, value=str(value), event=event)


def fail(
    where: Where,
    what: str,
    *,
    why: str,
    owner: Owner,
    evidence: list[Evidence],
    fix: list[Remedy],
    blocks_job: bool = False,
) -> Finding:
    """The job will not run, or will give wrong results."""
    return Finding(
        state=State.FAIL,
        where=where,
        what=what,
        why=why,
        owner=owner,
        evidence=evidence,
        remedies=fix,
        blocks_job=blocks_job,
    )


def warn(
    where: Where, what: str, *, why: str, owner: Owner, evidence: list[Evidence], fix: list[Remedy]
) -> Finding:
    """The job runs, but slower or at a risk that can be named."""
    return Finding(state=State.WARN, where=where, what=what, why=why, owner=owner, evidence=evidence, remedies=fix)


def note(
    where: Where,
    what: str,
    *,
    why: str = "",
    owner: Owner = "job",
    evidence: list[Evidence] | None = None,
    fix: list[Remedy] | None = None,
) -> Finding:
    """Worth knowing; nothing has to be done."""
    return Finding(
        state=State.NOTE, where=where, what=what, why=why, owner=owner, evidence=evidence or [], remedies=fix or []
    )


def fine(where: Where, what: str, *evidence: Evidence) -> Finding:
    """A passed subject whose value a person looks for (which interface, which library)."""
    return Finding(
        state=State.OK, where=where, what=what, why="", owner="node", evidence=list(evidence), remedies=[]
    )


def not_read(
    where: Where,
    source: str,
    fact: Unread,
    what: str = "",
    *,
    why: str = "Not observed, so neither healthy nor faulty.",
    owner: Owner = "node",
    signs: Sequence[Evidence] = (),
    fix: list[Remedy] | None = None,
) -> Finding:
    """A fact is there or may be, and could not be read.

    source: its path, or where it stands; empty for no evidence. what: what is not known, without the reason, where
    the path alone would not say it. signs: evidence beside the reason.
    """
    return Finding(
        state=State.UNKNOWN,
        where=where,
        what=f"{what or f'{source} could not be read'}: {fact.why}",
        why=why,
        owner=owner,
        evidence=[*signs, *([seen(source, f"{fact.kind}: {fact.why}")] if source else [])],
        remedies=fix or [],
        unread=UnreadFact(path="" if what else source, kind=fact.kind, reason=fact.why),
    )


def unknown(
    where: Where,
    what: str,
    *,
    why: str,
    owner: Owner = "node",
    evidence: list[Evidence] | None = None,
    fix: list[Remedy] | None = None,
) -> Finding:
    """It is there or may be, and could not be seen."""
    return Finding(
        state=State.UNKNOWN,
        where=where,
        what=what,
        why=why,
        owner=owner,
        evidence=evidence or [],
        remedies=fix or [],
    )

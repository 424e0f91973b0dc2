"""What is told together: the same finding of several nodes, several places with one remedy, one unread fact."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from ncclcheck.probes.facts import replace
from ncclcheck.reports.judgement.causal import causes_first
from ncclcheck.reports.judgement.findings import OLDER, Evidence, Finding, Remedy, State, UnreadFact, Verdict
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.rule import FAMILIES
from ncclcheck.reports.text.words.fold import fold_some
from ncclcheck.reports.text.words.likeness import Likeness

MOST = 8  # places, and blocks of one check, that are read one by one; of more alike the first FIRST do
FIRST = 3  # places named before the count in a heading: chosen, three fit a heading of 80 columns
MOST_KINDS = 16  # of findings that differ in more than names and numbers: a line each, so that none hides another
MOST_WHOLE = 64  # findings of one check that -v shows one by one: of 10,000 nodes it would fill 100,000 lines
_OF_THEIR_OWN = "Each of these has a reason and a fix of its own; --json has them."


@dataclass
class FoldedPlaces:
    """One statement and the places of which it is true, folded. more: it stands for so many that are not shown."""

    where: str
    what: str
    more: int = 0

    def __str__(self) -> str:
        """Where and what; no place that the statement names itself, and no device or rank with which it begins."""
        parts = [part for part in self.where.split("  ") if part]
        if all(_names(self.what, part.removeprefix("to ")) for part in parts):
            return self.what
        own = [part for part in parts if not part.startswith("to ")]
        begun = own[-1:] if own and re.match(rf"{re.escape(own[-1])}(?![\w-])", self.what) else []
        return f"{' '.join(part for part in parts if part not in begun)}: {self.what}".removeprefix(": ")


def _names(words: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", words) is not None


@dataclass
class FindingBlock:
    """Places that have one reason and one remedy, with the rules that say so."""

    state: State
    codes: list[str]
    title: str
    why: str
    remedies: list[Remedy]
    places: list[FoldedPlaces] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    unread: UnreadFact | None = None


def blocks(document: Document, states: Iterable[State], *, whole: bool = False) -> Iterator[FindingBlock]:
    """Worst first, causes before symptoms. whole: every place by itself, up to MOST_WHOLE of one check."""
    verdicts = ranked(document)
    likeness = Likeness(entry.facts for entry in document.nodes)
    for state in states:
        of_state = [b for v in verdicts for b in _of_verdict(v, state, likeness, whole=whole)]
        yield from _unread_together(of_state) if state is State.UNKNOWN else of_state


def ranked(document: Document) -> list[Verdict]:
    """Causes before symptoms: first what logs show, the likeliest first, but never before what it stands on."""
    causes = document.diagnosis.causes if document.diagnosis else []
    rank = {cause.code: index for index, cause in reversed([*enumerate(causes)])}
    return causes_first(sorted(document.verdicts, key=lambda v: (rank.get(v.code, len(causes)), *order(v))))


def order(verdict: Verdict) -> tuple[int, str]:
    """Causes before symptoms: what a node is comes before what the job did on it."""
    families = [*(f for f in FAMILIES if f not in ("RUN", "BEN")), "RUN", "BEN"]
    return families.index(verdict.code[:3]), verdict.code


def _of_verdict(verdict: Verdict, state: State, likeness: Likeness, *, whole: bool) -> list[FindingBlock]:
    same = _alike(finding for finding in verdict.findings if finding.state is state)
    whole = whole and len(same) <= MOST_WHOLE
    kinds = _kinds(same, likeness, whole=whole)
    made = [_block(verdict, state, groups, likeness, whole=whole) for groups in kinds]
    if len(made) <= MOST or whole:
        return made
    rest = _one_of_each(kinds[FIRST:])
    return [*made[:FIRST], FindingBlock(state, [verdict.code], verdict.title, _OF_THEIR_OWN, [], rest)]


def _kinds(same: list[list[Finding]], likeness: Likeness, *, whole: bool) -> list[list[list[Finding]]]:
    """Findings by reason, remedies, owner, and whether they stop a job."""
    if whole:
        return [*_by(same, lambda finding: (finding.why, str(finding.remedies))).values()]
    return _sorted_out(same, likeness, lambda finding: f"{finding.why}\n{finding.remedies}")


def _sorted_out(
    groups: list[list[Finding]], likeness: Likeness, words: Callable[[Finding], str]
) -> list[list[list[Finding]]]:
    """Those together whose words differ in their own names and addresses alone; of too many kinds, in numbers too.

    The rarest first where there are many: what one node has is not read behind what all have.
    """
    by_kind = _by(groups, lambda finding: likeness.of(finding, words(finding)))
    if len(by_kind) > MOST:
        by_kind = _by(groups, lambda finding: likeness.of(finding, words(finding), numbers=True))
    kinds = [*by_kind.values()]
    return sorted(kinds, key=_count) if len(groups) > MOST else kinds


def _by(groups: list[list[Finding]], key: Callable[[Finding], Hashable]) -> dict[Hashable, list[list[Finding]]]:
    """By what makes two findings different whatever their words are, and by this."""
    by_kind: dict[Hashable, list[list[Finding]]] = {}
    for alike in groups:
        first = alike[0]
        by_kind.setdefault((first.owner, first.blocks_job, key(first)), []).append(alike)
    return by_kind


def _count(groups: list[list[Finding]]) -> int:
    return sum(map(len, groups))


def _one_of_each(kinds: list[list[list[Finding]]]) -> list[FoldedPlaces]:
    """One line a kind, which names all nodes that have it; beyond MOST_KINDS, how many more there are."""
    places = []
    for groups in kinds[:MOST_KINDS]:
        places.append(FoldedPlaces(_where(groups[0]), groups[0][0].what))
        if left := groups[1:]:
            places.append(FoldedPlaces("", _more(left), more=_count(left)))
    if beyond := [alike for groups in kinds[MOST_KINDS:] for alike in groups]:
        words = _more(beyond, f"of {len(kinds) - MOST_KINDS:,} other kinds (--json has all)")
        places.append(FoldedPlaces("", words, more=_count(beyond)))
    return places


def _block(
    verdict: Verdict, state: State, groups: list[list[Finding]], likeness: Likeness, *, whole: bool
) -> FindingBlock:
    first = groups[0][0]
    others = [alike[0].remedies for alike in groups[1:]]
    remedies = [
        remedy if all(fixes[at : at + 1] == [remedy] for fixes in others) else _of_one(remedy, first)
        for at, remedy in enumerate(first.remedies)
    ]
    evidence = {(evidence.source, evidence.value): evidence for alike in groups for evidence in alike[0].evidence}
    places = (
        [FoldedPlaces(_where(alike), alike[0].what) for alike in groups] if whole else _places(groups, likeness)
    )
    unread = first.unread if isinstance(first.unread, UnreadFact) else None
    return FindingBlock(
        state, [verdict.code], verdict.title, first.why, remedies, places, [*evidence.values()], unread
    )


def _of_one(remedy: Remedy, finding: Finding) -> Remedy:
    """Said of one node, where the others have the same to do with their own names."""
    if not remedy.commands or finding.where.node is None:
        return remedy
    where = str(replace(finding.where, rank=None, peer=None))
    return replace(
        remedy, text=f"{remedy.text} Here for {where}; the others alike, with their own names and numbers."
    )


def _places(groups: list[list[Finding]], likeness: Likeness) -> list[FoldedPlaces]:
    """Of many places that differ in their own names and addresses alone the first few, and who the others are."""
    if len(groups) <= MOST:
        return [FoldedPlaces(_where(alike), alike[0].what) for alike in groups]
    kinds = _sorted_out(groups, likeness, lambda finding: finding.what)
    if len(kinds) > FIRST:
        return _one_of_each(kinds)
    places = []
    for like in kinds:
        shown = like if len(like) <= MOST else like[:FIRST]
        places += [FoldedPlaces(_where(alike), alike[0].what) for alike in shown]
        if left := like[len(shown) :]:
            places.append(FoldedPlaces("", _more(left), more=_count(left)))
    return places


def _more(groups: list[list[Finding]], like: str = "like these") -> str:
    """`and 9,997 more like these: dgx-[3-9999]`; of one node its devices."""
    left = [finding.where for alike in groups for finding in alike]
    nodes = dict.fromkeys(where.node for where in left if where.node is not None)
    devices = dict.fromkeys(where.device for where in left if where.device is not None)
    names = fold_some(devices) if len(nodes) <= 1 and devices else ""
    listed = "  ".join(part for part in (fold_some(nodes), names) if part)
    return f"and {len(left):,} more {like}" + (f": {listed}" if listed else "")


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings that differ in their node alone."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        where = finding.where
        key = (where.device, where.rank, where.peer, *_words(finding), finding.owner, finding.blocks_job)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _words(finding: Finding) -> tuple[str, ...]:
    words = [word for remedy in finding.remedies for word in (remedy.who, remedy.text, *remedy.commands)]
    return (finding.what, finding.why, *words)


def _where(alike: list[Finding]) -> str:
    nodes = fold_some(f.where.node for f in alike if f.where.node is not None)
    rest = str(replace(alike[0].where, node=None))
    return "  ".join(part for part in (nodes, rest) if part)


def _unread_together(blocks_of_state: list[FindingBlock]) -> list[FindingBlock]:
    """One fact that could not be read leaves many rules unjudged; said once, it does not hide the rest."""
    by_key: dict[tuple[object, ...], FindingBlock] = {}
    for block in blocks_of_state:
        unread = block.unread
        key: tuple[object, ...] = (id(block),)
        if unread and len(block.places) == 1 and (unread.path or not block.evidence):
            key = (block.places[0].where, unread.reason, block.why, str(block.remedies))
        if key in by_key:
            _add(by_key[key], block)
        else:
            by_key[key] = block
    return list(by_key.values())


def _add(block: FindingBlock, other: FindingBlock) -> None:
    """Add the codes and the evidence of another rule's block, where both lack facts."""
    block.codes += other.codes
    block.evidence += [evidence for evidence in other.evidence if evidence not in block.evidence]
    facts = ", ".join(sorted({evidence.source for evidence in block.evidence}))
    if not facts or block.unread is None:
        block.title = OLDER
        return
    block.title = "could not be judged"
    block.places[0].what = f"{facts} could not be read: {block.unread.reason}"

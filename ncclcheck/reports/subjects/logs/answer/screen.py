"""The answer of `ncclcheck logs` on one screen: cause, rank and host, the lines that prove it, why, the fix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ncclcheck.reports.judgement.findings import Evidence, Remedy, State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.rule import flagged
from ncclcheck.reports.subjects.logs.answer.story import TELL_LITTLE, Cause
from ncclcheck.reports.text import closing, summary
from ncclcheck.reports.text.block_text import Style, commands, headed, labelled
from ncclcheck.reports.text.groups import FindingBlock, blocks
from ncclcheck.reports.text.headings import heading
from ncclcheck.reports.text.words.fold import many
from ncclcheck.reports.text.words.visible import in_line
from ncclcheck.reports.text.words.wrapping import wrapped

MOST_LINES = 25  # of a terminal of 80 columns for one cause: what a person takes in at 3 a.m. without scrolling
_MOST_OTHERS = 4  # further causes, a line each; -v, JSON and HTML have all
_MOST_HARMLESS = 3  # kinds of lines that only frighten
_MOST_SEEN = 3  # pieces of evidence
_SEEN_LINES = 2  # of the screen for one of them
_WHY_LINES = 3  # of one screen: chosen, 240 characters are a reason in two sentences
_HEADING_LINES = 4  # chosen: an exception and what was complained of before it take 280 characters
_NOTE_LINES = 2  # of each note and each harmless kind: chosen
_TEXT = 40  # characters of a harmless line
_FACTS_LINES = 2  # of what was read: chosen, versions, ranks and times fit two lines of 80 columns
_FACTS = ("NCCL", "world", "nodes", "initialisation", "network")
_ANY_EXCEPTION, _FROM_OUTSIDE, _END_IS_SHOWN = "LOG004", "LOG006", "LOG007"
_PLACE = re.compile(r"(.+):(\d+)")
_STAMP = re.compile(  # of glog, before what torch says
    r"\[?[EWIF]\d{3,4} [\d:.]+ (?:\d+ )?[\w/]+\.(?:cpp|py|hpp):\d+\] (?:\[(?:PG ID|Rank)[^\]]*\] ?)*"
    r"|^\d{4}-\w{3}-\d\d [\d:.]+ +\d+:\d+ +(?:ERROR|FATAL) +[A-Z]{2,5}:\w{1,60} +"  # of Neuron's runtime
)
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def text(document: Document, style: Style) -> str:
    """All but what -v shows."""
    top = [*shown(document)]
    head, end = _head(document, style.width), _end(document, top, style)
    room = MOST_LINES - _height([*head, *end], style.width) - 2
    if not top or top[0].state is State.NOTE:
        notes = [_in_short(block, style, _NOTE_LINES) for block in top]
        middle = _as_many_as_fit([*notes, *_harmless(document, style.width)], style.width, room)
    else:
        failed = any(block.state is State.FAIL for block in top)
        beside = _follows(document, top[0], style.width) if failed else []
        middle = _with_others(top, beside, style, room)
    return "\n\n".join("\n".join(part) for part in [head, middle, end] if part) + "\n"


def _with_others(top: Sequence[FindingBlock], beside: list[str], style: Style, room: int) -> list[str]:
    """The cause in full, and of the others as many as leave it the room."""
    rows: list[str] = []
    for most in range(_MOST_OTHERS, -1, -1):
        others = [row for block in top[1 : most + 1] for row in _in_short(block, style, 1)]
        if left := len(top) - 1 - len(others):
            others.append(_left(left))
        below = [*beside, *others]
        rows = [*_in_full(top[0], style, room - _height(below, style.width)), *below]
        if _height(rows, style.width) <= room:
            break
    return rows


def _as_many_as_fit(pieces: Sequence[list[str]], width: int, room: int) -> list[str]:
    """The first pieces whole, and how many there are more."""
    for kept in range(len(pieces), 0, -1):
        rows = [row for piece in pieces[:kept] for row in piece]
        if left := len(pieces) - kept:
            rows.append(_left(left))
        if _height(rows, width) <= room:
            return rows
    return []


def _left(count: int) -> str:
    return f"{'':8}and {count} more (-v shows all)"


def shown(document: Document) -> Iterator[FindingBlock]:
    """The causes, the likeliest first, then what could not be read; notes only where nothing is wrong.

    What only tells what was seen is left out where an exact cause says why, and an exception that is its evidence.
    """
    causes = [cause.code for cause in document.diagnosis.causes] if document.diagnosis else []
    exact = bool(causes) and causes[0] not in flagged("symptom")
    proofs: set[str] = set()
    stopped = [block for block in blocks(document, [State.UNKNOWN]) if block.codes == [_FROM_OUTSIDE]]
    failed = [*blocks(document, [State.FAIL])]
    yield from [] if failed else stopped  # before what is only a risk
    for block in blocks(document, [State.FAIL, State.WARN]):
        code, sources = (
            block.codes[0],
            {evidence.source for evidence in block.evidence if _PLACE.fullmatch(evidence.source)},
        )
        if code == _ANY_EXCEPTION and sources and sources <= proofs:
            continue
        if not code.startswith("LOG") or (code in causes and not (exact and code in flagged("symptom"))):
            proofs |= sources
            yield block
    for block in blocks(document, [State.UNKNOWN] if causes else [State.UNKNOWN, State.NOTE]):
        if not (exact and block.codes == [_END_IS_SHOWN]) and (failed or block not in stopped):
            yield block


def _head(document: Document, width: int) -> list[str]:
    """What was read, and the facts that a person asks for first."""
    facts = {
        evidence.source: evidence.value for evidence in (document.diagnosis.facts if document.diagnosis else [])
    }
    values = [f"NCCL {value}" if name == "NCCL" else value for name in _FACTS if (value := facts.get(name))]
    title = wrapped(summary.title(document), width, "", "  ")
    return [*title, *_cut(wrapped("; ".join(values), width, "  ", "  "), _FACTS_LINES, width)]


def _in_full(block: FindingBlock, style: Style, room: int) -> list[str]:
    """Its heading, evidence, why and fix in so many lines."""
    width, title = style.width, heading(block)
    head = _cut(headed(block.state, block.codes, title.text, style), _HEADING_LINES, width)
    for place in [place for place in title.below[:1] if place.what not in title.text]:
        head += _cut(wrapped(str(place), width, " " * 8, " " * 8), _SEEN_LINES, width)
    why = _cut(labelled("why", block.why, width), _WHY_LINES, width) if block.why else []
    pieces, rows = _seen(block.evidence), head
    for most in range(len(pieces), min(len(pieces), 1) - 1, -1):
        proofs = [
            _cut(labelled("seen", f"{at}: {value}", width), _SEEN_LINES, width) for at, value in pieces[:most]
        ]
        told = [*head, *(row for proof in proofs for row in proof), *why]
        rows = [*told, *_fixes(block.remedies, width, room - _height(told, width))]
        if _height(rows, width) <= room:
            break
    return rows


def _seen(evidence: Sequence[Evidence]) -> list[tuple[str, str]]:
    """Lines of the log, those that differ in numbers alone once; then what else is known, in one piece."""
    lines: dict[str, list[Evidence]] = {}
    others: list[Evidence] = []
    for fact in evidence:
        if _PLACE.fullmatch(fact.source):
            lines.setdefault(_VARYING.sub("#", fact.value), []).append(fact)
        else:
            others.append(fact)
    rows = [
        (_places([evidence.source for evidence in same]), _STAMP.sub("", same[0].value, count=1))
        for same in lines.values()
    ]
    kept = rows[: _MOST_SEEN - bool(others)] if others else rows[:_MOST_SEEN]
    if others:
        first, *more = others
        kept.append(
            (
                first.source,
                "; ".join([first.value, *(f"{evidence.source}: {evidence.value}" for evidence in more)]),
            )
        )
    return kept


def _places(sources: Sequence[str]) -> str:
    """`train.log:42,44,46`, and of several files the first place and how many more."""
    places = [place.groups() for source in sources if (place := _PLACE.fullmatch(source))]
    file = places[0][0]
    numbers = ",".join(dict.fromkeys(number for other, number in places if other == file))
    left = sum(other != file for other, _ in places)
    return f"{file}:{numbers}" + (f" and {left} alike" if left else "")


def _fixes(remedies: Sequence[Remedy], width: int, room: int) -> list[str]:
    """What to do, as far as there is room: all steps, and the commands of the first fix before the others'."""
    fixes = [at for at, remedy in enumerate(remedies) if not remedy.text.startswith("Confirm")]
    order = sorted(range(len(remedies)), key=lambda at: at != (fixes or [0])[0])
    for whole in range(len(remedies), -1, -1):
        rows = [
            row for at, remedy in enumerate(remedies) for row in _fix(remedy, width, whole=at in order[:whole])
        ]
        if _height(rows, width) <= room:
            return rows
    kept = max(1, len(remedies) - 1)
    while kept > 1 and _height(_first_steps(remedies, kept, width), width) > room:
        kept -= 1
    return _first_steps(remedies, kept, width)


def _first_steps(remedies: Sequence[Remedy], kept: int, width: int) -> list[str]:
    """The first steps without their commands, and how many there are more."""
    rows = [row for remedy in remedies[:kept] for row in _fix(remedy, width, whole=False)]
    left = len(remedies) - kept
    return [*rows, *([f"{'':14}and {many(left, 'more step')} (-v)"] if left else [])]


def _fix(remedy: Remedy, width: int, *, whole: bool) -> list[str]:
    """A step; the commands of one belong together, and are left out together."""
    hidden = " (-v: the commands)" if remedy.commands and not whole else ""
    rows = labelled("fix", f"[{remedy.who}] {remedy.text}{hidden}", width)
    return [*rows, *(commands(remedy) if whole else [])]


def _height(rows: Sequence[str], width: int) -> int:
    """Lines of the screen: a long command takes several, colours none."""
    return sum(-(-len(_COLOUR.sub("", row)) // width) for row in rows)


def _follows(document: Document, cause: FindingBlock, width: int) -> list[str]:
    """One line for all that the other processes say of it, but what stands above as evidence."""
    seen = {evidence.source for evidence in cause.evidence}
    tolds = document.diagnosis.consequences if document.diagnosis else []
    count = sum(follower.count - (follower.place in seen) for follower in tolds)
    place = next((follower.place for follower in tolds if follower.place not in seen), "")
    if not (count and place):
        return []
    words = (
        f"{count} lines that merely follow from it, from {place} on"
        if count > 1
        else f"{place} merely follows from it"
    )
    return _cut(labelled("then", f"{words} (-v)", width), 1, width)


def _harmless(document: Document, width: int) -> list[list[str]]:
    """What frightens and means nothing, each kind by itself."""
    tolds = document.diagnosis.harmless if document.diagnosis else []
    words = [f"{kind.place}: {_clipped(kind.text)}: {kind.why}" for kind in tolds[:_MOST_HARMLESS]]
    if left := len(tolds) - len(words):
        words.append(f"and {many(left, 'more kind')} of harmless lines (-v)")
    return [_cut(labelled("fine", word, width), _NOTE_LINES, width) for word in words]


def _clipped(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} ..."


def _in_short(block: FindingBlock, style: Style, most: int) -> list[str]:
    """A further cause, or a note."""
    return _cut(headed(block.state, block.codes, heading(block).text, style), most, style.width)


def _cut(rows: list[str], most: int, width: int) -> list[str]:
    """The first rows, and dots where there are more."""
    if len(rows) <= most:
        return rows
    last = rows[most - 1]
    while len(_COLOUR.sub("", last)) + 4 > width and " " in last.strip():
        last = last.rpartition(" ")[0]
    return [*rows[: most - 1], f"{last} ..."]


def _end(document: Document, above: Sequence[FindingBlock], style: Style) -> list[str]:
    codes = [block.codes[0] for block in above]
    rows = [f"Page: ncclcheck explain {codes[0]}; every check, line and fact: -v"] if codes else []
    rows += [f"Help: {style.contact}"] if style.contact and document.exit_code else []
    return [*rows, *wrapped(decision(document), style.width)]


def decision(document: Document) -> str:
    """The last line: who and how sure, where the heading has said what; else the whole sentence."""
    top = [*shown(document)]
    causes = document.diagnosis.causes if document.diagnosis else []
    named = [
        cause for cause in causes[:1] if top and cause.code == top[0].codes[0] and cause.code not in TELL_LITTLE
    ]
    return _confidence(named[0]) if named else closing.decision(document)


def _confidence(cause: Cause) -> str:
    who = f" on {in_line(str(cause.where))}".replace("  ", " ") if str(cause.where) else ""
    return f"Cause: {cause.code}{who}, {cause.confidence}: {cause.reason}."

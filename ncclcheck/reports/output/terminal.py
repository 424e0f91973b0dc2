"""The text report: what is wrong with why, how we know and what to do; the last line is the decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.rule import FAMILIES, flagged
from ncclcheck.reports.subjects.data import dataset_text
from ncclcheck.reports.subjects.job import trial_text, tuning_text
from ncclcheck.reports.subjects.live import running_text
from ncclcheck.reports.subjects.logs.answer import screen as answer
from ncclcheck.reports.subjects.logs.answer import story_text
from ncclcheck.reports.subjects.training import steps_text
from ncclcheck.reports.text import block_text, closing, details, recommend_text, summary, table
from ncclcheck.reports.text.block_text import Style
from ncclcheck.reports.text.groups import MOST, FindingBlock, blocks, order, ranked
from ncclcheck.reports.text.words.fold import fold_names
from ncclcheck.reports.text.words.visible import in_line
from ncclcheck.reports.text.words.wrapping import wrapped

__all__ = ["Style", "short", "text"]
_REASONS = 3  # why whole families were skipped; one command has seldom more
_SHORT = 200  # characters of a line that is made to be pasted


def text(document: Document, style: Style) -> str:
    """The whole report; of logs the answer alone, unless everything is asked for."""
    if document.command == "logs" and not style.verbose:
        return answer.text(document, style)
    parts = [
        "\n".join(wrapped(summary.head(document), style.width, "", "  ")),
        summary.facts(document, style.width),
        details.text(document) if style.verbose else "",
        table.collectives(document, style.width),
        trial_text.text(document, style.width),
        tuning_text.text(document, style.width),
        dataset_text.text(document, style.width),
        steps_text.text(document, style.width),
        story_text.text(document, style.width),
        running_text.text(document, style.width),
        _families(document, style) if document.command != "hang" or style.verbose else "",
        *(block_text.text(block, style) for block in _blocks(document, style) if _told(block, document, style)),
        recommend_text.text(document, style.width, verbose=style.verbose),
        _end(document, style),
    ]
    return "\n\n".join(block for block in parts if block) + "\n"


def short(document: Document, style: Style) -> str:
    """A few lines, made to be pasted."""
    logs = document.command == "logs" and not style.verbose
    lines = [summary.title(document) if logs else f"{summary.title(document)}: {_counted(document)}"]
    for block in answer.shown(document) if logs else _blocks(document, style):
        codes = fold_names(block.codes) if len(block.codes) < 4 else f"{len(block.codes)} checks"
        label = style.paint(block.state, f"{block.state.word:8}{codes}  ")
        places = [str(place) for place in block.places[: None if style.verbose else MOST]]
        places += [f"and {left} more like these" for left in [len(block.places) - len(places)] if left]
        lines += [label + _cut(place) for place in places]
    closing_lines = [*closing.compared(document), *closing.culprits(document)]
    decision = answer.decision(document) if logs else closing.decision(document)
    lines += [*map(_cut, closing_lines), " ".join(decision.split())]
    return "\n".join(lines) + "\n"


def _cut(words: str) -> str:
    """One line, whatever is in the words."""
    line = in_line(words.replace("\n", " "))
    return line if len(line) <= _SHORT else line[:_SHORT] + " ..."


def _blocks(document: Document, style: Style) -> Iterator[FindingBlock]:
    return blocks(document, _shown(style), whole=style.verbose)


def _shown(style: Style) -> list[State]:
    """The states of findings that are told, worst first."""
    states = [State.FAIL, State.WARN, State.UNKNOWN, State.NOTE]
    return [*states, State.OK] if style.verbose else states


def _told(block: FindingBlock, document: Document, style: Style) -> bool:
    """Symptoms stand in the list of causes; where one of those is exact, their pages are not repeated."""
    causes = document.diagnosis.causes if document.diagnosis else []
    exact = bool(causes) and causes[0].code not in flagged("symptom")
    return style.verbose or not exact or block.codes[0] not in flagged("symptom")


def _families(document: Document, style: Style) -> str:
    """One line a family: how many verdicts of each state; one for all families in which nothing was judged."""
    rows: dict[str, list[Verdict]] = {}
    shown = (v for v in document.verdicts if document.diagnosis is not None or not v.code.startswith("LOG"))
    for verdict in sorted(shown, key=order):
        rows.setdefault(FAMILIES[verdict.code[:3]], []).append(verdict)
    unjudged = [family for family, verdicts in rows.items() if {v.state for v in verdicts} == {State.SKIPPED}]
    lines = []
    for family, verdicts in rows.items():
        if family in unjudged:
            continue
        counted = Counter(verdict.state for verdict in verdicts)
        parts = (style.paint(s, f"{counted[s]} {s.word}") for s in reversed(State) if counted[s])
        lines.append(f"  {family:10}" + "   ".join(_ok_first(parts)))
    if unjudged:
        lines += _skipped(unjudged, [verdict for family in unjudged for verdict in rows[family]], style)
    if style.verbose:
        for v in document.verdicts:
            title = f"{v.state.word:8}{v.code}  {v.title}{_because(v)}"
            lines += wrapped(title, style.width, "  ", " " * 18)
    return "\n".join(lines)


def _skipped(families: Sequence[str], verdicts: Sequence[Verdict], style: Style) -> list[str]:
    """`skipped   82 of memory, data: judged by data only (28), no GPU (7)`; the commonest reasons."""
    reasons = Counter(verdict.reason for verdict in verdicts if verdict.reason)
    commonest = [
        f"{reason} ({count})" if len(reasons) > 1 else reason for reason, count in reasons.most_common(_REASONS)
    ]
    more = ["other reasons (-v has all)"] if len(reasons) > _REASONS and not style.verbose else []
    why = f": {', '.join([*commonest, *more])}" if commonest else ""
    return wrapped(f"{len(verdicts)} of {', '.join(families)}{why}", style.width, "  skipped   ", " " * 12)


def _ok_first(parts: Iterable[str]) -> list[str]:
    return sorted(parts, key=lambda part: " ok" not in part)


def _because(verdict: Verdict) -> str:
    return f" ({verdict.reason})" if verdict.reason else ""


def _counted(document: Document) -> str:
    names = {"fail": "failed", "warn": "warned", "unknown": "unknown", "note": "noted", "ok": "passed"}
    counted = {**document.counts}
    parts = [f"{counted[state]} {word}" for state, word in names.items() if counted.get(state)]
    return ", ".join([*parts, *([f"{counted['skipped']} skipped"] if counted.get("skipped") else [])])


def _end(document: Document, style: Style) -> str:
    sentences = [*closing.compared(document), *closing.culprits(document)]
    lines = [line for sentence in sentences for line in wrapped(sentence, style.width, "", "  ")]
    bad = _codes(document)
    if bad:
        more = f"; the same for {fold_names(bad[1:])}" if len(bad) > 1 else ""
        lines += wrapped(f"Pages: ncclcheck explain {bad[0]}{more}", style.width, "", "")
    if style.contact and bad:
        lines.append(f"Help: {style.contact}")
    counted, decision = f"{_counted(document)}.", closing.decision(document)
    if len(counted) + 2 + len(decision) <= style.width:
        return "\n".join([*lines, f"{counted}  {decision}"])
    return "\n".join([*lines, counted, *wrapped(decision, style.width, "", "")])


def _codes(document: Document) -> list[str]:
    """What has a page worth reading now: what is bad, else why the run did not finish, else what was not seen."""
    verdicts = ranked(document)
    bad = [v for v in verdicts if v.state in (State.FAIL, State.WARN)]
    unseen = [v for v in verdicts if v.state is State.UNKNOWN]
    chosen = bad or [v for v in unseen if v.code.startswith("RUN")] or unseen
    return [v.code for v in sorted(chosen, key=lambda v: v.state.rank)]

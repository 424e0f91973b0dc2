"""A block of findings as text: its heading, the places, why, how we know, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ncclcheck.reports.judgement.findings import Evidence, Remedy, State
from ncclcheck.reports.text.groups import MOST, MOST_WHOLE, FindingBlock, FoldedPlaces
from ncclcheck.reports.text.headings import heading
from ncclcheck.reports.text.words.fold import fold_names
from ncclcheck.reports.text.words.visible import in_line
from ncclcheck.reports.text.words.wrapping import wrapped

_COLOURS = {State.FAIL: "1;31", State.WARN: "33", State.UNKNOWN: "35", State.NOTE: "36", State.OK: "32"}
BODY = " " * 8


@dataclass(frozen=True)
class Style:
    """How to print. width: columns; colour: ANSI codes, which only double the words."""

    width: int = 80
    colour: bool = False
    verbose: bool = False
    contact: str = ""

    def paint(self, state: State, text: str) -> str:
        """The text in the colour of a state."""
        return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if self.colour and state in _COLOURS else text


def text(block: FindingBlock, style: Style) -> str:
    """A block as lines: heading, places, why, evidence and fixes; cut unless style.verbose."""
    head = heading(block)
    lines = [*headed(block.state, block.codes, head.text, style), *_places(head.below, style)]
    if style.verbose and block.state is not State.OK:
        lines += labelled("check", block.title, style.width)
    if block.why and block.state is not State.OK:
        lines += labelled("why", block.why, style.width)
    if block.state in (State.FAIL, State.WARN) or style.verbose or block.codes[0].startswith("RUN"):
        lines += _evidence(block.evidence, style)
    for remedy in block.remedies:
        lines += [*labelled("fix", f"[{remedy.who}] {remedy.text}", style.width), *commands(remedy)]
    return "\n".join(lines)


def headed(state: State, codes: Sequence[str], words: str, style: Style) -> list[str]:
    """`FAIL    NET003  gpu-b03: eno1 is in 10.42.8.0/24`."""
    lines = wrapped(f"{fold_names(codes)}  {words}", style.width, BODY, " " * 16)
    return [style.paint(state, f"{state.word:8}") + lines[0][len(BODY) :], *lines[1:]]


def _places(places: Sequence[FoldedPlaces], style: Style) -> Iterator[str]:
    for place in places:
        yield from wrapped(str(place), style.width, BODY, BODY)


def _evidence(evidence: Sequence[Evidence], style: Style) -> Iterator[str]:
    shown = evidence[: MOST_WHOLE if style.verbose else MOST]
    for fact in shown:
        yield from labelled("seen", f"{fact.source}: {fact.value}", style.width)
    if left := len(evidence) - len(shown):
        yield from labelled("seen", f"and {left:,} more ({shows_all(len(evidence), style)})", style.width)


def shows_all(count: int, style: Style) -> str:
    """Where the rest of a list stands that was cut."""
    return "--json has all" if style.verbose or count > MOST_WHOLE else "-v shows all"


def labelled(label: str, words: str, width: int) -> list[str]:
    """Words behind `why`, `seen` or `fix`."""
    return wrapped(words, width, f"{BODY}{label:6}", BODY + " " * 6)


def commands(remedy: Remedy) -> list[str]:
    """The commands of a remedy, each in a line of its own, however long."""
    pasted = [line for command in remedy.commands for line in command.split("\n")]
    return [f"{BODY}           {in_line(line)}" for line in pasted]

"""Markdown for an issue or the summary of a CI job: what is wrong first, and never longer than GitHub takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document, Recommendation
from ncclcheck.reports.subjects.data import dataset_text
from ncclcheck.reports.subjects.job import trial_text, tuning_text
from ncclcheck.reports.subjects.logs.answer import story_text
from ncclcheck.reports.subjects.training import steps_text
from ncclcheck.reports.text import closing, summary, table
from ncclcheck.reports.text.groups import FindingBlock, blocks
from ncclcheck.reports.text.headings import heading
from ncclcheck.reports.text.words.fold import fold_names
from ncclcheck.reports.text.words.visible import in_line, visible

MOST = 65_536  # characters of an issue or a comment on GitHub
_LEFT_OUT = "\n\n*{} more sections do not fit here, the worst are above; the whole is in the text report.*\n"
_ROOM = MOST - len(_LEFT_OUT) - 10
# lines of one list, then a count: chosen; a hundred nodes with one fault are one line in their heading anyway
_MOST_PLACES = 8
_MOST_CHARACTERS = 600  # of one line of text from a node: chosen, a hundredth of what GitHub takes
_WIDTH = 100  # columns of fenced tables: the text report's usual width
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#])")
# Markup goes on within <code>; an underscore inside a word is none, and NCCL_IB_HCA stays readable.
_IN_CODE = re.compile(r"""[&<>"'|@\\`*\[\]~]|(?<!\w)_|_(?!\w)""")
_MEANT = re.compile(r"\S*(?:@|#\d)\S*")  # GitHub would tell a user, or link an issue
_ACTIONS = {"set": "set", "unset": "remove", "try": "try", "keep": "keep"}


def text(document: Document) -> str:
    """The report, cut at the end where it is too long."""
    sections = [*_sections(document)]
    kept: list[str] = []
    room = _ROOM
    for section in sections:
        if (room := room - len(section) - 2) < 0:
            return "\n\n".join(kept) + _LEFT_OUT.format(len(sections) - len(kept))
        kept.append(section)
    return "\n\n".join(kept) + "\n"


def _sections(document: Document) -> Iterator[str]:
    """What must not be cut comes first."""
    yield _head(document)
    if words := story_text.text(document, _WIDTH):
        yield _folded("The story of the log", _fenced(words), opened=True)
    yield from (_block(block) for block in blocks(document, [State.FAIL, State.WARN]))
    if document.recommendations:
        yield _settings(document.recommendations)
    for tell in (table.collectives, trial_text.text, tuning_text.text, dataset_text.text, steps_text.text):
        if words := tell(document, _WIDTH):
            yield _folded(_TITLES[tell.__module__.rpartition(".")[2]], _fenced(words), opened=True)
    yield from (_block(block) for block in blocks(document, [State.UNKNOWN, State.NOTE]))
    if words := summary.facts(document, _WIDTH):
        yield _folded("What was there", _fenced(words))


_TITLES = {
    "table": "Measured collectives",
    "trial_text": "The setting that was tried",
    "tuning_text": "The settings that were tuned",
    "dataset_text": "The dataset",
    "steps_text": "The training run",
}


def _head(document: Document) -> str:
    counted = [f"{number} {State(state).word}" for state, number in document.counts.items() if number]
    lines = [
        f"## {_plain(summary.title(document))}",
        f"**{_plain(closing.decision(document))}**",
        *(f"- {_plain(culprit)}" for culprit in closing.culprits(document)[:_MOST_PLACES]),
        ", ".join(counted) or "nothing was judged",
    ]
    return "\n\n".join(lines)


def _block(block: FindingBlock) -> str:
    head = heading(block)
    parts = [f"### {block.state.word} {fold_names(block.codes)} {_plain(head.text)}"]
    if head.below:
        parts.append(_listed(_place(place.where, place.what) for place in head.below))
    if block.why:
        parts.append(f"**Why it matters:** {_plain(block.why)}")
    for remedy in block.remedies:
        parts.append(f"**Fix ({remedy.who}):** {_plain(remedy.text)}")
        if remedy.commands:
            parts.append(_fenced("\n".join(map(_clipped, remedy.commands)), "sh"))
    if block.evidence:
        seen = _listed(f"{_code(evidence.source)}: {_code(evidence.value)}" for evidence in block.evidence)
        parts.append(_folded("How we know", f"{seen}\n\nCheck: {_plain(block.title)}"))
    return "\n\n".join(parts)


def _place(where: str, what: str) -> str:
    return f"{_code(where)}: {_plain(what)}" if where else _plain(what)


def _listed(lines: Iterable[str]) -> str:
    listed = [f"- {line}" for line in lines]
    more = [f"- and {len(listed) - _MOST_PLACES} more like these"] if len(listed) > _MOST_PLACES else []
    return "\n".join(listed[:_MOST_PLACES] + more)


def _settings(recommendations: list[Recommendation]) -> str:
    rows = [
        f"| {_ACTIONS[setting.action]} | {_code(_assignment(setting))} | {_plain(setting.why)} |"
        for setting in recommendations
    ]
    return "\n".join(["### Settings", "", "| | variable | why here |", "|---|---|---|", *rows])


def _assignment(recommendation: Recommendation) -> str:
    return (
        recommendation.variable
        if recommendation.value is None or recommendation.action == "unset"
        else f"{recommendation.variable}={recommendation.value}"
    )


def _folded(title: str, inner: str, *, opened: bool = False) -> str:
    return f"<details{' open' * opened}><summary>{title}</summary>\n\n{inner}\n\n</details>"


def _fenced(words: str, language: str = "text") -> str:
    """A block of text as it stands; the fence is longer than any in it."""
    clean = visible(words)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", clean)), default=0))
    return f"{fence}{language}\n{clean}\n{fence}"


def _code(words: str) -> str:
    """A value in a line or in the cell of a table, where no backslash protects anything."""
    return f"<code>{_IN_CODE.sub(lambda match: f'&#{ord(match[0])};', _clipped(words))}</code>"


def _plain(words: str) -> str:
    """A sentence, in which nothing is taken for markup, for a user's name or for the number of an issue."""
    last, parts = 0, []
    clean = _clipped(words)
    for match in _MEANT.finditer(clean):
        parts += [_SPECIAL.sub(r"\\\1", clean[last : match.start()]), _code(match[0])]
        last = match.end()
    return "".join([*parts, _SPECIAL.sub(r"\\\1", clean[last:])])


def _clipped(words: str) -> str:
    line = in_line(" ".join(words.split()))
    return line if len(line) <= _MOST_CHARACTERS else line[:_MOST_CHARACTERS] + " ..."

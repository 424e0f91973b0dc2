"""One page when a job has died or stalled: who was first, when and why, what followed, what to do, the box."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ncclcheck.probes.facts import Box
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.box import failure
from ncclcheck.reports.subjects.box.words import THEN
from ncclcheck.reports.text.block_text import Style, commands, headed, labelled
from ncclcheck.reports.text.groups import FindingBlock, blocks
from ncclcheck.reports.text.headings import heading
from ncclcheck.reports.text.words.fold import fold_some
from ncclcheck.reports.text.words.wrapping import wrapped

MOST_LINES = 25  # what stands on a terminal together with the job's own last words
# further causes that are told beside the first: chosen, each takes two or three lines of the one screen
_MOST_OTHERS = 3
_SLOW = "BOX011"
_PYTHON = re.compile(r"python|torchrun|accelerate|deepspeed|srun|mpirun")
_LAUNCHER = re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed|srun|mpirun")
_NOT_STARTED = 126  # exit codes of a shell from here on: not started, ended by a signal. Source: bash(1)
_LINES = 2  # of one piece of evidence


def title(document: Document) -> str:
    """What ran, how it ended, where and for how long."""
    boxes = document.measurements.boxes
    ends = [*dict.fromkeys(map(failure.ended, boxes))]
    hosts = fold_some([*dict.fromkeys(box.host for box in boxes)])
    stalled = " and stalled" if any(box.stalls for box in boxes) else ""
    return f"ncclcheck watch: the job ended with {', '.join(ends)}{stalled} after {_lasted(boxes):.1f} s ({hosts})"


def decision(document: Document) -> str:
    """The last line of a report."""
    failed = [v for v in document.verdicts if v.state is State.FAIL]
    if failed:
        return f"The job failed: {failed[0].findings[0].what}."
    if ended_itself(document):
        codes = sorted({box.status or 0 for box in document.measurements.boxes})
        return (
            f"All ranks ended well; COMMAND itself ended with {', '.join(f'exit code {code}' for code in codes)}."
        )
    ended = {box.status for box in document.measurements.boxes}
    slow = next((v for v in document.verdicts if v.code == _SLOW and v.findings), None)
    if ended == {0} and slow is not None:
        return f"The job ended well, and was slow: {slow.findings[0].what}."
    return "The job ended well." if ended == {0} else "Why the job ended is not known."


def ended_itself(document: Document) -> bool:
    """Whether all ranks ended well, and a script around them chose another exit code: it knows why."""
    boxes = document.measurements.boxes
    if [v for v in document.verdicts if v.state is State.FAIL and v.code.startswith("BOX")]:
        return False
    return all(_is_scripts_own(box) for box in boxes) and bool(boxes)


def _is_scripts_own(box: Box) -> bool:
    ranks = [process for process in box.processes if process.role == "rank"]
    root = next((process for process in box.processes if process.role == "root"), None)
    others = [process for process in box.processes if process.role == "other" and _PYTHON.search(process.command)]
    well = all(process.status == 0 or (process.status is None and process.left) for process in ranks)
    well = well and not any(process.status for process in others)
    quiet = not (box.raised or box.signals or box.stalls or box.ooms)
    script = root is None or not _LAUNCHER.search(root.command)
    return bool(ranks and well and quiet and script and 0 <= (box.status or 0) < _NOT_STARTED)


def text(document: Document, style: Style, box: str) -> str:
    """The page. box: its folder."""
    top = shown(document)
    end = [*wrapped(f"box: {box}", style.width, "", "  "), f"again, with all evidence: ncclcheck report -v {box}"]
    head = wrapped(title(document), style.width, "", "  ")
    rows = _in_full(top[0], style) if top else [*wrapped(decision(document), style.width, "", "  ")]
    others = [row for block in top[1 : _MOST_OTHERS + 1] for row in _beside(block, style)]
    room = MOST_LINES - len(head) - len(others) - len(end)
    return "\n".join([*head, *rows[:room], *others, *end]) + "\n"


def _beside(block: FindingBlock, style: Style) -> list[str]:
    """Its heading; of a job that had become slow all that was seen, for that may be why it was ended."""
    rows = headed(block.state, block.codes, heading(block).text, style)
    if block.codes[0] != _SLOW:
        return rows[:_LINES]
    for evidence in block.evidence:
        rows += labelled("seen", f"{evidence.source}: {evidence.value}", style.width)[:1]
    return rows


def shown(document: Document) -> list[FindingBlock]:
    """What the box itself says before what the stalled job's look and the logs say."""
    slow = [block for block in blocks(document, [State.WARN]) if block.codes[0] == _SLOW]
    failed = [*blocks(document, [State.FAIL]), *slow]
    locked = any(process.lock for box in document.measurements.boxes for process in box.processes)
    looked = not locked and any(block.codes[0] == "BOX008" for block in failed)
    order = ("HNG", "BOX", "LOG") if looked else ("BOX", "HNG", "LOG")
    known = [block for block in failed if block.codes[0][:3] in order]
    return sorted(known, key=lambda block: (order.index(block.codes[0][:3]), block.state.rank))


def _in_full(block: FindingBlock, style: Style) -> list[str]:
    width = style.width
    rows = headed(block.state, block.codes, heading(block).text, style)
    for evidence in block.evidence:
        rows += labelled("seen", f"{evidence.source}: {evidence.value}", width)[
            : _LINES + (evidence.source == THEN)
        ]
    rows += labelled("why", block.why, width)[:_LINES]
    for remedy in block.remedies:
        rows += [*labelled("fix", f"[{remedy.who}] {remedy.text}", width)[:_LINES], *commands(remedy)]
    return rows


def _lasted(boxes: Sequence[Box]) -> float:
    return max(0.0, max(((box.ended or box.last) - box.started for box in boxes), default=0.0))

"""The story of a log as text: first, causes, what follows, what is harmless, the facts."""

from __future__ import annotations

import textwrap

from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.logs.answer.story import TELL_LITTLE, Cause, KindOfLines, LogDiagnosis
from ncclcheck.reports.subjects.logs.words.wording import FAULT_TOLD, SAY_OF_WHY
from ncclcheck.reports.text.words.fold import many
from ncclcheck.reports.text.words.wrapping import wrapped

_LABEL_COLUMNS = 15  # columns: chosen, the longest label and a space
_END_IS_SHOWN = "LOG007"
_WITHOUT_CAUSE = {
    "fail": "This job failed; the cause is not in these lines. What would show it is above.",
    "incomplete": "Not all was there to be read, and no failure is sure; see what is unknown above.",
    "warn": "No failure is logged; see the warnings above.",
    "unknown": "No failure is sure; see what is unknown above.",
}

_TOLD = (
    (FAULT_TOLD, "The fault that these lines tell is above; nothing after it shows that the job went on."),
    (SAY_OF_WHY, "This job failed; what these lines say of why is above, and what would show more."),
)
_INTERRUPTED = "LOG006"
_FOREIGN = "LOG008"
_STANDS_OUT = "Not judged: no line is NCCL's, torch's or a launcher's (LOG008); the one that stands out is above."
_NOT_KNOWN = (
    (_INTERRUPTED, "The job was stopped by Ctrl-C before its work was finished (LOG006)."),
    (
        _FOREIGN,
        "Not understood: no line is NCCL's, torch's or a launcher's (LOG008); give the log that the ranks write.",
    ),
    (
        "LOG007",
        "Not known: no failure is logged, and the log does not show that the job ended or made progress (LOG007).",
    ),
)


def text(document: Document, width: int) -> str:
    """Empty where no log was read."""
    diagnosis = document.diagnosis
    if diagnosis is None or (document.command != "logs" and not diagnosis.causes):
        return ""
    if document.command != "logs":
        return "\n\n".join([_first(diagnosis, width), _causes(diagnosis, width)])
    lines = [line for fact in diagnosis.facts for line in _row(fact.source, fact.value, width)]
    parts = ["\n".join(lines), _first(diagnosis, width), _causes(diagnosis, width)]
    parts += [_kinds("Follows from it, and is no cause:" if diagnosis.causes else "Follows from another fault:",
                     diagnosis.consequences, width)]  # fmt: skip
    parts += [_kinds("Frightens and is harmless:", diagnosis.harmless, width)]
    return "\n\n".join(part for part in parts if part)


def size(document: Document) -> str:
    """How much was read."""
    logs = document.measurements.logs
    if logs is None:
        return "nothing was read"
    files = [file for file in logs.files if not file.empty_folder]
    lines, read = sum(file.lines for file in files), sum(file.bytes for file in files)
    parts = [f"{many(len(files), 'file')}, {many(lines, 'line')}, {read / 1e6:.1f} MB"] if files else []
    parts += [many(len(logs.flight.dumps), "Flight Recorder dump")] if logs.flight else []
    return ", ".join(parts)


def decision(document: Document) -> str:
    """One sentence: the cause, that none was found, or that the log is healthy."""
    diagnosis = document.diagnosis
    bad = [cause for cause in diagnosis.causes if cause.confidence != "possible"] if diagnosis else []
    if bad:
        who = f" on {bad[0].where}".replace("  ", " ") if str(bad[0].where) else ""
        return f"Cause: {bad[0].code}{who}: {bad[0].what}."
    if diagnosis and diagnosis.causes and diagnosis.causes[0].code not in TELL_LITTLE and document.state == "fail":
        first = diagnosis.causes[0]
        who = f" on {first.where}" if str(first.where) else ""
        return f"As far as the log shows, {first.code}{who}: {first.what}."
    if document.state == "incomplete":
        sentences = (words for code, words in _NOT_KNOWN if _is_unknown(document, code))
        return _STANDS_OUT if _stands_out(document) else next(sentences, _WITHOUT_CAUSE["incomplete"])
    headings = [finding.what for v in document.verdicts for finding in v.findings]
    said = next((words for part, words in _TOLD if any(part in what for what in headings)), "")
    if document.state == "fail" and said:
        return said
    if document.state in _WITHOUT_CAUSE:
        return _WITHOUT_CAUSE[document.state]
    if any(verdict.code == _INTERRUPTED and verdict.state is State.NOTE for verdict in document.verdicts):
        return "No failure is logged: the job was ended from outside, its work done (LOG006)."
    if _went_on(document):
        return "No failure so far: the job went on to the end of these lines."
    return "Healthy: nothing in these logs reports a failure."


def _stands_out(document: Document) -> bool:
    """Whether a line of a log of something else says what went wrong."""
    return any(f.evidence for v in document.verdicts if v.code == _FOREIGN for f in v.findings)


def _is_unknown(document: Document, code: str) -> bool:
    return any(verdict.code == code and verdict.state is State.UNKNOWN for verdict in document.verdicts)


def _went_on(document: Document) -> bool:
    """Whether steps are shown, and no end."""
    headings = [f.what for v in document.verdicts if v.code == _END_IS_SHOWN for f in v.findings]
    return any("went on" in what for what in headings)


def _row(label: str, value: str, width: int) -> list[str]:
    return wrapped(
        value,
        width,
        first=f"  {label:{_LABEL_COLUMNS}}",
        rest=" " * (_LABEL_COLUMNS + 2),
    )


def _first(diagnosis: LogDiagnosis, width: int) -> str:
    if diagnosis.first is None:
        return ""
    who = f" ({diagnosis.first.where})" if str(diagnosis.first.where) else ""
    lines = [f"What happened first: {diagnosis.first.place}{who}"]
    return "\n".join([*lines, *_wrapped(diagnosis.first.text, width)])


def _causes(diagnosis: LogDiagnosis, width: int) -> str:
    if not diagnosis.causes:
        return ""
    lines = ["Causes, the likeliest first:"]
    for index, cause in enumerate(diagnosis.causes, 1):
        lines += wrapped(f"{index}. {cause.code}  {_said(cause)}", width, first="  ", rest="     ")
    return "\n".join(lines)


def _said(cause: Cause) -> str:
    who = f"{cause.where}: " if str(cause.where) else ""
    return f"{who}{cause.what} [{cause.confidence}: {cause.reason}]"


def _kinds(head: str, tolds: list[KindOfLines], width: int) -> str:
    if not tolds:
        return ""
    lines = [head]
    for kind in tolds:
        times = f" x{kind.count}" if kind.count > 1 else ""
        lines += _wrapped(f"{kind.place}{times}  {textwrap.shorten(kind.text, 150)}  ({kind.why})", width)
    return "\n".join(lines)


def _wrapped(words: str, width: int) -> list[str]:
    return wrapped(words, width, first="  ", rest="    ")

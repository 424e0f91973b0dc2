"""JUnit XML: a rule is a test case, as CI servers read them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any
from xml.etree import ElementTree

from ncclcheck.reports.judgement.findings import Finding, State, Verdict
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.rule import FAMILIES, flagged
from ncclcheck.reports.text import closing, summary

_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TOLD = (State.FAIL, State.WARN, State.UNKNOWN, State.NOTE)
_MOST_FINDINGS = 50  # of a case, and evidence of a finding: chosen, CI servers show a case as one text


def text(document: Document) -> str:
    """The whole result as one test suite.

    What was not seen is skipped, with what it was that could not be read; an error where the run did not finish.
    A warning passes and says so. With --strict each of these is a failure.
    """
    outcomes = [(verdict, _outcome(verdict, strict=document.strict)) for verdict in document.verdicts]
    counted = Counter(outcome for _, outcome in outcomes)
    numbers = {"tests": len(outcomes), "failures": counted["failure"], "errors": counted["error"]}
    figures: dict[str, Any] = {name: str(number) for name, number in numbers.items()}
    figures["time"] = f"{document.seconds:.3f}"
    root = ElementTree.Element("testsuites", name="ncclcheck", **figures)
    suite = ElementTree.SubElement(
        root, "testsuite", name=f"ncclcheck {document.command}", **figures, skipped=str(counted["skipped"]),
        timestamp=document.started[:19] or "1970-01-01T00:00:00",
    )  # fmt: skip
    _properties(suite, document)
    for verdict, outcome in outcomes:
        _case(suite, document.command, verdict, outcome)
    ElementTree.SubElement(suite, "system-out").text = _clean(closing.decision(document))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _outcome(verdict: Verdict, *, strict: bool) -> str:
    """The element that tells it; empty for a test that passed."""
    if verdict.state is State.FAIL or (strict and verdict.state in (State.WARN, State.UNKNOWN)):
        return "failure"
    if verdict.state is State.UNKNOWN:
        return "error" if verdict.code in flagged("unfinished") else "skipped"
    return "skipped" if verdict.state is State.SKIPPED else ""


def _properties(suite: ElementTree.Element, document: Document) -> None:
    values = {
        "version": document.version,
        "state": document.state,
        "exit_code": document.exit_code,
        "strict": str(document.strict).lower(),
        "what": summary.title(document),
        "launcher": document.job.launcher,
    }
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=_clean(str(value)))


def _case(suite: ElementTree.Element, command: str, verdict: Verdict, outcome: str) -> None:
    family = FAMILIES[verdict.code[:3]]
    name = _clean(f"{verdict.code} {verdict.title}")
    case = ElementTree.SubElement(suite, "testcase", classname=f"{command}.{family}", name=name, time="0")
    findings = [finding for finding in verdict.findings if finding.state in _TOLD]
    findings.sort(key=lambda finding: finding.state.rank)
    words = "\n\n".join(_finding(finding) for finding in findings[:_MOST_FINDINGS])
    more = f"\n\nand {len(findings) - _MOST_FINDINGS} more like these" if len(findings) > _MOST_FINDINGS else ""
    if outcome == "skipped":
        reason = (
            verdict.reason
            or "; ".join(_place(finding) for finding in findings[:_MOST_FINDINGS])
            or "nothing to judge"
        )
        ElementTree.SubElement(case, "skipped", message=_clean(f"{verdict.state.word}: {reason}"))
    elif outcome:
        message = _clean(_place(findings[0]) if findings else verdict.reason or verdict.title)
        element = ElementTree.SubElement(case, outcome, message=message, type=verdict.code)
        element.text = _clean(words + more)
    elif words:
        ElementTree.SubElement(case, "system-out").text = _clean(words + more)


def _place(finding: Finding) -> str:
    where = str(finding.where)
    return f"{where}: {finding.what}" if where else finding.what


def _finding(finding: Finding) -> str:
    lines = [f"{finding.state.word}  {_place(finding)}"]
    lines += [f"  why   {finding.why}"] if finding.why else []
    lines += [f"  seen  {evidence.source}: {evidence.value}" for evidence in finding.evidence[:_MOST_FINDINGS]]
    for remedy in finding.remedies:
        lines.append(f"  fix   [{remedy.who}] {remedy.text}")
        lines += [f"          {command}" for command in remedy.commands]
    return "\n".join(lines)


def _clean(words: str) -> str:
    """No character that XML 1.0 forbids, and that would make the whole file unreadable."""
    return _NO_XML.sub("?", words)

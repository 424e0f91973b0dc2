"""A script's result without the script: files are numbered, its lines, names and arguments left out."""

from __future__ import annotations

import re

from ncclcheck.probes.facts import replace
from ncclcheck.probes.facts.script import Script, ScriptFile
from ncclcheck.reports.judgement.findings import Evidence, Finding, Verdict, Where, you
from ncclcheck.reports.judgement.jsondoc import Document

_LEFT_OUT = "(left out)"
_PROBLEM = "--anonymise left its lines out of this result"
_PLACE = re.compile(r"(?P<file>.*?)(?P<line>:\d+)?", re.DOTALL)


def without_script(document: Document) -> Document:
    """What was found, in files of other names, at the same lines; nothing of what stands there.

    `report` judges such a result as one whose files were not read: unknown, and never fine.
    """
    script = document.measurements.script
    if script is None:
        return document
    files = {file.name: f"file{number}.py" for number, file in enumerate(script.files, 1)}
    bare = Script(files=[ScriptFile(name=name, problem=_PROBLEM) for name in files.values()], nodes=script.nodes)
    stages = [replace(stage, reason=None) if stage.name == "script" else stage for stage in document.stages]
    verdicts = [
        _bare(verdict, files) if verdict.code.startswith("SCR") else verdict for verdict in document.verdicts
    ]
    measurements = replace(document.measurements, script=bare)
    return replace(document, verdicts=verdicts, measurements=measurements, stages=stages)


def _bare(verdict: Verdict, files: dict[str, str]) -> Verdict:
    return replace(verdict, findings=[_without_lines(verdict, finding, files) for finding in verdict.findings])


def _without_lines(verdict: Verdict, finding: Finding, files: dict[str, str]) -> Finding:
    remedies = [you(f"See its page: ncclcheck explain {verdict.code}")] if finding.remedies else []
    evidence = [Evidence(source=_named(evidence.source, files), value=_LEFT_OUT) for evidence in finding.evidence]
    where = Where(device=_named(finding.where.device or "", files) or None)
    return replace(finding, where=where, what=f"not so: {verdict.title}", evidence=evidence, remedies=remedies)


def _named(place: str, files: dict[str, str]) -> str:
    """FILE:LINE under the file's number."""
    match = _PLACE.fullmatch(place)
    if match is None or match["file"] not in files:
        return _LEFT_OUT if place else ""
    return f"{files[match['file']]}{match['line'] or ''}"

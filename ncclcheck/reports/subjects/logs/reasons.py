"""What was said right before a failure that names no reason itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, State, seen
from ncclcheck.reports.subjects.logs.wording import quoted, tells_most, tells_why, understood

_ABOVE = 40  # lines: what a program says of its own failure, and what others print meanwhile
SAID = ("complaint", "explains", "command-not-run", "executable-missing")
# The level of a line, by Python's loggers, its warnings or glog.
MILD = re.compile(r"(?:\S{1,300} ){0,4}\[?(?:[WI]\d{0,4} |WARN|INFO|DEBUG|\w{0,40}[wW]arning\b)")


def with_reasons(logs: Logs, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Each failure with the line before it that says most of why, where there is one."""
    return (_with_reason(logs, one) for one in findings)


def _with_reason(logs: Logs, finding: Finding) -> Finding:
    places = {one.source for one in finding.evidence}
    told = [one for one in logs.events if f"{one.file}:{one.line}" in places]
    if finding.state is not State.FAIL or not told:
        return finding
    most = before(logs, min(told, key=lambda one: one.order))
    if most is None:
        return finding
    known = understood(most.text)
    return replace(
        finding,
        what=f"{finding.what}; before it: {quoted(most)}",
        evidence=[*finding.evidence[:2], seen(f"{most.file}:{most.line}", most.text), *finding.evidence[2:]],
        remedies=[*(known.fix if known else ()), *finding.remedies],
    )


def before(logs: Logs, event: LogEvent) -> LogEvent | None:
    """The line a little above that says most of why."""
    above = [
        one
        for one in logs.events
        if one.sign in SAID
        and one.file == event.file
        and 0 < event.line - one.line <= _ABOVE
        and not MILD.match(one.text)
        and tells_why(one)
    ]
    return tells_most(above) if above else None

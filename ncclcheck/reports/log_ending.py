"""Whether a job went on after a line of its log: then the line is not what ended it."""

from __future__ import annotations

from msgspec.structs import replace

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.findings import Finding, State
from ncclcheck.reports.log_signs import AT_THE_END, CONSEQUENCES

TEXT = 300  # of a line that is quoted
_LINES = 10  # a step that was under way may be printed after the failure of another rank
_ENDS = frozenset(CONSEQUENCES) - AT_THE_END - {"propagated", "flushed"} | {
    *("worker-failed", "worker-signalled", "root-cause-exit", "srun-task-exit"),
    *("watchdog-timeout", "watchdog-stuck", "time-limit"),
}


def by_the_end(logs: Logs, finding: Finding) -> Finding:
    """A failure that the job survived is a risk where the machine is at fault, and else only worth knowing."""
    if finding.state is not State.FAIL or not _went_on(logs, finding):
        return finding
    state = State.NOTE if finding.owner == "job" else State.WARN
    return replace(finding, state=state, what=f"{finding.what}; the job went on all the same")


def _went_on(logs: Logs, finding: Finding) -> bool:
    """Whether all lines like those that it rests on are followed by steps or a good end, and no process died."""
    shown = {(one.source, one.value) for one in finding.evidence}
    signs = {one.sign for one in logs.events if _shown(one) in shown} - {"training-goes-on", "ended-well"}
    if not signs or died(logs):
        return False
    last: dict[str, int] = {}
    for one in logs.events:
        if one.sign in signs:
            last[one.file] = max(one.line, last.get(one.file, 0))
    return all(goes_on_after(logs, file, line) for file, line in last.items())


def died(logs: Logs) -> bool:
    """Whether a process is said to have ended, or to wait in vain."""
    return any(one.sign in _ENDS for one in logs.events)


def _shown(event: LogEvent) -> tuple[str, str]:
    """The line as evidence, by `logged.lines`."""
    return f"{event.file}:{event.line}", event.text[:TEXT]


def goes_on_after(logs: Logs, file: str, line: int) -> bool:
    """Whether steps or a good end are told in a file, well after this line."""
    later = [one for one in logs.events if one.file == file and one.line > line]
    return any(
        one.sign == "ended-well" or (one.sign == "training-goes-on" and one.line > line + _LINES) for one in later
    )

"""Whether a job went on after a line of its log, which did not end it then; whether NCCL gave up after it."""

from __future__ import annotations

import re
from functools import cached_property

from msgspec.structs import replace

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.subjects.logs.words.meanings import (
    AT_THE_END,
    CONSEQUENCES,
    CONTEXT,
    HARMLESS,
    of_a_thread,
)

TEXT = 300  # of a line that is quoted
_PROOF = ("ended-well", "training-goes-on")
_WORK = (
    "nccl-tests-ended",
    "nccl-tests-row",
    "osu-header",
    "work-goes-on",
)  # goes on beside a rank that has failed, and with wrong results
_TRAINED = re.compile(
    r"(?i)\btraining (?:is )?(?:complete|finished|done)|\.fit` stopped|'train_runtime'|finished training"
)
_LINES = 10  # a step that was under way may be printed after the failure of another rank
_NEXT = 3  # lines below an exception
_ITEM = 30  # the same, where its message is a sample's own text, of many lines
_OF_AN_ITEM = ("python-error", "traceback", "complaint", "item-failed")
_KIND, _NUMBER = 20, re.compile(r"\d+")  # characters by which the words of an exception are the same ones
COMPLAINTS = ("complaint", "item-failed", "mpi-box")
LEVELS = ("WARN", "ERROR")
# A job may go on after these: work that is seen after them, or a start of NCCL that came through, shows it.
_MILD = (*COMPLAINTS, "nccl-warning", "traceback", "traceback-cut", "python-error")
_GOES_ON = ("training-goes-on", "work-goes-on", "nccl-tests-row", "ended-well")
_AT = re.compile(
    r"(?i)\b(?:epoch|step|iter(?:ation)?|batch)\w{0,2}['\" :=#\[/]{1,12}(\d{1,9}(?:\.\d+)?)"
    r"|(\d{1,9}) ?/ ?\d{1,10}\b"
)
# Steps that differ: one may be under way elsewhere, and its next one begun, when a process raises.
_STEPS, _AFTER_AN_EXCEPTION = 2, 3
_OTHERS = 3  # lines that differ, and may be one of each rank
IMPORTS = ("ImportError", "ModuleNotFoundError")  # before any work of its process
_DEALT_WITH = re.compile(
    r"(?i)\b(?:skipp(?:ing|ed)|retrying|trying (?:again|batch|with)|ignor(?:ing|ed)|falling back)\b"
)
_ONLY_SAID = ("complaint", "item-failed", "ended-badly", "nccl-warning", "nccl-cuda-failure")
_SEEN_BEFORE = 2  # lines of a kind after which it worked: one more of them is not what ended it
_GLOG = re.compile(r"[EF]\d{4} [\d:.]+ +\d+ [\w/.-]+:\d+\] ")  # before what a library in C++ says
_ALIKE = 30  # characters by which two complaints are of one kind
ENDS = frozenset(CONSEQUENCES) - AT_THE_END - {"propagated", "flushed"} | {
    *("worker-failed", "worker-signalled", "root-cause-exit", "srun-task-exit", "engine-dead"),
    *(
        "watchdog-timeout",
        "watchdog-cut",
        "watchdog-stuck",
        "time-limit",
        "preempted",
        "node-lost",
        "mpirun-signalled",
    ),
}
_GONE = ("worker-failed", "worker-signalled", "oom-killed", "segfault", "gpu-lost", "gpu-hang", "device-assert")

# Of NCCL's own files, through which an error that ends a start or a call comes to its caller.
UPMOST = re.compile(r"\b(?:init|group|enqueue|bootstrap|collectives|proxy)\.cc:\d|\b(?:init|group|enqueue)\.cu:\d")
# Results by their names, and by their words, as programs print them (nccl.h, ncclGetErrorString).
_NAMES = {
    "UnhandledCudaError": "1",
    "unhandled cuda error": "1",
    "SystemError": "2",
    "unhandled system error": "2",
    "InternalError": "3",
    "internal error": "3",
    "InvalidArgument": "4",
    "invalid argument": "4",
    "InvalidUsage": "5",
    "invalid usage": "5",
    "RemoteError": "6",
    "remote process exited": "6",
}
_Process = tuple[str, str, int | None]


class Ending:
    """What the lines after a failure tell; looked at once for all findings of a rule."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def judged(self, finding: Finding) -> Finding:
        """A failure that the job survived is a risk where the machine is at fault, else only worth knowing."""
        if finding.state is not State.FAIL or not (self._survived(finding) or self._was_dealt_with(finding)):
            return finding
        state = State.NOTE if finding.owner == "job" else State.WARN
        return replace(finding, state=state, what=f"{finding.what}; the job went on all the same")

    def _was_dealt_with(self, finding: Finding) -> bool:
        """Whether its lines say that they were dealt with, or the next ones do, and an exception is below all."""
        signs = self._signs_of(finding)
        events = [event for event in self._logs.events if event.sign in signs]
        last = max(events, key=lambda event: event.line, default=None)
        raised = self._last_events.get("python-error", {})
        return (
            last is not None
            and last.file in raised
            and raised[last.file].line > last.line + _NEXT
            and all(
                _DEALT_WITH.search(event.text) is not None or dealt_with(self._logs, event) for event in events
            )
        )

    def of_a_sound_job(self, finding: Finding) -> Finding:
        """What costs speed at most is only worth knowing where all ranks came through and nothing failed."""
        bad = finding.state in (State.FAIL, State.WARN)
        return replace(finding, state=State.NOTE) if bad and self._sound else finding

    def caught(self, event: LogEvent) -> bool:
        """Whether an exception or a warning was: its rank (any, if none is named) worked on, or NCCL started."""
        if not self._died and came_through(self._logs, event):
            return True
        late = event.line + (0 if dealt_with(self._logs, event) else _LINES)
        after = (later for later in self._going_on.get(event.file, ()) if later.line > late)
        return any(event.rank is None or later.rank == event.rank for later in after) or self.advanced(event)

    def outlived(self, event: LogEvent) -> bool:
        """Whether the job went on after a line that can be a failure, and that no rule knows."""
        logs = self._logs
        mild = event.sign in _MILD or event.level in LEVELS
        small = event.sign in COMPLAINTS or (event.sign == "nccl-warning" and not self._followed(event))
        shown = self.just_after if small else self.work if mild else self.proof
        shown = self.profiled if event.sign == "traceback" else shown
        aside = event.sign in COMPLAINTS or of_a_thread(event)
        if aside and self.trained.get(event.file, event.line) < event.line:
            return True  # a profiler's, a logger's: what was to be done is done
        if event.sign == "complaint" and self.seen_before(event):
            return True
        if mild and self.advanced(event):
            return True
        if event.sign in ("python-error", "traceback") and dealt_with(logs, event):
            return self.just_after.get(event.file, 0) > event.line
        return shown.get(event.file, 0) > event.line or (mild and came_through(logs, event))

    def _followed(self, event: LogEvent) -> bool:
        """Whether NCCL or another process tells below a warning of what followed from it."""
        return any(other.sign in CONSEQUENCES and other.file == event.file and other.line > event.line
                   for other in self._logs.events)  # fmt: skip

    def advanced(self, event: LogEvent) -> bool:
        """Whether different steps follow a line, of its own rank where it names one.

        What a process could not load it did not need as soon as it does any work; and what says itself that it
        was dealt with needs no more than that.
        """
        after = [
            later
            for later in self._going_on.get(event.file, ())
            if later.line > event.line and event.rank in (None, later.rank)
        ]
        imported = event.fields.get("type", "").rpartition(".")[2] in IMPORTS
        if after and (imported or _DEALT_WITH.search(event.text) or dealt_with(self._logs, event)):
            return True
        steps = [numbers for event in after if (numbers := _AT.findall(event.text))]
        enough = _STEPS if event.sign in _ONLY_SAID else _AFTER_AN_EXCEPTION
        return (
            any(event.sign == "ended-well" for event in after)
            or len({str(step) for step in steps}) >= enough
            or (enough == _STEPS and bool(steps) and len({event.sign for event in after}) > 1)
            or len({event.text for event in after}) >= max(_OTHERS, len(steps) + 1)
        )

    def seen_before(self, event: LogEvent) -> bool:
        """Whether complaints of its kind stand above it after which the job worked on."""
        kind, alike = _complaint(event), self._complaints.get(event.file, ())
        worked = [event.line for event in self._going_on.get(event.file, ())]
        return (
            sum(
                kind == _complaint(other) and any(other.line < line < event.line for line in worked)
                for other in alike
            )
            >= _SEEN_BEFORE
        )

    @cached_property
    def _going_on(self) -> dict[str, list[LogEvent]]:
        """File -> the lines kept of it that show work, or a good end."""
        events: dict[str, list[LogEvent]] = {}
        for event in self._logs.events:
            if event.sign in _GOES_ON:
                events.setdefault(event.file, []).append(event)
        return events

    @cached_property
    def _complaints(self) -> dict[str, list[LogEvent]]:
        """File -> its complaints."""
        events: dict[str, list[LogEvent]] = {}
        for event in self._logs.events:
            if event.sign == "complaint":
                events.setdefault(event.file, []).append(event)
        return events

    def _survived(self, finding: Finding) -> bool:
        """Whether steps or a good end follow all lines like those that it rests on, and no process died."""
        if self._died:
            return False
        signs = self._signs_of(finding)
        last = [event for sign in signs for event in self._last_events[sign].values()]
        return bool(last) and all(
            self.proof.get(event.file, 0) > event.line or self.advanced(event) for event in last
        )

    @cached_property
    def _advanced(self) -> dict[str, int]:
        """File -> the last line on which a bar advanced, where one process alone writes: it went on itself."""
        logs = self._logs
        alone = not logs.processes and logs.world in (None, 1) and not any(event.rank for event in logs.events)
        return {file.name: file.advanced for file in logs.files} if alone else {}

    @cached_property
    def trained(self) -> dict[str, int]:
        """File -> the line that says that the training was finished."""
        ends = (event for event in self._logs.events if event.sign == "ended-well" and _TRAINED.search(event.text))
        return {end.file: end.line for end in ends}

    @cached_property
    def _sound(self) -> bool:
        """Whether nothing failed, and all ranks were heard of and came through NCCL's start.

        Or all that were heard of left in order: where the other ranks print only warnings the job is as sound.
        """
        logs = self._logs
        through = all(process.completed >= process.began for process in logs.processes)
        heard = logs.world is not None and (len({*logs.ranks}) >= logs.world or left_in_order(logs))
        harmless = {*HARMLESS, *CONTEXT}
        warned = (event for event in logs.events if event.level == "WARN" and event.sign not in harmless)
        failed = any(not came_through(logs, event) for event in warned)
        raised = any(event.sign == "python-error" for event in logs.events)
        return heard and through and not (failed or raised or self._died)

    @cached_property
    def finished(self) -> bool:
        """Whether the log shows a good end."""
        return any(event.sign in ("ended-well", "nccl-tests-ended") for event in self._logs.events)

    @cached_property
    def proof(self) -> dict[str, int]:
        """File -> the line before which nothing ended the job, by steps or a good end after it."""
        return self._shown(*_PROOF)

    @cached_property
    def work(self) -> dict[str, int]:
        """The same by results and requests: enough for a line that is only a complaint."""
        return self._shown(*_PROOF, *_WORK)

    @cached_property
    def profiled(self) -> dict[str, int]:
        """The same by what torch's profiler collected, too: enough for a stack below which no exception stands."""
        return self._shown(*_PROOF, *_WORK, "profiled-goes-on")

    @cached_property
    def just_after(self) -> dict[str, int]:
        """The same up to the very next line: enough where the process that complains is not said to have ended."""
        return self._shown(*_PROOF, *_WORK, late=0)

    def _shown(self, *signs: str, late: int = _LINES) -> dict[str, int]:
        shown = {**self._advanced}
        for sign in signs:
            before = late if sign.endswith("goes-on") else 0
            for file, line in self._last.get(sign, {}).items():
                shown[file] = max(shown.get(file, 0), line - before)
        return shown

    @cached_property
    def _died(self) -> bool:
        return died(self._logs)

    def _signs_of(self, finding: Finding) -> set[str]:
        """What the lines say that it rests on, but those that show work."""
        orders = {evidence.event for evidence in finding.evidence}
        return {sign for order, sign in self._signs.items() if order in orders} - {*_PROOF}

    @cached_property
    def _signs(self) -> dict[int, str]:
        """LogEvent.order -> what the line says."""
        return {event.order: event.sign for event in self._logs.events}

    @cached_property
    def _last(self) -> dict[str, dict[str, int]]:
        """Sign -> file -> its last line."""
        return {
            sign: {file: event.line for file, event in lines.items()} for sign, lines in self._last_events.items()
        }

    @cached_property
    def _last_events(self) -> dict[str, dict[str, LogEvent]]:
        """Sign -> file -> the last of its lines."""
        last: dict[str, dict[str, LogEvent]] = {}
        for event in self._logs.events:
            lines = last.setdefault(event.sign, {})
            if event.file not in lines or lines[event.file].line < event.line:
                lines[event.file] = event
        return last


def came_through(logs: Logs, event: LogEvent) -> bool:
    """Whether NCCL's start was complete after a line: in its process, else in all processes of its file."""
    started, file = _started(logs), (event.file, "", None)
    return started.get((event.file, event.host, event.pid), started.get(file, 0)) > event.line


@derived
def _started(logs: Logs) -> dict[tuple[str, str, int | None], int]:
    """The line by which the start was complete, of each process and of all of a file; 0 where one was not."""
    lines: dict[tuple[str, str, int | None], int] = {}
    for process in logs.processes:
        line = process.started_line if process.completed >= process.began else 0
        for key in ((process.file, process.host, process.pid), (process.file, "", None)):
            lines[key] = min(line, lines.get(key, line))
    return lines


@derived
def left_in_order(logs: Logs) -> bool:
    """Whether every process destroyed its communicators in the end, and NCCL handed no error on to any."""
    bad = any(event.sign in ("propagated", "python-error", "ended-badly") for event in logs.events)
    through = all(process.ended >= process.began == process.completed > 0 for process in logs.processes)
    return bool(logs.processes) and through and not bad and not died(logs)


def died(logs: Logs) -> bool:
    """Whether a process is said to have ended, or to wait in vain."""
    return any(event.sign in ENDS for event in logs.events)


def dealt_with(logs: Logs, event: LogEvent) -> bool:
    """Whether right below an exception its program says what it does about it: it was caught.

    Of a traceback whether it is so of the next exception.
    """
    raised = [event]
    if event.sign == "traceback":
        below = (other for other in logs.events if other.sign == "python-error" and other.file == event.file)
        raised = sorted((other for other in below if other.line > event.line), key=lambda event: event.line)[:1]
    lines = [other.line for other in logs.events if other.sign == "dealt-with" and other.file == event.file]
    return any(0 < line - event.line <= _NEXT for event in raised for line in lines)


@derived
def of_items(logs: Logs) -> frozenset[tuple[str, int]]:
    """File and line of the exceptions for which a program gave up one sample each, and of what it says of that.

    Below each stands which sample it was, and work went on after others of the kind.
    """
    raised = {(event.file, event.line) for event in logs.events if event.sign == "python-error"}
    events = [
        event for event in logs.events if event.sign == "item-failed" and (event.file, event.line) not in raised
    ]
    work = {} if died(logs) else Ending(logs).work
    lines: set[tuple[str, int]] = set()
    for file, went_on in work.items():
        places = [event.line for event in events if event.file == file]
        near = [event for event in logs.events if event.file == file and event.sign in _OF_AN_ITEM
                and any(0 <= place - event.line <= _ITEM for place in places)]  # fmt: skip
        kinds = {_kind(event) for event in near if event.line < went_on}
        lines |= {(file, event.line) for event in near if _kind(event) in kinds}
    return frozenset(lines)


def _complaint(event: LogEvent) -> str:
    """How a complaint begins, whatever numbers are in it."""
    return _NUMBER.sub("#", _GLOG.sub("", event.text.strip(), count=1))[:_ALIKE]


def _kind(event: LogEvent) -> tuple[str, ...]:
    """What a line is; of an exception its type and how its words begin, whatever numbers are in them."""
    text = _NUMBER.sub("#", event.fields.get("text", ""))[:_KIND]
    return (event.sign, event.fields.get("type", ""), text) if event.sign == "python-error" else (event.sign,)


def goes_on_after(logs: Logs, file: str, line: int) -> bool:
    """Whether steps or a good end are told in a file, well after this line."""
    return Ending(logs).proof.get(file, 0) > line


def ended_before(logs: Logs, event: LogEvent) -> bool:
    """Whether a process or a GPU was gone before this line: what it tells follows from that."""
    return any(other.sign in _GONE and _is_before(other, event) for other in logs.events)


def _is_before(event: LogEvent, other: LogEvent) -> bool:
    """By the clock of both lines, or in the same file: the order of files is not the order in time."""
    if event.time is not None and other.time is not None and event.time != other.time:
        return event.time < other.time
    return event.file == other.file and event.line < other.line


def gave_up(logs: Logs, warning: LogEvent) -> str:
    """The result (`3`) that was handed on to NCCL's caller after a warning; empty where none was.

    Where the log is of NCCL_DEBUG=WARN no line of NCCL tells it, and the program's own words may.
    """
    if came_through(logs, warning):
        return ""
    results = _handed_on(logs).get(_process(warning), [])
    if results:
        after = [result for line, result in results if line > warning.line]
        return after[0] if after else ""
    return _in_a_programs_words(logs)


def _process(event: LogEvent) -> _Process:
    return event.file, event.host, event.pid


@derived
def _handed_on(logs: Logs) -> dict[_Process, list[tuple[int, str]]]:
    """Process -> line and result of each place that handed an error on, where it came up to NCCL's caller."""
    places: dict[_Process, list[tuple[int, str]]] = {}
    came_up: set[_Process] = set()
    for event in logs.events:
        if event.sign == "propagated" and "result" in event.fields:
            places.setdefault(_process(event), []).append((event.line, event.fields["result"]))
            if UPMOST.search(event.text):
                came_up.add(_process(event))
    return {process: results for process, results in places.items() if process in came_up}


@derived
def _in_a_programs_words(logs: Logs) -> str:
    """The result that a program tells, as torch does, where NCCL's lines tell none."""
    if any(event.sign == "propagated" for event in logs.events):
        return ""
    events = (event for event in logs.events if event.sign == "nccl-result")
    named = (event.fields.get("result") or event.fields.get("words", "") for event in events)
    return next((_NAMES[name] for name in named if name in _NAMES), "")

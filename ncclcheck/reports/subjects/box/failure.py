"""One thing that went wrong in a job, and its words."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ncclcheck.probes.facts import Box, BoxOom, BoxProcess, BoxRaised, BoxSent, BoxTold
from ncclcheck.probes.facts.run.course import signal_name
from ncclcheck.reports.subjects.box import peers
from ncclcheck.reports.subjects.nodes import xids
from ncclcheck.reports.text.words.fold import fold_ranks
from ncclcheck.reports.text.words.visible import in_line

Kind = Literal[
    "memory", "killed", "crashed", "raised", "left", "exit", "absent", "apart", "outside", "stalled", "vanished",
    "cut", "gpu", "unmet",
]  # fmt: skip

_BUILD = re.compile(r"^\[\S+:\d+\] ?")  # the line of torch's own source
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|/site/sitecustomize\.py|<frozen|<string>|torch/")
FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_TRACEBACK = "Traceback (most recent call last)"
LAUNCHER = re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed|srun|mpirun")
_PLACE = re.compile(r"^(.+):(\d+|\?+) in (.+)$")
# Of a process that is said to work: cores in use in the last seconds. Chosen: one that waits in gloo has 0.02 of a
# core, and where more processes work than there are cores each has a part of one.
_BUSY, _LOOKS_S = 0.15, 5.0
_TORCH = re.compile(r"\btorch/.*:\d+ in (\w+)$")
_AROUND = ("wrapper", "decorate_context", "_fn", "inner", "_wrapped_call_impl", "_call_impl", "__call__")
_PYTHON = re.compile(r"python|pt_main|pt_data")
# Seconds between the kernel's count of a process killed for memory and the end of that process, as the watcher
# sees both: it looks at the count when a process ends, and once a second.
OOM_S = 2.5
_OF_A_LIMIT = re.compile(r"Memory cgroup out of memory: Kill(?:ed)? process (\d+)")
_OF_MEMORY = re.compile(r"(?i)oom[-_ ]?kill|out of memory|oom_reaper|^\[ *pid *\]")
_PID = re.compile(r"\w\[(\d+)\]:|[Pp]rocess (\d+)")
_ABORTED = 200  # characters of what a program printed as it aborted


class BoxFailure(NamedTuple):
    """One thing that went wrong. of_others: it only tells that another process is gone or did not come.

    number: of the signal, or of the Xid. gpu: NVML's index. alike: the ranks that raised the same at once, where
    there are several. detail: in words, what is known beside the kind; told_by: by what. sent: its signal,
    by another process of the job; maybe: which may have sent it, in words.
    """

    t: float
    kind: Kind
    box: Box
    process: BoxProcess | None = None
    raised: BoxRaised | None = None
    oom: BoxOom | None = None
    number: int = 0
    of_others: bool = False
    gpu: int = -1
    cut: peers.CutOffBox | None = None
    alike: tuple[int, ...] = ()
    detail: str = ""
    told_by: str = ""
    sent: BoxSent | None = None
    maybe: str = ""

    @property
    def rank(self) -> int:
        """The rank, -1 for none."""
        if self.alike:
            return -1
        if self.kind == "outside" and self.sent is not None:
            return self.sent.rank
        if self.raised is not None and self.raised.rank >= 0:
            return self.raised.rank
        return self.process.rank if self.process is not None else -1

    @property
    def host(self) -> str:
        """Where it was."""
        if self.cut is not None:
            return self.cut.name
        return (self.raised.host if self.raised is not None else "") or self.box.host

    @property
    def who(self) -> str:
        """`rank 2 on h1`, `ranks 0-3 on h1`, `a worker of rank 2 on h1`, `COMMAND`."""
        process, host = self.process, self.host
        if self.alike:
            return f"{fold_ranks(self.alike)} on {host}"
        if process is not None and process.role == "helper":
            whose = f"rank {process.rank}" if process.rank >= 0 else "the job"
            return f"a worker of {whose} (pid {process.pid}) on {host}"
        if self.rank >= 0:
            return f"rank {self.rank} on {host}"
        if process is not None and process.role == "root":
            return f"COMMAND (pid {process.pid}) on {host}"
        if process is not None and process.command:
            return f"{program(process)} on {host}"
        pid = process.pid if process is not None else self.raised.pid if self.raised is not None else 0
        return f"pid {pid} on {host}" if pid else host


def program(process: BoxProcess) -> str:
    """`bash night.sh (pid 20437)`, `the launcher (torchrun, pid 20436)`."""
    words = [word.rpartition("/")[2] for word in process.command.split()]
    launcher = next((word for word in words if LAUNCHER.search(word)), "")
    if launcher:
        return f"the launcher ({launcher}, pid {process.pid})"
    return f"{' '.join(words)[:60]} (pid {process.pid})"


def frames(failure: BoxFailure) -> list[str]:
    """Lines of the user's own program, the innermost first, where they are known."""
    if failure.raised is not None:
        lines = [f"{file}:{line} in {name}" for file, line, name in FRAME.findall(failure.raised.message)]
        return own_frames((lines or failure.raised.frames)[::-1])
    return own_frames(failure.process.stack) if failure.process is not None else []


def own_frames(innermost_first: Sequence[str]) -> list[str]:
    """Without those of Python and of installed packages; all where there are no others."""
    return [line for line in innermost_first if not is_library(line)] or [*innermost_first]


def called(innermost_first: Sequence[str]) -> str:
    """What of torch its program has called where it is, such as `recv`; empty for nothing of torch's."""
    own = next((at for at, frame in enumerate(innermost_first) if not is_library(frame)), 0)
    named = [_TORCH.search(frame) for frame in innermost_first[:own][::-1]]
    return next((match[1] for match in named if match is not None and match[1] not in _AROUND), "")


def is_library(frame: str) -> bool:
    """Whether it is one of Python's, or of an installed package."""
    return _LIBRARY.search(frame) is not None


def is_anothers(box: Box, oom: BoxOom, pid: int) -> bool:
    """Whether the kernel names another process, of another cgroup's limit: the node's count has all of them."""
    near = [row.text for row in box.kernel if abs(row.t - oom.t) < OOM_S]
    killed = [int(match[1]) for text in near if (match := _OF_A_LIMIT.search(text)) is not None]
    return oom.by.keys() == {"node"} and bool(killed) and pid not in killed


def by_kernel(box: Box) -> list[BoxTold]:
    """Its messages that name a process of the job or none, but for those of the memory of another cgroup."""
    pids = {process.pid for process in box.processes}
    own = [oom.t for oom in box.ooms if oom.by.keys() != {"node"}]
    others = [
        row.t
        for row in box.kernel
        if (killed := _OF_A_LIMIT.search(row.text)) is not None
        and int(killed[1]) not in pids
        and not [t for t in own if abs(t - row.t) < OOM_S]
    ]
    return [
        row
        for row in box.kernel
        if _is_ours(row.text, pids)
        and not (_OF_MEMORY.search(row.text) and [t for t in others if abs(t - row.t) < OOM_S])
    ]


def _is_ours(text: str, pids: set[int]) -> bool:
    named = {int(pid or other) for pid, other in _PID.findall(text)}
    return not named or bool(named & pids)


def is_stopped(process: BoxProcess) -> bool:
    """By SIGSTOP, or by a debugger."""
    return process.state in ("T", "t")


def ended(box: Box) -> str:
    """`exit code 1`, `SIGKILL`, or that it is not known."""
    if box.status is None:
        return "an end that nobody wrote down" if box.last else "an end that no wrapper saw (--print-env)"
    return f"exit code {box.status}" if box.status >= 0 else signal_name(-box.status)


def ended_by(traceback: str) -> str:
    """`RuntimeError: what it says`, all lines of it, of the text of a traceback."""
    lines = traceback.strip().splitlines()
    last = max((at for at, line in enumerate(lines) if line.startswith('  File "')), default=-1)
    begin = next((at for at in range(last + 1, len(lines)) if lines[at][:1].strip()), len(lines) - 1)
    return "\n".join(lines[begin:])


def in_words(raised: BoxRaised, most: int = 240) -> str:
    """`ValueError: boom`, in one line."""
    words = f"{raised.type}: {_BUILD.sub('', raised.message)}" if raised.message.strip() else raised.type
    if _TRACEBACK in raised.message:  # of a loader's worker or a spawned process, which torch raises again
        words = f"{in_line(ended_by(raised.message))[:most]} (in a process that it started)"
    text = in_line(" ".join(words.split()))
    return text if len(text) <= most else f"{text[:most]} ..."


def short(place: str) -> str:
    """`step (train.py:12)` of `/work/train.py:12 in step`."""
    match = _PLACE.match(place)
    return f"{match[3]} ({match[1].rpartition('/')[2]}:{match[2]})" if match else place


def _leaves(failure: BoxFailure) -> str:
    """Where it called what ended it."""
    at = own_frames(failure.process.left_at) if failure.process is not None else []
    return f" in {short(at[0])}" if at else ""


def _gave_up(failure: BoxFailure) -> str:
    """Where it was as a timer of its own ended it."""
    after = failure.process.gave_up if failure.process is not None else ""
    return (
        f" by its own faulthandler.dump_traceback_later after {after}: it was{_leaves(failure)}" if after else ""
    )


def _was_in(failure: BoxFailure) -> str:
    """Where it was, and whether it worked there."""
    at = next(iter(frames(failure)), "")
    busy = " busy" if is_busy(failure) else ""
    runs = "" if busy else _still_runs(failure)
    if failure.process is not None and failure.process.pipe:
        runs = f", which opens a named pipe ({in_line(failure.process.pipe)}) that nobody else had opened"
    return f": it was{busy} in {short(at)}{runs}" if at else ": it was busy" if busy else ""


def is_busy(failure: BoxFailure) -> bool:
    """Whether its process computed in the last looks before that."""
    process = failure.process
    if process is None:
        return False
    pairs = zip(failure.box.samples, process.cores, strict=False)
    last = [cores for sample, cores in pairs if failure.t - _LOOKS_S < sample.t <= failure.t]
    return bool(last) and sum(last) / len(last) > _BUSY


def _bus(failure: BoxFailure) -> str:
    """Which memory that is a file was gone, as SIGBUS ended it."""
    mapped = failure.process.mapped if failure.process is not None else ""
    return f": {in_line(mapped)}" if mapped and failure.number == signal.SIGBUS else ""


def _port(raised: BoxRaised, box: Box) -> str:
    """Which port was taken, and by whom."""
    if not raised.port:
        return ""
    holder = next((process for process in box.processes if process.pid == raised.holder), None)
    who = in_line(raised.holds)[:40]
    if holder is not None and holder.role in ("rank", "helper") and holder.rank >= 0:
        who = f"{'a worker of ' if holder.role == 'helper' else ''}rank {holder.rank}"
    ours = ", which COMMAND has started" if holder is not None and holder.rank < 0 else ""
    held = f", on which {who} (pid {raised.holder}{ours}) listens" if raised.holder else ""
    return f" (port {raised.port}{held})"


def _still_runs(failure: BoxFailure) -> str:
    """The program that a rank had started and that had not ended, where it is one."""
    process = failure.process
    below = [
        child
        for child in failure.box.processes
        if process is not None
        and child.parent == process.pid
        and child.born < failure.t
        and (child.gone is None or child.gone > failure.t)
        and not _PYTHON.search(child.command)
    ]
    return f", while {program(below[0])}, which it had started, ran" if len(below) == 1 else ""


def what(failure: BoxFailure) -> str:
    """What happened to it, in a few words."""
    status = failure.process.status if failure.process is not None else None
    asked = failure.process.code if failure.process is not None else 0
    ended_with = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else failure.box.status
    code = asked or ended_with
    aborted = in_line(failure.process.aborted)[:_ABORTED] if failure.process is not None else ""
    words: dict[Kind, str] = {
        "memory": "was killed by the kernel for want of memory",
        "killed": f"was ended by {signal_name(failure.number)}",
        "crashed": f"crashed: {signal_name(failure.number)}{f': {aborted}' if aborted else ''}{_bus(failure)}",
        "left": f"ended with exit code 0{_leaves(failure)} while others went on",
        "exit": f"ended with exit code {code}"
        + (
            f": {in_line(failure.detail)}"
            if failure.detail
            else _gave_up(failure) or _leaves(failure) or ", without an exception"
        ),
        "absent": (failure.detail or "did not come to what all the others waited for") + _was_in(failure),
        "apart": "called something else than all the others, which waited for it",
        "outside": f"the job was sent {signal_name(failure.number)}",
        "stalled": "the job stalled",
        "vanished": "its record breaks off while the other nodes went on",
        "cut": f"was cut off from {', '.join(failure.cut.by[:4])}" if failure.cut is not None else "",
        "gpu": f"GPU {failure.gpu}: {xids.HARDWARE.get(failure.number, '')} (Xid {failure.number})",
        "unmet": failure.detail,
        "raised": "",
    }
    if failure.raised is None or failure.kind != "raised":
        return words[failure.kind]
    beside = f" (in its thread {in_line(failure.raised.thread)[:60]})" if failure.raised.thread else ""
    beside += f" (which it caught, and left with exit code {failure.raised.code})" if failure.raised.code else ""
    if failure.told_by:
        alone = "it alone differs" if failure.told_by.startswith("by ") else "it began in this one"
        beside += f" (as all ranks; {alone})"
    return in_words(failure.raised) + _port(failure.raised, failure.box) + beside

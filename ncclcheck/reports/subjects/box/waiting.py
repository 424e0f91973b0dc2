"""What one process of a stalled job waits for, by its stack, the look at it, and the processes below it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ncclcheck.probes.facts import Box, BoxProcess, Cluster, LiveProcess
from ncclcheck.reports.subjects.box.failure import is_library, is_stopped, own_frames, short
from ncclcheck.reports.subjects.live.running import CHILD, sleeps
from ncclcheck.reports.text.words.fold import fold_ranks

_WORKERS = re.compile(
    r"torch/utils/data/dataloader|concurrent/futures"
    r"|multiprocessing/(?:pool|queues|connection|popen_fork|process|managers)"
)
_FORK = re.compile(r"multiprocessing/(?:popen_|process\.py:\d+ in _bootstrap)")
# Frames of Python's own -> what their caller waits for; the first that applies.
_FRAMES = (
    (r"threading\.py:\d+ in (?:join|_wait_for_tstate_lock)$", "for a thread of its own to end"),
    (r"queue\.py:\d+ in (?:get|put|join)$", "for a queue of its own"),
    (r"concurrent/futures/_base\.py:\d+ in (?:result|wait|exception)$", "for a future of its own"),
    (r"threading\.py:\d+ in (?:wait|wait_for|acquire)$", "for a lock, an event or a condition of its own"),
    (r"subprocess\.py:\d+ in (?:wait|_wait|_try_wait|communicate|_communicate)$",
     "for a program that it has started"),
    (r"multiprocessing/synchronize\.py", "for a lock or a condition that processes share"),
    (r"fcntl|filelock|lockfile|portalocker", "for the lock of a file"),
    (r"asyncio/", "in an event loop of its own"),
    (r"(?:socket|ssl|socketserver)\.py:\d+ in (?:readinto|read|recv\w*|accept|connect|create_connection)$",
     "for an answer over the network"),
    (r"selectors\.py:\d+ in select$", "for an answer over the network or a pipe"),
)  # fmt: skip


class WaitingFor(NamedTuple):
    """words: behind `waits`, empty for unknown. line: of the worker that it waits for, where lock: for a lock."""

    words: str
    line: str = ""
    lock: bool = False


def of(cluster: Cluster, box: Box, process: BoxProcess) -> WaitingFor:
    """Of a rank that is not in the collective of the others."""
    if is_stopped(process):
        return WaitingFor("")
    if process.lock:
        return WaitingFor(f"for the lock file {process.lock} to go")
    live, worker = _live(cluster, box, process.pid), _worker(box, process)
    words = _as_holder(cluster, box, process.pid) or (_by_connection_or_lock(live) if live is not None else "")
    if not words and worker is not None:
        at = own_frames(_since_its_fork(worker))[0]
        lock = _waits_for_a_lock(worker)
        does = "waits for a lock" if lock else "is"
        return WaitingFor(f"for its worker (pid {worker.pid}), which {does} in {short(at)}", at, lock)
    words = words or _for_a_child(box, process)
    words = words or (_by_look(live) if live is not None else "")
    return WaitingFor(words or _by_frames(process.stack))


def _as_holder(cluster: Cluster, box: Box, pid: int) -> str:
    locked = [other for other in _of_host(cluster, box) if other.holder == pid]
    if not locked:
        return ""
    named = next((other.file for other in locked if other.file), "a file")
    wait = "waits" if len(locked) == 1 else "wait"
    ranks = fold_ranks(process.rank for process in locked)
    return f"for others, and holds the lock of {named}, for which {ranks} {wait},"


def _by_connection_or_lock(live: LiveProcess) -> str:
    if live.asks:
        return f"for an answer of {live.asks}"
    return f"for the lock of {live.file or 'a file'}, which process {live.holder} holds," if live.holder else ""


def _for_a_child(box: Box, process: BoxProcess) -> str:
    below = _below(box, process)
    reads = bool(below) and "pipe_read" in process.wchan
    writes = "pipe_write" in process.wchan
    if writes:
        reader = f", such as {below[0].command[:60]} (pid {below[0].pid})," if len(below) == 1 else ""
        return f"for what reads its pipe{reader} to read"
    if process.wchan != CHILD and not reads:
        return ""
    named = f": {below[0].command[:60]} (pid {below[0].pid})" if len(below) == 1 else ""
    return f"{'for an answer of' if reads else 'for'} a program that it has started{named},"


def _by_look(live: LiveProcess) -> str:
    if live.file:
        return f"for the file {live.file}"
    if live.stream == "stdin":
        return "for input on its stdin, as in a debugger,"
    return "in a sleep" if sleeps(live) else ""


def _by_frames(stack: Sequence[str]) -> str:
    """By what of Python's own its program has called."""
    own = next((at for at, frame in enumerate(stack) if frame == own_frames(stack)[0]), 0)
    called = stack[:own]
    return next((words for pattern, words in _FRAMES for frame in called if re.search(pattern, frame)), "")


def _worker(box: Box, process: BoxProcess) -> BoxProcess | None:
    """The process below it that is in a line of the user's, where it waits for such processes."""
    if not any(map(_WORKERS.search, process.stack[:8])):
        return None
    below = [child for child in _below(box, process) if child.stack]
    busy = [child for child in below if not all(map(is_library, _since_its_fork(child)))]  # others wait for work
    return min(busy, key=lambda child: child.pid) if busy else None


def _below(box: Box, process: BoxProcess) -> list[BoxProcess]:
    """Processes that it has started, as they were at the stall."""
    at = box.stalls[-1].t if box.stalls else box.last
    return [child for child in box.processes if child.parent == process.pid and (child.gone or at) >= at]


def _since_its_fork(worker: BoxProcess) -> list[str]:
    """Without the frames of its parent, which a forked process has too."""
    end = next((at for at, frame in enumerate(worker.stack) if _FORK.search(frame)), len(worker.stack))
    return worker.stack[:end]


def _waits_for_a_lock(worker: BoxProcess) -> bool:
    """Python's own lock is taken without a frame of its own."""
    return "futex" in worker.wchan and not is_library(worker.stack[0])


def _live(cluster: Cluster, box: Box, pid: int) -> LiveProcess | None:
    return next((process for process in _of_host(cluster, box) if process.pid == pid), None)


def _of_host(cluster: Cluster, box: Box) -> list[LiveProcess]:
    return [process for host in cluster.measurements.live if host.host == box.host for process in host.processes]


def holder(cluster: Cluster) -> tuple[Box, BoxProcess] | None:
    """The one rank that holds a lock for which others of the job wait in the kernel."""
    holders = [
        (box, process)
        for box in cluster.measurements.boxes
        for process in box.processes
        if process.role == "rank" and process.pid in {other.holder for other in _of_host(cluster, box)}
    ]
    return holders[0] if len(holders) == 1 else None

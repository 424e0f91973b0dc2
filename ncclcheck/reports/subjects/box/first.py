"""The end of a job, joined from the boxes of its nodes: what was first, by time and by what explains the rest."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ncclcheck.probes.facts import Box, BoxOom, BoxProcess, BoxRaised, Cluster
from ncclcheck.probes.facts.live.box import WENT_ON_S
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.box import alike, children, peers, senders, started, threads, waiting
from ncclcheck.reports.subjects.box.failure import (
    FRAME,
    OOM_S,
    BoxFailure,
    Kind,
    ended_by,
    frames,
    is_anothers,
    is_stopped,
    own_frames,
)
from ncclcheck.reports.subjects.nodes import xids
from ncclcheck.reports.text.words.fold import fold_ranks

# Seconds between a signal from outside and what it ends: Slurm (KillWait) and Kubernetes (grace period) wait 30 s
# by default, and half as long again for a loaded machine.
_OUTSIDE_S = 45.0
# Seconds by which a signal may reach another node of the job before this one, whose ranks then lose their peers.
_OTHER_NODES_S = 10.0
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_POLITE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_CLOCK_S = 2.0  # between clocks of nodes that a time service keeps; a vanished node is silent for longer
_VANISHED_S = 5.0  # of silence of a watcher that writes every second, before the others ended
# Seconds by which the watcher may see an end later than its peers feel it: one of its rounds.
_SEEN_S = 1.0
_ALONE_S = 0.05  # between ends of ranks that were not ended together; torchrun looks every 0.1 s
_NVML_S = 2.0  # by which an Xid may be seen later than what it does to a process: two rounds of its child
# What a rank says when another one is gone or does not come: torch's and NCCL's own words, from c10d and gloo.
_OF_OTHERS = re.compile(
    r"(?i)connection (?:was )?(?:closed|reset|refused|timed out)|broken pipe|closed by (?:peer|remote)"
    r"|socket (?:closed|timeout)"
    r"|recvValue failed|sendBytes failed|timed out waiting|timed out after|wait timeout|store.{0,20}timed? ?out"
    r"|remote (?:process|peer)|ncclRemoteError|collective operation timeout|watchdog"
    r"|peer .{0,40}(?:fail|exit|died)"
    r"|process group .{0,40}abort|no route to host|application timeout caused pair closure|DistNetworkError"
    r"|DistStoreError|is being shut ?down|aborted communicator|connect\(\) .{0,40}fail|failed to connect"
)
_CLOSED = re.compile(r"(?i)connection (?:was )?(?:closed|reset)|closed by (?:peer|remote)|broken pipe")
_TIME = re.compile(r"(?i)time")
_TAKEN = re.compile(r"(?i)EADDRINUSE|address already in use")  # its own port, whatever torch's class is
_LAUNCHERS = (
    *("ChildFailedError", "ProcessExitedException", "ProcessRaisedException", "SignalException"),
    "RendezvousConnectionError",
)
_STARTS_OTHERS = re.compile(r"accelerate/commands|deepspeed/launcher|torch/distributed/(?:run|launch)")
# Where an exception about a connection comes from that is one of the job's own processes.
_AMONG_RANKS = re.compile(r"\btorch/|\bmultiprocessing/|\bdeepspeed/|\bray/")
_TORCH_TYPES = re.compile(r"^(?:Dist\w*Error|Rendezvous\w+|(?i:nccl)\w*)$")
_TORCH_WORDS = re.compile(
    r"(?i)\.(?:cc|cpp|cu|hpp|h):\d+|nccl|gloo|c10d|\brank\b|(?:tcp|dist)store|(?:peer|error) \["
    r"|waiting \d+ms|pair closure|socket timeout|client socket|broken pipe|reset by peer|wait timeout"
)
_PYTHON = re.compile(r"python|pt_main|pt_data|torchrun")
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Timeout): ")
_COLLECTIVE = re.compile(r"torch/distributed/|torch/nn/parallel/|torch/autograd/")
_TIMEOUT = re.compile(r"(?:^|/)timeout\b")
_RAN_OUT = (124, 137)  # its exit codes when the time is over, the second after SIGKILL. Source: timeout(1)
_GOT_SIGNAL = re.compile(r"got signal: (\d{1,2})$")
_SPAWNED = re.compile(r"-- Process (\d+) terminated with the following error:\n(.*)", re.DOTALL)
_OF_A_LOADER = re.compile(r"torch/utils/data/")
_WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")
_LOST_WORKER = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([A-Z][\w ]+)")
_WORDS = {signal.strsignal(number): int(number) for number in (signal.SIGKILL, *_CRASHES)}  # as torch prints them


class JobEnding(NamedTuple):
    """first: what explains the end; None where nothing failed. then: what followed, in order."""

    first: BoxFailure | None
    then: list[BoxFailure]


@derived
def end(cluster: Cluster) -> JobEnding:
    """Of all boxes together."""
    boxes = cluster.measurements.boxes
    alone = len(boxes) == 1
    failures = sorted(
        (failure for box in boxes for failure in _failures(box, alone=alone)), key=lambda failure: failure.t
    )
    failures = _of_the_last_attempt(boxes, _without_launchers([*failures, *_vanished(boxes)]))
    first = _first(boxes, failures, waiting.holder(cluster))
    first = senders.behind(boxes, threads.behind(boxes, children.behind(first))) if first is not None else None
    then = [
        failure
        for failure in failures
        if first is None
        or (
            (failure.process or failure.raised) != (first.process or first.raised)
            and failure.rank not in first.alike
        )
    ]
    stalled = first is not None and first.kind == "stalled"
    return JobEnding(
        first,
        [failure for failure in then if failure is not first and not (stalled and failure.kind == "stalled")],
    )


def _failures(box: Box, *, alone: bool) -> Iterator[BoxFailure]:
    """Of one node: each process once. alone: it is the only one."""
    ends = [raised for raised in box.raised if raised.type != "KeyboardInterrupt" and not raised.thread]
    told_of = [_in_its_child(box, raised, alone=alone) for raised in ends]
    raised = {raised.pid: raised for raised in told_of}
    own = {principal.pid for principal in principals(box)}
    gone = {ended.pid for ended in box.processes if ended.status}
    for ending in box.raised:
        lost = _lost_worker(box, ending)
        if lost is not None and lost.process is not None and lost.process.pid not in gone:
            yield lost
    for process in box.processes:
        if process.pid in raised:
            ending = raised.pop(process.pid)
            yield BoxFailure(ending.t, "raised", box, process, ending, of_others=_is_of_others(ending))
        elif (
            process.status is None
            and process.pid in own
            and (oom := _oom_at(box, process, process.gone)) is not None
        ):
            yield BoxFailure(process.gone or oom.t, "memory", box, process, oom=oom, number=signal.SIGKILL)
        elif process.status and (process.pid in own or _is_lost_worker(process) or _was_killed(process)):
            yield _died(box, process)
    for ending in raised.values():
        yield BoxFailure(ending.t, "raised", box, None, ending, of_others=_is_of_others(ending))
    for xid in box.xids:
        if xid.code in xids.HARDWARE:
            yield BoxFailure(xid.t - _NVML_S, "gpu", box, _on_gpu(box, xid.gpu), number=xid.code, gpu=xid.gpu)
    if box.stalls and box.status != 0 and not _went_on(box):
        yield BoxFailure(box.stalls[-1].t - box.stalls[-1].silent, "stalled", box)


def _went_on(box: Box) -> bool:
    """After its last stall, for longer than it takes to end."""
    resumed = box.stalls[-1].resumed
    ends = [process.gone for process in box.processes if process.role == "rank" and process.gone is not None]
    last = min((t for t in ends if resumed is not None and t > resumed), default=box.ended or box.last)
    return resumed is not None and last > resumed + WENT_ON_S


def _in_its_child(box: Box, raised: BoxRaised, *, alone: bool) -> BoxRaised:
    """What a process of torch.multiprocessing.spawn raised, where its parent alone says so."""
    named = _SPAWNED.search(raised.message) if raised.type == "ProcessRaisedException" else None
    if named is None or not named[2].strip():
        return raised
    kind, _, message = ended_by(named[2]).partition(": ")
    failed = [
        (process.gone, process.pid)
        for process in box.processes
        if process.parent == raised.pid and process.gone is not None and (process.status or 0) > 0xFF
    ]
    t, pid = min(failed, default=(raised.t, raised.pid))
    return replace(
        raised, t=min(t, raised.t), pid=pid, rank=int(named[1]) if alone else -1, type=kind.rpartition(".")[2],
        message=message, frames=[f"{file}:{line} in {name}" for file, line, name in FRAME.findall(named[2])],
    )  # fmt: skip


def _on_gpu(box: Box, gpu: int) -> BoxProcess | None:
    """The rank that computes there."""
    pids = {*box.gpu_pids[gpu]} if 0 <= gpu < len(box.gpu_pids) else set()
    return next((process for process in box.processes if process.role == "rank" and process.pid in pids), None)


def principals(box: Box) -> list[BoxProcess]:
    """The processes that do the job: ranks; else Python that no other Python has started; else COMMAND."""
    ranks = [process for process in box.processes if process.role == "rank"]
    python = {process.pid for process in box.processes if _PYTHON.search(process.command)}
    alone = [process for process in box.processes if process.pid in python and process.parent not in python]
    return ranks or alone or [process for process in box.processes if process.role == "root"]


def _lost_worker(box: Box, raised: BoxRaised) -> BoxFailure | None:
    """The worker that torch names, where it came and went between two looks of the watcher."""
    named = _LOST_WORKER.search(f"{raised.message} {raised.cause}")
    number = _WORDS.get(named[2].strip(), 0) if named else 0
    if named is None or not number:
        return None
    worker = BoxProcess(pid=int(named[1]), rank=raised.rank, role="helper", gone=raised.t - 0.001, status=number)
    return _died(box, worker)


def _was_killed(process: BoxProcess) -> bool:
    """A launcher that was killed or crashed."""
    return process.role == "root" and (process.status or 0) & 0x7F in (signal.SIGKILL, *_CRASHES)


def _is_lost_worker(process: BoxProcess) -> bool:
    """A worker of a loader that was killed or crashed, or a process of multiprocessing that failed."""
    status = process.status or 0
    if not _PYTHON.search(process.command):
        return False
    return status & 0x7F in (signal.SIGKILL, *_CRASHES) or (status > 0xFF and "multiprocessing" in process.command)


def _died(box: Box, process: BoxProcess) -> BoxFailure:
    number = (process.status or 0) & 0x7F
    at = process.gone or box.ended or box.last
    oom = _oom_at(box, process, at) if number == signal.SIGKILL else None
    if oom is not None:
        return BoxFailure(at, "memory", box, process, oom=oom, number=number)
    if process.code and process.asked is not None and number in (0, *_POLITE):
        # Its launcher may end it as it leaves, or see its end late.
        return BoxFailure(min(at, process.asked), "exit", box, process)
    silent = not number and not process.left_at
    error = next((line for line in reversed(process.printed) if silent and _ERROR.match(line)), "")
    return BoxFailure(at, _kind(number), box, process, number=number, of_others=number in _POLITE, detail=error)


def _oom_at(box: Box, process: BoxProcess, at: float | None) -> BoxOom | None:
    counted = next((oom for oom in box.ooms if at is not None and abs(oom.t - at) < OOM_S), None)
    return None if counted is not None and is_anothers(box, counted, process.pid) else counted


def _kind(number: int) -> Kind:
    if not number:
        return "exit"
    return "crashed" if number in _CRASHES else "killed"


def _is_launchers(raised: BoxRaised) -> bool:
    """A program that a rank has started itself, and that failed, is the rank's."""
    starts = raised.type == "CalledProcessError" and any(_STARTS_OTHERS.search(frame) for frame in raised.frames)
    return raised.type in _LAUNCHERS or starts


def _is_of_others(raised: BoxRaised) -> bool:
    if _is_launchers(raised):
        return True
    if _WORKER.search(raised.message) or (raised.frames and _OF_A_LOADER.search(raised.frames[-1])):
        return False  # whatever its end has closed, and a worker that does not answer
    words = f"{raised.type}: {raised.message} {raised.cause}"
    return _OF_OTHERS.search(words) is not None and not _TAKEN.search(words) and not _is_elsewhere(raised)


def _is_elsewhere(raised: BoxRaised) -> bool:
    """A lost connection to what is no process of the job: a server of data, a tracker of experiments."""
    if not raised.frames or any(_AMONG_RANKS.search(frame) for frame in raised.frames[-4:]):
        return False
    if _TORCH_TYPES.search(raised.type):
        return False
    return raised.type != "RuntimeError" or _TORCH_WORDS.search(raised.message) is None


def _without_launchers(failures: list[BoxFailure]) -> list[BoxFailure]:
    """A launcher's own exception tells of its ranks; it counts where there is nothing else."""
    own = [failure for failure in failures if failure.raised is None or not _is_launchers(failure.raised)]
    return own or failures


def _of_the_last_attempt(boxes: Sequence[Box], failures: list[BoxFailure]) -> list[BoxFailure]:
    """Without what a launcher has survived by starting all ranks again, where what came later explains the end."""
    again = []
    for box in boxes:
        lives: dict[int, list[BoxProcess]] = {}
        for process in sorted(box.processes, key=lambda child: child.born):
            if process.role == "rank":
                lives.setdefault(process.rank, []).append(process)
        again += [
            life[-1].born
            for life in lives.values()
            if len(life) > 1 and life[-2].gone is not None and life[-2].gone <= life[-1].born
        ]
    later = [failure for failure in failures if again and failure.t >= min(again)]
    return later if [failure for failure in later if not failure.of_others] else failures


def _vanished(boxes: Sequence[Box]) -> Iterator[BoxFailure]:
    """Nodes whose record breaks off while the others went on."""
    if len(boxes) < 2:
        return
    for box in boxes:
        others = max((other.ended or other.last for other in boxes if other is not box), default=0.0)
        seen = any(box.host in other.silent for other in boxes if other is not box)
        if box.ended is None and not box.closed and (seen or box.last + _VANISHED_S < others):
            yield BoxFailure(box.last, "vanished", box)


def _first(
    boxes: Sequence[Box], failures: Sequence[BoxFailure], holder: tuple[Box, BoxProcess] | None
) -> BoxFailure | None:
    """holder: of a lock, at a stall."""
    outside = _from_outside(boxes, failures)
    vanished = [failure for failure in failures if failure.kind == "vanished"]
    own = [
        failure for failure in failures if not failure.of_others and failure.kind not in ("stalled", "vanished")
    ]
    if outside is not None and not [failure for failure in own if failure.t < outside.t]:
        before = [
            failure for failure in _until(failures, outside.t - _OTHER_NODES_S) if failure.raised is not None
        ]
        return (
            _stalled(boxes, _until(failures, outside.t), [], holder)
            or (_of_others(boxes, before) if before else None)
            or outside
        )
    if (stalled := _stalled(boxes, failures, own, holder)) is not None:
        return stalled
    if vanished and not [failure for failure in own if failure.t < vanished[0].t - _CLOCK_S]:
        return vanished[0]
    ended = _launcher_was_ended(boxes)
    earlier = [*own, *(failure for failure in failures if failure.raised is not None)]
    if ended is not None and not [failure for failure in earlier if failure.t < ended.t]:
        return ended
    return _behind(own) if own else _of_others(boxes, failures)


def _until(failures: Sequence[BoxFailure], t: float) -> list[BoxFailure]:
    """Those before it; a stall by when it was noticed."""
    return [
        failure
        for failure in failures
        if (failure.box.stalls[-1].t if failure.kind == "stalled" else failure.t) < t
    ]


def _stalled(
    boxes: Sequence[Box],
    failures: Sequence[BoxFailure],
    own: Sequence[BoxFailure],
    holder: tuple[Box, BoxProcess] | None,
) -> BoxFailure | None:
    """A stall that no failure of its own had ended, with the rank that all others wait for."""
    stalled = [failure for failure in failures if failure.kind == "stalled"]
    if not stalled or (own and not stalled[-1].box.stalls[-1].killed):
        return None
    if [failure for failure in failures if _of_a_rank(failure) and failure.t < stalled[0].t + _SEEN_S]:
        return None  # it stalled while it ended
    if [failure for failure in own if _of_a_rank(failure) and failure.t < stalled[0].box.stalls[-1].t]:
        return None
    if (unmet := started.not_met(boxes, failures)) is not None:
        return unmet
    if (left := _left_alone(boxes, stalled[0])) is not None:
        return left
    odd = holder or odd_at_stall(boxes)
    if odd is None and (cut := _cut(boxes, stalled[0].t + stalled[0].box.stalls[-1].silent)) is not None:
        return cut
    return stalled[0]._replace(box=odd[0], process=odd[1]) if odd is not None else stalled[0]


def _of_a_rank(failure: BoxFailure) -> bool:
    """That it failed itself, or complained; a process that it has started may fail without it."""
    if failure.kind in ("stalled", "vanished"):
        return False
    role = failure.process.role if failure.process is not None else "other"
    return role == "rank" or (failure.raised is not None and role != "helper")


def _left_alone(boxes: Sequence[Box], stalled: BoxFailure) -> BoxFailure | None:
    """Ranks that had ended with exit code 0 while others wait for them in a collective."""
    ranks = [(box, process) for box in boxes for process in box.processes if process.role == "rank"]
    noticed = stalled.box.stalls[-1].t
    gone = [
        (t, box, process)
        for box, process in ranks
        if process.gone is not None and process.gone < noticed and (t := _left_at(process)) is not None
    ]
    there = [(box, process) for box, process in ranks if process.gone is None or process.gone >= noticed]
    waiting_ = [process for _, process in there if _COLLECTIVE.search("\n".join(process.stack))]
    if not gone or not there or len(waiting_) < len(there):
        return None
    if len(there) == 1 and len(gone) > 1:
        others = fold_ranks(process.rank for _, _, process in gone)
        wait = f"waits for {others}, which had ended with exit code 0,"
        return stalled._replace(box=there[0][0], process=there[0][1], detail=wait)
    t, box, process = min(gone, key=lambda row: row[0])
    return BoxFailure(t, "left", box, process)


def _of_others(boxes: Sequence[Box], failures: Sequence[BoxFailure]) -> BoxFailure | None:
    """Where each only complains of others: of whom."""
    complaints = [failure for failure in failures if failure.of_others]
    if not complaints:
        return None
    return (
        started.not_met(boxes, failures)
        or _cut(boxes, complaints[0].t)
        or _signalled(complaints)
        or _left(boxes, complaints)
        or _absent(boxes, complaints)
        or _apart(complaints)
        or complaints[0]
    )


def _cut(boxes: Sequence[Box], failed: float) -> BoxFailure | None:
    """A node that answered nobody, or to which nobody answered."""
    node = peers.cut_off(boxes, failed)
    return BoxFailure(node.t, "cut", node.box or boxes[0], cut=node) if node is not None else None


def _behind(own: Sequence[BoxFailure]) -> BoxFailure:
    """The earliest; where it tells of a worker that died, that worker; where all say the same, who began it."""
    first = own[0]
    same = alike.with_it(first, own)
    if len(same) > 1:
        source = alike.source(same)
        if source is not None:
            return source[0]._replace(told_by=source[1], detail=source[2])
        return first._replace(alike=tuple(failure.rank for failure in same))
    named = _WORKER.search(first.raised.message) if first.raised is not None else None
    pids = {int(pid) for pid in re.findall(r"\d+", named[1])} if named else set()
    for worker in first.box.processes:
        if worker.pid in pids and worker.left_at:  # it has called os._exit(), which is no failure by its status
            at = min(worker.gone or first.t, first.t - _ALONE_S)
            return BoxFailure(at, "exit", first.box, worker)
    return next((failure for failure in own if failure.process is not None and failure.process.pid in pids), first)


def _from_outside(boxes: Sequence[Box], failures: Sequence[BoxFailure]) -> BoxFailure | None:
    """A signal to the whole job, of which what ended soon after died."""
    ends = [failure.t for failure in failures if failure.kind not in ("stalled", "vanished")]
    for box in boxes:
        for got in box.signals:
            last = box.ended or max(box.last, got.t)  # all may have been killed before the next look
            after = [t for t in [*ends, last] if got.t - 0.5 <= t <= got.t + _OUTSIDE_S]
            if after and got.number not in (signal.SIGCONT, signal.SIGWINCH):
                return BoxFailure(got.t - 0.5, "outside", box, number=got.number)
    return None


def _launcher_was_ended(boxes: Sequence[Box]) -> BoxFailure | None:
    """A signal to torchrun that did not come through the wrapper: `timeout` within COMMAND, or somebody's kill."""
    got = [
        BoxFailure(_sent_by(box, process), "outside", box, process, number=signal.SIGTERM)
        for box in boxes
        for process in box.processes
        if _TIMEOUT.search(process.command.partition(" ")[0])
        and os.WIFEXITED(process.status or 0)
        and os.WEXITSTATUS(process.status or 0) in _RAN_OUT
    ]
    got += [
        BoxFailure(raised.t, "outside", box, raised=raised, number=int(named[1]))
        for box in boxes
        for raised in box.raised
        if raised.type == "SignalException" and (named := _GOT_SIGNAL.search(raised.message))
    ]
    return min(got, key=lambda failure: failure.t, default=None)


def _sent_by(box: Box, timeout: BoxProcess) -> float:
    """When `timeout` sent its signal: just before the first process below it ended by it."""
    ends = [
        process.gone
        for process in box.processes
        if process.gone is not None and (process.status or 0) & 0x7F in (*_POLITE, signal.SIGKILL)
    ]
    ends += [raised.t for raised in box.raised if raised.type == "SignalException"]
    return min([*ends, timeout.gone or box.ended or box.last]) - _ALONE_S


def _signalled(failures: Sequence[BoxFailure]) -> BoxFailure | None:
    """A rank that SIGTERM or its like ended before any other had ended: launchers send it only after that."""
    ranks = [failure for failure in failures if failure.process is not None and failure.process.role == "rank"]
    ends = sorted(
        (failure.process.gone, at) for at, failure in enumerate(ranks) if failure.process and failure.process.gone
    )
    complained = any(rank.raised is not None for rank in ranks)
    if not ends or not complained or ranks[ends[0][1]].kind != "killed":
        return None
    alone = len(ends) < 2 or ends[1][0] - ends[0][0] > _ALONE_S
    return ranks[ends[0][1]] if alone else None


def _left(boxes: Sequence[Box], failures: Sequence[BoxFailure]) -> BoxFailure | None:
    """A rank that ended with exit code 0 before any other lost its peer."""
    gone = [
        BoxFailure(t, "left", box, process)
        for box in boxes
        for process in box.processes
        if process.role == "rank" and (t := _left_at(process)) is not None and t < failures[0].t + _SEEN_S
    ]
    return min(gone, key=lambda failure: failure.t) if gone else None


def _left_at(process: BoxProcess) -> float | None:
    """When it ended with exit code 0: as it told itself, else as it was seen, which is later on a busy machine."""
    return process.left or (process.gone if process.status == 0 else None)


def _absent(boxes: Sequence[Box], failures: Sequence[BoxFailure]) -> BoxFailure | None:
    """A rank that was there and alone did not complain: the others had waited for it."""
    complained = {failure.rank for failure in failures if failure.raised is not None}
    quiet = [
        (box, candidate)
        for box in boxes
        for candidate in box.processes
        if candidate.role == "rank"
        and candidate.rank not in complained
        and (candidate.gone is None or candidate.gone >= failures[0].t)
    ]
    ranks = {candidate.rank for _, candidate in quiet}
    if len(ranks) != 1 or not complained:
        return None
    box, process = quiet[0]
    messages = [failure.raised.message for failure in failures if failure.raised is not None]
    lost = all(map(_CLOSED.search, messages)) and not any(map(_TIME.search, messages))
    lives = process.gone is None or process.gone > failures[0].t + _ALONE_S
    closed = "closed its connections to the others, and lived on" if lost and lives else ""
    return BoxFailure(failures[0].t, "absent", box, process, detail=closed)


def _apart(failures: Sequence[BoxFailure]) -> BoxFailure | None:
    """Of ranks that all ran into their timeout the one that had called from another line than the others."""
    raised = {failure.rank: failure for failure in failures if failure.raised is not None and failure.rank >= 0}
    rank = odd_one({rank: frames(failure) for rank, failure in raised.items()})
    return raised[rank]._replace(kind="apart") if rank is not None else None


def odd_one(stacks: dict[int, list[str]]) -> int | None:
    """The only rank whose stack differs, where two and more others are in the same place."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, stack in stacks.items():
        groups.setdefault(tuple(stack), []).append(rank)
    sizes = sorted(groups.values(), key=len)
    return (
        sizes[0][0]
        if len(sizes) == 2 and len(sizes[0]) == 1 and len(sizes[1]) > 1 and all(stacks.values())
        else None
    )


def odd_at_stall(boxes: Sequence[Box]) -> tuple[Box, BoxProcess] | None:
    """The rank that is elsewhere than all others while the job stalls."""
    ranks = {process.rank: (box, process) for box in boxes for process in box.processes if process.role == "rank"}
    stopped = {
        rank: [f"{process.state} {process.wchan}"] for rank, (_, process) in ranks.items() if is_stopped(process)
    }
    if len(stopped) == 1 and max(box.world for box in boxes) > 1:  # whatever is known of the others
        return ranks[next(iter(stopped))]
    rank = odd_one({rank: stopped.get(rank) or own_frames(process.stack) for rank, (_, process) in ranks.items()})
    if rank is None:  # in different calls, one of them in none
        away = [at for at, (_, process) in ranks.items() if not _COLLECTIVE.search("\n".join(process.stack))]
        known = len(ranks) > 1 and all(process.stack for _, process in ranks.values())
        rank = away[0] if len(away) == 1 and known else None
    return ranks[rank] if rank is not None else None

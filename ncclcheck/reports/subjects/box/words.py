"""How the end of a job is told: who, when, what followed."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from datetime import datetime, timezone

from ncclcheck.probes.facts import Box, BoxProcess, Cluster
from ncclcheck.reports.judgement.findings import Evidence, Remedy, Where, seen, you
from ncclcheck.reports.subjects.box import failure, first, senders, threads, waiting
from ncclcheck.reports.subjects.box.failure import BoxFailure
from ncclcheck.reports.subjects.box.waiting import WaitingFor
from ncclcheck.reports.text.words.fold import fold_ranks
from ncclcheck.reports.text.words.visible import in_line

THEN = "then"  # the source of what came after the first failure: the page gives it a line more
_SILENT = ("exit", "left", "killed", "crashed", "absent", "memory")  # what it printed may be all that it said
# events that followed, characters of each, ranks with their line: chosen, each is one line of evidence
_MOST_THEN, _SHORT, _MOST_STACKS = 3, 60, 4
_SHELL = re.compile(r"^\S*\b(?:ba|da|z|k)?sh\b|python|torchrun|accelerate|deepspeed|launch")
_MOST_PLACES = 3  # that a heading names: chosen, two lines
_LIMITS_S = 10.0  # chosen: between an exception and the watcher's look at its process
_WRITES = re.compile(r"(?i)file too large|EFBIG|write|iostream|unexpected pos|SIGXFSZ|PytorchStreamWriter")
_NEAR_S = 30.0  # chosen: between a disk's least room, as the watcher saw it, and what failed on it
_FULL = 64 * 2**20  # bytes of room below which a disk is told of: less than a small checkpoint


def where(fault: BoxFailure) -> Where:
    """Node and rank."""
    return Where(node=fault.host, rank=fault.rank if fault.rank >= 0 else None)


def heading(fault: BoxFailure, waits: WaitingFor | None = None) -> str:
    """Who did what. waits: what the process of a stall waits for."""
    if fault.kind == "stalled" and fault.process is not None:
        return f"the job stalled: {fault.who} {_stalls(fault, fault.process, waits)}"
    if fault.kind == "unmet":
        return f"the ranks did not meet: {fault.detail}"
    if fault.kind in ("outside", "stalled"):
        return failure.what(fault) + (_places(fault.box) if fault.kind == "stalled" else senders.words(fault))
    if fault.kind in ("vanished", "cut"):
        return (
            f"{fault.host}: {failure.what(fault)}"
            if fault.kind == "vanished"
            else f"{fault.host} {failure.what(fault)}"
        )
    if fault.kind == "gpu":
        return f"{fault.who}: {failure.what(fault)}"
    if fault.kind == "raised":
        full = _full(fault)
        return f"{fault.who}{f' could not write, {full}' if full else ''}: {failure.what(fault)}"
    return f"{fault.who} {failure.what(fault)}{senders.words(fault)}"


def _full(fault: BoxFailure) -> str:
    """The disk that had no room as it wrote: what torch says then is of positions in a file."""
    told = f"{failure.what(fault)} {fault.raised.cause if fault.raised is not None else ''}"
    if not _WRITES.search(told) or "No space" in told:
        return ""
    near = [room for room in fault.box.rooms if room.free < _FULL and abs(room.t - fault.t) < _NEAR_S]
    if not near:
        return ""
    least = min(near, key=lambda room: room.free)
    return f"for the disk of {least.folder} is full ({least.free / 2**20:.0f} MiB were left)"


def _stalls(fault: BoxFailure, process: BoxProcess, waits: WaitingFor | None) -> str:
    if failure.is_stopped(process):
        return "is stopped"
    calls = failure.called(process.stack)
    at = f" in {failure.short(place(fault))}{f', which calls {calls}' if calls else ''}" if place(fault) else ""
    if fault.detail:
        return f"{fault.detail}{at}"
    if waits is not None and waits.words:
        return f"waits {waits.words}{'' if waits.line else at}"
    return f"is elsewhere than all others{f',{at}' if at else ''}"


def _places(box: Box) -> str:
    """Where ranks are that are not all in one place, and none of which is alone apart from all others."""
    groups: dict[str, list[int]] = {}
    for process in box.processes:
        if process.role == "rank" and process.stack and process.state not in ("", "Z", "X"):
            groups.setdefault(failure.own_frames(process.stack)[0], []).append(process.rank)
    if len(groups) == 1:
        return _one_place(box, *groups.items())
    if not 1 < len(groups) <= _MOST_PLACES:
        return ""
    places = [f"{fold_ranks(ranks)} in {failure.short(at)}" for at, ranks in groups.items()]
    return f": ranks wait in different places, {', '.join(places)}"


def _one_place(box: Box, at: tuple[str, list[int]]) -> str:
    """All in the same line, and in the same call of torch: each waits for another one."""
    calls = {
        failure.called(process.stack) for process in box.processes if process.role == "rank" and process.stack
    }
    call = next(iter(calls)) if len(calls) == 1 else ""
    if len(at[1]) < 2 or not call:
        return ""
    return f": {fold_ranks(at[1])} are all in {failure.short(at[0])}, which calls {call}"


def waits(cluster: Cluster, fault: BoxFailure) -> WaitingFor | None:
    """What the process of a stall waits for."""
    return (
        waiting.of(cluster, fault.box, fault.process)
        if fault.kind == "stalled" and fault.process is not None
        else None
    )


def evidence(cluster: Cluster, fault: BoxFailure) -> list[Evidence]:
    """When and where it was, what else is known of it, what followed."""
    all_evidence = [seen("first", f"{clock(fault.t)} UTC, {fault.t - fault.box.started:.1f} s after the start")]
    if fault.kind != "outside" and (at := place(fault)):
        all_evidence.append(seen("line", at))
    if fault.raised is not None and fault.kind == "apart":
        all_evidence.append(seen("raised", failure.in_words(fault.raised)))
    if fault.raised is not None and fault.raised.printed:
        all_evidence.append(
            seen("read in", "the job's output: its Python ran without what the box puts into it (-I, -E, -S)")
        )
    if fault.raised is not None and fault.raised.cause:
        all_evidence.append(seen("raised from", fault.raised.cause[:200]))
    if fault.alike and (spread := _spread(cluster, fault)):
        all_evidence.append(seen("not finite", spread))
    all_evidence += [seen("process", _process(fault.process))] if fault.process is not None else []
    if (waited := waits(cluster, fault)) is not None and waited.line:
        all_evidence.append(seen("its worker", waited.line))
    if fault.process is not None and fault.process.printed and fault.kind in _SILENT:
        all_evidence.append(seen("printed last", in_line(fault.process.printed[-1])[:200]))
    if fault.process is not None and fault.process.caught and fault.kind == "left":
        all_evidence.append(seen("had caught", in_line(fault.process.caught)[:200]))
    if fault.process is not None and fault.process.left_at and fault.kind in ("left", "exit"):
        all_evidence.append(seen("left by", failure.own_frames(fault.process.left_at)[0]))
    all_evidence += _of_kind(cluster, fault) + _of_threads(cluster, fault) + _beside(fault)
    then = first.end(cluster).then
    if then:
        more = f"; and {len(then) - _MOST_THEN} more" if len(then) > _MOST_THEN else ""
        words = [f"{max(0.0, other.t - fault.t):+.1f} s {_short(other)}" for other in then[:_MOST_THEN]]
        all_evidence.append(seen(THEN, "; ".join(words) + more))
    return all_evidence


def remedies(cluster: Cluster, fault: BoxFailure) -> list[Remedy]:
    """Of a stall."""
    waited, at = waits(cluster, fault), place(fault)
    if fault.process is not None and fault.process.lock:
        look = "If no process builds there any more, as after one that was killed, remove the lock file."
        return [you(look, f"rm -- {shlex.quote(fault.process.lock)}")]
    if waited is not None and waited.lock:
        return [
            you(
                "A process that is forked while a thread holds a lock never gets it: start workers by "
                'multiprocessing_context="forkserver" or "spawn", or before any thread.'
            ),
            you(f"Look who holds the lock of {waited.line}."),
        ]
    if waited is not None and waited.line:
        return [you(f"Look at {waited.line}.")]
    if waited is not None and "answer" in waited.words:
        return [you(f"Look at {at or 'that connection'}; give it a timeout, and look after the other end.")]
    return [you(f"Look at {at}." if at else "See where each process waits, and what HNG says.")]


def _of_threads(cluster: Cluster, fault: BoxFailure) -> list[Evidence]:
    """A thread of the same process that an exception had ended before."""
    died = threads.of(cluster.measurements.boxes, fault.process, fault.t)
    if died is None or died == fault.raised:
        return []
    at = next(iter(failure.own_frames(died.frames[::-1])), "")
    return [
        seen(
            "its thread",
            f"{died.thread} had been ended by {failure.in_words(died, 120)}{f' at {at}' if at else ''}",
        )
    ]


def _short(fault: BoxFailure) -> str:
    words = heading(fault)
    return words if len(words) <= _SHORT else f"{words[:_SHORT]} ..."


def _spread(cluster: Cluster, fault: BoxFailure) -> str:
    """What was NaN or infinite on all ranks that failed alike: none of them is known to have begun it."""
    names = [
        {*raised.not_finite}
        for box in cluster.measurements.boxes
        for raised in box.raised
        if raised.rank in fault.alike and not raised.thread
    ]
    common = sorted(set.intersection(*names)) if len(names) == len(fault.alike) else []
    if not common:
        return ""
    return f"{', '.join(common)} on each of them: by then it was spread, and where it began is not in the box"


def _process(process: BoxProcess) -> str:
    facts = [f"pid {process.pid}"]
    facts += [f"at most {process.rss_most / 2**30:.2f} GiB"] if process.rss_most else []
    facts += [f"no CPU time for {process.idle_s:.0f} s"] if process.idle_s >= 3 else []
    facts += ["stopped"] if failure.is_stopped(process) else []
    facts += [f"waits in {process.wchan}"] if process.wchan else []
    return ", ".join(facts)


def _of_kind(cluster: Cluster, fault: BoxFailure) -> list[Evidence]:
    if fault.oom is not None:
        counted = ", ".join(f"{by} +{count}" for by, count in fault.oom.by.items())
        limit = f"; its limit is {fault.oom.limit / 2**30:.2f} GiB" if fault.oom.limit else ""
        return [seen("oom_kill", counted + limit)]
    if fault.cut is not None:
        return [
            seen("no answer", f"to what {name} and {fault.cut.name} sent each other") for name in fault.cut.by[:4]
        ]
    if fault.kind == "unmet" and (idle := _beside_ranks(fault)):
        return [seen("waits beside them", idle)]
    if fault.kind == "raised" and fault.detail:
        return [seen(fault.told_by, in_line(fault.detail)[:200])]
    tell = {"crashed": _of_crash, "outside": _of_signal, "stalled": _of_stall, "vanished": _of_silence}.get(
        fault.kind
    )
    return tell(cluster, fault) if tell is not None else []


def _beside_ranks(fault: BoxFailure) -> str:
    """Programs of COMMAND's own script that were there too: one of them may hold up the rank that did not come."""
    there = [
        process
        for process in fault.box.processes
        if process.role != "root"
        and process.rank < 0
        and process.born <= fault.t
        and (process.gone is None or process.gone > fault.t)
    ]
    named = [
        f"{process.command[:60]} (pid {process.pid})" for process in there if not _SHELL.search(process.command)
    ]
    return ", ".join(named[:_MOST_THEN])


def _of_signal(_: Cluster, fault: BoxFailure) -> list[Evidence]:
    if fault.sent is not None:
        to = f"process {fault.raised.pid}, the launcher" if fault.raised is not None else "the job"
        sender = [seen("sent by", f"{senders.named(fault)}, to {to}")]
        return sender + ([seen("line", senders.at(fault))] if senders.at(fault) else [])
    if fault.process is not None:
        return [
            seen(
                "sent by", f"timeout (pid {fault.process.pid}), whose time was over: COMMAND has it before the job"
            )
        ]
    if fault.raised is not None:
        by = f"perhaps by {fault.maybe}" if fault.maybe else "by a process that is not known"
        return [seen("sent to", f"the launcher (pid {fault.raised.pid}), {by}")]
    got = next(s for s in fault.box.signals if s.number == fault.number)
    by = f"{got.by} (pid {got.sender})" if got.sender else "the kernel (a terminal)"
    return [seen("sent by", f"{by}, {'to all of the process group' if got.of_group else 'to the wrapper alone'}")]


def _of_stall(cluster: Cluster, fault: BoxFailure) -> list[Evidence]:
    stall = max((stall for box in cluster.measurements.boxes for stall in box.stalls), key=lambda stall: stall.t)
    all_evidence = [seen("silent", f"{stall.silent:.0f} s, more than {stall.limit:.0f} s")]
    if fault.process is not None and fault.process.threads:
        all_evidence.append(
            seen("its other threads", "; ".join(dict.fromkeys(fault.process.threads[:_MOST_STACKS])))
        )
    lines = [(p, failure.own_frames(p.stack)[0]) for p in first.principals(fault.box) if p.stack][:_MOST_STACKS]
    all_evidence += [seen(f"rank {p.rank}" if p.rank >= 0 else f"pid {p.pid}", line) for p, line in lines]
    waited = Counter(f"{p.state} {p.wchan}".strip() for p in first.principals(fault.box) if p.state)
    return [*all_evidence, seen("waits", ", ".join(f"{count} x {how}" for how, count in waited.most_common(3)))]


def _of_silence(cluster: Cluster, fault: BoxFailure) -> list[Evidence]:
    saw = [box.host for box in cluster.measurements.boxes if fault.box.host in box.silent]
    all_evidence = [seen("no sign of it seen by", ", ".join(saw[:4]))] if saw else []
    return [seen("last written", f"{clock(fault.box.last)} UTC"), *all_evidence]


def _of_crash(cluster: Cluster, _: BoxFailure) -> list[Evidence]:
    """Where the others were when they lost it."""
    places = Counter(at for other in first.end(cluster).then if other.rank >= 0 and (at := place(other)))
    return [seen("the others", f"{count} x at {at}") for at, count in places.most_common(2)]


def _beside(fault: BoxFailure) -> list[Evidence]:
    """What the node itself told in that time."""
    all_evidence = [seen("kernel", row.text) for row in failure.by_kernel(fault.box) if abs(row.t - fault.t) < 10][
        :2
    ]
    return (
        all_evidence
        + _limits(fault)
        + [
            seen("room", f"{room.free / 2**20:.0f} MiB were left in {room.folder}")
            for room in fault.box.rooms
            if room.free < _FULL
        ][:1]
    )


def _limits(fault: BoxFailure) -> list[Evidence]:
    """Of the process that failed, which its exception may come of; a file's size where it was about writing."""
    words = failure.what(fault)
    pid = fault.process.pid if fault.process is not None else fault.raised.pid if fault.raised is not None else 0
    own = [limit.text for limit in fault.box.limits if limit.pid == pid and abs(limit.t - fault.t) < _LIMITS_S]
    return [seen("limit", text) for text in own if "(ulimit -f)" not in text or _WRITES.search(words)][:2]


def place(fault: BoxFailure) -> str:
    """The line of the user's own program, `train.py:12 in step`; empty where nobody knows."""
    return next(iter(failure.frames(fault)), "")


def clock(t: float) -> str:
    """`09:12:03.120`."""
    return datetime.fromtimestamp(t, timezone.utc).strftime("%H:%M:%S.%f")[:-3]

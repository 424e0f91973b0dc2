"""LOG121, LOG122: what NCCL's RAS and its progress monitor say of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, you
from ncclcheck.reports.subjects.live.nccl_ras import membership
from ncclcheck.reports.subjects.logs.ending import died
from ncclcheck.reports.subjects.logs.logged import cause, events_of, in_order, log_rule, where
from ncclcheck.reports.text.words.fold import fold_ranks, many

_DOES = you("Confirm: see what it does, on its node; ask RAS once more, for a rank that is only late catches up.",
            "py-spy dump --pid PID", "echo 'verbose status' | nc localhost 28028")  # fmt: skip


@log_rule("LOG121", "RAS sees all ranks responding and at the same operation")
def ras_finds_all(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL's RAS reports ranks that have launched fewer operations than the others, that left their communicator, or
    that do not answer.

    ## Why it matters
    It is the only witness of a hang from within NCCL: the rank that is behind skipped a collective or is still at
    other work; the one that does not answer was stopped or is dead. All others wait for it.

    ## Seen as
    hangs

    ## How we know
    The status that RAS prints (`verbose status`): `Rank 3 has launched up to operation 1` where others have
    launched more, `has status NOCOMM` or `ABORT`, `Missing communicator data`, `considered dead`; seen with
    2.26.5 and 2.27.7. Counts of a running job may differ for a moment: they are a warning, unless the log shows
    of an end or of a watchdog that gave up. `RAS declaring peer ... as DEAD` at the end of a job may only mean
    that it left first.

    ## Fix
    - **you** look what the named process does (py-spy); call every collective on all ranks.
    - **admin** a process that does not answer: look at its node.

    ## Source
    NCCL user guide, RAS; NVIDIA/nccl src/ras/client_support.cc.
    """
    yield from _behind(logs)
    yield from _left(logs)
    yield from _gone(logs)


def _behind(logs: Logs) -> Iterator[Finding]:
    counts = events_of(logs, "ras-count")
    most = max((int(count.fields["operation"]) for count in counts), default=0)
    late = [count for count in counts if int(count.fields["operation"]) < most]
    if not late:
        return
    named = [*(event for event in late if event.rank is not None), *_listed_after(logs, late)]
    who = fold_ranks(sorted({event.rank for event in named if event.rank is not None})) if named else "some ranks"
    at = int(late[0].fields["operation"])
    yield cause(
        [*late, *(count for count in counts if count not in late)],
        f"{who} launched {many(at, 'operation')} of a communicator where others launched {most}",
        why="The others wait in the operation that is missing; a rank that is only late catches up.",
        owner="job",
        state=State.FAIL if died(logs) else State.WARN,
        at=where(named[0]) if named else Where(),
        fix=[_DOES, you("Call every collective on all ranks.")],
    )


def _listed_after(logs: Logs, late: list[LogEvent]) -> list[LogEvent]:
    """The ranks below `2 ranks have launched up to operation 40`."""
    heads = [event for event in late if event.fields.get("ranks")]
    listed = events_of(logs, "ras-process")
    return [
        event
        for head in heads
        for event in listed
        if event.file == head.file
        and 0 < event.line - head.line <= int(head.fields["ranks"])
        and event.rank is not None
    ]


def _left(logs: Logs) -> Iterator[Finding]:
    if left := events_of(logs, "ras-status"):
        status = left[0].fields["status"]
        ranks = sorted({event.rank for event in left if event.rank is not None})
        what, why = membership(status, several=len(ranks) > 1)
        yield cause(
            left,
            f"{fold_ranks(ranks)} {what} (RAS: {status})",
            why=why,
            owner="job",
            state=State.FAIL if died(logs) or status in ("NOCOMM", "ABORT") else State.WARN,
            at=where(left[0]),
            fix=[_DOES],
        )


def _gone(logs: Logs) -> Iterator[Finding]:
    missing, dead = events_of(logs, "ras-missing"), events_of(logs, "ras-peer-dead")
    if not missing and not dead:
        return
    named = [event for event in events_of(logs, "ras-process") if missing]
    first = next((event for event in named if event.rank is not None), next(iter(named or dead), None))
    host = (first.host or first.fields.get("node", "")) if first else ""
    pid = (first.fields.get("pid") or first.fields.get("process", "")) if first else ""
    who = (f"process {pid}" if pid else "a process") + (f" on {host}" if host else "")
    yield cause(
        [*missing, *named[:1], *dead] if missing else in_order(dead),
        f"{who} does not answer RAS any more: it is dead, or stopped",
        why="Its ranks take part in nothing, and the others wait for them.",
        owner="job",
        state=State.FAIL if missing or died(logs) else State.WARN,
        at=Where(node=host or None, rank=first.rank if first else None),
        fix=[
            you("Confirm on its node: whether it is there, and its state (T is stopped).",
                f"ps -o pid,stat,wchan:30,cmd -p {pid or 'PID'}"),
            admin("Where it is gone, look whether the kernel ended it.", "dmesg -T | grep -iE 'oom|xid|killed'"),
        ],
    )  # fmt: skip


@log_rule("LOG122", "NCCL's progress monitor reads every GPU's counters", worst=State.WARN, symptom=True)
def progress_is_read(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL's progress monitor (2.32, NCCL_PROGRESS_COUNTERS=1) cannot copy its counters from a GPU.

    ## Why it matters
    The copy needs only a moment of the GPU. One that is pending for minutes means that the GPU does nothing
    more, or that a kernel keeps its copy engines; the counters that RAS then shows are old.

    ## Seen as
    setting without effect

    ## How we know
    `counter DMA still pending after 600.2s (cudaDev 3, ...)`, after
    NCCL_PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC; or `counter DMA launch failed`, with CUDA's error. By the
    strings of NCCL 2.32; no job with it was run here.

    ## Fix
    - **admin** look at that GPU: `nvidia-smi`, `dmesg | grep -i xid`.
    - **you** see what its process does (py-spy, cuda-gdb).

    ## Source
    NCCL user guide of 2.32, RAS and NCCL_PROGRESS_COUNTERS.
    """
    if stuck := in_order(events_of(logs, "progress-stuck")):
        fields = stuck[0].fields
        gpu, seconds = fields.get("gpu") or fields.get("device", ""), fields.get("seconds", "")
        how = f"have not been read for {float(seconds):.0f} s" if seconds else "cannot be read"
        yield cause(
            stuck,
            f"the progress counters of GPU {gpu} {how}",
            why="A GPU that cannot even copy a counter does nothing more.",
            owner="node",
            state=State.WARN,
            fix=[
                admin("Look at the GPU.", f"nvidia-smi -i {gpu}", "dmesg -T | grep -i xid"),
                you("See what its process does.", "py-spy dump --pid PID"),
            ],
        )

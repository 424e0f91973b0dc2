"""BOX001 to BOX010 and BOX012: what came first when a watched job died or stalled."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Callable, Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, admin, fail, you
from ncclcheck.reports.judgement.rule import Body, NothingToJudge, rule
from ncclcheck.reports.subjects.box import first, senders, words
from ncclcheck.reports.subjects.box.failure import BoxFailure, Kind, own_frames

_SIZES = re.compile(r"op\.preamble\.length|doesn't match expected size")  # gloo's, of a message that came


def box_rule(
    code: str, title: str, *kinds: Kind
) -> Callable[[Callable[[Cluster, BoxFailure], Iterator[Finding]]], Body]:
    """Make a body that wants what came first a rule; skipped where no box was read."""

    def register(body: Callable[[Cluster, BoxFailure], Iterator[Finding]]) -> Body:
        @functools.wraps(body)
        def wrapper(cluster: Cluster) -> Iterator[Finding]:
            if not cluster.measurements.boxes:
                raise NothingToJudge("no job was watched")
            failure = first.end(cluster).first
            if failure is not None and failure.kind in kinds:
                yield from body(cluster, failure)

        return rule(code, title, worst=State.FAIL, over="", commands=("watch",))(wrapper)

    return register


def _finding(cluster: Cluster, failure: BoxFailure, why: str, *fixes: Remedy) -> Finding:
    return fail(
        words.where(failure),
        words.heading(failure, words.waits(cluster, failure)),
        why=why,
        owner="job",
        evidence=words.evidence(cluster, failure),
        fix=[*fixes],
    )


def _look_at_sender(failure: BoxFailure) -> Remedy:
    at = senders.at(failure)
    return you(f"Look at {at}: whom it means to end." if at else f"Look why {senders.named(failure)} sends it.")


@box_rule("BOX001", "no process of the job was killed for want of memory", "memory")
def nothing_was_killed_for_memory(cluster: Cluster, failure: BoxFailure) -> Iterator[Finding]:
    """
    ## What
    The kernel killed a process of the job, because its cgroup, or the node, had no memory left.

    ## Why it matters
    The process cannot say anything any more: the others only report that it is gone.

    ## How we know
    The count `oom_kill` of the process's cgroup (memory.events) or of the node (/proc/vmstat) grew while the
    watcher saw the process end by SIGKILL.

    ## Fix
    - **you** ask for more memory (`--mem`, `resources.limits.memory`), use fewer loader workers, or hold less of
      the data set in each of them.

    ## Source
    The kernel's Documentation/admin-guide/cgroup-v2.rst, memory.events.
    """
    yield _finding(
        cluster,
        failure,
        "SIGKILL by the kernel for want of memory leaves no words of the process's own.",
        you("Give the job more host memory, or lower what it holds: fewer loader workers, one copy of the data."),
    )


@box_rule("BOX002", "no process of the job was ended by a signal that nobody in it sent", "killed")
def nothing_was_killed(cluster: Cluster, failure: BoxFailure) -> Iterator[Finding]:
    """
    ## What
    A rank, or a worker of its loader, was ended by SIGKILL or another signal, before anything else failed, and
    the kernel counted no process killed for memory.

    ## Why it matters
    Nothing in the job's own output tells it: the others report a lost connection.

    ## How we know
    The watcher read the status of the process when it ended.

    ## Fix
    - **you** find out who sent it: an operator, a script that tidies up, the scheduler, a limit (`ulimit -t`).
    - **admin** the audit log has the sender, where kill(2) is audited.

    ## Source
    signal(7); proc(5), the field exit_code of /proc/PID/stat.
    """
    if failure.sent is not None:
        yield _finding(cluster, failure, "A process of the job itself sent it.", _look_at_sender(failure))
        return
    if failure.number == signal.SIGPIPE:
        why = "It wrote into a pipe or connection without a reader; Python ignores SIGPIPE, and it did not."
        yield _finding(cluster, failure, why, you("Look what reads what it writes, and why that had ended."))
        return
    maybe = failure.maybe
    look = f"Look whether it was {maybe.partition(',')[0]}." if maybe else "Find out who sent it:"
    yield _finding(
        cluster,
        failure,
        "Who sent it was not seen; the kernel counted no process killed for want of memory at that time.",
        you(look if maybe else f"{look} an operator, a script that tidies up, a scheduler, a limit (ulimit -t)."),
        admin("Look into the kernel's log of this time.", "journalctl -k --since '10 min ago'"),
    )


@box_rule("BOX003", "no process of the job crashed", "crashed")
def nothing_crashed(cluster: Cluster, failure: BoxFailure) -> Iterator[Finding]:
    """
    ## What
    A process was ended by SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL.

    ## Why it matters
    The fault is in native code: an extension, a library, a driver, or /dev/shm that is full (SIGBUS).

    ## Seen as
    out of memory

    ## How we know
    The status of the process when it ended, and the stack that faulthandler wrote into the box.

    ## Fix
    - **you** look at the frame that is named; SIGBUS is a file in memory that was cut or whose disk failed, in a
      loader's worker most often a full /dev/shm; SIGABRT an assertion or a C++ exception whose words stand in the
      output.

    ## Source
    signal(7); docs.python.org/3/library/faulthandler.html.
    """
    if failure.process is not None and _SIZES.search(failure.process.aborted):
        yield _finding(
            cluster,
            failure,
            "It got a message of another size than it expected: ranks were in different calls, or shapes differ.",
            you("Call the same collective with the same shape and dtype on all ranks; compare the lines above."),
            you("Let torch compare each call.", "export TORCH_DISTRIBUTED_DEBUG=DETAIL"),
        )
        return
    if failure.number == signal.SIGBUS:
        yield _finding(
            cluster,
            failure,
            "SIGBUS: a file that it had in memory was cut, or its disk failed, or /dev/shm is full.",
            you("Look who writes or cuts the file while it is read, and at the line that is named."),
            you("See whether there is room, and whether its disk fails.", "df -h /dev/shm . ; dmesg | tail"),
        )
        return
    yield _finding(
        cluster,
        failure,
        "A crash is a fault in native code below the line that is named.",
        you("Look at the frame that is named, and what the process printed last; with a core: gdb PROGRAM core."),
    )


@box_rule("BOX004", "no rank raised an exception that ended it", "raised")
def nothing_was_raised(cluster: Cluster, failure: BoxFailure) -> Iterator[Finding]:
    """
    ## What
    An exception that nobody caught ended a rank, before anything else failed.

    ## Why it matters
    The others wait for it and report a lost connection or a timeout later; with many ranks that is most of what is
    printed.

    ## Seen as
    hangs

    ## How we know
    Each Python process of the job wrote the exception, the time and the rank into the box when it was raised.
    Exceptions that only say that another process is gone count where there is nothing else.

    ## Fix
    - **you** look at the line that is named; what other ranks say follows from it.

    ## Source
    docs.python.org/3/library/sys.html, sys.excepthook.
    """
    if failure.raised is not None and failure.raised.type == "RendezvousTimeoutError":
        why = "Fewer nodes came to the rendezvous in time than --nnodes wants."
        look = "Start torchrun on each node, with the same --nnodes, --rdzv-endpoint and --rdzv-id."
        yield _finding(cluster, failure, why, you(look))
        return
    if failure.raised is not None and failure.raised.port:
        whose = f" or end process {failure.raised.holder}, which has it" if failure.raised.holder else ""
        why = "A port has one listener; nothing starts before it is free."
        yield _finding(cluster, failure, why, you(f"Take another port than {failure.raised.port}{whose}."))
        return
    yield _finding(
        cluster,
        failure,
        "It was the first failure of the job; what other ranks say follows from it.",
        you(
            f"Look at {words.place(failure)}." if words.place(failure) else "Look at the exception that is named."
        ),
    )


@box_rule("BOX005", "no rank ended by itself while others went on", "exit", "left")
def nobody_left(cluster: Cluster, failure: BoxFailure) -> Iterator[Finding]:
    """
    ## What
    A rank ended with an exit code and without an exception: sys.exit(), os._exit(), or its end came before that of
    the others.

    ## Why it matters
    The others wait for it in their next collective. With exit code 0 no launcher reports anything.

    ## How we know
    The status of each rank when it ended, the exceptions that were written into the box, and the line in which it
    called sys.exit() or os._exit().

    ## Fix
    - **you** look where this rank leaves: a data set that ends earlier on it, an early return, sys.exit() in an
      option's handling. All ranks must take the same number of steps.

    ## Source
    docs.python.org/3/library/sys.html, sys.exit; pytorch.org/docs/stable/distributed.html.
    """
    if failure.process is not None and failure.process.role == "root":
        why = "It ended by itself; no process that it started failed before it."
        yield _finding(cluster, failure, why, you("Look at what it printed last; the box has a copy."))
        return
    at = next(iter(own_frames(failure.process.left_at)), "") if failure.process is not None else ""
    if failure.process is not None and failure.process.role == "helper":
        why = "Its rank waited for it without learning of its end; the others wait for the rank."
        look = f"Look at {at}." if at else "Look at what it printed last; the box has a copy."
        yield _finding(cluster, failure, why, you(look))
        return
    if at:
        why = "It left by itself; who needs it fails or waits after that."
        yield _finding(cluster, failure, why, you(f"Look at {at}: all ranks take the same number of steps."))
        return
    yield _finding(
        cluster,
        failure,
        "It left by itself, without a word; who needs it fails or waits after that.",
        you("Look where this rank calls sys.exit() or returns, or where its data end before those of the others."),
    )


@box_rule("BOX006", "all ranks came to what the others waited for", "absent", "apart", "unmet")
def nobody_is_absent(cluster: Cluster, failure: BoxFailure) -> Iterator[Finding]:
    """
    ## What
    All ranks but one report that another one is gone or did not come in time; that one was alive and said nothing.
    Or all report it, and one of them from another line of the program than the others. Or ranks did not meet:
    one of them was not started, was started twice, or was told another world size or rendezvous.

    ## Why it matters
    It held up the others until their timeout, and is named by none of them.

    ## Seen as
    hangs

    ## How we know
    Exceptions of all the others in the box, the watcher's record of this rank, and its stack where it was written.

    ## Fix
    - **you** look at the line in which it was, if its stack is shown; else what it does that the others do not.

    ## Source
    pytorch.org/docs/stable/distributed.html, on the timeout of init_process_group.
    """
    if failure.kind == "unmet":
        why = "Ranks meet once all have come to the same place, and all expect the same number of them."
        yield _finding(
            cluster,
            failure,
            why,
            you("Start all ranks, each once, with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT."),
        )
        return
    yield _finding(
        cluster,
        failure,
        "The others lost it while they worked with it."
        if failure.detail
        else "The others waited for it until their timeout.",
        you(
            f"Look at {words.place(failure)}."
            if words.place(failure)
            else "Look what this rank does that others do not."
        ),
    )


@box_rule("BOX007", "the job was not ended from outside", "outside")
def nobody_ended_it(cluster: Cluster, failure: BoxFailure) -> Iterator[Finding]:
    """
    ## What
    The job was sent SIGTERM, SIGINT or another signal, and ended after it; nothing had failed before.

    ## Why it matters
    What ranks print at such an end looks like a failure of their own.

    ## How we know
    The signal reached the wrapper of the job, with the pid of its sender.

    ## Fix
    - **you** look whether it was the time limit of the job, a preemption, `scancel`, or somebody's Ctrl-C.

    ## Source
    signal(7); Slurm's sbatch(1), --time, --signal, and KillWait of slurm.conf(5).
    """
    if failure.sent is not None:
        why = "A process of the job itself sent it; nothing had failed before."
        yield _finding(cluster, failure, why, _look_at_sender(failure))
        return
    yield _finding(
        cluster,
        failure,
        "It was ended on purpose: a time limit, a preemption, scancel, Ctrl-C; nothing had failed before.",
        you(
            "Look who ended it, and whether its time limit was long enough.",
            "sacct -j JOBID -o State,Elapsed,Timelimit",
        ),
    )


@box_rule("BOX008", "the job did not stall", "stalled")
def it_did_not_stall(cluster: Cluster, failure: BoxFailure) -> Iterator[Finding]:
    """
    ## What
    For long no process of the job printed, read, wrote or computed anything.

    ## Why it matters
    A job that waits for nothing holds its nodes until a timeout or its time limit.

    ## Seen as
    hangs

    ## How we know
    CPU time, I/O and output once a second; the limit is 60 s or three times the longest silence before. Then the
    job was looked at as `ncclcheck hang` does, which checks HNG judge.

    ## Fix
    - **you** see which rank is named by the checks HNG, and the line in which it is.

    ## Source
    proc(5).
    """
    yield _finding(
        cluster,
        failure,
        "All waited for something that did not come.",
        *words.remedies(cluster, failure),
    )


@box_rule("BOX009", "no node vanished", "vanished")
def no_node_vanished(cluster: Cluster, failure: BoxFailure) -> Iterator[Finding]:
    """
    ## What
    The record of a node breaks off, while those of the others went on.

    ## Why it matters
    A node that lost its power or its network cannot say so; the other nodes report lost connections.

    ## How we know
    Its watcher writes every second, and wrote neither an end nor anything more.

    ## Fix
    - **admin** look at the node: power, network, kernel's log.
    - **you** start the job again without it.

    ## Source
    docs/watch.md.
    """
    yield _finding(
        cluster,
        failure,
        "Its watcher writes every second and outlives the job: the node, its disk or its network is gone.",
        admin("Look at the node: power, network, its kernel's log."),
        you("Start the job again without it.", f"sbatch --exclude={failure.box.host} ..."),
    )


@box_rule("BOX010", "no node was cut off from the others", "cut")
def no_node_was_cut_off(cluster: Cluster, failure: BoxFailure) -> Iterator[Finding]:
    """
    ## What
    What was sent to a node was not answered any more, or nobody answered what it sent, until the job's timeouts
    ended it. The node itself went on.

    ## Why it matters
    Every rank reports a timeout, and none says of whom.

    ## Seen as
    hangs

    ## How we know
    The kernel of each node counts how often it sent the same data again to each address without an answer. All
    pairs of nodes that did so have this one in common.

    ## Fix
    - **admin** look at the node's cable, its port on the switch, and its firewall.
    - **you** start the job again without it.

    ## Source
    tcp(7), tcpi_retransmits; pytorch.org/docs/stable/distributed.html, on the timeout of init_process_group.
    """
    yield _finding(
        cluster,
        failure,
        "Its kernel and those of the others sent the same data again and again: the network between them is gone.",
        admin("Look at its cable, its port on the switch and its firewall."),
        you("Start the job again without it.", f"sbatch --exclude={failure.host} ..."),
    )


@box_rule("BOX012", "no GPU failed during the job", "gpu")
def no_gpu_failed(cluster: Cluster, failure: BoxFailure) -> Iterator[Finding]:
    """
    ## What
    NVIDIA's driver reported an error of the hardware of a GPU (Xid), before anything else failed.

    ## Why it matters
    The program only sees a CUDA error or hangs, and the other ranks report a timeout.

    ## Seen as
    hangs

    ## How we know
    NVML gave the event to the watcher as it came; the numbers are those of NVIDIA's Xid catalog whose immediate
    action is to reset or to replace something.

    ## Fix
    - **admin** take the node out of service and do what the catalog says for this number.
    - **you** start the job again without the node.

    ## Source
    docs.nvidia.com/deploy/xid-errors.
    """
    yield _finding(
        cluster,
        failure,
        "The driver reported it before anything else failed; what the program printed follows from it.",
        admin("Take the node out of service; NVIDIA's Xid catalog says what this number asks for."),
        you("Start the job again without it.", f"sbatch --exclude={failure.box.host} ..."),
    )

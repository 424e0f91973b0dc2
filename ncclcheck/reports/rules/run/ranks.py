"""RUN002, RUN003: the ranks of the job. One that was seen dead, stopped or absent is FAIL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, JobEnd, RankState, Run
from ncclcheck.probes.facts.run.course import STOPPED
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.failures import broken_store, cut, deadlock, lost, stopped
from ncclcheck.reports.subjects.failures.last_words import WordsMeaning
from ncclcheck.reports.subjects.failures.limits import cut_libraries, exhausted
from ncclcheck.reports.subjects.failures.limits.crowded import crowded_nodes
from ncclcheck.reports.subjects.links.reached import closed, closed_to
from ncclcheck.reports.text.words.fold import fold_names, fold_ranks, many

_LAST_STEP = "destroy_process_group"  # of the worker: nothing is measured after it


@rule(
    "RUN002",
    "every rank joined",
    worst=State.FAIL,
    over="",
    ground=("VER017", "VER018"),
    commands=("bench", "smoke"),
    unfinished=True,
)
def every_rank_joined(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    torchrun started every rank on every node, and all of them formed one world of the planned size.

    ## Why it matters
    A job whose ranks do not all join waits for minutes and then ends with an error about something else.
    When clocks differ, c10d can even form several worlds of one rank that all end with success.

    ## Seen as
    dies

    ## How we know
    Every rank reports to its node's agent when it starts, before it imports torch, and again when the process
    group exists; it compares the world size with the plan first. Exit statuses are torchrun's. After a job that
    failed the paths between nodes are tried once more: where one has closed, the host behind it is named. A
    torchrun that only says that it waited in vain is not accused, nor a rank that only says that its peer left:
    the peer that it names is. A limit is named as the cause where the signal or the words of the error are
    those of that limit, and what was read on that node (limits, memory.events, pids.events, room) agrees.

    ## Fix
    - **you**: fix what the first named rank printed. A port that is taken: choose another with
      `--rdzv-endpoint HOST:PORT` or end its holder.
    - **admin**: clocks within a second of each other on all nodes (chrony or ntpd).

    ## Source
    torchrun's documentation, section "Rendezvous"; pytorch#73656; meta-pytorch/torchtune#392 (port taken).
    """
    run = cluster.run
    if not run.started_job:
        if run.stopped_by != "deadline":
            raise NothingToJudge("no job was started")
        if run.silent:
            raise NothingToJudge("its ground failed: RUN001")
        yield unknown(
            Where(), "too little time was left before the deadline to start a job",
            why="Nothing was measured, so nothing is known of the job.", owner="job",
            evidence=[seen("--deadline", "reached before the job")], fix=[you("Give it more time: --deadline S.")],
        )  # fmt: skip
        return
    if len(run.ranks) == cluster.job.ranks and all(rank.phase != "start" for rank in run.ranks):
        return
    late = [rank for rank in run.ranks if rank.phase == "start"]
    ends = [end for end in run.ends if end.detail] or lost.wordless(run)
    if findings := _culprits(cluster, late):
        yield from findings
    elif causes := [end for end in ends if not lost.gave_up(end)]:
        yield from (_ended(cluster, end) for end in causes)
    elif ends:
        yield _gave_up(cluster, ends, late)
    else:
        yield _not_joined(cluster, late)


def _closed(cluster: Cluster, late: list[RankState]) -> list[Finding]:
    """The network was lost while the job ran: what ranks and torchrun say of it is a consequence."""
    nodes = [] if lost.ended(late) else closed_to(cluster)
    tried = seen("TCP connect", f"{len(closed(cluster))} connections passed before the job, and fail after it")
    ways = f"no connection {'to or from' if len(nodes) == 1 else 'between'} {fold_names(nodes)} passes any more"
    return [
        fail(
            Where(node=node, peer=nodes[1] if len(nodes) == 2 else None),
            f"{ways} (NET006): {_steps(late) or 'no rank had started'}",
            why="The ranks wait for data that does not arrive; what they print is a consequence.",
            owner="site",
            evidence=[tried, *(_evidence(rank) for rank in late[: lost.MOST_TOLD]), *_words(cluster.run.ends)],
            fix=[you("Fix NET006 first; the job passed every test of the network before it began.")],
        )
        for node in (nodes[:1] if len(nodes) == 2 else nodes[: lost.MOST_TOLD])
    ]


def _gave_up(cluster: Cluster, ends: list[JobEnd], late: list[RankState]) -> Finding:
    nodes = fold_names(end.node for end in ends)
    return unknown(
        Where(),
        f"torchrun on {nodes} waited for the others in vain: {'; '.join(_missing(cluster, late))}",
        why="The waiting node is not at fault: its output does not show which node is missing, or why.",
        owner="job",
        evidence=[*_words(ends), *(_evidence(rank) for rank in late[: lost.MOST_TOLD])],
        fix=[you("See whether every node is well and reaches the others, then run it again.", "ncclcheck env")],
    )


def _words(ends: list[JobEnd]) -> list[Evidence]:
    return [seen(f"torchrun on {end.node}", lost.last_line(end.detail)) for end in ends if end.detail]


def _missing(cluster: Cluster, late: list[RankState]) -> list[str]:
    never = cluster.job.ranks - len(cluster.run.ranks)
    parts = [f"{never} of {cluster.job.ranks} ranks had not started"] if never > 0 else []
    return [*parts, *([_steps(late)] if late else [])]


def _not_joined(cluster: Cluster, late: list[RankState]) -> Finding:
    what = f"when {_cut_short(cluster.run)}: {'; '.join(_missing(cluster, late))}"
    return _out_of_time(cluster, what, late, _more_time(cluster.run, "and look at the last step of each rank"))


def _out_of_time(cluster: Cluster, what: str, late: list[RankState], more: str) -> Finding:
    """Nobody is known to be lost; what holds a node back, and the others not, may be why it took so long."""
    crowded = crowded_nodes(cluster)
    text = "; ".join(f"on {node} {cause.words}" for node, cause in crowded.items())
    return unknown(
        Where(node=next(iter(crowded)) if len(crowded) == 1 else None),
        f"{what}; {text}" if text else what,
        why="Nobody was seen dead or stopped: who is at fault, if anybody, is not known.",
        evidence=[
            *(_evidence(rank) for rank in late[: lost.MOST_TOLD]),
            *(item for cause in crowded.values() for item in cause.evidence),
        ],
        fix=[*(remedy for cause in crowded.values() for remedy in cause.fix), you(more)],
    )


@rule(
    "RUN003",
    "every rank reached every collective in time",
    worst=State.FAIL,
    over="run.ranks",
    ground=("VER017", "VER018"),
    commands=("bench", "smoke"),
    unfinished=True,
)
def every_rank_reached_every_collective(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    After the world was formed, every rank went through every collective to the end of the plan.

    ## Why it matters
    A collective ends on no rank before all have entered it: one rank that is dead or stopped makes all
    others hang, and they are the ones that print errors.

    ## Seen as
    hangs

    ## How we know
    The agent of each node looks at its ranks twice a second: the state in /proc/PID/stat (T is stopped,
    gone is dead), the last announced step, a counter of progress, and torchrun's exit statuses. The first
    rank seen dead or stopped is named; errors of others that follow are consequences. A rank that lives and has
    begun fewer iterations of a collective than most others, while nothing moved for 5 s, is named as unknown: it
    may not have come, and it may wait itself for data that a dead network does not bring. Where the paths that
    passed before the job fail after it, the host behind them is named (NET006). Limits are named as in RUN002; the
    kernel's counters (oom_kill of the control group and of the host) show whether the OOM killer sent a SIGKILL.

    ## Fix
    - **you**: lift the limit that is named, in the shell that starts the job; else find what ended the named rank.
    - **admin**: `dmesg -T | grep -i -E 'killed process|oom'` on its node.

    ## Source
    proc(5) and signal(7) manual pages; pytorch/pytorch torch.distributed.elastic (exit codes of workers).
    """
    run = cluster.run
    late = [rank for rank in run.ranks if rank.phase == "world"]
    if not late:
        yield from (_held(cluster, end, warn) for end in lost.stopped_launchers(run))
        if any(rank.phase == "start" for rank in run.ranks):
            raise NothingToJudge("its ground failed: RUN002")
        return
    if lost.raised(run):
        raise NothingToJudge("its ground failed: TRN026")
    if findings := _culprits(cluster, late):
        yield from findings
    elif deadlock.is_one(run):
        yield deadlock.finding(late)
    elif behind := lost.behind(late):
        yield from (_did_not_come(rank) for rank in behind[: lost.MOST_TOLD])
    elif all(rank.last_step == _LAST_STEP for rank in late):
        yield _never_left(run, late)
    else:
        yield _out_of_time(
            cluster,
            f"when {_cut_short(run)}: {_standing(late) or _steps(late)}",
            late,
            _what_to_do(cluster, late),
        )


def _standing(late: list[RankState]) -> str:
    """Where ranks stood for long, and where they part; ranks at one place are told together."""
    still = [rank for rank in late if rank.stack and rank.since_s >= lost.STUCK_S]
    if not still:
        return ""
    places: dict[str, list[int]] = {}
    for rank in still:
        places.setdefault(" from ".join(rank.stack[:2]), []).append(rank.rank)
    text = "; ".join(f"{fold_ranks(ranks)} in {place}" for place, ranks in places.items())
    step, least = still[0].last_step, min(rank.since_s for rank in still)
    return f"{many(len(still), 'rank')} stood still for {least:.0f} s, in {step!r}: {text}"


def _what_to_do(cluster: Cluster, late: list[RankState]) -> str:
    if len({" ".join(rank.stack[:2]) for rank in late if rank.stack}) > 1:
        return "Let all ranks enter the same collectives in the same order: these part at the named lines."
    smaller = "fewer --steps" if cluster.command == "smoke" else "fewer and smaller --sizes"
    return _more_time(cluster.run, f"or {smaller}")


def _never_left(run: Run, late: list[RankState]) -> Finding:
    first = late[0]
    return unknown(
        Where(),
        f"when {_cut_short(run)}: {_steps(late)}, after the last collective had ended on all ranks",
        why="Everything planned was measured. Closing a communicator waits for NCCL's own threads and for the "
        "peers: more time or a smaller plan does not help, and a real job may hang at its end too.",
        evidence=[_evidence(rank) for rank in late[: lost.MOST_TOLD]],
        fix=[
            you(
                "Run it again, and see where a rank stands while it hangs.",
                f"py-spy dump --native --pid {first.pid}  # on {quote(first.node)}",
            )
        ],
    )


def _did_not_come(rank: RankState) -> Finding:
    return unknown(
        Where(node=rank.node, rank=rank.rank),
        lost.lag(rank),
        why="A collective ends on no rank before all have come: all others hang.",
        owner="job",
        evidence=[_evidence(rank), seen("iterations begun in this step", rank.ticks)],
        fix=[
            you("See where it stands.", f"py-spy dump --pid {rank.pid}  # on {quote(rank.node)}"),
            admin("See whether it waits in the kernel.", f"cat /proc/{rank.pid}/stack"),
        ],
    )


def _ended(cluster: Cluster, end: JobEnd) -> Finding:
    """What a limit explains, that; else what its last words mean."""
    spent = exhausted.of_end(cluster, end) or cut_libraries.of_end(cluster, end)
    known = lost.meaning(end)
    if spent:
        what, fix = f"{spent.words}; {lost.ending(cluster, end)}", [*spent.fix]
    elif known:
        what, fix = f"{lost.ending(cluster, end)}: {known.means}", known.fix
    else:
        what, fix = lost.ending(cluster, end), _fix(end)
    return fail(
        Where(node=end.node),
        what,
        why="Without this node's ranks the process group never forms, and the other nodes only wait.",
        owner=spent.owner if spent else "node",
        evidence=[
            seen(cluster.job.start, end.detail or f"exit status {end.exit}"),
            *(spent.evidence if spent else ()),
        ],
        fix=fix,
    )


def _fix(end: JobEnd) -> list[Remedy]:
    if end.exit is not None and end.exit < 0:
        return [you("Find who ended it: a person, the job system, or the kernel for want of memory (dmesg).")]
    first = "Choose another port: --rdzv-endpoint HOST:PORT." if "cannot be opened" in end.detail else "Fix that."
    return [you(f"{first} The same fails in a real job.")]


def _cut_short(run: Run) -> str:
    return "a signal ended the run" if run.stopped_by == "signal" else "the time was over"


def _more_time(run: Run, more: str) -> str:
    if run.stopped_by == "signal":
        return "Let it run to its end; the shortest run is --quick."
    return f"Give it more time (--deadline), {more}."


def _culprits(cluster: Cluster, late: list[RankState]) -> list[Finding]:
    """A torchrun that was killed, a network that was lost, ranks that are to blame: the first that there is."""
    blamed = _killed(cluster)
    if not blamed and not lost.ended(late):
        at_start = lost.stopped_launchers(cluster.run) if not late or late[0].phase == "start" else []
        blamed = [_held(cluster, end, fail) for end in at_start] or _closed(cluster, late)
        if not blamed and (broken := broken_store.lost_store(cluster)):
            blamed = [broken_store.finding(broken)]
        if not blamed and (severed := cut.cut_node(cluster, late)):
            blamed = [cut.finding(cluster, severed)]
    return blamed or [_lost(cluster, rank) for rank in _blamed(cluster, late)]


def _blamed(cluster: Cluster, late: list[RankState]) -> list[RankState]:
    """Those that were stopped or ended; else the first seen dead.

    An error of a rank's own comes last, and is a consequence where a whole node is silent, or where a defect of
    ncclcheck ended a rank.
    """
    if states := lost.ended(late):
        return states
    if cluster.run.silent:
        raise NothingToJudge("its ground failed: RUN001")
    if lost.by_defect(late):
        raise NothingToJudge("its ground failed: RUN004")
    return lost.first_dead(cluster, late)


def _killed(cluster: Cluster) -> list[Finding]:
    """A torchrun that a signal ended takes its ranks along: it is to blame, not they."""
    return [_ended(cluster, end) for end in lost.killed(cluster.run)]


def _held(cluster: Cluster, end: JobEnd, level: Callable[..., Finding]) -> Finding:
    return level(
        Where(node=end.node),
        lost.ending(cluster, end),
        why="Nobody starts, watches or ends the ranks of that node: the job does not come to its end.",
        owner="job",
        evidence=[seen(f"/proc/{end.pid}/stat on {end.node}", f"state {end.held}")],
        fix=stopped.let_go_on(end.held, end.pid),
    )


def _lost(cluster: Cluster, rank: RankState) -> Finding:
    spent = exhausted.of_rank(cluster, rank) or cut_libraries.of_rank(cluster, rank)
    known = None if spent else lost.meaning_of(rank, cluster.run)
    cause = spent.words if spent else known.means if known else ""
    return fail(
        Where(node=rank.node, rank=rank.rank),
        f"{lost.how(rank)}, {lost.where(rank)}" + (f": {cause}" if cause else ""),
        why="All other ranks wait for it: what they print afterwards is a consequence.",
        owner=spent.owner if spent else "job" if rank.error else "node",
        evidence=[
            _evidence(rank),
            *(spent.evidence if spent else ()),
            *([seen("its log", known.line)] if known and known.line not in rank.error else ()),
        ],
        fix=[*spent.fix] if spent else _mends(rank, known),
    )


def _mends(rank: RankState, known: WordsMeaning | None) -> list[Remedy]:
    if rank.proc_state in STOPPED:
        return stopped.let_go_on(rank.proc_state, rank.pid)
    if known:
        return known.fix
    if rank.error:
        return [you(f"Fix what it raised{f' at {rank.at}' if rank.at else ''}: {lost.headline(rank.error)}")]
    return [
        you("Look at what this rank printed, and whether something outside ended it."),
        admin("See whether the kernel ended it.", "dmesg -T | grep -i -E 'killed process|oom'"),
    ]


def _evidence(rank: RankState) -> Evidence:
    parts = [f"last step {rank.last_step!r}", f"no progress for {rank.since_s:.0f} s", _state(rank)]
    if rank.exit is not None:
        parts.append(f"exit status {rank.exit}")
    if rank.error:
        parts.append(rank.error)
    elif rank.stack:
        parts.append(f"in {' from '.join(rank.stack)}")
    return seen(f"rank {rank.rank} on {rank.node}, pid {rank.pid}", ", ".join(parts))


def _state(rank: RankState) -> str:
    return "frozen by its control group" if rank.proc_state == "F" else f"state {rank.proc_state}"


def _steps(late: list[RankState]) -> str:
    """Where ranks were; those in the same step are said together, for there may be thousands."""
    by_step: dict[str, list[RankState]] = {}
    for rank in late:
        by_step.setdefault(rank.last_step, []).append(rank)
    return "; ".join(_in_step(step, ranks) for step, ranks in by_step.items())


def _in_step(step: str, ranks: list[RankState]) -> str:
    longest = max(rank.since_s for rank in ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0].rank} on {ranks[0].node} was in {step!r} for {longest:.0f} s"
    nodes = fold_names(rank.node for rank in ranks)
    return f"{len(ranks)} ranks on {nodes} were in {step!r} for up to {longest:.0f} s"

"""LOG002: ranks that began NCCL's initialisation and did not come through."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ncclcheck.probes.facts import LogMember, LogProcess, Logs
from ncclcheck.reports.judgement.findings import (
    Finding,
    Where,
    fail,
    fine,
    note,
    seen,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.rules.log.first import errors
from ncclcheck.reports.subjects.logs.logged import events_of, log_rule
from ncclcheck.reports.subjects.logs.start.communicators import absent, begun, crossed, hanging, missing, numbered
from ncclcheck.reports.subjects.logs.words import meanings
from ncclcheck.reports.text.words.fold import fold_names, fold_numbers

_READ_THEN = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")  # files that describe the machine, after the ranks have met
_MOST_HANGING = 3  # communicators that are told of: chosen, where one hangs the others of its ranks follow


@log_rule("LOG002", "every rank that began NCCL initialization completed it", symptom=True)
def every_rank_came_through(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Whether every process that said "Init START" also said "Init COMPLETE".

    ## Why it matters
    NCCL's initialisation waits for all ranks. Those that began and never completed are where the job hangs or
    died; a rank that never began at all is what they wait for.

    ## Seen as
    hangs, dies

    ## How we know
    A communicator that some of its ranks began, none completed, and after which nothing goes on, by its commId:
    the ranks that never began it are named, also where all came through another one before.
    Lines that hold nothing but starts are an excerpt, and a note: they tell of no end at all.
    Where some ranks came through and nothing shows a failure it is a note: lines of the others are missing.
    A rank that never comes and packets that are dropped leave no line at all, and RAS knows nothing of a job
    before its ranks have met (seen with 2.26 and 2.27).
    NCCL's lines at `NCCL_DEBUG=INFO`: the start is logged since 2.18.3, the end by all versions. Ranks of which no
    line was given are listed: in a job that came through they only wrote elsewhere, in one that did not they are
    the first to look for.

    ## Fix
    - **you** look whether the missing ranks were started at all (world size, `--nnodes`, a node that is down),
      and what the stuck ones logged last.
    - **admin** `ncclcheck env` on all nodes shows whether each reaches every other.

    ## Source
    NVIDIA/nccl src/init.cc (2.18.3 and later); NVIDIA NCCL documentation, Troubleshooting.
    """
    began = [process for process in logs.processes if process.began]
    if not began:
        raise NothingToJudge("no line of NCCL reports its start")
    stuck = [process for process in began if process.completed < process.began]
    if not stuck:
        yield fine(Where(), f"{len(began)} processes came through NCCL's initialisation")
        return
    if not errors(logs) and (across := crossed(logs)):
        yield _crosses(across)
        return
    if len(stuck) < len(began) and not errors(logs) and (left := hanging(logs)):
        yield from map(functools.partial(_hangs, logs), left[:_MOST_HANGING])
        return
    worked = events_of(logs, "nccl-tests-ended")
    if (worked or len(stuck) < len(began)) and not errors(logs):
        others = "its results follow" if worked else "others came through"
        text = f"of {len(stuck)} processes the log does not show the end of NCCL's initialisation; {others}"
        yield note(Where(), text, why="It ends on all ranks together; their lines may have gone elsewhere.")
        return
    if not errors(logs) and sum(file.lines for file in logs.files) <= sum(process.began for process in began):
        yield note(
            Where(),
            f"{len(stuck)} processes began NCCL's initialisation; these lines hold nothing else of them",
            why="They are an excerpt: the lines that would show its end may be missing.",
        )
        return
    missing = _missing(logs)
    who = (
        fold_numbers([process.rank for process in stuck if process.rank is not None]) or f"{len(stuck)} processes"
    )
    silent = f"; not in these files: rank{'s' * (len(missing) > 1)} {fold_numbers(missing)}" if missing else ""
    early = [process for process in logs.processes if not process.began and process.version] if missing else []
    if early:
        pids = ", ".join(f"{process.host}:{process.pid}" for process in early[:3])
        silent += f"; {pids} loaded NCCL and came to no rank: it ended or waits before that"
    complains = any(event.level == "WARN" and event.sign not in meanings.HARMLESS for event in logs.events)
    silence = "" if complains or errors(logs) else " Dropped packets leave no line in NCCL's log."
    if not missing and not complains and not errors(logs) and (met := _met(logs, stuck)):
        behind = [process for process in stuck if process not in met]
        yield _after_they_met(stuck, len(began), who, behind if len(behind) < len(met) else [])
        return
    yield fail(
        Where(node=early[0].host) if len(early) == 1 else Where(node=stuck[0].host, rank=stuck[0].rank),
        f"{len(stuck)} of {len(began)} processes began NCCL's initialisation and did not come through "
        f"(rank{'s' if len(stuck) > 1 else ''} {who}){silent}",
        why=f"It waits for all ranks: one that is missing or cannot be reached stops them all.{silence}",
        owner="job",
        evidence=[seen(f"{process.file}:{process.first_line}",
                       f"{process.host}:{process.pid} began and did not complete")
                  for process in stuck[:3]],
        fix=[
            *([you(f"Read what {early[0].host}:{early[0].pid} wrote last, also without NCCL's prefix, and how it "
                   "ended: a plugin that it loads may have ended it.", f"grep -n -A3 {early[0].pid} LOG | tail")]
              if early else []),
            you("See whether the missing ranks were started, and whether all nodes reach each other.",
                "ncclcheck env --hosts HOST1,HOST2"),
        ],
    )  # fmt: skip


def _met(logs: Logs, stuck: list[LogProcess]) -> list[LogProcess]:
    """Those that told that the bootstrap's ring is closed: it takes all ranks of the communicator."""
    told = {(event.file, event.host, event.pid) for event in events_of(logs, "ranks-met")}
    return [
        process for process in stuck if process.began == 1 and (process.file, process.host, process.pid) in told
    ]


def _after_they_met(stuck: list[LogProcess], began: int, who: str, behind: list[LogProcess]) -> Finding:
    """No rank is missing: each looks at its machine, chooses channels and connects, and none came through that."""
    files = {
        f"{name}={process.settings[name]}" for process in stuck for name in _READ_THEN if name in process.settings
    }
    read = f"; what they read then is {fold_names(files)}" if files else ""
    last = ", ".join(f"rank {process.rank} ({process.host}:{process.pid})" for process in behind[:3])
    late = f"; {last} did not tell that much, and is the first to look at" if last else ""
    first = (behind or stuck)[0]
    names = sorted({setting.partition("=")[0] for setting in files})
    return fail(
        Where(node=first.host, rank=first.rank),
        f"{len(stuck)} of {began} processes began NCCL's initialisation and did not come through "
        f"(rank{'s' if len(stuck) > 1 else ''} {who}), though all had met: no rank is missing{late or read}",
        why="After that each looks at its machine, chooses its channels and connects. A process that crashes "
        "there, is killed or waits for its GPU leaves no line of NCCL.",
        owner="job",
        evidence=[seen(f"{process.file}:{process.first_line}",
                       f"{process.host}:{process.pid} began and did not complete")
                  for process in stuck[:3]],
        fix=[
            *([you("Confirm without the file: it may be of another machine, or damaged.",
                   f"unset {' '.join(names)}")] if names else []),
            you("See how each process ended, and what it printed beside NCCL's lines.",
                "dmesg -T | grep -iE 'segfault|oom|xid|killed' | tail"),
            you("Where they still run: where each of them is.", "py-spy dump --native --pid PID"),
        ],
    )  # fmt: skip


def _crosses(across: list[list[LogMember]]) -> Finding:
    """Communicators that wait for each other's ranks."""
    first, other = (numbered(members) for members in across)
    who = f"{first} in one, {other} in another"
    return fail(
        Where(),
        f"ranks wait in different communicators at once ({who}): they make them in different orders",
        why="Each start waits for all of its ranks, and each lacks one that waits in the other.",
        owner="job",
        evidence=begun([members[0] for members in across]),
        fix=[
            you("Confirm: see which communicator each rank makes.", "grep 'Init START' LOG"),
            you("Let all ranks make their communicators in one order (torch: every rank calls new_group for every "
                "group, in the same order)."),
        ],
    )  # fmt: skip


def _hangs(logs: Logs, members: list[LogMember]) -> Finding:
    """A communicator that is not the first one of all: who began it, and who did not."""
    lacking, known = missing(members), absent(logs, members)
    there = ", ".join(
        f"rank {member.rank} is {member.host}:{member.pid}, which began others" for member in known[:3]
    )
    if not known and (small := [process for process in logs.processes if process.nranks == 1 < members[0].nranks]):
        there = f"{small[0].host}:{small[0].pid} began as the one rank of a world of its own"
    never = f"; rank{'s' * (len(lacking) > 1)} {fold_numbers(lacking)} never began it" if lacking else ""
    return fail(
        Where(node=known[0].host, rank=known[0].rank) if len(known) == 1 else Where(),
        f"{numbered(members)} began a communicator and did not come through{never}"
        + (f" ({there})" if there else ""),
        why="Its start waits for all of its ranks: one that works elsewhere, ended, or makes its communicators in "
        "another order stops the others, without a line.",
        owner="job",
        evidence=begun(members),
        fix=[
            you("Confirm: see where the rank that did not come is.", "py-spy dump --pid PID"),
            you("Let all ranks of a group make it, and all groups in the same order (torch: every rank calls "
                "new_group for every group)."),
        ],
    )  # fmt: skip


def _missing(logs: Logs) -> list[int]:
    """Ranks of the world of which nothing was heard."""
    world = logs.world or 0
    return sorted({*range(min(world, 65536))} - {*logs.ranks}) if logs.ranks else []

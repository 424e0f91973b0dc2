"""LOG130, LOG131, LOG138: the Flight Recorder's dumps, whose are missing, and which groups are only victims."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, FlightRefused
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    State,
    Where,
    admin,
    fail,
    fine,
    note,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.logs.flight import words as text
from ncclcheck.reports.subjects.logs.flight.view import flight_of, recorded_again, waits_of
from ncclcheck.reports.subjects.logs.flight.waits import Waits
from ncclcheck.reports.text.words.fold import fold_ranks, many

_MOST_DUMPS = 20  # unread files told one by one, then a count: chosen, usually all have one reason


@rule("LOG130", "every Flight Recorder dump is readable", worst=State.WARN, over="")
def every_dump_was_read(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every file that looks like a dump of torch's Flight Recorder is a whole one, and asks for nothing but data.

    ## Why it matters
    A rank whose dump is damaged is as good as missing. And a pickle is a program: a file that asks for a function
    to be called would have run it in whoever loads it with `pickle.load`, torch's own analyser among them.

    ## Seen as
    wrong results

    ## How we know
    Pickles are read instruction by instruction before they are loaded; only those that build lists, dicts, texts
    and numbers are let through, and no class is looked up. Every field is checked for its type. Files of more
    than 64 MiB, and of forms other than 2.0 to 2.10, are not read. Of two dumps of one rank the newer is taken.

    ## Fix
    - **you**: copy a damaged file again from its node; a process that is killed while it writes leaves
      half a file.
    - **admin**: where a file asks for code to be run, find out who wrote it. torch never writes such a file.

    ## Source
    Python documentation, module pickle, "Restricting Globals"; torch c10d/FlightRecorder.hpp (forms up to 2.10).
    """
    flight = flight_of(cluster)
    yield from (_refused(refused) for refused in flight.refused[:_MOST_DUMPS])
    if (more := len(flight.refused) - _MOST_DUMPS) > 0:
        yield unknown(Where(), f"{more} more files could not be read", why="Their ranks are not judged.")


def _refused(dump: FlightRefused) -> Finding:
    name = dump.file.rsplit("/", 1)[-1]
    if dump.replaced:
        return note(Where(), f"{name} was left out: {dump.why}", evidence=[seen(dump.file, dump.why)])
    if not dump.hostile:
        return unknown(
            Where(), f"{name} could not be read: {dump.why}",
            why="What its rank did is not known without it.", owner="job", evidence=[seen(dump.file, dump.why)],
            fix=[you("Copy it again from its node, or omit it if it is not a dump.")],
        )  # fmt: skip
    return warn(
        Where(), f"{name} was not loaded, and is no dump of torch: {dump.why}",
        why="Loading it with pickle would run whatever it contains.", owner="site",
        evidence=[seen(dump.file, dump.why)],
        fix=[
            you("Do not open it with pickle or torchfrtrace; look at it without running it.",
                f"python -m pickletools {quote(dump.file)}"),
            admin("Find out who wrote this file.", f"stat {quote(dump.file)}"),
        ],
    )  # fmt: skip


@rule("LOG131", "every rank left a Flight Recorder dump", worst=State.FAIL, over="", unfinished=True)
def every_rank_left_a_dump(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every rank of every process group in the dumps has a dump itself.

    ## Why it matters
    The rank without a dump is often the one to look for: a process that was killed writes none, and a rank whose
    watchdog is stuck cannot. But dumps also stay behind on other nodes, because `/tmp` is each node's own.

    ## Seen as
    dies

    ## How we know
    Each dump lists the global ranks of the groups that its rank is a member of. It fails where others wait for
    the missing rank by what they wrote down. It is unknown where more ranks have no dump than have one, where
    another rank's own dump shows it to be the cause, where nothing is wrong in the dumps that there are, and where
    none could be read. It is a note where the others' dumps show something else.

    ## Fix
    - **you**: gather the files of all nodes, or let all write to a folder that they share:
      `TORCH_FR_DUMP_TEMP_FILE` (before torch 2.9: `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`). If there is none of this
      rank on its node, read the end of its output first: exit code -9 is the kernel's or the job system's doing.
    - **admin**: `dmesg -T | grep -i -E 'killed process|xid'` on its node.

    ## Source
    PyTorch tutorial "Flight Recorder for Debugging Stuck Jobs"; torch.distributed.flight_recorder.
    """
    flight = flight_of(cluster)
    if flight.refused and not flight.dumps:
        yield _none(len(flight.refused))
        return
    waits = waits_of(cluster)
    missing, dumps = waits.state.missing, waits.state.dumps
    if not missing:
        versions = ", ".join(sorted({dump.version for dump in dumps.values()}))
        yield fine(Where(), f"dumps of all {len(dumps)} ranks, form {versions}")
        return
    awaited = sorted(set(missing) & set(waits.causes))
    counted = seen("ranks in the dumps", f"{many(len(dumps), 'dump')} of {len(dumps) + len(missing)} ranks")
    if not awaited:
        yield _unawaited(waits, missing, counted)
        return
    waiting = sorted(
        {rank for absent in awaited for call in waits.awaiting(absent) for rank in waits.waiting(call)}
    )
    where, who = text.who(awaited)
    judged = fail if len(dumps) >= len(missing) and not waits.proven else unknown
    yield judged(
        where, f"{who}left no dump, and {text.waiting(waiting)} for {text.them(awaited)}",
        why="A process that was killed or is stuck writes none; or the file was not gathered from its node.",
        owner="job",
        evidence=[
            counted, *(seen("waits", text.call(waits.state, call)) for call in waits.awaiting(awaited[0])[:3])
        ],
        fix=[
            you("Look for the dump on its own node, and read the end of what the rank printed.",
                "ls -l /tmp/nccl_trace_rank_* ~/.cache/torch/*trace_rank_*"),
            recorded_again(),
            admin("See whether the kernel ended it.", "dmesg -T | grep -i -E 'killed process|xid'"),
        ],
    )  # fmt: skip


def _none(files: int) -> Finding:
    return unknown(
        Where(), "no dump could be read" if files == 1 else f"none of {files} dumps could be read",
        why="What the ranks did is not known.", owner="job",
        fix=[you("Copy the dumps again from their nodes."), recorded_again()],
    )  # fmt: skip


def _unawaited(waits: Waits, missing: list[int], evidence: Evidence) -> Finding:
    who = f"{fold_ranks(missing)} left no dump"
    if waits.standing or waits.state.stopped or waits.mismatched:
        what = f"{who}; nobody is seen to wait for {text.them(missing)}"
        return note(Where(), what, evidence=[evidence], fix=[recorded_again()])
    return unknown(
        Where(), f"{who}, and in the others' dumps every call is over",
        why=f"If the job hung or failed, look first at {text.them(missing, 'this rank', 'these ranks')}.",
        owner="job", evidence=[evidence],
        fix=[you("Gather the dumps of all nodes, and judge them together."), recorded_again()],
    )  # fmt: skip


@rule("LOG138", "no process group waits for another one", worst=State.NOTE, over="")
def no_group_waits_because_of_another(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The process groups (tensor, pipeline, data, expert parallel...) that wait only because one of their members
    stands in a call of another group.

    ## Why it matters
    One stuck rank stops them all within seconds, and the watchdog's first message often names a group that is only
    a victim. Time spent on that group's network is lost.

    ## How we know
    From each rank that waits the chain is followed: the call it stands in, the ranks that keep this call from its
    end, the calls these stand in. A group with unfinished calls is a victim where nobody stands in one of them
    that waits for a rank at the end of a chain.

    ## Fix
    - **you**: nothing here; fix what the other rules name. `ncclcheck explain LOG132` says how it is found.

    ## Source
    PyTorch tutorial "Flight Recorder for Debugging Stuck Jobs"; torch.distributed.flight_recorder (torchfrtrace).
    """
    waits = waits_of(cluster)
    victims = _victims(waits)
    if not victims:
        return
    names = [text.group(waits.state.group(index)) for index in victims]
    yield note(
        Where(),
        f"{many(len(victims), 'process group')} only waited for ranks that stand in other groups' calls",
        why="They are consequences: their own links and ranks are not at fault.",
        evidence=[seen("victims", ", ".join(names[:8]) + (" and more" if len(names) > 8 else ""))],
    )  # fmt: skip


def _victims(waits: Waits) -> list[int]:
    if not waits.standing:
        raise NothingToJudge("nobody waits")
    ends = {*waits.causes, *waits.circle()}
    calls = {call for call, _ in waits.standing.values()}
    direct = {call.group for call in calls if not waits.after[call] or ends & {*waits.after[call]}}
    unfinished = {call.group for pending in waits.state.pending.values() for call in pending}
    return sorted(unfinished - direct)

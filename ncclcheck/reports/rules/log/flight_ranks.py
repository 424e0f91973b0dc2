"""LOG132, LOG133: the ranks that all others wait for, by the Flight Recorder."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, LogEvent
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
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.job.pairing import WHY_PAIRING, confirm_pairing, pairing
from ncclcheck.reports.subjects.logs.flight import words as text
from ncclcheck.reports.subjects.logs.flight.given_up import GivenUp, given_up
from ncclcheck.reports.subjects.logs.flight.state import StoppedRank
from ncclcheck.reports.subjects.logs.flight.view import recorded_whole, waits_of
from ncclcheck.reports.subjects.logs.flight.waits import AwaitedCall, Waits
from ncclcheck.reports.subjects.logs.logged import lines
from ncclcheck.reports.text.words.fold import fold_ranks

# calls with ranks outside, and stopped ranks with evidence: chosen; the first call has the cause
_MOST, _MOST_TOLD = 8, 3


@rule("LOG132", "every rank entered the collective that the others wait in", worst=State.FAIL, over="")
def every_rank_entered(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No rank stayed outside of a collective, send or receive that others have entered and wait in.

    ## Why it matters
    A collective ends on no rank before all have entered it. The ranks that wait time out and print errors; the
    rank that did not come prints nothing, and is the one to look at.

    ## Seen as
    hangs

    ## How we know
    torch numbers the collectives of each process group. A rank whose last number is smaller than the one that
    others wait in did not enter; its own dump shows nothing that it waits for itself, so it is where the chain of
    who waits for whom ends. A rank that stands in another group's call is not named: the chain is followed from
    there. Sends are matched in their order: the side that has fewer in hand did not call. Dumps that a person asks
    of a running job are of different moments; ask twice, and believe what both show.

    A first send or receive on NCCL makes a communicator of the two, and is recorded when both have come. Where
    torch warns of a rank's first one (seen of 2.9), none is recorded and some rank has not called any, no rank is
    named: either may be the one to look at.

    gloo (torch 2.10 to 2.13) writes down a call that failed like one that ended. Where such a call needs all ranks
    and one never entered it, it failed on the others, or that rank's dump is older than theirs: the records do not
    show which, so it is unknown, and the rank is named.

    ## Fix
    - **you**: find what the rank did instead: rank-0-only work (saving, evaluation, logging), a data loader that
      waits, an exception that was caught, a branch that only some ranks take, a lock on the interpreter.
      `py-spy dump --pid PID` shows it while it hangs.
    - **admin**: on its node look for a GPU that fell out and for killed processes:
      `dmesg -T | grep -i -E 'xid|killed process'`.

    ## Source
    PyTorch tutorial "Flight Recorder for Debugging Stuck Jobs"; torch.distributed.flight_recorder (torchfrtrace);
    alan-turing-institute/autocast#386 (rank 0 alone).
    """
    waits = waits_of(cluster)
    state = waits.state
    outside: dict[AwaitedCall, list[int]] = {}
    for rank in waits.causes:
        if rank in state.dumps and rank not in state.stopped:
            outside.setdefault(_told(waits, rank), []).append(rank)
    logs = cluster.measurements.logs
    began = pairing(logs) if logs else {}
    for call, ranks in [*outside.items()][:_MOST]:
        paired = [began[rank] for rank in ranks if rank in began]
        yield _pairing(waits, call, ranks, paired) if paired else _outside(waits, call, ranks)
    yield from (_given_up(waits, split) for split in given_up(waits)[:_MOST])


def _outside(waits: Waits, call: AwaitedCall, ranks: list[int]) -> Finding:
    state, waiting = waits.state, waits.waiting(call)
    known = call.src is not None or ranks[0] in state.entered[call.group]
    did = (
        f"did not {text.entering(state, call)}"
        if known
        else f"left no trace of {text.call(state, call)}, in which"
    )
    last = [text.record(state, rank, call) for rank in ranks[:2] for call in state.dumps[rank].calls[-1:]]
    where, who = text.who(ranks)
    return fail(
        where, f"{who}{did} {text.waiting(waiting)}",
        why="The missing rank waits for nobody itself: its own program or node delayed it.",
        owner="job", evidence=[*_own(waits, call), *last, *_numbers(waits, call)], fix=_mends(waits, ranks),
    )  # fmt: skip


def _pairing(waits: Waits, call: AwaitedCall, ranks: list[int], began: list[LogEvent]) -> Finding:
    """Whoever sends or receives waits as well, or stays away after it."""
    behind, waiting = fold_ranks(ranks), text.waiting(waits.waiting(call))
    sides = fold_ranks([event.rank for event in began if event.rank is not None])
    return fail(
        Where(),
        f"{behind} did not {text.entering(waits.state, call)} {waiting}; {sides} had called a first send or "
        "receive, and none is recorded: its peer may not have called the other half",
        why=WHY_PAIRING,
        owner="job",
        evidence=[*lines(began), *_own(waits, call), *_numbers(waits, call)],
        fix=[confirm_pairing(began), *_mends(waits, ranks)],
    )


def _given_up(waits: Waits, split: GivenUp) -> Finding:
    state, behind = waits.state, fold_ranks(split.behind)
    shown = [
        text.record(state, rank, last)
        for rank in (*split.ahead[:1], *split.behind[:2])
        for last in state.dumps[rank].calls[-1:]
    ]
    where, who = text.who(split.behind)
    return unknown(
        where,
        f"{who}did not enter {text.call(state, split.call)}, which ended or failed on {fold_ranks(split.ahead)}: "
        f"{behind} stopped before it, or gave {text.them(split.behind, 'its dump', 'the dumps')} earlier",
        why="gloo writes down a failed call like one that ended. It cannot end before all have entered it: if "
        "these dumps are of the end of the job, it failed because of who did not come.",
        owner="job",
        evidence=[*shown, *_numbers(waits, split.call)],
        fix=[
            you(f"Read the end of what {behind} printed: an error there stopped the job."),
            you("If the job still runs, ask all ranks for their dumps again: who is behind both times is stuck."),
        ],
    )


def _told(waits: Waits, rank: int) -> AwaitedCall:
    """The call that most ranks wait in because of this one, collectives first."""
    return max(waits.awaiting(rank), key=lambda call: (call.src is None, len(waits.waiting(call))))


def _numbers(waits: Waits, call: AwaitedCall) -> list[Evidence]:
    if call.src is not None:
        return []
    return text.counts(waits.state, call.group, waits.state.members(call.group))


def _own(waits: Waits, call: AwaitedCall) -> list[Evidence]:
    """The record of one that waits."""
    waiting = waits.waiting(call)[:1]
    return [text.record(waits.state, rank, waits.standing[rank][1]) for rank in waiting]


def _mends(waits: Waits, ranks: list[int]) -> list[Remedy]:
    return [
        you(f"Read the end of what {fold_ranks(ranks)} printed; if it hangs again, look at where it stands.",
            "py-spy dump --pid PID"),
        *recorded_whole(waits),
        admin("Look on its node for a GPU that fell out, and for killed processes.",
              "dmesg -T | grep -i -E 'xid|killed process'"),
    ]  # fmt: skip


@rule("LOG133", "no rank's Flight Recorder stops before those of its peers", worst=State.FAIL, over="")
def no_record_stops_early(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No rank left collectives unfinished in its dump that must have ended on it, because a peer saw the end of a
    later one that needs this rank's part.

    ## Why it matters
    Such a rank's GPU or its watchdog stopped telling it what happens, before anybody else was in trouble. It may
    have entered as many calls as its peers, and then an analysis that only counts calls does not name it.

    ## How we know
    On one process group NCCL runs calls one after the other, and an all-reduce, all-gather, reduce-scatter or
    all-to-all ends nowhere before every rank has begun it. So where a peer saw call N end, this rank had ended
    N - 1. If its dump has that as unfinished, it no longer noticed: a GPU error that every later question to the
    driver returns (Xid, illegal address), a watchdog that ended with an error and wrote its dump at once, or a
    process that stood still. It is the first to look at; that its GPU is broken is likely and not proven.

    ## Fix
    - **you**: read what this rank printed first: "CUDA error", "NCCL error" and the time of it.
    - **admin**: look for Xid messages and memory errors of its GPU, and take it out of the job if there are any.

    ## Source
    torch c10d/FlightRecorder.hpp and ProcessGroupNCCL.cpp (the watchdog marks calls as completed); NVIDIA "Xid
    Errors".
    """
    waits = waits_of(cluster)
    if stopped := [*waits.state.stopped.values()]:
        yield _stopped(waits, stopped)


def _stopped(waits: Waits, stopped: list[StoppedRank]) -> Finding:
    ranks = [stopped.rank for stopped in stopped]
    where, who = text.who(ranks)
    what = "did not notice the end of calls that peers saw end and that need their part"
    if len(stopped) == 1:
        first = stopped[0]
        name = text.group(waits.state.group(first.group))
        what = f"did not notice the end of {len(first.calls)} calls of {name} that rank {first.peer} saw end"
    return fail(
        where, who + what,
        why="The GPU or the watchdog stopped before those of the peers: what others print is a consequence.",
        owner="node", evidence=[line for stopped in stopped[:_MOST_TOLD] for line in _evidence(waits, stopped)],
        fix=[
            you(f"Read what {fold_ranks(ranks)} printed first: the earliest error of the job is likely there."),
            admin("Look for errors of the GPU on the node.", "dmesg -T | grep -i xid",
                  "nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER"),
        ],
    )  # fmt: skip


def _evidence(waits: Waits, stopped: StoppedRank) -> list[Evidence]:
    state = waits.state
    awaited = [call for call in waits.awaiting(stopped.rank) if call.src is None][:1]
    return [
        text.record(state, stopped.rank, stopped.calls[0]),
        seen(
            f"rank {stopped.peer}",
            f"saw the end of call {stopped.seen} of that group, which needs rank {stopped.rank}",
        ),
        *text.counts(state, stopped.group, state.members(stopped.group)),
        *(seen(text.waiting(waits.waiting(call)), f"for it in {text.call(state, call)}") for call in awaited),
    ]

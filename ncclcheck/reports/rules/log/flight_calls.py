"""LOG134-LOG137: calls that do not fit, calls that do not end, and circles, by the Flight Recorder."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, Where, admin, fail, seen, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.logs.flight import words as text
from ncclcheck.reports.subjects.logs.flight.hang import odd_in
from ncclcheck.reports.subjects.logs.flight.match import CallMismatch, Misfit, misfits, mismatches
from ncclcheck.reports.subjects.logs.flight.state import FlightState as Dumps
from ncclcheck.reports.subjects.logs.flight.view import recorded_whole, waits_of
from ncclcheck.reports.subjects.logs.flight.waits import AwaitedCall, Waits
from ncclcheck.reports.text.words.fold import fold_ranks

_MOST_CALLS = 8  # findings of one check: chosen; what follows from the first mismatch comes after it


@rule("LOG134", "all ranks of a group call the same collectives in the same order", worst=State.FAIL, over="")
def same_collective(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    At each number in a process group's sequence all ranks called the same operation.

    ## Why it matters
    NCCL does not check it. An all-reduce that meets an all-gather hangs, or ends and leaves wrong numbers, and the
    error comes up many calls later on other ranks.

    ## Seen as
    hangs

    ## How we know
    The records of all ranks are laid side by side by group and number, and the first place where they differ is
    reported; what follows from it is not. The ranks that differ from most are named. Where they go on with what
    the others call one place later, they left out a call; one place earlier, they made one more.

    ## Fix
    - **you**: look for a branch around a collective that not all ranks take (`if rank == 0`, a condition on the
      loss, a missing last batch, parameters without gradient), at the line in the evidence.
      `TORCH_DISTRIBUTED_DEBUG=DETAIL` makes torch itself refuse such a call.

    ## Source
    PyTorch tutorial "Flight Recorder for Debugging Stuck Jobs"; torch.distributed.flight_recorder (torchfrtrace,
    COLLECTIVE_TYPE_MISMATCH); PyTorch documentation, torch.distributed, "Debugging".
    """
    waits = waits_of(cluster)
    mismatched = [mismatch for mismatch in mismatches(waits.state) if mismatch.kind == "operation"]
    yield from (_mismatch(waits, mismatch) for mismatch in mismatched[:_MOST_CALLS])


@rule("LOG135", "sizes and types agree between the ranks of a collective", worst=State.FAIL, over="")
def sizes_and_types_agree(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Where the ranks of a group make the same call, they agree on its size and data type, and a send on those of its
    receive.

    ## Why it matters
    NCCL trusts the counts it is given. Ranks that expect different amounts wait for data that never comes, or read
    beyond what was sent.

    ## How we know
    Counts of elements are compared, not shapes: NCCL knows no shapes. In an all-to-all each rank has its own
    sizes, and only the sums over all ranks must agree (not in dumps before version 2.4). Gather and scatter
    are not compared. Sends and receives are, in their order, where both sides have as many in hand.

    ## Fix
    - **you**: pad the last batch or drop it (`drop_last=True`), agree on sizes before a call on data of changing
      size, and see that every rank casts to the same type. `TORCH_DISTRIBUTED_DEBUG=DETAIL` checks shapes.

    ## Source
    torch.distributed.flight_recorder (torchfrtrace, SIZE_OR_SYNTAX_MISMATCH, COLLECTIVE_DTYPE_MISMATCH); PyTorch
    documentation, torch.distributed, "Debugging"; NVIDIA NCCL documentation, "Collective Operations".
    """
    waits = waits_of(cluster)
    mismatched = [mismatch for mismatch in mismatches(waits.state) if mismatch.kind != "operation"]
    yield from (_mismatch(waits, mismatch) for mismatch in mismatched[:_MOST_CALLS])
    yield from (_misfit(waits.state, misfit) for misfit in misfits(waits.state)[:_MOST_CALLS])


_WORDS = {
    "operation": "another operation than",
    "size": "another size than",
    "type": "another data type than",
}
_STEPS = {
    1: "; a call that the others made was skipped",
    -1: "; a call was made that the others skipped",
    0: "",
}


def _mismatch(waits: Waits, mismatch: CallMismatch) -> Finding:
    state = waits.state
    name = text.group(state.group(mismatch.group))
    variants = "; ".join(f"{fold_ranks(ranks)}: {what}" for what, ranks in [*mismatch.variants.items()][:4])
    where, who = text.who(mismatch.odd)
    if mismatch.kind == "total":
        what = f"the sizes of all-to-all {mismatch.seq} of {name} do not add up: {next(iter(mismatch.variants))}"
    elif mismatch.odd:
        what = f"{who}called {_WORDS[mismatch.kind]} the others at {mismatch.seq} of {name}{_STEPS[mismatch.step]}"
    else:
        what = f"the ranks of {name} disagree at call {mismatch.seq}: {variants}"
    shown = [ranks[0] for ranks in mismatch.variants.values()][:3]
    return fail(
        where, what,
        why="Neither NCCL nor gloo checks it: the call hangs, or returns wrong results and a later one hangs.",
        owner="job",
        evidence=[*(text.record(state, rank, mismatch.calls[rank]) for rank in shown),
                  seen(f"call {mismatch.seq} of {name}", variants)],
        fix=[
            you("Look for a branch or a size that is not the same on all ranks before this call.",
                "export TORCH_DISTRIBUTED_DEBUG=DETAIL"),
            *recorded_whole(waits),
        ],
    )  # fmt: skip


def _misfit(state: Dumps, misfit: Misfit) -> Finding:
    sent, taken = misfit.send, misfit.receive
    return fail(
        Where(rank=misfit.src, peer=f"rank {misfit.dst}"),
        f"sends {sent.elements_in} {sent.dtype_in}, and rank {misfit.dst} expects "
        f"{taken.elements_out} {taken.dtype_out}",
        why="Neither NCCL nor gloo checks it: one side waits for data that never comes, or data is cut off.",
        owner="job",
        evidence=[text.record(state, misfit.src, sent), text.record(state, misfit.dst, taken)],
        fix=[
            you("Agree on the size before the send, or pad to one size.", "export TORCH_DISTRIBUTED_DEBUG=DETAIL")
        ],
    )


@rule("LOG136", "every collective that all ranks entered completes on all of them", worst=State.FAIL, over="")
def an_entered_call_ends(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No call hangs that every rank of its group has entered in the same way, and that none of them is kept from by
    another one.

    ## Why it matters
    Then no program is late: the GPUs do not get to it, or the data does not get through. That is a matter of
    links, cards, GPUs or settings of NCCL, and reading the training code does not help.

    ## Seen as
    slow

    ## How we know
    By the dumps all ranks entered, with the same operation, size and type, and nobody stands in an earlier call.
    The few that differ are named: they alone did not see its end, have not begun it on the GPU (known where
    `TORCH_NCCL_ENABLE_TIMING=1` was set), or entered fewer calls after it than the others. Where no dump says
    which ranks are in the group (subgroups of gloo), only the call that hangs is named. Dumps that a person asks
    of a running job show such a call too: ask twice, and compare.

    ## Fix
    - **you**: read NCCL's own warnings of these ranks, and measure the same ranks: `ncclcheck bench`.
    - **admin**: look at links and errors of the nodes of these ranks (`ncclcheck env`, `dmesg`, switch counters).

    ## Source
    PyTorch tutorial "Flight Recorder for Debugging Stuck Jobs"; torch c10d/ProcessGroupNCCL.cpp; NVIDIA NCCL
    documentation, "Troubleshooting".
    """
    waits = waits_of(cluster)
    pairs = {
        (call.group, call.src, call.dst, call.seq): call for call in waits.hanging if not _is_misfit(waits, call)
    }
    yield from (_hangs(waits, call) for call in [*pairs.values()][:_MOST_CALLS])


def _is_misfit(waits: Waits, call: AwaitedCall) -> bool:
    ends = (
        {(misfit.group, misfit.src, misfit.dst) for misfit in misfits(waits.state)}
        if call.src is not None
        else set()
    )
    return (call.group, call.src, call.dst) in ends


_UNSURE = "A rank of which there is no dump may not have come; or all came, and the data does not get through."


def _hangs(waits: Waits, call: AwaitedCall) -> Finding:
    state, waiting = waits.state, waits.waiting(call)
    odd, how = odd_in(waits, call)
    unsure = call.src is None and not state.group(call.group).ranks
    return fail(
        Where(rank=odd[0] if len(odd) == 1 else None),
        f"{text.call(state, call)} hangs{'' if unsure else ' though all have entered it'}: "
        + (how if odd else text.waiting(waiting))
        + (", and no dump shows who else is in the group" if unsure else ""),
        why=_UNSURE if unsure else "No program is late here: the data does not get through, or a GPU does not "
        "get to it.",
        owner="job" if unsure else "node",
        evidence=[*(text.record(state, rank, waits.standing[rank][1]) for rank in (odd or waiting)[:2]
                    if rank in waits.standing),
                  *_came(waits, call)],
        fix=[
            you("Read NCCL's warnings of these ranks, and measure between their nodes.",
                "ncclcheck logs train.log", "ncclcheck bench --hosts HOST1,HOST2"),
            admin("Look at links and GPU errors of their nodes.", "dmesg -T | grep -i -E 'xid|link|mlx5'"),
        ],
    )  # fmt: skip


def _came(waits: Waits, call: AwaitedCall) -> list[Evidence]:
    state = waits.state
    return text.counts(state, call.group, state.members(call.group)) if call.src is None else []


@rule("LOG137", "no ranks wait for each other in a circle", worst=State.FAIL, over="")
def no_circle(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No ranks wait for each other such that none of them can go on: one in a call of one process group, another in a
    call of another group, each missing in the other's; or two that both send first.

    ## Why it matters
    Each of them has done what its own program says, so no rank looks guilty. It hangs every time, or only when the
    timing is unlucky.

    ## Seen as
    hangs

    ## How we know
    From each rank the chain is followed: the call it has waited in for longest, the ranks that did not enter that
    call, the calls these wait in. Where it comes back to where it began, and leads nowhere else, it is a circle.

    ## Fix
    - **you**: let all ranks make the calls of different groups in one order; send and receive in one batch
      (`torch.distributed.batch_isend_irecv`), or let even ranks send first and odd ranks receive first.

    ## Source
    NVIDIA NCCL documentation, "Using multiple NCCL communicators concurrently" and "Point-to-point communication";
    PyTorch documentation, torch.distributed, `batch_isend_irecv` and `new_group`.
    """
    waits = waits_of(cluster)
    circle = waits.circle()
    if not circle:
        return
    state = waits.state
    calls = list(dict.fromkeys(waits.standing[rank][0] for rank in circle))
    yield fail(
        Where(), f"{fold_ranks(circle)} wait for each other in a circle, in {len(calls)} calls",
        why="Each waits for another to come to its own call first: none of them can go on.", owner="job",
        evidence=[
            *(text.record(state, rank, waits.standing[rank][1]) for rank in circle[:2]),
            *(seen(text.waiting(waits.waiting(call)), f"in {text.call(state, call)}") for call in calls[:4]),
        ],
        fix=[you("Make the calls of all groups in the same order on all ranks; send and receive in one batch.")],
    )  # fmt: skip

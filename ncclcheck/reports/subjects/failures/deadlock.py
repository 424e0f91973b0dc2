"""Ranks that all stand still and wait for each other: where each stands, and which parted from the rest."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import RankState, Run
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, fail, seen, you
from ncclcheck.reports.text.words.fold import fold_ranks

_MOST_STACKS = 16  # ranks whose stacks are evidence: a page of text; chosen
_UNDER = ", under "  # before the condition, in a line of a stack
_GIVES_NOTHING = ("barrier", "monitored_barrier")
_INNERMOST = 3  # frames by which stacks are grouped: deeper ones differ without meaning; chosen


def is_one(run: Run) -> bool:
    """Whether the job was ended because no rank would ever have moved."""
    return run.stopped_by == "deadlock"


def parted(late: Sequence[RankState]) -> list[RankState]:
    """The ranks that took another way than the rest; nobody where none of the ways is the odd one.

    One that is in no collective keeps the others waiting; else those whose line is under a condition on the rank;
    else the fewest at one place; else those whose own code called the collective, where the others are in one of
    the training loop.
    """
    waiting = [rank for rank in late if in_collective(rank)]
    if 0 < len(waiting) < len(late):
        return [rank for rank in late if rank not in waiting]
    chosen = [rank for rank in late if condition(rank)]
    if 0 < len(chosen) < len(late):
        return chosen
    by_place = places(late)
    fewest = min(by_place.values(), key=len)
    if 2 * len(fewest) < len(late):
        return fewest
    callers = [rank for rank in late if called_at(rank)]
    return callers if 0 < len(callers) < len(late) else []


def places(late: Sequence[RankState]) -> dict[str, list[RankState]]:
    """The ranks at each place, the innermost frames first."""
    by_place: dict[str, list[RankState]] = {}
    for rank in late:
        by_place.setdefault(" from ".join(rank.stack[:_INNERMOST]) or repr(rank.last_step), []).append(rank)
    return by_place


def in_collective(rank: RankState) -> bool:
    """Whether it waits for other ranks: in a collective, or in a backward pass, which DDP communicates in."""
    return not rank.stack or (":" not in rank.stack[0] and rank.stack[0] != "__next__()")


def called_at(rank: RankState) -> str:
    """The line of the user's own that called the collective; empty where the training loop did."""
    own = rank.stack[1] if len(rank.stack) > 1 and rank.stack[0] != "backward()" else ""
    return own.partition(_UNDER)[0] if ":" in own else ""


def condition(rank: RankState) -> str:
    """That on the rank, `if rank == 0`, under which the user's code came to the collective; else empty."""
    lines = rank.stack if called_at(rank) else []
    return next((line.partition(_UNDER)[2] for line in lines if _UNDER in line), "")


def finding(late: Sequence[RankState]) -> Finding:
    """All that stand, and the one that parted."""
    odd, step = parted(late), late[0].last_step
    who = "; ".join(
        f"{fold_ranks([rank.rank for rank in ranks])} in {place}" for place, ranks in places(late).items()
    )
    first = odd[0] if odd else late[0]
    return fail(
        Where(node=first.node, rank=first.rank) if len(odd) == 1 else Where(),
        f"deadlock in {step!r}, no rank moves: {who}",
        why=_why(odd),
        owner="job",
        evidence=[
            seen(
                f"rank {state.rank} on {state.node}, pid {state.pid}",
                " from ".join(state.stack) or state.last_step,
            )
            for state in late[:_MOST_STACKS]
        ],
        fix=[_fix(odd, late)],
    )


def _why(odd: Sequence[RankState]) -> str:
    if not odd:
        return "A collective ends on no rank before all have entered it, and these ranks are in different ones."
    who = fold_ranks([state.rank for state in odd])
    if not in_collective(odd[0]):
        return f"The others wait in a collective that {who} never enters."
    if test := condition(odd[0]):
        return (
            f"{who[0].upper()}{who[1:]} alone calls {odd[0].stack[0]}, under `{test}`: it is a collective, which "
            "ends on no rank before all have entered it."
        )
    return f"{who[0].upper()}{who[1:]} entered a collective that the others never enter."


def _fix(odd: Sequence[RankState], late: Sequence[RankState]) -> Remedy:
    if not odd:
        return you("Let all ranks enter the same collectives in the same order: they part at the named lines.")
    first = odd[0]
    if not in_collective(first):
        return you(f"See {first.stack[0]}: let rank {first.rank} go on there, or let all ranks do it.")
    if line := called_at(first):
        test = condition(first)
        if first.stack[0] in _GIVES_NOTHING or not test:
            return you(f"Call {first.stack[0]} at {line} on every rank, or on none: take it out of the branch.")
        guard = next(frame for frame in first.stack if _UNDER in frame).partition(_UNDER)[0]
        where = line if guard == line else f"{line}, called at {guard}"
        return you(
            f"Let all ranks call {first.stack[0]} at {where}: only what uses its result stays under `{test}`.",
            f"result = {first.stack[0]}(...)  # on every rank\n{test}:\n    ...  # what uses it",
        )
    other = next((called_at(state) for state in late if called_at(state)), "")
    where = f" the collective at {other}" if other else " the same collectives"
    return you(f"Let rank {first.rank} enter{where} as the others do: search for a branch on its rank or data.")

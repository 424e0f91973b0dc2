"""Calls that are over on some ranks and that others never entered, where a record tells no failure from an end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ncclcheck.reports.subjects.logs.flight.state import FlightState, needs_all
from ncclcheck.reports.subjects.logs.flight.waits import AwaitedCall, Waits


@dataclass(frozen=True)
class GivenUp:
    """The first such call of a group. behind: ranks that did not enter it; ahead: those on which it is over.

    It failed on those ahead, because it ends nowhere before all have entered it; or the dumps of the ranks behind
    were asked of a running job earlier than the others, and all is well. together: those ahead are more, and came
    equally far, as they do where it failed.
    """

    call: AwaitedCall
    behind: list[int]
    ahead: list[int]
    together: bool


def given_up(waits: Waits) -> list[GivenUp]:
    """One a group at most. Ranks that wait, or that others still wait for, are told by other means."""
    state = waits.state
    over: dict[int, dict[int, str]] = defaultdict(dict)
    for dump in state.dumps.values():
        for call in dump.calls:
            if call.group in state.failed_too and call.peer is None and call.state == "completed":
                over[call.group][call.seq] = call.op
    known = {*waits.causes, *waits.standing}
    ups = (next(_in_group(state, group, calls, known), None) for group, calls in sorted(over.items()))
    return [up for up in ups if up and not waits.is_mismatched(up.call)]


def _in_group(state: FlightState, group: int, over: dict[int, str], known: set[int]) -> Iterator[GivenUp]:
    entered, ended = state.entered[group], state.ended[group]
    members = [rank for rank in state.members(group) if rank in state.dumps and rank not in known]
    for seq, op in sorted(over.items()):
        behind = [rank for rank in members if entered.get(rank, -1) < seq and _tells(state, rank, group)]
        if behind and needs_all(op):
            ahead = sorted(rank for rank, last in ended.items() if last >= seq)
            together = len(behind) < len(ahead) and len({entered[rank] for rank in ahead}) == 1
            yield GivenUp(AwaitedCall(group, seq, op), behind, ahead, together)


def _tells(state: FlightState, rank: int, group: int) -> bool:
    """A rank of whose calls the newest are of other groups may have entered what was overwritten."""
    return rank in state.entered[group] or not state.dumps[rank].entries

"""A call that all have entered and that does not end: which ranks differ from the others in it."""

from __future__ import annotations

from ncclcheck.reports.subjects.logs.flight import words as text
from ncclcheck.reports.subjects.logs.flight.state import FlightState
from ncclcheck.reports.subjects.logs.flight.waits import AwaitedCall, Waits
from ncclcheck.reports.text.words.fold import fold_ranks


def odd_in(waits: Waits, call: AwaitedCall) -> tuple[list[int], str]:
    """The few that differ, and what is said of them; nobody where all are alike.

    They alone did not see the end, or have not begun on the GPU, or entered less after it: programs run ahead of
    their GPUs to the same place, so the one that stopped earlier was stopped by something else.
    """
    state, waiting = waits.state, waits.waiting(call)
    if call.src is not None:
        return [], ""
    saw = [rank for rank in state.members(call.group) if state.ended[call.group].get(rank, -1) >= call.seq]
    if len(saw) > len(waiting) / 2 and call.group not in state.failed_too:
        return waiting, f"{fold_ranks(waiting)} did not see its end, {fold_ranks(saw)} did"
    begun = {rank for rank in waiting if waits.standing[rank][1].state == "started"}
    not_begun = sorted({*waiting} - begun)
    if begun and len(begun) > len(not_begun) > 0:
        return not_begun, text.doing(not_begun, "has", "have") + " not begun it on the GPU, the others have"
    return _behind(state, call)


def _behind(state: FlightState, call: AwaitedCall) -> tuple[list[int], str]:
    entered = state.entered[call.group]
    furthest = max(entered.values(), default=call.seq)
    behind = sorted(rank for rank, seq in entered.items() if seq < furthest)
    if not 0 < len(behind) <= len(entered) / 2:
        return [], ""
    last = max(entered[rank] for rank in behind)
    return behind, f"{fold_ranks(behind)} entered nothing after {last}, the others went on to {furthest}"

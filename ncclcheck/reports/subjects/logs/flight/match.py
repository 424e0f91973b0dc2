"""Calls that meet but do not fit: other operations, sizes or types at the same place of a group's sequence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ncclcheck.probes.facts import FlightCall
from ncclcheck.reports.subjects.logs.flight.state import FlightState, needs_all

Kind = Literal["operation", "size", "type", "total"]
Calls = Mapping[int, FlightCall]
_OWN_SIZES = ("all_to_all", "alltoall", "gather", "scatter")  # each rank may have its own
_UNEVEN = ("broadcast_oop", "ALLGATHER_coalesced")  # parts of an all-gather whose ranks give unlike amounts


@dataclass(frozen=True)
class CallMismatch:
    """The first call of a group that does not fit. variants: what was called -> by whom, most ranks first.

    odd: the ranks that differ from most; empty where no side has more ranks. step: 1 where all of them are a call
    ahead of the others from there on, -1 where they are a call behind.
    """

    group: int
    seq: int
    kind: Kind
    variants: dict[str, list[int]]
    odd: list[int]
    calls: dict[int, FlightCall]
    step: int = 0


def mismatches(state: FlightState) -> list[CallMismatch]:
    """The first mismatch of each group; what comes after it follows from it."""
    groups: dict[int, dict[int, dict[int, FlightCall]]] = defaultdict(lambda: defaultdict(dict))
    for dump in state.dumps.values():
        for call in dump.calls:
            if call.peer is None:
                groups[call.group][call.seq][dump.rank] = call
    firsts = (next(_in_group(state, group, calls), None) for group, calls in groups.items())
    return sorted(
        (mismatch for mismatch in firsts if mismatch),
        key=lambda mismatch: min(mismatch.calls[rank].at_ns for rank in mismatch.calls),
    )


def _in_group(state: FlightState, group: int, by_seq: dict[int, dict[int, FlightCall]]) -> Iterator[CallMismatch]:
    for seq in sorted(by_seq):
        calls = by_seq[seq]
        for kind, variants in (
            ("operation", _operations(calls)),
            ("size", _sizes(calls)),
            ("type", _types(calls)),
        ):
            if len(variants) > 1:
                yield _made(group, seq, kind, variants, by_seq)  # type: ignore[arg-type]
                return
        if len(calls) == len(state.members(group)) and (variants := _totals(state, calls)):
            yield CallMismatch(group, seq, "total", variants, [], dict(calls))


def _made(
    group: int, seq: int, kind: Kind, by_word: dict[str, list[int]], by_seq: dict[int, dict[int, FlightCall]]
) -> CallMismatch:
    variants = dict(sorted(by_word.items(), key=lambda pair: -len(pair[1])))
    first, second, *_ = variants.values()
    odd = sorted(rank for ranks in [*variants.values()][1:] for rank in ranks) if len(first) > len(second) else []
    step = _step(seq, odd, first[0], by_seq) if odd and kind == "operation" else 0
    return CallMismatch(group, seq, kind, variants, odd, dict(by_seq[seq]), step)


def _step(seq: int, odd: list[int], other: int, by_seq: dict[int, dict[int, FlightCall]]) -> int:
    """Whether the odd ranks call what the others call one place later, or one place earlier."""
    for step in (1, -1):
        if all(_same(by_seq, seq + (step < 0) + more, rank, other, step) for rank in odd for more in (0, 1)):
            return step
    return 0


def _same(by_seq: dict[int, dict[int, FlightCall]], seq: int, rank: int, other: int, step: int) -> bool:
    own, theirs = by_seq.get(seq, {}).get(rank), by_seq.get(seq + step, {}).get(other)
    return own is not None and theirs is not None and (own.op, own.elements_in) == (theirs.op, theirs.elements_in)


def _operations(calls: Calls) -> dict[str, list[int]]:
    return _by(calls, {rank: call.op for rank, call in calls.items()})


def _sizes(calls: Calls) -> dict[str, list[int]]:
    """NCCL matches counts; shapes of the same count are the same to it."""
    return _by(calls, {rank: _size(call) for rank, call in calls.items()})


def _size(call: FlightCall) -> str:
    op = call.op.lstrip("_")
    if op.startswith(_OWN_SIZES) or op.endswith(("_v", "_v_single", "split", "new_window")):
        return ""
    if op in _UNEVEN:
        return f"{call.elements_out} elements"
    if op.startswith("broadcast"):
        return f"{max(call.elements_in, call.elements_out)} elements"
    if op.startswith("reduce_scatter"):
        return f"{call.elements_in} elements to {call.elements_out}"
    return f"{call.elements_in} elements"


def _types(calls: Calls) -> dict[str, list[int]]:
    telling = {rank: call for rank, call in calls.items() if needs_all(call.op) or "broadcast" in call.op}
    return _by(calls, {rank: call.dtype_in for rank, call in telling.items() if call.elements_in})


def _totals(state: FlightState, calls: Calls) -> dict[str, list[int]]:
    """In an all-to-all as much must come out as goes in; the forms before 2.4 do not tell these sizes."""
    if any(_is_old(state.dumps[rank].version) or "all_to_all" not in call.op for rank, call in calls.items()):
        return {}
    going, coming = sum(c.elements_in for c in calls.values()), sum(c.elements_out for c in calls.values())
    return {f"{going} elements sent, {coming} expected": sorted(calls)} if going != coming else {}


def _is_old(version: str) -> bool:
    return version in ("2.0", "2.1", "2.2", "2.3")


def _by(calls: Calls, words: Mapping[int, str]) -> dict[str, list[int]]:
    by_word: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(calls.keys() & words.keys()):
        if words[rank]:
            by_word[words[rank]].append(rank)
    return dict(by_word)


@dataclass(frozen=True)
class Misfit:
    """A send and the receive that meets it, of another size or type."""

    group: int
    src: int
    dst: int
    send: FlightCall
    receive: FlightCall


def misfits(state: FlightState) -> list[Misfit]:
    """Sends and receives that do not fit, where both sides have as many in hand."""
    hand: dict[tuple[int, int, int], tuple[list[FlightCall], list[FlightCall]]] = defaultdict(lambda: ([], []))
    for rank, pending in state.pending.items():
        for call in pending:
            if call.peer is not None:
                src, dst = (rank, call.peer) if call.op == "send" else (call.peer, rank)
                hand[call.group, src, dst][call.op != "send"].append(call)
    unfit = []
    for (group, src, dst), (sends, receives) in sorted(hand.items()):
        if len(sends) == len(receives):
            pairs = zip(sends, receives, strict=True)
            unfit += [Misfit(group, src, dst, send, receive) for send, receive in pairs if not _fit(send, receive)]
    return unfit


def _fit(send: FlightCall, receive: FlightCall) -> bool:
    sizes = send.elements_in, receive.elements_out
    return (sizes[0] == sizes[1] or 0 in sizes) and send.dtype_in == receive.dtype_out

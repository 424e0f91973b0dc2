"""Words for ranks, groups and calls of the Flight Recorder."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ncclcheck.probes.facts import FlightCall, FlightGroup
from ncclcheck.reports.judgement.findings import Evidence, Where, seen
from ncclcheck.reports.subjects.logs.flight.state import FlightState
from ncclcheck.reports.subjects.logs.flight.waits import AwaitedCall
from ncclcheck.reports.text.words.fold import fold_ranks

_MOST_KINDS = 4  # lines: of ranks that came equally far in a group; chosen
_OVER = "ended or failed"


def who(numbers: Collection[int]) -> tuple[Where, str]:
    """Where a finding over these ranks is, and how its sentence begins: one rank stands before it already."""
    if len(numbers) == 1:
        return Where(rank=min(numbers)), ""
    return Where(), f"{fold_ranks(numbers)} "


def doing(numbers: Iterable[int], single: str, several: str) -> str:
    """`rank 3 waits`, `ranks 0-3,7 wait`."""
    ranks = {*numbers}
    return f"{fold_ranks(ranks)} {single if len(ranks) == 1 else several}"


def waiting(numbers: Iterable[int]) -> str:
    """`rank 3 waits`, `ranks 0-3,7 wait`."""
    return doing(numbers, "waits", "wait")


def them(numbers: Iterable[int], single: str = "it", several: str = "them") -> str:
    """`it`, or `them` where there are several."""
    return single if len({*numbers}) == 1 else several


def group(pg: FlightGroup) -> str:
    """A process group by its description, or by its name where it has none."""
    about = pg.about if pg.about not in ("", "undefined") else ""
    name = f"{about} ({pg.name})" if about and about != pg.name else f"process group {pg.name}"
    return name if len(name) < 70 else f"{name[:67]}..."


def call(state: FlightState, awaited: AwaitedCall) -> str:
    """`all_reduce 812 of TENSOR_PARALLEL (35)`, `send from rank 3 to rank 7 in PIPELINE (43)`."""
    name = group(state.group(awaited.group))
    if awaited.src is not None:
        return f"{awaited.op} from rank {awaited.src} to rank {awaited.dst} in {name}"
    own = (state.own(rank, awaited.group, awaited.seq) for rank in state.members(awaited.group))
    op = next((record.op for record in own if record), awaited.op or "collective")
    return f"{op} {awaited.seq} of {name}"


def entering(state: FlightState, awaited: AwaitedCall) -> str:
    """`enter all_reduce 812 of ..., in which`, `send to rank 1 in ..., for which`."""
    name = group(state.group(awaited.group))
    if awaited.op == "recv":
        return f"send to rank {awaited.dst} in {name}, for which"
    if awaited.op == "send":
        return f"receive from rank {awaited.src} in {name}, for which"
    return f"enter {call(state, awaited)}, in which"


def record(state: FlightState, rank: int, entry: FlightCall) -> Evidence:
    """One line of a rank's dump."""
    sizes = f"{entry.elements_in} {entry.dtype_in}".strip()
    to = f" with rank {entry.peer}" if entry.peer is not None else f" {entry.seq}"
    place = f", at {entry.place}" if entry.place else ""
    name = group(state.group(entry.group))
    over = entry.state == "completed" and entry.group in state.failed_too
    return seen(
        where_of(state, rank), f"{entry.op}{to} of {name}: {_OVER if over else entry.state}, {sizes}{place}"
    )


def where_of(state: FlightState, rank: int) -> str:
    """The file of a rank's dump, its folders left out."""
    dump = state.dumps.get(rank)
    return f"{dump.file.replace(chr(92), '/').rsplit('/', 1)[-1]} (rank {rank})" if dump else f"rank {rank}"


def counts(state: FlightState, group_index: int, among: Iterable[int]) -> list[Evidence]:
    """How far ranks came in one group, a line for those that came equally far."""
    by_count: dict[tuple[int | None, int | None], list[int]] = {}
    for rank in sorted(set(among)):
        came = state.entered[group_index].get(rank), state.ended[group_index].get(rank)
        by_count.setdefault(came, []).append(rank)
    name = group(state.group(group_index))
    lines = []
    for (entered, ended), who in [*by_count.items()][:_MOST_KINDS]:
        came_to = "entered is not in it" if entered is None else f"entered {entered}"
        last = "none" if ended is None else str(ended)
        over = f"{_OVER} up to {last}" if group_index in state.failed_too else f"saw the end of {last}"
        lines.append(seen(f"{fold_ranks(who)} in {name}", f"{came_to}, {over}"))
    return lines

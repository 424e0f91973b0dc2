"""What each of four ranks does, two on each of two nodes: GPUs, numbers, and the collectives that it enters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ncclcheck.probes.facts.script import Call, Guard, Script
from ncclcheck.reports.subjects.script.processes import SPAWNS

LOCALS = ("0", "1", "0", "1")
RANKS = ("0", "1", "2", "3")
_SOME = 4  # ranks, two on each of two nodes
_NUMBER = re.compile(r"(?:cuda:)?(\d+)")


def numbers(call: Call, *keys: str) -> tuple[str, ...]:
    """An argument on each rank, as Python writes it; empty where it is not known."""
    return next((call.each[key] for key in keys if key in call.each), ())


def differs(call: Call, *keys: str) -> bool:
    """Whether an argument is made of the rank, or is known to be another one on each."""
    given = {tag for key in keys for tag in call.values.get(key, "").split()}
    return len({*numbers(call, *keys)}) > 1 or not given.isdisjoint(("rank", "local", "byrank"))


def gpus(call: Call, *keys: str) -> tuple[str, ...]:
    """The same as numbers of GPUs: of `1`, `"cuda:1"`, `"cuda"` on each rank."""
    matches = [_NUMBER.fullmatch(number.strip("'\"")) for number in numbers(call, *keys)]
    return tuple(match.group(1) for match in matches if match) if all(matches) else ()


def starts_by_itself(script: Script) -> bool:
    """Whether it starts the processes of one node itself."""
    return any(call.name in SPAWNS or call.name.endswith(".Process") for call in script.calls)


def comes(call: Call) -> tuple[int, ...] | None:
    """The ranks that come to it, as far as conditions tell; None where one of them does not tell which."""
    ranks = {*range(_SOME)}
    for guard in call.guards:
        if guard.kind == "rank":
            if not guard.tells_apart:
                return None
            ranks &= {*guard.ranks}
    return tuple(sorted(ranks))


def is_always(call: Call) -> bool:
    """Whether all ranks come to it whatever the options are."""
    return all(guard.kind in ("main", "group") and guard.branch == "if" for guard in call.guards)


def unbalanced(script: Script, entered: Callable[[Call], str]) -> Iterator[tuple[Call, Guard]]:
    """Collectives that some ranks enter more often than others, side by side: under the same options and loops.

    Nothing is said of places where a condition does not tell which ranks it holds on.
    """
    places: dict[object, list[tuple[Call, tuple[int, ...] | None]]] = {}
    for call in script.trace:
        if not any(guard.kind == "rank" for guard in call.guards) or not entered(call):
            continue
        around = tuple((guard.file, guard.line, guard.branch) for guard in call.guards if guard.kind != "rank")
        loops = tuple((loop.file, loop.line) for loop in call.loops)
        places.setdefault((around, loops, call.name), []).append((call, comes(call)))
    for several in places.values():
        if any(ranks is None for _, ranks in several):
            continue
        counts = [0] * _SOME
        first: Call | None = None
        for call, ranks in several:
            if ranks and first is None and max(counts[rank] for rank in ranks) > min(counts):
                first = call  # these ranks come to the next one, and the others have not come to the last
            counts = [count + (rank in (ranks or ())) for rank, count in enumerate(counts)]
        if len({*counts}) == 1:
            continue
        ahead = next(call for call, ranks in reversed(several) if counts.index(max(counts)) in (ranks or ()))
        call = first or ahead
        yield call, next(guard for guard in call.guards if guard.kind == "rank")

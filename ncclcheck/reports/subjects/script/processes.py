"""Which calls one process makes alone: where there is no group, and in the parent that spawns the ranks."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Guard, Script

INIT = "torch.distributed.init_process_group"
SPAWNS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
_STARTS = re.compile(r"(?:^|\.|:)(?:spawn|start_processes|launch\w*|Process|run|Fire|elastic_launch)$")
_DEEP = 4  # calls within calls through which init_process_group is reached
# What a condition says: an expression, what it is compared with, and whether that is so.
_Fact = tuple[str, str, bool]


def by_several(script: Script) -> list[Call]:
    """All calls but those under a condition that contradicts the one under which the group is started."""
    calls: list[Call] | None = script.__dict__.get("by_several")
    if calls is None:
        needed = _needed(script)
        calls = [call for call in script.calls if not _contradicts(call, needed)] if needed else script.calls
        script.__dict__["by_several"] = calls
    return calls


def _needed(script: Script) -> set[_Fact]:
    """What holds wherever the group is started, whichever of its calls starts it: `args.dist == "ON"`."""
    by_name: dict[str, list[Call]] = {}
    for call in script.calls:
        for started in (call.name, *started_by(call)):
            by_name.setdefault(started, []).append(call)
    ways = [facts for init in by_name.get(INIT, []) for facts in _ways(init, by_name, _DEEP)]
    return set.intersection(*ways) if ways else set()


def _ways(call: Call, by_name: dict[str, list[Call]], deep: int) -> Iterator[set[_Fact]]:
    """For each way to the call, the conditions on it."""
    mine = {fact for guard in call.guards if guard.kind in ("group", "other") for fact in _facts(guard)}
    callers = by_name.get(call.function, []) if deep and not call.function.endswith(":") else []
    if not callers:
        yield mine
    for caller in callers:
        for theirs in _ways(caller, by_name, deep - 1):
            yield mine | theirs


def _contradicts(call: Call, needed: set[_Fact]) -> bool:
    for guard in call.guards:
        for left, right, holds in _facts(guard):
            if (left, right, not holds) in needed:
                return True
            if holds and right and any(name == left and other != right and is_so for name, other, is_so in needed):
                return True  # it is equal to something else there
    return False


def excludes(call: Call, other: Call) -> bool:
    """Whether conditions around the call say that the other one, elsewhere in the script, is not made."""
    return _contradicts(call, {fact for guard in other.guards for fact in _facts(guard)})


def is_ruled_out(condition: Guard, by: Guard) -> bool:
    """Whether a part of the condition cannot hold where another guard stands."""
    known = _facts(by)
    return any((left, right, not holds) in known for left, right, holds in _said(condition.text, holds=True))


def _facts(guard: Guard) -> tuple[_Fact, ...]:
    if guard.kind in ("main", "rank") or guard.text in ("except", "match"):
        return ()
    return _said(guard.text, guard.branch == "if")


@functools.cache
def _said(text: str, holds: bool) -> tuple[_Fact, ...]:
    """What is known of its parts where the condition holds, or does not; nothing where it is cut short."""
    try:
        return tuple(_parts(ast.parse(text, mode="eval").body, holds))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _parts(test: ast.expr, holds: bool) -> Iterator[_Fact]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, not holds)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) == holds:
            for node in test.values:
                yield from _parts(node, holds)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1:
        operator, other = test.ops[0], test.comparators[0]
        if not isinstance(other, ast.Constant) or not isinstance(
            operator, ast.Eq | ast.NotEq | ast.Is | ast.IsNot
        ):
            yield _name(test), "", holds
        elif isinstance(other.value, bool):
            yield from _parts(test.left, holds == (isinstance(operator, ast.Eq | ast.Is) == other.value))
        else:
            yield _name(test.left), repr(other.value), holds == isinstance(operator, ast.Eq | ast.Is)
    elif isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "bool" and test.args:
        yield from _parts(test.args[0], holds)
    else:
        yield _name(test), "", holds


def _name(test: ast.expr) -> str:
    """`self.parallel`, `args.parallel` and `parallel` are one flag."""
    return test.attr if isinstance(test, ast.Attribute) else ast.unparse(test)


def of_ranks(script: Script, calls: list[Call]) -> list[Call]:
    """Those that are not made in a process which spawns the ranks and is none itself."""
    parents: set[str] | None = script.__dict__.get("of_parents")
    if parents is None:
        parents = script.__dict__["of_parents"] = _of_parents(by_several(script))
    return [
        call
        for call in calls
        if call.function not in parents
        or (call.function.endswith(":") and not any(guard.kind == "main" for guard in call.guards))
    ]


def _of_parents(calls: list[Call]) -> set[str]:
    """Functions that only such a process runs: those that lead to the spawn, and what they call besides it."""
    inside: dict[str, list[Call]] = {}
    for call in calls:
        inside.setdefault(call.function, []).append(call)
    spawning = [call for call in calls if call.name in SPAWNS]
    parents = {call.function for call in spawning}
    while more := {call.function for call in calls if call.name in parents} - parents:
        parents |= more
    started = {
        function
        for call in calls
        if call.function in parents
        for function in started_by(call)
        if function in inside
    }
    ranks = _led_to(started, inside, set())
    alone = parents | _led_to(
        {call.name for parent in parents for call in inside[parent]} & {*inside}, inside, started
    )
    alone -= ranks
    if any(call.name == INIT and call.function in alone for call in calls):
        return set()  # another way to start, or not understood
    return alone if started else set()


def _led_to(first: set[str], inside: dict[str, list[Call]], but: set[str]) -> set[str]:
    led = first - but
    waiting = [*led]
    while waiting:
        for call in inside.get(waiting.pop(), []):
            new = ({call.name, f"{call.name}.__init__"} & {*inside}) - led - but
            waiting += new
            led |= new
    return led


def started_by(call: Call) -> Iterator[str]:
    """Functions that processes are started with: `mp.spawn(work, ...)`."""
    if _STARTS.search(call.name):
        yield from (f"{call.file}:{text}" for text in call.arguments.values() if text.isidentifier())

"""What a value is on each of four ranks, two on each of two nodes: one run of the script stands for all of them.

A number that is known to be another one on each rank is followed through sums, texts and conditions. The number of
ranks itself is not known, and nothing is decided by it.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Sequence

from ncclcheck.probes.facts.script import Guard
from ncclcheck.probes.script.running.values import DEFAULT, LOCAL, RANK, AbstractValue

Each = tuple[object, ...]

# Ranks: chosen, the fewest that tell the first of the job, the first of a node and the others apart.
RANKS: Each = (0, 1, 2, 3)
# Ranks within a node, of the same four (chosen).
LOCALS: Each = (0, 1, 0, 1)
# Ranks of a node, of the same four (chosen).
_OF_A_NODE: Each = (2, 2, 2, 2)
UNKNOWN = ...  # of one rank, where others are known: `rank == 0 and ready`
NOT_KNOWN: Each = (UNKNOWN,) * len(RANKS)
_LITERAL = re.compile(r"-?\d+(?:\.\d+)?|True|False|None|(['\"])(?:(?!\1|\\).)*\1")
_LONG = 120  # characters of a text that is followed
_LARGEST = 10**9  # of a number that is followed
_ANY_RANK = 64  # `rank <= 100` is meant to hold on all: fewer ranks may be a part of a job (a judgement)

_NUMBERS: dict[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.truediv,
}  # fmt: skip
TESTS: dict[type[ast.cmpop], Callable[..., object]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda value, several: value in several, ast.NotIn: lambda value, several: value not in several,
}  # fmt: skip


@functools.cache
def _literal(symbol: str) -> Each | None:
    if not _LITERAL.fullmatch(symbol):
        return None
    return (ast.literal_eval(symbol),) * len(RANKS)


def of(value: AbstractValue) -> Each | None:
    """On each rank; None where it is not known."""
    if value.each is not None:
        return value.each
    if LOCAL in value.tags:
        return LOCALS
    if RANK in value.tags:
        return RANKS
    return _literal(value.symbol) if value.symbol and DEFAULT not in value.tags else None


def of_default(value: AbstractValue) -> Each | None:
    """The same, or what an option is where the command line does not say it."""
    return _literal(value.symbol) if DEFAULT in value.tags and value.symbol else of(value)


def differs(each: Each | None) -> bool:
    """Whether it is known to be another one on some rank."""
    known = [value for value in each or () if value is not UNKNOWN]
    return any(value != known[0] for value in known)


def with_each(value: AbstractValue, each: Each | None) -> AbstractValue:
    """The value, as it is on each rank; one that is the same on all is its symbol."""
    if each is None:
        return value
    if UNKNOWN not in each and not differs(each):
        name = repr(each[0])
        return value._replace(symbol=name) if _LITERAL.fullmatch(name) and len(name) <= _LONG else value
    return value._replace(each=each)


def summed(op: ast.operator, left: AbstractValue, right: AbstractValue) -> Each | None:
    """Two numbers, or texts, made one; a rank divided by a number tells of nodes, whose size is not known."""
    act, values, other = _NUMBERS.get(type(op)), of(left), of(right)
    if act is None or values is None or other is None:
        return None
    texts = [isinstance(part, str) for part in (*values, *other)]
    if isinstance(op, ast.Add) and any(texts):
        values, other = _texts(values), _texts(other)  # a variable of the environment is a text
    elif any(texts):
        if not isinstance(op, ast.Mod) or any(re.search(r"%[^sd%]", str(part)) for part in values):
            return None
    elif isinstance(op, ast.Mod | ast.FloorDiv) and differs(values) and other != _OF_A_NODE:
        return None
    return _by_rank(act, [values, other])


def _texts(each: Each) -> Each:
    return tuple(value if value is UNKNOWN else str(value) for value in each)


def compared(ops: Sequence[ast.cmpop], sides: Sequence[AbstractValue]) -> Each | None:
    """A test with one operator; None where it holds on all four ranks or none, for there may be more of them."""
    if len(ops) != 1:
        return None
    values, other = of(sides[0]), _several(sides[1]) if isinstance(ops[0], ast.In | ast.NotIn) else of(sides[1])
    if values is None or other is None:
        return None
    if isinstance(values[0], str) != isinstance(other[0], str) and isinstance(ops[0], ast.Eq | ast.NotEq):
        values, other = _texts(values), _texts(other)
    made = _by_rank(TESTS[type(ops[0])], [values, other])
    return made if differs(made) or not (differs(values) or differs(other)) else None


def _several(value: AbstractValue) -> Each | None:
    """`(0, -1)`, as a test asks of it."""
    parts = [of(item) for item in value.items] if value.items is not None else [None]
    if any(part is None or differs(part) for part in parts):
        return None
    return (tuple(part[0] for part in parts if part),) * len(RANKS)


def holds_on_all(op: ast.cmpop, sides: Sequence[AbstractValue]) -> bool:
    """`rank <= 100`: a bound that no rank of the job is meant to reach."""
    values, bound = of(sides[0]), of(sides[1])
    if values is None or bound is None or not differs(values) or differs(bound):
        return False
    number = bound[0]
    return isinstance(op, ast.Lt | ast.LtE) and isinstance(number, int) and number >= _ANY_RANK


def all_of(parts: Sequence[AbstractValue], every: bool) -> Each | None:
    """`a and b`, or `a or b`: where one part decides, others need not be known."""
    known = [of(part) for part in parts]
    if not any(differs(each) for each in known):
        return None
    made: list[object] = []
    for at in range(len(RANKS)):
        each = [values[at] if values is not None else UNKNOWN for values in known]
        decided = [value for value in each if value is not UNKNOWN and bool(value) != every]
        made.append((not every) if decided else UNKNOWN if UNKNOWN in each else every)
    return tuple(made)


def negated(value: AbstractValue, op: ast.unaryop) -> Each | None:
    """`not rank`, `-1`."""
    acts = {ast.Not: operator.not_, ast.USub: operator.neg}
    act = acts.get(type(op))
    return _by_rank(act, [of(value)]) if act is not None else None


def text_of(parts: Sequence[AbstractValue]) -> Each | None:
    """A text that is made of these."""
    return _by_rank(lambda *given: "".join(map(str, given)), [of(part) for part in parts])


def device_of(parts: Sequence[AbstractValue]) -> Each | None:
    """`torch.device("cuda", local_rank)`."""
    return _by_rank(lambda kind, number, *_: f"{kind}:{number}", [of(part) for part in parts])


def formatted(form: AbstractValue, parts: Sequence[AbstractValue]) -> Each | None:
    """`"cuda:{}".format(rank)`, with nothing between the braces."""
    forms = of(form)
    if forms is None or not isinstance(forms[0], str) or re.search(r"\{[^}]", forms[0]):
        return None
    return _by_rank(lambda text, *given: text.format(*given), [forms, *(of(part) for part in parts)])


def as_(kind: Callable[[object], object], value: AbstractValue) -> Each | None:
    """`int(value)`, `str(value)`."""
    return _by_rank(kind, [of(value)])


def chosen(test: Each | None, yes: AbstractValue, no: AbstractValue) -> Each | None:
    """`a if rank == 0 else b`."""
    values, other = of(yes), of(no)
    if test is None or values is None or other is None or UNKNOWN in test:
        return None
    return tuple(first if holds else second for holds, first, second in zip(test, values, other, strict=True))


def of_guard(guard: Guard) -> Each | None:
    """Whether a condition holds on each rank; None where it is not known."""
    if not guard.tells_apart:
        return None
    return tuple(rank in guard.holds for rank in range(len(RANKS)))


def where(each: Each | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks on which a test may hold, and on which it may not; empty where it does not tell ranks apart."""
    if each is None or not any(bool(value) != bool(each[0]) or value is UNKNOWN for value in each):
        return (), ()
    if not any(value is not UNKNOWN for value in each):
        return (), ()
    holds = tuple(rank for rank, value in enumerate(each) if value is UNKNOWN or value)
    fails = tuple(rank for rank, value in enumerate(each) if value is UNKNOWN or not value)
    return (holds, fails) if len(holds) < len(each) or len(fails) < len(each) else ((), ())


def _by_rank(act: Callable[..., object], given: Sequence[Each | None]) -> Each | None:
    made: list[object] = []
    for parts in zip(*(each for each in given if each is not None), strict=True):
        if len(parts) < len(given):
            return None
        if UNKNOWN in parts:
            made.append(UNKNOWN)
            continue
        try:
            value = act(*parts)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError, MemoryError):
            return None
        if isinstance(value, str):
            if len(value) > _LONG:
                return None
        elif isinstance(value, int | float) and abs(value) > _LARGEST:
            return None
        made.append(value)
    return tuple(made) or None

"""What is known of a rank that is followed: its variables' objects, and what it was seen to do."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ncclcheck.probes.facts.script import Branch, Call, Guard, GuardKind, Loop
from ncclcheck.probes.script import conditions, names
from ncclcheck.probes.script.names import ScriptNames
from ncclcheck.probes.script.running import each
from ncclcheck.probes.script.running.values import (
    CLOCK,
    DRAWN,
    FIRST,
    MAY_LACK,
    NOTHING,
    OWN,
    AbstractValue,
    CallFrame,
    Function,
    Thing,
    functions,
)
from ncclcheck.probes.script.sources import ParsedFile
from ncclcheck.probes.script.words import text

# The largest script that was seen needs a tenth of it (a judgement).
_MOST_STATEMENTS = 30_000


class LeftBlock(Exception):
    """The statements that follow are not reached, or as much was followed as is followed at most."""


@dataclass
class Recording:
    """One rank: what it holds, under which conditions it is, and its trace."""

    sources: Mapping[str, ParsedFile]
    every: Mapping[str, ScriptNames]
    ranks: set[str]
    trace: list[Call] = field(default_factory=list)
    things: dict[str, Thing] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    modules: dict[str, CallFrame] = field(default_factory=dict)
    closures: dict[str, CallFrame] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)
    known: dict[tuple[object, ...], tuple[AbstractValue, list[Call], set[str]]] = field(default_factory=dict)
    times: dict[tuple[str, str], int] = field(default_factory=dict)
    decorated: dict[str, tuple[str, CallFrame] | None] = field(default_factory=dict)
    of_classes: dict[str, dict[str, AbstractValue]] = field(default_factory=dict)
    left: int = _MOST_STATEMENTS
    statement: ast.stmt = field(default_factory=ast.Pass)
    target: str = ""
    built: list[str] = field(default_factory=list)  # loaders of a class of the script whose own __init__ is called
    device: tuple[object, ...] | None = (0, 0, 0, 0)  # the current GPU of each of four ranks (each.py)
    unlike: set[str] = field(default_factory=set)  # libraries whose random numbers each rank seeds by itself
    at_rest: frozenset[str] = frozenset()  # models on which eval() was called, and not train() since
    options: dict[str, AbstractValue] = field(default_factory=dict)  # of the command line -> their defaults
    still: int = 0  # blocks without gradients around
    given_again: set[str] = field(default_factory=set)  # attributes that more than one statement gives a value

    def __post_init__(self) -> None:
        stores: Counter[str] = Counter()
        for name, source in self.sources.items():
            assert source.tree is not None
            stores.update(node.attr for node in source.of(ast.Attribute) if isinstance(node.ctx, ast.Store))
            self.functions |= {function.name: function for function in functions(name, source.tree)}
            self.classes |= {f"{name}:{definition.name}": definition for definition in source.of(ast.ClassDef)}
        self.given_again = {name for name, count in stores.items() if count > 1}

    # What the classes below do, each for those above it

    def value(self, node: ast.expr, frame: CallFrame) -> AbstractValue:
        """What an expression gives."""
        raise NotImplementedError

    def called_with(self, node: ast.Call, frame: CallFrame) -> AbstractValue:
        """What a call gives."""
        raise NotImplementedError

    def call(
        self,
        name: str,
        given: Sequence[AbstractValue],
        named: Mapping[str, AbstractValue],
        me: AbstractValue | None = None,
        *,
        raw: bool = False,
    ) -> AbstractValue:
        """A function of the script with these arguments."""
        raise NotImplementedError

    def bind(self, target: ast.expr, value: AbstractValue, frame: CallFrame, statement: ast.stmt) -> None:
        """A name, an attribute or a part is given a value."""
        raise NotImplementedError

    def block(self, body: Sequence[ast.stmt], frame: CallFrame) -> None:
        """Statements, until one leaves: then Left is raised."""
        raise NotImplementedError

    def quietly(self, body: Sequence[ast.stmt], frame: CallFrame) -> bool:
        """A block that may end early; whether it did."""
        raise NotImplementedError

    def keep(self, target: ast.expr, node: ast.expr, value: AbstractValue, frame: CallFrame) -> None:
        """A sum, or a list, that is given something."""
        raise NotImplementedError

    # Names

    def method(self, cls: str, name: str) -> str:
        """FILE:CLASS.NAME, of the class or of what it is made from; empty where it is not the script's own."""
        waiting, seen = [cls] if cls else [], {""}
        while waiting:
            owner = waiting.pop(0)
            if f"{owner}.{name}" in self.functions:
                return f"{owner}.{name}"
            new = [base for base in self.bases(owner) if base not in seen]
            seen |= {*new}
            waiting += new
        return ""

    def bases(self, cls: str) -> list[str]:
        """What a class is made from, by full names."""
        node = self.classes.get(cls)
        if node is None:
            return []
        here = self.every[cls.partition(":")[0]]
        return [names.resolved(text(base), "", here, self.every) for base in node.bases]

    def dotted(self, node: ast.expr, frame: CallFrame) -> str:
        chain = names.chain_of(node)
        root, _, rest = chain.partition(".")
        if not root:
            return chain
        if rest and frame.look(root) is not None and root not in ("self", "cls"):
            return f".{rest.rpartition('.')[2]}"
        inside = frame.owner.rpartition(":")[2]
        return names.resolved(chain, inside, self.every[frame.file], self.every)

    # What is told

    def make(
        self, kind: str, node: ast.expr, cls: str = "", fields: Mapping[str, AbstractValue] | None = None
    ) -> str:
        """A new object, named by where it is made."""
        file = self.stack[-1].partition(":")[0]
        name = f"{kind}@{file}:{node.lineno}.{node.col_offset}"
        if name not in self.things:
            self.things[name] = Thing(kind, cls, dict(fields or {}))
        else:
            self.things[name].fields |= fields or {}
        return name

    def add(
        self,
        name: str,
        line: int,
        arguments: Mapping[str, ast.expr] = {},
        values: Sequence[AbstractValue] = (),
        *,
        on: str = "",
        made: AbstractValue = NOTHING,
        more: Mapping[str, AbstractValue] = {},
    ) -> None:
        """One call of the trace."""
        function = self.stack[-1]
        given = {key: " ".join(sorted(value.all_tags)) for key, value in zip(arguments, values, strict=False)}
        given |= {key: " ".join(sorted(value.all_tags)) for key, value in more.items()}
        every = (*zip(arguments, values, strict=False), *more.items())
        known = {key: each.of_default(value) for key, value in every}
        if made.tags:
            given["made"] = " ".join(sorted(made.tags))
        compound = isinstance(
            self.statement, ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith
        )
        last = line if compound else self.statement.end_lineno or line
        self.trace.append(
            Call(
                name=name,
                file=function.partition(":")[0],
                line=line,
                first=self.statement.lineno if self.statement.lineno <= line else line,
                last=max(last, line),
                on=on,
                target=self.target,
                function=function,
                arguments={key: text(node) for key, node in arguments.items()},
                guards=[*self.guards],
                loops=[*self.loops],
                values={key: tags for key, tags in given.items() if tags},
                each={
                    key: tuple(map(repr, ranks))
                    for key, ranks in known.items()
                    if ranks is not None and each.UNKNOWN not in ranks
                },
            )
        )

    def guard(self, test: ast.expr, branch: Branch, frame: CallFrame) -> Guard:
        kind: GuardKind = conditions.kind(test, self.ranks, holds=branch == "if")
        value = self.value(test, frame)
        holds, fails = each.where(each.of(value))
        if kind == "other" and MAY_LACK in value.tags and isinstance(test, ast.Name | ast.Attribute | ast.Call):
            kind = "rank"
        if kind == "other" and FIRST in value.tags:
            kind = "rank"
        if kind == "other" and value.tags & {OWN, CLOCK, DRAWN} and not conditions.says_agreed(text(test)):
            kind = "own"
        if holds:
            kind = "rank"
        elif kind == "rank" and isinstance(test, ast.Compare) and len(test.ops) == 1:
            sides = [self.value(side, frame) for side in (test.left, test.comparators[0])]
            kind = "group" if each.holds_on_all(test.ops[0], sides) else kind
        return Guard(
            kind=kind, branch=branch, text=text(test), line=test.lineno, file=frame.file, holds=holds, fails=fails
        )

    @contextmanager
    def inside(self, stack: list[Guard] | list[Loop], block: object) -> Iterator[None]:
        stack.append(block)  # type: ignore[arg-type]
        try:
            yield
        finally:
            stack.pop()

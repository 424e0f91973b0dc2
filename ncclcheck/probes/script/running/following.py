"""Statements and calls of a script, in the order in which a rank of a job comes to them -> what it does there."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ncclcheck.probes.facts.script import Branch, Call, Guard, GuardKind, Loop
from ncclcheck.probes.script import conditions, names
from ncclcheck.probes.script.names import Names
from ncclcheck.probes.script.running import library
from ncclcheck.probes.script.running.values import (
    AGREED,
    BY_RANK,
    CLOCK,
    FIRST,
    LIVE,
    LOCAL,
    MEAN,
    NOTHING,
    NUMBERED,
    OWN,
    RANK,
    SHARE,
    SOME,
    SUMMED,
    Frame,
    Function,
    Thing,
    Value,
    carried,
    constant,
    functions,
    join,
    symbol,
)
from ncclcheck.probes.script.sources import Source
from ncclcheck.probes.script.words import text

# Bounds of what is followed (a judgement): the largest script that was seen needs a tenth of it.
_MOST_STATEMENTS = 30_000
_MOST_CALLS = 20_000  # of the trace
_DEEP = 14  # calls within calls
_AGAIN = 3  # times that one function is followed with other arguments


def follow(found: Sequence[Source], every: Mapping[str, Names], ranks: set[str]) -> list[Call]:
    """What a rank does, from the first line of the named files."""
    run = Run({one.name: one for one in found if one.tree is not None}, every, ranks)
    for source in found:
        if source.named and source.tree is not None:
            run.file(source.name)
    return run.trace[:_MOST_CALLS]


class _Left(Exception):
    """The statements that follow are not reached, or as much was followed as is followed at most."""


@dataclass
class Run:
    """One rank, followed."""

    sources: Mapping[str, Source]
    every: Mapping[str, Names]
    ranks: set[str]
    trace: list[Call] = field(default_factory=list)
    things: dict[str, Thing] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    modules: dict[str, Frame] = field(default_factory=dict)
    closures: dict[str, Frame] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)
    known: dict[tuple[object, ...], tuple[Value, list[Call], set[str]]] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    left: int = _MOST_STATEMENTS
    statement: ast.stmt = field(default_factory=ast.Pass)
    target: str = ""
    built: list[str] = field(default_factory=list)  # loaders of a class of the script whose own __init__ is called
    still: int = 0  # blocks without gradients around

    def __post_init__(self) -> None:
        for name, source in self.sources.items():
            assert source.tree is not None
            self.functions |= {one.name: one for one in functions(name, source.tree)}
            self.classes |= {f"{name}:{one.name}": one for one in source.of(ast.ClassDef)}

    # Files and functions

    def file(self, name: str) -> None:
        """Its own lines, once, as an import does."""
        source = self.sources.get(name)
        if source is None or source.tree is None or name in self.modules:
            return
        self.modules[name] = Frame(name, "")
        outer = self.guards, self.loops, self.statement, self.target
        self.guards, self.loops = [], []
        self.stack.append(f"{name}:")
        try:
            self._quietly(source.tree.body, self.modules[name])
        except RecursionError:
            self.left = 0  # a script that is nested deeper than people write is followed no further
        self.stack.pop()
        self.guards, self.loops, self.statement, self.target = outer

    def call(
        self, name: str, given: Sequence[Value], named: Mapping[str, Value], me: Value | None = None
    ) -> Value:
        """A function of the script with these arguments; followed anew where they are new."""
        function = self.functions[name]
        if name in self.stack or len(self.stack) >= _DEEP:
            return Value(carried(*given, *named.values()))
        frame = Frame(function.file, name.partition(":")[2], function.owner, around=self._around(function))
        bound = me is not None and not any(text(one) == "staticmethod" for one in function.node.decorator_list)
        self._arguments(function, frame, [me, *given] if bound and me is not None else given, named)
        key = (name, *sorted(frame.variables.items()), *self._fields(me), self.still > 0)
        followed = self.known.get(key) or (self.known[name,] if self.times.get(name, 0) >= _AGAIN else None)
        if followed is None:
            self.times[name] = self.times.get(name, 0) + 1
            followed = (*self._body(function, frame), frame.reduced)
            self.known[key] = self.known[name,] = followed
        value, calls, _ = followed
        if len(self.trace) < _MOST_CALLS:
            self.trace += map(self._under, calls)
        return value

    def _body(self, function: Function, frame: Frame) -> tuple[Value, list[Call]]:
        """What it gives, and what is done in it, under its own conditions and loops only."""
        outer = self.trace, self.guards, self.loops, self.statement, self.target, self.still
        self.trace, self.guards, self.loops, self.target = [], [], [], ""
        for one in function.node.decorator_list:
            called = one.func if isinstance(one, ast.Call) else one
            if conditions.of_one_rank(text(called).rpartition(".")[2]):
                self.guards.append(
                    Guard(kind="rank", branch="if", text=f"@{text(one)}", line=one.lineno, file=function.file)
                )
            self.still += library.is_still(text(called))
        self.stack.append(function.name)
        try:
            self._block(function.node.body, frame)
        except _Left:
            pass
        finally:
            self.stack.pop()
            calls = self.trace
            self.trace, self.guards, self.loops, self.statement, self.target, self.still = outer
        if frame.yielded:
            return join(frame.yielded), calls
        value = join(frame.returned)
        differs = frame.split and AGREED not in value.tags and any(one != value for one in frame.returned)
        return value.with_(SOME) if differs else value, calls

    def _around(self, function: Function) -> Frame | None:
        outer = function.name.rpartition(".")[0]
        if outer in self.functions and outer in self.closures:
            return self.closures[outer]
        self.file(function.file)
        return self.modules.get(function.file)

    def _arguments(
        self, function: Function, frame: Frame, given: Sequence[Value], named: Mapping[str, Value]
    ) -> None:
        arguments = function.node.args
        parameters = function.parameters
        variables = frame.variables
        plain = arguments.defaults
        for name, default in zip(parameters[len(parameters) - len(plain) :], plain, strict=True):
            variables[name] = self._default(default)
        for only, one in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            variables[only.arg] = self._default(one) if one is not None else NOTHING
        variables |= dict(zip(parameters, given, strict=False))
        variables |= {name: value for name, value in named.items() if name}
        for name in parameters:
            variables.setdefault(name, Value(symbol=f"{function.name}.{name}"))

    def _default(self, node: ast.expr) -> Value:
        return constant(node.value) if isinstance(node, ast.Constant) else NOTHING

    def _fields(self, me: Value | None) -> list[object]:
        """What an object holds, as far as it decides what its methods do."""
        if me is None:
            return []
        return [
            (one, *sorted((k, v.tags) for k, v in self.things[one].fields.items() if v.tags)) for one in me.objects
        ]

    def _under(self, call: Call) -> Call:
        """The call as it is seen from outside its function."""
        if not self.guards and not self.loops:
            return call
        return library.replaced(call, guards=[*self.guards, *call.guards], loops=[*self.loops, *call.loops])

    # Statements

    def _block(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        before = len(self.guards)
        try:
            for statement in body:
                self.left -= 1
                if self.left < 0:
                    raise _Left
                self._one(statement, frame)
                if isinstance(statement, ast.If):
                    self._rest(statement, frame)
        finally:
            del self.guards[before:]

    def _rest(self, statement: ast.If, frame: Frame) -> None:
        """After an `if` that leaves, what follows stands under its opposite."""
        if isinstance(statement.test, ast.Constant) or self._known(statement.test, frame) is not None:
            return
        for body, branch in ((statement.body, "rest"), (statement.orelse, "if")):
            if body and leaves(body[-1]) and not (branch == "rest" and statement.orelse):
                if conditions.single(statement.test, holds=branch == "if"):
                    raise _Left
                guard = self._guard(statement.test, "rest" if branch == "rest" else "if", frame)
                if guard.kind == "rank" or not ends(body[-1]):
                    self.guards.append(guard)

    def _one(self, statement: ast.stmt, frame: Frame) -> None:
        self.statement = statement
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                name = f"{frame.scope}.{statement.name}" if frame.scope else statement.name
                full = f"{frame.file}:{name}"
                self.closures[full.rpartition(".")[0] if frame.scope else full] = frame
                if full in self.functions:
                    frame.variables[statement.name] = Value(frozenset({f"fn:{full}"}))
            case ast.ClassDef():
                pass
            case ast.Import() | ast.ImportFrom():
                self._import(statement, frame)
            case ast.If():
                self._if(statement, frame)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(statement, frame)
            case ast.Try():
                self._try(statement, frame)
            case ast.With() | ast.AsyncWith():
                self._with(statement, frame)
            case ast.Return():
                value = self.value(statement.value, frame) if statement.value else NOTHING
                frame.returned.append(value)
                frame.split |= any(guard.kind == "rank" for guard in self.guards)
                raise _Left
            case ast.Break() | ast.Continue():
                self._skip(statement)
                raise _Left
            case ast.Raise():
                raise _Left
            case _:
                self._plain(statement, frame)

    def _plain(self, statement: ast.stmt, frame: Frame) -> None:
        match statement:
            case ast.Assign():
                self.target = text(statement.targets[0]) if len(statement.targets) == 1 else ""
                value = self.value(statement.value, frame)
                self.target = ""
                for target in statement.targets:
                    self._bind(target, value, frame, statement)
                    frame.born[text(target)] = len(self.loops)
            case ast.AnnAssign() if statement.value is not None:
                self.target = text(statement.target)
                value = self.value(statement.value, frame)
                self.target = ""
                self._bind(statement.target, value, frame, statement)
            case ast.AugAssign():
                old, new = self.value(statement.target, frame), self.value(statement.value, frame)
                if isinstance(statement.op, ast.Add):
                    self.keep(statement.target, statement.value, new, frame)
                made = self._combined(statement.op, old, new, "")
                self._bind(statement.target, made, frame, statement)
            case ast.Expr():
                self.value(statement.value, frame)
                call = statement.value
                if isinstance(call, ast.Call) and text(call.func) in library.ENDS:
                    raise _Left
            case ast.Match():
                self.value(statement.subject, frame)
                for case in statement.cases:
                    with self._in(
                        self.guards, Guard(kind="other", branch="if", text="match", line=statement.lineno)
                    ):
                        self._quietly(case.body, frame)
            case _:
                for part in ast.iter_child_nodes(statement):
                    if isinstance(part, ast.expr):
                        self.value(part, frame)

    def keep(self, target: ast.expr, node: ast.expr, value: Value, frame: Frame) -> None:
        """A sum, or a list, from before the loop that is given something with its graph in each step."""
        if LIVE in value.tags and frame.born.get(text(target), len(self.loops)) < len(self.loops):
            self.add("keep", node.lineno, {"0": node}, [value], on=text(target))

    def _quietly(self, body: Sequence[ast.stmt], frame: Frame) -> bool:
        """A block that may end early; whether it did."""
        try:
            self._block(body, frame)
        except _Left:
            return True
        return False

    def _skip(self, statement: ast.Break | ast.Continue) -> None:
        guard = self.guards[-1] if self.guards else None
        if guard is not None and guard.kind in ("own", "rank") and self.loops:
            self.add("break" if isinstance(statement, ast.Break) else "continue", statement.lineno)

    def _if(self, statement: ast.If, frame: Frame) -> None:
        if isinstance(statement.test, ast.Constant):
            self._block(statement.body if statement.test.value else statement.orelse, frame)
            return
        if (known := self._known(statement.test, frame)) is not None:
            self._block(statement.body if known else statement.orelse, frame)
            return
        guard = self._guard(statement.test, "if", frame)
        if guard.kind == "main" and not self.sources[frame.file].named:
            self._block(statement.orelse, frame)
            return
        ends, ways = [], []
        before = frame.variables
        fields = {name: dict(one.fields) for name, one in self.things.items()}
        for branch, body in (("if", statement.body), ("else", statement.orelse)):
            if conditions.single(statement.test, branch == "if") and guard.kind != "rank":
                continue
            frame.variables = dict(before)
            with self._in(self.guards, library.other_branch(guard) if branch == "else" else guard):
                left = self._quietly(body, frame)
            ends.append(left)
            if not left:
                ways.append(frame.variables)
        self._meet(frame, ways or [frame.variables], by_rank=guard.kind == "rank")
        self._meet_fields(fields, guard)
        if ends and all(ends):
            raise _Left

    def _known(self, test: ast.expr, frame: Frame) -> bool | None:
        """Whether a parameter's constant decides it: `data_sampler(data, distributed=False)`."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._known(test.operand, frame)
            return None if inner is None else not inner
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and text(test.comparators[0]) == "None":
            value = frame.variables.get(text(test.left)) if frame.scope else None
            if value is not None and value.symbol == "None" and not value.tags:
                return isinstance(test.ops[0], ast.Is | ast.Eq)
            return None
        value = frame.variables.get(test.id) if frame.scope and isinstance(test, ast.Name) else None
        if value is not None and not value.tags and value.symbol in ("True", "False", "None"):
            return value.symbol == "True"
        return None

    def _meet(self, frame: Frame, ways: list[dict[str, Value]], *, by_rank: bool = False) -> None:
        if len(ways) == 1:
            frame.variables = ways[0]
            return
        first, *others = ways
        met = dict(first)
        for other in others:
            for name, value in other.items():
                if name not in met:
                    met[name] = value
                elif met[name] is not value and met[name] != value:
                    met[name] = join([met[name], value])
                    exchanged = AGREED in met[name].tags
                    met[name] = met[name].with_(SOME) if by_rank and not exchanged else met[name]
        frame.variables = met

    def _meet_fields(self, before: dict[str, dict[str, Value]], guard: Guard) -> None:
        """An attribute that is set under a condition may be what it was before; with several ranks it is set."""
        if guard.kind in ("group", "main"):
            return
        for name, fields in before.items():
            now = self.things[name].fields
            for one, value in fields.items():
                if one in now and now[one] is not value and now[one] != value:
                    now[one] = join([now[one], value])
                    now[one] = now[one].with_(SOME) if guard.kind == "rank" else now[one]

    def _loop(self, statement: ast.For | ast.AsyncFor | ast.While, frame: Frame) -> None:
        over = statement.test if isinstance(statement, ast.While) else statement.iter
        value = self.value(over, frame)
        of = " ".join(sorted(value.all_tags)) if not isinstance(statement, ast.While) else ""
        target = "" if isinstance(statement, ast.While) else text(statement.target)
        before = frame.variables
        loop = Loop(line=statement.lineno, target=target, over=text(over), of=of)
        with self._in(self.loops, loop):
            if not isinstance(statement, ast.While):
                if value.of("loader"):
                    self.add("iterate", statement.lineno, {"0": over}, [value])
                frame.variables = dict(before)
                self._bind(statement.target, self.element(value), frame, statement)
            self._quietly(statement.body, frame)
            if isinstance(statement, ast.While):
                guard = self._guard(statement.test, "if", frame)
                if guard.kind in (OWN, "rank"):
                    with self._in(self.guards, guard):
                        self.add("break", statement.lineno)
        self._meet(frame, [frame.variables, before])
        self._block(statement.orelse, frame)

    def _try(self, statement: ast.Try, frame: Frame) -> None:
        left = self._quietly(statement.body, frame)
        after = frame.variables
        ways = [] if left else [after]
        for handler in statement.handlers:
            frame.variables = dict(after)
            with self._in(self.guards, Guard(kind="other", branch="if", text="except", line=handler.lineno)):
                if not self._quietly(handler.body, frame):
                    ways.append(frame.variables)
        self._meet(frame, ways or [after])
        if not left:
            left = self._quietly(statement.orelse, frame)
        self._block(statement.finalbody, frame)
        if left and not ways:
            raise _Left

    def _with(self, statement: ast.With | ast.AsyncWith, frame: Frame) -> None:
        still = 0
        for item in statement.items:
            value = self.value(item.context_expr, frame)
            called = item.context_expr
            still += library.is_still(text(called.func if isinstance(called, ast.Call) else called))
            if item.optional_vars is not None:
                self._bind(item.optional_vars, value, frame, statement)
        self.still += still
        try:
            self._block(statement.body, frame)
        finally:
            self.still -= still

    def _import(self, statement: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        local = self.sources[frame.file].local
        if isinstance(statement, ast.Import):
            wanted = [one.name for one in statement.names]
        else:
            module = "." * statement.level + (statement.module or "")
            wanted = [module, *(f"{module}{'.' if statement.module else ''}{one.name}" for one in statement.names)]
        for name in wanted:
            if name in local:
                self.file(local[name])

    def _bind(self, target: ast.expr, value: Value, frame: Frame, statement: ast.stmt) -> None:
        match target:
            case ast.Name():
                frame.variables[target.id] = value
            case ast.Tuple() | ast.List():
                several = value.items if value.items is not None and len(value.items) == len(target.elts) else None
                for at, one in enumerate(target.elts):
                    inner = one.value if isinstance(one, ast.Starred) else one
                    part = several[at] if several else Value(value.tags)
                    self._bind(inner, part, frame, statement)
            case ast.Attribute():
                on = self.value(target.value, frame)
                for name in on.objects:
                    self.things[name].fields[target.attr] = value
                if not on.objects:
                    frame.variables[text(target)] = value
            case ast.Subscript():
                if library.is_environ(text(target.value)):
                    given = {"0": target.slice} | (
                        {"1": statement.value} if isinstance(statement, ast.Assign) else {}
                    )
                    self.add("os.environ.set", target.lineno, given, [])
                    return
                on = self.value(target.value, frame)
                key = self.value(target.slice, frame).symbol
                for name in on.objects:
                    self.things[name].fields[f"[{key}]"] = value
                if not on.objects and isinstance(target.value, ast.Name):
                    frame.variables[target.value.id] = Value(carried(on, value))

    # Expressions

    def value(self, node: ast.expr, frame: Frame) -> Value:
        """What an expression gives."""
        kind = type(node)
        if kind is ast.Constant:
            return constant(node.value)  # type: ignore[attr-defined]
        if kind is ast.Name:
            return self._name(node.id, frame)  # type: ignore[attr-defined]
        if kind is ast.Attribute:
            return self._attribute(node, frame)  # type: ignore[arg-type]
        if kind is ast.Call:
            return self._call(node, frame)  # type: ignore[arg-type]
        match node:
            case ast.Tuple() | ast.List():
                items = tuple(self.value(one, frame) for one in node.elts)
                return Value(symbol=symbol("list", *items) if items else "", items=items)
            case ast.Starred() | ast.Await():
                return self.value(node.value, frame)
            case ast.IfExp():
                return self._either(node, frame)
            case ast.Compare():
                return self._compare(node, frame)
            case ast.BoolOp():
                values = [self.value(one, frame) for one in node.values]
                first = [FIRST in one.tags for one in values]
                kept = {tag for one in values for tag in one.tags if "@" in tag}
                kept |= {FIRST} if any(first) and (isinstance(node.op, ast.And) or all(first)) else set()
                return Value(carried(*values) | kept)
            case ast.UnaryOp():
                inner = self.value(node.operand, frame)
                return Value(carried(inner) | (inner.tags & {FIRST}), symbol(type(node.op).__name__, inner))
            case ast.BinOp():
                left, right = self.value(node.left, frame), self.value(node.right, frame)
                if isinstance(node.op, ast.Mod) and RANK in left.tags:
                    return Value((carried(left, right) - {BY_RANK}) | {LOCAL})
                return self._combined(node.op, left, right, self._joined(node.op, left, right))
            case ast.JoinedStr():
                parts = [self.value(one, frame) for one in node.values]
                return Value(carried(*parts), symbol("text", *parts))
            case ast.FormattedValue():
                return self.value(node.value, frame)
            case ast.Subscript():
                return self._subscript(node, frame)
            case ast.Dict():
                return self._dict(node, frame)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                return self._comprehension(node, frame)
            case ast.NamedExpr():
                value = self.value(node.value, frame)
                self._bind(node.target, value, frame, self.statement)
                return value
            case ast.Yield() | ast.YieldFrom():
                value = self.value(node.value, frame) if node.value else NOTHING
                frame.yielded.append(value)
                return NOTHING
            case ast.Lambda():
                return NOTHING
            case _:
                parts = [self.value(one, frame) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
                return Value(carried(*parts))

    def _combined(self, op: ast.operator, left: Value, right: Value, name: str) -> Value:
        """What two numbers make; divided, a sum is none any more, and what is a rank's own is an average."""
        tags = carried(left, right)
        if isinstance(op, ast.Div | ast.FloorDiv | ast.Mult):
            tags -= {SUMMED}
        if isinstance(op, ast.Div) and OWN in left.tags:
            tags |= {MEAN}
        return Value(tags, name)

    def _joined(self, op: ast.operator, left: Value, right: Value) -> str:
        return symbol("path" if isinstance(op, ast.Div) else type(op).__name__, left, right)

    def _name(self, name: str, frame: Frame) -> Value:
        found = frame.look(name)
        if found is not None:
            return found
        meaning = names.resolved(name, "", self.every[frame.file], self.every)
        if ":" in meaning:
            if meaning in self.functions:
                return Value(frozenset({f"fn:{meaning}"}))
            if meaning in self.classes:
                return Value(frozenset({f"class:{meaning}"}))
            file, _, inner = meaning.partition(":")
            home = self.modules.get(file)
            if home and inner in home.variables:
                return home.variables[inner]
        if hasattr(builtins, name):
            return NOTHING
        return Value(library.by_name(name), symbol=name if meaning == name else meaning)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        written = text(node)
        if (known := frame.look(written)) is not None:
            return known
        on = self.value(node.value, frame)
        found = []
        for name in on.objects:
            thing = self.things[name]
            if node.attr in thing.fields:
                found.append(thing.fields[node.attr])
            elif method := self.method(thing.cls, node.attr):
                decorated = {text(one) for one in self.functions[method].node.decorator_list}
                if "property" in decorated and not isinstance(node.ctx, ast.Store):
                    found.append(self.call(method, [], {}, Value(frozenset({name}))))
                else:
                    found.append(Value(frozenset({f"fn:{method}"})))
            elif thing.kind == "ddp":
                self.add(
                    "attribute", node.lineno, {"0": ast.Constant(node.attr)}, [], on=text(node.value), made=on
                )
            if thing.kind in ("ddp", "fsdp") and node.attr == "module" and "module" in thing.fields:
                found.append(thing.fields["module"])
        if found:
            return join(found)
        full = self._dotted(node, frame)
        if ":" in full:
            file, _, inner = full.partition(":")
            home = self.modules.get(file)
            if home and inner in home.variables:
                return home.variables[inner]
            if full in self.functions:
                return Value(frozenset({f"fn:{full}"}))
            if full in self.classes:
                return Value(frozenset({f"class:{full}"}))
        tags = carried(on) | library.by_name(node.attr)
        if node.attr in library.SHAPES:
            tags -= {OWN, LIVE}
        return Value(tags, f"{on.symbol}.{node.attr}" if on.symbol else "")

    def _either(self, node: ast.IfExp, frame: Frame) -> Value:
        guard = self._guard(node.test, "if", frame)
        found = []
        for branch, part in (("if", node.body), ("else", node.orelse)):
            if conditions.single(node.test, branch == "if"):
                continue
            with self._in(self.guards, guard if branch == "if" else library.other_branch(guard)):
                found.append(self.value(part, frame))
        value = join(found)
        return value.with_(SOME) if guard.kind == "rank" and any(one != value for one in found) else value

    def _compare(self, node: ast.Compare, frame: Frame) -> Value:
        sides = [self.value(one, frame) for one in (node.left, *node.comparators)]
        tags = set(carried(*sides)) - {LIVE}
        if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops):
            tags -= {OWN, CLOCK}
            if SOME in sides[0].tags and text(node.comparators[0]) == "None":
                tags |= {FIRST}
        elif any(one.tags & {RANK, LOCAL} for one in sides) and conditions.kind(node, self.ranks) != "group":
            tags |= {FIRST}
        return Value(frozenset(tags))

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        if library.is_environ(text(node.value)):
            return library.variable(text(node.slice).strip("'\""))
        on, key = self.value(node.value, frame), self.value(node.slice, frame)
        found = [
            self.things[name].fields[f"[{key.symbol}]"]
            for name in on.objects
            if f"[{key.symbol}]" in self.things[name].fields
        ]
        if found:
            return join(found)
        if on.items is not None and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            at = node.slice.value
            if -len(on.items) <= at < len(on.items):
                return on.items[at]
        tags = carried(on, key)
        if isinstance(node.slice, ast.Slice) and BY_RANK in key.tags and node.slice.step is not None:
            tags = (tags - {BY_RANK}) | {SHARE, OWN}
        return Value(tags, symbol("part", on, key))

    def _dict(self, node: ast.Dict, frame: Frame) -> Value:
        made = self.make("dict", node)
        target = self.target
        for key, value in zip(node.keys, node.values, strict=True):
            one = self.value(value, frame)
            if key is not None:
                self.things[made].fields[f"[{self.value(key, frame).symbol}]"] = one
        self.target = target
        return Value(frozenset({made}) | carried(*self.things[made].fields.values()))

    def _comprehension(self, node: ast.expr, frame: Frame) -> Value:
        before = dict(frame.variables)
        parts = []
        for one in node.generators:  # type: ignore[attr-defined]
            over = self.value(one.iter, frame)
            parts.append(over)
            self._bind(one.target, self.element(over), frame, self.statement)
            for test in one.ifs:
                self.value(test, frame)
        inner = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]  # type: ignore[attr-defined]
        values = [self.value(one, frame) for one in inner]
        frame.variables = before
        objects = frozenset(tag for one in values for tag in one.tags if "@" in tag)
        return Value(carried(*parts, *values) | objects)

    def element(self, value: Value) -> Value:
        """What a loop over it gives."""
        if NUMBERED in value.tags:
            return Value(items=(NOTHING, self.element(value.but(NUMBERED))))
        if value.items is not None:
            return join(value.items) if value.items else NOTHING
        loaders = value.of("loader")
        tags = set(value.tags - {*loaders})
        for one in loaders:
            tags |= {f"from:{one}"}
            tags |= {OWN} if self.is_shared(one) else set()
        return Value(frozenset(tags))

    def is_shared(self, loader: str) -> bool:
        """Whether it gives each rank other samples."""
        fields = self.things[loader].fields
        sampler = fields.get("sampler", NOTHING)
        data = fields.get("dataset", NOTHING).all_tags
        return bool(sampler.of("sampler", "sampled") or sampler.tags & {BY_RANK, SHARE} or data & {SHARE, BY_RANK})

    # Calls

    def _call(self, node: ast.Call, frame: Frame) -> Value:
        target, self.target = self.target, ""
        on = self.value(node.func.value, frame) if isinstance(node.func, ast.Attribute) else NOTHING
        given = [self.value(one, frame) for one in node.args]
        named = {one.arg or "": self.value(one.value, frame) for one in node.keywords}
        self.target = target
        name = self._dotted(node.func, frame)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "set_epoch":
            self.add(".set_epoch", node.lineno, {}, [], on=text(node.func.value), more={"on": on})
        if (value := self._own(node, name, on, given, named, frame)) is not None:
            self.target = ""
            return value.with_(*self._handed_on(node, given))
        if isinstance(node.func, ast.Attribute) and on.of("ddp"):
            self.add(
                "attribute",
                node.lineno,
                {"0": ast.Constant(node.func.attr)},
                [],
                on=text(node.func.value),
                made=on,
            )
        if self.built and text(node.func).startswith("super()"):
            self.things[self.built.pop()].fields |= library.loader_fields(given, named)
            return NOTHING
        value = library.call(self, node, name, on, given, named, frame)
        self.target = ""
        return value.with_(*self._handed_on(node, given))

    def _own(
        self, node: ast.Call, name: str, on: Value, given: list[Value], named: dict[str, Value], frame: Frame
    ) -> Value | None:
        """A function, a method or a class of the script; None where it is none."""
        called, me = self._called(node, name, on, frame)
        if called in self.classes:
            return self._build(called, node, given, named)
        if called in self.functions:
            statement = self.statement
            value = self.call(called, given, named, me)
            self.statement = statement
            self._reduced_in(called, node, me is not None, frame)
            return value.with_(*self.forward_of(node, frame))
        return None

    def _handed_on(self, node: ast.Call, given: list[Value]) -> list[str]:
        """For what is given a model to call it: whether that is its wrapper, or the model inside."""
        via = [f"via:{tag}" for one in given for tag in one.of("ddp")]
        inner = [one for at, one in zip(node.args, given, strict=True) if text(at).endswith(".module")]
        past = [f"past:{name}" for name, thing in self.things.items() if thing.kind == "ddp"
                for one in inner if one.objects and {*one.objects} <= thing.fields["module"].tags]  # fmt: skip
        return via or past

    def forward_of(self, node: ast.Call, frame: Frame) -> list[str]:
        """For the forward pass of a model: whether it goes through its wrapper, or past it."""
        if not isinstance(node.func, ast.Name | ast.Attribute):
            return []
        held = self.value(node.func, frame) if isinstance(node.func, ast.Name) else self._held_in(node.func, frame)
        wrappers = {one: thing.fields["module"].tags for one, thing in self.things.items()
                    if thing.kind == "ddp" and "module" in thing.fields}  # fmt: skip
        via = [f"via:{one}" for one in held.of("ddp")]
        objects = {*held.of("module", "new")}
        past = [f"past:{one}" for one, inner in wrappers.items() if objects and objects <= inner]
        return via or past

    def _held_in(self, node: ast.Attribute, frame: Frame) -> Value:
        """What an attribute holds, where an object has it; a method is none."""
        on = self.value(node.value, frame)
        found = [self.things[one].fields.get(node.attr, NOTHING) for one in on.objects]
        if node.attr == "module":
            return self._attribute(node, frame)
        return join(found)

    def _called(self, node: ast.Call, name: str, on: Value, frame: Frame) -> tuple[str, Value | None]:
        attr = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        for one in on.objects if attr else []:
            thing = self.things[one]
            if attr in thing.fields:
                held = thing.fields[attr]
                return self._held(held)
            if method := self.method(thing.cls, attr):
                return method, Value(frozenset({one}))
        if (
            isinstance(node.func, ast.Attribute)
            and text(node.func.value) == "super()"
            and "self" in frame.variables
        ):
            mine = frame.variables["self"].of("loader")
            if attr == "__init__" and mine:
                self.built.append(mine[0])
            for base in self.bases(frame.owner):
                if method := self.method(base, attr):
                    return method, frame.variables["self"]
            return "", None
        variable = frame.look(node.func.id) if isinstance(node.func, ast.Name) else None
        if variable is not None:
            return self._held(variable)
        full = name if ":" in name else ""
        if full in self.functions and self.functions[full].owner and attr:
            me = frame.variables.get("self") if text(node.func).startswith("self.") else NOTHING
            return full, me if me is not None else NOTHING
        return full, None

    def _held(self, held: Value) -> tuple[str, Value | None]:
        """What a variable that holds a function, a class or a model calls."""
        for tag in sorted(held.tags):
            kind, _, full = tag.partition(":")
            if kind in ("fn", "class"):
                return full, None
        for one in held.objects:
            thing = self.things[one]
            inner = thing.fields.get("module", NOTHING).objects if thing.kind in ("ddp", "fsdp") else [one]
            for module in inner:
                cls = self.things[module].cls
                if method := self.method(cls, "forward") or self.method(cls, "__call__"):
                    return method, Value(frozenset({module}))
        return "", None

    def _build(self, cls: str, node: ast.Call, given: list[Value], named: dict[str, Value]) -> Value:
        made = self.make(library.kind_of(self, cls), node, cls)
        me = Value(frozenset({made}))
        if init := self.method(cls, "__init__"):
            statement = self.statement
            self.call(init, given, named, me)
            self.statement = statement
        if self.things[made].kind == "dataset":
            return me.with_(*({BY_RANK, SHARE} & carried(*given, *named.values())))
        return me

    def _reduced_in(self, called: str, node: ast.Call, bound: bool, frame: Frame) -> None:
        """Tensors that the function has summed in place are so in the caller."""
        done = self.known.get((called,))
        if not done or not done[2]:
            return
        parameters = self.functions[called].parameters[1 if bound else 0 :]
        for name, one in zip(parameters, node.args, strict=False):
            if name in done[2]:
                library.sum_in_place(one, frame, self)

    def method(self, cls: str, name: str) -> str:
        """FILE:CLASS.NAME, of the class or of what it is made from; empty where it is not the script's own."""
        waiting, seen = [cls] if cls else [], {""}
        while waiting:
            one = waiting.pop(0)
            if f"{one}.{name}" in self.functions:
                return f"{one}.{name}"
            new = [base for base in self.bases(one) if base not in seen]
            seen |= {*new}
            waiting += new
        return ""

    def bases(self, cls: str) -> list[str]:
        """What a class is made from, by full names."""
        node = self.classes.get(cls)
        if node is None:
            return []
        here = self.every[cls.partition(":")[0]]
        return [names.resolved(text(one), "", here, self.every) for one in node.bases]

    def _dotted(self, node: ast.expr, frame: Frame) -> str:
        chain = names.chain_of(node)
        root, _, rest = chain.partition(".")
        if not root:
            return chain
        if rest and frame.look(root) is not None and root not in ("self", "cls"):
            return f".{rest.rpartition('.')[2]}"
        inside = frame.owner.rpartition(":")[2]
        return names.resolved(chain, inside, self.every[frame.file], self.every)

    # What is told

    def make(self, kind: str, node: ast.expr, cls: str = "", fields: Mapping[str, Value] | None = None) -> str:
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
        values: Sequence[Value] = (),
        *,
        on: str = "",
        made: Value = NOTHING,
        more: Mapping[str, Value] = {},
    ) -> None:
        """One call of the trace."""
        function = self.stack[-1]
        given = {key: " ".join(sorted(one.all_tags)) for key, one in zip(arguments, values, strict=False)}
        given |= {key: " ".join(sorted(one.all_tags)) for key, one in more.items()}
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
                arguments={key: text(one) for key, one in arguments.items()},
                guards=[*self.guards],
                loops=[*self.loops],
                values={key: one for key, one in given.items() if one},
            )
        )

    def _guard(self, test: ast.expr, branch: Branch, frame: Frame) -> Guard:
        kind: GuardKind = conditions.kind(test, self.ranks)
        value = self.value(test, frame)
        if kind == "other" and SOME in value.tags and isinstance(test, ast.Name | ast.Attribute | ast.Call):
            kind = "rank"
        if kind == "other" and FIRST in value.tags:
            kind = "rank"
        if kind == "other" and value.tags & {OWN, CLOCK} and not conditions.says_agreed(text(test)):
            kind = "own"
        return Guard(kind=kind, branch=branch, text=text(test), line=test.lineno, file=frame.file)

    @contextmanager
    def _in(self, stack: list[Guard] | list[Loop], one: object) -> Iterator[None]:
        stack.append(one)  # type: ignore[arg-type]
        try:
            yield
        finally:
            stack.pop()


def leaves(statement: ast.stmt) -> bool:
    """It goes no further here."""
    return isinstance(statement, ast.Return | ast.Continue | ast.Break) or ends(statement)


def ends(statement: ast.stmt) -> bool:
    """It ends the process, as far as is known: a launcher ends the others too."""
    if isinstance(statement, ast.Raise):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and text(call.func) in library.ENDS

"""Statements of a script, in the order in which a rank of a job comes to them -> what it does there."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from ncclcheck.probes.facts.script import Call, Guard, GuardKind, Loop
from ncclcheck.probes.script import conditions
from ncclcheck.probes.script.names import ScriptNames
from ncclcheck.probes.script.running import each, library, vocabulary
from ncclcheck.probes.script.running.calling import MOST_CALLS, Calling
from ncclcheck.probes.script.running.recording import LeftBlock
from ncclcheck.probes.script.running.values import (
    AGREED,
    BY_RANK,
    CHANCE,
    FIRST,
    LIVE,
    MAY_LACK,
    NOTHING,
    OWN,
    SHARE,
    SOME,
    UNEVEN,
    AbstractValue,
    CallFrame,
    carried,
    join,
    may_lack,
)
from ncclcheck.probes.script.sources import ParsedFile
from ncclcheck.probes.script.words import text


def follow(sources: Sequence[ParsedFile], every: Mapping[str, ScriptNames], ranks: set[str]) -> list[Call]:
    """What a rank does, from the first line of the named files."""
    run = RankRun({source.name: source for source in sources if source.tree is not None}, every, ranks)
    for source in sources:
        if source.named and source.tree is not None:
            run.file(source.name)
    return run.trace[:MOST_CALLS]


_OPTION = re.compile(r"(?:args|opts?|FLAGS)\.\w+")


class RankRun(Calling):
    """A rank that is followed, statement by statement."""

    def block(self, body: Sequence[ast.stmt], frame: CallFrame) -> None:
        before = len(self.guards)
        try:
            for statement in body:
                self.left -= 1
                if self.left < 0:
                    raise LeftBlock
                self._one(statement, frame)
                if isinstance(statement, ast.If):
                    self._rest(statement, frame)
        finally:
            del self.guards[before:]

    def _rest(self, statement: ast.If, frame: CallFrame) -> None:
        """After an `if` that leaves, what follows stands under its opposite."""
        if isinstance(statement.test, ast.Constant) or self.decided(statement.test, frame) is not None:
            return
        for body, branch in ((statement.body, "rest"), (statement.orelse, "if")):
            raises = bool(body) and isinstance(body[-1], ast.Raise)  # it ends the job, and no rank waits
            if body and leaves(body[-1]) and not raises and not (branch == "rest" and statement.orelse):
                if conditions.single(statement.test, holds=branch == "if"):
                    raise LeftBlock
                guard = self.guard(statement.test, "rest" if branch == "rest" else "if", frame)
                if guard.kind == "rank" or not ends(body[-1]):
                    self.guards.append(guard)

    def _one(self, statement: ast.stmt, frame: CallFrame) -> None:
        self.statement = statement
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                name = f"{frame.scope}.{statement.name}" if frame.scope else statement.name
                full = f"{frame.file}:{name}"
                self.closures[full.rpartition(".")[0] if frame.scope else full] = frame
                if full in self.functions:
                    frame.variables[statement.name] = AbstractValue(frozenset({f"fn:{full}"}))
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
                if frame.loops:
                    self._skip(statement, frame)
                raise LeftBlock
            case ast.Break() | ast.Continue():
                self._skip(statement, frame)
                raise LeftBlock
            case ast.Raise():
                raise LeftBlock
            case _:
                self._plain(statement, frame)

    def _plain(self, statement: ast.stmt, frame: CallFrame) -> None:
        match statement:
            case ast.Assign():
                self.target = text(statement.targets[0]) if len(statement.targets) == 1 else ""
                value = self.value(statement.value, frame)
                self.target = ""
                for target in statement.targets:
                    self.bind(target, value, frame, statement)
                    frame.born[text(target)] = len(self.loops)
            case ast.AnnAssign() if statement.value is not None:
                self.target = text(statement.target)
                value = self.value(statement.value, frame)
                self.target = ""
                self.bind(statement.target, value, frame, statement)
            case ast.AugAssign():
                old, new = self.value(statement.target, frame), self.value(statement.value, frame)
                if isinstance(statement.op, ast.Add):
                    self.keep(statement.target, statement.value, new, frame)
                made = self._combined(statement.op, old, new, "")
                if any(guard.kind == "rank" and "%" in guard.text for guard in self.guards):
                    made = made.with_(OWN, SHARE)  # of each so many samples one is this rank's
                self.bind(statement.target, made, frame, statement)
            case ast.Expr():
                self.value(statement.value, frame)
                call = statement.value
                if isinstance(call, ast.Call) and text(call.func) in vocabulary.ENDS:
                    raise LeftBlock
            case ast.Match():
                self.value(statement.subject, frame)
                for case in statement.cases:
                    with self.inside(
                        self.guards, Guard(kind="other", branch="if", text="match", line=statement.lineno)
                    ):
                        self.quietly(case.body, frame)
            case _:
                for part in ast.iter_child_nodes(statement):
                    if isinstance(part, ast.expr):
                        self.value(part, frame)

    def is_wrapped(self, value: AbstractValue) -> bool:
        """Whether it is a model that a wrapper has taken, the wrapper itself, or a part of such a model."""
        parts = {tag.removeprefix("in:") for tag in value.tags if tag.startswith("in:")}
        models = {*value.of("ddp", "fsdp", "module", "new")} | parts
        wrappers = [thing for thing in self.things.values() if thing.kind in ("ddp", "fsdp")]
        inner = {tag for thing in wrappers for tag in thing.fields.get("module", NOTHING).objects}
        return any(model in inner or model.startswith(("ddp@", "fsdp@")) for model in models)

    def keep(self, target: ast.expr, node: ast.expr, value: AbstractValue, frame: CallFrame) -> None:
        """A sum, or a list, from before the loop that is given something with its graph in each step."""
        if LIVE in value.tags and frame.born.get(text(target), len(self.loops)) < len(self.loops):
            self.add("keep", node.lineno, {"0": node}, [value], on=text(target))

    def quietly(self, body: Sequence[ast.stmt], frame: CallFrame) -> bool:
        """A block that may end early; whether it did."""
        try:
            self.block(body, frame)
        except LeftBlock:
            return True
        return False

    def _skip(self, statement: ast.Break | ast.Continue | ast.Return, frame: CallFrame) -> None:
        """What leaves a loop, or a step of it, on some ranks; a `return` leaves the loop as a `break` does."""
        guard = self.guards[-1] if self.guards else None
        leaves_loop = not isinstance(statement, ast.Continue)
        own = guard is not None and guard.kind in ("own", "rank") and not isinstance(statement, ast.Return)
        option = guard is not None and _OPTION.fullmatch(guard.text)  # as --dry-run: the job is to end
        begins = self.loops[-1].line if self.loops else 0
        here = (outer for outer in self.guards if outer.file == frame.file and outer.line > begins)
        inner = not option and any(condition.kind == "rank" and condition.branch != "rest" for condition in here)
        if self.loops and (own or (leaves_loop and inner)):
            self.add("break" if leaves_loop else "continue", statement.lineno)

    def _if(self, statement: ast.If, frame: CallFrame) -> None:
        if isinstance(statement.test, ast.Constant):
            self.block(statement.body if statement.test.value else statement.orelse, frame)
            return
        if (known := self.decided(statement.test, frame)) is not None:
            self.block(statement.body if known else statement.orelse, frame)
            return
        guard = self.guard(statement.test, "if", frame)
        if guard.kind == "main" and not self.sources[frame.file].named:
            self.block(statement.orelse, frame)
            return
        ends, ways, outcomes = [], [], []
        before = frame.variables
        fields = {name: dict(thing.fields) for name, thing in self.things.items()}
        for branch, body in (("if", statement.body), ("else", statement.orelse)):
            if conditions.single(statement.test, branch == "if") and guard.kind != "rank":
                continue
            frame.variables = dict(before)
            for name, old in fields.items():
                self.things[name].fields = dict(old)
            with self.inside(self.guards, library.other_branch(guard) if branch == "else" else guard):
                left = self.quietly(body, frame)
            ends.append(left)
            if not left:
                ways.append(frame.variables)
            outcomes.append((left, {name: self.things[name].fields for name in fields}))
        self._meet(frame, ways or [frame.variables], guard.kind, each.of_guard(guard))
        going_on = [made for left, made in outcomes if not left] or [made for _, made in outcomes[-1:]]
        self._meet_fields(fields, going_on, guard)
        if ends and all(ends):
            raise LeftBlock

    def _meet(
        self,
        frame: CallFrame,
        ways: list[dict[str, AbstractValue]],
        by: GuardKind = "other",
        holds: tuple[object, ...] | None = None,
    ) -> None:
        """What is known where branches meet. by: what the condition asks for. holds: on which ranks it does."""
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
                    met[name] = _decided([met[name], value], by, holds)
        frame.variables = met

    def _meet_fields(
        self,
        before: dict[str, dict[str, AbstractValue]],
        ways: list[dict[str, dict[str, AbstractValue]]],
        guard: Guard,
    ) -> None:
        """An attribute is what one branch or the other has made it; with several ranks it is what any sets."""
        for name, old in before.items():
            made = [way[name] for way in ways]
            if all(way == old for way in made):
                continue
            met: dict[str, AbstractValue] = {}
            for field in {key: None for way in made for key in way}:
                values = [way[field] for way in made if field in way]
                if guard.kind in ("group", "main"):
                    values = [value for value in values if value is not old.get(field)] or values
                value = join(values)
                alike = all(one_value == value for one_value in values) and len(values) == len(made)
                holds = each.of_guard(guard) if len(ways) > 1 else None
                met[field] = value if alike else _decided(values, guard.kind, holds)
            self.things[name].fields = met

    def _loop(self, statement: ast.For | ast.AsyncFor | ast.While, frame: CallFrame) -> None:
        over = statement.test if isinstance(statement, ast.While) else statement.iter
        value = self.value(over, frame)
        of = " ".join(sorted(value.all_tags)) if not isinstance(statement, ast.While) else ""
        target = "" if isinstance(statement, ast.While) else text(statement.target)
        before = frame.variables
        loop = Loop(line=statement.lineno, target=target, over=text(over), of=of, file=frame.file)
        frame.loops += 1
        _forget(statement, frame)
        with self.inside(self.loops, loop):
            if not isinstance(statement, ast.While):
                if UNEVEN in value.tags:
                    written = f"for {target} in {text(over)}"
                    uneven = Guard(kind="rank", branch="if", text=written, line=statement.lineno, file=frame.file)
                    with self.inside(self.guards, uneven):
                        self.add("break", statement.lineno)
                if value.of("loader"):
                    self.add("iterate", statement.lineno, {"0": over}, [value])
                frame.variables = dict(before)
                self.bind(statement.target, self.element(value), frame, statement)
            self.quietly(statement.body, frame)
            if isinstance(statement, ast.While):
                guard = self.guard(statement.test, "if", frame)
                if guard.kind in (OWN, "rank"):
                    with self.inside(self.guards, guard):
                        self.add("break", statement.lineno)
        frame.loops -= 1
        self._meet(frame, [frame.variables, before])
        self.block(statement.orelse, frame)

    def _try(self, statement: ast.Try, frame: CallFrame) -> None:
        begins = len(self.trace)
        left = self.quietly(statement.body, frame)
        self._swallow(statement, begins)
        after = frame.variables
        ways = [] if left else [after]
        for handler in statement.handlers:
            frame.variables = dict(after)
            with self.inside(self.guards, Guard(kind="other", branch="if", text="except", line=handler.lineno)):
                if not self.quietly(handler.body, frame):
                    ways.append(frame.variables)
        self._meet(frame, ways or [after])
        if not left:
            left = self.quietly(statement.orelse, frame)
        self.block(statement.finalbody, frame)
        if left and not ways:
            raise LeftBlock

    def _swallow(self, statement: ast.Try, begins: int) -> None:
        """A handler after which a rank goes on, though it may have left what all ranks do in the middle."""
        if not any(call.name in (".backward", "forward") for call in self.trace[begins:]):
            return
        for handler in statement.handlers:
            kinds = text(handler.type) if handler.type is not None else "Exception"
            if handler.body and not ends(handler.body[-1]) and not leaves_job(handler.body[-1]):
                self.statement = handler.body[0]
                self.add("swallow", handler.lineno, {"0": handler.type or ast.Name("Exception")}, [], on=kinds)

    def _with(self, statement: ast.With | ast.AsyncWith, frame: CallFrame) -> None:
        still = 0
        for item in statement.items:
            value = self.value(item.context_expr, frame)
            for thing in value.objects:
                if enter := self.method(self.things[thing].cls, "__enter__"):
                    value = join([value, self.call(enter, [], {}, AbstractValue(frozenset({thing})))])
            called = item.context_expr
            still += library.is_still(text(called.func if isinstance(called, ast.Call) else called))
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value, frame, statement)
        self.still += still
        try:
            self.block(statement.body, frame)
        finally:
            self.still -= still

    def _import(self, statement: ast.Import | ast.ImportFrom, frame: CallFrame) -> None:
        local = self.sources[frame.file].local
        if isinstance(statement, ast.Import):
            wanted = [name.name for name in statement.names]
        else:
            module = "." * statement.level + (statement.module or "")
            wanted = [
                module,
                *(f"{module}{'.' if statement.module else ''}{name.name}" for name in statement.names),
            ]
        for name in wanted:
            if name in local:
                self.file(local[name])

    def bind(self, target: ast.expr, value: AbstractValue, frame: CallFrame, statement: ast.stmt) -> None:
        match target:
            case ast.Name():
                frame.variables[target.id] = value
            case ast.Tuple() | ast.List():
                several = value.items if value.items is not None and len(value.items) == len(target.elts) else None
                for at, node in enumerate(target.elts):
                    inner = node.value if isinstance(node, ast.Starred) else node
                    part = several[at] if several else AbstractValue(value.tags - {SOME})
                    self.bind(inner, part, frame, statement)
            case ast.Attribute():
                on = self.value(target.value, frame)
                if target.attr == "requires_grad" and isinstance(statement, ast.Assign):
                    written = {"0": statement.value}
                    self.add(
                        "requires_grad", target.lineno, written, [value], on=text(target.value), more={"on": on}
                    )
                if isinstance(statement, ast.Assign) and self.is_wrapped(on) and value.of("new", "module"):
                    self.add("replace", target.lineno, {"0": statement.value}, [value], on=text(target))
                share = {SHARE, BY_RANK} & value.tags
                if share and on.of("dataset") and isinstance(target.value, ast.Name):
                    frame.variables[target.value.id] = on.with_(*share)
                for name in on.objects:
                    self.things[name].fields[target.attr] = value
                if not on.objects:
                    frame.variables[text(target)] = value
            case ast.Subscript():
                if library.is_environ(text(target.value)):
                    given = {"0": target.slice} | (
                        {"1": statement.value} if isinstance(statement, ast.Assign) else {}
                    )
                    self.add("os.environ.set", target.lineno, given, [NOTHING, value][: len(given)])
                    return
                on = self.value(target.value, frame)
                key = self.value(target.slice, frame).symbol
                groups = [loop.over for loop in self.loops if loop.target == text(target.value)]
                if key == "'lr'" and "param_groups" in "".join([text(target.value), *groups]):
                    self.add("set lr", target.lineno, {}, [], on=text(target.value))
                for name in on.objects:
                    self.things[name].fields[f"[{key}]"] = value
                    if isinstance(statement, ast.Assign):
                        self.things[name].written[f"[{key}]"] = statement.value
                if not on.objects and isinstance(target.value, ast.Name):
                    frame.variables[target.value.id] = AbstractValue(carried(on, value))


def _decided(
    values: Sequence[AbstractValue], by: GuardKind, holds: tuple[object, ...] | None = None
) -> AbstractValue:
    """One of two values by a condition: on the rank, or on what is its own.

    One that was exchanged is the same on all ranks, whichever gave it. holds: the ranks that take the first.
    """
    value = join(values)
    if holds is not None and len(values) > 1:
        value = each.with_each(value, each.chosen(holds, *values[:2]))
    if AGREED in value.tags:
        return value.but(SOME, MAY_LACK, FIRST, BY_RANK, OWN, CHANCE) if by == "rank" else value
    return value.with_(SOME, *may_lack(values)) if by == "rank" else value.with_(OWN) if by == "own" else value


def _forget(loop: ast.For | ast.AsyncFor | ast.While, frame: CallFrame) -> None:
    """What a loop gives values to is another one in a later round."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            value = frame.variables.get(node.id)
            if value is not None and each.of(value) is not None:
                frame.variables[node.id] = value._replace(symbol="", each=None)


def leaves(statement: ast.stmt) -> bool:
    """It goes no further here."""
    return isinstance(statement, ast.Return | ast.Continue | ast.Break) or ends(statement)


def leaves_job(statement: ast.stmt) -> bool:
    """`break` and `return`: the rank does not come to the next step."""
    return isinstance(statement, ast.Break | ast.Return)


def ends(statement: ast.stmt) -> bool:
    """It ends the process, as far as is known: a launcher ends the others too."""
    if isinstance(statement, ast.Raise):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and text(call.func) in vocabulary.ENDS

"""Calls of a script's own functions, methods and classes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from ncclcheck.probes.facts.script import Call, Guard
from ncclcheck.probes.script import conditions
from ncclcheck.probes.script.running import library
from ncclcheck.probes.script.running.expressions import Expressions
from ncclcheck.probes.script.running.recording import Left
from ncclcheck.probes.script.running.values import (
    AGREED,
    BY_RANK,
    NOTHING,
    SHARE,
    SOME,
    Frame,
    Function,
    Value,
    carried,
    constant,
    join,
)
from ncclcheck.probes.script.words import text

MOST_CALLS = 20_000  # of the trace
_DEEP = 14  # calls within calls
_AGAIN = 3  # times that one function is followed with other arguments


class Calling(Expressions):
    """A rank that calls functions."""

    def called_with(self, node: ast.Call, frame: Frame) -> Value:
        target, self.target = self.target, ""
        on = self.value(node.func.value, frame) if isinstance(node.func, ast.Attribute) else NOTHING
        given = [self.value(one, frame) for one in node.args]
        named = {one.arg or "": self.value(one.value, frame) for one in node.keywords}
        self.target = target
        name = self.dotted(node.func, frame)
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
            self.quietly(source.tree.body, self.modules[name])
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
        if len(self.trace) < MOST_CALLS:
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
            self.block(function.node.body, frame)
        except Left:
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

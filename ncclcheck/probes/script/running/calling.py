"""Calls of a script's own functions, methods and classes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import NamedTuple

from ncclcheck.probes.facts.script import Branch, Call, Guard
from ncclcheck.probes.script import conditions, names
from ncclcheck.probes.script.running import library
from ncclcheck.probes.script.running.expressions import Expressions
from ncclcheck.probes.script.running.made import loader_fields
from ncclcheck.probes.script.running.recording import LeftBlock
from ncclcheck.probes.script.running.values import (
    AGREED,
    BY_RANK,
    MAY_LACK,
    NOTHING,
    ORDERED,
    SHARE,
    SOME,
    AbstractValue,
    CallFrame,
    Function,
    Thing,
    carried,
    constant,
    join,
)
from ncclcheck.probes.script.words import text

MOST_CALLS = 20_000  # of the trace
_DEEP = 14  # calls within calls
_AGAIN = 3  # times that one function is followed with other arguments
_MOST_WAYS = 4  # functions that one call may lead to


class Callee(NamedTuple):
    """A function or class that a call may lead to. me: what it is a method of. given, named: what it is given
    besides, by `partial`. by_rank: the rank says which one it is.
    """

    name: str
    me: AbstractValue | None = None
    given: tuple[AbstractValue, ...] = ()
    named: Mapping[str, AbstractValue] = MappingProxyType({})
    raw: bool = False
    by_rank: bool = False


class Calling(Expressions):
    """A rank that calls functions."""

    def called_with(self, node: ast.Call, frame: CallFrame) -> AbstractValue:
        target, self.target = self.target, ""
        on = self.value(node.func.value, frame) if isinstance(node.func, ast.Attribute) else NOTHING
        given, named = self._given(node, frame)
        node = self._spelled_out(node, frame)
        self.target = target
        name = self._library_name(node, self.dotted(node.func, frame), frame)
        node, name, given, named = self._completed(node, name, given, named, frame)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "set_epoch":
            epoch = dict(zip("0", given[:1], strict=False))
            epoch["0"] = self._in_words(epoch.get("0", named.get("epoch", NOTHING)))
            written = {"0": node.args[0]} if node.args else {}
            self.add(".set_epoch", node.lineno, written, [], on=text(node.func.value), more={**epoch, "on": on})
        self._tell_forward(node, frame)
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
        if self.built and text(node.func).startswith("super("):
            self.things[self.built.pop()].fields |= loader_fields(given, named)
            return NOTHING
        value = library.call(self, node, name, on, given, named, frame)
        self.target = ""
        return value.with_(*self._handed_on(node, given))

    def _in_words(self, value: AbstractValue) -> AbstractValue:
        """A number that is known, as a tag; that of an attribute is known where it is given once only."""
        return value.with_(f"={value.symbol}") if value.symbol.lstrip("-").isdecimal() else value

    def _tell_forward(self, node: ast.Call, frame: CallFrame) -> None:
        """The forward pass of a model that is in a wrapper, whatever it is called."""
        model = self._held_value(node, frame)
        if model is not None and (model.of("ddp") or model.of("fsdp")):
            self.add("forward", node.lineno, {}, [], on=text(node.func), made=model)

    def _own(
        self,
        node: ast.Call,
        name: str,
        on: AbstractValue,
        given: list[AbstractValue],
        named: dict[str, AbstractValue],
        frame: CallFrame,
    ) -> AbstractValue | None:
        """A function, a method or a class of the script; None where it is none."""
        ways = [way for way in self._called(node, name, on, frame) if way.name in self.classes | self.functions]
        by_rank = any(way.by_rank for way in ways)
        values = []
        for at, choice in enumerate(ways[:_MOST_WAYS]):
            branch: Branch = "else" if at else "if"
            guard = Guard(kind="rank", branch=branch, text=text(node.func), line=node.lineno, file=frame.file)
            with self.inside(self.guards, guard) if by_rank else nullcontext():
                values.append(self._one_way(choice, node, given, named, frame))
        return join(values) if values else None

    def _one_way(
        self,
        way: Callee,
        node: ast.Call,
        given: list[AbstractValue],
        named: dict[str, AbstractValue],
        frame: CallFrame,
    ) -> AbstractValue:
        if way.name in self.classes:
            return self.build(way.name, node, given, named)
        statement = self.statement
        named = {**way.named, **named}
        value = self.call(way.name, [*way.given, *given], named, way.me, raw=way.raw)
        self.statement = statement
        self._reduced_in(way.name, node, way.me is not None, frame)
        return value.with_(*self.forward_of(node, frame))

    def _given(self, node: ast.Call, frame: CallFrame) -> tuple[list[AbstractValue], dict[str, AbstractValue]]:
        """What a call is given; lists and tables that are unpacked there are, where their parts are known."""
        given: list[AbstractValue] = []
        for argument in node.args:
            value = self.value(argument, frame)
            if isinstance(argument, ast.Starred) and value.items is not None:
                given += value.items
            else:
                given.append(value)
        named: dict[str, AbstractValue] = {}
        for key in node.keywords:
            value = self.value(key.value, frame)
            table = self.table(value) if key.arg is None else None
            if table is not None:
                named |= table
            else:
                named[key.arg or ""] = value
        return given, named

    def _spelled_out(self, node: ast.Call, frame: CallFrame) -> ast.Call:
        """The call with `**kwargs` as the arguments that they are, as they were written elsewhere."""
        if all(argument.arg is not None for argument in node.keywords):
            return node
        keywords: list[ast.keyword] = []
        for keyword in node.keywords:
            value = (
                self.value(keyword.value, frame)
                if keyword.arg is None and not isinstance(keyword.value, ast.Call)
                else NOTHING
            )
            table = self.table(value)
            if keyword.arg is not None or not table:
                keywords.append(keyword)
                continue
            written = self.things[value.of("dict")[0]].written
            keywords += [ast.keyword(arg=key, value=written.get(f"[{key!r}]", ast.Name("..."))) for key in table]
        return ast.copy_location(ast.Call(node.func, node.args, keywords), node)

    def _completed(
        self,
        node: ast.Call,
        name: str,
        given: list[AbstractValue],
        named: dict[str, AbstractValue],
        frame: CallFrame,
    ) -> tuple[ast.Call, str, list[AbstractValue], dict[str, AbstractValue]]:
        """A call of `partial(DataLoader, shuffle=True)`, with what it was given there."""
        partial = self._held_value(node, frame)
        things = partial.of("partial") if partial is not None else []
        if len(things) != 1 or not (meant := self.things[things[0]].fields["partial"].symbol):
            return node, name, given, named
        thing = self.things[things[0]]
        before = sorted((key for key in thing.fields if key.isdecimal()), key=int)
        more = {key: value for key, value in thing.fields.items() if not key.isdecimal() and key != "partial"}
        keywords = [ast.keyword(arg=key, value=thing.written[key]) for key in more if key not in named]
        whole = ast.Call(
            node.func, [*(thing.written[key] for key in before), *node.args], [*keywords, *node.keywords]
        )
        given = [*(thing.fields[key] for key in before), *given]
        return ast.copy_location(whole, node), meant, given, {**more, **named}

    def _held_value(self, node: ast.Call, frame: CallFrame) -> AbstractValue | None:
        """What the variable or attribute holds that is called."""
        if isinstance(node.func, ast.Name):
            return frame.look(node.func.id)
        return self._held_in(node.func, frame) if isinstance(node.func, ast.Attribute) else None

    def _library_name(self, node: ast.Call, name: str, frame: CallFrame) -> str:
        """What a variable that holds a function of a library calls: `sync = dist.all_reduce`."""
        if ":" in name or name.startswith("torch."):
            return name
        called = self._held_value(node, frame)
        functions = [tag.removeprefix("lib:") for tag in called.tags if tag.startswith("lib:")] if called else []
        return functions[0] if len(functions) == 1 else name

    def _handed_on(self, node: ast.Call, given: list[AbstractValue]) -> list[str]:
        """For what is given a model to call it: whether that is its wrapper, or the model inside."""
        via = [f"via:{tag}" for value in given for tag in value.of("ddp")]
        inner = [value for at, value in zip(node.args, given, strict=False) if text(at).endswith(".module")]
        past = [f"past:{name}" for name, thing in self.things.items() if thing.kind == "ddp"
                for part in inner if part.objects and {*part.objects} <= thing.fields["module"].tags]  # fmt: skip
        return via or past

    def forward_of(self, node: ast.Call, frame: CallFrame) -> list[str]:
        """For the forward pass of a model: whether it goes through its wrapper, or past it."""
        if not isinstance(node.func, ast.Name | ast.Attribute):
            return []
        called = (
            self.value(node.func, frame) if isinstance(node.func, ast.Name) else self._held_in(node.func, frame)
        )
        wrappers = {model: thing.fields["module"].tags for model, thing in self.things.items()
                    if thing.kind == "ddp" and "module" in thing.fields}  # fmt: skip
        via = [f"via:{wrapper}" for wrapper in called.of("ddp")]
        objects = {*called.of("module", "new")}
        past = [f"past:{wrapper}" for wrapper, inner in wrappers.items() if objects and objects <= inner]
        return via or past

    def _held_in(self, node: ast.Attribute, frame: CallFrame) -> AbstractValue:
        """What an attribute holds, where an object has it; a method is none."""
        on = self.value(node.value, frame)
        values = [self.things[thing].fields.get(node.attr, NOTHING) for thing in on.objects]
        if node.attr == "module":
            return self._attribute(node, frame)
        return join(values)

    def _called(self, node: ast.Call, name: str, on: AbstractValue, frame: CallFrame) -> list[Callee]:
        """What of the script's own a call may lead to."""
        attr = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        ways: list[Callee] = []
        for part in on.objects if attr else []:
            thing = self.things[part]
            if attr in thing.fields:
                ways += self._held(thing.fields[attr])
            elif method := self.method(thing.cls, attr):
                ways.append(Callee(method, AbstractValue(frozenset({part}))))
        if ways:
            return ways
        if isinstance(node.func, ast.Call | ast.Subscript | ast.IfExp | ast.Lambda):
            return self._held(self.value(node.func, frame))
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
                    return [Callee(method, frame.variables["self"])]
            return []
        variable = frame.look(node.func.id) if isinstance(node.func, ast.Name) else None
        if variable is not None:
            return self._held(variable)
        full = name if ":" in name else ""
        if full in self.functions and self.functions[full].owner and attr:
            me = frame.variables.get("self") if text(node.func).startswith("self.") else NOTHING
            return [Callee(full, me if me is not None else NOTHING)]
        return [Callee(full)]

    def _held(self, value: AbstractValue) -> list[Callee]:
        """What a variable that holds a function, a class or a model calls."""
        ways = []
        for tag in sorted(value.tags):
            kind, _, full = tag.partition(":")
            if kind in ("fn", "raw", "class"):
                function = self.functions.get(full) if kind == "fn" else None
                bound = AbstractValue(frozenset(tag[3:] for tag in value.tags if tag.startswith("me:")))
                me = bound if function and function.owner and function.parameters[:1] == ["self"] else None
                ways.append(Callee(full, me, raw=kind == "raw", by_rank=SOME in value.tags))
        for part in [] if ways else value.objects:
            thing = self.things[part]
            if thing.kind == "partial":
                fields = dict(thing.fields)
                inner = self._held(fields.pop("partial"))
                given = [fields.pop(at) for at in [*fields] if at.isdecimal()]
                ways += [way._replace(given=tuple(given), named=fields) for way in inner]
                continue
            modules = thing.fields.get("module", NOTHING).objects if thing.kind in ("ddp", "fsdp") else [part]
            for module in modules:
                cls = self.things[module].cls
                if method := self.method(cls, "forward") or self.method(cls, "__call__"):
                    ways.append(Callee(method, AbstractValue(frozenset({module}))))
        return ways

    def build(
        self, cls: str, node: ast.Call, given: list[AbstractValue], named: dict[str, AbstractValue]
    ) -> AbstractValue:
        made = self.make(library.kind_of(self, cls), node, cls)
        me = AbstractValue(frozenset({made}))
        own = self.class_fields(cls)
        self.things[made].fields = {**own, **self.things[made].fields}
        if init := self.method(cls, "__init__"):
            statement = self.statement
            self.call(init, given, named, me)
            self.statement = statement
        elif own:
            self.things[made].fields |= {**dict(zip(own, given, strict=False)), **named}
        if self.things[made].kind == "dataset":
            return me.with_(*({BY_RANK, SHARE, ORDERED} & carried(*given, *named.values())))
        return me

    def _reduced_in(self, called: str, node: ast.Call, bound: bool, frame: CallFrame) -> None:
        """Tensors that the function has summed in place are so in the caller."""
        done = self.known.get((called,))
        if not done or not done[2]:
            return
        parameters = self.functions[called].parameters[1 if bound else 0 :]
        for name, argument in zip(parameters, node.args, strict=False):
            if name in done[2]:
                library.sum_in_place(argument, frame, self)

    def file(self, name: str) -> None:
        """Its own lines, once, as an import does."""
        source = self.sources.get(name)
        if source is None or source.tree is None or name in self.modules:
            return
        self.modules[name] = CallFrame(name, "")
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
        self,
        name: str,
        given: Sequence[AbstractValue],
        named: Mapping[str, AbstractValue],
        me: AbstractValue | None = None,
        *,
        raw: bool = False,
    ) -> AbstractValue:
        """A function of the script with these arguments; followed anew where they are new.

        raw: what it is without the script's own decorators, which is what these call.
        """
        if not raw and (wrapper := self._decorated(name)):
            outer, around = wrapper
            before = self.closures.get(outer.rpartition(".")[0])
            self.closures[outer.rpartition(".")[0]] = around
            value = self._followed(outer, name, [me, *given] if me is not None else given, named, None)
            if before is not None:
                self.closures[outer.rpartition(".")[0]] = before
            return value
        return self._followed(name, "", given, named, me)

    def _decorated(self, name: str) -> tuple[str, CallFrame] | None:
        """The function of the script that its own decorator puts in its place, and what that knows."""
        if name in self.decorated:
            return self.decorated[name]
        self.decorated[name] = None
        function = self.functions[name]
        for node in function.node.decorator_list:
            called = node.func if isinstance(node, ast.Call) else node
            full = names.resolved(text(called), "", self.every[function.file], self.every)
            if full not in self.functions or conditions.of_one_rank(text(called).rpartition(".")[2]):
                continue
            home = self._around(function) or CallFrame(function.file, "")
            decorator = AbstractValue(frozenset({f"fn:{full}"}))
            if isinstance(node, ast.Call):
                decorator = self.call(full, *self._given(node, home))
            for way in self._held(decorator)[:1]:
                if way.name in self.functions:
                    made = self._held(
                        self._followed(way.name, name, [AbstractValue(frozenset({f"raw:{name}"}))], {}, None)
                    )
                    inner = next((w.name for w in made if w.name in self.functions and w.name != name), "")
                    if around := self.closures.get(inner.rpartition(".")[0]):
                        self.decorated[name] = inner, around
        return self.decorated[name]

    def _followed(
        self,
        name: str,
        by: str,
        given: Sequence[AbstractValue],
        named: Mapping[str, AbstractValue],
        me: AbstractValue | None,
    ) -> AbstractValue:
        """by: the function that it is called in place of."""
        function = self.functions[name]
        if name in self.stack or len(self.stack) >= _DEEP:
            return AbstractValue(carried(*given, *named.values()))
        frame = CallFrame(function.file, name.partition(":")[2], function.owner, around=self._around(function))
        bound = me is not None and not any(text(node) == "staticmethod" for node in function.node.decorator_list)
        self._arguments(function, frame, [me, *given] if bound and me is not None else given, named)
        key = (name, by, *sorted(frame.variables.items()), *self._fields(me), *self._rest_of(me), self.still > 0)
        many = self.times.get((name, by), 0) >= _AGAIN
        followed = self.known.get(key) or (self.known.get((name, by)) if many else None)
        if followed is None:
            self.times[name, by] = self.times.get((name, by), 0) + 1
            followed = (*self._body(function, frame), frame.reduced)
            self.known[key] = self.known[name, by] = followed
            self.known[name,] = followed
        value, calls, _ = followed
        if len(self.trace) < MOST_CALLS:
            self.trace += [self._under(call) for call in calls if not self._never(call)]
        return value

    def _body(self, function: Function, frame: CallFrame) -> tuple[AbstractValue, list[Call]]:
        """What it gives, and what is done in it, under its own conditions and loops only."""
        outer = self.trace, self.guards, self.loops, self.statement, self.target, self.still
        self.trace, self.guards, self.loops, self.target = [], [], [], ""
        for node in function.node.decorator_list:
            called = node.func if isinstance(node, ast.Call) else node
            if conditions.of_one_rank(text(called).rpartition(".")[2]):
                self.guards.append(
                    Guard(kind="rank", branch="if", text=f"@{text(node)}", line=node.lineno, file=function.file)
                )
            self.still += library.is_still(text(called))
        self.stack.append(function.name)
        try:
            self.block(function.node.body, frame)
        except LeftBlock:
            pass
        finally:
            self.stack.pop()
            calls = self.trace
            self.trace, self.guards, self.loops, self.statement, self.target, self.still = outer
        if frame.yielded:
            return join(frame.yielded), calls
        value = join(frame.returned)
        differs = (
            frame.split and AGREED not in value.tags and any(returned != value for returned in frame.returned)
        )
        return value.with_(SOME, MAY_LACK) if differs else value, calls

    def _around(self, function: Function) -> CallFrame | None:
        outer = function.name.rpartition(".")[0]
        if outer in self.functions and outer in self.closures:
            return self.closures[outer]
        self.file(function.file)
        return self.modules.get(function.file)

    def _arguments(
        self,
        function: Function,
        frame: CallFrame,
        given: Sequence[AbstractValue],
        named: Mapping[str, AbstractValue],
    ) -> None:
        arguments = function.node.args
        parameters = function.parameters
        variables = frame.variables
        plain = arguments.defaults
        for name, default in zip(parameters[len(parameters) - len(plain) :], plain, strict=True):
            variables[name] = self._default(default)
        for only, node in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            variables[only.arg] = self._default(node) if node is not None else NOTHING
        variables |= dict(zip(parameters, given, strict=False))
        known = {*parameters, *(argument.arg for argument in arguments.kwonlyargs)}
        variables |= {name: value for name, value in named.items() if name in known}
        if arguments.vararg is not None:
            variables[arguments.vararg.arg] = AbstractValue(items=tuple(given[len(parameters) :]))
        if arguments.kwarg is not None:
            more = {f"[{name!r}]": value for name, value in named.items() if name and name not in known}
            thing = f"dict@{function.file}:{function.node.lineno}.0"
            self.things[thing] = Thing("dict", fields=more)
            variables[arguments.kwarg.arg] = AbstractValue(frozenset({thing}) | carried(*more.values()))
        for name in parameters:
            variables.setdefault(name, AbstractValue(symbol=f"{function.name}.{name}"))

    def _default(self, node: ast.expr) -> AbstractValue:
        return constant(node.value) if isinstance(node, ast.Constant) else NOTHING

    def _fields(self, me: AbstractValue | None) -> list[object]:
        """What an object holds, as far as it decides what its methods do."""
        if me is None:
            return []
        return [
            (thing, *sorted((k, v.tags) for k, v in self.things[thing].fields.items() if v.tags))
            for thing in me.objects
        ]

    def _rest_of(self, me: AbstractValue | None) -> list[object]:
        """Which models are at rest, for what a model does."""
        return [self.at_rest] if me is not None and me.of("module") and self.at_rest else []

    def _never(self, call: Call) -> bool:
        """Whether it stands under the opposite of a condition on the rank that is around: on no rank."""
        around = {(guard.text, guard.branch == "if") for guard in self.guards if guard.kind == "rank"}
        return any(guard.kind == "rank" and (guard.text, guard.branch != "if") in around for guard in call.guards)

    def _under(self, call: Call) -> Call:
        """The call as it is seen from outside its function."""
        if not self.guards and not self.loops:
            return call
        return library.replaced(call, guards=[*self.guards, *call.guards], loops=[*self.loops, *call.loops])

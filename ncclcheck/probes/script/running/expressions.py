"""Expressions of a script -> what is known of their values."""

from __future__ import annotations

import ast
import builtins
import re

from ncclcheck.probes.script import conditions, names
from ncclcheck.probes.script.running import each, library, vocabulary
from ncclcheck.probes.script.running.recording import Recording
from ncclcheck.probes.script.running.values import (
    BY_RANK,
    CLOCK,
    FIRST,
    LIVE,
    LOCAL,
    MAY_LACK,
    MEAN,
    NOTHING,
    NUMBERED,
    ON_CPU,
    OWN,
    RANK,
    SHARE,
    SOME,
    SUMMED,
    AbstractValue,
    CallFrame,
    Function,
    carried,
    constant,
    join,
    may_lack,
    symbol,
)
from ncclcheck.probes.script.words import text

_NUMBER = re.compile(r"-?\d{1,9}")
_TEXT_KEY = re.compile(r"\[(['\"])[^'\"\\\\]*\1\]")


class Expressions(Recording):
    """A rank that works out values."""

    def table(self, value: AbstractValue) -> dict[str, AbstractValue] | None:
        """The entries of one table whose keys are texts; None where it is not known."""
        tables = value.of("dict")
        if len(tables) != 1:
            return None
        fields = self.things[tables[0]].fields
        keys = {key: ast.literal_eval(key[1:-1]) for key in fields if _TEXT_KEY.fullmatch(key)}
        return {keys[key]: fields[key] for key in keys} if len(keys) == len(fields) else None

    def value(self, node: ast.expr, frame: CallFrame) -> AbstractValue:
        """What an expression gives."""
        kind = type(node)
        if kind is ast.Constant:
            return constant(node.value)  # type: ignore[attr-defined]
        if kind is ast.Name:
            return self._name(node.id, frame)  # type: ignore[attr-defined]
        if kind is ast.Attribute:
            return self._attribute(node, frame)  # type: ignore[arg-type]
        if kind is ast.Call:
            return self.called_with(node, frame)  # type: ignore[arg-type]
        match node:
            case ast.Tuple() | ast.List():
                items = tuple(self.value(node, frame) for node in node.elts)
                return AbstractValue(symbol=symbol("list", *items) if items else "", items=items)
            case ast.Starred() | ast.Await():
                return self.value(node.value, frame)
            case ast.IfExp():
                return self._either(node, frame)
            case ast.Compare():
                return self._compare(node, frame)
            case ast.BoolOp():
                values = [self.value(node, frame) for node in node.values]
                first = [FIRST in operand.tags for operand in values]
                kept = {tag for operand in values for tag in operand.tags if "@" in tag}
                kept |= {FIRST} if any(first) and (isinstance(node.op, ast.And) or all(first)) else set()
                return each.with_each(
                    AbstractValue(carried(*values) | kept), each.all_of(values, isinstance(node.op, ast.And))
                )
            case ast.UnaryOp():
                inner = self.value(node.operand, frame)
                value = AbstractValue(
                    carried(inner) | (inner.tags & {FIRST}), symbol(type(node.op).__name__, inner)
                )
                return each.with_each(value, each.negated(inner, node.op))
            case ast.BinOp():
                left, right = self.value(node.left, frame), self.value(node.right, frame)
                made = each.summed(node.op, left, right)
                if isinstance(node.op, ast.Mod) and RANK in left.tags:
                    return each.with_each(AbstractValue((carried(left, right) - {BY_RANK}) | {LOCAL}), made)
                value = self._combined(node.op, left, right, self._joined(node.op, left, right))
                return each.with_each(value, made)
            case ast.JoinedStr():
                parts = [self.value(node, frame) for node in node.values]
                return each.with_each(AbstractValue(carried(*parts), symbol("text", *parts)), each.text_of(parts))
            case ast.FormattedValue():
                value = self.value(node.value, frame)
                return (
                    value if node.format_spec is None else AbstractValue(carried(value), symbol("format", value))
                )
            case ast.Subscript():
                return self._subscript(node, frame)
            case ast.Dict():
                return self._dict(node, frame)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                return self._comprehension(node, frame)
            case ast.NamedExpr():
                value = self.value(node.value, frame)
                self.bind(node.target, value, frame, self.statement)
                return value
            case ast.Yield() | ast.YieldFrom():
                value = self.value(node.value, frame) if node.value else NOTHING
                frame.yielded.append(value)
                return NOTHING
            case ast.Lambda():
                return self._lambda(node, frame)
            case _:
                parts = [
                    self.value(node, frame) for node in ast.iter_child_nodes(node) if isinstance(node, ast.expr)
                ]
                return AbstractValue(carried(*parts))

    def _combined(self, op: ast.operator, left: AbstractValue, right: AbstractValue, name: str) -> AbstractValue:
        """What two numbers make; divided, a sum is none any more, and what is a rank's own is an average."""
        tags = carried(left, right)
        if ON_CPU in left.tags | right.tags and all(
            ON_CPU in number.tags or not number.tags & {LIVE, OWN} for number in (left, right)
        ):
            tags |= {ON_CPU}
        if isinstance(op, ast.Div | ast.FloorDiv | ast.Mult):
            tags -= {SUMMED}
        if isinstance(op, ast.Div) and OWN in left.tags:
            tags |= {MEAN}
        return AbstractValue(tags, name)

    def _joined(self, op: ast.operator, left: AbstractValue, right: AbstractValue) -> str:
        return symbol("path" if isinstance(op, ast.Div) else type(op).__name__, left, right)

    def _name(self, name: str, frame: CallFrame) -> AbstractValue:
        variable = frame.look(name)
        if variable is not None:
            return variable
        meaning = names.resolved(name, "", self.every[frame.file], self.every)
        if ":" in meaning:
            if meaning in self.functions:
                return AbstractValue(frozenset({f"fn:{meaning}"}))
            if meaning in self.classes:
                return AbstractValue(frozenset({f"class:{meaning}"}))
            file, _, inner = meaning.partition(":")
            home = self.modules.get(file)
            if home and inner in home.variables:
                return home.variables[inner]
        if hasattr(builtins, name):
            return NOTHING
        if meaning.startswith("torch.distributed."):
            return AbstractValue(frozenset({f"lib:{meaning}"}), meaning)
        guessed = library.by_name(name)  # nothing gives it a value: which one it is on each rank is not known
        return AbstractValue(
            guessed, name if meaning == name else meaning, each=each.NOT_KNOWN if guessed else None
        )

    def _attribute(self, node: ast.Attribute, frame: CallFrame) -> AbstractValue:
        written = text(node)
        if (known := frame.look(written)) is not None:
            return known
        on = self.value(node.value, frame)
        values = []
        for name in on.objects:
            thing = self.things[name]
            if node.attr in thing.fields:
                value = thing.fields[node.attr]
                number = value.symbol.lstrip("-").isdecimal() and node.attr in self.given_again
                value = value._replace(symbol="") if number else value
                part = (
                    thing.kind in ("module", "ddp", "fsdp") and value.of("module", "new") and node.attr != "module"
                )
                values.append(value.with_(f"in:{name}") if part else value)
            elif method := self.method(thing.cls, node.attr):
                decorated = {text(node) for node in self.functions[method].node.decorator_list}
                if "property" in decorated and not isinstance(node.ctx, ast.Store):
                    values.append(self.call(method, [], {}, AbstractValue(frozenset({name}))))
                else:
                    values.append(AbstractValue(frozenset({f"fn:{method}", f"me:{name}"})))
            elif thing.kind == "ddp":
                self.add(
                    "attribute", node.lineno, {"0": ast.Constant(node.attr)}, [], on=text(node.value), made=on
                )
            if thing.kind in ("ddp", "fsdp") and node.attr == "module" and "module" in thing.fields:
                values.append(thing.fields["module"])
        if values:
            return join(values)
        full = self.dotted(node, frame)
        if ":" in full:
            file, _, inner = full.partition(":")
            home = self.modules.get(file)
            if home and inner in home.variables:
                return home.variables[inner]
            if full in self.functions:
                return AbstractValue(frozenset({f"fn:{full}"}))
            if full in self.classes:
                return AbstractValue(frozenset({f"class:{full}"}))
        for tag in on.tags:
            if tag.startswith("class:") and node.attr in (own := self.class_fields(tag[6:])):
                return own[node.attr]
        tags = carried(on) | library.by_name(node.attr)
        if full.startswith("torch.distributed."):
            tags |= {f"lib:{full}"}
        tags |= {f"in:{model}" for model in on.of("ddp", "fsdp", "module", "new")}
        tags |= {tag for tag in on.tags if tag.startswith("in:")}
        if node.attr in vocabulary.SHAPES:
            tags -= {OWN, LIVE}
        return AbstractValue(tags, f"{on.symbol}.{node.attr}" if on.symbol else "")

    def decided(self, test: ast.expr, frame: CallFrame) -> bool | None:
        """Whether a parameter's constant decides it: `data_sampler(data, distributed=False)`."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.decided(test.operand, frame)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            return self._decided_of_several(test, frame)
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            value, other = self._constant(test.left, frame), test.comparators[0]
            if value is None or not isinstance(other, ast.Constant):
                return None
            return _holds(test.ops[0], value.symbol, other.value)
        value = self._constant(test, frame)
        return value.symbol == "True" if value is not None and value.symbol in ("True", "False", "None") else None

    def _decided_of_several(self, test: ast.BoolOp, frame: CallFrame) -> bool | None:
        """`a and b`, where one of them decides, or both are known."""
        every = isinstance(test.op, ast.And)
        parts = [self.decided(node, frame) for node in test.values]
        if (not every) in parts:
            return not every
        return None if None in parts else every

    def _constant(self, node: ast.expr, frame: CallFrame) -> AbstractValue | None:
        """A variable of a function that holds a constant; what an object gives itself, in one place alone."""
        value = None
        if isinstance(node, ast.Name):
            value = frame.variables.get(node.id) if frame.scope else None
        elif isinstance(node, ast.Attribute) and node.attr not in self.given_again and text(node.value) == "self":
            on = frame.look("self")
            held = [self.things[thing].fields.get(node.attr) for thing in on.objects] if on is not None else []
            value = held[0] if len(held) == 1 else None
        return value if value is not None and not value.tags and value.symbol else None

    def _either(self, node: ast.IfExp, frame: CallFrame) -> AbstractValue:
        if (known := self.decided(node.test, frame)) is not None:
            return self.value(node.body if known else node.orelse, frame)
        guard = self.guard(node.test, "if", frame)
        values = []
        for branch, part in (("if", node.body), ("else", node.orelse)):
            if conditions.single(node.test, branch == "if"):
                continue
            with self.inside(self.guards, guard if branch == "if" else library.other_branch(guard)):
                values.append(self.value(part, frame))
        value = join(values)
        unlike = guard.kind == "rank" and any(other != value for other in values)
        value = value.with_(SOME, *may_lack(values)) if unlike else value
        if unlike and len(values) > 1:
            return each.with_each(value, each.chosen(each.of_guard(guard), *values))
        return value

    def _lambda(self, node: ast.Lambda, frame: CallFrame) -> AbstractValue:
        """A function without a name, which is followed where it is called."""
        inner = f"<lambda_{node.lineno}_{node.col_offset}>"
        full = f"{frame.file}:{frame.scope}.{inner}" if frame.scope else f"{frame.file}:{inner}"
        if full not in self.functions:
            body = ast.copy_location(ast.Return(node.body), node.body)
            made = ast.FunctionDef(name=inner, args=node.args, body=[body], decorator_list=[])
            self.functions[full] = Function(full, ast.copy_location(made, node), frame.file)
        if frame.scope:
            self.closures[full.rpartition(".")[0]] = frame
        return AbstractValue(frozenset({f"fn:{full}"}))

    def class_fields(self, cls: str) -> dict[str, AbstractValue]:
        """What a class gives its objects: `lr: float = 0.1` in its body, or in that of what it is made from."""
        if cls in self.of_classes:
            return self.of_classes[cls]
        self.of_classes[cls] = {}
        fields: dict[str, AbstractValue] = {}
        for base in reversed(self.bases(cls)):
            fields |= self.class_fields(base) if base in self.classes else {}
        frame = CallFrame(cls.partition(":")[0], "")
        for node in self.classes[cls].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                given = node.value if node.value is not None else ast.Name("...")
                plain = isinstance(given, ast.Constant)
                fields[node.target.id] = (
                    constant(given.value) if plain else AbstractValue(library.by_name(node.target.id))  # type: ignore[attr-defined]
                )
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                constants = isinstance(node.value, ast.Constant)
                name = node.targets[0].id
                fields[name] = self.value(node.value, frame) if constants else AbstractValue(library.by_name(name))
        self.of_classes[cls] = fields
        return fields

    def _compare(self, node: ast.Compare, frame: CallFrame) -> AbstractValue:
        sides = [self.value(node, frame) for node in (node.left, *node.comparators)]
        tags = set(carried(*sides)) - {LIVE}
        if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops):
            tags -= {OWN, CLOCK}
            if MAY_LACK in sides[0].tags and text(node.comparators[0]) == "None":
                tags |= {FIRST}
        elif any(side.tags & {RANK, LOCAL} for side in sides) and conditions.kind(node, self.ranks) != "group":
            tags |= {FIRST}
        return each.with_each(AbstractValue(frozenset(tags)), each.compared(node.ops, sides))

    def _subscript(self, node: ast.Subscript, frame: CallFrame) -> AbstractValue:
        if library.is_environ(text(node.value)):
            return library.variable(text(node.slice).strip("'\""))
        on, key = self.value(node.value, frame), self.value(node.slice, frame)
        parts = [
            self.things[name].fields[f"[{key.symbol}]"]
            for name in on.objects
            if f"[{key.symbol}]" in self.things[name].fields
        ]
        if parts:
            return join(parts)
        table = [value for name in on.of("dict") for value in self.things[name].fields.values()]
        if any(tag.startswith(("fn:", "class:", "lib:")) for value in table for tag in value.tags):
            return join(table)  # one of a table of functions
        if on.items is not None and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            at = node.slice.value
            if -len(on.items) <= at < len(on.items):
                return on.items[at]
        tags = carried(on, key) | {f"in:{model}" for model in on.of("module", "new")}
        if isinstance(node.slice, ast.Slice) and BY_RANK in key.tags and node.slice.step is not None:
            tags = (tags - {BY_RANK}) | {SHARE, OWN}
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            tags |= library.by_name(node.slice.value)
        return AbstractValue(tags, symbol("part", on, key))

    def _dict(self, node: ast.Dict, frame: CallFrame) -> AbstractValue:
        made = self.make("dict", node)
        target = self.target
        for key, value in zip(node.keys, node.values, strict=True):
            given = self.value(value, frame)
            if key is not None:
                name = f"[{self.value(key, frame).symbol}]"
                self.things[made].fields[name] = given
                self.things[made].written[name] = value
            elif (table := self.table(given)) is not None:
                self.things[made].fields |= {f"[{name!r}]": value for name, value in table.items()}
        self.target = target
        return AbstractValue(frozenset({made}) | carried(*self.things[made].fields.values()))

    def _comprehension(self, node: ast.expr, frame: CallFrame) -> AbstractValue:
        before = dict(frame.variables)
        parts = []
        for generator in node.generators:  # type: ignore[attr-defined]
            over = self.value(generator.iter, frame)
            parts.append(over)
            self.bind(generator.target, self.element(over), frame, self.statement)
            for test in generator.ifs:
                self.value(test, frame)
        inner = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]  # type: ignore[attr-defined]
        values = [self.value(part, frame) for part in inner]
        frame.variables = before
        objects = frozenset(tag for value in values for tag in value.tags if "@" in tag)
        return AbstractValue(carried(*parts, *values) | objects)

    def element(self, value: AbstractValue) -> AbstractValue:
        """What a loop over it gives."""
        if NUMBERED in value.tags:
            return AbstractValue(items=(NOTHING, self.element(value.but(NUMBERED))))
        if value.items is not None:
            return join(value.items) if value.items else NOTHING
        loaders = value.of("loader")
        tags = set(value.tags - {*loaders})
        for loader in loaders:
            tags |= {f"from:{loader}"}
            tags |= {OWN} if self.is_shared(loader) else set()
        return AbstractValue(frozenset(tags))

    def is_shared(self, loader: str) -> bool:
        """Whether it gives each rank other samples."""
        fields = self.things[loader].fields
        if "prepared" in fields:
            return True
        sampler = fields.get("sampler", NOTHING)
        data = fields.get("dataset", NOTHING).all_tags
        return bool(sampler.of("sampler", "sampled") or sampler.tags & {BY_RANK, SHARE} or data & {SHARE, BY_RANK})


def _holds(op: ast.cmpop, symbol: str, other: object) -> bool | None:
    """A comparison of two constants; None where it is not known, or where a class may compare in its own way."""
    if other is None:
        return isinstance(op, ast.Is | ast.Eq) if symbol == "None" else None
    if isinstance(other, str):
        known = symbol[:1] in ("'", '"') and isinstance(op, ast.Eq | ast.NotEq)
        return (symbol == repr(other)) == isinstance(op, ast.Eq) if known else None
    if isinstance(other, bool) or not isinstance(other, int) or not _NUMBER.fullmatch(symbol):
        return None
    compare = each.TESTS.get(type(op))
    return bool(compare(int(symbol), other)) if compare is not None else None

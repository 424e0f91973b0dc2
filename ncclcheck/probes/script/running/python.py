"""What Python's own functions give: `partial`, `dict`, `defaultdict`, `range`, `zip`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ncclcheck.probes.script.running import vocabulary
from ncclcheck.probes.script.running.values import (
    BY_RANK,
    DEFAULT,
    LOCAL,
    NOTHING,
    NUMBERED,
    OWN,
    RANK,
    SHARE,
    SOME,
    UNEVEN,
    AbstractValue,
    CallFrame,
    carried,
    constant,
    join,
)

if TYPE_CHECKING:
    from ncclcheck.probes.script.running.calling import Calling as Run

_MOST_PARTS = 200  # of a model that are told that it is put to rest (chosen, bounds time)


def called(
    run: Run,
    node: ast.Call,
    name: str,
    on: AbstractValue,
    given: list[AbstractValue],
    named: Mapping[str, AbstractValue],
    frame: CallFrame,
) -> AbstractValue | None:
    """`partial`, `dict`, `getattr`, and the options of a command line; None for all else."""
    last = name.rpartition(".")[2]
    if last == "add_argument":
        _add_option(run, node, named)
        return NOTHING
    if last in ("ArgumentParser", "parse_args", "parse_known_args", "Namespace", "OmegaConf"):
        fields = run.options if last.startswith("parse") else {}
        options = AbstractValue(frozenset({run.make("options", node, fields=fields)}), "options")
        return options._replace(items=(options, NOTHING)) if last == "parse_known_args" else options
    if name in ("functools.partial", "partial") and given:
        return _partial(run, node, given, named)
    if name == "dict" and not node.args:
        return _table(run, node, named)
    if name.endswith("defaultdict") and given:
        return _made_when_asked(run, node, given[0])
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("values", "items", "get") and on.of("dict"):
        entries = [entry for made in on.of("dict") for entry in run.things[made].fields.values()]
        if any(entry.objects for entry in entries):
            return join(entries)._replace(symbol="")
    if name == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
        asked = ast.Attribute(node.args[0], str(node.args[1].value), ast.Load())
        return run.value(ast.copy_location(asked, node), frame)
    return None


def _made_when_asked(run: Run, node: ast.Call, factory: AbstractValue) -> AbstractValue:
    """`defaultdict(Meter)`: whatever it is asked for is one of the class."""
    made = run.make("dict", node)
    for tag in sorted(factory.tags):
        cls = tag.removeprefix("class:")
        if cls != tag and cls in run.classes:
            run.things[made].fields["[]"] = run.build(cls, node, [], {})
    return AbstractValue(frozenset({made}))


def updated(
    run: Run, last: str, on: AbstractValue, given: list[AbstractValue], named: Mapping[str, AbstractValue]
) -> None:
    """A table is given the entries of another one."""
    for made in on.of("dict") if last == "update" else []:
        new = dict(named)
        for table in given:
            new |= run.table(table) or {"": NOTHING}
        run.things[made].fields |= {f"[{key!r}]" if key else "[]": value for key, value in new.items()}


def _partial(
    run: Run, node: ast.Call, given: list[AbstractValue], named: Mapping[str, AbstractValue]
) -> AbstractValue:
    """A function with a part of what it is given."""
    fields = {"partial": given[0], **{str(at): value for at, value in enumerate(given[1:])}, **named}
    made = run.make("partial", node, fields=fields)
    written = {str(at): node for at, node in enumerate(node.args[1:])}
    written |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    run.things[made].written = {key: written.get(key, ast.Name("...")) for key in fields if key != "partial"}
    return AbstractValue(frozenset({made}))


def _table(run: Run, node: ast.Call, named: Mapping[str, AbstractValue]) -> AbstractValue:
    """`dict(shuffle=True, **others)`."""
    made = run.make("dict", node)
    run.things[made].fields = {f"[{key!r}]" if key else "[]": value for key, value in named.items()}
    run.things[made].written = {f"[{keyword.arg!r}]": keyword.value for keyword in node.keywords if keyword.arg}
    return AbstractValue(frozenset({made}) | carried(*named.values()))


def numbers(given: list[AbstractValue]) -> AbstractValue:
    tags = carried(*given)
    if len(given) == 3 and given[0].tags & {RANK, LOCAL}:
        return AbstractValue((tags - {BY_RANK}) | {SHARE, OWN})
    if any(SOME in value.tags for value in given):
        tags |= {UNEVEN}
    return AbstractValue(tags)


def several(last: str, given: list[AbstractValue]) -> AbstractValue:
    """`enumerate(loader)`, `zip(a, b)`: what a loop gives is a tuple; the loaders are kept."""
    tags = frozenset(tag for value in given for tag in value.all_tags)
    return AbstractValue(tags | {NUMBERED} if last == "enumerate" else tags)


def _add_option(run: Run, node: ast.Call, named: Mapping[str, AbstractValue]) -> None:
    """`add_argument("--port", default=29500)`: what it is where the command line does not say it."""
    names = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    spelled = next((name for name in names if name.startswith("--")), names[0] if names else "")
    name = spelled.lstrip("-").replace("-", "_")
    for keyword in node.keywords:
        if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
            name = str(keyword.value.value)
    default = named.get("default", NOTHING)
    if "action" in named and "default" not in named and named["action"].symbol == "'store_true'":
        default = constant(False)
    known = default.symbol and default.symbol != "None" and default.items is None
    if name.isidentifier() and known and not vocabulary.is_number_of_job(name):
        run.options[name] = default.with_(DEFAULT)


def put_to_rest(run: Run, on: AbstractValue, *, rests: bool) -> None:
    """`model.eval()`, or `model.train()`: what `self.training` is in it and in its parts."""
    waiting, seen = [*on.of("ddp", "fsdp", "module")], {""}
    while waiting:
        thing = waiting.pop()
        if thing not in seen and len(seen) < _MOST_PARTS:
            seen.add(thing)
            fields = run.things[thing].fields
            waiting += [part for value in fields.values() for part in value.of("module", "ddp", "fsdp")]
            fields["training"] = constant(not rests)
    run.at_rest = run.at_rest | seen if rests else run.at_rest - seen

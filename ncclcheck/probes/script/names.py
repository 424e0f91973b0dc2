"""What names of one file stand for: imports, functions and classes of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ncclcheck.probes.script.sources import ParsedFile
from ncclcheck.probes.script.words import text

_ALIASED = re.compile(r"(?:^|\.)Distributed(?:Sampler|DataParallel)$")
_CHAIN = 8  # imports of imports that are followed; a package's __init__ needs two


@dataclass
class ScriptNames:
    """Names of a file. meaning: imported name -> dotted name or FILE:NAME. own: functions and methods ->
    FILE:NAME.

    built: variable -> class of the script, where it is built by its name. stars: files all names of which it
    imports.
    """

    file: str
    meaning: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)
    built: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)


def of_source(source: ParsedFile) -> ScriptNames:
    """What the file itself says."""
    names = ScriptNames(source.name)
    if source.tree is None:
        return names
    for plain in source.of(ast.Import):
        for name in plain.names:
            module = name.name if name.asname else name.name.partition(".")[0]
            names.meaning[name.asname or module] = _module(source, name.name if name.asname else module)
    for node in source.of(ast.ImportFrom):
        _from(node, source, names)
    for statement in source.tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            names.own[statement.name] = f"{source.name}:{statement.name}"
            inner = [node for node in statement.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            for function in inner:
                names.own.setdefault(function.name, f"{source.name}:{statement.name}.{function.name}")
        elif isinstance(statement, ast.ClassDef):
            names.classes.add(statement.name)
            names.own |= _methods(statement, source.name)
    for given in source.of(ast.Assign):
        _alias(given, names)
        if isinstance(given.value, ast.Call) and isinstance(given.value.func, ast.Name):
            for target in given.targets:
                names.built[text(target)[:80]] = given.value.func.id
    return names


def _alias(given: ast.Assign, names: ScriptNames) -> None:
    """`Sampler = DistributedSampler`, also where another one is taken without a group."""
    for value in (given.value.body, given.value.orelse) if isinstance(given.value, ast.IfExp) else (given.value,):
        chain = text(value) if isinstance(value, ast.Name | ast.Attribute) else ""
        if _ALIASED.search(chain) and isinstance(given.targets[0], ast.Name):
            head, _, rest = chain.partition(".")
            meaning = names.meaning.get(head, "")
            if meaning and ":" not in meaning:
                names.meaning[given.targets[0].id] = f"{meaning}.{rest}" if rest else meaning


def _methods(statement: ast.ClassDef, file: str) -> dict[str, str]:
    methods = [node for node in statement.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {f"{statement.name}.{method.name}": f"{file}:{statement.name}.{method.name}" for method in methods}


def _module(source: ParsedFile, module: str) -> str:
    """A module of the script's own is its file."""
    return f"{source.local[module]}:" if module in source.local else module


def _from(node: ast.ImportFrom, source: ParsedFile, names: ScriptNames) -> None:
    module = "." * node.level + (node.module or "")
    for name in node.names:
        inner = f"{module}{'.' if node.module else ''}{name.name}"
        if name.name == "*":
            names.stars += [source.local[module]] if module in source.local else []
        elif inner in source.local:
            names.meaning[name.asname or name.name] = f"{source.local[inner]}:"
        elif module in source.local:
            names.meaning[name.asname or name.name] = f"{source.local[module]}:{name.name}"
        else:
            names.meaning[name.asname or name.name] = f"{module}.{name.name}"


def chain_of(node: ast.expr) -> str:
    """`a.b.c`; `.c` where it is asked of what is no name, such as a call; empty where it is neither."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return ".".join([node.id, *reversed(parts)])
    return f".{parts[0]}" if parts else ""


def resolved(chain: str, inside: str, here: ScriptNames, every: Mapping[str, ScriptNames]) -> str:
    """What `dist.barrier` or `self.save` means; inside: the class around it. ".barrier" where it is not known."""
    head, _, rest = chain.partition(".")
    if head == "self" and f"{inside}.{rest}" in here.own:
        return here.own[f"{inside}.{rest}"]
    on, _, method = chain.rpartition(".")
    if on in here.built and (own := _of_class(here.built[on], method, here, every)):
        return own
    meaning = _meaning(head, here, every)
    if not meaning:
        return f".{rest.rpartition('.')[2]}" if rest else chain
    if meaning.endswith(":"):
        return _in_file(meaning[:-1], rest, every)
    if ":" in meaning and not rest:
        file, _, name = meaning.partition(":")
        return _in_file(file, name, every)
    return f"{meaning}.{rest}" if rest else meaning


def _of_class(name: str, method: str, here: ScriptNames, every: Mapping[str, ScriptNames]) -> str:
    meaning = _meaning(name, here, every)
    file, _, cls = meaning.rpartition(":")
    if file and (home := every.get(file)):
        return home.own.get(f"{cls}.{method}", "")
    return ""


def _meaning(name: str, here: ScriptNames, every: Mapping[str, ScriptNames]) -> str:
    if name in here.own or name in here.classes:
        return here.own.get(name, f"{here.file}:{name}")
    if name in here.meaning:
        return here.meaning[name]
    for star in here.stars:
        if (home := every.get(star)) and (name in home.own or name in home.classes or name in home.meaning):
            return home.meaning.get(name, f"{star}:{name}")
    return ""


def _in_file(file: str, name: str, every: Mapping[str, ScriptNames]) -> str:
    """A name of another file, which may have it from a third one."""
    for _ in range(_CHAIN):
        home = every.get(file)
        if home is None or name in home.own or name in home.classes:
            break
        head, _, rest = name.partition(".")
        meaning = _meaning(head, home, every)
        if not meaning:
            break
        if ":" not in meaning:
            return f"{meaning}.{rest}" if rest else meaning
        file, _, inner = meaning.partition(":")
        name = ".".join(part for part in (inner, rest) if part)
    return f"{file}:{name}"

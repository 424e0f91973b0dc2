"""Expressions as text, and what stands in a file by name."""

from __future__ import annotations

import ast
from collections import Counter

from ncclcheck.probes.script.sources import ParsedFile

_LONG = 200  # characters of an argument, a condition
_MOST_WORDS = 20_000  # of one file: chosen, written ones have some hundred
_ASKED = "local_rank"  # an attribute that is told apart from a variable of its name, by a dot
_SHORT = 40  # characters of a string that may be a name: of a variable, an option, a key


def text(node: ast.AST) -> str:
    """As Python would write it, at most 200 characters. Most are names and constants and need no ast.unparse."""
    return _plain(node) or ast.unparse(node)[:_LONG]


def _plain(node: ast.AST) -> str:
    """Empty where it is neither a chain of names nor a short constant."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant):
        plain = isinstance(node.value, str | int) and node.value != ""
        return repr(node.value)[:_LONG] if plain and len(repr(node.value)) < _LONG else ""
    if isinstance(node, ast.Attribute) and (on := _plain(node.value)) and not isinstance(node.value, ast.Constant):
        return f"{on}.{node.attr}"
    return ""


def of_source(source: ParsedFile, dead: Counter[str]) -> list[str]:
    """Names and short strings in it; what is only imported is not used. ".local_rank" is one that is read.

    dead: how often words stand in functions that nothing leads to.
    """
    if dead:
        return _of_living(source, dead)
    words = {node.id for node in source.of(ast.Name)}
    words |= {node.attr for node in source.of(ast.Attribute)}
    words |= (
        {f".{_ASKED}"}
        if _ASKED in words
        and any(node.attr == _ASKED and isinstance(node.ctx, ast.Load) for node in source.of(ast.Attribute))
        else set()
    )
    words |= {node.arg or "" for node in source.of(ast.keyword)}
    words |= {
        node.value for node in source.of(ast.Constant) if isinstance(node.value, str) and len(node.value) < _SHORT
    }
    return sorted(words)[:_MOST_WORDS]


def _of_living(source: ParsedFile, dead: Counter[str]) -> list[str]:
    """The same, where some words do not count."""
    every = Counter(node.id for node in source.of(ast.Name))
    every.update(node.attr for node in source.of(ast.Attribute))
    every.update(node.arg or "" for node in source.of(ast.keyword))
    every.update(node.value for node in source.of(ast.Constant) if isinstance(node.value, str))
    words = {word for word, count in every.items() if count > dead[word] and len(word) < _SHORT}
    read = any(node.attr == _ASKED and isinstance(node.ctx, ast.Load) for node in source.of(ast.Attribute))
    return sorted(words | ({f".{_ASKED}"} if _ASKED in words and read else set()))[:_MOST_WORDS]


def modules(source: ParsedFile) -> list[str]:
    """What it imports, but for its own files."""
    names = {name.name for node in source.of(ast.Import) for name in node.names}
    for node in source.of(ast.ImportFrom):
        if node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return sorted(names - {*source.local})[:_MOST_WORDS]


def never_read(source: ParsedFile, targets: set[str]) -> list[str]:
    """Those of the variables that nothing reads, but to call their set_epoch."""
    named: list[ast.Name | ast.Attribute] = [*source.of(ast.Name), *source.of(ast.Attribute)]
    reads = Counter(text(name) for name in named if isinstance(name.ctx, ast.Load))
    for node in source.of(ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "set_epoch":
            reads[text(node.func.value)] -= 1
    return sorted(target for target in targets if not reads[target])


def ends(tree: ast.Module | None) -> dict[str, tuple[int, int]]:
    """Of the file's own lines ("") and of its functions the last line, and how far what follows it is indented.

    Where a block ends by leaving, nothing could follow, and it is left out.
    """
    if tree is None:
        return {}
    blocks = {"": tree.body}
    blocks |= {node.name: node.body for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = {name: _end(body) for name, body in blocks.items() if body}
    return {name: end for name, end in found.items() if end}


def _end(body: list[ast.stmt]) -> tuple[int, int] | None:
    last = body[-1]
    if isinstance(last, ast.If) and not last.orelse and "__name__" in text(last.test):
        return _end(last.body)
    if isinstance(last, ast.FunctionDef | ast.ClassDef | ast.Return | ast.Raise):
        return None
    called = text(last.value.func) if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) else ""
    if called.endswith(("exit", "app.run")):
        return None
    return last.end_lineno or last.lineno, body[0].col_offset

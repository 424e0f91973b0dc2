"""Functions of imported files that the script comes to, as far as names tell: what others say does not count."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ncclcheck.probes.script import conditions
from ncclcheck.probes.script.names import ScriptNames
from ncclcheck.probes.script.sources import ParsedFile

_Unit = tuple[str, str]  # file; name of a function or a class at its top, empty for its own lines
_WORD = re.compile(r"[^\W\d]\w*")


def dead(files: Sequence[ParsedFile], every: Mapping[str, ScriptNames]) -> dict[str, list[ast.AST]]:
    """File -> functions and classes at its top, and main programs, that nothing leads to.

    A name that is written anywhere in what is reached leads to all that it may mean. Where a file was not parsed
    nothing is dead but main programs: that file may call what no other one does.
    """
    parsed = [source for source in files if source.tree is not None]
    units, bare = _units(parsed)
    if not any(name for _, name in units):
        return {}
    by_name: dict[str, list[_Unit]] = {}
    for unit in units:
        by_name.setdefault(unit[1], []).append(unit)
    reached = {unit for unit in units if not unit[1]} | {
        (source.name, name) for source in parsed if source.named for name in _tops(source)
    }
    if len(parsed) < len(files):
        reached |= {*units} - {unit for unit in units if unit[1] == "main"}
    waiting = [*reached]
    while waiting:
        file, name = waiting.pop()
        for word in _words(units.get((file, name), [])):
            for unit in _meant(word, file, by_name, every):
                if unit not in reached:
                    reached.add(unit)
                    waiting.append(unit)
    gone: dict[str, list[ast.AST]] = {}
    for unit, nodes in units.items():
        if unit not in reached:
            gone.setdefault(unit[0], []).extend(nodes)
    for file, nodes in bare.items():
        gone.setdefault(file, []).extend(nodes)
    return gone


def counted(nodes: Sequence[ast.AST]) -> Counter[str]:
    """How often each word stands in them."""
    words: Counter[str] = Counter()
    for top in nodes:
        for node in ast.walk(top):
            words.update(_said(node))
    return words


def _said(node: ast.AST) -> list[str]:
    match node:
        case ast.Name():
            return [node.id]
        case ast.Attribute():
            return [node.attr]
        case ast.keyword():
            return [node.arg or ""]
        case ast.Constant() if isinstance(node.value, str):
            return [node.value]
    return []


def _tops(source: ParsedFile) -> list[str]:
    body = source.tree.body if source.tree else []
    return [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]


def _units(files: Sequence[ParsedFile]) -> tuple[dict[_Unit, list[ast.AST]], dict[str, list[ast.AST]]]:
    """Each with its nodes; and main programs of imported files, which are never run."""
    units: dict[_Unit, list[ast.AST]] = {}
    bare: dict[str, list[ast.AST]] = {}
    for source in files:
        assert source.tree is not None
        units[source.name, ""] = []
        for node in source.tree.body:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(node, ast.If) and not source.named and conditions.kind(node.test, ()) == "main":
                bare.setdefault(source.name, []).extend(node.body)
            elif isinstance(node, ast.ClassDef) or (is_function and not getattr(node, "decorator_list", [])):
                units.setdefault((source.name, node.name), []).append(node)  # type: ignore[attr-defined]
            else:
                units[source.name, ""].append(node)  # a decorator may keep a function under some name
    return units, bare


def _words(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that stand there, with a dot before those of attributes; and words of short strings."""
    words: set[str] = set()
    for top in nodes:
        for node in ast.walk(top):
            if isinstance(node, ast.Name):
                words.add(node.id)
            elif isinstance(node, ast.Attribute):
                words.add(f".{node.attr}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80:
                words |= {f".{word}" for word in _WORD.findall(node.value)}
            elif isinstance(node, ast.ImportFrom):
                words |= {f".{name.name}" for name in node.names if name.name.startswith("_")}
    return words


def _meant(
    word: str, file: str, by_name: Mapping[str, list[_Unit]], every: Mapping[str, ScriptNames]
) -> list[_Unit]:
    """Units that a word of a file may mean: its own, what it has imported, or, after a dot, any of that name."""
    if word.startswith("."):
        return by_name.get(word[1:], [])
    here = every[file]
    if word in here.meaning:
        meaning = here.meaning[word]
        inner = meaning.rpartition(":")[2] if ":" in meaning else meaning.rpartition(".")[2]
        return by_name.get(inner, []) if ":" in meaning else []
    own = [unit for unit in by_name.get(word, []) if unit[0] == file]
    return own or (by_name.get(word, []) if here.stars else [])

"""Classes of a script: models that may leave layers out, datasets that hold their samples."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ncclcheck.probes.script.sources import ParsedFile
from ncclcheck.probes.script.words import text

# Tests that are the same in every step of a training: how the model was built, and that it is trained.
_FIXED = re.compile(r"(?:not )?self\.training|self\.[\w.]+ is (?:not )?None")
# What makes an array of all samples; a memory map or a file's own format does not.
_ARRAY = re.compile(
    r"(?:torch|np|numpy)\.(?:\w*(?:rand|ones|zeros|full|arange|linspace|tensor)\w*|random\.\w+|eye)\("
)


def branching(source: ParsedFile) -> list[str]:
    """Models whose forward leaves layers out, by what it is given, a flag or chance."""
    return [cls.name for cls, function in _methods(source, "forward") if _may_leave_out(function)]


def in_memory(source: ParsedFile) -> list[str]:
    """Datasets that make all samples as they are built: __getitem__ calls nothing, and reads what they made."""
    methods = _methods(source, "__getitem__")
    return [cls.name for cls, function in methods if _reads_only(function, _made_in(cls))]


def _made_in(owner: ast.ClassDef) -> set[str]:
    """Its lists and arrays; what it is given may read files: another dataset, a memory map."""
    return {
        text(target)
        for node in ast.walk(owner)
        if isinstance(node, ast.Assign)
        and (isinstance(node.value, ast.List | ast.ListComp) or _ARRAY.match(text(node.value)))
        for target in node.targets
    }


def _reads_only(function: ast.FunctionDef, made: set[str]) -> bool:
    parts = [node for statement in function.body for node in ast.walk(statement)]
    read = {text(part.value) for part in parts if isinstance(part, ast.Subscript)}
    return bool(read) and read <= made and not any(isinstance(part, ast.Call) for part in parts)


def _methods(source: ParsedFile, method: str) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    for cls in source.of(ast.ClassDef):
        yield from ((cls, node) for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == method)


def _may_leave_out(function: ast.FunctionDef) -> bool:
    """Whether a layer is called in one branch of a condition, or the function returns there."""
    for node in ast.walk(function):
        if isinstance(node, ast.If | ast.IfExp) and not _FIXED.fullmatch(text(node.test)):
            branches: list[ast.AST] = [node.body, node.orelse] if isinstance(node, ast.IfExp) else []
            branches += [*node.body, *node.orelse] if isinstance(node, ast.If) else []
            if any(_uses_layer(part) for branch in branches for part in ast.walk(branch)):
                return True
    return False


def _uses_layer(part: ast.AST) -> bool:
    return isinstance(part, ast.Return) or (isinstance(part, ast.Call) and text(part.func).startswith("self."))

"""Functions of a script that make its dataset, and can be called without running the script."""

from __future__ import annotations

import ast
import re

from ncclcheck.probes.script.sources import ParsedFile
from ncclcheck.probes.script.words import text

# make_dataset, get_train_loader, build_data; those of validation are not what a job waits for.
_MAKES = re.compile(
    r"(?:make|build|get|create|load|prepare)_(?:train(?:ing)?_)?(?:data|datasets?|data_?loader|loader)"
)
# At the top of a file these run the script as it is imported, or read a command line that is not theirs.
_RUNS = re.compile(r"parse_args|parse_known_args|init_process_group|spawn|backward|set_device|barrier")


def of_source(source: ParsedFile) -> list[str]:
    """Their names; none where the file does its work as it is imported."""
    if source.tree is None or not all(_is_still(statement) for statement in source.tree.body):
        return []
    functions = [node for node in source.tree.body if isinstance(node, ast.FunctionDef)]
    return [
        function.name
        for function in functions
        if _MAKES.fullmatch(function.name) and _needs_nothing(function) and _gives_one(function)
    ]


def _is_still(statement: ast.stmt) -> bool:
    """Imports, definitions, names that are given values, and what only the main module does."""
    if isinstance(statement, ast.If):
        return "__name__" in text(statement.test) or all(map(_is_still, [*statement.body, *statement.orelse]))
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        return not any(_RUNS.search(text(call.func)) for call in calls)
    kept = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Try
    return isinstance(statement, kept)


def _needs_nothing(function: ast.FunctionDef) -> bool:
    given = function.args
    required = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    return not required and None not in given.kw_defaults and not function.decorator_list


def _gives_one(function: ast.FunctionDef) -> bool:
    """One thing is returned, not a tuple of a loader and its sampler."""
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return bool(returned) and all(isinstance(node, ast.Name | ast.Call) for node in returned)

"""Which of the user's files call set_epoch, and which train on what the factory gives; read, never run."""

from __future__ import annotations

import ast
import os
import re
import time
import warnings
from collections.abc import Iterator

from ncclcheck.probes.machine import files

_MOST_FILES = 400  # of a project; each is searched for a word: chosen, then the time is over
_MOST_BYTES = 300_000  # of a file: written source is shorter, generated tables are not read to their end
_MOST_S = 0.15  # of the time budget of `data`, for a remark: chosen
_DEEPEST = 6  # assignments and calls from a loop back to the factory
_CALL = re.compile(rb"\.set_epoch\(")
_LOOP = re.compile(rb"\.backward\(")
_NOT_THEIRS = {"site-packages", "node_modules", "__pycache__", "build", "dist", "venv", "env"}

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


def set_epoch_callers(directory: str, factory: str) -> tuple[list[str], list[str]]:
    """Files that call set_epoch, and those that train on what the factory gives, below the user's folder.

    A loop counts only where what it iterates over leads back to the factory: another loop has another loader.
    """
    module, _, name = factory.rpartition(":")
    where = os.path.dirname(module) if ".py:" in factory else ""
    name = name.partition("(")[0].rpartition(".")[2]
    callers: list[str] = []
    loops: list[str] = []
    for file, text in _sources(os.path.join(directory, where)):
        if _CALL.search(text):
            callers.append(file)
        elif _LOOP.search(text) and name.encode() in text and _trains_on(text, name):
            loops.append(file)
    return callers[:5], loops[:5]


def _trains_on(text: bytes, factory: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return False
    scopes: list[_Scope] = [
        tree,
        *(node for node in ast.walk(tree) if isinstance(node, _Scope) and node is not tree),
    ]
    return any(
        _leads(loop.iter, scope, tree, factory, _DEEPEST)
        for scope in scopes
        for loop in _own(scope)
        if isinstance(loop, ast.For) and _is_innermost(loop)
    )


def _is_innermost(loop: ast.For) -> bool:
    """Whether backward() is called in it, and in no loop within it."""
    inner = [node for node in ast.walk(loop) if isinstance(node, ast.For) and node is not loop]
    return _has_backward(loop) and not any(map(_has_backward, inner))


def _has_backward(node: ast.AST) -> bool:
    calls = (node.func for node in ast.walk(node) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Attribute) and call.attr == "backward" for call in calls)


def _own(scope: _Scope) -> Iterator[ast.AST]:
    """The nodes of a function, or of a file, without those of functions in it."""
    waiting: list[ast.AST] = [*scope.body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)


def _leads(node: ast.AST, scope: _Scope, tree: ast.Module, factory: str, deepest: int) -> bool:
    """Whether a value comes from the factory: by a call, by assignments, or as an argument of this function."""
    names = {node.id for node in ast.walk(node) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(node) if isinstance(node, ast.Attribute)}
    if factory in names | attributes:
        return True
    if not deepest:
        return False
    return any(
        _leads(value, where, tree, factory, deepest - 1)
        for name in names
        for value, where in _origins(name, scope, tree)
    )


def _origins(name: str, scope: _Scope, tree: ast.Module) -> Iterator[tuple[ast.AST, _Scope]]:
    """What this name was given, in the function, in its callers, or in the file."""
    for where in dict.fromkeys((scope, tree)):
        for node in _own(where):
            if isinstance(node, ast.Assign) and any(_binds(target, name) for target in node.targets):
                yield node.value, where
    if isinstance(scope, ast.Module):
        return
    places = [argument.arg for argument in (*scope.args.posonlyargs, *scope.args.args)]
    if name not in (*places, *(argument.arg for argument in scope.args.kwonlyargs)):
        return
    for caller in (node for node in ast.walk(tree) if isinstance(node, _Scope)):
        for call in (node for node in _own(caller) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id == scope.name:
                place = places.index(name) if name in places else len(call.args)
                given = call.args[place : place + 1] + [
                    keyword.value for keyword in call.keywords if keyword.arg == name
                ]
                yield from ((value, caller) for value in given)


def _binds(target: ast.AST, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(target))


def _sources(directory: str) -> Iterator[tuple[str, bytes]]:
    end, count = time.monotonic() + _MOST_S, 0
    for folder, below, names in os.walk(directory):
        below[:] = sorted(name for name in below if name not in _NOT_THEIRS and not name.startswith("."))
        for name in sorted(name for name in names if name.endswith(".py")):
            count += 1
            if count > _MOST_FILES or time.monotonic() > end:
                return
            path = os.path.join(folder, name)
            try:
                with open(files.opened(path), "rb") as file:
                    yield os.path.relpath(path, directory), file.read(_MOST_BYTES)
            except OSError:
                continue

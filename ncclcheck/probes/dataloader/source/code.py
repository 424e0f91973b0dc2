"""The user's class and collate function as they are written, so that a fix can use their names."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.source import rewrites
from ncclcheck.probes.facts.data.made import Assigned, Code, Method

_MOST_RETURNS = 4  # of a method that are shown in a fix: chosen
_MOST_ASSIGNED = 40  # attributes of a class whose assignments are kept: chosen
_MOST_TEXT = 200  # characters of an expression: a longer one is not repeated in a report
_MOST_WRAPPED = 4  # Subset of Subset


def read(made: FactoryLoader) -> Code:
    """Empty where there is no text: a class of C, of a notebook, or one that is made at run time."""
    owner = type(_innermost(made.dataset))
    item = None if made.iterable else _method(getattr(owner, "__getitem__", None))
    return Code(
        owner=owner.__qualname__,
        item=item,
        length=_method(getattr(owner, "__len__", None)),
        collate=_method(made.loader.get("collate_fn")),
        reads=_reads(getattr(owner, "__getitem__", None)) if item else [],
        assigned=[*_assigned(owner)][:_MOST_ASSIGNED],
        rewrites=rewrites.read(owner),
    )


def _innermost(dataset: Any) -> Any:
    """The user's own, of what torch's Subset wraps."""
    for _ in range(_MOST_WRAPPED):
        inner = getattr(dataset, "dataset", None)
        if inner is None or not type(dataset).__module__.startswith("torch.utils.data"):
            break
        dataset = inner
    return dataset


def _method(function: Any) -> Method | None:
    tree = _tree(function)
    if tree is None:
        return None
    first, node = tree
    arguments = [
        argument.arg
        for argument in (*node.args.posonlyargs, *node.args.args)
        if argument.arg not in ("self", "cls")
    ]
    code = inspect.unwrap(function).__code__
    returns = [
        ast.unparse(statement.value)
        for statement in _own(node, ast.Return)
        if isinstance(statement.value, ast.expr)
    ]
    return Method(
        name=code.co_name,
        place=f"{os.path.basename(code.co_filename)}:{first}",
        parameters=arguments[:8],
        returns=[text if len(text) <= _MOST_TEXT else "" for text in returns][:_MOST_RETURNS],
    )


def _reads(function: Any) -> list[str]:
    """What `__getitem__` asks the dataset for by the index: `self.records[index]`, `self._load(index)`."""
    tree = _tree(function)
    if tree is None or not (arguments := tree[1].args.args[1:]):
        return []
    index = arguments[0].arg
    texts = [
        ast.unparse(node)
        for node in ast.walk(tree[1])
        if isinstance(node, ast.Subscript | ast.Call) and _root(node) == "self" and _is_index(node, index)
    ]
    return [text for text in dict.fromkeys(texts) if len(text) <= _MOST_TEXT][:_MOST_RETURNS]


def _assigned(owner: type) -> Iterator[Assigned]:
    """By __init__ first, then by its other methods; None and what is too long to be repeated is left out."""
    methods = {"__init__": vars(owner).get("__init__"), **vars(owner)}
    for method in methods.values():
        if not inspect.isfunction(method) or (tree := _tree(method)) is None:
            continue
        code = method.__code__
        arguments = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]} - {"self"}
        others = {*code.co_varnames} - arguments - {"self"}
        for node in ast.walk(tree[1]):
            for target, value in _pairs(node.targets[0], node.value) if isinstance(node, ast.Assign) else ():
                text, names = ast.unparse(value), _names(value)
                tells = text != "None" and len(text) <= _MOST_TEXT and not (names & others)
                if tells and ast.unparse(target).startswith("self."):
                    yield Assigned(name=ast.unparse(target)[5:], value=text, needs=sorted(names & arguments))


def _names(value: ast.expr) -> set[str]:
    """That it reads, but for those that its own comprehensions and lambdas bind."""
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in ast.walk(value) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names - bound - {node.arg for node in ast.walk(value) if isinstance(node, ast.arg)}


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """`self.x, self.y = a, b` one by one."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return [*zip(target.elts, value.elts, strict=True)]
    return [(target, value)]


def _is_index(node: ast.Subscript | ast.Call, index: str) -> bool:
    """Whether it is asked for by the bare index."""
    keys = [node.slice] if isinstance(node, ast.Subscript) else node.args
    return len(keys) == 1 and isinstance(keys[0], ast.Name) and keys[0].id == index


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _tree(function: Any) -> tuple[int, ast.FunctionDef] | None:
    """With the number of its first line."""
    with suppress(Exception):  # the user's objects: attributes may raise, and files may be gone
        function = inspect.unwrap(function)
        lines, first = inspect.getsourcelines(function)
        body = ast.parse(textwrap.dedent("".join(lines))).body[0]
        if isinstance(body, ast.FunctionDef):
            return first, body
    return None


def _own(node: ast.FunctionDef, kind: type[ast.Return]) -> Iterator[ast.Return]:
    """Not of functions inside of it."""
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        child = waiting.pop(0)
        if isinstance(child, kind):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting = [*ast.iter_child_nodes(child), *waiting]

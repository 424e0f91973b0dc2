"""Fixes in the words of the user's own class: its expressions, with what has to change in them changed."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from ncclcheck.probes.facts.data import Made
from ncclcheck.probes.facts.data.made import Method, RewriteKind
from ncclcheck.reports.subjects.data.opened import class_of

_MOST = 2  # lines of the same kind


def owner(made: Made) -> str:
    """The name of the class that reads: of a Subset's dataset, not Subset."""
    return (made.code.owner.rpartition(".")[2] if made.code else "") or class_of(made)


def index(made: Made) -> str:
    """What `__getitem__` calls the index."""
    names = made.code.item.parameters if made.code and made.code.item else []
    return names[0] if names else "index"


def read(made: Made) -> str:
    """What `__getitem__` asks the dataset for by the index: `self.records[index]`; empty where it is not known."""
    return made.code.reads[0] if made.code and made.code.reads else ""


def rewritten(made: Made, kind: RewriteKind, matches: Callable[[str], bool] = bool) -> list[str]:
    """Lines of the user's file as they should be, with their places. matches: what they call, such as `hash`."""
    rewrites = [
        rewrite
        for rewrite in (made.code.rewrites if made.code else [])
        if rewrite.kind == kind and matches(rewrite.call)
    ]
    lines = [f"{rewrite.new}  # {rewrite.place}" for rewrite in rewrites[:_MOST]]
    return ["import zlib", *lines] if any("zlib." in line for line in lines) else lines


def returned(method: Method | None, form: str, leaf: str = "") -> list[str]:
    """The return statements, where part `leaf` of what they give becomes `form` of it: `{}.clone()`.

    Empty where the text is not known, or has no such part.
    """
    texts = [*dict.fromkeys(method.returns)] if method else []
    changed = [_changed(text, form, leaf.split(".") if leaf and leaf not in _WHOLE else []) for text in texts]
    lines = [text for text in changed if text]
    return lines[:_MOST] if len(lines) == len(texts) else []


_WHOLE = ("sample", "the sample")


def _changed(text: str, form: str, path: list[str]) -> str:
    """One statement or two; empty where it cannot be written."""
    try:
        whole = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a saved result may say anything
        return ""
    part, rest = whole, [*path]
    while rest and (inner := _part(part, rest[0])) is not None:
        part = inner
        rest.pop(0)
    if not rest:
        return "return " + _with(text, part, form)
    if part is whole and isinstance(whole, ast.Name) and len(rest) == 1:
        return _by_name(whole.id, rest[0], form)
    return ""


def _part(node: ast.expr, key: str) -> ast.expr | None:
    if isinstance(node, ast.Tuple | ast.List) and key.isdecimal() and int(key) < len(node.elts):
        return node.elts[int(key)]
    if isinstance(node, ast.Dict):
        nodes = [
            value
            for name, value in zip(node.keys, node.values, strict=True)
            if isinstance(name, ast.Constant) and name.value == key
        ]
        return nodes[0] if nodes else None
    return None


def _with(text: str, part: ast.expr, form: str) -> str:
    """The text, where only this part of it is another one."""
    lines = text.splitlines()
    if len(lines) != 1 or part.end_col_offset is None:
        return ""
    line = lines[0].encode()
    before, inner, after = (
        line[: part.col_offset].decode(),
        line[part.col_offset : part.end_col_offset].decode(),
        line[part.end_col_offset :].decode(),
    )
    simple = isinstance(part, ast.Name | ast.Attribute | ast.Subscript | ast.Call) or not form.startswith("{}")
    return before + form.replace("{}", inner if simple else f"({inner})") + after


def _by_name(name: str, key: str, form: str) -> str:
    """A sample that was put together before: `sample["image"] = ...`, then it is returned."""
    if key.isdecimal():
        number = int(key)
        changed = form.replace("{}", f"{name}[{number}]")
        return f"return (*{name}[:{number}], {changed}, *{name}[{number + 1}:])"
    if not re.fullmatch(r"[\w -]+", key):
        return ""
    place = f'{name}["{key}"]'
    return f"{place} = {form.replace('{}', place)}\nreturn {name}"


def longer(method: Method | None, by: int) -> str:
    """What `__len__` returns, `by` more (or less): `len(self.names) - 1`; empty where it is not known."""
    if method is None or len(method.returns) != 1:
        return ""
    try:
        tree = ast.parse(method.returns[0], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return str(tree.value + by)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub):
        last, plus = tree.right, isinstance(tree.op, ast.Add)
        if isinstance(last, ast.Constant) and isinstance(last.value, int):
            tree, by = tree.left, by + (last.value if plus else -last.value)
    if not by:
        return ast.unparse(tree)
    sign: ast.operator = ast.Add() if by > 0 else ast.Sub()
    return ast.unparse(ast.BinOp(left=tree, op=sign, right=ast.Constant(value=abs(by))))

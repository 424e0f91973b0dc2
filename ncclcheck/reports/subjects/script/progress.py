"""Conditions on how far the training is: they hold on all ranks at the same step."""

from __future__ import annotations

import ast
import functools
import re

# Names that count, and what they are compared with; a number of a rank among them says that ranks differ.
_COUNTS = re.compile(
    r"(?:.*_)?(?:epochs?|steps?|iters?|iterations?|it|itr|i|n_iter|batch_idx|idx|updates?|ep)(?:_.*)?", re.I
)
_BY_RANK = re.compile(r"rank|gpu|local|proc|node|main|master|world_size", re.I)
_IS_BEST = re.compile(r"(?:.*_)?(?:is_)?best")


@functools.cache
def same_on_all(text: str) -> bool:
    """`epoch % args.save_freq == 0 or epoch == last`, `is_best`: whatever option it names, ranks agree."""
    try:
        test = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # cut short
    return _agrees(test)


def _agrees(test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp):
        return all(_agrees(node) for node in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _agrees(test.operand)
    if isinstance(test, ast.Name | ast.Attribute):
        return bool(_IS_BEST.fullmatch(_last(test)))
    if isinstance(test, ast.BinOp):  # `if not epoch % 10`
        return _is_plain(test) and isinstance(test.op, ast.Mod) and _counts(test.left)
    return isinstance(test, ast.Compare) and _is_plain(test) and _counts(test)


def _is_plain(test: ast.expr) -> bool:
    """Whether only names and numbers stand in it, and none is that of a rank."""
    parts = [*ast.walk(test)]
    names = [part for part in parts if isinstance(part, ast.Name | ast.Attribute)]
    calls = [part for part in parts if isinstance(part, ast.Call)]
    counted = all(isinstance(call.func, ast.Name) and call.func.id in ("len", "int") for call in calls)
    return counted and not any(_BY_RANK.search(_last(name)) for name in names)


def _counts(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Name | ast.Attribute) and _COUNTS.fullmatch(_last(node)) for node in ast.walk(test)
    )


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""

"""Averages of the weights that never change, and the line whose result goes into a name of the loop alone."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ncclcheck.probes.training.equal.own.own_state import averages
from ncclcheck.probes.training.equal.state import fingerprint

_LEAST_STEPS = 4  # in which an average that is updated in each step would have changed: chosen


class StillAverages:
    """Follows what is named as an average of the weights in the step's state."""

    def __init__(self) -> None:
        self._steps = 0
        self._begun: dict[str, list[str]] = {}
        self._changed: set[str] = set()

    def look(self, state: Mapping[str, Any]) -> None:
        """After a step."""
        self._steps += 1
        for name, tensors in averages(state):
            prints = [str(fingerprint(tensor)) for tensor in tensors]
            if self._begun.setdefault(name, prints) != prints:
                self._changed.add(name)

    def lost(self, step: Callable[..., Any]) -> list[str]:
        """`ema` and `st.py:20 e = 0.9 * e + 0.1 * p`, where it never changed and such a line is there."""
        still = [name for name in self._begun if name not in self._changed]
        line = next(_lost_lines(step), "")
        return [still[0], line] if still and line and self._steps >= _LEAST_STEPS else []


def _lost_lines(step: Callable[..., Any]) -> Iterator[str]:
    """In the step's file: assignments to a name of a loop, made of that name, that nothing reads afterwards."""
    try:
        file = inspect.getsourcefile(step) or ""
        with open(file, encoding="utf-8") as source:
            tree = ast.parse(source.read())
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.For):
            continue
        names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name in names and _reads(node.value, name) and not _read_after(loop, node, name):
                    yield f"{file.rpartition('/')[2]}:{node.lineno} {ast.unparse(node)}"[:200]


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def _read_after(loop: ast.For, assigned: ast.Assign, name: str) -> bool:
    after = (node for node in ast.walk(loop) if getattr(node, "lineno", 0) > (assigned.end_lineno or 0))
    return any(isinstance(node, ast.Name) and node.id == name for node in after)

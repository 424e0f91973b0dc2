"""What a data scientist reads of `data` and `smoke` names no part of this program: no leaf, twin, look or told."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3] / "ncclcheck/reports"
FILES = sorted(
    path
    for room in ("rules/data", "rules/training", "subjects/data", "subjects/training")
    for path in (ROOT / room).glob("*.py")
)
OURS = re.compile(r"\b(leaf|twins?|told|looks?|looked)\b", re.IGNORECASE)
ENGLISH = re.compile(r"\blooks? (like|for|at)\b")  # what the reader does, or sees


def texts(path: Path) -> list[str]:
    """Of several words: what is said, the pages' docstrings too; those of modules and helpers are ours."""
    tree = ast.parse(path.read_text())
    ours = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and "## What" not in ast.unparse(node.body[0])
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in ours
        and " " in node.value
    ]


@pytest.mark.parametrize("path", FILES, ids=[path.stem + "-" + path.parent.name for path in FILES])
def test_no_word_of_ours_is_said(path: Path) -> None:
    assert [text for text in texts(path) if OURS.search(ENGLISH.sub("", text))] == []

"""Every number that a module names says what it is: its unit, what it decides, and why it is this one."""

from __future__ import annotations

import ast
from pathlib import Path

import ncclcheck

_PACKAGE = Path(ncclcheck.__file__).parent
_OPERATORS = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
_WANTED = (
    "say in a comment at its end, or above it: its unit, what it decides, and why it is this number: where it was "
    'measured, which specification has it, or "chosen" with what speaks for it'
)


def test_every_number_of_a_module_says_why() -> None:
    mute = [
        f"{path.relative_to(_PACKAGE.parent)}:{line}: {text}"
        for path in sorted(_PACKAGE.rglob("*.py"))
        for line, text in _mute(path.read_text())
    ]
    assert not mute, f"{_WANTED}:\n" + "\n".join(mute)


def test_the_comment_is_looked_for_where_people_write_it() -> None:
    assert not _mute("A = 1  # s\nB, C = 1, 2  # bytes\nD = (\n    3  # s\n)\n")
    assert _mute("# Seconds, as the kernel has them.\nA = 1\nB = 2\n\nC = 3\n") == [(5, "C = 3")]
    assert _mute("# Of a file.\nA = 1\nNAME = 'b'\nB = 2\n") == [(4, "B = 2")]
    assert _mute("A = 1  # s\nB = 2\n") == [(2, "B = 2")]
    mute = _mute("import os\n\nA = -(2**3)\nB: float = 1.5\nC = 'a'\nD = True\nE = A\n")
    assert mute == [(3, "A = -(2**3)"), (4, "B: float = 1.5")]


def _mute(source: str) -> list[tuple[int, str]]:
    """Line and text of the numeric constants of a module that have no comment, nor one above their block."""
    lines = ["", *source.splitlines()]
    mute, ends = [], set[int]()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or not _is_number(node.value):
            continue
        end = node.end_lineno or node.lineno
        if any("#" in line for line in lines[node.lineno : end + 1]):
            continue
        if lines[node.lineno - 1].startswith("#") or node.lineno - 1 in ends:
            ends.add(end)  # of a block, all of which the comment above it is about
        else:
            mute.append((node.lineno, lines[node.lineno]))
    return mute


def _is_number(value: ast.expr) -> bool:
    """A number, a sum or power of some, or a tuple of them; True and False are none."""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    return bool(parts) and all(
        isinstance(part, (ast.Constant, *_OPERATORS)) and (not isinstance(part, ast.Constant) or _counts(part))
        for whole in parts
        for part in ast.walk(whole)
    )


def _counts(constant: ast.Constant) -> bool:
    return isinstance(constant.value, int | float) and not isinstance(constant.value, bool)

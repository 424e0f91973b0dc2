"""Names of classes and variables: one meaning a name, found by grep (CONTRIBUTING, the glossary)."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.conftest import ROOT

_PACKAGE = ROOT / "ncclcheck"


def _trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(_PACKAGE.rglob("*.py"))}


def test_no_class_name_stands_for_two_things() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path.relative_to(_PACKAGE)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}

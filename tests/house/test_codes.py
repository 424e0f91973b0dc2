"""Codes of rules stand in the rules; elsewhere only where this list says what for, and the list only shrinks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.conftest import ROOT

_CODE = re.compile(r"[A-Z]{3}\d{3}")
# Folders and modules whose subject is what rules have found: settings that follow from a finding, culprits that
# explain one, causes in logs in their order, and the words at the end of a report.
_ALLOWED = (
    "cli/logs.py",  # examples in --help
    "cli/script.py",
    "commands/watch.py",  # the checks of a box that hold a node to be at fault
    "reports/rules/",
    "reports/recommend/",
    "reports/culprit/",
    "reports/scale/",
    "reports/subjects/logs/",
    "reports/subjects/failures/held_up.py",
    "reports/subjects/box/page.py",
    "reports/subjects/script/scripts.py",
    "reports/judgement/selection.py",
    "reports/text/closing.py",
)


def _codes_elsewhere() -> Iterator[str]:
    for path in sorted((ROOT / "ncclcheck").rglob("*.py")):
        place = path.relative_to(ROOT / "ncclcheck").as_posix()
        text = path.read_text()
        if not place.startswith(_ALLOWED) and re.search(rf"[\"']{_CODE.pattern}[\"']", text):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CODE.fullmatch(node.value):
                    yield f"{place}:{node.lineno}: {node.value}"


def test_codes_stand_in_rules_and_where_their_findings_are_the_subject() -> None:
    assert [*_codes_elsewhere()] == []


def test_every_place_of_the_list_is_needed() -> None:
    unused = []
    for place in _ALLOWED:
        path = ROOT / "ncclcheck" / place
        files = [path] if path.is_file() else [*path.rglob("*.py")]
        if not any(re.search(rf'"{_CODE.pattern}"', file.read_text()) for file in files):
            unused.append(place)
    assert unused == []

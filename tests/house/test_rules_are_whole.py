"""What holds for every rule: its page has its parts, its code was issued once, nobody imports upwards."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from docs.generate import generated
from ncclcheck.reports.judgement.rule import FAMILIES, Rule, all_rules
from ncclcheck.reports.judgement.symptoms import SYMPTOMS, symptoms

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_a_page_has_all_its_parts(rule: Rule) -> None:
    headings = re.findall(r"^## (.*)$", rule.page, re.MULTILINE)
    assert [heading for heading in headings if heading != "Seen as"] == [
        "What", "Why it matters", "How we know", "Fix", "Source",
    ]  # fmt: skip
    assert set(symptoms(rule)) <= set(SYMPTOMS), f"allowed under 'Seen as': {', '.join(SYMPTOMS)}"
    assert ("Seen as" in headings) == bool(symptoms(rule))
    assert "**you**" in rule.page or "**admin**" in rule.page
    assert rule.code[:3] in FAMILIES
    assert not rule.title.endswith(".")


def test_codes_are_never_reused() -> None:
    """tests/codes.txt holds every code ever issued; a code that is gone stays there."""
    issued = [line.split()[0] for line in (ROOT / "tests/codes.txt").read_text().splitlines()]
    assert issued == sorted(set(issued))
    assert {rule.code for rule in all_rules()} <= set(issued)


def test_generated_files_are_fresh() -> None:
    files = generated()
    stale = [str(path.relative_to(ROOT)) for path, content in files.items() if _content(path) != content]
    assert not stale, f"run `just docs`: {stale}"
    assert set((ROOT / "docs/checks").glob("*.md")) <= set(files)


def _content(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


@cache
def _imports(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return modules


def test_imports_point_one_way() -> None:
    for path in (ROOT / "ncclcheck/probes").rglob("*.py"):
        upwards = {name for name in _imports(path) if name.startswith("ncclcheck.") and ".probes" not in name}
        assert not upwards - {"ncclcheck.__version__"}, path
    for path in (ROOT / "ncclcheck/reports").rglob("*.py"):
        others = {name for name in _imports(path) if name.startswith("ncclcheck")}
        allowed = ("ncclcheck.reports", "ncclcheck.probes.facts")
        assert all(name == "ncclcheck.probes" or name.startswith(allowed) for name in others), path
        assert not _imports(path) & {"torch", "psutil", "time", "subprocess", "socket"}, path


def test_links_at_the_root() -> None:
    for name in ("probes", "reports"):
        assert (ROOT / name).is_symlink()
        assert (ROOT / name).readlink() == Path("ncclcheck") / name

"""What people copy from the docs runs, links lead somewhere, and both READMEs say the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.reports.judgement.rule import all_rules
from tests.conftest import ROOT, environment

READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
PAGES = [*READMES, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_parses(page: Path) -> None:
    for block in _blocks(page, "python"):
        compile(block, page.name, "exec")
    for block in _blocks(page, "bash"):
        done = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, timeout=10, check=False)
        assert (done.returncode, done.stderr) == (0, ""), block


def test_both_readmes_have_the_same_sections_and_commands() -> None:
    english, chinese = READMES
    marks = [re.findall(r"^(#+) ", page.read_text(), re.MULTILINE) for page in READMES]
    assert marks[0] == marks[1]
    commands = [[_without_remarks(block) for block in _blocks(page, "bash")] for page in (english, chinese)]
    assert commands[0] == commands[1]


def _without_remarks(block: str) -> str:
    return re.sub(r"\s*#.*", "", block)


def test_every_failure_in_logs_has_a_check_or_a_reason() -> None:
    known = {rule.code for rule in all_rules()}
    modes: dict[str, dict[str, Any]] = {}
    for path in sorted((ROOT / "benchmarks/log_modes").glob("*.json")):
        modes |= json.loads(path.read_text())
    assert len(modes) >= 115
    assert [mode for mode, entry in modes.items() if not (entry["codes"] or entry.get("why"))] == []
    assert [mode for mode, entry in modes.items() if not known.issuperset(entry["codes"])] == []


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_preflight_in_plain_ddp(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_blocks(ROOT / "docs/in-code.md", "python")[0])
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    done = subprocess.run(
        argv, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == 2

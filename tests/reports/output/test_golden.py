"""Whole text reports at 80 columns as a person reads them.

`pytest tests/reports/output/test_golden.py --update-golden` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.probes.facts import replace
from ncclcheck.reports.output import terminal
from tests.helpers import stories

FOLDER = Path(__file__).resolve().parents[2] / "golden"
GOLDEN = {
    "healthy": "all is well, with a table of measurements beside their expectation",
    "one-node-in-another-subnet": "a failure with who, why, evidence and remedies",
    "docker-gives-64-mib-of-shm": "twelve of sixteen nodes folded, and what was not recorded said once",
    "laptop-simulates-two-nodes": "a simulated run with skipped operations",
    "pod-that-may-read-little": "unknowns, of which none is called well or broken",
    "settings-nobody-reads": "several warnings of one rule",
    "stopped-by-a-debugger": "a rank that stopped in mid-collective",
    "interrupted-by-ctrl-c": "a run that was interrupted",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_report_reads_as_it_did(name: str, request: pytest.FixtureRequest) -> None:
    document = replace(stories.document(name), version="0.0.0")
    report = terminal.text(document, terminal.Style(width=80))
    file = FOLDER / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        file.write_text(report)
    assert report == file.read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(GOLDEN)

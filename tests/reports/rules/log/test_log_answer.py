"""The answer of `ncclcheck logs`: on one screen, nothing twice, names and commands whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output import terminal
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.conftest import ROOT
from tests.helpers import logcases, logs_of_torch
from tests.helpers.logs import parsed

FOLDER = ROOT / "tests/data/logs"
WIDTH, MOST = 80, 25


def _texts() -> Iterator[tuple[str, bytes]]:
    for folder in ("cases", "held"):
        for number, case in enumerate(logcases.cases(FOLDER / folder)):
            yield f"{folder}-{case.name}", case.clean()
            if number % 4 == 0:
                yield f"{folder}-{case.name}-mixed", case.interleaved(0)
    for path in sorted([*FOLDER.glob("stories/*.log"), *FOLDER.glob("*.log")]):
        yield path.stem, path.read_bytes()
    for path in sorted(logs_of_torch.FOLDER.glob("*/log.txt")):
        yield f"torch-{path.parent.name}", path.read_bytes()


def _document(data: bytes) -> Document:
    cluster = Cluster(command="logs", measurements=Measurements(logs=parsed(data)))
    story = finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0)
    return finish.make(cluster, Options(command="logs", only=("LOG",)), story)


def _rows(report: str) -> int:
    """Lines of the screen: a command that is too long for it takes several."""
    return sum(max(1, -(-len(line) // WIDTH)) for line in report.rstrip("\n").split("\n"))


@pytest.mark.parametrize("part", range(8))
def test_every_answer_fits_on_a_screen_and_says_nothing_twice(part: int) -> None:
    for name, data in [*_texts()][part::8]:
        document = _document(data)
        report = terminal.text(document, terminal.Style(width=WIDTH))
        assert _rows(report) <= MOST, name
        whole = " ".join(report.split())
        causes = document.diagnosis.causes if document.diagnosis else []
        for cause in causes[:1]:
            assert whole.count(cause.what) <= 1, name
        assert "skipped" not in report.splitlines()[-1], name
        hosts = {process.host for logs in [document.measurements.logs] if logs for process in logs.processes}
        cut = [
            host for host in hosts for line in report.splitlines() if line.endswith(f" {host.partition('-')[0]}-")
        ]
        assert not cut, name


def test_what_does_not_fit_is_left_to_verbose_and_said() -> None:
    document = _document((FOLDER / "stories/LOG062.log").read_bytes())
    report = terminal.text(document, terminal.Style(width=WIDTH))
    assert "setpci" not in report
    assert "(-v: the commands)" in report
    assert "setpci" in terminal.text(document, terminal.Style(width=WIDTH, verbose=True))


def test_lines_that_differ_in_numbers_alone_stand_once() -> None:
    report = terminal.text(_document((FOLDER / "stories/LOG080.log").read_bytes()), terminal.Style(width=WIDTH))
    assert "seen  log:3,4: Watchdog caught" in report
    assert report.count("Watchdog caught") == 1

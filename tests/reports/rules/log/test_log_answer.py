"""The answer of `ncclcheck logs`: on one screen, nothing twice, names and commands whole."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from random import Random

import pytest

from ncclcheck.commands import logs
from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.probes.logs.reading import LogReading
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output import terminal
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.conftest import ROOT
from tests.helpers import logcases, logs_of_torch

FOLDER = ROOT / "tests/data/logs"
WIDTH, WIDER, MOST = 80, 100, 25


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


def _document(data: bytes, name: str = "log") -> Document:
    reading = LogReading()
    reading.take(name, io.BytesIO(data))
    cluster = Cluster(command="logs", measurements=Measurements(logs=reading.logs()))
    story = finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0)
    return finish.make(cluster, Options(command="logs", only=("LOG",)), story)


def _rows(report: str, width: int = WIDTH) -> int:
    """Lines of the screen: a command that is too long for it takes several."""
    return sum(max(1, -(-len(line) // width)) for line in report.rstrip("\n").split("\n"))


@pytest.mark.parametrize("part", range(8))
def test_every_answer_fits_on_a_screen_and_says_nothing_twice(part: int) -> None:
    for name, data in [*_texts()][part::8]:
        document = _document(data)
        report = terminal.text(document, terminal.Style(width=WIDTH))
        assert _rows(report) <= MOST, name
        assert _rows(terminal.text(document, terminal.Style(width=WIDER)), WIDER) <= MOST, name
        whole = " ".join(report.split())
        causes = document.diagnosis.causes if document.diagnosis else []
        for cause in causes[:1]:
            assert whole.count(cause.what) <= 1, name
        assert "skipped" not in report.splitlines()[-1], name
        hosts = {process.host for read in [document.measurements.logs] if read for process in read.processes}
        cut = [
            host for host in hosts for line in report.splitlines() if line.endswith(f" {host.partition('-')[0]}-")
        ]
        assert not cut, name


def test_an_answer_of_many_causes_fits_on_a_screen() -> None:
    chance, stories = Random(15), sorted(FOLDER.glob("stories/*.log"))
    for _ in range(30):
        chosen = chance.sample(stories, 12)
        document = _document(b"".join(path.read_bytes() for path in chosen))
        for width in (WIDTH, WIDER):
            for colour in (False, True):
                report = terminal.text(document, terminal.Style(width=width, colour=colour))
                plain = re.sub(r"\x1b\[[\d;]*m", "", report)
                assert _rows(plain, width) <= MOST, [path.stem for path in chosen]
                assert plain == terminal.text(document, terminal.Style(width=width))


def test_long_paths_push_nothing_off_the_screen() -> None:
    name = f"/fsx/{'experiments-of-the-team/' * 11}train.log"
    for path in sorted(FOLDER.glob("stories/*.log"))[::4]:
        report = terminal.text(_document(path.read_bytes(), name), terminal.Style(width=WIDTH))
        assert _rows(report) <= MOST, path.stem


def test_nothing_is_printed_around_an_answer_that_goes_to_a_file(capfd: pytest.CaptureFixture[str]) -> None:
    logs.run(Options(command="logs"), [str(FOLDER / "stories/LOG080.log")])
    assert capfd.readouterr().err == ""


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

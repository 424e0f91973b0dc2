"""Logs as public threads show them: a dead job is never called healthy, and a healthy one never failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.reports.judgement.decision import outcome
from tests.helpers.logs import judged

PUBLIC = Path(__file__).resolve().parents[3] / "data/logs/public"
TRUTHS: dict[Path, dict[str, Any]] = {
    folder / f"{name}.log": truth
    for folder in (PUBLIC, PUBLIC / "held")
    for name, truth in json.loads((folder / "truth.json").read_text()).items()
}
DEAD = [path for path, truth in TRUTHS.items() if truth["dead"] is True]
SOUND = [path for path, truth in TRUTHS.items() if truth["dead"] == "sound"]
# Sound, and failed for a complaint that only a few steps follow: what shows survival is ten lines later at most.
FALSELY_FAILED = {"rem-allocator-survived"}


def _outcome(path: Path) -> str:
    return outcome(list(judged(path.read_bytes()).values()))


def test_there_are_enough_of_both() -> None:
    assert (len(DEAD), len(SOUND)) >= (165, 53)


@pytest.mark.parametrize("path", DEAD, ids=lambda path: path.stem)
def test_a_dead_job_is_never_ready(path: Path) -> None:
    """Failed, or unfinished where its log holds no word of a failure."""
    assert _outcome(path) in ("fail", "incomplete")


@pytest.mark.parametrize("path", SOUND, ids=lambda path: path.stem)
def test_a_sound_job_is_never_failed(path: Path) -> None:
    assert (_outcome(path) == "fail") is (path.stem in FALSELY_FAILED)

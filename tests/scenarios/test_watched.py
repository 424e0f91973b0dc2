"""Every job of the table: the page names the cause and the rank, and the exit code is the job's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scenarios import watched
from tests.scenarios.watched import CASES, NEED_MEMORY, SOUND, Case

_NEEDS_ROOT = (*NEED_MEMORY, "full")


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", [*CASES, *SOUND], ids=lambda case: case.name)
def test_the_page_names_cause_and_rank(tmp_path: Path, case: Case) -> None:
    if case.kind in _NEEDS_ROOT and os.geteuid():
        pytest.skip("needs root, for a cgroup or a small disk")
    if case.kind in NEED_MEMORY and not os.access("/sys/fs/cgroup/memory", os.W_OK):
        pytest.skip("needs the memory controller of cgroup v1")
    seen = watched.watched(case, tmp_path)
    assert seen.right(case) == (True, True), seen.page
    assert case.exit in (None, seen.code)
    assert len(seen.page.splitlines()) <= 25

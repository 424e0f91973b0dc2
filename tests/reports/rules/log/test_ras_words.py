"""What NCCL's RAS said of real jobs, as it is kept in tests/data/ras."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nccl.ras import Group, read
from tests.nccl.ras_states import STATES, VERSIONS

FOLDER = Path(__file__).parents[3] / "data/ras"
SILENT = {("2.26.5", "starting")}  # it answers nothing before ranks have met
COUNTS = "has launched up to operation 1"
SAID = {  # errors of the communicator, ranks heard of, what is said of rank 3
    "alive": ("OK", 4, ""),
    "killed": ("INCOMPLETE", 3, "GPU 1 managed by process"),
    "stopped": ("INCOMPLETE", 3, "GPU 1 managed by process"),
    "skipped": ("MISMATCH", 4, COUNTS),
    "other": ("MISMATCH", 4, COUNTS),
    "aborted": ("MISMATCH", 3, "has status NOCOMM"),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("state", [state.name for state in STATES])
def test_ras_names_the_rank_that_is_behind_or_gone(version: str, state: str) -> None:
    kept = FOLDER / f"{version}-{state}.txt"
    if (version, state) in SILENT:
        assert not kept.exists()
        return
    status = read(kept.read_text())
    assert status.version == version
    if state == "starting":
        assert (status.processes, status.groups, status.apart) == (0, [], {})
        return
    errors, heard, text = SAID[state]
    assert status.processes == 4
    assert status.groups == [Group(4, heard, "RUNNING", errors)]
    assert {*status.apart} == ({3} if text else set())
    assert text in status.apart.get(3, "")


@pytest.mark.parametrize("version", VERSIONS)
def test_ras_tells_a_stopped_peer_from_a_dead_one_by_its_timeouts(version: str) -> None:
    stopped, killed = ((FOLDER / f"{version}-{state}.txt").read_text() for state in ("stopped", "killed"))
    assert "TIMEOUT" in stopped
    assert "TIMEOUT" not in killed


def test_what_is_no_status_is_refused() -> None:
    with pytest.raises(ValueError, match="no status"):
        read("")

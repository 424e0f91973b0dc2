"""What `logs` makes of the words of NCCL's RAS: tests/data/ras, and its lines in NCCL's own log."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, raised
from tests.nccl.ras_states import VERSIONS
from tests.reports.rules.log.test_ras_words import FOLDER, SILENT

GONE, LEFT, BEHIND = "does not answer RAS", "is no member of a communicator", "launched 1 operation"
_INFO = "gpu-a17:4711:4790 [0] NCCL INFO "


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("state", "expected", "words"),
    [
        ("alive", None, ""),
        ("starting", None, ""),
        ("killed", "fail", GONE),
        ("stopped", "fail", GONE),
        ("aborted", "fail", LEFT),
        ("skipped", "warn", BEHIND),
        ("other", "warn", BEHIND),
    ],
)
def test_a_status_names_the_rank_and_its_host(version: str, state: str, expected: str | None, words: str) -> None:
    if (version, state) in SILENT:
        return
    text = (FOLDER / f"{version}-{state}.txt").read_text()
    assert raised(text).get("LOG121") == expected
    for finding in judged(text)["LOG121"].findings if expected else []:
        assert (finding.where.node, finding.where.rank) == ("10.77.0.22", 3)
        assert words in finding.what


def test_several_ranks_that_are_behind_are_listed_below_their_count() -> None:
    text = """\
#0-0 (57cbe37ff1384b06) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 41
  2 ranks have launched up to operation 40
  Rank 4 -- GPU 0 managed by process 10 on node 10.77.0.22
  Rank 5 -- GPU 1 managed by process 11 on node 10.77.0.22
"""
    (finding,) = judged(text)["LOG121"].findings
    assert "ranks 4 and 5" in finding.what or "ranks 4-5" in finding.what


def test_a_rank_that_is_behind_in_a_job_that_gave_up_is_the_failure() -> None:
    watchdog = (
        "[rank0]:[E1109 22:46:25.933 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective "
        "operation timeout: "
        "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
        "600012 milliseconds "
        "before timing out.\n"
    )
    assert raised((FOLDER / "2.27.7-skipped.txt").read_text() + watchdog)["LOG121"] == "fail"


def test_a_peer_that_is_declared_dead_is_a_warning_by_itself() -> None:
    line = _INFO + "RAS declaring peer 10.77.0.22<40113> as DEAD; rasDeadPeersHash 0x7f3c\n"
    assert raised(line) == {"LOG121": "warn"}

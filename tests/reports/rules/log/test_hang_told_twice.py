"""A hang of which both tell, the watchdogs' lines and the Flight Recorder's dumps: more evidence, not less."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ncclcheck.probes.facts import Cluster, Logs, Measurements
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.logs.answer.story import Cause, diagnosis
from tests.helpers import flight_jobs
from tests.helpers.logs import parsed

_LATE = (
    "[rank{rank}]:[E1109 22:46:25.933 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=3, OpType={op}, NumelIn=1024, NumelOut=4096, Timeout(ms)=600000) ran for "
    "600002 milliseconds before timing out.\n"
    "[rank{rank}]:[E1109 22:46:25.934 ProcessGroupNCCL.cpp:1800] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "failure detected by watchdog at work sequence id: 3 PG status: last enqueued work: 3, last completed "
    "work: 2\n"
)


def _verdicts(logs: Logs) -> list[Verdict]:
    cluster = Cluster(command="logs", measurements=Measurements(logs=logs))
    return judge(cluster, [rule for rule in all_rules() if rule.code.startswith("LOG")])


def _causes(logs: Logs) -> list[Cause]:
    story = diagnosis(logs, _verdicts(logs))
    assert story is not None
    return story.causes


def _both(folder: Path, *ranks: int) -> Logs:
    """The dumps of a job whose rank 2 stays away, and what these ranks' watchdogs printed."""
    log = "".join(_LATE.format(rank=rank, op="_ALLGATHER_BASE") for rank in ranks)
    return msgspec.structs.replace(parsed(log), flight=flight_jobs.one_stays_away().flight(folder), world=4)


def test_the_log_makes_the_verdict_of_the_dumps_firmer(tmp_path: Path) -> None:
    both = _both(tmp_path, 0, 1, 3)
    alone = msgspec.structs.replace(both, events=[], ranks=[])
    assert [(cause.code, cause.where.rank, cause.confidence) for cause in _causes(alone)] == [
        ("LOG132", 2, "likely")
    ]
    (cause,) = _causes(both)
    assert (cause.code, cause.where.rank, cause.confidence) == ("LOG132", 2, "sure")
    assert "agree" in cause.reason


def test_a_log_that_names_another_rank_is_another_cause(tmp_path: Path) -> None:
    both = _both(tmp_path, 0, 2, 3)
    assert {(cause.code, cause.where.rank) for cause in _causes(both)} >= {("LOG080", 1), ("LOG132", 2)}
    assert all("agree" not in cause.reason for cause in _causes(both))


@pytest.mark.parametrize("without", [[], [1]])
def test_whole_dumps_are_asked_for_only_where_one_is_missing(tmp_path: Path, without: list[int]) -> None:
    logs = Logs(flight=flight_jobs.one_stays_away().flight(tmp_path, without=without))
    (verdict,) = [verdict for verdict in _verdicts(logs) if verdict.code == "LOG132"]
    words = " ".join(remedy.text for finding in verdict.findings for remedy in finding.remedies)
    assert verdict.state is State.FAIL
    assert ("whole dumps" in words) is bool(without)


def test_what_is_advised_has_the_names_that_new_torches_know() -> None:
    logs = parsed("".join(_LATE.format(rank=rank, op="ALLREDUCE") for rank in (0, 1, 3)))
    (verdict,) = [
        verdict for verdict in _verdicts(msgspec.structs.replace(logs, world=4)) if verdict.code == "LOG080"
    ]
    (finding,) = verdict.findings
    lines = [line.partition("#")[0] for remedy in finding.remedies for line in remedy.commands]
    assert any("TORCH_FR_BUFFER_SIZE=2000" in line for line in lines)
    assert not any("TORCH_NCCL_TRACE_BUFFER_SIZE" in line or "DEBUG_INFO_TEMP_FILE" in line for line in lines)
    assert not finding.what.endswith(".")  # the sentence around it ends with one


def test_what_became_of_the_rank_stands_before_that_it_did_not_come(tmp_path: Path) -> None:
    """A rank whose GPU failed leaves no dump, and the others wait for it: the GPU is the cause."""
    log = "".join(_LATE.format(rank=rank, op="_ALLGATHER_BASE") for rank in (0, 1, 3))
    log += (
        "[rank2]:[E1109 22:40:01.100 ProcessGroupNCCL.cpp:2057] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process "
        "group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n"
    )
    dumps = flight_jobs.one_stays_away().flight(tmp_path, without=[2])
    causes = _causes(msgspec.structs.replace(parsed(log), flight=dumps, world=4))
    assert (causes[0].code, causes[0].where.rank, causes[0].confidence) == ("LOG067", 2, "sure")
    assert all("LOG067 says what became of it" in cause.reason for cause in causes[1:])
    assert {cause.code for cause in causes[1:]} <= {"LOG080", "LOG131", "LOG132"}
    assert len(causes) > 1

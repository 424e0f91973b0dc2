"""What RAS, records, GPUs and HCAs add to what /proc shows of a job: who is named, and who is not accused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Cluster,
    JobRecord,
    Live,
    LiveGpu,
    LiveNic,
    LiveProcess,
    Measurements,
    NotHad,
    Ras,
    RasRank,
    replace,
)
from ncclcheck.probes.live.answers import ras_text
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from tests.helpers import flight_jobs
from tests.helpers.flights import BEGIN, Job

FOLDER = Path(__file__).resolve().parents[2] / "data/ras"
_JOB = "10.77.0.11:29500"
_NEW = tuple(f"HNG02{n}" for n in range(8))


def _rank(rank: int, **facts: Any) -> LiveProcess:
    given = {"world": 4, "job": _JOB, "age_s": 900.0, "sockets": 2, "moved": 0, "libraries": ["nccl", "torch"]}
    return LiveProcess(host="gpu-a1", pid=100 + rank, inside=100 + rank, rank=rank, **{**given, **facts})


_SILENT = {"was_wchan": "futex_do_wait", "wchan": "futex_do_wait"}
_SPINS = {"was": "R", "state": "R", "cpu": 0.99, "running": 1, "sockets": 0, "moved": None}


def _job(kind: dict[str, Any], **odd: dict[str, Any]) -> Live:
    ranks = [_rank(n, **{**kind, **odd.get(f"r{n}", {})}) for n in range(4)]
    return Live(host="gpu-a1", seconds=6.0, processes=ranks, addresses=["10.77.0.11"])


def _ras(version: str, state: str, *, apart_s: float = 2.0, pid: int = 103) -> Ras:
    """An answer of a real job, whose rank 3 is made the one of this test."""
    text = (FOLDER / f"{version}-{state}.txt").read_text()
    look = ras_text.read(text)

    def here(ranks: list[RasRank]) -> list[RasRank]:
        return [replace(rank, host="10.77.0.11", pid=pid) for rank in ranks]

    troubled = [
        replace(
            comm,
            launched=[replace(launched, ranks=here(launched.ranks)) for launched in comm.launched],
            statuses=[replace(status, ranks=here(status.ranks)) for status in comm.statuses],
            missing=here(comm.missing),
        )
        for comm in look.troubled
    ]
    look = replace(look, troubled=troubled)
    return Ras(job=_JOB, version=version, looks=[look, look], apart_s=apart_s)


def _record(made: Job, folder: Path, *, waited_s: float = 60.0, without: tuple[int, ...] = ()) -> JobRecord:
    flight = made.flight(folder, without=without)
    times = {str(dump.rank): BEGIN + int(waited_s * 1e9) for dump in flight.dumps}
    return JobRecord(job=_JOB, flight=flight, written_ns=times)


def _found(live: Live, ras: Ras | None = None, record: JobRecord | None = None) -> dict[str, list[Finding]]:
    measurements = Measurements(live=[live], ras=[ras] if ras else [], records=[record] if record else [])
    verdicts = judge(Cluster(command="hang", measurements=measurements))
    assert not [v.code for v in verdicts if v.code.startswith("RUN") and v.state is State.UNKNOWN]
    return {v.code: v.findings for v in verdicts if v.findings}


def _states(findings: dict[str, list[Finding]]) -> dict[str, tuple[State, int | None]]:
    return {code: (all_[0].state, all_[0].where.rank) for code, all_ in findings.items() if code in _NEW}


# --- RAS


@pytest.mark.parametrize("version", ["2.24.3", "2.26.2", "2.27.3", "2.27.7"])
def test_who_launched_less_is_named_where_the_job_stands(version: str) -> None:
    findings = _found(_job(_SILENT), _ras(version, "skipped"))
    assert _states(findings)["HNG021"] == (State.FAIL, 3)


def test_a_difference_of_two_seconds_in_a_job_that_is_not_seen_to_stand_is_a_warning() -> None:
    """A rank may be late by that in every step; for as long as the looks are apart, nobody is."""
    for apart_s, state in ((2.0, State.WARN), (6.0, State.FAIL)):
        findings = _found(_job(_SPINS), _ras("2.27.7", "skipped", apart_s=apart_s))
        assert _states(findings)["HNG021"] == (state, 3)


def test_who_launched_other_things_is_in_another_collective() -> None:
    findings = _found(_job(_SILENT), _ras("2.27.5", "other"))
    assert _states(findings)["HNG020"] == (State.FAIL, 3)
    assert "1 AllReduce less and 1 AllGather more" in findings["HNG020"][0].what
    assert "HNG021" not in findings


@pytest.mark.parametrize(("version", "status"), [("2.24.3", "UNKNOWN"), ("2.26.5", "NOCOMM")])
def test_who_left_is_named(version: str, status: str) -> None:
    findings = _found(_job(_SILENT), _ras(version, "aborted"))
    assert _states(findings)["HNG020"] == (State.FAIL, 3)
    assert (
        findings["HNG020"][0].what
        == f"rank 3 is no member of a communicator that others use (NCCL's RAS: {status})"
    )


def test_a_rank_that_ras_does_not_hear_and_that_is_there_is_not_accused() -> None:
    """2.24.3 named rank 0, which was alive."""
    findings = _found(_job(_SILENT), _ras("2.24.3", "killed"))
    assert {finding.state for finding in findings["HNG021"]} == {State.NOTE}


def test_a_stopped_rank_is_named_by_proc_alone() -> None:
    findings = _found(_job(_SILENT, r3={"was": "T", "state": "T"}), _ras("2.27.7", "stopped"))
    assert "HNG021" not in findings
    assert findings["HNG002"][0].where.rank == 3


@pytest.mark.parametrize(("version", "state"), [("2.27.7", "alive"), ("2.24.3", "other")])
def test_that_ras_finds_nothing_is_not_said_to_be_well(version: str, state: str) -> None:
    """NVIDIA/nccl#1730; 2.24 counts all collectives as one."""
    findings = _found(_job(_SPINS), _ras(version, state))
    assert _states(findings)["HNG025"] == (State.NOTE, None)
    assert "only says that all launched equally often" in findings["HNG025"][0].what


def test_nobody_is_accused_in_a_job_that_advances_or_starts() -> None:
    for job in (_job({**_SILENT, "moved": 10**6}), _job({**_SILENT, "age_s": 10.0})):
        assert _states(_found(job, _ras("2.27.7", "skipped"))) == {}


# --- Flight Recorder


def test_who_did_not_enter_is_named_with_its_process(tmp_path: Path) -> None:
    findings = _found(_job(_SPINS), record=_record(flight_jobs.one_stays_away(), tmp_path))
    assert _states(findings)["HNG021"] == (State.FAIL, 2)
    assert findings["HNG021"][0].where.node == "gpu-a1"


def test_a_call_that_has_just_begun_is_a_warning_where_nothing_else_is_seen(tmp_path: Path) -> None:
    record = _record(flight_jobs.one_stays_away(), tmp_path, waited_s=1.0)
    assert _states(_found(_job(_SPINS), record=record))["HNG021"] == (State.WARN, 2)


def test_another_operation_is_named(tmp_path: Path) -> None:
    findings = _found(_job(_SILENT), record=_record(flight_jobs.another_operation(), tmp_path))
    assert _states(findings)["HNG020"][0] is State.FAIL


def test_ranks_that_were_not_asked_are_not_accused(tmp_path: Path) -> None:
    """All entered the same call; the records of two of four are there, since only some are asked."""
    record = _record(flight_jobs.data_that_does_not_get_through(), tmp_path, without=(1, 2))
    assert not [
        finding
        for all_ in _found(_job(_SPINS), record=record).values()
        for finding in all_
        if finding.state is State.FAIL
    ]


def test_what_all_entered_and_does_not_end(tmp_path: Path) -> None:
    findings = _found(_job(_SPINS), record=_record(flight_jobs.data_that_does_not_get_through(), tmp_path))
    assert _states(findings)["HNG025"] == (State.FAIL, None)


def test_both_witnesses_are_one_finding(tmp_path: Path) -> None:
    made = Job({"0": ("default_pg", [0, 1, 2, 3])}).call("0").call("0", ranks=[0, 1, 2], state="started")
    findings = _found(_job(_SPINS), _ras("2.27.7", "skipped"), _record(made, tmp_path))
    [finding] = findings["HNG021"]
    assert finding.where.rank == 3
    assert any("RAS" in evidence.source for evidence in finding.evidence)


# --- GPUs, HCAs, what was not seen


def _gpus(*busy: int) -> list[LiveGpu]:
    return [LiveGpu(index=n, busy=[b, b], power_mw=[150_000, 150_000], pids=[100 + n]) for n, b in enumerate(busy)]


@pytest.mark.parametrize(
    ("busy", "rank"),
    [((100, 100, 0, 100), 2), ((100, 100, 100, 100), None), ((0, 0, 0, 0), None), ((100, 50, 0, 100), None),
     ((100, 0, 0, 100), None), ((100, 100, 100, 0), 3)],
)  # fmt: skip
def test_one_idle_gpu_names_its_rank(busy: tuple[int, ...], rank: int | None) -> None:
    states = _states(_found(replace(_job(_SILENT), gpus=_gpus(*busy))))
    assert states.get("HNG022") == (None if rank is None else (State.FAIL, rank))


def test_a_gpu_that_failed_is_named() -> None:
    gpus = [*_gpus(100, 100, 100), LiveGpu(index=3, xids=[79])]
    [finding] = _found(replace(_job(_SILENT), gpus=gpus))["HNG023"]
    assert (finding.state, finding.where.device) == (State.FAIL, "GPU 3")
    findings = _found(replace(_job(_SILENT), gpu_problem="NVML gave no answer in time: the driver may hang"))
    assert findings["HNG023"][0].state is State.WARN


def test_an_hca_that_repeats_is_named_and_one_without_a_cable_is_not() -> None:
    nics = [
        LiveNic(name="mlx5_0:1", kind="HCA", state="4: ACTIVE", sent=40, trouble={"local_ack_timeout_err": 5}),
        LiveNic(name="mlx5_1:1", kind="HCA", state="1: DOWN", trouble={"symbol_error": 1}),
        LiveNic(name="eth0", received=9, trouble={"receive errors and drops": 2}),
    ]
    findings = _found(replace(_job(_SILENT), nics=nics))["HNG024"]
    assert [finding.where.device for finding in findings] == ["mlx5_0:1"]


def test_what_was_not_seen_is_said_with_its_line() -> None:
    ras = Ras(job=_JOB, version="2.26.5", problem="2.26 may crash when it is asked")
    live = replace(
        _job(_SPINS), not_had=[NotHad(job=_JOB, why="rank 1 wrote no dump in 8 s"), NotHad(job="b", why="x")]
    )
    [finding] = _found(live, ras)["HNG027"]
    lines = [line for fix in finding.remedies for line in fix.commands]
    assert [evidence.value for evidence in finding.evidence].count("rank 1 wrote no dump in 8 s") == 1
    assert "ncclcheck hang --ras always" in lines
    assert any("TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in line for line in lines)


def test_a_job_of_gloo_is_not_told_of_what_it_cannot_have() -> None:
    assert "HNG027" not in _found(_job({**_SILENT, "libraries": ["torch"]}))

"""Rules over the Flight Recorder: each way to hang has its rule and its ranks, and no other rule speaks."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.commands.logs import run
from ncclcheck.probes.facts import Cluster, Flight, FlightRefused, Logs, Measurements
from ncclcheck.probes.logs.flight import read
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.logs.flight.culprits import culprits
from ncclcheck.run.plan.options import Options
from tests.helpers import flight_jobs
from tests.helpers.flight_jobs import JOBS
from tests.helpers.flights import Job
from tests.helpers.trees import RECORDED, needs_recorded

RULES = [rule for rule in all_rules() if "LOG130" <= rule.code <= "LOG149"]


def judged(flight: Flight | None) -> dict[str, list[Finding]]:
    """Code -> findings of every rule over dumps."""
    logs = Logs(flight=flight)
    verdicts = judge(Cluster(command="logs", nodes=[], measurements=Measurements(logs=logs)), RULES)
    return {verdict.code: verdict.findings for verdict in verdicts if verdict.state is not State.SKIPPED}


def bad(flight: Flight) -> dict[str, str]:
    """Code -> what is said, where a rule fails or warns."""
    texts = {
        code: [f.what for f in findings if f.state.rank <= State.WARN.rank]
        for code, findings in judged(flight).items()
    }
    return {code: " | ".join(what) for code, what in texts.items() if what}


@pytest.mark.parametrize("name", JOBS)
def test_each_way_to_hang(name: str, tmp_path: Path) -> None:
    make, expected = JOBS[name]
    texts = bad(make().flight(tmp_path))
    assert texts.keys() == expected.keys()
    for code, words in expected.items():
        assert words in texts[code]


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("one stays away", [2]),
        ("stuck in another group", [7]),
        ("a record that stops", [1]),
        ("another operation", [3]),
        ("another size", [1]),
        ("a send that is missing", [0]),
        ("two orders", [0, 1]),
        ("a program that stopped earlier", [1]),
        ("an end that one does not see", [3]),
        ("sound", []),
        ("gloo without rank 2", [2]),
        ("gloo that waits", [1]),
    ],
)
def test_culprits(name: str, ranks: list[int], tmp_path: Path) -> None:
    named = culprits(JOBS[name][0]().flight(tmp_path))
    assert [culprit.where[0].rank for culprit in named] == ranks


def test_a_rank_without_a_dump_that_others_wait_for(tmp_path: Path) -> None:
    flight = flight_jobs.data_that_does_not_get_through().flight(tmp_path, without=[2])
    assert bad(flight) == {"LOG131": "left no dump, and ranks 0-1,3 wait for it"}
    assert [(culprit.names, culprit.explains) for culprit in culprits(flight)] == [(["rank 2"], ["LOG131"])]


def test_a_rank_without_a_dump_is_not_blamed_where_another_did_not_enter(tmp_path: Path) -> None:
    flight = flight_jobs.one_stays_away().flight(tmp_path, without=[3])
    assert bad(flight).keys() == {"LOG132"}
    (finding,) = judged(flight)["LOG131"]
    assert finding.state is State.NOTE
    assert "rank 3 left no dump" in finding.what


def test_most_dumps_are_missing(tmp_path: Path) -> None:
    flight = flight_jobs.data_that_does_not_get_through().flight(tmp_path, without=[1, 2, 3])
    assert bad(flight) == {}
    assert [finding.state for finding in judged(flight)["LOG131"]] == [State.UNKNOWN]


def test_a_call_of_gloo_that_is_over_may_have_failed_on_who_waited_for_another(tmp_path: Path) -> None:
    flight = flight_jobs.gloo_without_rank_2().flight(tmp_path)
    (finding,) = judged(flight)["LOG132"]
    assert (finding.state, finding.where.rank) == (State.UNKNOWN, 2)
    assert finding.what.startswith(
        "did not enter all_reduce 3 of default_pg (0), which ended or failed on ranks 0-1,3"
    )
    assert "or gave its dump earlier" in finding.what
    assert [(culprit.names, culprit.confidence) for culprit in culprits(flight)] == [(["rank 2"], 0.3)]


def test_of_two_ranks_neither_is_blamed_for_a_call_that_is_over(tmp_path: Path) -> None:
    made = Job({"0": ("default_pg", [0, 1])}, "2.10", "gloo").call("0").call("0", ranks=[0])
    flight = made.flight(tmp_path)
    assert [finding.where.rank for finding in judged(flight)["LOG132"]] == [1]
    assert culprits(flight) == []


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_dumps_of_a_running_job_at_different_moments_are_no_failure(backend: str, tmp_path: Path) -> None:
    made = Job(flight_jobs.WORLD, "2.10", backend).call("0")
    for ranks in ([0, 1, 3], [0, 3], [3]):
        made.call("0", ranks=ranks)
    flight = made.flight(tmp_path)
    assert bad(flight) == {}
    findings = [(finding.state, finding.what.partition(" of ")[0]) for finding in judged(flight)["LOG132"]]
    assert culprits(flight) == []
    assert findings == ([] if backend == "nccl" else [(State.UNKNOWN, "did not enter all_reduce 2")])


def test_the_end_of_a_later_call_of_gloo_proves_nothing(tmp_path: Path) -> None:
    flight = flight_jobs.gloo_whose_calls_end_in_another_order().flight(tmp_path)
    assert "LOG133" not in bad(flight)


def test_one_dump_of_gloo_alone_names_who_left_none(tmp_path: Path) -> None:
    """Torch 2.13 writes the ranks of gloo's group down before the group has its name."""
    made = Job({"0": ("default_pg", [0, 1])}, "2.10", "gloo").call("0").call("0", ranks=[0], state="scheduled")
    flight = made.flight(tmp_path, without=[1])
    assert bad(flight) == {"LOG131": "left no dump, and rank 0 waits for it"}
    assert [culprit.names for culprit in culprits(flight)] == [["rank 1"]]


def test_dumps_that_tell_of_nothing_are_no_proof_where_others_are_missing(tmp_path: Path) -> None:
    flight = flight_jobs.sound().flight(tmp_path, without=[3])
    (finding,) = judged(flight)["LOG131"]
    assert (finding.state, finding.what) == (
        State.UNKNOWN,
        "rank 3 left no dump, and in the others' dumps every call is over",
    )


def test_groups_that_are_victims(tmp_path: Path) -> None:
    (finding,) = judged(flight_jobs.stuck_in_another_group().flight(tmp_path))["LOG138"]
    assert finding.state is State.NOTE
    assert finding.what == "1 process group only waited for ranks that stand in other groups' calls"
    assert finding.evidence[0].value == "DATA (5)"


def test_files_that_were_refused() -> None:
    flight = Flight(refused=[
        FlightRefused(file="fr/rank_3", why="it is cut short: 12 bytes and no end"),
        FlightRefused(file="fr/rank_4", why="it asks for code to be run: GLOBAL os.system", hostile=True),
    ])  # fmt: skip
    findings = judged(flight)
    assert [finding.state for finding in findings["LOG130"]] == [State.WARN, State.UNKNOWN]
    assert [(finding.state, finding.what) for finding in findings["LOG131"]] == [
        (State.UNKNOWN, "none of 2 dumps could be read")
    ]
    assert findings.keys() == {"LOG130", "LOG131"}


@pytest.mark.parametrize("raw", [b"\x80\x02}q\x00(X\x07\x00", b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR."])
def test_where_no_dump_can_be_read_the_command_ends_with_3(
    raw: bytes, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(raw)
    assert run(Options(command="logs", output="json"), [str(tmp_path)]) == 3
    assert msgspec.json.decode(capsysbinary.readouterr().out, type=Document).state == "incomplete"


def test_an_older_dump_of_the_same_rank_is_only_noted(tmp_path: Path) -> None:
    paths = []
    for folder, made in (
        ("a", Job(flight_jobs.WORLD).call("0")),
        ("b", Job(flight_jobs.WORLD).call("0").call("0")),
    ):
        (tmp_path / folder).mkdir()
        paths += made.write(tmp_path / folder)
    for order in (paths, paths[::-1]):
        flight = read(order)
        assert {finding.state for finding in judged(flight)["LOG130"]} == {State.NOTE}
        assert bad(flight) == {}


def test_without_dumps_nothing_is_judged() -> None:
    assert judged(None) == {}


def test_a_thousand_ranks_are_judged_in_seconds(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", [*range(1024)])}
    groups |= {str(number + 1): ("TENSOR", [*range(8 * number, 8 * number + 8)]) for number in range(128)}
    made = Job(groups)
    for group in groups:
        made.call(group)
    made.call("0", ranks=[rank for rank in range(1024) if rank != 517], state="scheduled")
    flight = made.flight(tmp_path)
    began = time.monotonic()
    assert [finding.where.rank for finding in judged(flight)["LOG132"]] == [517]
    assert time.monotonic() - began < 20


_STATES = st.sampled_from(["scheduled", "started", "completed"])
_CALLS = st.tuples(
    st.sampled_from(["0", "9"]), st.sampled_from(["all_reduce", "broadcast", "all_to_all", "send", "recv"]),
    st.integers(0, 3), st.integers(0, 3), _STATES, st.integers(0, 3),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(calls=st.lists(_CALLS, max_size=25), without=st.sets(st.integers(0, 3)))
def test_any_job_is_judged_without_a_crash(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, str, int, int, str, int]], without: set[int]
) -> None:
    made = Job(flight_jobs.STAGES)
    for group, op, rank, peer, state, size in calls:
        if op == "send":
            made.send(group, rank, peer, state=state, size=[size])
        elif op == "recv":
            made.receive(group, rank, peer, state=state, size=[size])
        else:
            made.call(group, op, ranks=[rank], state=state, size=[size])
    flight = made.flight(tmp_path_factory.mktemp("job"), without=without)
    logs = Measurements(logs=Logs(flight=flight))
    for verdict in judge(Cluster(command="logs", nodes=[], measurements=logs), RULES):
        assert not [f for f in verdict.findings if f.owner == "tool"], verdict
    culprits(flight)


@needs_recorded
@pytest.mark.parametrize(
    ("run", "code", "ranks"), [("gpu_error_1st", "LOG133", [12, 14]), ("lock_gil_1st", "LOG132", [9, 14])]
)
def test_recorded_runs_with_known_truth(run: str, code: str, ranks: list[int]) -> None:
    folder = RECORDED / "nvrx/flight_recorder" / run
    assert f"Fault ranks: {ranks}" in (folder / "fault_injection.log").read_text()
    paths = sorted(map(str, folder.glob("_dump_*")))
    assert bad(read(paths)).keys() == {code}
    assert [culprit.where[0].rank for culprit in culprits(read(paths))] == ranks
    for lost in (0, 8, 13):  # a file that was not gathered changes nothing
        flight = read([path for path in paths if not path.endswith(f"_dump_{lost}")])
        assert bad(flight).keys() == {code}
        assert [culprit.where[0].rank for culprit in culprits(flight)][:2] == ranks


def test_one_job_is_the_same_by_any_order_of_files(tmp_path: Path) -> None:
    paths = flight_jobs.stuck_in_another_group().write(tmp_path)
    assert bad(read(paths)) == bad(read(paths[::-1]))

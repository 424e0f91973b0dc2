"""--inject: read strictly, done by real ranks, and told for what it is in the report."""

from __future__ import annotations

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Cluster, Job, Node, RankState, Run
from ncclcheck.probes.job.context import Injection, Row
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.run.plan import bench_plan, faults
from ncclcheck.run.plan.bench_plan import BenchOptions
from tests.conftest import Command

ROWS = [Row(op="barrier", bytes=0), Row(op="broadcast", bytes=4), Row(op="all_gather", bytes=4)]
SMALL = ("--nproc-per-node", "2", "--quick", "--time-budget", "2", "--ops", "all_reduce", "--sizes", "1K,64K")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("slow-rank=2:20ms", Injection(kind="slow-rank", rank=2, seconds=0.02)),
        ("slow-rank=3", Injection(kind="slow-rank", rank=3, seconds=0.02)),
        ("slow-rank=0:1.5s", Injection(kind="slow-rank", rank=0, seconds=1.5)),
        ("slow-link=0-1", Injection(kind="slow-link", nodes=["a", "b"], seconds=0.02)),
        ("slow-link=1-0:5ms", Injection(kind="slow-link", nodes=["b", "a"], seconds=0.005)),
        ("corrupt=1", Injection(kind="corrupt", rank=1, op="all_gather")),
        ("hang=3@5", Injection(kind="hang", rank=3, iteration=5)),
        ("crash=2", Injection(kind="crash", rank=2)),
        ("crash=2@7", Injection(kind="crash", rank=2, iteration=7)),
    ],
)
def test_every_form_is_read(given: str, expected: Injection) -> None:
    assert faults.injections(faults.read([given]), ["a", "b"], 4, ROWS) == [expected]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("rank-init=2", Injection(kind="rank-init", rank=2)),
        ("no-sync=1", Injection(kind="no-sync", rank=1)),
        ("skip-step=3@2", Injection(kind="skip-step", rank=3, iteration=2)),
        ("uneven=0", Injection(kind="uneven", rank=0)),
        ("leak=1", Injection(kind="leak", rank=1)),
        ("stray=1", Injection(kind="stray", rank=1)),
        ("slow-data=1:50ms", Injection(kind="slow-data", rank=1, seconds=0.05)),
        ("unused", Injection(kind="unused")),
        ("no-set-epoch", Injection(kind="no-set-epoch")),
        ("one-file", Injection(kind="one-file")),
        ("slow-rank=1:50ms", Injection(kind="slow-rank", rank=1, seconds=0.05)),
    ],
)
def test_every_form_of_a_training_is_read(given: str, expected: Injection) -> None:
    assert faults.injections(faults.read([given], training=True), ["a"], 4, []) == [expected]


@pytest.mark.parametrize(("given", "training"), [("corrupt=1", True), ("slow-link=0-1", True), ("leak=1", False)])
def test_a_command_refuses_what_it_cannot_show(given: str, training: bool) -> None:
    with pytest.raises(UsageError, match="this command cannot show it; allowed are slow-rank"):
        faults.read([given], training=training)


@pytest.mark.parametrize(
    "given",
    ["", "slow-rank", "slow-rank=x", "slow-rank=1:20", "slow-rank=-1", "slow-link=0", "slow-link=0-1@3",
     "corrupt=1:2", "hang=1@0", "crash=1@", "fire=1", "crash=1,", "slow-rank=1:20 ms"],
)  # fmt: skip
def test_what_is_not_understood_names_the_forms(given: str) -> None:
    with pytest.raises(UsageError, match=r"slow-link=NODE-NODE\[:20ms\], corrupt=RANK"):
        faults.read([given])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("slow-rank=4", "no rank 4; allowed are 0 to 3"),
        ("slow-link=0-2", "no node 2; allowed are 0 to 1"),
        ("slow-link=1-1", "two different nodes"),
    ],
)
def test_ranks_and_nodes_are_those_of_the_job(given: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        faults.injections(faults.read([given]), ["a", "b"], 4, ROWS)


def test_what_every_rank_has_a_result_of_can_be_corrupted() -> None:
    with pytest.raises(UsageError, match="needs one of these operations"):
        faults.injections(["corrupt=1"], ["a"], 2, ROWS[:1])


def test_several_are_given_by_comma_or_one_by_one() -> None:
    assert faults.read(["corrupt=1, crash=2", "hang=0"]) == ("corrupt=1", "crash=2", "hang=0")


def test_a_soak_lengthens_what_is_stated_and_the_deadline() -> None:
    plain, soaked = BenchOptions(), BenchOptions(soak=3600.0)
    assert bench_plan.stated_seconds(soaked) == bench_plan.stated_seconds(plain) + 3600
    assert bench_plan.default_deadline("bench", soaked) == bench_plan.default_deadline("bench", plain) + 3600


@pytest.mark.parametrize("arguments", [("--inject", "fire=1"), ("--soak", "0.5"), ("--soak", "90000")])
def test_wrong_usage_ends_at_once(ncclcheck: Command, arguments: tuple[str, str]) -> None:
    ran = ncclcheck("bench", *arguments)
    assert ran.code == 2
    assert arguments[0] in ran.err
    assert "allowed are" in ran.err


def failed(document: Document, code: str) -> list[Finding]:
    """What a rule blames."""
    (verdict,) = [verdict for verdict in document.verdicts if verdict.code == code]
    return [finding for finding in verdict.findings if finding.state in (State.FAIL, State.WARN)]


def node_of(document: Document, rank: int) -> str:
    """The node of a rank: c10d numbers nodes as it likes."""
    return next(state.node for state in document.run.ranks if state.rank == rank)


def test_a_late_rank_and_a_flipped_bit(ncclcheck: Command) -> None:
    given = ("--inject", "slow-rank=2:150ms,corrupt=1", "--soak", "1")
    ran = ncclcheck("bench", "--nodes", "2", *SMALL, *given, "-o", "json", "--save", "saved.json")
    document = ran.document
    assert ran.code == 1, ran.err
    assert document.job.injected == ["slow-rank=2:150ms", "corrupt=1"]
    assert 2 in {finding.where.rank for finding in failed(document, "BEN003")}
    flipped = failed(document, "BEN001")
    assert {(finding.where.rank, finding.where.node) for finding in flipped} == {(1, node_of(document, 1))}
    assert all("one bit of one element" in finding.what for finding in flipped)
    assert {wrong.soak for wrong in document.measurements.wrong} == {True, False}
    assert document.measurements.soak
    assert document.measurements.soak.wrong == document.measurements.soak.results > 0
    memory = document.measurements.memory.ranks
    assert sorted(rank.rank for rank in memory) == [0, 1, 2, 3]
    assert all(rank.before_init and rank.after_init and rank.peak and rank.iterations for rank in memory)
    text = ncclcheck("bench", "--from", "saved.json").out
    first, last = text.partition("\n\n")[0], " ".join(text.split())[-200:]
    assert "WITH INJECTED FAULTS slow-rank=2:150ms, corrupt=1" in " ".join(first.split())
    assert last.endswith("Injected faults: slow-rank=2:150ms, corrupt=1; run without --inject to judge.")


@pytest.mark.nightly
def test_a_slow_link(ncclcheck: Command) -> None:
    ran = ncclcheck(
        "bench", "--nodes", "3", "--nproc-per-node", "1", "--quick", "--ops", "barrier",
        "--inject", "slow-link=0-1", "-o", "json",
    )  # fmt: skip
    assert ran.code == 1, ran.err
    links = [finding.where for finding in failed(ran.document, "BEN004") if finding.state is State.FAIL]
    assert {frozenset((where.node, where.peer)) for where in links} == {frozenset(("sim0", "sim1"))}
    assert ["sim0", "sim1"] in [sorted(culprit.names) for culprit in ran.document.culprits]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "rank", "words", "code"),
    [("hang=3@5", 3, "it did not come", 3), ("crash=2@3", 2, "was killed by SIGKILL", 1)],
)
def test_a_rank_that_hangs_or_dies(ncclcheck: Command, fault: str, rank: int, words: str, code: int) -> None:
    ran = ncclcheck("bench", "--nodes", "2", *SMALL, "--deadline", "40", "--inject", fault, "-o", "json")
    assert ran.code == code, ran.err
    (finding,) = next(verdict.findings for verdict in ran.document.verdicts if verdict.code == "RUN003")
    assert (finding.where.rank, finding.where.node) == (rank, node_of(ran.document, rank))
    assert words in finding.what


def waiting(*ticks: int, since: float = 9.0, step: str = "all_reduce 1 KiB") -> Cluster:
    """Ranks that all live, in the same step."""
    ranks = [
        RankState(rank=i, node="a", phase="world", last_step=step, since_s=since, proc_state="S", ticks=count)
        for i, count in enumerate(ticks)
    ]
    run = Run(ranks=ranks, started_job=True, stopped_by="deadline")
    return Cluster(command="bench", nodes=[Node(name="a")], job=Job(ranks=len(ranks)), run=run)


@pytest.mark.parametrize(
    ("cluster", "blamed"),
    [
        (waiting(7, 6, 7, 7), [1]),
        (waiting(7, 6), [1]),
        (waiting(5, 5, 7, 7, 7), [0, 1]),
        (waiting(7, 7, 7), []),
        (waiting(6, 6, 7), []),
        (waiting(7, 6, 7, 7, since=2.0), []),
        (waiting(7, 6, 7, 7, step="speed of each rank alone"), []),
        (waiting(7, 6, 7, 7, step="soak, 3 of 9 s, round 4: from all_reduce of 4 bytes on"), [1]),
    ],
)
def test_a_rank_that_did_not_come_is_named(cluster: Cluster, blamed: list[int]) -> None:
    """As unknown: a network that dies looks the same."""
    (verdict,) = judge(cluster, [rule for rule in all_rules() if rule.code == "RUN003"])
    assert verdict.state is State.UNKNOWN
    assert [rank for finding in verdict.findings if (rank := finding.where.rank) is not None] == blamed


@pytest.mark.parametrize(
    ("injected", "started", "state"),
    [(["corrupt=1"], True, State.NOTE), ([], True, State.OK), ([], False, State.SKIPPED)],
)
def test_injected_faults_are_noted(injected: list[str], started: bool, state: State) -> None:
    job = Job(injected=injected)
    cluster = Cluster(command="bench", nodes=[Node(name="a")], job=job, run=Run(started_job=started))
    (verdict,) = judge(cluster, [rule for rule in all_rules() if rule.code == "RUN011"])
    assert verdict.state is state

"""BEN002 and `--min-busbw`: what is judged, from which bound, and what is refused before anything is measured."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Cluster, Node, Policy, Unread
from ncclcheck.reports import expect
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.run.plan import bench_plan
from tests.conftest import Command
from tests.helpers.clusters import nic
from tests.helpers.speeds import curve, gpus, h100, job, links, machine, row

RULE = [rule for rule in all_rules() if rule.code == "BEN002"]
RAILS = [400.0] * 8
HPC = [machine(name, h100(), *RAILS) for name in ("a", "b", "c", "d")]


RUN = ("bench", "--nodes", "2", "--quick", "--ops", "all_reduce", "--sizes", "1K,64K,1M")


def judged(cluster: Cluster) -> Verdict:
    return judge(cluster, RULE)[0]


def reached(busbw: float, *nodes: Node, own: int = 8, op: str = "all_reduce", **more: Any) -> Verdict:
    """What is said where large messages reach so many GB/s."""
    rows = curve(op, len(nodes), own * len(nodes), busbw)
    return judged(job(*nodes, own=own, rows=rows, **more))


@pytest.mark.parametrize(
    ("busbw", "state", "words"),
    [
        (365.0, State.OK, "91 % of line rate if a ring ran (400), 71 % of what any could (517)"),
        (260.0, State.WARN, "65 % of line rate"),
        (120.0, State.FAIL, "30 % of line rate"),
        (600.0, State.UNKNOWN, "more than the 517 that is possible"),
    ],
)
def test_infiniband(busbw: float, state: State, words: str) -> None:
    verdict = reached(busbw, *HPC)
    assert verdict.state is state
    assert words in verdict.findings[0].what
    assert "8 x 400 Gb/s a node" in verdict.findings[0].what


def test_line_rate_is_said_alone_where_the_algorithm_is_known() -> None:
    ring = [machine(name, h100(), *RAILS, env={"NCCL_ALGO": "allreduce:ring"}) for name in "abcd"]
    verdict = reached(365.0, *ring)
    assert "91 % of line rate (ring, 400)" in verdict.findings[0].what


@pytest.mark.parametrize(
    ("busbw", "state"), [(473.0, State.OK), (482.3, State.OK), (368.0, State.WARN), (200.0, State.FAIL)]
)
def test_nvls_that_is_quietly_off_shows_by_its_value(busbw: float, state: State) -> None:
    verdict = reached(busbw, machine("a", gpus(8, "NVIDIA H200", links())))
    assert verdict.state is state
    assert "NVLS" in verdict.findings[0].what


@pytest.mark.parametrize(("busbw", "state"), [(0.7, State.OK), (0.3, State.WARN), (0.1, State.FAIL)])
def test_a_socket_at_sixty_percent_is_normal(busbw: float, state: State) -> None:
    eth = nic("eth0", "10.1.0.17/24", speed_mbit=10_000)
    verdict = reached(busbw, *(machine(name, [], interface=eth) for name in "ab"), own=2, backend="gloo")
    assert verdict.state is state
    assert "of line rate (ring, 1.25) (eth0 at 10 Gb/s)" in verdict.findings[0].what


def test_the_site_sets_the_shares() -> None:
    policy = Policy(thresholds={"BEN002.rdma_warn_percent": 95.0, "BEN002.rdma_fail_percent": 92.0})
    assert reached(365.0, *HPC, policy=policy).state is State.FAIL


@pytest.mark.parametrize(
    ("cluster", "reason"),
    [
        (job(*HPC[:2], rows=curve("all_reduce", 2, 16, 1.0), simulated=True), "one machine's memory"),
        (
            job(*HPC[:2], rows=curve("broadcast", 2, 16, 1.0)),
            "no figures of healthy clusters are known for broadcast",
        ),
        (job(*HPC, rows=curve("all_reduce", 4, 32, 380, most=2**20)), "latency rules all sizes of all_reduce"),
        (job(*HPC, rows=[row("all_reduce", 2**24, 508.0, 4, 32)]), "latency rules all sizes of all_reduce"),
        (
            job(machine("a", gpus(8, "NVIDIA L40S", links(0))), rows=curve("all_reduce", 1, 8, 3.0)),
            "without NVLink",
        ),
        (job(*HPC), "no collectives to judge"),
    ],
)
def test_where_nothing_is_known_nothing_is_judged_and_the_reason_is_told(cluster: Cluster, reason: str) -> None:
    verdict = judged(cluster)
    assert verdict.state is State.SKIPPED
    assert reason in (verdict.reason or "")


def test_a_fact_that_may_not_be_read_makes_it_unknown() -> None:
    verdict = reached(3.0, machine("a", [], gpus=Unread("denied", "no")))
    assert verdict.state is State.UNKNOWN
    assert "the GPUs of a could not be read (no)" in verdict.findings[0].what


def test_a_table_that_ends_early_is_judged_by_its_fit() -> None:
    """Half of the time of the largest row is latency: what the line says of larger ones counts."""
    rows = curve("all_reduce", 4, 32, 365.0, 70.0, most=2**24)
    assert judged(job(*HPC, rows=rows)).state is State.OK
    assert judged(job(*HPC, rows=curve("all_reduce", 4, 32, 90.0, 70.0, most=2**24))).state is State.FAIL


@pytest.mark.parametrize(
    ("demand", "state", "words"),
    [
        ({"all_reduce": 360.0}, State.OK, "all_reduce reached 365 GB/s of the 360 demanded"),
        ({"all_reduce": 380.0}, State.FAIL, "all_reduce reached 365 GB/s of the 380 demanded"),
        ({"all_reduce": 900.0}, State.FAIL, "which nothing can reach here: 775 at most"),
        ({"all_gather": 10.0}, State.FAIL, "all_gather was not measured"),
    ],
)
def test_a_demand_is_a_gate(demand: dict[str, float], state: State, words: str) -> None:
    verdict = reached(365.0, *HPC, policy=Policy(min_busbw=demand))
    assert verdict.state is state
    assert any(words in finding.what for finding in verdict.findings)


def test_a_demand_holds_where_no_expectation_is_known() -> None:
    rows = curve("all_reduce", 2, 4, 1.4)
    low, high = (
        judged(job(*HPC[:2], own=2, rows=rows, simulated=True, policy=Policy(min_busbw={"all_reduce": gb_s})))
        for gb_s in (1.0, 2.0)
    )
    assert (low.state, high.state) == (State.OK, State.FAIL)


@pytest.mark.parametrize(
    ("nodes", "own", "gb_s", "words"),
    [
        (HPC[:2], 8, 749.0, ""),
        (HPC[:2], 8, 800.0, "at most 750 GB/s, from 8 x 400 Gb/s a node"),
        ([machine(n, gpus(8, "NVIDIA A100-SXM4-40GB", links(12), gen=4), *[100.0] * 4) for n in "ab"], 8, 300.0,
         "at most 93.75 GB/s"),
        (HPC[:1], 8, 800.0, "at most 700 GB/s, from NVLink at 450 GB/s a GPU"),
        (HPC[:1], 1, 1.0, "one rank has no bandwidth"),
    ],
)  # fmt: skip
def test_what_nothing_can_reach_is_refused(nodes: list[Node], own: int, gb_s: float, words: str) -> None:
    cluster = job(*nodes, own=own, policy=Policy(min_busbw={"all_reduce": gb_s}))
    problems = list(expect.impossible(cluster, own * len(nodes), len(nodes)))
    assert [words in problem for problem in problems] == ([True] if words else [])


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("", {}),
        ("40", {"all_reduce": 40.0}),
        ("all_gather=0.5, 40", {"all_gather": 0.5, "all_reduce": 40.0}),
    ],
)
def test_min_busbw_is_read(given: str, parsed: dict[str, float]) -> None:
    assert bench_plan.min_busbw(given) == parsed


@pytest.mark.parametrize(
    "given", ["barrier=1", "allreduce=4", "x", "all_reduce=", "0", "-1", "nan", "1e3", "4,,5", "="]
)
def test_what_min_busbw_cannot_be_is_refused_with_what_it_can(given: str) -> None:
    with pytest.raises(UsageError, match=r"--min-busbw: .*allowed are"):
        bench_plan.min_busbw(given)


@pytest.mark.nightly
def test_a_simulated_run_says_that_it_expects_nothing(ncclcheck: Command) -> None:
    ran = ncclcheck(*RUN, "--min-busbw", "0.000001", "-o", "json", "--save", "saved.json")
    assert ran.code == 0, ran.err
    verdict = next(verdict for verdict in ran.document.verdicts if verdict.code == "BEN002")
    assert verdict.state is State.OK
    expectation = ran.document.measurements.expectation
    assert expectation is not None
    assert "one machine's memory" in expectation.reason
    assert [fit.op for fit in expectation.fits] == ["all_reduce"]
    again = ncclcheck("bench", "--from", "saved.json", "-v")
    text = " ".join(again.out.split())
    assert "expected busbw: none, for one machine's memory" in text
    assert "BEN002 bandwidth meets the expectation (no expectation: one machine's memory" in text
    failed = ncclcheck("bench", "--from", "saved.json", "--min-busbw", "all_reduce=90000")
    assert failed.code == 1
    assert "of the 90000 demanded" in " ".join(failed.out.split())


def test_a_demand_of_what_is_not_measured_is_refused_before_the_job(ncclcheck: Command) -> None:
    ran = ncclcheck("bench", "--ops", "broadcast", "--min-busbw", "all_gather=1", "--nproc-per-node", "2")
    assert ran.code == 2
    assert "--min-busbw: all_gather is not measured in this run, only broadcast" in ran.err

"""`bench --with`: what pairs of jobs say of one setting, and the real command."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Cluster, Job, Measurements, Trial, TrialRow
from ncclcheck.reports.judgement.jsondoc import Recommendation
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.recommend import recommend
from ncclcheck.reports.recommend.foreseen import foreseen
from ncclcheck.reports.recommend.settings import measured
from ncclcheck.reports.recommend.site import Site
from ncclcheck.reports.subjects.job import trial as tried
from ncclcheck.reports.subjects.job.student import quantile
from ncclcheck.run.plan import trial_plan
from ncclcheck.run.plan.bench_plan import BenchOptions, JobShape
from ncclcheck.run.plan.trial_plan import TriedSetting
from tests.conftest import ROOT, Command
from tests.helpers.clusters import LO, nic, node

MIB = 2**20


@pytest.mark.parametrize(
    ("share", "freedom", "expected"),
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 5, 2.571),
        (0.99, 4, 4.604),
        (0.999, 7, 5.408),
        (0.95, 30, 2.042),
    ],
)
def test_students_distribution_as_printed_in_tables(share: float, freedom: int, expected: float) -> None:
    assert quantile(share, freedom) == pytest.approx(expected, abs=0.001)


def trial(*rows: TrialRow, **changes: Any) -> Trial:
    made = Trial(variable="NCCL_ALGO", **{"value": "Tree", "pairs": 6, "rows": [*rows], **changes})
    return tried.completed(Measurements(trial=made)).trial or made


def row(without: list[float], with_: list[float], size: int = MIB) -> TrialRow:
    return TrialRow(op="all_reduce", bytes=size, without_us=without, with_us=with_)


STEADY = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0]
FASTER = row(STEADY, [90.0, 91.0, 89.5, 90.2, 89.9, 90.3])
SLOWER = row(STEADY, [120.0, 121.0, 119.0, 120.5, 119.5, 122.0], 2 * MIB)
SAME = row(STEADY, [101.0, 99.0, 100.2, 99.7, 100.1, 100.4])


@pytest.mark.parametrize(
    ("without", "with_", "expected"),
    [
        (FASTER.without_us, FASTER.with_us, "gains"),
        (SLOWER.without_us, SLOWER.with_us, "loses"),
        (SAME.without_us, SAME.with_us, "same"),
        ([100.0] * 6, [99.5] * 6, "same"),  # half a per cent, however sure, is no reason
        ([100.0] * 6, [98.0] * 6, "gains"),
        ([100.0, 200.0, 100.0, 300.0, 100.0, 150.0], [80.0, 190.0, 70.0, 310.0, 60.0, 140.0], "same"),
        ([100.0, 100.0], [50.0, 50.0], "unknown"),
        ([0.0, 100.0, 100.0], [50.0, 50.0, 0.0], "unknown"),
        ([], [], "unknown"),
        ([5e-324] * 3, [1e15] * 3, "loses"),
    ],
)
def test_what_a_row_says(without: list[float], with_: list[float], expected: str) -> None:
    judged = trial(row(without, with_)).rows[0]
    assert judged.verdict == expected
    if judged.speedup is not None and judged.low is not None and judged.high is not None:
        assert judged.low <= judged.speedup <= judged.high


def test_noise_alone_is_rarely_called_a_difference() -> None:
    """Six rows of six pairs, 400 times: with 95 % for all rows together about 20 may be."""
    rng = random.Random(7)

    def noisy() -> TrialRow:
        without, with_ = ([rng.lognormvariate(4.0, 0.2) for _ in range(6)] for _ in range(2))
        return row(without, with_)

    wrong = sum(tried.verdict(trial(*(noisy() for _ in range(6)))) != "same" for _ in range(400))
    assert 1 <= wrong <= 36


def cluster(outcome: Trial | None, **env: str) -> Cluster:
    job = Job(backend="nccl", ranks=2, nodes_asked=1, nodes_answered=1)
    nodes = [node("a", LO, nic("eth0", "10.0.0.1/24"), env=env)]
    return Cluster(command="bench", nodes=nodes, job=job, measurements=Measurements(trial=outcome))


@pytest.mark.parametrize(
    ("outcome", "state", "says"),
    [
        (trial(FASTER, SAME), "ok", "NCCL_ALGO=Tree gains in all_reduce of 1 MiB +10.9"),
        (trial(SAME), "ok", "no difference beyond noise, in 6 pairs"),
        (trial(FASTER, SLOWER), "warn", "loses in all_reduce of 2 MiB -16."),
        (trial(SAME, failed="dead rank"), "fail", "does not run with it (dead rank)"),
        (trial(row([1.0], [2.0]), pairs=1), "unknown", "too few pairs"),
        (None, "skipped", "no setting was tried"),
    ],
)
def test_the_rule(outcome: Trial | None, state: str, says: str) -> None:
    verdict = judge(cluster(outcome), [rule for rule in all_rules() if rule.code == "BEN017"])[0]
    assert verdict.state.value == state
    assert says in (verdict.reason or verdict.findings[0].what)


def advice(action: Any, value: str | None = "Tree", variable: str = "NCCL_ALGO") -> Recommendation:
    return Recommendation(
        variable=variable, action=action, value=value, why="", evidence=[], source="", basis="rule", gain="",
        risk="", valid_for="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "before", "after"),
    [
        (trial(FASTER), [advice("try"), advice("try", "1", "NCCL_X")], [("set", "measured"), ("try", "rule")]),
        (trial(FASTER, value=None), [], [("unset", "measured")]),
        (trial(FASTER, SLOWER), [advice("try")], []),
        (trial(FASTER, SLOWER), [advice("set")], [("set", "rule")]),
        (trial(SAME), [advice("try"), advice("try", "Ring")], [("try", "rule")]),
        (trial(SLOWER), [advice("set"), advice("try")], []),
        (trial(failed="dead rank"), [advice("set")], []),
        (trial(), [advice("try")], [("try", "rule")]),
        (None, [advice("try")], [("try", "rule")]),
    ],
)
def test_what_is_recommended_then(
    outcome: Trial | None, before: list[Recommendation], after: list[tuple[str, str]]
) -> None:
    recommendations = measured.weighed(Site(cluster(outcome), []), before)
    assert [(each.action, each.basis) for each in recommendations] == after


def test_a_measured_setting_comes_with_its_gain_and_the_way_back() -> None:
    recommendation = next(
        r for r in recommend(cluster(trial(FASTER), NCCL_ALGO="Ring"), []) if r.basis == "measured"
    )
    assert (recommendation.variable, recommendation.value, recommendation.action, recommendation.undo) == (
        "NCCL_ALGO",
        "Tree",
        "set",
        "export NCCL_ALGO=Ring",
    )
    assert recommendation.gain.startswith("all_reduce of 1 MiB +10.9")
    assert "with NCCL_ALGO=Ring" in recommendation.why


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("NCCL_ALGO=Tree", TriedSetting("NCCL_ALGO", "Tree")),
        ("NCCL_SOCKET_IFNAME==eth0,eth1", TriedSetting("NCCL_SOCKET_IFNAME", "=eth0,eth1")),
        ("TORCH_NCCL_ENABLE_TIMING=", TriedSetting("TORCH_NCCL_ENABLE_TIMING", None)),
    ],
)
def test_what_can_be_tried(given: str, expected: TriedSetting) -> None:
    assert trial_plan.setting(given) == expected
    assert str(expected) == given


@pytest.mark.parametrize(
    "given",
    ["", "=", "NCCL_ALGO", "PATH=/tmp", "LD_PRELOAD=x", "nccl_algo=Tree", "NCCL_A B=1", "NCCL_=1", " NCCL_A=1",
     "NCCL_A=\n1", "NCCL_A=\x00", "NCCL_A=\u00e9", "NCCL_A=" + "x" * 1001, "NCCL_" + "A" * 81 + "=1"],
)  # fmt: skip
def test_what_cannot(given: str) -> None:
    with pytest.raises(UsageError, match=r"--with: .*allowed"):
        trial_plan.setting(given)


@pytest.mark.parametrize(
    ("given", "backend", "ranks", "simulated", "says"),
    [
        ("NCCL_ALGO=Tree", "gloo", 2, False, "gloo, which does not read NCCL_ALGO"),
        ("TORCH_NCCL_ENABLE_TIMING=1", "gloo", 2, False, "which does not read"),
        ("GLOO_SOCKET_IFNAME=lo", "nccl", 2, False, "or --backend gloo"),
        ("NCCL_ALGO=Tree", "nccl", 1, False, "one rank sends nothing"),
        ("NCCL_HOSTID=x", "nccl", 2, True, "one of its own"),
        ("NCCL_PROTO=LL", "nccl", 2, False, "NCCL_PROTO= tries the job without it"),
        ("NCCL_ALGO=", "nccl", 2, False, "it is not set"),
    ],
)
def test_what_makes_no_difference_is_refused(
    given: str, backend: str, ranks: int, simulated: bool, says: str
) -> None:
    nodes = [node("a", LO, env={"NCCL_PROTO": "LL"})]
    with pytest.raises(UsageError, match=says):
        trial_plan.refuse(trial_plan.setting(given), JobShape(backend, ranks), nodes, simulated=simulated)
    trial_plan.refuse(TriedSetting("NCCL_PROTO", None), JobShape("nccl", 2), nodes, simulated=False)


def test_what_the_rules_would_say_of_it() -> None:
    here = cluster(None, NCCL_ALG="x")
    assert foreseen(here, "NCCL_ALGO", "Tree") == []
    assert [finding.what for finding in foreseen(here, "NCCL_ALGOO", "Tree")] == [
        "NCCL_ALGOO has no effect: NCCL does not read it; did you mean NCCL_ALGO?"
    ]
    assert "=nope matches no usable interface" in foreseen(here, "NCCL_SOCKET_IFNAME", "nope")[0].what


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("GLOO_SOCKET_IFNAM=lo", "did you mean GLOO_SOCKET_IFNAME?"),
        ("NCCL_X=1", ""),
        ("GLOO_SOCKET_IFNAME=lo", ""),
    ],
)
def test_a_name_that_nobody_knows(given: str, says: str) -> None:
    assert trial_plan.doubt(trial_plan.setting(given)).endswith(says)


def test_the_jobs_keep_within_the_time_that_was_given() -> None:
    plans = [
        trial_plan.job(BenchOptions(time_budget=given), JobShape("gloo", 2), [], simulated=False).collectives
        for given in (6.0, None)
    ]
    assert [plan.budget_s for plan in plans] == [0.5, 2.0]
    assert {row.op for row in plans[0].rows} == {"all_reduce", "all_gather"}


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_two_simulated_nodes(ncclcheck: Command) -> None:
    given = ("--quick", "--with", "GLOO_SOCKET_IFNAME=lo", "--sizes", "1K,64K")
    files = ("--markdown", "r.md", "--save", "saved.json")
    ran = ncclcheck("bench", "--nodes", "2", *given, *files, "-o", "json", seconds=240)
    assert ran.code == 0, ran.err
    jsonschema.validate(json.loads(ran.out), json.loads((ROOT / "ncclcheck/reports/schema.json").read_text()))
    document = ran.document
    assert [stage.name for stage in document.stages] == ["facts", "trial"]
    assert len(document.measurements.collectives) == 4, "of the first job all is kept, of the others none"
    outcome = document.measurements.trial
    assert outcome is not None
    assert (outcome.variable, outcome.value, outcome.pairs, outcome.failed) == ("GLOO_SOCKET_IFNAME", "lo", 4, "")
    assert {(size_row.op, size_row.bytes) for size_row in outcome.rows} == {
        (op, size) for op in ("all_reduce", "all_gather") for size in (1024, 65536)
    }
    assert all(
        len(size_row.without_us) == len(size_row.with_us) == 4 and size_row.speedup for size_row in outcome.rows
    )
    again = ncclcheck("bench", "--from", "saved.json")
    assert "Tried: GLOO_SOCKET_IFNAME=lo, 4 pairs of jobs in turn" in again.out
    assert "BEN017" not in again.out.split("Tried")[0]


@pytest.mark.timeout(200)
def test_a_setting_that_stops_the_job_is_named(ncclcheck: Command) -> None:
    """This gloo is built without TLS."""
    ran = ncclcheck("bench", "--nodes", "2", "--quick", "--with", "GLOO_DEVICE_TRANSPORT=TCP_TLS", seconds=150)
    assert ran.code == 1, ran.err
    text = " ".join(ran.out.split())
    assert "GLOO_DEVICE_TRANSPORT=TCP_TLS: the job does not run with it (dead rank: rank" in text
    assert "unsupported gloo device" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--with", "NCCL_ALGO=Tree", "--backend", "gloo"), "the job uses gloo"),
        (("--with", "GLOO_SOCKET_IFNAME=nope"), "no interface with an address is named nope"),
        (("--with", "NCCL_ALGO=Tree", "--soak", "5"), "--with and --soak"),
        (("--with", "PATH=x"), "VAR begins with NCCL_, GLOO_ or TORCH_NCCL_"),
    ],
)
def test_wrong_usage(ncclcheck: Command, arguments: tuple[str, ...], says: str) -> None:
    ran = ncclcheck("bench", "--nodes", "2", *arguments)
    assert ran.code == 2, ran.err
    assert says in ran.err

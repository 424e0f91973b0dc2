"""Healthy machines are called sound, and a fault that is put into one is named where it is.

Every alarm on a machine that works costs trust: none may FAIL, and a warning is one that its story argues.
"""

from __future__ import annotations

from functools import cache

import pytest

from ncclcheck.probes.facts import Cluster, Node, at, known, replace
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.recommend import recommend
from ncclcheck.reports.subjects.nccl import profiles
from tests.helpers import pages
from tests.sound.faults import Case, Truth, cases
from tests.sound.kinds import MORE, PLANS
from tests.sound.machine import Plan, at_work, cluster

BAD = (State.FAIL, State.WARN)
SOUND = [
    (plan, count, profile) for plan in [*PLANS, *MORE] for count in plan.counts for profile in ("", *plan.profiles)
]
FAULTY = [case for plan in PLANS for case in cases(plan)]
# The plan of a part of a node is that of the whole one: a fault in it may be in the other part.
PARTS = ("dgx-half", "dgx-station-a100", "mixed-desktop")
FAULTY_MORE = [case for plan in MORE if plan.kind not in PARTS for case in cases(plan)]


def alarms(subject: Cluster) -> dict[str, list[Finding]]:
    """What fails or warns, by code; and in passing, that the page contradicts itself nowhere."""
    verdicts = judge(subject)
    assert not pages.contradictions(verdicts, recommend(subject, verdicts))
    alarms_of = {
        verdict.code: [finding for finding in verdict.findings if finding.state in BAD] for verdict in verdicts
    }
    return {code: findings for code, findings in alarms_of.items() if findings}


@pytest.mark.parametrize(
    ("plan", "count", "profile"),
    SOUND,
    ids=[f"{plan.kind}-{count}-{name or 'none'}" for plan, count, name in SOUND],
)
def test_a_sound_machine_gives_no_alarm(plan: Plan, count: int, profile: str) -> None:
    by_code = alarms(cluster(plan, count, profile))
    failed = [finding.what for findings in by_code.values() for finding in findings if finding.state is State.FAIL]
    whats = {code: [finding.what for finding in findings] for code, findings in by_code.items()}
    assert not failed
    assert set(by_code) <= set(plan.expected), whats
    assert len(by_code) <= 2, whats


# A list of names that also takes cards of storage, for each name is the beginning of others (mlx5_1: mlx5_10).
NEEDED = {("dgx-a100", "NCCL_IB_HCA")}


@pytest.mark.parametrize(
    ("plan", "profile"),
    [(plan, profile) for plan in PLANS for profile in ("", *plan.profiles)],
    ids=[f"{plan.kind}-{profile or 'none'}" for plan in PLANS for profile in ("", *plan.profiles)],
)
def test_it_is_told_to_set_nothing_that_it_does_not_need(plan: Plan, profile: str) -> None:
    """Nor anything twice, nor to take away what the profile of its vendor sets."""
    sound = cluster(plan, min(4, max(plan.counts)), profile)
    recommendations = recommend(sound, judge(sound))
    assert {
        (plan.kind, recommendation.variable)
        for recommendation in recommendations
        if recommendation.action == "set"
    } <= NEEDED
    assert len({recommendation.variable for recommendation in recommendations}) == len(recommendations)
    kept = profiles.keeps(sound.nodes)
    assert not [
        recommendation.variable
        for recommendation in recommendations
        if recommendation.action == "unset" and recommendation.variable in kept
    ]


@pytest.mark.parametrize("plan", PLANS, ids=[plan.kind for plan in PLANS])
def test_nor_does_one_at_work(plan: Plan) -> None:
    by_code = alarms(at_work(cluster(plan, min(4, max(plan.counts)))))
    assert set(by_code) <= set(plan.expected), {
        code: [finding.what for finding in all_] for code, all_ in by_code.items()
    }


class _Sound:
    """A cluster as a key: the cases of one kind share theirs, which is judged once."""

    def __init__(self, subject: Cluster) -> None:
        self.subject = subject

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sound) and self.subject is other.subject

    def __hash__(self) -> int:
        return id(self.subject)


@cache
def _usual(sound: _Sound) -> dict[str, set[str]]:
    """What is said of it without a fault, by code."""
    return {code: {finding.what for finding in findings} for code, findings in alarms(sound.subject).items()}


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=case.name) for case in FAULTY),
        *(pytest.param(case, id=case.name, marks=pytest.mark.nightly) for case in FAULTY_MORE),
    ],
)
def test_a_fault_is_named(case: Case) -> None:
    """And nothing is said of any other node."""
    usual = _usual(_Sound(case.sound))
    by_code = alarms(case.cluster)
    new = [
        finding
        for code, findings in by_code.items()
        for finding in findings
        if finding.what not in usual.get(code, set())
    ]
    assert any(names(finding, case.truth) for finding in new)
    assert all(names(finding, Truth(case.truth.node)) for finding in new), [str(finding.where) for finding in new]


def names(finding: Finding, truth: Truth) -> bool:
    """Whether it says the node, and the device where there is one."""
    text = f"{finding.where} {finding.what} {finding.evidence}"
    return truth.node in text and (not truth.words or any(word in text for word in truth.words))


def _half(node: Node) -> Node:
    """A job that Slurm gave four of a DGX's eight GPUs and their cards; open(2) of the other cards gives EPERM."""
    cards = known(at(node, "gpus.cards"))[:4]
    own = {f"uverbs{index}" for index in (0, 3, 4, 5)}
    opened = [
        replace(file, error="" if file.name in own else "Operation not permitted")
        for file in known(at(node, "rdma.opened"))
    ]
    return replace(
        node,
        gpus=replace(node.gpus, cards=[*cards], usable=4),
        rdma=replace(node.rdma, opened=opened),
    )


def test_half_a_node_is_as_sound_as_a_whole_one() -> None:
    whole = cluster(next(plan for plan in PLANS if plan.kind == "dgx-h100"), 2, "")
    by_code = alarms(replace(whole, nodes=[_half(node) for node in whole.nodes]))
    assert not {"RDM002", "FAB006"} & set(by_code), by_code
    one_half = alarms(replace(whole, nodes=[_half(whole.nodes[0]), whole.nodes[1]]))
    assert "RDM002" in one_half, "where nodes differ, the cards of one are missing"

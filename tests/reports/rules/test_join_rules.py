"""Rules about MASTER_ADDR, MASTER_PORT, and about who came to a join."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Arrival,
    Cluster,
    Job,
    JobFacts,
    Meeting,
    Node,
    PortHolder,
    Resolution,
    Run,
    Silence,
    Unread,
    Variable,
    replace,
)
from ncclcheck.reports.judgement.findings import Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.clusters import ABSENT, DENIED, LO, nic, node, route, states_of, verdict

DOCKER = nic("docker0", "172.17.0.1/16", kind="bridge", members=["veth1"])
MGMT = nic("mgmt0", "192.168.5.1/24")
CODES = ("RUN005", "RUN006", "RUN007", "RUN008", "RUN009", "RUN010")


def _node(name: str, address: str, *more: Any, at: list[str] | None = None, **env: str) -> Node:
    """A node with its variables; `at` is what MASTER_ADDR resolves to there."""
    variables = [Variable(name=key, value=value) for key, value in env.items()]
    host = env.get("MASTER_ADDR")
    master = Resolution(name=host, addresses=[host] if at is None else at) if host else ABSENT
    job = JobFacts(variables=variables, launcher_programs=[], master=master, port_holders=ABSENT)
    return node(name, LO, nic("eth0", f"{address}/24"), *more, job=job)


def _pair(master: str, *more: Any, at: list[str] | None = None, **env: str) -> list[Node]:
    both = {"MASTER_ADDR": master, **env}
    return [_node("a", "10.1.0.1", *more, at=at, **both), _node("b", "10.1.0.2", *more, at=at, **both)]


def _meeting(endpoint: str = "10.1.0.1:29400", **changes: Any) -> Meeting:
    given = {"endpoint": endpoint, "told_by": "--node-rank and --rdzv-endpoint", "outcome": "open"}
    return Meeting(**{**given, **changes})


def _joined(*nodes: Node, code: str, meeting: Meeting, **job: Any) -> Verdict:
    return verdict(code, *nodes, job=Job(launcher="join", nodes_asked=2, meeting=meeting, **job))


def _arrival(outcome: Any, rank: int, name: str, **changes: Any) -> Arrival:
    return Arrival(outcome=outcome, node_rank=rank, name=name, address="10.1.0.9", detail="said", **changes)


@pytest.mark.parametrize("code", CODES)
def test_nothing_is_judged_where_nothing_is_set(code: str) -> None:
    for nodes in ([], [node("a", LO, nic("eth0", "10.1.0.1/24")), node("b", LO, nic("eth0", "10.1.0.2/24"))]):
        assert verdict(code, *nodes).state.value == "skipped"


@pytest.mark.parametrize("code", CODES)
def test_simulated_nodes_are_one_machine(code: str) -> None:
    job = Job(simulated=True, nodes_asked=2)
    assert verdict(code, *_pair("localhost", WORLD_SIZE="2"), job=job).state.value == "skipped"


@pytest.mark.parametrize(
    ("master", "at", "state", "words"),
    [
        ("10.1.0.1", None, "ok", "MASTER_ADDR 10.1.0.1 is eth0 of a"),
        ("a", ["10.1.0.1"], "ok", "MASTER_ADDR a is eth0 of a"),
        ("192.168.5.9", None, "fail", "is an address of no node of this job"),
        ("10.1.0.2", None, "fail", "is an address of b, and node 0 is a"),
        ("172.17.0.1", None, "fail", "is an address of 2 nodes: a, b"),
        ("localhost", ["127.0.0.1"], "skipped", ""),
        ("a", [], "skipped", ""),
    ],
)
def test_master_is_node_0(master: str, at: list[str] | None, state: str, words: str) -> None:
    judgement = verdict("RUN005", *_pair(master, DOCKER, at=at))
    assert judgement.state.value == state
    assert words in (judgement.findings[0].what if judgement.findings else "")


def test_master_on_another_network_is_a_note() -> None:
    nodes = [
        _node("a", "10.1.0.1", MGMT, MASTER_ADDR="192.168.5.1"),
        _node("b", "10.1.0.2", nic("mgmt0", "192.168.5.2/24"), MASTER_ADDR="192.168.5.1"),
    ]
    assert states_of(verdict("RUN005", *nodes)) == [("note", "a")]


def test_a_duplicate_address_is_net010s() -> None:
    nodes = [_node(name, "10.1.0.1", MASTER_ADDR="10.1.0.1") for name in "ab"]
    assert verdict("RUN005", *nodes).reason == "its ground failed: NET010"


def test_a_service_in_front_of_node_0_is_a_note() -> None:
    meeting = _meeting("10.96.0.7:29400", arrivals=[_arrival("joined", 1, "b")])
    nodes = [_node("a", "10.1.0.1"), _node("b", "10.1.0.2")]
    assert states_of(_joined(*nodes, code="RUN005", meeting=meeting)) == [("note", "a")]


def test_a_node_that_joins_sees_that_the_address_is_its_own() -> None:
    meeting = _meeting("10.1.0.2:29400", node_rank=1, outcome="refused")
    assert states_of(_joined(_node("b", "10.1.0.2"), code="RUN005", meeting=meeting)) == [("fail", "b")]
    elsewhere = _joined(_node("b", "10.1.0.3"), code="RUN005", meeting=meeting)
    assert elsewhere.reason == "the facts of node 0 are not here"


def test_an_address_of_a_silent_node_is_unknown() -> None:
    run = Run(silent=[Silence(node="c", last_step="", since_s=1)])
    assert states_of(verdict("RUN005", *_pair("10.1.0.9"), run=run)) == [("unknown", "a")]


@pytest.mark.parametrize(
    ("nodes", "states"),
    [
        (_pair("10.1.0.1"), [("ok", None)]),
        (_pair("127.0.0.1"), [("fail", None)]),
        (_pair("localhost", at=["127.0.0.1"]), [("fail", None)]),
        (
            [
                _node("a", "10.1.0.1", MASTER_ADDR="a", at=["127.0.1.1"]),
                _node("b", "10.1.0.2", MASTER_ADDR="a", at=["10.1.0.1"]),
            ],
            [("ok", None)],
        ),
        (_pair("a", at=["127.0.1.1"]), [("fail", "b"), ("ok", None)]),
        (_pair("a", at=[]), [("fail", "a"), ("fail", "b"), ("ok", None)]),
        ([*_pair("a", at=["10.1.0.1"]), _node("c", "10.1.0.3", MASTER_ADDR="c")], [("fail", "c")]),
    ],
)
def test_master_is_one_and_not_loopback(nodes: list[Node], states: list[tuple[str, str | None]]) -> None:
    assert states_of(verdict("RUN006", *nodes)) == states


def test_a_typed_loopback_endpoint() -> None:
    judged = _joined(_node("a", "10.1.0.1"), code="RUN006", meeting=_meeting("127.0.0.1:29400"))
    assert judged.findings[0].what.startswith("--rdzv-endpoint is 127.0.0.1")


def test_a_variable_left_over_beside_a_typed_endpoint_is_a_note() -> None:
    """The nodes have met: what MASTER_ADDR of another job says harms nobody here."""
    nodes = [_node("a", "10.1.0.1"), _node("b", "10.1.0.2", MASTER_ADDR="gpu-old-17", at=[])]
    meeting = replace(_meeting("10.1.0.1:29400"), outcome="open", node_rank=0)
    judged = _joined(*nodes, code="RUN006", meeting=meeting)
    assert [finding.state.value for finding in judged.findings] == ["note"]
    assert "MASTER_ADDR is set on b and not used" in judged.findings[0].what


@pytest.mark.parametrize("master", ["127.0.0.1", "10.9.9.9", "gpu-old-17"])
def test_what_some_profiles_set_is_no_failure_of_the_job(master: str) -> None:
    """A launcher sets it on all nodes."""
    nodes = [_node("a", "10.1.0.1"), _node("b", "10.1.0.2", MASTER_ADDR=master, at=[]), _node("c", "10.1.0.3")]
    assert states_of(verdict("RUN006", *nodes)) == [("note", "b")]
    assert verdict("RUN005", *nodes).state.value == "skipped"


HELD = [PortHolder(port=29500, pid=77, name="python", address="0.0.0.0")]


def _with_port(holders: Any, env: dict[str, str]) -> Node:
    given: Any = {"MASTER_PORT": "29500", **env}
    machine = _node("a", "10.1.0.1", **given)
    return replace(machine, job=replace(machine.job, port_holders=holders))


@pytest.mark.parametrize(
    ("holders", "env", "asked", "state"),
    [
        ([], {}, 2, "ok"),
        (HELD, {}, 2, "fail"),
        (HELD, {}, 1, "fail"),
        (HELD, {"MASTER_ADDR": "127.0.0.1"}, 1, "fail"),
        (HELD, {"MASTER_ADDR": "10.1.0.1"}, 1, "fail"),
        (HELD, {"MASTER_ADDR": "10.9.9.9"}, 1, "skipped"),
        (DENIED, {}, 2, "unknown"),
    ],
)
def test_the_port(holders: Any, env: dict[str, str], asked: int, state: str) -> None:
    judgement = verdict("RUN007", _with_port(holders, env), job=Job(nodes_asked=asked))
    assert judgement.state.value == state
    if state == "fail":
        assert "port 29500 is held by python (pid 77)" in judgement.findings[0].what


@pytest.mark.parametrize(("launcher", "state"), [("join", "fail"), ("torchrun", "skipped")])
def test_a_typed_port_that_could_not_be_opened(launcher: Any, state: str) -> None:
    """Inside torchrun the ports after its own are only ours, and of no interest to the job."""
    job = Job(launcher=launcher, nodes_asked=2, meeting=_meeting(detail="0.0.0.0:29400 cannot be opened: in use"))
    assert verdict("RUN007", _node("a", "10.1.0.1"), job=job).state.value == state


def test_one_rank_twice() -> None:
    arrivals = [_arrival("joined", 1, "b"), _arrival("same rank", 1, "c")]
    judged = _joined(_node("a", "10.1.0.1"), code="RUN008", meeting=_meeting(arrivals=arrivals))
    assert (states_of(judged), judged.findings[0].where.peer) == ([("fail", "c")], "b")
    assert judged.findings[0].what == "c (10.1.0.9) and b both came as node rank 1"


def test_a_second_node_rank_0() -> None:
    words = "node rank 0 came twice: a and b (10.1.0.2)"
    meeting = replace(_meeting(), outcome="turned_away", detail=words, addresses=["10.1.0.1"])
    [finding] = _joined(_node("b", "10.1.0.2"), code="RUN008", meeting=meeting).findings
    assert (finding.state.value, finding.where.node) == ("fail", "b")
    assert "another machine is that already" in finding.what
    assert any("--node-rank 1" in line for remedy in finding.remedies for line in remedy.commands)
    assert _joined(_node("b", "10.1.0.2"), code="RUN007", meeting=meeting).state.value != "fail"


def test_one_node_twice() -> None:
    """A pod whose successor has begun; no rank is missing then."""
    arrivals = [_arrival("joined", 1, "b"), _arrival("same rank", 1, "b")]
    [finding] = _joined(_node("a", "10.1.0.1"), code="RUN008", meeting=_meeting(arrivals=arrivals)).findings
    assert finding.what == "two processes of b came as node rank 1; the second was rejected"
    assert "missing" not in finding.why


@pytest.mark.parametrize("outcome", ["other command", "other protocol", "late"])
def test_turned_away(outcome: str) -> None:
    meeting = _meeting(arrivals=[_arrival(outcome, 1, "b")])
    assert states_of(_joined(_node("a", "10.1.0.1"), code="RUN008", meeting=meeting)) == [("fail", "b")]


@pytest.mark.parametrize(("ranks", "state"), [("00", "warn"), ("01", "ok")])
def test_node_rank_that_was_set_before_srun(ranks: str, state: str) -> None:
    nodes = [_node(name, "10.1.0.1", NODE_RANK=rank) for name, rank in zip("ab", ranks, strict=True)]
    assert verdict("RUN008", *nodes, job=Job(launcher="slurm", nodes_asked=2)).state.value == state


def test_everybody_came_once() -> None:
    meeting = _meeting(arrivals=[_arrival("left", 1, "old"), _arrival("joined", 1, "b")])
    for code in ("RUN008", "RUN009"):
        assert _joined(_node("a", "10.1.0.1"), code=code, meeting=meeting).state.value == "ok"


def test_different_numbers_of_nodes() -> None:
    meeting = _meeting(arrivals=[_arrival("other count", 1, "b", nodes=3)])
    judged = _joined(_node("a", "10.1.0.1"), code="RUN009", meeting=meeting)
    assert states_of(judged) == [("fail", "b")]
    assert judged.findings[0].what == "b was told of 3 nodes, a of 2"


def test_world_size_differs() -> None:
    nodes = [_node(name, "10.1.0.1", WORLD_SIZE=size) for name, size in zip("abc", "224", strict=True)]
    assert states_of(verdict("RUN009", *nodes)) == [("fail", "c")]


def test_how_world_size_was_read_is_said() -> None:
    judged = _joined(
        *_pair("a", WORLD_SIZE="2"), code="RUN009", meeting=_meeting(), chosen_by="WORLD_SIZE=2 as pods"
    )
    assert judged.findings[0].what == "read from WORLD_SIZE=2 as pods"


@pytest.mark.parametrize(
    ("address", "routes", "words"),
    [
        ("10.1.0.9", [], "10.1.0.9 is in the subnet of eth0"),
        ("10.2.0.9", [], "in none of this node's subnets (eth0 10.1.0.0/24); no route"),
        ("10.2.0.9", [route("0.0.0.0/0", "eth0", "10.1.0.254")], "it goes by eth0 through 10.1.0.254"),
        ("127.0.0.1", [], "127.0.0.1 is this machine itself"),
    ],
)
def test_why_node_0_was_not_reached(address: str, routes: Any, words: str) -> None:
    machine = node("b", LO, nic("eth0", "10.1.0.2/24"), routes=routes)
    meeting = _meeting(f"{address}:29400", outcome="silent", node_rank=1, addresses=[address], detail="no answer")
    judged = _joined(machine, code="RUN010", meeting=meeting)
    assert states_of(judged) == [("unknown", "b")]
    assert words in judged.findings[0].evidence[-1].value


@pytest.mark.parametrize("outcome", ["unresolved", "no_route", "refused", "silent", "stranger"])
def test_every_cause_has_a_mend_and_exit_3(outcome: Any) -> None:
    cluster = Cluster(
        nodes=[node("b", LO, nic("eth0", "10.1.0.2/24"))],
        job=Job(launcher="join", nodes_asked=2, meeting=_meeting("a:29400", outcome=outcome, node_rank=1)),
        run=Run(stopped_by="refused"),
    )
    verdicts = judge(cluster, [rule for rule in all_rules() if rule.code.startswith("RUN")])
    assert {v.code for v in verdicts if v.state.value not in ("ok", "skipped")} == {"RUN010"}
    assert next(v for v in verdicts if v.code == "RUN010").findings[0].remedies


def test_a_node_whose_variables_were_not_read() -> None:
    blind = node("a", LO, nic("eth0", "10.1.0.1/24"), job=Unread("denied", "not for this user"))
    assert {verdict(code, blind, blind).state.value for code in CODES} == {"skipped", "unknown"}

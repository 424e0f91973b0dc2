"""A node that falls silent is looked at from the others: whether its host answers tells the host from the way."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ncclcheck.base import wire
from ncclcheck.launch.agents import AgentRecord, Closed
from ncclcheck.launch.joining.trust.secret import NO_SECRET
from ncclcheck.probes.facts import Door, Job, Knock, Run, Silence
from ncclcheck.probes.reach import knock
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.run.follower import around
from ncclcheck.run.gather import Gathered
from ncclcheck.run.own_command import NotOurs, OwnCommand
from tests.helpers.clusters import verdict
from tests.helpers.reach_clusters import hosts, measured

_CUT_OFF = "nothing was heard from it for 15 s; it had joined from 10.1.0.3"


def _knock(by: str, *, answered: bool) -> Knock:
    detail = "refused, as a closed port does" if answered else "no answer"
    return Knock(of="h3", by=by, address="10.1.0.3", answered=answered, detail=detail)


def _told(code: str, detail: str, **answers: bool) -> list[Finding]:
    knocks = [_knock(by, answered=answered) for by, answered in answers.items()]
    silence = Silence(node="h3", last_step="start torchrun", since_s=17.0, detail=detail, knocks=knocks)
    run = Run(silent=[silence], started_job=True, stopped_by="silent node")
    nodes = hosts(3)
    job = Job(launcher="join", nodes_asked=3, nodes_answered=3, ranks=3, missing=["h3"])
    judged = verdict(code, *nodes, command="bench", job=job, run=run, measurements=measured(nodes))
    return judged.findings


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (
            {"h1": False, "h2": True},
            "nothing came from it for 15 s; h2 reaches h3, h1 does not: the way h1 - h3",
        ),
        ({"h1": False}, "no answer from its host to h1: the host, its link or that of h1 is away"),
        ({"h1": False, "h2": False}, "for 15 s; no answer from its host to h[1-2]: the host or its link is away"),
        (
            {"h1": True, "h2": True},
            "its address still answers h[1-2]: what runs there hangs or was stopped, or another",
        ),
        ({}, "nothing came from it for 15 s: it is cut off, it hangs, or all of it is stopped"),
    ],
)
def test_the_cause_says_what_the_others_saw(answers: dict[str, bool], words: str) -> None:
    (finding,) = _told("RUN001", _CUT_OFF, **answers)
    assert words in finding.what
    away = "the host or its link is away" in words
    assert any("power status" in line for fix in finding.remedies for line in fix.commands) is away
    assert len(
        [evidence for evidence in finding.evidence if evidence.source == "TCP connect after the job"]
    ) == len(answers)


def test_what_its_own_end_tells_is_not_told_otherwise() -> None:
    (finding,) = _told("RUN001", "ncclcheck on this node was ended by signal 2", h1=True, h2=True)
    assert finding.what == "its ncclcheck was ended there by signal 2"


def test_a_way_that_was_lost_names_both_ends() -> None:
    (finding,) = _told("NET006", _CUT_OFF, h1=False, h2=True)
    assert (finding.state, finding.where.node, finding.where.peer) == (State.FAIL, "h1", "h3")
    assert "the way h1 - h3 was lost during the run" in finding.what


@pytest.mark.parametrize("answers", [{"h1": False, "h2": False}, {"h1": True, "h2": True}])
def test_where_all_see_the_same_no_way_is_accused(answers: dict[str, bool]) -> None:
    assert [finding.state for finding in _told("NET006", _CUT_OFF, **answers)] == [State.OK]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"alive": "UDP"}, "its host and link are alive (its UDP answers h[1-2]), and new connections"),
        ({"alive": "TCP port 22"}, "alive (its TCP port 22 answers h[1-2])"),
        ({"kept": "filter"}, "h[1-2] itself does not send to it any more"),
    ],
)
def test_a_filter_that_comes_in_mid_run_is_no_dead_host(facts: dict[str, Any], words: str) -> None:
    knocks = [Knock(of="h3", by=by, address="10.1.0.3", answered=False, detail="no answer", **facts)
              for by in ("h1", "h2")]  # fmt: skip
    silence = Silence(node="h3", last_step="start torchrun", since_s=17.0, detail=_CUT_OFF, knocks=knocks)
    (finding,) = verdict("RUN001", *hosts(3), run=Run(silent=[silence], started_job=True)).findings
    assert words in finding.what
    assert "nft list ruleset" in finding.remedies[0].commands


def _door(node: int, port: int, address: str = "127.0.0.1") -> Door:
    return Door(
        node=node,
        name=f"h{node + 1}",
        interface="eth0",
        address=address,
        tcp_port=port,
        udp_port=port,
        mtu=1500,
        token="t",
    )


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """One that is open, and one that was."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            closed = gone.getsockname()[1]
        yield listening.getsockname()[1], closed


def test_a_closed_port_of_a_host_that_is_there_answers(ports: tuple[int, int]) -> None:
    opened, closed = ports
    knocks = knock([_door(0, opened), _door(1, closed), _door(2, closed, "no address")], "h9", 1.0)
    assert [(answer.of, answer.by, answer.answered) for answer in knocks] == [
        ("h1", "h9", True),
        ("h2", "h9", True),
        ("h3", "h9", False),
    ]


def test_it_keeps_its_limit() -> None:
    """A backlog that is full drops SYNs: nothing answers."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        time.sleep(0.1)
        begun = time.monotonic()
        (answer,) = knock([_door(0, port)], "h9", 0.5)
        for sock in waiting:
            sock.close()
    assert (answer.answered, answer.detail) == (False, "no answer")
    assert time.monotonic() - begun < 2.0


def test_a_node_of_a_join_searches_no_network() -> None:
    own = OwnCommand(seconds=100)
    taken = own.taken(wire.KnockOrder(doors=[_door(0, 40000)], seconds=1e9), NO_SECRET)
    assert isinstance(taken, wire.KnockOrder)
    assert taken.seconds == 100
    for doors in ([_door(0, 22)], [_door(0, 40000)] * 5, [_door(0, 40000, "a b")]):
        with pytest.raises(NotOurs):
            own.taken(wire.KnockOrder(doors=doors, seconds=1.0), NO_SECRET)


class _Link:
    """Two nodes, of which the second falls silent."""

    nodes: Mapping[int, str] = {0: "h1", 1: "h2"}

    def send(self, node: int | None, order: wire.FromLauncher) -> None: ...

    def describe(self, node: int) -> Closed:
        return Closed(node, "")

    def close(self, seconds: float) -> None: ...


def test_what_was_found_stands_with_the_silent_node() -> None:
    gathered = Gathered([_Link()])
    gathered.take(AgentRecord(1, wire.Listening(door=_door(1, 40000))))
    gathered.begin_reach()
    answer = Knock(of="h2", by="another name", address="127.0.0.1", answered=True)
    gathered.take(AgentRecord(0, wire.Knocked(found=[answer])))
    silent = {silence.node: silence for silence in gathered.run(started_job=True, stopped_by="").silent}
    assert [answer.by for answer in silent["h2"].knocks] == ["h1"]
    assert not silent["h1"].knocks


def test_a_follower_says_who_still_answers(ports: tuple[int, int]) -> None:
    _, closed = ports
    gone = _door(0, closed, "no address")
    assert around([], 2, "h3") == ""
    assert "its host (127.0.0.1) still answers" in around([_door(0, closed), _door(2, closed)], 2, "h3")
    words = around([gone, _door(1, closed), _door(2, closed)], 2, "h3")
    assert words == "; nothing comes back from h1 (no address); h2 answers"
    alone = around([gone, _door(1, closed, "none"), _door(2, closed)], 2, "h3")
    assert alone.endswith("nor from any other node")


def test_who_reaches_nobody_may_be_away_itself() -> None:
    silent = [
        Silence(node=of, last_step="x", since_s=17.0, detail=_CUT_OFF, knocks=[_knock("h1", answered=False)])
        for of in ("h2", "h3")
    ]
    run = Run(silent=silent, started_job=True, stopped_by="silent node")
    job = Job(launcher="join", nodes_asked=3, nodes_answered=3, ranks=3, missing=["h2", "h3"])
    findings = verdict("RUN001", *hosts(3), command="bench", job=job, run=run).findings
    assert all(
        "h1 reaches none of h[2-3]: most likely its own link is away" in finding.what for finding in findings
    )

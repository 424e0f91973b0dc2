"""A node that vanishes after it told its facts is silent, whatever it is asked for by then."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ncclcheck.base import wire
from ncclcheck.base.clock import Deadline
from ncclcheck.base.progress import Progress
from ncclcheck.launch.agents import AgentRecord, Closed, Event, Events
from ncclcheck.probes.facts import Cluster, Door, Job, Node, NodeReach
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.run.session import Session

GONE = "its connection closed; it had joined from 10.0.0.2"


class _Link:
    """Two nodes that do as they are told; the second is gone once it gets this order."""

    nodes: Mapping[int, str] = {0: "a", 1: "b"}

    def __init__(self, events: Events, last: type[object]) -> None:
        self._events, self._last = events, last

    def send(self, node: int | None, order: wire.FromLauncher) -> None:
        for index in self.nodes if node is None else [node]:
            for event in self._answers(index, order):
                self._events.put(event)

    def _answers(self, node: int, order: wire.FromLauncher) -> list[Event]:
        if node == 1 and isinstance(order, self._last):
            return [Closed(node, GONE)]
        if isinstance(order, wire.Listen):
            door = Door(
                node=node, name=self.nodes[node], interface="eth0", address=order.address, tcp_port=1, udp_port=2,
                mtu=1500, token="t",
            )  # fmt: skip
            return [AgentRecord(node, wire.Listening(door=door))]
        if isinstance(order, wire.ReachPeers):
            reach = NodeReach(node=self.nodes[node], interface="eth0", address=f"10.0.0.{node + 1}", mtu=1500)
            return [AgentRecord(node, wire.Reach(reach=reach))]
        return []

    def describe(self, node: int) -> Closed:
        return Closed(node, "")

    def close(self, seconds: float) -> None: ...


def _after(last: type[object], stopped_by: str = "") -> Cluster:
    events = Events()
    session = Session([_Link(events, last)], events, Deadline(20.0), Progress(quiet=True))
    for node, name in _Link.nodes.items():
        events.put(AgentRecord(node, wire.Facts(node=Node(name=name))))
    session.facts(5.0)
    session.reach({0: wire.Listen(address="10.0.0.1"), 1: wire.Listen(address="10.0.0.2")}, {}, 1.0, {})
    run = session.gathered.run(started_job=False, stopped_by=stopped_by)
    names = [silence.node for silence in run.silent]
    job = Job(launcher="join", nodes_asked=2, nodes_answered=2, missing=names)
    return Cluster(command="env", nodes=session.gathered.answered, job=job, run=run)


@pytest.mark.parametrize("last", [wire.Listen, wire.ReachPeers])
def test_a_node_that_vanishes_is_named(last: type[object]) -> None:
    verdict = judge(_after(last), [rule for rule in all_rules() if rule.code == "RUN001"])[0]
    assert verdict.state is State.UNKNOWN
    assert [finding.where.node for finding in verdict.findings] == ["b"]
    assert "its connection closed" in verdict.findings[0].what


def test_nodes_that_stay_are_none_of_it() -> None:
    assert _after(wire.Stop).run.silent == []


def test_what_a_signal_ended_is_no_silence() -> None:
    assert _after(wire.ReachPeers, "signal").run.silent == []

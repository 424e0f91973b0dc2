"""What every node of a join but node rank 0 does: follow it, and end with its outcome."""

from __future__ import annotations

import errno
import socket
import threading
import time
from dataclasses import dataclass
from functools import partial
from queue import Empty

from ncclcheck.base import exits, wire
from ncclcheck.base.clock import Deadline
from ncclcheck.base.errors import Interrupted
from ncclcheck.base.progress import Progress
from ncclcheck.launch.agents import AgentRecord, Closed, Events, ProcessLink, Signalled, agent_here
from ncclcheck.launch.joining import join_protocol
from ncclcheck.launch.joining.connection import LeadConnection
from ncclcheck.launch.joining.follow import StoppedBySignal, is_reached, reach
from ncclcheck.launch.joining.siblings import SiblingOutcome, Siblings, await_outcome
from ncclcheck.launch.joining.trust.identity import JoinIdentity
from ncclcheck.node import rundir
from ncclcheck.probes.facts import Cluster, Door, Job, JobEnd, Meeting, Node, Run
from ncclcheck.probes.facts.run.course import signal_name
from ncclcheck.probes.machine import process
from ncclcheck.probes.reach import protocol
from ncclcheck.probes.reach.knock import MOST_S, knock
from ncclcheck.reports.text.words.fold import fold_names
from ncclcheck.run.own_command import LEAST_PORT, NotOurs, OwnCommand
from ncclcheck.run.plan.options import Options
from ncclcheck.run.session import Session, signals_as_events

_LEAD_SILENT_S = 2 * join_protocol.SILENT_S
_FACTS_S = 20.0  # s for the facts of this node: many times what a healthy one needs; chosen
_STOPPED_FOR_S = 3.0  # s in state T before a rank is reported as stopped: a debugger may pass through; chosen
_MARGIN_S = 60.0  # s beyond node 0's own limit in which its verdict has to arrive; chosen
_MOST_TRIED = 8  # nodes that are tried where node rank 0 is gone: it, and enough others to tell whose link it is


@dataclass(frozen=True)
class FollowerEnd:
    """How a node other than node rank 0 ends: its exit code, and one line for stderr.

    document: the report of node rank 0. unreached: why there is none, with our own facts in `node`.
    """

    exit_code: int
    line: str
    document: bytes | None = None
    unreached: Meeting | None = None
    node: Node | None = None


def follow(
    who: JoinIdentity,
    command: str,
    events: Events,
    wait: float,
    own: OwnCommand,
    progress: Progress,
    *agent_options: str,
) -> FollowerEnd:
    """All that a node other than node rank 0 does. own: what it may be asked to do, within which deadline."""
    with signals_as_events(events):
        if who.local_rank > 0:
            return _wait_beside(who, events, wait + own.seconds + 2 * _MARGIN_S)
        siblings = Siblings(who) if who.local_size > 1 else None
        result = _follow(who, command, events, wait, own, progress, *agent_options)
        if siblings is not None:
            siblings.tell_at_exit(SiblingOutcome(result.exit_code, result.line))
        return result


def _wait_beside(who: JoinIdentity, events: Events, seconds: float) -> FollowerEnd:
    try:
        outcome = await_outcome(who, seconds, lambda: not events.empty())
    except StoppedBySignal:
        return _signalled(events)
    if outcome is None:
        return FollowerEnd(
            exits.Exit.INCOMPLETE,
            f"{who.name}: local rank 0 is gone or was never there; see what the other tasks of this node said",
        )
    return FollowerEnd(outcome.exit_code, "")


def _follow(
    who: JoinIdentity,
    command: str,
    events: Events,
    wait: float,
    own: OwnCommand,
    progress: Progress,
    *agent_options: str,
) -> FollowerEnd:
    progress.stage(f"node rank {who.node_rank}: joining node rank 0 at {who.endpoint}")
    try:
        reached = reach(who, command, wait, progress.say, lambda: not events.empty())
    except StoppedBySignal:
        return _signalled(events)
    if isinstance(reached, LeadConnection):
        beside = f" by another address, for {reached.unreached.detail}" if reached.unreached else ""
        progress.say(f"joined as {reached.name}{beside}; node rank 0 writes the report")
        return _relay(reached, who, events, own, *agent_options)
    line = f"node rank 0 was not reached at {reached.endpoint}: {reached.detail}"
    if reached.outcome == "turned_away":
        return FollowerEnd(exits.Exit.USAGE, f"turned away by node rank 0: {reached.detail}", unreached=reached)
    try:
        node = _own_facts(who, events, progress, *agent_options)
    except Interrupted as interrupted:
        return FollowerEnd(exits.of_signal(interrupted.number), line)
    return FollowerEnd(exits.Exit.INCOMPLETE, line, unreached=reached, node=node)


def _signalled(events: Events) -> FollowerEnd:
    event = events.get()
    number = event.number if isinstance(event, Signalled) else 0
    return FollowerEnd(exits.of_signal(number), "ended by a signal before node rank 0 was reached")


def _relay(
    lead: LeadConnection, who: JoinIdentity, events: Events, own: OwnCommand, *agent_options: str
) -> FollowerEnd:
    """Pass on both ways until node rank 0 tells the outcome, or is gone."""
    process.adopt_orphans()
    agent = agent_here(who.node_rank, lead.name, events, *agent_options)
    known: list[Door] = []
    lead.obey(who.node_rank, partial(_give, agent, who, own, events, known))
    watch, endpoint = _AgentWatch(agent, lead.name), _EndpointWatch(who, lead)
    signal = 0
    beat = 0.0
    while lead.outcome is None and not lead.lost and not signal:
        now = time.monotonic()
        if now > beat:
            lead.tell(join_protocol.JoinBeat())
            beat = now + join_protocol.BEAT_S
            endpoint.tell()
            if words := watch.stopped():
                lead.tell(join_protocol.AgentEnd(detail=words))
        if now - lead.heard > _LEAD_SILENT_S:
            lead.lost = f"nothing was heard from it for {_LEAD_SILENT_S:.0f} s"
        elif lead.begun is not None and now - lead.begun > own.seconds + _MARGIN_S:
            lead.lost = f"it reported no outcome in {now - lead.begun:.0f} s"
        signal = _pass_on_one(lead, who.node_rank, events)
    _end(agent, lead)
    if signal:
        return FollowerEnd(exits.of_signal(signal), f"{lead.name}: ended by signal {signal}")
    if lead.outcome is None:
        near = own_address_lost(known, who.node_rank) or around(known, who.node_rank, lead.name)
        gone = f"{lead.name}: node rank 0 is gone: {lead.lost}{near}"
        return FollowerEnd(exits.Exit.INCOMPLETE, gone)
    done = lead.outcome
    return FollowerEnd(done.exit_code, f"{lead.name}: {done.decision}", document=done.document)


def _give(
    agent: ProcessLink,
    who: JoinIdentity,
    own: OwnCommand,
    events: Events,
    known: list[Door],
    order: wire.FromLauncher,
) -> None:
    """Hand an order to our agent as far as this node's own command covers it; else the node says why not.

    known: where the other nodes could be reached before the job.
    """
    if isinstance(order, wire.ReachPeers):
        known[:] = order.doors
    try:
        agent.send(who.node_rank, own.taken(order, who.secret))
    except NotOurs as refused:
        words = f"this node was asked {refused}; type the same command on every node"
        events.put(AgentRecord(who.node_rank, wire.JobEnded(end=JobEnd(node=who.name, exit=None, detail=words))))


def own_address_lost(known: list[Door], node_rank: int) -> str:
    """Whether this node has no more the address at which the others knew it."""
    own = next((door.address for door in known if door.node == node_rank), "")
    try:
        if own:
            socket.create_server((own, 0), family=protocol.family_of(own)).close()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return (
                f"; this node has lost its own address {own}: it was removed or changed during the run (ip addr)"
            )
    return ""


def around(known: list[Door], node_rank: int, name: str) -> str:
    """Whether the host of node rank 0 still answers, and who else does; empty where no door is known."""
    doors = [door for door in known if door.node != node_rank and door.tcp_port >= LEAST_PORT]
    doors = sorted(doors, key=lambda door: door.node)[:_MOST_TRIED]
    answers = {knock_.of: knock_ for knock_ in knock(doors, name, MOST_S)}
    lead = next((answers[door.name] for door in doors if door.node == 0 and door.name in answers), None)
    if lead is None:
        return ""
    if lead.answered:
        return f"; its host ({lead.address}) still answers, so ncclcheck was ended there, or hangs"
    others = {name: answer for name, answer in answers.items() if answer is not lead}
    alive = [name for name, answer in others.items() if answer.answered]
    rest = f"{fold_names(alive)} answer{'s' if len(alive) == 1 else ''}" if alive else "nor from any other node"
    return f"; nothing comes back from {lead.of} ({lead.address}); {rest if others else 'no other node is known'}"


def _pass_on_one(lead: LeadConnection, node: int, events: Events) -> int:
    """One event, if there is one; the number of a signal that ends us, else 0."""
    try:
        event = events.get(timeout=0.1)
    except Empty:
        return 0
    if isinstance(event, AgentRecord):
        lead.say(node, event.record)
    elif isinstance(event, Closed):
        lead.tell(join_protocol.AgentEnd(detail=ended(lead.name, event)))
    elif isinstance(event, Signalled):
        lead.tell(join_protocol.AgentEnd(detail=f"ncclcheck on this node was ended by signal {event.number}"))
        return event.number
    return 0


class _EndpointWatch:
    """Where the endpoint failed: node rank 0 is told so, and that it does not any more if it comes in time."""

    def __init__(self, who: JoinIdentity, lead: LeadConnection) -> None:
        self._lead, self._came = lead, threading.Event()
        if lead.unreached is not None:
            lead.tell(join_protocol.CutOffNode(meeting=lead.unreached))
            threading.Thread(target=self._watch, args=(who,), daemon=True, name="endpoint").start()

    def _watch(self, who: JoinIdentity) -> None:
        while self._lead.begun is None and not self._lead.lost and not self._came.is_set():
            if is_reached(who):
                self._came.set()
            time.sleep(join_protocol.BEAT_S)

    def tell(self) -> None:
        """Tell node rank 0, once, that it was cut off; from one thread, since lines are sealed by number."""
        if self._came.is_set() and self._lead.unreached is not None:
            self._lead.unreached = None
            self._lead.tell(join_protocol.CutOffNode())


class _AgentWatch:
    """Sees whether this node's agent is stopped (state T), of which node rank 0 only hears nothing."""

    def __init__(self, agent: ProcessLink, name: str) -> None:
        self._agent, self._name = agent, name
        self._since: float | None = None
        self._told = False

    def stopped(self) -> str:
        """What is said, once, when it has been stopped for a while; a debugger that attaches stops it for less."""
        if process.state_of(self._agent.child.pid) not in ("T", "t"):
            self._since = None
            return ""
        self._since = self._since or time.monotonic()
        if self._told or time.monotonic() - self._since < _STOPPED_FOR_S:
            return ""
        self._told = True
        return f"ncclcheck: {self._name}: its agent, pid {self._agent.child.pid}, is stopped (state T)"


def ended(name: str, closed: Closed) -> str:
    """How our own agent ended: what it wrote last, and a signal that it cannot have spoken of itself."""
    if closed.exit is None or closed.exit >= 0:
        return closed.detail
    words = f"ncclcheck: {name}: its agent was ended by {signal_name(-closed.exit)}"
    return f"{closed.detail}\n{words}".strip()


def _end(agent: ProcessLink, lead: LeadConnection) -> None:
    lead.close()
    agent.close(3.0)
    process.kill_tree()
    process.reap_all()
    rundir.sweep()


def _own_facts(who: JoinIdentity, events: Events, progress: Progress, *agent_options: str) -> Node | None:
    """The facts of this node from an agent of its own; None where it gave none. Raises Interrupted."""
    progress.stage("reading the facts of this node")
    process.adopt_orphans()
    session = Session(
        [agent_here(who.node_rank, who.name, events, *agent_options)], events, Deadline(_FACTS_S), progress
    )
    try:
        session.facts(_FACTS_S)
    finally:
        session.close()
        progress.clear()
    return next(iter(session.gathered.answered), None)


def alone(who: JoinIdentity, followed: FollowerEnd, options: Options) -> Cluster:
    """The cluster of a node that never reached node rank 0: itself, and why."""
    return Cluster(
        command=options.command,
        nodes=[followed.node] if followed.node else [],
        job=Job(
            launcher=who.launcher,
            chosen_by=who.chosen_by,
            nodes_asked=who.nodes,
            nodes_answered=1 if followed.node else 0,
            missing=["node rank 0"],
            meeting=followed.unreached,
        ),
        run=Run(stopped_by="refused"),
        policy=options.policy,
    )

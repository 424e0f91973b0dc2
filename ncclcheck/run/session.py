"""One run with its agents: the only place that waits. Every wait has a limit, and a signal ends it."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty
from types import FrameType

from ncclcheck.base import wire
from ncclcheck.base.clock import Deadline
from ncclcheck.base.errors import Interrupted
from ncclcheck.base.progress import Progress
from ncclcheck.launch.agents import (
    AgentRecord,
    Closed,
    DialledLink,
    Event,
    Events,
    Link,
    LoginLink,
    Looked,
    LookingLink,
    Signalled,
    TiedLink,
)
from ncclcheck.node import rundir
from ncclcheck.probes.facts import SlowLogin, replace
from ncclcheck.probes.facts.run.course import STOPPED
from ncclcheck.probes.machine import process
from ncclcheck.probes.reach import spread
from ncclcheck.run.gather import Gathered
from ncclcheck.run.stall import Stall

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE = 2.5  # s for what the others have yet to report when the end is already known; chosen
_STOPPED_FOR = 3.0  # s in state T before a rank is reported as stopped: a debugger may pass through; chosen
_SILENT = 15.0  # s without a line of an agent before its node counts as unresponsive; chosen
_CLOSE = 8.0  # s for agents to leave by themselves before they are killed; chosen
_DOORS_S = 8.0  # s for agents to open their listeners, and to report what they reached; chosen
_BEAT_EVERY = 5.0  # s between two beats to the agents, by which they know that somebody still listens; chosen
_ANEW_S = 12.0  # s for the facts of nodes that are started a second time; chosen
_LOOK_AFTER_S = 9.0  # no probe and no step of a healthy node is silent for so long; _SILENT gives it up at 15 s
_LOOK_EVERY_S = 0.25  # s between two looks for silent nodes: each asks all of them
_MOST_AT_ONCE = 256  # events that are taken before it is asked again whether it is over, which also asks all
_LOOK_S = 5.0  # a login takes a second, on a busy host two
_MOST_KNOCKING = 64  # nodes that try a silent one: enough to tell a way from a host
_DIAL_S = 4.0  # for all of them; one takes 10 ms
_MOST_LOOKS = 16  # at once and in all: one that is looked at speaks for others like it


@contextmanager
def signals_as_events(events: Events) -> Iterator[None]:
    """While inside, a signal becomes an event; SimpleQueue.put may be called from a handler."""

    def put(number: int, _: FrameType | None) -> None:
        events.put(Signalled(number))

    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, put) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Session:
    """Talks with agents until their facts, or their job, are complete or the deadline is near."""

    def __init__(self, links: Sequence[Link], events: Events, deadline: Deadline, progress: Progress) -> None:
        self.links, self.events, self.deadline, self.progress = links, events, deadline, progress
        self.gathered = Gathered(links)
        self._of_node = {node: link for link in links for node in link.nodes}
        self._looks_next = 0.0
        self.started_job = False
        self._beats_next = 0.0
        self._stall: Stall | None = None
        self._looked_at: set[int] = set()
        self._looking: set[int] = set()
        self.stopped_by = ""

    def facts(self, seconds: float) -> None:
        """Wait for the facts of all nodes, so long at most. Raises Interrupted.

        Where the others depend on a node of which nothing was heard, they are then started again without it.
        """
        self._listen(seconds, lambda: not self.gathered.waiting_for_facts, lambda: self.gathered.waiting_for_facts)
        if self.deadline.left > 2 * _ANEW_S and self._go_on_without(self.gathered.unheard):
            self._listen(_ANEW_S, lambda: not self.gathered.waiting_for_facts)
        self._await_looks()
        self._dial()
        for link in self.links:
            if isinstance(link, LoginLink) and link.login_s:
                self.gathered.slow_logins += [
                    SlowLogin(node=name, seconds=link.login_s) for name in link.nodes.values()
                ]

    def _dial(self) -> None:
        """Whither ssh's settings lead for nodes of which no facts came, or which are one machine."""
        end = time.monotonic() + min(_DIAL_S, self.deadline.left / 4)
        for node in self.gathered.doubtful[:_MOST_LOOKS]:
            link = self._of_node[node]
            if isinstance(link, DialledLink) and time.monotonic() < end and (dialled := link.dialled(node)):
                self.gathered.dialled.append(dialled)

    def _dial_lost(self, lost: Collection[int]) -> None:
        """Whither ssh goes for nodes that were lost in mid-run, and whether its port there still answers."""
        end = time.monotonic() + min(_DIAL_S, self.deadline.left / 4)
        for node in lost:
            link = self._of_node[node]
            if (
                isinstance(link, DialledLink)
                and time.monotonic() < end
                and (dialled := link.dialled(node, lost=True))
            ):
                self.gathered.dialled.append(dialled)

    def _go_on_without(self, unheard: Collection[int]) -> bool:
        tied = [link for link in self.links if isinstance(link, TiedLink)] if unheard else []
        return True in {link.go_on_without(link.nodes.keys() & set(unheard)) for link in tied}

    def reach(
        self, listen: Mapping[int, wire.Listen], names: dict[str, str], seconds: float, gloo: dict[int, str]
    ) -> None:
        """Open a door on every node, then let every node try the doors of the others. Raises Interrupted."""
        self.gathered.begin_reach()
        for node, order in listen.items():
            self._send(node, order)
        self._listen(_DOORS_S, lambda: self.gathered.have_answered(listen))
        doors = self.gathered.doors
        if len(doors) > spread.MOST_PEERS + 1:  # nobody tries them
            doors = [replace(door, spare=[]) for door in doors]
        self._send_all(wire.ReachPeers(doors=doors, names=names, seconds=seconds, gloo=gloo))
        self._listen(seconds + _DOORS_S, lambda: self.gathered.have_reached(len(doors)))

    def init(self, orders: Mapping[int, wire.InitOrder], nodes: list[str], seconds: float) -> None:
        """Let every node open its side of the init method's place, then look at it. Raises Interrupted.

        nodes: the names of those that take part, that of rank 0 first.
        """
        self.gathered.forget_init()
        self.gathered.await_init()
        for node, order in orders.items():
            self._send(node, order)
        self._listen(seconds + _DOORS_S, lambda: self.gathered.have_tried_init(orders))
        self.gathered.await_init()
        for node in orders:
            self._send(node, wire.InitLook(nodes=nodes))
        self._listen(seconds + _DOORS_S, lambda: self.gathered.have_tried_init(orders))

    def knock(self, silent: Collection[str], seconds: float) -> None:
        """Let the other nodes try the hosts of those that fell silent in a job. Raises Interrupted."""
        nodes = self.gathered.nodes.values()
        doors = [node.door for node in nodes if node.name in silent and node.door][: wire.MOST_KNOCKS]
        asked = [node for node in nodes if node.name not in silent and node.closed is None][:_MOST_KNOCKING]
        for node in asked if doors else ():
            self._send(node.index, wire.KnockOrder(doors=doors, seconds=seconds))
        self._dial_lost([node.index for node in nodes if node.name in silent][:_MOST_LOOKS])
        if doors:
            self._listen(seconds + _GRACE, lambda: all(node.knocked or node.closed for node in asked))

    def job(
        self,
        orders: Mapping[int, wire.StartJob],
        seconds: float,
        only: Collection[str] | None = None,
        world: int = 0,
        begins_s: float = math.inf,
    ) -> str:
        """Run a job until it is over on its nodes, a rank is lost, or time is up; what stopped it, if any.

        only: kinds of measurements that are kept of it. world: how many ranks are done when the job is: torchrun's
        own way out, which takes seconds, is not waited for. 0: it is. begins_s: of standing still while the world
        forms, or in its first collective, after which the job is given up.
        Raises Interrupted.
        """
        self.started_job = True
        self.gathered.begin_job(orders, only, world)
        for node, order in orders.items():
            self._send(node, order)
        verdict = _JobWatch(self.gathered, begins_s)
        self._stall = Stall(self.gathered, self.progress)
        self._listen(seconds, verdict.over, lambda: self.gathered.silent_in_job(_LOOK_AFTER_S))
        self._stall = None
        stopped_by = verdict.stopped_by if verdict.over() else "deadline"
        self._await_looks()
        self.stopped_by = self.stopped_by or stopped_by
        self.stop_job()
        return stopped_by

    def examine(self, orders: Mapping[int, wire.Examine], seconds: float) -> None:
        """Let examiners run until each node has told its end, or time is up. Raises Interrupted."""
        self.gathered.begin_examination(orders)
        for node, order in orders.items():
            self._send(node, order)
        self._listen(seconds, lambda: not self.gathered.silent_of_examination)

    def stop_job(self) -> None:
        """End the job everywhere, and wait shortly for what the agents saw last."""
        if not self.started_job or self.gathered.job_over:
            return
        self.gathered.stopping = True
        self._send_all(wire.Halt())
        seconds = _SILENT if self.gathered.job_done else self._closing / 2  # nothing is amiss: agents may be slow
        with suppress(Interrupted):
            self._listen(seconds, lambda: self.gathered.job_over_but(self.gathered.silent_in_job(seconds)))

    def close(self) -> None:
        """Close all channels; no agent, and nothing that an agent started, is left."""
        self._send_all(wire.Stop(reason="done"))
        limit = time.monotonic() + self._closing
        for link in self.links:
            link.close(max(0.2, limit - time.monotonic()))
        process.kill_tree()
        process.reap_all()
        rundir.sweep()

    @property
    def _closing(self) -> float:
        """Seconds for agents to leave: what is left of the deadline, but time enough to kill those that stay."""
        return min(_CLOSE, max(1.0, self.deadline.left))

    def _send_all(self, order: wire.FromLauncher) -> None:
        for link in self.links:
            link.send(None, order)

    def _send(self, node: int, order: wire.FromLauncher) -> None:
        self._of_node[node].send(node, order)

    def _listen(
        self, seconds: float, over: Callable[[], bool], awaited: Callable[[], Collection[str]] = tuple
    ) -> None:
        """Take what is said until it is over. awaited: nodes that are looked at where they say nothing."""
        end = time.monotonic() + min(seconds, max(0.5, self.deadline.left))
        while not over() and (left := end - time.monotonic()) > 0:
            self._beat()
            if time.monotonic() > self._looks_next:
                self._looks_next = time.monotonic() + _LOOK_EVERY_S
                self._look(awaited())
            if self._stall is not None:
                self._stall.tell()
            with suppress(Empty):
                self._take(self.events.get(timeout=min(left, 0.25)))
                for _ in range(_MOST_AT_ONCE):
                    self._take(self.events.get_nowait())

    def _look(self, awaited: Collection[str]) -> None:
        """Have a second look at nodes that say nothing though they are waited for, once at each."""
        silent = self.gathered.to_look_at(awaited, _LOOK_AFTER_S) if awaited else []
        for node in set(silent) - self._looked_at if len(self._looked_at) < _MOST_LOOKS else ():
            link = self._of_node[node]
            if len(self._looked_at) < _MOST_LOOKS and isinstance(link, LookingLink):
                self._looked_at.add(node)
                self._looking.add(node)
                threading.Thread(target=self._look_at, args=(link, node), daemon=True, name="look").start()

    def _look_at(self, link: LookingLink, node: int) -> None:
        self.events.put(Looked(node, link.look(node, self.gathered.pid_of(node), _LOOK_S)))

    def _await_looks(self) -> None:
        """A look that has begun is worth its seconds, where they are left."""
        if self._looking and self.deadline.left > 2 * _LOOK_S:
            self._listen(_LOOK_S, lambda: not self._looking)

    def _beat(self) -> None:
        """Tell agents that we are there: a network that is cut off gives them no end of file."""
        if time.monotonic() > self._beats_next:
            self._beats_next = time.monotonic() + _BEAT_EVERY
            self._send_all(wire.Alive())

    def _take(self, event: Event) -> None:
        if isinstance(event, Signalled):
            self.stopped_by = "signal"
            raise Interrupted(event.number)
        self.gathered.take(event)
        if isinstance(event, Looked) or (isinstance(event, Closed) and event.detail):
            self._looking.discard(event.node)  # what it said is worth more than a look
        if not isinstance(event, AgentRecord):
            return
        if self._stall is not None:
            self._stall.heard(event.record)
        if isinstance(event.record, wire.StepNotice) and event.record.rank in (None, 0):
            self.progress.step(event.record.text)


class _JobWatch:
    """Decides when a job is over: done everywhere, or a rank is lost and the others had time to say so."""

    def __init__(self, gathered: Gathered, begins_s: float = math.inf) -> None:
        self._gathered, self._begins_s = gathered, begins_s
        self._since: float | None = None
        self.stopped_by = ""

    def over(self) -> bool:
        """Whether there is nothing left to wait for."""
        if self._gathered.job_over or self._gathered.job_done:
            return True
        self.stopped_by, grace = self._loss()
        if not self.stopped_by:
            self._since = None
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since > grace

    def _loss(self) -> tuple[str, float]:
        """What ended the job (empty: nothing), and seconds for which other ranks may still say what they saw."""
        ranks = self._gathered.lost_ranks
        if ranks and all(rank.proc_state in STOPPED for rank in ranks):
            return "stopped rank", _STOPPED_FOR
        if ranks:
            return "dead rank", _GRACE
        if self._gathered.ended_early:
            return "early end", _GRACE
        if self._gathered.deadlocked:
            return "deadlock", 0.0
        if self._gathered.stands_at_start(self._begins_s):
            return "deadline", 0.0
        return ("silent node", _GRACE) if self._gathered.silent_in_job(_SILENT) else ("", 0.0)

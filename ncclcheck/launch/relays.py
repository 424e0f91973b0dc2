"""Groups of hosts behind relays: one connection speaks for a group, and whom its relay loses is started from here.

A relay is the first host of its group. Where it cannot be reached, dies, says nothing, or cannot reach one of the
others (it may have no key, or its ssh another configuration), these get a connection of their own, as on a small
cluster. That is so until the first order: an agent that works is not replaced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty
from typing import TYPE_CHECKING

from ncclcheck.base import wire
from ncclcheck.launch.agents import AgentRecord, Closed, Events, ProcessLink
from ncclcheck.launch.remote.relay import BEAT_S
from ncclcheck.probes.facts import Dialled, Look, Node
from ncclcheck.probes.facts.guard import alike
from ncclcheck.probes.machine import process

if TYPE_CHECKING:
    from ncclcheck.launch.ssh import SshDoor, SshLink

_BEGINS_WITHIN = 8.0  # s until a relay says its first word: a login and the start of Python; chosen
_SILENT = 3 * BEAT_S  # s without a sign of life, after which it is done without


class RelayLink:
    """The way to one group. relay: starts the ssh to its first host, with an agent for each node behind it."""

    def __init__(
        self,
        first: int,
        links: Mapping[int, SshLink],
        agents: dict[int, list[str]],
        relay: Callable[..., ProcessLink],
        door: SshDoor,
        events: Events,
    ) -> None:
        self.nodes: Mapping[int, str] = {node: link.nodes[node] for node, link in links.items()}
        self._first, self._links, self._agents, self._relay = first, links, agents, relay
        self._door, self._events = door, events
        self._inside = Events()
        self._process: ProcessLink | None = None
        self._behind = set(links)  # nodes that the relay speaks for
        self._whole: dict[int, Node] = {}
        self._lock = threading.Lock()
        self._ordered = False
        self._heard = time.monotonic() + _BEGINS_WITHIN - _SILENT

    def start(self) -> None:
        """Open the connection, and pass on what comes through it."""
        try:
            self._process = self._relay({**self.nodes, wire.RELAY: "its relay"}, events=self._inside)
        except OSError as error:
            self._lost(Closed(self._first, f"ssh could not be started: {error}"))
            return
        self._process.send(wire.RELAY, wire.SpreadOrder(here=self._first, agents=self._agents))
        threading.Thread(target=self._follow, daemon=True, name="relay").start()

    def _follow(self) -> None:
        while self._behind:
            try:
                event = self._inside.get(timeout=1.0)
            except Empty:
                if time.monotonic() - self._heard > _SILENT and not self._ordered:
                    self._lost(Closed(self._first, "its relay says nothing"))
                continue
            if isinstance(event, Closed):
                self._lost(event)
            elif isinstance(event, AgentRecord):
                self._heard = max(self._heard, time.monotonic())
                self._take(event)

    def _take(self, event: AgentRecord) -> None:
        """One record of an agent behind the relay, or of the relay about it."""
        if event.node not in self._behind:
            return
        match event.record:
            case wire.RelayedEnd(detail=detail, printed=printed, exit=status):
                self._alone(Closed(event.node, detail, printed, "ssh", status))
            case wire.Alike(like=like, differences=differences):
                try:
                    node = alike.applied(self._whole[like], differences)
                except (KeyError, alike.NotAlike) as error:
                    self._alone(Closed(event.node, f"its relay passed on its facts wrongly: {error}"))
                else:
                    self._events.put(AgentRecord(event.node, wire.Facts(node=node)))
            case wire.Facts(node=node):
                self._whole[event.node] = node
                self._events.put(event)
            case _:
                self._events.put(event)

    def _lost(self, ended: Closed) -> None:
        """The relay is no more, and with it the way to all that are left behind it."""
        if self._process is not None and not self._ordered:
            process.kill_tree(self._process.child.pid)
        for node in sorted(self._behind):
            self._alone(Closed(node, ended.detail, ended.printed, ended.via, ended.exit))

    def _alone(self, ended: Closed) -> None:
        """This node gets a connection of its own; once there are orders, its end is told."""
        with self._lock:
            self._behind.discard(ended.node)
            if not self._ordered:
                self._door.add(self._links[ended.node])
                return
        self._events.put(ended)

    def send(self, node: int | None, order: wire.FromLauncher) -> None:
        """Through the relay, and to those that have their own connection."""
        with self._lock:
            self._ordered = self._ordered or not isinstance(order, wire.Alive)
            behind = set(self._behind)
        if self._process is not None and (behind if node is None else node in behind):
            self._process.send(node, order)
        for number, link in self._links.items():
            if number not in behind and node in (None, number):
                link.send(number, order)

    def describe(self, node: int) -> Closed:
        """What is seen of the relay, or of the node's own connection."""
        if node not in self._behind or self._process is None:
            return self._links[node].describe(node)
        seen = self._process.describe(node)
        detail = seen.detail or f"its relay {self.nodes[self._first]} heard nothing of it"
        return Closed(node, detail, via=seen.via)

    def look(self, node: int, pid: int | None, seconds: float) -> Look:
        """Look at a node by an ssh connection of its own."""
        self._links[node].relayed = node in self._behind
        return self._links[node].look(node, pid, seconds)

    def dialled(self, node: int, *, lost: bool = False) -> Dialled | None:
        """How this machine's ssh would reach the node; None where it cannot be told."""
        return self._links[node].dialled(node, lost=lost)

    def close(self, seconds: float) -> None:
        """End it, and what runs behind it."""
        with self._lock:
            self._ordered = True
        limit = time.monotonic() + seconds
        if self._process is not None:
            self._process.close(seconds)
        for number, link in self._links.items():
            if number not in self._behind:
                link.close(max(0.2, limit - time.monotonic()))

"""What runs on the first host of a group: it starts the agents of the others by ssh, and speaks for all of them.

stdin brings orders, of which a relay reads none but its first: each goes on to the agent that it is meant for.
What agents say goes back as it came, but for facts: of nodes that are much alike one tells all, and the others how
they differ. At the end of stdin everything that was started is ended.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict, deque
from contextlib import suppress
from queue import Empty
from typing import BinaryIO

import msgspec

from ncclcheck.base import wire
from ncclcheck.launch.agents import AgentRecord, Closed, Events, ProcessLink, Signalled
from ncclcheck.probes.facts.guard.alike import Kinds
from ncclcheck.probes.machine import process

BEAT_S = 2.0  # s between two signs of life
_AT_ONCE = 64  # connections that are being opened at once, as from the first node
_CLOSE_S = 3.0  # s for an agent whose channel has ended to leave by itself


class Relay:
    """Starts the agents of a group of hosts, passes orders on to them and their records back."""

    def __init__(self, out: int) -> None:
        self._out = out
        self._events = Events()
        self._links: dict[int, ProcessLink] = {}
        self._waiting: deque[tuple[int, list[str]]] = deque()
        self._opening: set[int] = set()
        self._here = -1
        self._said: dict[int, int] = defaultdict(int)
        self._kinds = Kinds()
        self._whole: dict[int, int] = {}

    def run(self, orders: BinaryIO) -> None:
        """Start the agents and pass records back, until the orders end or nobody reads any more."""
        spread = wire.read_order(orders.readline(), wire.RELAY)
        if not isinstance(spread, wire.SpreadOrder):
            return
        self._here = spread.here
        self._waiting.extend(spread.agents.items())
        threading.Thread(target=self._obey, args=(orders,), daemon=True).start()
        with suppress(OSError):
            self._say(wire.RELAY, wire.AgentBeat())
            while True:
                self._let_in()
                try:
                    event = self._events.get(timeout=BEAT_S)
                except Empty:
                    self._say(wire.RELAY, wire.AgentBeat())
                    continue
                if isinstance(event, Signalled):
                    return
                if isinstance(event, (AgentRecord, Closed)):
                    self._opening.discard(event.node)
                    self._pass_back(event)

    def close(self) -> None:
        """End all agents: first they are told, then killed."""
        threads = [threading.Thread(target=link.close, args=(_CLOSE_S,)) for link in self._links.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_CLOSE_S)
        process.kill_tree()

    def _obey(self, orders: BinaryIO) -> None:
        """Pass each order on to its agents; at the end of `orders` the relay ends."""
        for line in orders:
            links = [*self._links.items()]
            node = wire.node_of(line)
            for number, link in links:
                if line.startswith(b"* ") or number == node:
                    link.pass_on(line)
        self._events.put(Signalled(0))

    def _let_in(self) -> None:
        inherited = dict(os.environ)
        plain = {name: value for name, value in inherited.items() if name not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
        while self._waiting and len(self._opening) < _AT_ONCE:
            node, argv = self._waiting.popleft()
            self._opening.add(node)
            env = inherited if node == self._here else plain  # ssh runs with the system's libraries
            try:
                self._links[node] = ProcessLink({node: ""}, argv, env, self._events)
            except OSError as error:
                self._events.put(Closed(node, f"{argv[0]}: {error.strerror or error}"))

    def _pass_back(self, event: AgentRecord | Closed) -> None:
        if isinstance(event, Closed):
            self._say(event.node, wire.RelayedEnd(detail=event.detail, printed=event.printed, exit=event.exit))
        elif isinstance(event.record, wire.Facts):
            self._say(event.node, self._briefly(event.node, event.record))
        else:
            self._say(event.node, event.record)

    def _briefly(self, node: int, facts: wire.Facts) -> wire.Facts | wire.Alike:
        """As differences from a node that was told whole, where there is one like it."""
        prototype, kept, differences = self._kinds.compared(facts.node)
        if prototype is None:
            self._whole[id(kept)] = node
            return facts
        raw = {place: msgspec.Raw(msgspec.json.encode(value)) for place, value in differences.items()}
        return wire.Alike(like=self._whole[id(prototype)], differences=raw)

    def _say(self, node: int, record: wire.FromAgent) -> None:
        self._said[node] += 1
        os.write(self._out, b"".join(wire.lines(record, node, self._said[node])))


def main() -> None:
    """Entry point of the relay of one group of hosts."""
    out = os.dup(1)
    os.dup2(2, 1)  # whatever else prints to stdout does not disturb the channel
    relay = Relay(out)
    try:
        relay.run(sys.stdin.buffer)
    finally:
        relay.close()
        os._exit(0)

"""The meeting point of a join, on node rank 0: a port, a thread, and a Link to every node that came."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from ncclcheck.base import endpoint, wire
from ncclcheck.launch import given
from ncclcheck.launch.agents import Closed, Events
from ncclcheck.launch.joining import hail, join_protocol
from ncclcheck.launch.joining.reception import GOODBYE_S, STRANGERS, Reception
from ncclcheck.launch.joining.trust.secret import NO_SECRET, Secret
from ncclcheck.launch.remote.segments import keep_small
from ncclcheck.probes.facts import Arrival
from ncclcheck.probes.machine import process

_CROWD_GRACE_S = (
    2.0  # s with as many machines here as asked, not all of which fit, before the join gives up; chosen
)


class PortTaken(OSError):
    """No port of the meeting point could be opened; the text says who holds them."""


def open_port(host: str, ports: Sequence[int]) -> tuple[socket.socket, list[str]]:
    """A listening socket on the first port that can be opened, and what stood in the way of those before it.

    All addresses, IPv4 and IPv6: the others may know this machine by one that it does not know itself (pods,
    NAT). A meeting on loopback stays there. Raises PortTaken.
    """
    problems: list[str] = []
    for port in ports:
        try:
            return _listen(host, port), problems
        except OSError as error:
            shown = endpoint.taken("127.0.0.1" if given.is_loopback(host) else "0.0.0.0", port)
            problems.append(shown or f"port {port} cannot be opened: {error.strerror}")
    raise PortTaken("; ".join(problems))


def _listen(host: str, port: int) -> socket.socket:
    if given.is_loopback(host):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return socket.create_server(("", port), backlog=1024)


class MeetingPoint:
    """Opens the port and lets the other nodes join; a Link to all of them once `wait` is over."""

    def __init__(
        self,
        host: str,
        ports: Sequence[int],
        nodes: int,
        run_id: str,
        *,
        name: str,
        command: str,
        events: Events,
        secret: Secret = NO_SECRET,
    ) -> None:
        self.nodes_asked, self.name = nodes, name
        self._socket, self.problems = open_port(host, ports)
        keep_small(self._socket)
        self.port = int(self._socket.getsockname()[1])
        process.make_room(nodes + STRANGERS)  # our agent was started before, so that it tells the real limit
        place = join_protocol.place_digest(run_id, given.endpoint(host, ports[0]))
        self._answering = hail.Answering(host, (ports[0], self.port), place)
        self._reception = Reception(nodes, run_id, name, command, events, secret, place)
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), daemon=True, name="meeting"
        )
        self._thread.start()
        ready.wait()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _loop, _context: None)
        self._over = asyncio.Event()
        server = await asyncio.start_server(
            self._reception.receive, sock=self._socket, limit=join_protocol.MOST_FROM_NODE
        )
        beats = asyncio.create_task(self._reception.beat())
        ready.set()
        await self._over.wait()
        beats.cancel()
        server.close()

    @property
    def here(self) -> dict[int, str]:
        """Name of every node that is here, by rank, ours included."""
        return self._reception.here

    @property
    def arrivals(self) -> list[Arrival]:
        """Every node that came, and how it went."""
        return list(self._reception.arrivals)

    @property
    def nonces(self) -> Collection[str]:
        """Of its last greetings, by which this meeting point is told from another one; it grows with each."""
        return self._reception.nonces

    @property
    def missing(self) -> list[int]:
        """Node ranks that are not here."""
        return [rank for rank in range(1, self.nodes_asked) if rank not in self._reception.guests]

    @property
    def addresses(self) -> dict[int, str]:
        """The address by which each node is known on the network of this meeting, ours included."""
        theirs = {rank: guest.address for rank, guest in sorted(self._reception.guests.items())}
        ours = Counter(guest.here for guest in self._reception.guests.values()).most_common(1)
        return {**({0: ours[0][0]} if ours else {}), **theirs}

    def wait(self, seconds: float, say: Callable[[str], None], stop: Callable[[], bool] = lambda: False) -> None:
        """Until all have come, or as many came as were asked for but not the right ones, or the time is over."""
        begun, shown, crowded = time.monotonic(), "", 0.0
        while self.missing and not stop() and (left := begun + seconds - time.monotonic()) > 0:
            if (text := self._state()) != shown:
                say(f"{text}; waiting for at most {left:.0f} s")
                shown = text
            crowded = (crowded or time.monotonic()) if self._crowd >= self.nodes_asked else 0.0
            if crowded and time.monotonic() - crowded > _CROWD_GRACE_S:
                break
            time.sleep(0.05)
        waited = time.monotonic() - begun
        asyncio.run_coroutine_threadsafe(self._reception.begin(waited), self._loop).result()
        say(self._state())

    def _state(self) -> str:
        here, missing = self.here, self.missing
        who = ", ".join(here.values()) if len(here) <= 8 else f"{self.name} and {len(here) - 1} others"
        ranks = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        turned = [
            f"; {a.name} was turned away: {a.detail}" for a in self.arrivals if a.outcome not in ("joined", "left")
        ]
        lack = f"; missing node rank{'s' if len(missing) > 1 else ''} {ranks}" if missing else ""
        others = "".join(turned[-1:]) + self._reception.turned_away()[:200]
        return f"{len(here)} of {self.nodes_asked} nodes are here: {who}{lack}{others}"

    @property
    def _crowd(self) -> int:
        """How many different machines came, with those that were turned away for what they were told."""
        names = {a.name for a in self.arrivals if a.outcome in ("same rank", "other count", "other command")}
        return len(self._reception.guests) + 1 + len(names - set(self.here.values()))

    def link(self) -> MeetingLink:
        """The way to all nodes but our own; after `wait`."""
        ranks = range(1, self.nodes_asked)
        return MeetingLink(self, {rank: self.here.get(rank, f"node rank {rank}") for rank in ranks})

    def send(self, node: int | None, line: bytes) -> None:
        """Give a line to one node, or to all."""
        with suppress(RuntimeError):  # the meeting is over
            self._loop.call_soon_threadsafe(self._reception.write, node, line)

    def describe(self, node: int) -> str:
        """What is seen from here of one node."""
        guest = self._reception.guests.get(node)
        if guest is None:
            return self._reception.absence(node)
        return (
            guest.over
            or f"it joined from {guest.address} and was heard {time.monotonic() - guest.heard:.0f} s ago"
        )

    def wait_for_ends(self, seconds: float) -> None:
        """Until the agents of all nodes are gone."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(
            guest.over is None for guest in list(self._reception.guests.values())
        ):
            time.sleep(0.02)

    def done(self, exit_code: int, decision: str, document: bytes | None = None) -> None:
        """Tell all nodes the outcome and close everything; nothing of ours listens afterwards."""
        last = join_protocol.encode(
            join_protocol.JoinOutcome(exit_code=exit_code, decision=decision, document=document)
        )
        with suppress(RuntimeError, TimeoutError, asyncio.TimeoutError):
            asyncio.run_coroutine_threadsafe(self._dismiss(last), self._loop).result(GOODBYE_S + 3)
        self._answering.close()
        self._thread.join(2.0)

    async def _dismiss(self, last: bytes) -> None:
        await self._reception.dismiss(last)
        self._over.set()


class MeetingLink:
    """A Link to every node but our own."""

    def __init__(self, meeting: MeetingPoint, nodes: Mapping[int, str]) -> None:
        self.nodes: Mapping[int, str] = nodes
        self._meeting = meeting

    def send(self, node: int | None, order: wire.FromLauncher) -> None:
        """Give an order to one node, or to all."""
        self._meeting.send(node, wire.order(node, order))

    def describe(self, node: int) -> Closed:
        """What is seen from here of a node."""
        return Closed(node, self._meeting.describe(node))

    def close(self, seconds: float) -> None:
        """Their agents were told to stop; wait for it. The connections stay, for the outcome."""
        self._meeting.wait_for_ends(seconds)

"""Who comes to the meeting point: hostile until proved otherwise. Runs in the meeting's own thread.

Whoever does not prove within five seconds that he belongs to this run is dropped, and nothing of what he sent
is kept. A node that joined keeps its connection: it is the channel to its agent, and every line of it is sealed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field

from ncclcheck import __version__
from ncclcheck.base import wire
from ncclcheck.launch.agents import AgentRecord, Closed, Events
from ncclcheck.launch.joining import join_protocol
from ncclcheck.launch.joining.hearsay import name_of_node, printable, sound
from ncclcheck.launch.joining.trust import sealed
from ncclcheck.launch.joining.trust.sealed import Seal
from ncclcheck.launch.joining.trust.secret import NO_SECRET, WITH, Secret
from ncclcheck.probes.facts import Arrival, Meeting, replace

STRANGERS = 64  # connections beyond the number of nodes that may be open at once; bounds a flood
GOODBYE_S = 2.0  # s for the last lines to be sent before sockets are closed; chosen
_MOST_WAITING = 10_000  # events that nobody has taken yet: from here on nothing more is read
_MOST_BEFORE = 200  # records of one node before the run begins: its facts and some thirty steps
_MOST_NONCES = 64  # as many strangers as may be connected at once
_PAUSE_S = 0.02  # s between two looks at the connections; chosen
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, leave no TIME_WAIT on the port


@dataclass(eq=False)
class Guest:
    """A node that takes part. here: our own address on its connection. kept: kept until the run begins.

    seals: of its lines, and of ours to it.
    """

    rank: int
    name: str
    address: str
    here: str
    writer: asyncio.StreamWriter
    seals: tuple[Seal, Seal]
    heard: float = field(default_factory=time.monotonic)
    over: str | None = None
    silent: bool = False
    kept: list[AgentRecord] = field(default_factory=list)


class Reception:
    """Accepts connections, lets nodes join, and passes on what they say. Methods run in its own loop only."""

    def __init__(
        self,
        nodes: int,
        run_id: str,
        name: str,
        command: str,
        events: Events,
        secret: Secret = NO_SECRET,
        place: str = "",
    ) -> None:
        self.nodes, self.name = nodes, name
        self.arrivals: list[Arrival] = []
        self.guests: dict[int, Guest] = {}
        self._run_id, self._command, self._events = run_id, command, events
        self._secret, self._place = secret, place
        self.nonces: deque[str] = deque(maxlen=_MOST_NONCES)  # of its last greetings
        self.strangers: dict[str, str] = {}  # by address: why it does not belong to this run
        self._connections = 0
        self._begun: float | None = None
        self._waited = 0.0

    @property
    def here(self) -> dict[int, str]:
        """Name of every node that is here, by rank, ours included."""
        return {0: self.name, **{rank: guest.name for rank, guest in sorted(self.guests.items())}}

    async def receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from its greeting to its end; whoever errs is disconnected."""
        if self._connections >= self.nodes + STRANGERS:
            writer.transport.abort()
            return
        self._connections += 1
        guest = None
        try:
            guest = await asyncio.wait_for(self._greet(reader, writer), join_protocol.HANDSHAKE_S)
            if guest is not None:
                await self._hear(guest, reader)
        except (OSError, ValueError, asyncio.TimeoutError):
            pass
        finally:
            self._connections -= 1
            if guest is not None:
                self._lose(guest)
            writer.close()

    def absence(self, rank: int) -> str:
        """Why a node is not here, as far as it is seen from here."""
        gone = [a for a in self.arrivals if a.node_rank == rank and a.outcome == "left"]
        if gone:
            return f"{gone[-1].name} ({gone[-1].address}) joined and left again before the run began"
        return f"it did not join within {self._waited:.0f} s{self.turned_away()[:500]}"

    def turned_away(self) -> str:
        """Who came and does not belong to this run, in words that follow others."""
        return "".join(
            f"; somebody at {address} was turned away: {why}" for address, why in self.strangers.items()
        )

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Guest | None:
        """Greet, and hear who it is; None where it is turned away. Raises ValueError or OSError for no node."""
        greeting = join_protocol.Greeting(
            protocol=join_protocol.PROTOCOL,
            version=__version__,
            nonce=sealed.nonce(),
            run=join_protocol.run_digest(self._run_id),
            secret=self._secret.kind,
            place=self._place,
        )
        self.nonces.append(greeting.nonce)
        writer.write(join_protocol.encode(greeting))
        hello = _joined(join_protocol.from_node(await reader.readline()))
        hand = join_protocol.Handshake(await self._key(hello), greeting, hello)
        join, refused = _checked(hello), self._stranger(hand, hello, writer)
        if refused is None and (refused := self._mismatch(join)) is not None:
            self.arrivals.append(_arrival(join, refused.kind, join.name, refused.reason))
            del self.arrivals[2 * self.nodes + STRANGERS :]
            refused = replace(refused, proof=hand.of_meeting(refused))
        if refused is not None:
            writer.write(join_protocol.encode(refused))
            await writer.drain()
            return None
        here = _plain(writer.get_extra_info("sockname")[0])
        guest = Guest(join.node_rank, self._unique(join.name), join.address, here, writer, hand.seals())
        self.guests[join.node_rank] = guest
        self.arrivals.append(_arrival(join, "joined", guest.name))
        welcome = join_protocol.Welcome(name=guest.name, proof="")
        writer.write(join_protocol.encode(replace(welcome, proof=hand.of_meeting(welcome))))
        return guest

    async def _key(self, join: join_protocol.Join) -> bytes:
        """The run's key on this connection; no key at all for whoever has none to offer, so that no proof fits."""
        if join.secret != self._secret.kind:
            return sealed.nonce().encode()
        loop = asyncio.get_running_loop()
        return sealed.run_key(await loop.run_in_executor(None, self._secret.accept, join.credential), self._run_id)

    def _stranger(
        self, hand: join_protocol.Handshake, join: join_protocol.Join, writer: asyncio.StreamWriter
    ) -> join_protocol.RefusedJoin | None:
        """What is said to whoever does not belong to this run; nobody can prove that it was said by us."""
        if join.protocol != join_protocol.PROTOCOL:
            here = f"{self.name} ({__version__})"
            reason = f"its ncclcheck ({printable(join.version)}) does not understand the one on {here}"
            kind: join_protocol.Refusal = "other protocol"
        elif join.secret != self._secret.kind:
            reason, kind = f"it comes {WITH[join.secret]}, this run {WITH[self._secret.kind]}", "other secret"
        elif not sealed.same(join.proof, hand.of_node()):
            reason, kind = "its secret or its --rdzv-id is not that of this run", "other secret"
        else:
            return None
        if kind == "other protocol" and self._secret.kind == "none":
            arrival = _arrival(_checked(join), kind, _checked(join).name, reason)
            self.arrivals += [arrival] if arrival not in self.arrivals else []
        elif len(self.strangers) < STRANGERS:
            self.strangers[_plain(writer.get_extra_info("peername")[0])] = reason
        del self.arrivals[2 * self.nodes + STRANGERS :]
        return join_protocol.RefusedJoin(kind=kind, reason=reason)

    def _mismatch(self, join: join_protocol.Join) -> join_protocol.RefusedJoin | None:
        if join.command != self._command:
            reason = f"{self.name} runs ncclcheck {self._command}, {join.name} runs ncclcheck {join.command}"
            return join_protocol.RefusedJoin(kind="other command", reason=reason)
        if join.nodes != self.nodes:
            reason = f"{self.name} was told of {self.nodes} nodes, {join.name} of {join.nodes}"
            return join_protocol.RefusedJoin(kind="other count", reason=reason)
        if not 0 <= join.node_rank < self.nodes:
            raise ValueError("a node rank that cannot be")
        if join.node_rank in self.here:
            first = self.here[join.node_rank]
            reason = f"node rank {join.node_rank} came twice: {first} and {join.name} ({join.address})"
            return join_protocol.RefusedJoin(kind="same rank", reason=reason)
        if self._begun is not None:
            late = time.monotonic() - self._begun
            reason = f"the run began {late:.0f} s ago without node rank {join.node_rank}"
            return join_protocol.RefusedJoin(kind="late", reason=reason)
        return None

    def _unique(self, name: str) -> str:
        taken = set(self.here.values())
        names = (name if number == 1 else f"{name}#{number}" for number in range(1, self.nodes + 2))
        return next(name for name in names if name not in taken)

    async def _hear(self, guest: Guest, reader: asyncio.StreamReader) -> None:
        assembler = wire.Assembler()
        while received := await reader.readline():
            line = guest.seals[0].open(received)
            guest.heard = time.monotonic()
            while self._events.qsize() > _MOST_WAITING:
                await asyncio.sleep(_PAUSE_S)
            if line.startswith(b"{"):
                record = join_protocol.from_node(line)
                if isinstance(record, join_protocol.AgentEnd):
                    self._close(guest, record.detail)
                elif isinstance(record, join_protocol.CutOffNode):
                    self._note_way(guest, record.meeting)
            elif wire.node_of(line) == guest.rank and (message := assembler.feed(line)) is not None:
                self._pass_on(guest, AgentRecord(guest.rank, message))

    def _note_way(self, guest: Guest, unreached: Meeting | None) -> None:
        """The endpoint failed it, and it came by another address; or it is reached by now. Raises ValueError."""
        noted = unreached and sound(unreached)
        self.arrivals = [
            replace(a, unreached=noted) if (a.name, a.outcome) == (guest.name, "joined") else a
            for a in self.arrivals
        ]

    def _pass_on(self, guest: Guest, event: AgentRecord) -> None:
        if self._begun is None:
            if len(guest.kept) >= _MOST_BEFORE:
                raise ValueError("too many bytes were sent before the run began")
            guest.kept.append(event)
        else:
            self._events.put(event)

    def _lose(self, guest: Guest) -> None:
        """Its connection is gone. Before the run began, its rank is free for whoever comes next."""
        words = (
            f"nothing was heard from it for {join_protocol.SILENT_S:.0f} s"
            if guest.silent
            else "its connection closed"
        )
        if self._begun is None and self.guests.get(guest.rank) is guest:
            del self.guests[guest.rank]
            self.arrivals = [
                replace(a, outcome="left") if (a.name, a.outcome) == (guest.name, "joined") else a
                for a in self.arrivals
            ]
        self._close(guest, f"{words}; it had joined from {guest.address}")

    def _close(self, guest: Guest, words: str) -> None:
        if guest.over is None:
            guest.over = words
            if self._begun is not None:
                self._events.put(Closed(guest.rank, words))

    async def begin(self, waited: float) -> None:
        """The wait is over: what was said is passed on, and who is missing is closed."""
        self._begun, self._waited = time.monotonic(), waited
        self.write(None, join_protocol.encode(join_protocol.Begun()))
        for rank in range(1, self.nodes):
            guest = self.guests.get(rank)
            for record in guest.kept if guest else ():
                self._events.put(record)
            if guest is None or guest.over is not None:
                self._events.put(Closed(rank, (guest and guest.over) or self.absence(rank)))

    def write(self, node: int | None, line: bytes) -> None:
        """Give a line to one node, or to all."""
        for guest in list(self.guests.values()):
            if node in (None, guest.rank) and not guest.writer.is_closing():
                guest.writer.write(guest.seals[1].close(line))

    async def beat(self) -> None:
        """Both sides beat, so that a side that is stopped or cut off is noticed."""
        while True:
            await asyncio.sleep(join_protocol.BEAT_S)
            self.write(None, join_protocol.encode(join_protocol.JoinBeat()))
            for guest in list(self.guests.values()):
                if time.monotonic() - guest.heard > join_protocol.SILENT_S:
                    guest.silent = True
                    guest.writer.transport.abort()

    async def dismiss(self, last: bytes) -> None:
        """The nodes close first, so that no TIME_WAIT is left on our port; whoever does not is reset."""
        self.write(None, last)
        end = time.monotonic() + GOODBYE_S
        while time.monotonic() < end and any(not g.writer.is_closing() for g in self.guests.values()):
            await asyncio.sleep(0.02)
        for guest in self.guests.values():
            if not guest.writer.is_closing():
                guest.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                guest.writer.transport.abort()


def _joined(record: join_protocol.FromNode) -> join_protocol.Join:
    """The record as a Join. Raises ValueError where it is another one."""
    if not isinstance(record, join_protocol.Join):
        raise ValueError("nobody says this first")
    return record


def _checked(join: join_protocol.Join) -> join_protocol.Join:
    """A name that may stand in a command, words that may be printed, an address that is one. Raises ValueError."""
    return replace(
        join,
        name=name_of_node(join.name),
        command=printable(join.command),
        version=printable(join.version),
        address=_plain(join.address),
    )


def _plain(address: str) -> str:
    """An IPv4 address that came over an IPv6 socket, as IPv4. Raises ValueError for what is no address."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _arrival(join: join_protocol.Join, outcome: str, name: str, detail: str = "") -> Arrival:
    return Arrival(
        outcome=outcome,  # type: ignore[arg-type]
        node_rank=join.node_rank,
        name=name,
        address=join.address,
        nodes=join.nodes,
        detail=detail,
    )

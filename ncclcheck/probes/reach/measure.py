"""One node's measurement of the others: everything small at once, then bursts by a common timetable."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ncclcheck.probes.facts import (
    ByName,
    Connect,
    Counters,
    Door,
    KernelRoute,
    Neighbour,
    NodeReach,
    PeerReach,
    Resolution,
    Spread,
    Unread,
    Volley,
    replace,
)
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import cores
from ncclcheck.probes.machine.net import addresses as local
from ncclcheck.probes.machine.net import claimed
from ncclcheck.probes.machine.net.filters import filters
from ncclcheck.probes.reach import schedule, spread, volley
from ncclcheck.probes.reach.call import PeerCall
from ncclcheck.probes.reach.packets import PacketLoop

_SMALL_S = 1.0  # s for small packets, or a third of the time; chosen
_SLOT_S = 0.3  # s for each burst with its warm-up (BURST_S, WARM_UP_S), so that none overlaps another
_CONNECT_S = 2.5  # s for connections: one lost SYN, repeated after 1 s, is survived; chosen
_LEFT_FOR_BURSTS = 0.4  # s at the end in which no burst begins, so that the last one is answered; chosen
_NO_GLOO: Mapping[int, str] = {}
_UNASKED = Unread("absent", "gloo would publish no other address")
_WELL = Unread("absent", "it was reached")
_NO_SECOND = Unread("absent", "the measurement ended before the bursts")
_NO_SPREAD = Unread("absent", "no other ports were tried")
_NO_NEIGHBOUR = Unread("absent", "the kernel has no IPv4 neighbour entry of it")


def measure(
    me: Door, doors: Sequence[Door], names: Mapping[str, str], seconds: float, gloo: Mapping[int, str] = _NO_GLOO
) -> NodeReach:
    """What this node sees of the others, within `seconds`. Never raises.

    All nodes call it at about the same time with the same doors. names: those that the launcher knows the
    nodes by, with an address each; a peer's is resolved here. gloo: by node, another address to knock at.
    """
    try:
        return _measured(me, doors, names, seconds, gloo)
    except Exception as error:
        broken = Unread("broken", f"{type(error).__name__}: {error}")
        others = [PeerReach(peer=d.name, address=d.address, connect=broken) for d in doors if d.node != me.node]
        return NodeReach(node=me.name, interface=me.interface, address=me.address, mtu=me.mtu, peers=others)


def _measured(
    me: Door, doors: Sequence[Door], names: Mapping[str, str], seconds: float, gloo: Mapping[int, str]
) -> NodeReach:
    begun = time.monotonic()
    overflows = local.udp_overflows()
    work = _ReachThreads(me, tested(me, doors), names, gloo)
    work.start(begun, seconds)
    counted = work.bursts(begun, seconds, _ordered(doors))
    work.finish(begun + seconds)
    peers = work.peers()
    reached = all(isinstance(peer.connect, Connect) and peer.connect.outcome == "ok" for peer in peers)
    return NodeReach(
        node=me.name,
        interface=me.interface,
        address=me.address,
        mtu=me.mtu,
        own=work.own(),
        peers=peers,
        counters=counted,
        beside=work.beside,
        udp_overflows=max(0, local.udp_overflows() - overflows),
        filters=_WELL if reached else filters(Machine()),
        claimed=work.claimed,
        running=round(statistics.fmean(work.running), 2) if work.running else 0.0,
        seconds=round(time.monotonic() - begun, 3),
    )


def tested(me: Door, doors: Sequence[Door]) -> list[Door]:
    """Those of the doors that this node tries, all but in a large cluster. Raises ValueError where it has none."""
    ordered = _ordered(doors)
    place = [door.node for door in ordered].index(me.node)
    return [ordered[i] for i in schedule.peers(place, len(ordered))]


def _ordered(doors: Sequence[Door]) -> list[Door]:
    return sorted(doors, key=lambda door: door.node)


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


class _ReachThreads:
    """The threads of one measurement: a call for each peer, and the packets for all."""

    def __init__(self, me: Door, doors: list[Door], names: Mapping[str, str], gloo: Mapping[int, str]) -> None:
        self._calls = {door.node: PeerCall(door, volley.size(len(doors))) for door in doors}
        self._packets = PacketLoop(me, doors)
        self._me, self._doors = me, doors
        self._resolved: dict[str, Resolution | Unread] = {}
        self._by_gloo = {door.node: replace(door, address=gloo[door.node]) for door in doors if door.node in gloo}
        self._by_name: dict[int, ByName] = {}
        self._spread: dict[int, Spread] = {}
        self._named = {door.name for door in doors} & set(names)
        self._threads: list[threading.Thread] = []
        self._interfaces = local.interface_names()
        self._entries = local.neighbours()
        self._own: Connect | Unread = Unread("timed_out", "not finished in time")
        self._at_first = local.counters(me.interface)
        self.beside: Counters | Unread = _NO_SECOND
        self.running: list[float] = []
        self.claimed: list[str] | Unread = Unread("timed_out", "not finished in time")

    def start(self, begun: float, seconds: float) -> None:
        """A thread a peer and a name, one for all packets."""
        small, end = min(_SMALL_S, seconds / 3), begun + min(_CONNECT_S, seconds * 0.8)
        for call in self._calls.values():
            self._go(lambda call=call: call.run(end))  # type: ignore[misc]
        self._go(lambda: self._packets.run(begun, small))
        self._go(lambda: self._to_itself(end))
        self._go(self._claims)
        for door in self._doors if len(self._doors) <= spread.MOST_PEERS else ():
            self._go(lambda door=door: self._try_ports(door, end))  # type: ignore[misc]
        for door in self._by_gloo.values():
            self._go(lambda door=door: self._knock(door, end))  # type: ignore[misc]
        for name in self._named:
            self._go(lambda name=name: self._resolve(name))  # type: ignore[misc]

    def _go(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True, name="reach")
        self._threads.append(thread)
        thread.start()

    def _knock(self, door: Door, end: float) -> None:
        self._by_name[door.node] = ByName(address=door.address, connect=PeerCall(door).knock(end))

    def _try_ports(self, door: Door, end: float) -> None:
        if door.spare:
            self._spread[door.node] = spread.tried(door, end)

    def _claims(self) -> None:
        self.claimed = claimed.others_with(self._me.address, self._me.interface)

    def _to_itself(self, end: float) -> None:
        self._own = PeerCall(self._me).knock(end)

    def _resolve(self, name: str) -> None:
        try:
            infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            infos = []
        addresses = [str(sockaddr[0]).partition("%")[0] for *_, sockaddr in infos]
        self._resolved[name] = Resolution(name=name, addresses=list(dict.fromkeys(addresses)))

    def bursts(self, begun: float, seconds: float, ordered: Sequence[Door]) -> Counters | Unread:
        """Ours, each in its slot, and how the interface's counters rose meanwhile. All nodes stay to the end."""
        at = begun + min(_SMALL_S, seconds / 3)
        _sleep_until(at)
        before = local.counters(self._me.interface)
        self.beside = local.risen(self._at_first, before)
        for slot in schedule.slots(len(ordered)):
            if at + _SLOT_S > begun + seconds - _LEFT_FOR_BURSTS:
                break
            for sender, receiver in slot:
                call = self._calls.get(ordered[receiver].node)
                if ordered[sender].node == self._me.node and call:
                    call.burst()
            self.running += cores.running()
            at += _SLOT_S
            _sleep_until(at)
        return local.risen(before, local.counters(self._me.interface))

    def finish(self, end: float) -> None:
        """Wait for the threads until `end` (time.monotonic), and close all sockets."""
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        for call in self._calls.values():
            call.close()
        self._packets.close()

    def peers(self) -> list[PeerReach]:
        """What is known of each peer by now."""
        entries = local.neighbours()
        return [self._peer(door, entries) for door in self._doors]

    def _peer(self, door: Door, entries: Mapping[str, Neighbour] | Unread) -> PeerReach:
        call, packets = self._calls[door.node], self._packets.peers[door.node]
        source, way = local.source_to(door.address), local.way_to(door.address)
        of_source = source if isinstance(source, Unread) else self._interfaces.get(source, "")
        leaves = _leaves_by(way) or of_source
        unresolved = (
            Unread("timed_out", f"getaddrinfo({door.name}) gave no answer in time")
            if door.name in self._named
            else Unread("absent", "no name was given")
        )
        return PeerReach(
            peer=door.name,
            address=door.address,
            connect=call.connect,
            rtt_us=call.rtt_us,
            clock=call.clock,
            echoes=packets.echoes,
            path_mtu=packets.path_mtu,
            source=source,
            seen_as=call.seen_as,
            interface=leaves,
            resolved=self._resolved.get(door.name, unresolved),
            bursts=list(call.bursts),
            volley=call.volley,
            spread=self._spread.get(door.node, _NO_SPREAD),
            mss=call.mss,
            neighbour=self._neighbour(entries, door.address),
            by_name=self._by_name.get(door.node, _UNASKED),
            way=way if _is_bad(call) or not _is_plain(way, leaves, of_source) else _WELL,
        )

    def _neighbour(self, entries: Mapping[str, Neighbour] | Unread, address: str) -> Neighbour | Unread:
        if isinstance(entries, Unread):
            return entries
        neighbour = entries.get(address)
        before = isinstance(self._entries, Unread) or address in self._entries
        return _NO_NEIGHBOUR if neighbour is None else replace(neighbour, held_before=before)

    def own(self) -> Connect | Unread:
        """The connection to our own address."""
        return self._own


def _leaves_by(way: KernelRoute | Unread) -> str:
    """The one device of a route: a tunnel may send under the address of another."""
    is_one = not isinstance(way, Unread) and way.kind == "unicast" and len(way.hops) == 1
    return way.hops[0].interface if is_one and not isinstance(way, Unread) else ""


def _is_plain(way: KernelRoute | Unread, leaves: str | Unread, of_source: str | Unread) -> bool:
    """By the main table, and by the device whose address is the source: then nothing more is to be said of it."""
    names = {text.partition(":")[0] for text in (leaves, of_source) if not isinstance(text, Unread)}
    return isinstance(way, Unread) or (way.table in ("main", "local", "") and len(names) == 1)


def _is_bad(call: PeerCall) -> bool:
    """Whether it was not reached, or some of the connections that were opened at once were not answered."""
    passed = isinstance(call.connect, Connect) and call.connect.outcome == "ok"
    return not passed or (isinstance(call.volley, Volley) and call.volley.late > 0)

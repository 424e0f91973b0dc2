"""UDP packets to all peers at once: small ones are counted for loss, full-size ones may not be fragmented."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from contextlib import suppress

from ncclcheck.probes.facts import Door, Echoes, PathMtu, Unread
from ncclcheck.probes.reach import protocol as p

# bytes of usual MTUs: jumbo, Ethernet, tunnels, least of IPv6 and IPv4
_SIZES = (9000, 8000, 4000, 1500, 1400, 1280, 576)
_LARGEST = 65535  # bytes of an IP packet
_MOST, _LEAST, _TOGETHER = 300, 20, 2000  # packets to a peer at most and at least, and to all together; chosen
_SIZED_TIMES = 4  # packets of each size: all four lost means that the size does not pass; chosen
_SENDING = 0.75  # of the window; the rest is for late answers


class Peer:
    """The packets to one peer, and what came back."""

    def __init__(self, me: Door, door: Door) -> None:
        self.me, self.door = me, door
        self.sent, self.arrived = 0, 0
        self.returned: set[int] = set()
        self.largest_arrived = self.kernel_mtu = 0
        self.problem: Unread | None = None
        self.socket = socket.socket(p.family_of(door.address), socket.SOCK_DGRAM)
        self.header = p.header_bytes(self.socket.family)
        self.sizes = [s for s in (min(me.mtu or 1500, _LARGEST), *_SIZES) if s <= (me.mtu or 1500)]
        self._open()

    def _open(self) -> None:
        try:
            self.socket.setblocking(False)
            if self.socket.family == socket.AF_INET6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, p.IPV6_MTU_DISCOVER, p.PMTUDISC_DO)
                self.socket.setsockopt(socket.IPPROTO_IPV6, p.IPV6_DONTFRAG, 1)
            else:
                self.socket.setsockopt(socket.IPPROTO_IP, p.IP_MTU_DISCOVER, p.PMTUDISC_DO)
            self.socket.connect(p.place(self.door.address, self.door.udp_port))
        except OSError as error:
            self.problem = Unread("absent", f"UDP to {self.door.address}: {error.strerror or error}")

    def ping(self, seq: int) -> None:
        """One small packet."""
        self.sent += self._send(p.PING, seq, p.SMALL)

    def sized(self, seq: int) -> None:
        """One packet of every size, the largest first; those of 0 data would not carry the token."""
        for size in self.sizes:
            self._send(p.SIZED, seq, size - self.header)

    def _send(self, kind: int, seq: int, size: int) -> int:
        packet = p.PACKET.pack(self.door.token.encode(), kind, self.me.node, seq).ljust(size, b"\0")
        for _ in range(2):  # the first call may only deliver the error that an earlier packet met
            try:
                return self.socket.send(packet) and 1
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    self._ask_mtu()
                    return 0
        return 0

    def _ask_mtu(self) -> None:
        with suppress(OSError):
            six = self.socket.family == socket.AF_INET6
            level, option = (socket.IPPROTO_IPV6, p.IPV6_MTU) if six else (socket.IPPROTO_IP, p.IP_MTU)
            self.kernel_mtu = self.socket.getsockopt(level, option)

    def receive(self) -> None:
        """Take what has come."""
        with suppress(OSError):
            while packet := self.socket.recv(128):
                self._take(packet)

    def _take(self, packet: bytes) -> None:
        if len(packet) != p.ANSWER.size:
            return
        token, kind, node, seq, count, size = p.ANSWER.unpack(packet)
        if token != self.door.token.encode() or node != self.door.node:
            return
        self.arrived = max(self.arrived, count)
        if kind == p.PING:
            self.returned.add(seq)
        else:
            self.largest_arrived = max(self.largest_arrived, size + self.header)

    @property
    def echoes(self) -> Echoes | Unread:
        """The small packets."""
        sent = max(self.sent, len(self.returned))
        arrived = min(sent, max(self.arrived, len(self.returned)))
        return self.problem or Echoes(sent=sent, arrived=arrived, returned=len(self.returned))

    @property
    def path_mtu(self) -> PathMtu | Unread:
        """The large packets; told only where it is less than what the interface takes."""
        if self.problem or not self.sizes:
            return self.problem or Unread("absent", "the interface takes no packet of 576 bytes")
        reported = self.kernel_mtu if self.kernel_mtu < self.sizes[0] else 0
        return PathMtu(sent=self.sizes[0], arrived=min(self.largest_arrived, self.sizes[0]), told=reported)


class PacketLoop:
    """All peers of a node, served by one loop."""

    def __init__(self, me: Door, doors: list[Door]) -> None:
        self.peers = {door.node: Peer(me, door) for door in doors}
        self._ready = [peer for peer in self.peers.values() if peer.problem is None]
        self._count = max(_LEAST, min(_MOST, _TOGETHER // max(1, len(self._ready))))

    def run(self, begun: float, seconds: float) -> None:
        """Send evenly, then wait for the last answers. Never raises."""
        with selectors.DefaultSelector() as selector, suppress(OSError, ValueError):
            for peer in self._ready:
                selector.register(peer.socket, selectors.EVENT_READ, peer)
            step = seconds * _SENDING / self._count
            for seq in range(self._count):
                self._send(seq)
                _receive(selector, begun + (seq + 1) * step)
            _receive(selector, begun + seconds)

    def _send(self, seq: int) -> None:
        """The sized ones come last: their answers tell how many small ones arrived."""
        for peer in self._ready:
            peer.ping(seq)
            if seq >= self._count - _SIZED_TIMES:
                peer.sized(seq)

    def close(self) -> None:
        """Close all sockets."""
        for peer in self.peers.values():
            peer.socket.close()


def _receive(selector: selectors.BaseSelector, until: float) -> None:
    while (left := until - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            key.data.receive()

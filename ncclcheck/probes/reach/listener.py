"""The door of a node: a TCP listener and a UDP echo on a random high port each, open for a few seconds.

Other hosts are hostile until they have said the token; sizes, times and the number of visitors are limited.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hmac import compare_digest

from ncclcheck.probes.facts import Door, NoDoor
from ncclcheck.probes.machine.net import addresses
from ncclcheck.probes.reach import protocol as p
from ncclcheck.probes.reach import spread

_LOOK_EVERY = 0.2  # s between two looks whether to stop; chosen
_TOKEN_WITHIN = 2.0  # s until a visitor must have shown the run's token; chosen
_VISIT_WITHIN = 15.0  # s until a visit is ended; chosen
_MOST_VISITORS = 256  # visitors at once; bounds a flood
_MOST_NODES = 100_000  # node numbers beyond it are hostile
_BUFFER = 4 * 2**20  # bytes of the receive buffer: a burst that arrives while no core is free; chosen


class Listener:
    """Open from its making until `close`. door: the door, or why there is none."""

    def __init__(self, address: str, *, node: int = 0, name: str = "") -> None:
        self._token = secrets.token_hex(p.TOKEN_BYTES // 2)
        self._node = node
        self._closing = threading.Event()
        self._visitors = threading.BoundedSemaphore(_MOST_VISITORS)
        self._threads: list[threading.Thread] = []
        self._spare: list[socket.socket] = []
        self.door: Door | NoDoor = self._open(address, name)

    def _open(self, address: str, name: str) -> Door | NoDoor:
        try:
            tcp = _bound(address, socket.SOCK_STREAM)
        except OSError as error:
            there = [each for _, each in socket.if_nameindex()]
            why = error.strerror or str(error)
            return NoDoor(node=name, address=address, protocol="TCP", why=why, interfaces=there)
        try:
            udp = _bound(address, socket.SOCK_DGRAM)
        except OSError as error:
            tcp.close()
            return NoDoor(node=name, address=address, protocol="UDP", why=error.strerror or str(error))
        self._spare = spread.opened(address)
        interface = addresses.interface_names().get(address.partition("%")[0], "")
        door = Door(
            node=self._node, name=name, interface=interface, address=address, tcp_port=tcp.getsockname()[1],
            udp_port=udp.getsockname()[1], mtu=addresses.mtu_of(interface), token=self._token,
            spare=[sock.getsockname()[1] for sock in self._spare],
        )  # fmt: skip
        self._serve(self._accept, tcp)
        self._serve(self._echo, udp)
        return door

    def close(self) -> None:
        """Close both ports; they are free on return."""
        self._closing.set()
        for sock in self._spare:
            sock.close()
        for thread in self._threads:
            thread.join(2 * _LOOK_EVERY + 0.5)

    def _serve(self, loop: Callable[[socket.socket], None], sock: socket.socket) -> None:
        """Each loop owns its socket, for one that is closed under a waiting thread may be another one's next."""

        def run() -> None:
            with sock:
                while not self._closing.is_set():
                    with suppress(OSError):
                        loop(sock)

        sock.settimeout(_LOOK_EVERY)
        self._threads.append(threading.Thread(target=run, daemon=True, name="reach listener"))
        self._threads[-1].start()

    def _accept(self, tcp: socket.socket) -> None:
        visitor, _ = tcp.accept()
        if not self._visitors.acquire(blocking=False):
            visitor.close()
            return
        threading.Thread(target=self._visit, args=(visitor,), daemon=True, name="reach visitor").start()

    def _visit(self, sock: socket.socket) -> None:
        """Serve one connection until it is closed, breaks the protocol or its time is over."""
        end = time.monotonic() + _VISIT_WITHIN
        try:
            with sock, suppress(OSError):
                sock.settimeout(_TOKEN_WITHIN)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if not compare_digest(p.read_exactly(sock, p.TOKEN_BYTES + 1), self._token.encode() + b"\n"):
                    return
                sock.sendall(b"%d\n" % self._node)
                while (left := end - time.monotonic()) > 0 and not self._closing.is_set():
                    sock.settimeout(left)
                    if not _answer(sock):
                        return
        finally:
            self._visitors.release()

    def _echo(self, udp: socket.socket) -> None:
        """Small answers to all packets that know the token, whatever their size."""
        counts: dict[int, int] = {}
        while not self._closing.is_set():
            packet, source = udp.recvfrom(65536)
            if len(packet) < p.SMALL:
                continue
            token, kind, node, seq = p.PACKET.unpack_from(packet)
            if not compare_digest(token, self._token.encode()) or node >= _MOST_NODES:
                continue
            counts[node] = counts.get(node, 0) + (kind == p.PING)
            with suppress(OSError):
                udp.sendto(p.ANSWER.pack(token, kind, self._node, seq, counts[node], len(packet)), source)


def _bound(address: str, kind: socket.SocketKind) -> socket.socket:
    """A socket on a random port of the system's own range, as NCCL and gloo take theirs."""
    sock = socket.socket(p.family_of(address), kind)
    try:
        if kind == socket.SOCK_STREAM:  # its connections to a peer that is away must not hold the port afterwards
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if kind == socket.SOCK_DGRAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        sock.bind(p.place(address, 0))
        if kind == socket.SOCK_STREAM:
            sock.listen(_MOST_VISITORS)
    except OSError:
        sock.close()
        raise
    return sock


def _answer(sock: socket.socket) -> bool:
    """One request; False when the visitor leaves or says what nobody understands."""
    request = sock.recv(1)
    if request == p.ASK_TIME:
        sock.sendall(p.TIME.pack(time.time_ns()))
    elif request == p.ASK_WHO:
        sock.sendall(p.WHO.pack(str(sock.getpeername()[0]).partition("%")[0].encode()))
    elif request == p.ASK_BURST:
        (seconds,) = p.BURST_ORDER.unpack(p.read_exactly(sock, p.BURST_ORDER.size))
        if not 0 < seconds <= 1:
            return False
        sock.sendall(p.BURST_COUNT.pack(*_swallow(sock, seconds)))
        _drain(sock)
        return False
    else:
        return False
    return True


def _swallow(sock: socket.socket, seconds: float) -> tuple[int, float, float]:
    """Receive for so long; bytes and seconds without the first moment, in which TCP finds its pace.

    The last is how long this thread waited for a core.
    """
    buffer = bytearray(2**20)
    begun, waited = time.monotonic(), addresses.waited_for_core()
    warm, end = begun + p.WARM_UP_S, begun + seconds
    since, total = begun, 0
    while (now := time.monotonic()) < end:
        if since == begun and now >= warm:
            since, total = now, 0
        sock.settimeout(max(0.001, (warm if now < warm else end) - now))
        with suppress(TimeoutError):
            got = sock.recv_into(buffer)
            if not got:
                break
            total += got
    return total, time.monotonic() - since, addresses.waited_for_core() - waited


def _drain(sock: socket.socket) -> None:
    """Wait until the visitor has read the count and left: closing on unread data would destroy it."""
    buffer = bytearray(2**20)
    end = time.monotonic() + 2.0
    while (left := end - time.monotonic()) > 0:
        sock.settimeout(left)
        if not sock.recv_into(buffer):
            return

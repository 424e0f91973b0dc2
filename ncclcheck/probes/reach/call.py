"""One TCP conversation with a peer: connect, is it really the peer, its clock, and later a burst to it."""

from __future__ import annotations

import errno
import ipaddress
import os
import select
import socket
import struct
import threading
import time

from ncclcheck.probes.facts import Burst, ClockOffset, Connect, ConnectOutcome, Door, KeptBy, Unread, Volley
from ncclcheck.probes.machine.net import addresses, unsent
from ncclcheck.probes.reach import protocol as p
from ncclcheck.probes.reach import volley

_PATIENCE = (0.3, 0.6, 1.2)  # a lost SYN is sent again by the kernel only after a second
_TRIES = 3  # connection attempts that may fail with an error before the port counts as closed; chosen
_EXCHANGES = 7  # round trips for the clock offset, of which the fastest counts; chosen
_CHUNK = bytes(2**18)
_ANSWER_WITHIN = 0.5  # s beyond a burst for its answer; chosen
# tcpi_snd_mss, tcpi_total_retrans and tcpi_segs_out in struct tcp_info, linux/tcp.h
_MSS, _RETRANSMITS, _SEGMENTS = 16, 100, 136
_OUTCOMES: dict[int, ConnectOutcome] = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "refused",
    errno.ETIMEDOUT: "timed_out",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTUNREACH: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ENETDOWN: "unreachable",
}


class PeerCall:
    """What is known of a peer so far; its thread may still be at it."""

    def __init__(self, door: Door, together: int = 1) -> None:
        self.door, self._together = door, together
        self.connect: Connect | Unread = Unread("timed_out", "not finished in time")
        self.clock: ClockOffset | Unread = Unread("absent", "there was no connection")
        self.rtt_us: float | Unread = Unread("absent", "there was no connection")
        self.bursts: list[Burst] = []
        self.seen_as: str | Unread = Unread("absent", "there was no connection")
        self.mss: int | Unread = Unread("absent", "there was no connection")
        self.volley: Volley | Unread = Unread("absent", "there was no connection")
        self._free: list[socket.socket] = []
        self._lock = threading.Lock()
        self._over = False

    def run(self, end: float) -> None:
        """Connect, identify and compare clocks; ends at `end` (monotonic). Never raises."""
        try:
            outcome = self._connect(end)
            if isinstance(outcome, Connect):
                self.connect = outcome
                if outcome.outcome == "timed_out":
                    self._some_pass()
                return
            self._speak(outcome, end)
        except Exception as error:
            self.connect = Unread("broken", f"{type(error).__name__}: {error}")

    def _some_pass(self) -> None:
        """A few in a row had no answer; of several at once one may, for it comes from another port."""
        several = volley.fire(self.door, self._together)
        if several.late < several.opened:
            self.volley = several

    def knock(self, end: float) -> Connect:
        """Connect and close; whether the connection passes or is refused."""
        outcome = self._connect(end)
        if isinstance(outcome, Connect):
            return outcome
        outcome.close()
        return Connect(outcome="ok")

    def _connect(self, end: float) -> socket.socket | Connect:
        """A connection, or what became of the last try. Errors are tried again, for the first may be stale."""
        last, errors = Connect(outcome="timed_out", detail="no answer"), 0
        for tries in range(1000):
            left = end - time.monotonic()
            if left <= 0 or errors >= _TRIES:
                break
            try:
                return self._dial(min(left, _PATIENCE[min(tries, len(_PATIENCE) - 1)]))
            except _NoAnswer as error:
                last = Connect(outcome="timed_out", detail="no answer", kept=error.kept or last.kept)
            except OSError as error:
                last, errors = _refusal(error, self.door.address), errors + 1
                time.sleep(min(max(0.0, left), 0.1))
        return last

    def _dial(self, seconds: float) -> socket.socket:
        sock = socket.socket(p.family_of(self.door.address), socket.SOCK_STREAM)
        try:
            sock.settimeout(seconds)
            sock.connect(p.place(self.door.address, self.door.tcp_port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError:
            where = unsent.of_unanswered(sock)
            sock.close()
            raise _NoAnswer(where) from None
        except OSError:
            sock.close()
            raise
        return sock

    def _speak(self, sock: socket.socket, end: float) -> None:
        sock.settimeout(max(0.05, end - time.monotonic()))
        self.connect = _identify(sock, self.door)
        try:
            if self.connect.outcome == "ok":
                self.clock, self.rtt_us = _compare_clocks(sock)
                self.seen_as = _ask_who(sock)
                self.mss = _word(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _MSS)
                self._give(sock)
                self.volley = volley.fire(self.door, self._together)
                return
        except OSError as error:
            self.clock = self.rtt_us = Unread("timed_out", f"the connection went silent: {error}")
        sock.close()

    def _give(self, sock: socket.socket) -> None:
        """Keep the connection for a burst, unless nobody waits for it any more."""
        with self._lock:
            if self._over:
                sock.close()
            else:
                self._free.append(sock)

    def burst(self, seconds: float = p.BURST_S) -> None:
        """Send as fast as it goes, on the open connection or a new one. Never raises."""
        if not isinstance(self.connect, Connect) or self.connect.outcome != "ok":
            return
        with self._lock:
            sock = self._free.pop() if self._free else None
        try:
            with sock or self._dialled_again() as open_one:
                self.bursts.append(_burst(open_one, seconds))
        except (OSError, struct.error):
            return

    def _dialled_again(self) -> socket.socket:
        sock = self._dial(0.3)
        if _identify(sock, self.door).outcome == "ok":
            return sock
        sock.close()
        raise ConnectionError("the peer did not answer again")

    def close(self) -> None:
        """End the call, and close its connections that wait for a burst."""
        with self._lock:
            self._over = True
            for sock in self._free:
                sock.close()
            self._free.clear()


class _NoAnswer(TimeoutError):
    """A connection that nobody answered; what on this host kept it from leaving, if that was seen."""

    def __init__(self, where: KeptBy) -> None:
        super().__init__("no answer")
        self.kept = where


def _refusal(error: OSError, address: str) -> Connect:
    text = os.strerror(error.errno) if error.errno else str(error)
    outcome = _OUTCOMES.get(error.errno or 0, "not_sent")
    return Connect(outcome=outcome, detail=text, kept=unsent.of_error(error, address))


def _identify(sock: socket.socket, door: Door) -> Connect:
    """Whether our peer sits there, and not another machine that has its address."""
    try:
        sock.sendall(door.token.encode() + b"\n")
        answer = sock.recv(16)
    except TimeoutError:
        return Connect(outcome="silent", detail="accepted, then no answer")
    except OSError as error:
        return Connect(outcome="stranger", detail=os.strerror(error.errno) if error.errno else str(error))
    if answer == b"%d\n" % door.node:
        return Connect(outcome="ok")
    return Connect(outcome="stranger", detail="another listener has this port" if answer else "closed at once")


def _ask_who(sock: socket.socket) -> str | Unread:
    """The address from which we come for the peer; not ours where somebody on the way writes another one."""
    sock.sendall(p.ASK_WHO)
    text = p.read_exactly(sock, p.WHO.size).rstrip(b"\0").decode("ascii", "backslashreplace")
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return Unread("absent", "the peer answered with something else than an address")


def _compare_clocks(sock: socket.socket) -> tuple[ClockOffset, float]:
    """The fastest of a few exchanges knows best, as in NTP: the answer was given half-way through."""
    best = (2**63, 0.0)
    for _ in range(_EXCHANGES):
        asked, begun = time.time_ns(), time.monotonic_ns()
        sock.sendall(p.ASK_TIME)
        (theirs,) = p.TIME.unpack(p.read_exactly(sock, p.TIME.size))
        took = time.monotonic_ns() - begun
        best = min(best, (took, (theirs - asked - took / 2) / 1e9))
    took, offset = best
    return ClockOffset(seconds=round(offset, 6), within_s=round(took / 2e9, 6)), took / 1e3


def _burst(sock: socket.socket, seconds: float) -> Burst:
    """Send until the peer says what it counted."""
    sock.sendall(p.ASK_BURST + p.BURST_ORDER.pack(seconds))
    waited = addresses.waited_for_core()
    end = time.monotonic() + seconds + _ANSWER_WITHIN
    sock.setblocking(False)
    while (left := end - time.monotonic()) > 0:
        readable, writable, _ = select.select([sock], [sock], [], left)
        if readable:
            break
        if writable:
            sock.send(_CHUNK)
    sock.settimeout(0.2)
    count, took, waited_there = p.BURST_COUNT.unpack(p.read_exactly(sock, p.BURST_COUNT.size))
    waited = max(waited_there, addresses.waited_for_core() - waited)
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # what is unsent is not sent
    return Burst(
        bytes=count,
        seconds=round(took, 6),
        segments=_word(info, _SEGMENTS),
        retransmits=_word(info, _RETRANSMITS),
        starved=round(min(1.0, waited / seconds), 3),
    )


def _word(info: bytes, offset: int) -> int | Unread:
    if len(info) < offset + 4:
        return Unread("no_tool", "this kernel's TCP_INFO does not report it")
    return int(struct.unpack_from("=I", info, offset)[0])

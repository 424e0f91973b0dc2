"""tcp://HOST:PORT, tried on the very port: it is opened where rank 0 will run, and all nodes connect to it."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from queue import Empty, SimpleQueue

import psutil

from ncclcheck.probes.facts import InitSeen, TcpInit, replace
from ncclcheck.probes.machine.net.ports import holder

_GREETING = b"ncclcheck-init "
_LOOK_EVERY = 0.2  # s between two looks whether to stop; chosen
_SPEAKS_WITHIN = 1.0  # s for the listener's greeting; ours speaks as soon as it has accepted; chosen
_MOST_ADDRESSES = 8  # of a name; torch tries them one after the other as well


class TcpTrial:
    """Listens where rank 0 is to run, on all addresses, as torch's TCPStore does; on the others only connects."""

    def __init__(self, host: str, port: int, token: str, *, node: str, hosts: bool, seconds: float) -> None:
        self._host, self._port, self._seconds = host, port, seconds
        self._greeting = _GREETING + token.encode() + b"\n"
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen = InitSeen(node=node, tcp=self._resolved(hosts))
        if hosts:
            self._listen()

    def _resolved(self, hosts: bool) -> TcpInit:
        """What HOST is here; a name server has as long as the whole trial."""
        answers: SimpleQueue[list[str] | str] = SimpleQueue()

        def ask() -> None:
            try:
                infos = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                answers.put(list(dict.fromkeys(str(entry[4][0]) for entry in infos)))
            except (OSError, UnicodeError) as error:
                answers.put(getattr(error, "strerror", None) or str(error))

        threading.Thread(target=ask, daemon=True, name="init name").start()
        try:
            addresses = answers.get(timeout=self._seconds)
        except Empty:
            addresses = f"no answer within {self._seconds:g} s"
        seen = TcpInit(host=self._host, port=self._port, hosts=hosts)
        if isinstance(addresses, str):
            return replace(seen, unresolved=addresses)
        mine = {entry.address.partition("%")[0] for of in psutil.net_if_addrs().values() for entry in of}
        bare = [address.partition("%")[0] for address in addresses]
        return replace(
            seen,
            addresses=addresses[:_MOST_ADDRESSES],
            own=any(address in mine or _is_loopback(address) for address in bare),
            loopback=all(_is_loopback(address) for address in bare),
        )

    def _tell(self, **changes: object) -> None:
        assert self._seen.tcp is not None
        self._seen = replace(self._seen, tcp=replace(self._seen.tcp, **changes))

    def _listen(self) -> None:
        try:
            server = _server(self._port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                self._tell(listened="in use", detail=holder(self._port))
            elif error.errno in (errno.EACCES, errno.EPERM):
                self._tell(listened="denied", detail=os.strerror(error.errno))
            else:
                self._tell(listened="failed", detail=error.strerror or str(error))
            return
        self._tell(listened="ok")
        self._thread = threading.Thread(target=self._serve, args=(server,), daemon=True, name="init listener")
        self._thread.start()

    def _serve(self, server: socket.socket) -> None:
        server.settimeout(_LOOK_EVERY)
        with server:
            while not self._closing.is_set():
                with suppress(OSError):
                    visitor, _ = server.accept()
                    with visitor:
                        visitor.settimeout(_LOOK_EVERY)
                        visitor.sendall(self._greeting)

    def opened(self) -> InitSeen:
        """The addresses, and on the node of rank 0 whether the port could be opened."""
        return self._seen

    def looked(self, nodes: Collection[str]) -> InitSeen:
        """Whether this node reaches the very port, at the first address that answers."""
        del nodes
        tcp = self._seen.tcp
        end = time.monotonic() + self._seconds
        for address in tcp.addresses if tcp else ():
            outcome, detail = self._connected(address, max(0.5, min(end - time.monotonic(), self._seconds / 2)))
            self._tell(connect=outcome, connect_detail=detail)
            if outcome == "ok":
                break
        return self._seen

    def _connected(self, address: str, seconds: float) -> tuple[str, str]:
        try:
            with socket.create_connection((address, self._port), timeout=seconds) as sock:
                sock.settimeout(_SPEAKS_WITHIN)
                with suppress(TimeoutError):
                    if sock.recv(len(self._greeting)) == self._greeting:
                        return "ok", ""
                return "stranger", ""
        except TimeoutError:
            return "timed_out", f"no answer from {address} within {seconds:.1f} s"
        except ConnectionRefusedError as error:
            return "refused", f"{address}: {error.strerror}"
        except OSError as error:
            gone = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)
            return ("unreachable" if gone else "failed"), f"{address}: {error.strerror or error}"

    def close(self) -> None:
        """The port is free on return."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(2 * _LOOK_EVERY + 0.5)


def _server(port: int) -> socket.socket:
    """A listener on all addresses, IPv6 and IPv4 at once where there is IPv6. Raises OSError."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # no IPv6 in this kernel; a port in use says so once more below
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False

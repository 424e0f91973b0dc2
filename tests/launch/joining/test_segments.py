"""The sockets of a join: small segments, and what the kernel says of routes."""

from __future__ import annotations

import errno
import socket
import time

import pytest

from ncclcheck.launch.joining import unrouted
from ncclcheck.launch.remote import large_packets, segments
from ncclcheck.probes.facts import Door, Unread
from ncclcheck.probes.machine.net import addresses, unsent
from ncclcheck.probes.machine.process import Output
from ncclcheck.probes.reach import volley


def _segment(sock: socket.socket) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


@pytest.mark.parametrize(("mine", "theirs"), [(True, False), (False, True), (True, True)])
def test_either_end_makes_both_send_small_segments(mine: bool, theirs: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        if theirs:
            segments.keep_small(server)
        port = server.getsockname()[1]
        with (
            segments.connect("127.0.0.1", port, 2.0)
            if mine
            else socket.create_connection(("127.0.0.1", port)) as caller
        ):
            other, _ = server.accept()
            with other:
                assert max(_segment(caller), _segment(other)) <= segments.SMALL_SEGMENT
                caller.sendall(bytes(100_000))
                assert len(other.recv(65536)) > 0


def test_a_connection_that_fails_raises() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="refused"):
            segments.connect("127.0.0.1", closed.getsockname()[1], 2.0)


@pytest.mark.parametrize(
    ("number", "address", "by"),
    [
        (errno.ECONNREFUSED, "127.0.0.1", ""),
        (errno.ENETUNREACH, "192.0.2.1", "route"),
        (errno.EINVAL, "192.0.2.1", "route"),
        (errno.EACCES, "192.0.2.1", "route"),
        (errno.EACCES, "127.0.0.1", "filter"),
        (errno.EPERM, "192.0.2.1", "filter"),
        (errno.EADDRNOTAVAIL, "127.0.0.1", "resources"),
        (errno.EHOSTUNREACH, "127.0.0.1", ""),
    ],
)
def test_an_error_tells_who_refuses(monkeypatch: pytest.MonkeyPatch, number: int, address: str, by: str) -> None:
    """192.0.2.1 stands for an address to which a UDP socket gets no way either."""
    unrouted = Unread("absent", "no way")
    monkeypatch.setattr(addresses, "source_to", lambda target: unrouted if target == "192.0.2.1" else "127.0.0.1")
    assert unsent.of_error(OSError(number, "no"), address) == by


def test_a_missing_route_is_borne_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = unrouted.Patience()
    assert not patience.is_over("unrouted")
    now[0] += unrouted.PATIENCE_S - 1
    assert not patience.is_over("unrouted")
    assert not patience.is_over("silent")  # a route came: it begins anew
    now[0] += unrouted.PATIENCE_S
    assert not patience.is_over("unrouted")
    now[0] += unrouted.PATIENCE_S
    assert patience.is_over("unrouted")


def _door(port: int) -> Door:
    return Door(
        node=1, name="h", interface="lo", address="127.0.0.1", tcp_port=port, udp_port=9, mtu=1500, token=""
    )


def test_connections_at_once_are_counted_as_the_kernel_answers_them() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        assert volley.fire(_door(server.getsockname()[1]), 8).late == 0
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:  # what has no room in the queue is dropped
        burst = volley.fire(_door(full.getsockname()[1]), 8)
        assert burst.opened == 8
        assert 5 <= burst.late <= 7


@pytest.mark.parametrize(("peers", "expected"), [(1, 8), (2, 8), (15, 4), (63, 1), (0, 8)])
def test_all_peers_together_stay_within_the_backlog(peers: int, expected: int) -> None:
    assert volley.size(peers) == expected


@pytest.mark.parametrize(
    ("again", "blamed"), [(Output(0, "", ""), False), (Unread("timed_out", "no answer"), True)]
)
def test_the_size_is_blamed_only_where_full_size_segments_fail(
    monkeypatch: pytest.MonkeyPatch, again: Output | Unread, blamed: bool
) -> None:
    """A login shell that reads stdin holds our command up, and lets `true` pass over both."""
    answers = iter([Output(0, "", ""), again])
    monkeypatch.setattr("ncclcheck.probes.machine.process.run", lambda *_, **__: next(answers))
    reason = large_packets.explanation(["ssh", "--", "h3", "command"], {}, "h3")
    assert ("nothing large came through" in reason) == blamed

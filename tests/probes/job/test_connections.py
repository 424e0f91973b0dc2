"""The job's TCP connections, as the kernel lists them: what was lost, and what a busy host only did to itself."""

from __future__ import annotations

import socket
import struct

import pytest

from ncclcheck.probes.facts import Sent
from ncclcheck.probes.job.usage import connections
from ncclcheck.probes.machine.net.netlink_messages import HEADER, messages

_A, _B = "10.1.0.1", "10.1.0.2"


def _row(
    cookie: int, counted: tuple[int, int, int], *, repeats: int = 0, target: str = _B, timer: int = 1
) -> bytes:
    """One message of sock_diag(7) with tcp_info: segments, sent again, reported as needless."""
    info = bytearray(240)
    for offset, value in zip((136, 100, 216), counted, strict=True):
        struct.pack_into("=I", info, offset, value)
    ends = (socket.inet_aton(address).ljust(16, b"\0") for address in (_A, target))
    message = connections._MESSAGE.pack(
        socket.AF_INET, 1, timer, repeats, b"\1\2\3\4", *ends, 0, struct.pack("=Q", cookie), b"\0" * 20
    )
    body = message + struct.pack("=HH", 4 + len(info), 2) + bytes(info)
    return HEADER.pack(16 + len(body), 20, 0, 1, 0) + body


def _told(*looks: bytes) -> list[Sent]:
    left = [*looks]
    watch = connections.ConnectionWatch(lambda: left.pop(0))
    watch._looked = 100.0
    for number in range(1, len(looks)):
        watch.look(100.0 + 0.2 * number)
    return watch.sent()


def test_what_was_there_before_is_not_counted() -> None:
    (sent,) = _told(_row(1, (1000, 50, 0)), _row(1, (3000, 52, 0)))
    assert (sent.source, sent.target, sent.segments, sent.again) == (_A, _B, 2000, 2)


@pytest.mark.parametrize(("needless", "again", "seconds"), [(0, 2, 0.4), (2, 0, 0.0)])
def test_an_outage_counts_unless_the_other_side_had_it_all(needless: int, again: int, seconds: float) -> None:
    """A host without cores acknowledges late: what was sent again meanwhile comes twice (DSACK)."""
    looks = [_row(1, (10, 0, 0)), _row(1, (11, 1, 0), repeats=1), _row(1, (12, 2, 0), repeats=2)]
    (sent,) = _told(*looks, _row(1, (20, 2, needless)))
    assert (sent.again, sent.unanswered_s, sent.outages) == (again, seconds, 1 if again else 0)


def test_a_receiver_that_is_full_is_no_outage() -> None:
    (sent,) = _told(_row(1, (10, 0, 0)), _row(1, (11, 1, 0), repeats=3, timer=4), _row(1, (20, 1, 0)))
    assert sent.unanswered_s == 0.0


def test_two_outages_and_several_connections_of_one_pair() -> None:
    quiet, silent = _row(1, (11, 1, 0)), _row(1, (11, 1, 0), repeats=1)
    looks = [_row(1, (10, 0, 0)), silent, quiet, silent, quiet]
    (sent,) = _told(*(row + _row(2, (5 + n, 0, 0)) for n, row in enumerate(looks)))
    assert (sent.outages, sent.unanswered_s, sent.segments) == (2, 0.4, 1 + 4)


def test_connections_within_a_host_are_left_out() -> None:
    looks = [_row(1, (n, 0, 0), target=target) for n in (1, 9) for target in (_A, "127.0.0.1")]
    assert _told(looks[0] + looks[1], looks[2] + looks[3]) == []


def test_the_kernel_lists_connections_that_stand() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        data = connections.dumped()
    assert any(kind == 20 for kind, _ in messages(data))


@pytest.mark.parametrize("data", [b"", b"\0" * 40, b"\xff" * 100, _row(1, (1, 1, 1))[:90]])
def test_what_nobody_can_read_is_nothing(data: bytes) -> None:
    assert [*connections.parsed(data)] == []

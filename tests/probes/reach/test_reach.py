"""The probe of what nodes see of each other: real sockets on loopback, real hosts in network namespaces."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import msgspec
import pytest

from ncclcheck.probes.facts import (
    ClockOffset,
    Connect,
    Counters,
    Door,
    Echoes,
    NodeReach,
    NoDoor,
    PathMtu,
    Resolution,
    Spread,
    Unread,
    replace,
)
from ncclcheck.probes.reach import Listener, measure, protocol, schedule, spread
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.reach_hosts import Hosts, can_make_hosts, hosts

_SYN = "tcp dport 1024-65535 tcp flags & (syn|ack) == syn drop"
_CODES = {"HST009", "NET003", "NET004", "NET006", "NET007", "NET008", "NET009"}


def door_of(listener: Listener) -> Door:
    assert isinstance(listener.door, Door), listener.door
    return listener.door


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener("127.0.0.1", node=3, name="h3")) as opened:
        yield opened


def everybody(doors: list[Door], names: dict[str, str], seconds: float = 6.0) -> list[NodeReach]:
    with ThreadPoolExecutor(len(doors)) as pool:
        return list(pool.map(lambda door: measure(door, doors, names, seconds), doors))


def test_three_nodes_on_loopback() -> None:
    with ExitStack() as stack:
        given = [("localhost", "127.0.0.1"), ("no.such.host.invalid", "127.0.0.2"), ("third", "127.0.0.3")]
        made = [
            stack.enter_context(closing(Listener(address, node=i, name=name)))
            for i, (name, address) in enumerate(given)
        ]
        doors = [replace(door_of(opened), interface="lo", mtu=1500) for opened in made]
        reaches = everybody(doors, dict(given[:2]))
    for reach in reaches:
        assert msgspec.json.decode(msgspec.json.encode(reach), type=NodeReach) == reach
        assert reach.seconds < 4
        assert isinstance(reach.counters, Counters)
        assert len(reach.peers) == 2
        for peer in reach.peers:
            assert peer.connect == Connect(outcome="ok")
            assert isinstance(peer.rtt_us, float)
            assert isinstance(peer.clock, ClockOffset)
            assert abs(peer.clock.seconds) < 0.1
            assert isinstance(peer.echoes, Echoes)
            assert peer.echoes.sent == 300
            assert peer.echoes.returned > 290
            assert peer.path_mtu == PathMtu(sent=1500, arrived=1500)
            assert (peer.source, peer.interface) == ("127.0.0.1", "lo")
            assert peer.bursts
            assert min(burst.bytes for burst in peer.bursts) > 10**6
            assert isinstance(peer.spread, Spread)
            assert (len(peer.spread.open), peer.spread.shut) == (8, [])
            assert isinstance(peer.mss, int)
            assert peer.mss > 1000
    resolved = {peer.peer: peer.resolved for peer in reaches[2].peers}
    assert isinstance(resolved["localhost"], Resolution)
    assert "127.0.0.1" in resolved["localhost"].addresses
    assert resolved["no.such.host.invalid"] == Resolution(name="no.such.host.invalid", addresses=[])
    assert isinstance(reaches[0].peers[1].resolved, Unread)  # nobody gave this name


def test_a_port_that_is_shut_is_told_and_its_neighbours_are_not(listener: Listener) -> None:
    me = door_of(listener)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        shut = gone.getsockname()[1]
    ports = spread.tried(replace(me, spare=[*me.spare, shut]), time.monotonic() + 2.0)
    assert (ports.open, ports.shut) == (me.spare, [shut])
    assert len({port // 4000 for port in me.spare}) > 3


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with closing(Listener("::1", node=0, name="a")) as a, closing(Listener("::1", node=1, name="b")) as b:
        if isinstance(a.door, Unread):
            pytest.skip(a.told.why)
        doors = [replace(door_of(opened), mtu=1500) for opened in (a, b)]
        for reach in everybody(doors, {}, 3.0):
            assert reach.peers[0].connect == Connect(outcome="ok")
            assert reach.peers[0].path_mtu == PathMtu(sent=1500, arrived=1500)


def _accepts_and_says(answer: bytes) -> Callable[[socket.socket], None]:
    def serve(server: socket.socket) -> None:
        kept = []
        while True:
            try:
                visitor, _ = server.accept()
            except OSError:
                return
            kept.append(visitor)
            if answer:
                visitor.sendall(answer)

    return serve


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(b"", "silent"), (b"SSH-2.0-x\r\n", "stranger"), (b"99\n", "stranger"), (None, "refused")],
)
def test_who_answers_at_the_peers_port(listener: Listener, answer: bytes | None, outcome: str) -> None:
    me = door_of(listener)
    with socket.create_server(("127.0.0.2", 0)) as server:
        peer = Door(
            node=4, name="h4", interface="lo", address="127.0.0.2", tcp_port=server.getsockname()[1], udp_port=9,
            mtu=1500, token="0" * 32,
        )  # fmt: skip
        if answer is None:
            server.close()
        else:
            threading.Thread(target=_accepts_and_says(answer), args=(server,), daemon=True).start()
        reach = measure(me, [me, peer], {}, 2.5)
        if answer is not None:
            server.shutdown(socket.SHUT_RDWR)
    assert reach.seconds < 3
    assert isinstance(reach.peers[0].connect, Connect)
    assert reach.peers[0].connect.outcome == outcome
    assert reach.peers[0].echoes == Echoes(sent=300, arrived=0, returned=0)
    assert isinstance(reach.peers[0].clock, Unread)


def test_a_node_that_can_open_no_port_says_why() -> None:
    """192.0.2.1 is nobody's: RFC 5737."""
    with closing(Listener("192.0.2.1", name="h3")) as opened:
        why = "Cannot assign requested address"
        there = [name for _, name in socket.if_nameindex()]
        assert opened.door == NoDoor(node="h3", address="192.0.2.1", protocol="TCP", why=why, interfaces=there)


def test_a_peer_whose_address_is_nonsense_does_no_harm(listener: Listener) -> None:
    me = door_of(listener)
    bad = replace(me, node=9, name="h9", address="not an address")
    reach = measure(me, [me, bad], {"h9": "not an address"}, 1.0)
    assert isinstance(reach.peers[0].connect, Connect)
    assert reach.peers[0].connect.outcome == "not_sent"
    assert isinstance(reach.peers[0].path_mtu, Unread)


def test_a_node_that_is_not_among_the_doors_still_answers(listener: Listener) -> None:
    door = door_of(listener)
    reach = measure(replace(door, node=77, name="h77"), [door], {}, 1.0)
    assert isinstance(reach.peers[0].connect, Unread)


def _visit(door: Door, *words: bytes) -> bytes:
    with socket.create_connection((door.address, door.tcp_port), timeout=2) as visitor:
        visitor.settimeout(3)
        for word in words:
            visitor.sendall(word)
        answer = b""
        try:
            while piece := visitor.recv(4096):
                answer += piece
        except ConnectionResetError:
            pass
        return answer


@pytest.mark.parametrize(
    "words", [(b"GET / HTTP/1.1\r\n\r\n" * 5,), (b"0" * 33,), (b"\0" * 100_000,), (b"short\n",)]
)
def test_a_visitor_without_the_token_learns_nothing(listener: Listener, words: tuple[bytes, ...]) -> None:
    assert _visit(door_of(listener), *words) == b""


@pytest.mark.parametrize(
    "order", [b"x", b"b" + protocol.BURST_ORDER.pack(1e9), b"b" + protocol.BURST_ORDER.pack(-1)]
)
def test_a_visitor_who_asks_for_too_much_is_shown_out(listener: Listener, order: bytes) -> None:
    door = door_of(listener)
    assert _visit(door, door.token.encode() + b"\n", order) == b"3\n"


def test_packets_without_the_token_are_not_answered(listener: Listener) -> None:
    door = door_of(listener)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((door.address, door.udp_port))
        good = protocol.PACKET.pack(door.token.encode(), protocol.PING, 1, 0)
        for packet in (b"", b"x" * 2000, good, good.replace(door.token.encode(), b"0" * 32).ljust(64, b"\0")):
            sock.send(packet)
        sock.send(good.ljust(64, b"\0"))
        sock.settimeout(2)
        assert len(sock.recv(4096)) == protocol.ANSWER.size  # one answer, to the last of them
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(4096)


def test_silent_visitors_do_not_keep_others_out(listener: Listener) -> None:
    door = door_of(listener)
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((door.address, door.tcp_port), timeout=2))
        time.sleep(2.5)  # those that say nothing are shown out
        with socket.create_connection((door.address, door.tcp_port), timeout=2) as visitor:
            visitor.sendall(door.token.encode() + b"\n")
            assert visitor.recv(16) == b"3\n"


def test_ports_are_free_after_closing() -> None:
    opened = Listener("127.0.0.1")
    door = door_of(opened)
    opened.close()
    with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        tcp.bind((door.address, door.tcp_port))
        udp.bind((door.address, door.udp_port))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 64, 65, 100, 1000])
def test_everybody_is_tested_and_no_burst_disturbs_another(count: int) -> None:
    chosen = [schedule.peers(place, count) for place in range(count)]
    tested_by = [sum(place in peers for peers in chosen) for place in range(count)]
    least = min(count - 1, (count - 1).bit_length())
    assert min(tested_by) >= least
    assert max(map(len, chosen)) <= max(63, 2 * least + 6)
    sent, received = set(), set()
    for slot in schedule.slots(count):
        busy = [place for pair in slot for place in pair]
        assert len(busy) == len(set(busy))
        assert all(b in chosen[a] for a, b in slot)
        sent |= {a for a, _ in slot}
        received |= {b for _, b in slot}
    assert sent == received == set(range(count))
    assert len(schedule.slots(count)) <= 6


@pytest.fixture(scope="module")
def _namespaces() -> None:
    if not can_make_hosts():
        pytest.skip("network namespaces need root")


def _mtu_and_rate(made: Hosts) -> None:
    made.run("h3", "ip", "link", "set", "eth0", "mtu", "1400")
    limit = ("rate", "100mbit", "burst", "256kbit", "latency", "400ms")
    made.run("h2", "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *limit)


def _filter_and_clock(made: Hosts) -> None:
    made.firewall("h3", "input", _SYN)
    made.clocks["h2"] = -90.0


def _loss(made: Hosts) -> None:
    made.firewall("h3", "input", "numgen random mod 100 < 3 drop")


def _unplugged(made: Hosts) -> None:
    made.firewall("h2", "input", _SYN)
    made.firewall("h2", "output", _SYN)


@pytest.mark.usefixtures("_namespaces")
@pytest.mark.parametrize(
    ("count", "fault", "expected"),
    [
        (3, lambda _: None, set()),
        (4, _mtu_and_rate, {("NET004", "warn", "h3"), ("NET007", "warn", "h3"), ("NET008", "fail", "h2")}),
        (3, _filter_and_clock, {("NET006", "fail", "h3"), ("HST009", "fail", "h2")}),
        (3, _loss, {("NET009", "warn", "h3")}),
        (3, _unplugged, {("NET006", "fail", "h2")}),
    ],
    ids=["healthy", "mtu and rate", "filter and clock", "loss", "filter both ways"],
)
def test_hosts_with_faults(
    count: int, fault: Callable[[Hosts], None], expected: set[tuple[str, str, str]]
) -> None:
    with hosts(count) as made:
        fault(made)
        begun = time.monotonic()
        cluster = made.look()
        assert time.monotonic() - begun < 12
    verdicts = judge(cluster, [rule for rule in all_rules() if rule.code in _CODES])
    bad = {(v.code, f.state.value, f.where.node) for v in verdicts for f in v.findings if f.state.value != "ok"}
    assert bad == expected

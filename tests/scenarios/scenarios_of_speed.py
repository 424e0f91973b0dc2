"""Scenarios in which everything works, and one host, rank or direction is slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from ncclcheck.reports.judgement.findings import State
from tests.lab import PYTHON, faults, slowness
from tests.lab.tools import tool, until
from tests.scenarios.scenario import Expect, Play, Scenario, Scene

_ONE_A_HOST = ("bench", "--nproc-per-node", "1", "--time-budget", "8")
# A slow way is seen in bursts, in the bandwidth and in the pairs; who is to blame is said by BEN004.
_SYMPTOMS = ("NET008", "NET009", "BEN002", "BEN003")


def _rank_of(name: str, slowed: Callable[[int], AbstractContextManager[None]]) -> Play:
    """The rank of a host is slowed from its first collective on."""

    @contextmanager
    def play(scene: Scene) -> Iterator[None]:
        with slowed(scene.rank_on(name, 3)):
            yield

    return play


def _sends_slowly(name: str, hosts: int, slow: str, state: State = State.FAIL) -> Scenario:
    return Scenario(
        name=name,
        hosts=hosts,
        command=_ONE_A_HOST,
        fault=lambda s: faults.limited(s[slow], "200mbit"),
        expect=(Expect(code="NET008", node=slow), Expect(code="BEN004", node=slow, state=state)),
        also=_SYMPTOMS,
        first=f"NET008 on {slow}",
        seconds=75,
    )


def _rank_slowed(name: str, slowed: Callable[[int], AbstractContextManager[None]]) -> Scenario:
    return Scenario(
        name=name,
        hosts=3,
        command=_ONE_A_HOST,
        strike=_rank_of("h2", slowed),
        expect=(Expect(code="BEN003", node="h2", state=State.WARN),),
        also=(*_SYMPTOMS, "BEN004"),
        exit_code=0,
        seconds=75,
    )


_CAUSE_KNOWN = ("NET009", "BEN002", "BEN003", "BEN004", "BEN013")


def _held_up(name: str, fault: Play, expect: Expect, hosts: int = 3, **more: object) -> Scenario:
    """A host does it to itself: the cause stands first, and the slow pairs follow from it."""
    given: dict[str, object] = {
        "first": f"{expect.code} on {expect.node}",
        "cure": "admin",
        "also": _CAUSE_KNOWN,
        "command": _ONE_A_HOST,
        "seconds": 75,
        **more,
    }
    return Scenario(name=f"slow: {name}", hosts=hosts, fault=fault, expect=(expect,), **given)  # type: ignore[arg-type]


_HTB = (
    "tc qdisc add dev eth0 root handle 1: htb default 10",
    "tc class add dev eth0 parent 1: classid 1:10 htb rate 100mbit",
)
_SMALL = "4096 4096 4608"
_USUAL = 'tcp_rmem="4096 131072 6291456" net.ipv4.tcp_wmem="4096 16384 4194304"'


@contextmanager
def _names_on_mgmt(scene: Scene, rate: str) -> Iterator[None]:
    """Every name leads to the management network, which carries so much."""
    hosts = scene.lab.hosts
    with ExitStack() as stack:
        for host in hosts:
            limit = f"tc qdisc add dev mgmt0 root tbf rate {rate} burst 64kb latency 200ms"
            stack.enter_context(faults.set_up(host, limit, "tc qdisc del dev mgmt0 root"))
            stack.enter_context(faults.names(host, **{host.name: str(host.mgmt) for host in hosts}))
        yield


def _by_the_management_card(scene: Scene) -> AbstractContextManager[None]:
    """A forgotten route to one peer."""
    to, slow = f"{scene['h1'].address}/32 dev mgmt0", "dev mgmt0 root"
    return faults.set_up(
        scene["h2"],
        f"ip route add {to}; tc qdisc add {slow} tbf rate 100mbit burst 64kb latency 200ms",
        f"ip route del {to}; tc qdisc del {slow}",
    )


@contextmanager
def _by_a_tunnel(scene: Scene) -> Iterator[None]:
    """A policy rule sends TCP to one peer through a vxlan that is slow."""
    ends = scene["h1"], scene["h2"]
    for host, other in (ends, ends[::-1]):
        lines = (
            f"link add vx0 type vxlan id 42 remote {other.address} local {host.address} dstport 4789 dev eth0",
            f"addr add 10.99.0.{host.address.rpartition('.')[2]}/24 dev vx0",
            "link set vx0 mtu 1400 up",
            f"route add {other.address}/32 dev vx0 table 77",
            f"rule add pref 50 to {other.address}/32 ipproto tcp table 77",
        )
        host.check(["sh", "-ec", "\n".join(f"ip {line}" for line in lines)])
        host.check(["sh", "-c", "tc qdisc add dev vx0 root tbf rate 100mbit burst 64kb latency 200ms"])
    try:
        yield
    finally:
        for host in ends:
            host.run(["sh", "-c", "ip rule del pref 50; ip link del vx0"])


_STREAM = "import socket, sys; s = socket.create_connection((sys.argv[1], 5001))\nwhile 1: s.sendall(bytes(65536))"
_SINK = "import socket; c, _ = socket.create_server(('', 5001)).accept()\nwhile c.recv(1 << 20): pass"


@contextmanager
def _a_foreign_stream(scene: Scene) -> Iterator[None]:
    """The switch's port of h2 carries 1 Gb/s, and h3 fills it with something else."""
    port = ["tc", "-n", scene.lab.switch("eth0"), "qdisc"]
    tool([*port, "add", "dev", "h2", "root", "tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms"])
    sink = scene["h2"].start([*PYTHON, "-c", _SINK])
    until("the stream has its end", lambda: bool(scene["h2"].check(["ss", "-Hltn", "sport = 5001"])))
    source = scene["h3"].start([*PYTHON, "-c", _STREAM, scene["h2"].address])
    try:
        yield
    finally:
        for process in (source, sink):
            process.kill()
            process.wait()
        tool([*port, "del", "dev", "h2", "root"])


def _net008(words: str, remedy: str = "") -> Expect:
    return Expect(code="NET008", node="h2", words=words, remedy=remedy)


OF_SPEED = (
    Scenario(
        name="slow: all names lead to the management network",
        fault=lambda s: _names_on_mgmt(s, "12mbit"),
        command=_ONE_A_HOST,
        expect=(
            Expect(
                code="NET017", words="goes over mgmt0", remedy="export GLOO_SOCKET_IFNAME=eth0", state=State.WARN
            ),
        ),
        exit_code=0,
        cure="you",
        seconds=75,
    ),
    Scenario(
        name="healthy: all names lead to a management network as fast",
        hosts=2,
        fault=lambda s: _names_on_mgmt(s, "40gbit"),
        command=_ONE_A_HOST,
        exit_code=0,
        seconds=75,
    ),
    *(
        _held_up(
            f"htb was left on one of {hosts}",
            lambda s: faults.set_up(s["h2"], "\n".join(_HTB), "tc qdisc del dev eth0 root"),
            _net008("h2 itself limits what its eth0 sends to 100 Mbit/s (tc, htb)", "tc qdisc del dev eth0 root"),
            hosts,
        )
        for hosts in (2, 3)
    ),
    _held_up(
        "a packet filter drops what comes in above a rate",
        lambda s: faults.filtered(
            s["h2"], "input", "iifname eth0 limit rate over 12 mbytes/second burst 128 kbytes drop"
        ),
        _net008("h2 itself drops what it takes in above a rate", "nft delete rule"),
    ),
    _held_up(
        "TCP buffers of 4.5 KiB on one of three",
        lambda s: faults.set_up(
            s["h2"],
            f'sysctl -w net.ipv4.tcp_rmem="{_SMALL}" net.ipv4.tcp_wmem="{_SMALL}"',
            f"sysctl -w net.ipv4.{_USUAL}",
        ),
        Expect(code="NET016", node="h2", words="bursts carried", remedy="sysctl -w net.ipv4.tcp_rmem"),
    ),
    _held_up(
        "a route to one peer by the card for management",
        _by_the_management_card,
        Expect(code="NET003", node="h2", device="mgmt0", words="and carries", remedy="ip route del"),
    ),
    _held_up(
        "a policy rule sends TCP to one peer through a tunnel",
        _by_a_tunnel,
        Expect(code="NET006", node="h2", device="vx0", words="by its vx0", remedy="ip rule del pref 50"),
        first="NET006 on the link h1 - h2",
    ),
    _held_up(
        "something else fills the link of a host",
        _a_foreign_stream,
        _net008("for others than this job", "ss -tnpi"),
        cure="",
    ),
    _sends_slowly("slow: one host sends slowly, 3 hosts", 3, "h2"),
    _sends_slowly("slow: one host sends slowly, 4 hosts", 4, "h3"),
    _sends_slowly("slow: one of two hosts sends slowly", 2, "h2", State.WARN),
    _rank_slowed("slow: a rank is stopped for 20 ms again and again", slowness.stuttering),
    _rank_slowed("slow: a rank has a fifth of a core", slowness.short_of_cpu),
)

"""Scenarios of nodes that do not reach node rank 0, or a peer, for a reason that lies in their own way there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ncclcheck.reports.judgement.findings import State
from tests.lab import Host, faults
from tests.lab.sshd import client_settings
from tests.lab.tools import ip
from tests.scenarios.scenario import Expect, Scenario, Scene, both

_WAIT = {"h1": ("--wait", "14"), "h2": ("--wait", "8"), "h3": ("--wait", "8")}
_BY_NAME = {name: (*wait, "--rdzv-endpoint", "h1:29500") for name, wait in _WAIT.items()}
_MISSING = Expect(code="RUN001", node="node rank 1", state=State.UNKNOWN)


def _join(name: str, fault: object, expect: Expect, **more: object) -> Scenario:
    """h2 does not reach node rank 0 on h1, and says why: there by a link-local address, or else by itself."""
    alone = expect.by == "h2"
    given = {
        "hosts": 2,
        "mgmt": False,
        "arguments": _WAIT,
        "exits": {"h1": (3,)} if alone else {},
        "also": () if alone else ("NET003", "NET005", "NET006", "NET011", "NET013", "NET014"),
        "cure": "admin",
        "seconds": 30.0,
    } | more
    expected = (_MISSING, expect) if alone else (expect,)
    return Scenario(name=name, launcher="join", fault=fault, expect=expected, **given)  # type: ignore[arg-type]


def _told(words: str, by: str = "h1", **more: object) -> Expect:
    return Expect(code="RUN010", node="h2", words=words, by=by, **more)  # type: ignore[arg-type]


@contextmanager
def _no_carrier(host: Host) -> Iterator[None]:
    """The cable is out: the switch's end is down."""
    ip(host.lab.switch("eth0"), f"link set {host.name} down")
    try:
        yield
    finally:
        ip(host.lab.switch("eth0"), f"link set {host.name} up")


def _bridge_port(host: Host) -> AbstractContextManager[None]:
    """eth0 became a port of a bridge, and its address stayed with it."""
    own = f"{host.address}/{host.length}"
    return faults.set_up(
        host,
        "ip link add br0 type bridge; ip link set eth0 master br0; ip link set br0 up",
        f"ip link del br0; ip addr replace {own} dev eth0",
    )


def _by_a_table(host: Host) -> AbstractContextManager[None]:
    """A VPN's policy rule leads the job's subnet into its device."""
    return faults.set_up(
        host,
        "ip link add tun7 type vxlan id 7 dstport 4789; ip addr add 172.30.0.9/32 dev tun7; ip link set tun7 up; "
        "ip route add default dev tun7 table 77; ip rule add to 10.77.0.0/24 lookup 77 pref 77",
        "ip rule del pref 77; ip link del tun7",
    )


def _by_default_of_a_vpn(host: Host) -> AbstractContextManager[None]:
    """In another subnet, and a VPN's route takes what should go to the router."""
    fault = faults.set_up(
        host,
        "ip link add tun7 type vxlan id 7 dstport 4789; ip addr add 172.30.0.9/32 dev tun7; ip link set tun7 up; "
        "ip route add 10.77.0.0/25 dev tun7",
        "ip link del tun7",
    )
    return both(faults.other_subnet(host, routed=True), fault)


@contextmanager
def _gateway(host: Host, gateway: str) -> Iterator[None]:
    """In another subnet, by a gateway that is not there."""
    with faults.other_subnet(host, routed=True):
        host.ip(f"route replace 10.77.0.0/24 via {gateway}")
        try:
            yield
        finally:
            host.ip(f"route replace 10.77.0.0/24 via {faults.ELSEWHERE}.1")


def _source(host: Host) -> AbstractContextManager[None]:
    """The route to the others names the address of another interface as the sender."""
    return faults.set_up(
        host,
        "ip link add dum0 type bridge; ip addr add 172.31.5.5/24 dev dum0; ip link set dum0 up; "
        "ip route replace 10.77.0.0/24 dev eth0 src 172.31.5.5",
        "ip route replace 10.77.0.0/24 dev eth0 src 10.77.0.22; ip link del dum0",
    )


@contextmanager
def _six(*hosts: Host) -> Iterator[None]:
    """Hosts with an address of IPv6, by which alone h1 is known."""
    for host in hosts:
        number = host.address.rsplit(".", 1)[1]
        host.ip(f"addr add 2001:db8:77::{number}/64 dev eth0 nodad")
    changes = [faults.names(host, h1="2001:db8:77::11") for host in hosts]
    try:
        with changes[0], changes[1]:
            yield
    finally:
        for host in hosts:
            host.run(["ip", "addr", "flush", "dev", "eth0", "scope", "global", "to", "2001:db8:77::/64"])


def _ipv6_off(scene: Scene) -> AbstractContextManager[object]:
    path = "/proc/sys/net/ipv6/conf/eth0/disable_ipv6"
    off = faults.set_up(scene["h2"], f"echo 1 >{path}", f"echo 0 >{path}")
    return both(_six(scene["h1"], scene["h2"]), off)


def _mute_dns(host: Host) -> AbstractContextManager[object]:
    """Names come from a server that does not answer."""
    before = "cp /etc/resolv.conf /etc/resolv.conf.was; cp /etc/nsswitch.conf /etc/nsswitch.conf.was; "
    fault = faults.set_up(
        host,
        before + "echo nameserver 10.77.0.53 >/etc/resolv.conf; "
        "sed -i 's/^hosts:.*/hosts: files dns/' /etc/nsswitch.conf",
        "mv /etc/resolv.conf.was /etc/resolv.conf; mv /etc/nsswitch.conf.was /etc/nsswitch.conf",
    )
    return both(fault, faults.names(host, h1=""))


@contextmanager
def _two_routers(host: Host) -> Iterator[None]:
    """Two next hops by the ports of each connection, and one of them is dead."""
    with faults.other_subnet(host, routed=True):
        there = f"10.77.0.0/24 nexthop via {faults.ELSEWHERE}.1 nexthop via {faults.ELSEWHERE}.250"
        setting = "/proc/sys/net/ipv4/fib_multipath_hash_policy"
        host.check(["sh", "-ec", f"echo 1 >{setting}; ip route replace {there}"])
        try:
            yield
        finally:
            host.run(["sh", "-c", f"echo 0 >{setting}; ip route replace 10.77.0.0/24 via {faults.ELSEWHERE}.1"])


def _deaf_to_itself(host: Host) -> AbstractContextManager[None]:
    return faults.filtered(host, "input", f"iifname lo ip daddr {host.address} drop")


OF_OWN_WAYS = (
    _join(
        "join: the cable of the node that joins is out",
        lambda s: _no_carrier(s["h2"]),
        _told("no carrier", by="h2", device="eth0", remedy="ethtool eth0"),
        also=("NET001", "NET002"),
        cure="",
    ),
    _join(
        "join: the address of a bridge's port",
        lambda s: _bridge_port(s["h2"]),
        _told("eth0 is a port of the bridge br0", device="eth0", remedy="ip addr flush dev eth0"),
    ),
    _join(
        "join: a policy rule of a VPN takes what is for node rank 0",
        lambda s: _by_a_table(s["h2"]),
        _told("by tun7, a tunnel, not by eth0", device="tun7", remedy="ip rule del pref 77"),
    ),
    _join(
        "join: a route of a VPN takes what is for the router",
        lambda s: _by_default_of_a_vpn(s["h2"]),
        _told("by tun7, a tunnel", device="tun7", remedy="ip route del 10.77.0.0/25 dev tun7"),
    ),
    _join(
        "join: a gateway that is not there",
        lambda s: _gateway(s["h2"], "10.77.9.250"),
        _told("10.77.9.250 on eth0 answers no ARP", device="eth0", remedy="ip neigh show 10.77.9.250"),
    ),
    _join(
        "join: the route names another sender",
        lambda s: _source(s["h2"]),
        _told("from 172.31.5.5, the address of dum0", device="eth0", remedy="src 10.77.0.22"),
    ),
    _join(
        "join: node rank 0 has a name of IPv6, and it is off here",
        _ipv6_off,
        _told("IPv6 is turned off on eth0", by="h2", device="eth0", remedy="disable_ipv6=0"),
        arguments=_BY_NAME,
        cure="",
    ),
    _join(
        "join: names of two hosts are swapped",
        lambda s: faults.names(s["h2"], h1="10.77.0.33", h3="10.77.0.11"),
        _told("h1 resolves on h2 to 10.77.0.33 (by /etc/hosts), an address of h3"),
        hosts=3,
        arguments=_BY_NAME,
        cure="",  # the other name's line stays wrong, and only its own machine can say so
    ),
    _join(
        "join: the name server does not answer",
        lambda s: _mute_dns(s["h2"]),
        _told("10.77.0.53 of /etc/resolv.conf does not answer this node", by="h2", remedy="ADDRESS"),
        arguments=_BY_NAME,
        cure="",
        seconds=40,
    ),
    Scenario(
        name="a policy rule of a VPN takes what is for the others",
        fault=lambda s: _by_a_table(s["h2"]),
        expect=(
            Expect(code="NET006", node="h2", device="tun7", words="not by eth0", remedy="ip rule del pref 77"),
        ),
        first="NET006 on h2",
        cure="admin",
    ),
    Scenario(
        name="the address of a bridge's port",
        fault=lambda s: _bridge_port(s["h2"]),
        expect=(Expect(code="NET006", node="h2", device="eth0", words="port of the bridge br0"),),
        first="NET006 on h2",
        cure="admin",
    ),
    Scenario(
        name="a gateway that is not there",
        fault=lambda s: _gateway(s["h2"], "10.77.9.250"),
        expect=(Expect(code="NET006", node="h2", device="eth0", words="10.77.9.250 on eth0 answers no ARP"),),
        first="NET006 on h2",
        cure="admin",
    ),
    Scenario(
        name="the route names another sender",
        fault=lambda s: _source(s["h2"]),
        expect=(
            Expect(code="NET006", node="h2", device="eth0", words="from 172.31.5.5", remedy="src 10.77.0.22"),
        ),
        first="NET006 on h2",
        cure="admin",
    ),
    Scenario(
        name="one of two next hops is dead",
        fault=lambda s: _two_routers(s["h2"]),
        expect=(Expect(code="NET006", node="h2", device="eth0", words="2 next hops, and 10.77.9.250 on eth0"),),
        first="NET006 on h2",
        cure="admin",
    ),
    Scenario(
        name="a host's own filter drops what it sends to itself",
        fault=lambda s: _deaf_to_itself(s["h2"]),
        expect=(
            Expect(code="NET006", node="h2", device="lo", words="its own address 10.77.0.22", remedy="lo accept"),
        ),
        first="NET006 on h2",
        cure="admin",
    ),
    Scenario(
        name="a card asks nobody for a MAC address",
        fault=lambda s: faults.set_up(s["h2"], "ip link set eth0 arp off", "ip link set eth0 arp on"),
        expect=(Expect(code="NET006", node="h2", device="eth0", words="ARP turned off", remedy="arp on"),),
        first="NET006 on h2",
        cure="admin",
    ),
    Scenario(
        name="a policy rule sends to one peer by the card for management",
        fault=lambda s: faults.set_up(
            s["h2"],
            "ip route add default dev mgmt0 table 100; ip rule add to 10.77.0.11 lookup 100 pref 50",
            "ip rule del pref 50; ip route flush table 100",
        ),
        expect=(
            Expect(code="NET003", node="h2", device="mgmt0", words="lookup 100", remedy="ip rule del pref 50",
                   state=State.WARN),
        ),
        also=("NET006",),
        exit_code=0,
        cure="admin",
        seconds=40.0,
    ),
    Scenario(
        name="the queue of listeners is short",
        fault=lambda s: faults.set_up(
            s["h2"],
            "sysctl -qw net.core.somaxconn=1 net.ipv4.tcp_syncookies=0",
            "sysctl -qw net.core.somaxconn=4096 net.ipv4.tcp_syncookies=1",
        ),
        expect=(
            Expect(code="NET006", node="h2", words="net.core.somaxconn = 1", remedy="net.core.somaxconn=4096",
                   state=State.WARN),
        ),
        exit_code=0,
        cure="admin",
        seconds=40.0,
    ),
    Scenario(
        name="ssh starts from an address that this host does not have",
        fault=lambda s: client_settings(s["h1"], "Host h2\n    BindAddress 10.1.2.3"),
        expect=(Expect(code="RUN001", node="h2", words="10.1.2.3 (BindAddress)", state=State.UNKNOWN),),
        exit_code=3,
        seconds=40.0,
    ),
    Scenario(
        name="ssh has a command of its own for a host",
        fault=lambda s: client_settings(s["h1"], "Host h2\n    RemoteCommand tmux"),
        expect=(Expect(code="RUN001", node="h2", words="RemoteCommand", state=State.UNKNOWN),),
        exit_code=3,
        seconds=40.0,
    ),
)  # fmt: skip

"""Scenarios of joins whose endpoint fails one node, which says so to node rank 0 by another address; of NAT.

And of the wires between nodes that carry a part of the connections, or one direction."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ncclcheck.reports.judgement.findings import State
from tests.lab import Host, faults
from tests.lab.tools import ip, tool
from tests.scenarios.scenario import ALL, Expect, Scenario, Scene, both

_WAIT = {ALL: ("--wait", "30")}
_BY_NAME = {ALL: ("--wait", "30", "--rdzv-endpoint", "h1:29500")}
_CODES = {"exits": {"h2": (1,), "h3": (1,)}}


def _join(name: str, fault: object, expect: Expect, **more: object) -> Scenario:
    """One node's way to the endpoint fails; h1 names the cause."""
    given = {
        "hosts": 3,
        "arguments": _BY_NAME,
        "cure": "admin",
        "seconds": 40.0,
        "first": f"{expect.code} on {expect.node}",
    } | more
    return Scenario(name=name, launcher="join", fault=fault, expect=(expect,), **given)  # type: ignore[arg-type]


@contextmanager
def _program(host: Host, *argv: str) -> Iterator[None]:
    """A program that runs beside the job."""
    running = host.start(list(argv))
    try:
        time.sleep(0.5)
        yield
    finally:
        running.kill()
        running.wait(5)


# Answers every question for an address of IPv4 with the same one.
_WILDCARD = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind((sys.argv[1], 53))
while True:
    asked, who = sock.recvfrom(4096)
    end = asked.index(b"\\0", 12) + 5
    kind = asked[end - 4 : end - 2]
    flags, count = (b"\\x85\\x80", b"\\0\\1") if kind == b"\\0\\1" else (b"\\x85\\x80", b"\\0\\0")
    answer = b"\\xc0\\x0c" + kind + b"\\0\\1\\0\\0\\0\\x3c\\0\\4" + socket.inet_aton(sys.argv[2])
    head = asked[:2] + flags + b"\\0\\1" + count + b"\\0\\0\\0\\0"
    sock.sendto(head + asked[12:end] + (answer if count[1] else b""), who)
"""


def _wildcard(scene: Scene) -> AbstractContextManager[None]:
    """h2 lacks the line of h1, and its DNS knows every name."""
    h1, h2 = scene["h1"], scene["h2"]
    assert h1.mgmt is not None
    before = "cp /etc/resolv.conf /etc/resolv.conf.was; cp /etc/nsswitch.conf /etc/nsswitch.conf.was; "
    dns = faults.set_up(
        h2,
        before + f"echo nameserver {h1.mgmt} >/etc/resolv.conf; echo search corp.example >>/etc/resolv.conf; "
        "sed -i 's/^hosts:.*/hosts: files dns/' /etc/nsswitch.conf",
        "mv /etc/resolv.conf.was /etc/resolv.conf; mv /etc/nsswitch.conf.was /etc/nsswitch.conf",
    )
    server = _program(h1, sys.executable, "-c", _WILDCARD, h1.mgmt, "10.77.0.200")
    return both(both(server, dns), faults.names(h2, h1=""))


def _published(host: Host) -> AbstractContextManager[None]:
    """Docker's rule for a container that is not there any more."""
    return faults.set_up(
        host,
        "nft 'add table ip dock; add chain ip dock c { type nat hook prerouting priority -100; }; "
        "add rule ip dock c iifname eth0 tcp dport 29500 dnat to 172.17.0.9:29500'; "
        "ip link add dock0 type bridge; ip addr add 172.17.0.1/16 dev dock0; ip link set dock0 up; "
        "echo 1 >/proc/sys/net/ipv4/ip_forward",
        "nft delete table ip dock; ip link del dock0; echo 0 >/proc/sys/net/ipv4/ip_forward",
    )


def _compose(host: Host) -> AbstractContextManager[None]:
    """docker compose took a subnet within the cluster's."""
    return faults.set_up(
        host,
        "ip link add br-7f3a type bridge; ip addr add 10.77.0.1/25 dev br-7f3a; ip link set br-7f3a up",
        "ip link del br-7f3a",
    )


@contextmanager
def _another_vlan(host: Host) -> Iterator[None]:
    """Its port of the switch is in a bridge of its own."""
    switch = host.lab.switch("eth0")
    ip(switch, f"link set {host.name} nomaster", "link add vlan20 type bridge", "link set vlan20 up",
       f"link set {host.name} master vlan20")  # fmt: skip
    for member in host.lab.hosts:
        member.ip("neigh flush all")
    try:
        yield
    finally:
        ip(switch, f"link set {host.name} master switch", "link del vlan20")


@contextmanager
def six(*hosts: Host) -> Iterator[None]:
    """All hosts are known by addresses of IPv6 alone."""
    known = {host.name: f"fd00:77::{host.address.rsplit('.', 1)[1]}" for host in hosts}
    for host in hosts:
        host.ip(f"addr add {known[host.name]}/64 dev eth0 nodad")
    kept = {host.name: (host.etc / "hosts").read_text() for host in hosts}
    try:
        for host in hosts:
            lines = kept[host.name]
            for other in hosts:
                lines = lines.replace(f"{other.address} {other.name}\n", f"{known[other.name]} {other.name}\n")
            (host.etc / "hosts").write_text(lines)
        yield
    finally:
        for host in hosts:
            (host.etc / "hosts").write_text(kept[host.name])
            host.run(["ip", "addr", "flush", "dev", "eth0", "scope", "global", "to", "fd00:77::/64"])


def _no_neighbours(scene: Scene) -> AbstractContextManager[object]:
    """h2's firewall drops ICMP as of old, of IPv6 too."""
    drop = faults.filtered(scene["h2"], "input", "iifname eth0 meta l4proto ipv6-icmp drop")
    return both(six(*scene.lab.hosts), drop)


@contextmanager
def _behind_nat(host: Host) -> Iterator[None]:
    """The host's part runs in a container on a private bridge of a machine that has the host's address."""
    switch, outer = host.lab.switch("eth0"), f"{host.namespace}-nat"
    names = (host.etc / "hosts").read_text()
    tool(["ip", "netns", "add", outer])
    try:
        ip(switch, f"link set {host.name} nomaster", f"link del {host.name}",
           f"link add {host.name} type veth peer name up0 netns {outer}",
           f"link set {host.name} master switch", f"link set {host.name} up")  # fmt: skip
        ip(outer, f"addr add {host.address}/24 dev up0", "link set up0 up",
           f"link add br0 type veth peer name eth0 netns {host.namespace}",
           "addr add 10.0.3.1/24 dev br0", "link set br0 up")  # fmt: skip
        tool(["ip", "netns", "exec", outer, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])
        rule = "table ip n { chain c { type nat hook postrouting priority 100; oifname up0 masquerade; }; }\n"
        tool(["ip", "netns", "exec", outer, "nft", "-f", "-"], text=rule)
        host.ip("addr add 10.0.3.2/24 dev eth0", "link set eth0 up", "route add default via 10.0.3.1")
        (host.etc / "hosts").write_text(names.replace(f"{host.address} {host.name}\n", f"10.0.3.2 {host.name}\n"))
        yield
    finally:
        (host.etc / "hosts").write_text(names)
        tool(["ip", "netns", "del", outer])
        time.sleep(0.5)
        ip(switch, f"link add {host.name} type veth peer name eth0 netns {host.namespace}",
           f"link set {host.name} master switch", f"link set {host.name} up")  # fmt: skip
        host.ip(f"addr add {host.address}/24 dev eth0", "link set eth0 up")
        for member in host.lab.hosts:
            member.ip("neigh flush all")


@contextmanager
def _bridge_rule(lab_switch: str, rule: str, hook: str = "forward") -> Iterator[None]:
    """The switch drops some frames."""
    text = f"table bridge f {{ chain c {{ type filter hook {hook} priority 0; {rule}; }}; }}\n"
    tool(["ip", "netns", "exec", lab_switch, "nft", "-f", "-"], text=text)
    try:
        yield
    finally:
        tool(["ip", "netns", "exec", lab_switch, "nft", "delete", "table", "bridge", "f"])


@contextmanager
def _two_switches(scene: Scene) -> Iterator[None]:
    """h3 and h4 on a second switch, behind a trunk t0-t1."""
    switch = scene["h1"].lab.switch("eth0")
    ip(switch, "link add sw2 type bridge", "link set sw2 up", "link add t0 type veth peer name t1",
       "link set t0 master switch", "link set t1 master sw2", "link set t0 up", "link set t1 up",
       "link set h3 master sw2", "link set h4 master sw2")  # fmt: skip
    time.sleep(0.3)
    try:
        yield
    finally:
        ip(switch, "link set h3 master switch", "link set h4 master switch", "link del t0", "link del sw2")


def _dead_member(scene: Scene) -> AbstractContextManager[object]:
    """Of two members, by addresses and ports of TCP, one drops."""
    hashed = "jhash ip saddr . ip daddr . tcp sport . tcp dport mod 2 == 0"
    rule = f'oifname {{ "t0", "t1" }} meta l4proto tcp {hashed} drop'
    return both(_two_switches(scene), _bridge_rule(scene["h1"].lab.switch("eth0"), rule))


def _one_strand(scene: Scene) -> AbstractContextManager[None]:
    """What the switch sends to h2 is lost, what h2 sends arrives. It had not spoken to the others for a while."""
    scene["h2"].ip("neigh flush all")
    return _bridge_rule(scene["h1"].lab.switch("eth0"), 'oifname "h2" drop', "postrouting")


def _told(node: str, words: str, **more: object) -> Expect:
    return Expect(code="RUN010", node=node, words=words, **more)  # type: ignore[arg-type]


OF_JOINS = (
    _join(
        "join: DNS knows every name, and not the right address",
        _wildcard,
        _told("h2", "h1 resolves on h2 to 10.77.0.200 (by its name service), an address of no node", remedy="h1"),
        also=("NET013",),
        gate=False,
    ),
    _join(
        "join: a rule of docker on node 0 has the port",
        lambda s: _published(s["h1"]),
        _told("h1", "dport 29500 dnat to 172.17.0.9:29500", remedy="h1:29511"),
        cure="",
    ),
    _join(
        "join: a bridge of docker compose has a part of the subnet",
        lambda s: _compose(s["h3"]),
        _told("h3", "by br-7f3a, not by eth0", device="br-7f3a", remedy="ip addr del 10.77.0.1/25 dev br-7f3a"),
        also=("NET003", "NET011"),
        first="NET003 on h3",
        cure="",  # works; that NCCL would take the bridge as well (NET014) is another thing
    ),
    _join(
        "join: the port of the switch is in another VLAN",
        lambda s: _another_vlan(s["h3"]),
        _told("h3", "no machine on eth0 answers for 10.77.0.11", remedy="its VLAN"),
        also=("NET006",),
        first="NET006 on h3",
        cure="",
    ),
    _join(
        "join: another VLAN, and no other network",
        lambda s: _another_vlan(s["h3"]),
        Expect(
            code="RUN001",
            node="node rank 2",
            state=State.UNKNOWN,
            words="that node alone knows why",
            remedy="--wait 10",
        ),
        mgmt=False,
        exit_code=3,
        first="",
        cure="",
        seconds=60.0,
    ),
    _join(
        "join: a bridge of docker compose, and no other network",
        lambda s: _compose(s["h3"]),
        _told("h3", "by br-7f3a, not by eth0", device="br-7f3a"),
        also=("NET003", "NET011"),
        mgmt=False,
        first="NET003 on h3",
        cure="",
    ),
    _join(
        "join: a firewall drops neighbour discovery",
        _no_neighbours,
        _told("h2", "its own packet filter drops ICMPv6", device="eth0", remedy="nd-neighbor-solicit"),
        also=("NET006",),
        first="NET006 on h2",
    ),
    _join(
        "join: the endpoint is an address of another node",
        lambda s: faults.set_up(
            s["h3"], "ip addr add 10.77.0.100/32 dev eth0", "ip addr del 10.77.0.100/32 dev eth0"
        ),
        Expect(code="RUN005", words="10.77.0.100 is an address of h3", remedy="--rdzv-endpoint 10.77.0.11:29500"),
        arguments={ALL: ("--wait", "30", "--rdzv-endpoint", "10.77.0.100:29500")},
        first="RUN005 on h1",
        cure="",
    ),
    _join(
        "join: a container behind NAT",
        lambda s: _behind_nat(s["h2"]),
        Expect(
            code="NET003", node="h2", words="behind NAT: it gives the others 10.0.3.2", remedy="--network host"
        ),
        mgmt=False,
        cure="",
    ),
    _join(
        "join: one member of the trunk between two switches is dead",
        _dead_member,
        Expect(code="NET006", words="between h[1-2] and h[3-4] a part of the connections is lost"),
        hosts=4,
        first="",
        cure="",
    ),
    Scenario(
        name="one strand of a fibre is broken",
        fault=_one_strand,
        expect=(Expect(code="NET006", node="h2", device="eth0", words="h2 is heard and hears nothing"),),
        first="NET006 on h2",
    ),
    Scenario(
        name="join: node 0 comes late",
        launcher="join",
        under={"h1": ("sh", "-c", 'sleep 14; exec "$@"', "sh")},
        arguments=_BY_NAME,
        exit_code=0,
        seconds=60.0,
    ),
)

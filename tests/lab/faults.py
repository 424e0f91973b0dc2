"""One fault each: broken at the start of a `with`, mended at its end. Faults of the network are those of eth0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.lab.hosts import DATA, PYTHON, Host
from tests.lab.needs import need
from tests.lab.tools import ip, tool, until

ELSEWHERE = "10.77.9"
SHIM = Path(__file__).resolve().parent.parent / "data" / "clock_shift.c"
_LISTEN = "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1]))); time.sleep(3600)"


@contextmanager
def mtu(host: Host, size: int) -> Iterator[None]:
    """eth0 has this MTU, the switch's end keeps 1500. Without segmentation offload, which would hide it."""
    host.ip(f"link set eth0 mtu {size} gso_max_segs 1")
    try:
        yield
    finally:
        host.ip("link set eth0 mtu 1500 gso_max_segs 65535")


@contextmanager
def link_down(host: Host, device: str = "eth0") -> Iterator[None]:
    """An interface is down."""
    host.ip(f"link set {device} down")
    try:
        yield
    finally:
        host.ip(f"link set {device} up")


@contextmanager
def cut_off(host: Host, *devices: str) -> Iterator[None]:
    """Nothing comes or goes any more, and the host's own links look well. Without devices: all it has."""
    cables = devices or ("eth0", "mgmt0")[: 1 + bool(host.mgmt)]
    for device in cables:
        ip(host.lab.switch(device), f"link set {host.name} nomaster")
    try:
        yield
    finally:
        for device in cables:
            ip(host.lab.switch(device), f"link set {host.name} master switch")


@contextmanager
def readdressed(host: Host, address: str, length: int = 24) -> Iterator[None]:
    """eth0 has this address in place of its own, and its name resolves to it everywhere."""
    old, old_length = host.address, host.length
    _readdress(host, address, length)
    try:
        yield
    finally:
        _readdress(host, old, old_length)


def _readdress(host: Host, address: str, length: int) -> None:
    host.address, host.length = address, length
    host.ip("addr flush dev eth0 scope global", f"addr add {address}/{length} dev eth0")
    for other in host.lab.hosts:
        other.ip("neigh flush all")
    host.lab.write_names()


def wrong_prefix(host: Host, length: int = 28) -> AbstractContextManager[None]:
    """eth0's prefix length is wrong: with 28 it takes no other host for a neighbour (they have .11, .22, .33)."""
    return readdressed(host, host.address, length)


def duplicate_address(host: Host, other: Host) -> AbstractContextManager[None]:
    """eth0 has the address of another host's eth0."""
    return readdressed(host, other.address)


@contextmanager
def other_subnet(host: Host, routed: bool) -> Iterator[None]:
    """eth0 is in another subnet than those of the others; `routed`: a router on the switch joins the two."""
    with readdressed(host, f"{ELSEWHERE}.{host.address.rsplit('.', 1)[1]}"):
        if not routed:
            yield
            return
        others = [other for other in host.lab.hosts if other is not host]
        _route(host, others, "add")
        try:
            yield
        finally:
            _route(host, others, "del")


def _route(host: Host, others: list[Host], verb: str) -> None:
    switch = host.lab.switch("eth0")
    ip(switch, f"addr {verb} {DATA}.1/24 dev switch", f"addr {verb} {ELSEWHERE}.1/24 dev switch")
    settings = "cd /proc/sys/net/ipv4; echo 1 >ip_forward; echo 0 | tee conf/*/send_redirects"
    tool(["ip", "netns", "exec", switch, "sh", "-euc", settings])
    host.ip(f"route {verb} {DATA}.0/24 via {ELSEWHERE}.1")
    for other in others:
        other.ip(f"route {verb} {ELSEWHERE}.0/24 via {DATA}.1")


@contextmanager
def docker_bridge(*hosts: Host) -> Iterator[None]:
    """A bridge docker0 with the address that Docker gives it on every machine."""
    for host in hosts:
        host.ip("link add name docker0 type bridge", "addr add 172.17.0.1/16 dev docker0", "link set docker0 up")
    try:
        yield
    finally:
        for host in hosts:
            host.ip("link delete docker0")


@contextmanager
def names(host: Host, **changes: str) -> Iterator[None]:
    """Its /etc/hosts with other addresses for some names; an empty address takes the name out."""
    before = host.names()
    host.write_names({name: address for name, address in (before | changes).items() if address})
    try:
        yield
    finally:
        host.write_names(before)


def own_name_is_loopback(host: Host) -> AbstractContextManager[None]:
    """Its own name is at 127.0.1.1, as Debian's installer writes it."""
    return names(host, **{host.name: "127.0.1.1"})


def unresolvable(host: Host, peer: Host) -> AbstractContextManager[None]:
    """It does not know another host's name."""
    return names(host, **{peer.name: ""})


@contextmanager
def same_name(host: Host, other: Host) -> Iterator[None]:
    """It calls itself by another host's name."""
    host.check(["hostname", other.name])
    try:
        yield
    finally:
        host.check(["hostname", host.name])


@contextmanager
def drop_high_ports(host: Host, way: str = "in") -> Iterator[None]:
    """A firewall drops new TCP connections to ports from 1024 on: `in`, `out`, or `both`."""
    rule = "tcp dport 1024-65535 tcp flags & (syn|ack) == syn drop"
    hooks = {"in": [("input", "iifname")], "out": [("output", "oifname")]}
    chains = [
        f"chain {hook} {{\n type filter hook {hook} priority 0\n {match} eth0 {rule}\n}}"
        for hook, match in (hooks[way] if way in hooks else hooks["in"] + hooks["out"])
    ]
    with _table(host, "lab_ports", chains):
        yield


@contextmanager
def loss(host: Host, percent: int) -> Iterator[None]:
    """This share of the packets that come in on eth0 is lost."""
    rule = f"iifname eth0 numgen random mod 100 < {percent} drop"
    with _table(host, "lab_loss", [f"chain input {{\n type filter hook input priority 0\n {rule}\n}}"]):
        yield


@contextmanager
def _table(host: Host, name: str, chains: list[str]) -> Iterator[None]:
    need("nft")
    inside = ["nsenter", f"--net=/run/netns/{host.namespace}", "nft", "-f", "-"]
    tool(inside, text="table inet " + name + " {\n" + "\n".join(chains) + "\n}\n")
    try:
        yield
    finally:
        tool(inside, text=f"delete table inet {name}\n")


@contextmanager
def limited(host: Host, rate: str = "100mbit") -> Iterator[None]:
    """eth0 sends no faster than this (tc's words); what it receives is not limited."""
    need("tc")
    qdisc = ["tc", "-n", host.namespace, "qdisc"]
    tool([*qdisc, "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256kbit", "latency", "400ms"])
    try:
        yield
    finally:
        tool([*qdisc, "del", "dev", "eth0", "root"])


@contextmanager
def clock(host: Host, seconds: int) -> Iterator[None]:
    """Its wall clock is ahead (negative: behind) for every process started from now on, by whatever way."""
    need("gcc")
    shim = host.lab.folder / "clock_shift.so"
    if not shim.exists():
        tool(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(shim), str(SHIM)], seconds=30)
    (host.etc / "clock_shift").write_text(f"{seconds}\n")
    (host.etc / "ld.so.preload").write_text(f"{shim}\n")
    try:
        yield
    finally:
        (host.etc / "ld.so.preload").unlink()


@contextmanager
def listener(host: Host, port: int) -> Iterator[int]:
    """A process that holds a port, lets others connect, and never says a word; its process number."""
    process = host.start([*PYTHON, "-c", _LISTEN, str(port)])
    until(f"{host.name} listens on {port}", lambda: bool(host.check(["ss", "-Hltn", f"sport = {port}"])))
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def own_directory(path: Path, *hosts: Host) -> Iterator[None]:
    """A directory, in place of which each of these hosts has one of its own; at the end nothing is in any."""
    path.mkdir()
    for host in hosts:
        host.check(["mount", "-t", "tmpfs", "tmpfs", str(path)])
    try:
        yield
        for host in hosts:
            assert not host.check(["ls", "-A", str(path)])
    finally:
        for host in hosts:
            host.check(["umount", str(path)])
        path.rmdir()


@contextmanager
def replaced(host: Host, path: Path, by: Path) -> Iterator[None]:
    """In this host alone, a file or folder is another one: another version of a package, or an empty folder."""
    host.check(["mount", "--bind", str(by), str(path)])
    try:
        yield
    finally:
        host.check(["umount", "--lazy", str(path)])

"""One fault each: broken at the start of a `with`, mended at its end. Faults of the network are those of eth0."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
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


def flap(host: Host, seconds: float, times: int = 1, device: str = "eth0") -> None:
    """An interface goes down and comes back, so many times."""
    for _ in range(times):
        with link_down(host, device):
            time.sleep(seconds)
        time.sleep(seconds)


def frozen(host: Host, seconds: float) -> None:
    """Everything on the host stands still for a while, as in a virtual machine that is paused."""
    pids = host.pids()
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(seconds)


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
def no_route(host: Host) -> Iterator[None]:
    """As in another subnet with a router between, but this host has lost its route to the others."""
    with other_subnet(host, routed=True):
        host.ip(f"route del {DATA}.0/24")
        try:
            yield
        finally:
            host.ip(f"route replace {DATA}.0/24 via {ELSEWHERE}.1")


@contextmanager
def stray_route(host: Host, route: str, rp_filter: int = 1) -> Iterator[None]:
    """A forgotten route leads to a part of eth0's subnet, and what comes in against it is dropped as forged."""
    setting = "/proc/sys/net/ipv4/conf/eth0/rp_filter"
    host.check(["sh", "-c", f"echo {rp_filter} >{setting}"])
    host.ip(f"route add {route}")
    try:
        yield
    finally:
        host.check(["sh", "-c", f"ip route del {route} 2>&-; echo 0 >{setting}"])


@contextmanager
def same_mac(host: Host, other: Host) -> Iterator[None]:
    """eth0 has the MAC address of another host's eth0."""
    read = ["cat", "/sys/class/net/eth0/address"]
    own = host.check(read).strip()
    host.ip(f"link set dev eth0 address {other.check(read).strip()}")
    try:
        yield
    finally:
        host.ip(f"link set dev eth0 address {own}")


@contextmanager
def written_neighbour(host: Host, peer: Host, mac: str = "02:00:00:00:00:99") -> Iterator[None]:
    """A permanent neighbour entry sends what is for the peer to a machine that is not there."""
    host.ip(f"neigh replace {peer.address} lladdr {mac} dev eth0 nud permanent")
    try:
        yield
    finally:
        host.ip("neigh flush dev eth0 nud permanent")


@contextmanager
def too_wide(host: Host, far: Host) -> Iterator[None]:
    """eth0 has a /8, so that it takes `far`, in another subnet behind a router, for a neighbour on its wire.

    The lab has one wire: `far` answers ARP to its own subnet alone (arp_ignore 2), as if the router were between.
    """
    with other_subnet(far, routed=True), _deaf_to_others(far):
        there, own = f"{ELSEWHERE}.0/24 via {DATA}.1", f"{host.address}/{host.length}"
        host.ip(f"addr add {host.address}/8 dev eth0", f"addr del {own} dev eth0", f"route del {there}")
        host.ip(f"route add default via {DATA}.1")
        try:
            yield
        finally:
            host.ip("addr flush dev eth0 scope global", f"addr add {own} dev eth0", f"route add {there}")


@contextmanager
def _deaf_to_others(host: Host) -> Iterator[None]:
    setting = "/proc/sys/net/ipv4/conf/eth0/arp_ignore"
    host.check(["sh", "-c", f"echo 2 >{setting}"])
    try:
        yield
    finally:
        host.check(["sh", "-c", f"echo 0 >{setting}"])


@contextmanager
def set_up(host: Host, do: str, undo: str) -> Iterator[None]:
    """A shell's commands on a host, and those that take them back; the fix may have done so before."""
    host.check(["sh", "-ec", do])
    try:
        yield
    finally:
        host.run(["sh", "-c", undo])


def refusing_rule(host: Host, destination: str, action: str = "prohibit") -> AbstractContextManager[None]:
    """A policy rule refuses what this host sends there."""
    return set_up(host, f"ip rule add to {destination} {action} pref 100", "ip rule del pref 100")


def refusing_route(host: Host, destination: str, kind: str = "blackhole") -> AbstractContextManager[None]:
    """A route refuses what this host sends there."""
    return set_up(host, f"ip route add {kind} {destination}", f"ip route del {kind} {destination}")


def filtered(host: Host, hook: str, rule: str) -> AbstractContextManager[None]:
    """A rule of this host's own packet filter."""
    chain = f"add chain inet lab_own c {{ type filter hook {hook} priority 0; }}"
    lines = f"add table inet lab_own\n{chain}\nadd rule inet lab_own c {rule}\n"
    return set_up(host, f"printf '{lines}' | nft -f -", "nft delete table inet lab_own")


@contextmanager
def two_addresses(host: Host, first: str) -> Iterator[None]:
    """eth0 has another address before its own."""
    own = f"{host.address}/{host.length}"
    host.ip("addr flush dev eth0 scope global", f"addr add {first} dev eth0", f"addr add {own} dev eth0")
    try:
        yield
    finally:
        host.ip("addr flush dev eth0 scope global", f"addr add {own} dev eth0")


@contextmanager
def other_cable(host: Host, address: str) -> Iterator[None]:
    """A second interface, on a wire to nowhere, has an address in eth0's subnet, and its route comes first."""
    far = host.lab.switch("eth0")
    host.ip(f"link add name eth1 type veth peer name {host.name}x netns {far}")
    ip(far, f"link set {host.name}x up")
    host.ip("link set eth1 up", f"addr add {address} dev eth1")
    own = f"{DATA}.0/24 dev eth0 proto kernel scope link src {host.address}"
    host.ip(f"route del {own}", f"route append {own}")
    try:
        yield
    finally:
        host.ip("link delete eth1")


@contextmanager
def bridge(name: str, address: str, *hosts: Host) -> Iterator[None]:
    """A bridge that leads nowhere, with this address."""
    for host in hosts:
        host.ip(f"link add name {name} type bridge", f"addr add {address} dev {name}", f"link set {name} up")
    try:
        yield
    finally:
        for host in hosts:
            host.ip(f"link delete {name}")


def docker_bridge(*hosts: Host) -> AbstractContextManager[None]:
    """A bridge docker0 with the address that Docker gives it on every machine."""
    return bridge("docker0", "172.17.0.1/16", *hosts)


@contextmanager
def port_range(host: Host, first: int, last: int) -> Iterator[None]:
    """The ports that the kernel gives to whoever does not ask for one."""
    path = "/proc/sys/net/ipv4/ip_local_port_range"
    host.run(["sh", "-c", f"echo {first} {last} > {path}"])
    try:
        yield
    finally:
        host.run(["sh", "-c", f"echo 32768 60999 > {path}"])


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
def drop_tcp(host: Host) -> Iterator[None]:
    """All TCP that comes in on eth0 is dropped, also of connections that stand."""
    rule = "iifname eth0 meta l4proto tcp drop"
    with _table(host, "lab_tcp", [f"chain input {{\n type filter hook input priority 0\n {rule}\n}}"]):
        yield


@contextmanager
def ipv6_dropped(host: Host, lost: bool = True) -> Iterator[None]:
    """Names resolve to an address of IPv6 first on all hosts, and this one drops TCP that comes in over it."""
    hosts = host.lab.hosts
    six = {host.name: f"2001:db8:77::{host.address.rsplit('.', 1)[1]}" for host in hosts}
    before = (host.etc / "hosts").read_text()
    for member in hosts:
        member.ip(f"addr add {six[member.name]}/64 dev eth0 nodad")
        names = "".join(f"{address} {name}\n" for name, address in six.items())
        (member.etc / "hosts").write_text(names + before)
    rule = "iifname eth0 meta nfproto ipv6 meta l4proto tcp drop" if lost else "counter"
    try:
        with _table(host, "lab_six", [f"chain input {{\n type filter hook input priority 0\n {rule}\n}}"]):
            yield
    finally:
        for member in hosts:
            member.ip(f"addr del {six[member.name]}/64 dev eth0")
        host.lab.write_names()


@contextmanager
def loss(host: Host, percent: int, source: Host | None = None) -> Iterator[None]:
    """This share of the packets that come in on eth0 is lost; source: of those that come from this host alone."""
    sent_by = f"ip saddr {source.address} " if source else ""
    chance = f"numgen random mod 100 < {percent} " if percent < 100 else ""
    rule = f"iifname eth0 {sent_by}{chance}drop"
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
def black_hole(host: Host, way: str = "both", over: int = 1400, device: str = "eth0") -> Iterator[None]:
    """Larger packets are lost on the path, `in` to the host, `out` of it or both, and no router says so.

    Without segmentation offload on any host: as on a real wire, a packet is never larger than its sender made it.
    """
    hooks = {"in": [("input", "iifname")], "out": [("output", "oifname")]}
    chains = [
        f"chain {hook} {{\n type filter hook {hook} priority 0\n {match} {device} meta length > {over} drop\n}}"
        for hook, match in hooks.get(way, hooks["in"] + hooks["out"])
    ]
    for member in host.lab.hosts:
        member.ip(f"link set {device} gso_max_segs 1")
    try:
        with _table(host, "lab_black_hole", chains):
            yield
    finally:
        for member in host.lab.hosts:
            member.ip(f"link set {device} mtu 1500 gso_max_segs 65535")


@contextmanager
def few_connections(host: Host, per_second: int = 1) -> Iterator[None]:
    """A firewall lets so few new TCP connections in on eth0, and drops the rest without a word."""
    rule = f"iifname eth0 tcp flags & (syn|ack) == syn limit rate over {per_second}/second drop"
    with _table(host, "lab_syn", [f"chain input {{\n type filter hook input priority 0\n {rule}\n}}"]):
        yield


@contextmanager
def limited(host: Host, rate: str = "100mbit", interface: str = "eth0") -> Iterator[None]:
    """It sends no faster than this (tc's words); what it receives is not limited."""
    need("tc")
    qdisc = ["tc", "-n", host.namespace, "qdisc"]
    tool([*qdisc, "add", "dev", interface, "root", "tbf", "rate", rate, "burst", "256kbit", "latency", "400ms"])
    try:
        yield
    finally:
        tool([*qdisc, "del", "dev", interface, "root"])


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
def read_only(host: Host, path: Path) -> Iterator[None]:
    """In this host alone, nothing can be written below a folder."""
    host.check(["mount", "--bind", str(path), str(path)])
    host.check(["mount", "-o", "remount,ro,bind", str(path)])
    try:
        yield
    finally:
        host.check(["umount", str(path)])


@contextmanager
def replaced(host: Host, path: Path, by: Path) -> Iterator[None]:
    """In this host alone, a file or folder is another one: another version of a package, or an empty folder."""
    host.check(["mount", "--bind", str(by), str(path)])
    try:
        yield
    finally:
        host.check(["umount", "--lazy", str(path)])


@contextmanager
def connections_limited(hosts: Sequence[Host], most: int) -> Iterator[None]:
    """So many connections to ephemeral ports of others may be opened on each host, and be there; more are dropped.

    Beside the two that each host but the first has to the stores of a job on the first one.
    """
    with ExitStack() as stack:
        for number, host in enumerate(hosts):
            allowed = most + 2 * (number > 0)
            rule = f"oifname eth0 tcp dport 32768-60999 ct state new ct count over {allowed} drop"
            stack.enter_context(filtered(host, "output", rule))
        yield


@contextmanager
def flows_limited(host: Host, each_kbit: float, all_kbit: float, most: int = 64) -> Iterator[None]:
    """Each TCP connection sends no faster than this over eth0, and all of them together no faster than that.

    most: connections that share no limit with another one; each takes the next class as it first sends.
    """
    need("tc")
    qdisc, whole = ["tc", "-n", host.namespace, "qdisc"], "1:fff"
    bucket = ["burst", "4kb", "cburst", "4kb"]
    made = ["tc", "-n", host.namespace, "class", "add", "dev", "eth0", "parent"]
    tool([*qdisc, "add", "dev", "eth0", "root", "handle", "1:", "htb"])
    try:
        tool([*made, "1:", "classid", whole, "htb", "rate", f"{all_kbit:.0f}kbit", *bucket])
        for number in range(1, most + 1):
            limit = ["rate", "8kbit", "ceil", f"{each_kbit:.0f}kbit", "quantum", "1514"]
            tool([*made, whole, "classid", f"1:{number:x}", "htb", *limit, *bucket])
        classes = ", ".join(f"{number} : 1:{number:x}" for number in range(1, most + 1))
        hook = "type filter hook postrouting priority 0"
        first = f"oifname eth0 meta l4proto tcp ct mark 0 ct mark set numgen inc mod {most} offset 1"
        every = f"oifname eth0 meta l4proto tcp meta priority set ct mark map {{ {classes} }}"
        with _table(host, "lab_flows", [f"chain out {{\n {hook}\n {first}\n {every}\n}}"]):
            yield
    finally:
        tool([*qdisc, "del", "dev", "eth0", "root"])

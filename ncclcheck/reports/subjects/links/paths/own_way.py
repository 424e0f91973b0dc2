"""Why a node does not reach an address, by what its own kernel says of the way there: one place for all links.

A failed connection alone is a symptom. Here stands what explains it from this side: the device and the source that
the route really gives, the next hop that does not answer, an address that the kernel does not use.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import (
    Address,
    Cluster,
    Filter,
    Hop,
    Interface,
    KernelRoute,
    Node,
    Unread,
    at,
    replace,
    value_or,
)
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, Where, admin, fail, seen, you
from ncclcheck.reports.subjects.links import flapping
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.reached import Pair, Reached
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names

_WHY = "Packets for this address never arrive, and nobody says so: ranks wait for each other, for half an hour."
_UNANSWERED = ("failed", "incomplete")
_ON_A_WIRE = ("physical", "bond", "vlan", "bridge", "veth")  # kinds that find each other by ARP
_KINDS = {"bridge": "a bridge without a card", "tunnel": "a tunnel", "virtual": "a device without a wire"}


@dataclass(frozen=True)
class WayCause:
    """In words that go on after "to X: ", the device that it is about, and what removes it."""

    words: str
    device: str
    fix: tuple[Remedy, ...]


def shown(way: KernelRoute) -> str:
    """About as `ip route get` prints it, with the neighbour entries of its next hops."""
    if not way.hops:
        return f"{way.kind or 'no route'} {way.address}: {way.error or way.kind}"
    hops = "; ".join(
        (f"via {hop.address} " if hop.address != way.address else "")
        + f"dev {hop.interface}"
        + (f", {hop.address} {hop.state.upper()}" if hop.state else "")
        for hop in way.hops
    )
    table = f" table {way.table}" if way.table not in ("main", "local", "") else ""
    return f"{way.address} {hops}, src {way.source or 'none'}, by {way.destination}{table}"


def evidence(node: Node, way: KernelRoute) -> Evidence:
    """The kernel's own words."""
    return seen(f"ip route get {way.address} on {node.name}", shown(way))


def cause(node: Node, way: KernelRoute) -> WayCause | None:
    """The first thing on this node that explains why nothing comes back from an address."""
    return next((reason for explain in _CAUSES if (reason := explain(node, way))), None)


def findings(cluster: Cluster, reached: Reached, bad: Collection[Pair]) -> Iterator[tuple[Finding, set[Pair]]]:
    """One a node and cause, with the pairs that it explains."""
    nodes = {node.name: node for node in cluster.nodes}
    by_cause: dict[tuple[str, str], list[tuple[Pair, WayCause, KernelRoute]]] = {}
    for pair in sorted(bad):
        way = reached.seen[pair].way
        if isinstance(way, KernelRoute) and (reason := cause(nodes[pair[0]], way)):
            by_cause.setdefault((pair[0], reason.device), []).append((pair, reason, way))
    for (name, device), all_of_it in by_cause.items():
        (first, reason, way), pairs = all_of_it[0], {pair for pair, _, _ in all_of_it}
        peers = fold_names(sorted(peer for _, peer in pairs))
        connect = reached.connects.get(first)
        outcome = (connect.detail or connect.outcome) if connect else "not finished in time"
        always = "always " if connect and connect.outcome == "ok" else ""
        yield (
            fail(
                Where(node=name, device=device, peer=first[1] if len(pairs) == 1 else None),
                f"{name} does not {always}reach {peers}: {reason.words}",
                why=_WHY,
                owner="node",
                evidence=[evidence(nodes[name], way), seen(f"TCP connect from {name} to {first[1]}", outcome)],
                fix=list(reason.fix),
            ),
            pairs,
        )


def half_lost(reached: Reached) -> set[Pair]:
    """Pairs that connect, but not every time: their route has several next hops, and one does not answer."""
    return {
        pair
        for pair, peer in reached.seen.items()
        if isinstance(peer.way, KernelRoute) and len(peer.way.hops) > 1 and any(map(_is_silent, peer.way.hops))
    }


def without_volleys(reached: Reached, pairs: Collection[Pair]) -> Reached:
    """The same without what the connections opened at once tell of these pairs: answers take such a way too."""
    both = {*pairs, *((b, a) for a, b in pairs)}
    dead = Unread("absent", "a dead next hop explains it")
    return Reached(
        reached.of_node,
        {pair: replace(peer, volley=dead) if pair in both else peer for pair, peer in reached.seen.items()},
    )


def _is_silent(hop: Hop) -> bool:
    return hop.state in _UNANSWERED


def _interfaces(node: Node) -> list[Interface]:
    return value_or(at(node, "network.interfaces"), [])


def _named(node: Node, name: str) -> list[Interface]:
    """An interface with its aliases: eth0 and eth0:1."""
    return [interface for interface in _interfaces(node) if interface.name.partition(":")[0] == name]


def _held(node: Node, device: str, version: int) -> list[tuple[Address, lan.IPNetwork]]:
    """The addresses of a device that are good beyond its wire, of one family."""
    return [
        (address, net) for interface in _named(node, device) for address, net in lan.global_networks(interface)
        if net.version == version
    ]  # fmt: skip


def _other_cards(node: Node, way: KernelRoute, taken: str) -> list[tuple[str, lan.IPNetwork]]:
    """Cards in whose subnet the address is, with that subnet, but the one that the kernel takes."""
    near = [
        (interface.name.partition(":")[0], net)
        for interface in _interfaces(node)
        if lan.is_usable(interface) and interface.kind not in ("loopback", *_KINDS)
        for _, net in lan.global_networks(interface)
        if _peer(way) in net
    ]
    return [pair for pair in near if pair[0] != taken]


def _peer(way: KernelRoute) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(way.address.partition("%")[0])
    except ValueError:  # a result from outside, which holds anything
        return ipaddress.ip_address(0)


def _ipv6_is_off(node: Node, way: KernelRoute) -> WayCause | None:
    """The address is one of IPv6, and this host has none for it is turned off."""
    off = [
        interface.name for interface in _interfaces(node) if interface.ipv6_off and interface.kind != "loopback"
    ]
    if _peer(way).version == 4 or not off or (way.hops and way.hops[0].interface not in off):
        return None
    device = next(
        (interface.name for interface in _interfaces(node) if interface.name in off and lan.is_usable(interface)),
        off[0],
    )
    setting = f"net.ipv6.conf.{device.replace('.', '/')}.disable_ipv6"
    return WayCause(
        f"IPv6 is turned off on {device} ({setting} = 1), and {way.address} is an address of IPv6",
        device,
        (
            you("Name node rank 0 by its address of IPv4, where it has one.", "ip -4 -br addr   # on node 0"),
            admin(
                "Turn IPv6 on, here and in /etc/sysctl.d. Addresses come back by router advertisements; where "
                "there are none, give it an address of that subnet.",
                f"sysctl -w net.ipv6.conf.all.disable_ipv6=0 {quote(setting)}=0   # on {node.name}",
            ),
        ),
    )


def _not_used(node: Node, way: KernelRoute) -> WayCause | None:
    """Its only address of that subnet failed duplicate address detection: the kernel never sends from it."""
    devices = {hop.interface for hop in way.hops} or {interface.name for interface in _interfaces(node)}
    addresses = [(device, own, net) for device in devices for own, net in _held(node, device, 6)]
    bad = [(device, own) for device, own, net in addresses if own.state and (_peer(way) in net or not way.hops)]
    good = {net for _, own, net in addresses if not own.state}
    if _peer(way).version == 4 or not bad or any(_peer(way) in net for net in good):
        return None
    device, address = bad[0]
    if address.state == "tentative":
        words = "is tentative: the kernel still looks whether another machine has it, and sends nothing from it"
    else:
        words = (
            "failed its duplicate address detection (dadfailed): another machine on this wire has it, and the "
            "kernel sends nothing from it"
        )
    name, whole = quote(device), f"{address.address}/{address.prefix}"
    return WayCause(
        f"its own address {address.address} on {device} {words}",
        device,
        (
            admin(
                "Take the address from the other machine, or give this one another; then let it look anew.",
                f"ip -6 addr show dev {name}   # on {node.name}",
                f"ip addr del {whole} dev {name} && ip addr add {whole} dev {name}   # on {node.name}",
            ),
        ),
    )


def _no_link(node: Node, way: KernelRoute) -> WayCause | None:
    """The route leads to a device that is down or has no carrier."""
    for hop in way.hops:
        for interface in _named(node, hop.interface):
            if False in (interface.up, interface.running) and not _is_inside(node, interface):
                state = "is down" if interface.up is False else "is up and has no link (no carrier)"
                return WayCause(
                    f"its route goes by {interface.name}, which {state}",
                    interface.name,
                    (flapping.bring_up(node, interface.name),),
                )
    return None


def _port_of_a_bridge(node: Node, way: KernelRoute) -> WayCause | None:
    """The device is a port of a bridge and has the address itself: what comes in is the bridge's."""
    for hop in way.hops:
        bridges = [interface for interface in _interfaces(node)
                   if interface.kind == "bridge" and hop.interface in value_or(interface.members, [])]  # fmt: skip
        addresses = _held(node, hop.interface, _peer(way).version)
        if bridges and addresses:
            bridge, port = quote(bridges[0].name), quote(hop.interface)
            moves = [
                *(
                    f"ip addr add {address.address}/{address.prefix} dev {bridge}   # on {node.name}"
                    for address, _ in addresses
                ),
                f"ip addr flush dev {port}   # on {node.name}",
            ]
            return WayCause(
                f"{hop.interface} is a port of the bridge {bridges[0].name} and has {addresses[0][0].address} "
                "itself: answers come in at the bridge, so what is sent by the port is never answered",
                hop.interface,
                (
                    admin(
                        "Give the address to the bridge, here and in the network configuration. Routes through "
                        "the port go with it; see them before.",
                        f"ip route show dev {port}   # on {node.name}",
                        f"ip link set dev {bridge} up   # on {node.name}",
                        *moves,
                    ),
                ),
            )
    return None


def _no_arp(node: Node, way: KernelRoute) -> WayCause | None:
    """The device asks nobody for a MAC address, on a wire where every machine has one."""
    for hop in way.hops:
        kinds = [value_or(interface.kind, "") for interface in _named(node, hop.interface)]
        if hop.state == "noarp" and kinds and kinds[0] in _ON_A_WIRE:
            name = quote(hop.interface)
            return WayCause(
                f"{hop.interface} has ARP turned off (flag NOARP), so that it sends to no machine's MAC address",
                hop.interface,
                (
                    admin(
                        "Turn it on, here and where it is set (`ip link set ... arp off`, ifcfg ARP=no).",
                        f"ip link set dev {name} arp on   # on {node.name}",
                    ),
                ),
            )
    return None


def another_device(node: Node, way: KernelRoute) -> WayCause | None:
    """The route leads by another device than the one in whose subnet the address is, or out of no card at all."""
    if not way.hops or not way.destination:
        return None
    taken = way.hops[0].interface
    if any(_peer(way) in net for _, net in _held(node, taken, _peer(way).version)):
        return None
    meant = _other_cards(node, way, taken)
    inside = [value_or(interface.kind, "") for interface in _named(node, taken)[:1] if _is_inside(node, interface)]
    if not meant and not inside:
        return None
    what = f"{taken}, {_KINDS[inside[0]]}" if inside else taken
    instead = f", not by {meant[0][0]}, in whose subnet {meant[0][1]} it is" if meant else ""
    line = _line(way, way.hops[0])
    rule = _rule(node, way)
    because = f"; its policy rule `{rule[1]}` leads to that table" if rule else ""
    see = you("See where packets for that address go.", f"ip route get {way.address}   # on {node.name}")
    text = "Take the rule away" if rule else "Take the route away"
    six = " -6" if _peer(way).version == 6 else ""
    command = f"ip{six} rule del pref {rule[0]}" if rule else f"ip{six} route del {line}"
    return WayCause(
        f"it goes by {what}{instead}: its route {line} takes it{because}",
        taken,
        (
            admin(f"{text}, here and where it is made (a VPN, docker, the network configuration).",
                  f"{command}   # on {node.name}"),
            see,
        ),
    )  # fmt: skip


def _another_card(node: Node, way: KernelRoute) -> WayCause | None:
    """Two cards are in the subnet, and on the wire of the one that the kernel takes nobody answers (NET011)."""
    if not way.hops or not unanswered(way):
        return None
    taken, version = way.hops[0].interface, _peer(way).version
    here = [(address, net) for address, net in _held(node, taken, version) if _peer(way) in net]
    meant = _other_cards(node, way, taken)
    if not here or not meant:
        return None
    whole, name = f"{here[0][0].address}/{here[0][0].prefix}", quote(taken)
    alone = len([address for six in (4, 6) for address in _held(node, taken, six)]) == 1
    down = [f"ip link set dev {name} down   # on {node.name}"] if alone else []
    return WayCause(
        f"it goes by {taken}, whose address {whole} is in the subnet {meant[0][1]} of {meant[0][0]} too, and no "
        f"machine on {taken} answers",
        taken,
        (
            admin(
                f"Take that address away, here and in the network configuration, or plug {taken} into the network "
                f"of {meant[0][0]}. Other programs that use it lose it; undo: ip link set up, ip addr add.",
                f"ip addr del {quote(whole)} dev {name}   # on {node.name}",
                *down,
            ),
        ),
    )


def _is_inside(node: Node, interface: Interface) -> bool:
    """Whether it is a tunnel, or leads to no card of this node."""
    return value_or(interface.kind, "") in _KINDS and not lan.is_real(interface, _interfaces(node))


def _line(way: KernelRoute, hop: Hop, gateway: str = "") -> str:
    """The route as ip-route(8) takes it."""
    to = "default" if way.destination in ("0.0.0.0/0", "::/0") else way.destination
    by = gateway or (hop.address if hop.address != way.address else "")
    via = f" via {quote(by)}" if by else ""
    table = f" table {quote(way.table)}" if way.table not in ("main", "") else ""
    metric = f" metric {way.metric}" if way.metric else ""
    return f"{quote(to)}{via} dev {quote(hop.interface)}{table}{metric}"


def _rule(node: Node, way: KernelRoute) -> tuple[int, str] | None:
    """The policy rule that leads to the table of the route; none for the main one."""
    if way.table in ("main", "local", "default", ""):
        return None
    version = _peer(way).version
    rules = [rule for rule in value_or(at(node, "network.rules"), [])
             if rule.version == version and rule.action == f"lookup {way.table}"]  # fmt: skip
    fits = [rule for rule in rules if not rule.destination or _in(rule.destination, way)]
    return (fits[0].priority, f"{fits[0].selector} {fits[0].action}") if fits else None


def _in(network: str, way: KernelRoute) -> bool:
    try:
        return _peer(way) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _wrong_source(node: Node, way: KernelRoute) -> WayCause | None:
    """The route names the address of another interface as the sender, where answers do not come back to."""
    if not way.hops or not way.source:
        return None
    device, version = way.hops[0].interface, _peer(way).version
    own = _held(node, device, version)
    if not own or way.source in {address.address for address, _ in own}:
        return None
    holders = [
        interface.name for interface in _interfaces(node)
        if interface.kind != "loopback"
        and way.source in {address.address for address in value_or(interface.addresses, [])}
    ]  # fmt: skip
    if not holders or len(way.hops) > 1:
        return None
    six = " -6" if version == 6 else ""
    return WayCause(
        f"it is sent by {device} from {way.source}, the address of {holders[0]}: its route "
        f"{_line(way, way.hops[0])} says so (src), and answers do not come back on that path",
        device,
        (
            admin("Let the route send from its own interface's address, here and in the network configuration.",
                  f"ip{six} route replace {_line(way, way.hops[0])} src {own[0][0].address}   # on {node.name}"),
        ),
    )  # fmt: skip


def _lost_route(node: Node, way: KernelRoute) -> WayCause | None:
    """It has an address of that subnet on a device that is up, and no route to it: somebody took that away."""
    if way.hops or way.kind:
        return None
    for interface in _interfaces(node):
        for address, net in lan.global_networks(interface) if lan.is_usable(interface) else ():
            if _peer(way) in net and net.prefixlen < net.max_prefixlen:
                six, name = " -6" if net.version == 6 else "", interface.name.partition(":")[0]
                return WayCause(
                    f"{name} has {address.address}/{address.prefix}, and the routing table has no route to {net}",
                    name,
                    (
                        admin(
                            "Put it back, and see what removed it (NetworkManager, a VPN, a script).",
                            f"ip{six} route add {net} dev {quote(name)} src {address.address}   # on {node.name}",
                            f"ip{six} route   # on {node.name}",
                        ),
                    ),
                )
    return None


def _silent_gateway(node: Node, way: KernelRoute) -> WayCause | None:
    """The next hop is a gateway, and no machine on that wire answers for its address."""
    silent = [hop for hop in way.hops if hop.address != way.address and _is_silent(hop)]
    if not silent:
        return None
    hop, several = silent[0], len(way.hops) > 1
    answers = (
        f"{hop.address} on {hop.interface} answers no {'ARP' if _peer(way).version == 4 else 'neighbour query'}"
    )
    if several:
        words = (
            f"its route {way.destination} has {len(way.hops)} next hops, and {answers}: what is sent there is lost"
        )
    else:
        words = f"its route {_line(way, hop)} needs the gateway, and {answers}"
    return WayCause(words, hop.interface, tuple(_other_gateway(node, way, hop)))


def _other_gateway(node: Node, way: KernelRoute, hop: Hop) -> Iterator[Remedy]:
    six, on = " -6" if _peer(way).version == 6 else "", f"# on {node.name}"
    see = f"ip neigh show {quote(hop.address)}   {on}"
    alive = [hop for hop in way.hops if hop.state not in _UNANSWERED]
    if alive:
        yield admin(
            "Take the dead next hop out of the route, here and where it is made, or bring that router back.",
            see,
            f"ip{six} route replace {_line(way, alive[0])}   {on}",
        )
        return
    likely = [router for router in way.routers if router != hop.address]
    if not likely:
        yield admin("Bring that router back, or give the route the right gateway.", see, f"ip{six} route   {on}")
        return
    yield admin(
        f"{likely[0]} answers on {hop.interface}, where a router is by custom. If it is the right one, give "
        "the route this gateway, here and in the network configuration; else bring the other one back.",
        see,
        f"ip{six} route replace {_line(way, hop, likely[0])}   {on}",
    )


def _deaf_to_neighbours(node: Node, way: KernelRoute) -> WayCause | None:
    """No machine is found on the wire, and this host's own filter drops what finds them."""
    hop = next((hop for hop in way.hops if _is_silent(hop)), None)
    chain = without_neighbours(node) if hop and _peer(way).version == 6 else None
    if hop is None or chain is None:
        return None
    return WayCause(
        f"{WITHOUT_NEIGHBOURS.format(firewall.shown(chain))}: no machine on {hop.interface} is found for "
        f"{hop.address}",
        hop.interface,
        (neighbours_in(node, chain, hop.interface),),
    )


WITHOUT_NEIGHBOURS = "its own packet filter drops ICMPv6 ({}), by which IPv6 finds its neighbours"


def without_neighbours(node: Node) -> Filter | None:
    """The chain of its own packet filter that drops ICMPv6."""
    chains = firewall.harmful(node, "input")
    return next((chain for chain in chains if re.search("icmpv6|ipv6-icmp", chain.rule)), None)


def neighbours_in(node: Node, chain: Filter, device: str) -> Remedy:
    """What every host of IPv6 must let in."""
    kinds = "nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, nd-router-advert, packet-too-big"
    on = f"# on {node.name}"
    return admin(
        "Let neighbour discovery in, here and in the file that the rules are loaded from (RFC 4890, 4.4.1).",
        f"nft insert rule {chain.family} {quote(chain.table)} {quote(chain.chain)} icmpv6 type "
        f"'{{ {kinds} }}' accept   {on}",
        f"ip -6 neigh flush dev {quote(device)}   {on}",
    )


_CAUSES: tuple[Callable[[Node, KernelRoute], WayCause | None], ...] = (
    _ipv6_is_off,
    _not_used,
    _no_link,
    _port_of_a_bridge,
    _lost_route,
    _no_arp,
    another_device,
    _another_card,
    _wrong_source,
    _silent_gateway,
    _deaf_to_neighbours,
)


def unanswered(way: KernelRoute) -> str:
    """Where the address itself is on the wire and nobody there answers for it; empty where it is not so."""
    hop = next((hop for hop in way.hops if hop.address == way.address and hop.state in _UNANSWERED), None)
    return f"no machine on {hop.interface} answers for {way.address} ({hop.state.upper()})" if hop else ""


def wire(way: KernelRoute, node: str) -> Remedy | None:
    """Where nobody on the wire answers for the address: what to look at, which is no firewall of TCP."""
    hop = next((hop for hop in way.hops if hop.address == way.address and hop.state in _UNANSWERED), None)
    if hop is None:
        return None
    name = quote(hop.interface)
    return admin(
        f"Look at the switch port of {node}'s {hop.interface} (its VLAN), at its cable, and at the same on the "
        "other "
        "node: not even a neighbour query is answered, which a firewall of TCP does not do. Received packets that "
        "do not rise mean that nothing comes in at all.",
        f"ip -s link show {name}   # on {node}, twice",
        f"ethtool {name} | grep -E 'Speed|Link detected'; bridge vlan show 2>/dev/null   # on {node}",
    )

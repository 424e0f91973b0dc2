"""Rule about the way from every node to every other, as subnets and routes tell it."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Interface, Unread
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    not_read,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.output.settings_forms import quoted
from ncclcheck.reports.subjects.addresses import behind_nat, misplaced, prefixes
from ncclcheck.reports.subjects.links import flapping
from ncclcheck.reports.subjects.links.paths import detours, unrouted
from ncclcheck.reports.subjects.links.reached import reached
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.subjects.nccl.ways import Subnet, SubnetOutcome, Ways, subnets_of

_NEEDS = ("network.interfaces",)
_WAIT = "The ranks of these nodes cannot connect to each other; NCCL and torchrun wait silently."


@rule(
    "NET003",
    "NCCL's interfaces on all nodes share a subnet or are routed to each other",
    worst=State.FAIL,
    needs=_NEEDS,
    at_least=2,
    between_machines=True,
    gates_job="by any failure",
)
def shared_network(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether every node can send from the interface that it would use to that of every other node.

    ## Why it matters
    If one node stands in another subnet without a route, nothing is logged anywhere: plain torchrun and NCCL wait
    in init until a time-out, half an hour by default. A route through another card than the chosen one
    means that the job runs over a network that nobody meant, often a 1 Gb/s management network.

    ## Seen as
    hangs, does not start

    ## How we know
    The subnet of the chosen address, and the routes of the node's main table (longest prefix, lowest metric),
    proved by connections where the nodes tried each other. No route is a failure, unless connections pass by a
    policy rule (ip-rule(8)); a route through another interface is a warning, and a failure where nothing passes
    it, and fine where that is a bridge with ports, has the node's address in that subnet, and connections pass;
    one through a gateway is a note until connections prove it. The same holds within one subnet where a more
    specific route, or a bridge with a part of the subnet, leads to some of its nodes. Subnets that overlap are a
    prefix length that is wrong on one side: a warning where the nodes still find each other, else a failure. Of
    two subnets of one size the right one is that of the endpoint, else the one in which the other side has an
    address too. A node that connects to the others under an address which it does not have (its peers report
    it), and whose own private address nobody reaches, is behind NAT: a container or a VM on a private network of
    its host. No other node needs a route to it. Where the interface of a node in the others' subnet is down or has
    no link, that link alone is named: what the node has left is a stand-in, and nobody is to choose it.

    ## Fix
    - **you** name the interfaces that share a network, all names in one list:
      `export NCCL_SOCKET_IFNAME="=eno1,eth0"`.
    - **admin** an address in the common subnet, or a route; compare `ip route get ADDRESS` on both nodes.

    ## Source
    NVIDIA/nccl#286, NVIDIA/nccl#1581; horovod/horovod#310; ip-route(8).
    """
    links = lan.links(cluster)
    if len(links) < 2:
        raise NothingToJudge("fewer than two nodes have an interface to use (NET001)")
    lonely = [link for link in links if lan.is_loopback(link.address)]
    yield from (_on_loopback(cluster, link) for link in lonely)
    hidden = behind_nat.hidden(cluster)
    yield from behind_nat.findings(cluster, hidden)
    down = flapping.stand_ins(cluster, links)
    yield from (_stands_in(cluster, link, down[link.node]) for link in links if link.node in down)
    away = {*(hidden.node for hidden in hidden), *down}
    subnets = subnets_of(cluster, [link for link in links if link not in lonely and link.node not in away])
    yield from detours.findings(cluster, [link for subnet in subnets for link in subnet.links])
    if len(subnets) == 1 and not lonely and not away:
        yield fine(Where(), f"all {len(links)} nodes are in {subnets[0].network}")
    if len(subnets) > 1:
        ways = Ways(cluster)
        yield from _between(cluster, ways, subnets)
        yield from prefixes.findings(ways, subnets)


def _stands_in(cluster: Cluster, link: lan.LanPlace, down: str) -> Finding:
    """What it has left may lead to the others, more slowly; that is no reason to have the job go there."""
    reach, name = reached(cluster), link.interface.name
    node = next(node for node in cluster.nodes if node.name == link.node)
    passes = reach is not None and any(ok for _, ok in reach.tries.get(link.node, ()))
    finding = (warn if passes else fail)(
        Where(node=link.node, device=down),
        f"{flapping.off(node, down)}, so the job would use {name} ({link.address}), and the others do not",
        why="It would run over another network than the chosen one." if passes else _WAIT,
        owner="node",
        evidence=[seen("chosen interface", f"{name} {link.address}, {link.network}")],
        fix=[flapping.bring_up(node, down)],
    )
    return flapping.explained(cluster, finding)


def _between(cluster: Cluster, ways: Ways, subnets: list[Subnet]) -> Iterator[Finding]:
    gateways: list[str] = []
    explained: dict[str, Finding] = {}
    for subnet in subnets:
        for links in ways.alike(subnet):
            answers = [(other, *ways.way(links[0], subnet, other)) for other in subnets if other is not subnet]
            none = [o for o, outcome, _ in answers if outcome is SubnetOutcome.NONE and ways.tells(subnet, o)]
            astray = [
                (other, leads)
                for other, outcome, leads in answers
                if outcome is SubnetOutcome.ELSEWHERE and ways.tells_of_detour(subnet, other)
            ]
            gateways += [leads for _, outcome, leads in answers if outcome is SubnetOutcome.GATEWAY]
            unread = [other for other, outcome, _ in answers if outcome is SubnetOutcome.UNREAD]
            for link in links:
                blocked = [other for other in none if ways.passes(link, other) is not True]
                for other in blocked:
                    if other.place > subnet.place:
                        seconds = misplaced.seconds(ways, other, subnet)
                        explained |= {
                            link.node: misplaced.finding(link, subnet, *second) for link, second in seconds
                        }
                if blocked := [other for other in blocked if not {*explained} >= other.nodes]:
                    yield flapping.explained(cluster, _no_route(ways, link, subnet, blocked))
                if left := [way for way in astray if not ways.goes_there(link, *way)]:
                    yield flapping.explained(cluster, _elsewhere(ways, link, *left[0]))
                if any(ways.passes(link, other) is not True for other in unread):
                    yield _unread(link, ways.unread[link.node])
    yield from explained.values()
    if gateways:
        yield _routed(ways, subnets, gateways)


def _on_loopback(cluster: Cluster, link: lan.LanPlace) -> Finding:
    node = next(node for node in cluster.nodes if node.name == link.node)
    own = lan.interfaces(node)
    down = [
        interface.name
        for interface in own
        if False in (interface.up, interface.running) and interface.kind != "loopback"
    ]
    because = f"{flapping.off(node, down[0])}, so " if down else ""
    reason = lan.choice_of_job(cluster, node).reason
    return fail(
        Where(node=link.node, device=down[0] if down else link.interface.name),
        f"{because}the job would use {link.interface.name} ({link.address}), which no other node can reach"
        + (f": {reason}" if not down else ""),
        why="Loopback ends inside the machine; the other nodes wait for this one until a time-out.",
        owner="job",
        evidence=[seen("chosen interface", f"{link.interface.name} {link.address}")],
        fix=[
            *_off_loopback([interface.name for interface in own if lan.is_usable(interface)], link.node),
            *(flapping.bring_up(node, name) for name in down),
        ],
    )


def _off_loopback(usable: list[str], node: str) -> list[Remedy]:
    if not usable:
        return [admin("Give it a network that the others are in.", f"ip -br addr   # on {node}")]
    return [
        you(
            f"Name the interface of the job's network: {' or '.join(usable)}.",
            f"export NCCL_SOCKET_IFNAME={quoted(f'={usable[0]}')}",
            f"export GLOO_SOCKET_IFNAME={quote(usable[0])}",
        )
    ]


def _no_route(ways: Ways, link: lan.LanPlace, subnet: Subnet, blocked: list[Subnet]) -> Finding:
    other = blocked[0]
    more = f" and {len(blocked) - 1} more subnets" if len(blocked) > 1 else ""
    peer, down = other.links[0], _down(ways, link, other)
    undecided = len(subnet.links) == len(other.links) and not down and subnet.doubts == other.doubts
    if undecided and len(subnet.links) == 1:
        return _either(ways, link, peer)
    return fail(
        Where(node=link.node, device=down or link.interface.name, peer=peer.node),
        f"{_cause(ways, link, other, down)} no route to {other}{more}"
        f"{_against(subnet, other, undecided=undecided)}",
        why=_WAIT,
        owner="site" if undecided else "node",
        evidence=[
            seen(link.node, f"{link.interface.name} {link.address}, {link.network}"),
            seen(peer.node, f"{peer.interface.name} {peer.address}, {peer.network}"),
            *(
                [seen("TCP connect", f"{link.node} to {peer.node} fails")]
                if ways.passes(link, other) is False
                else []
            ),
        ],
        fix=[*([] if down else [_choose(ways, link, other)]), *_mend(ways, link, peer, down)],
    )


def _either(ways: Ways, link: lan.LanPlace, peer: lan.LanPlace) -> Finding:
    """Two nodes, and nothing that speaks for one of them: neither is blamed."""
    ends = [f"{link.node} ({link.interface.name} {link.address}, {link.network})" for link in (peer, link)]
    return fail(
        Where(),
        f"{ends[0]} and {ends[1]} are in different subnets, and at least one has no route to the other; nothing "
        "here tells which of them is the wrong one",
        why=_WAIT,
        owner="site",
        evidence=[
            seen(link.node, f"{link.interface.name} {link.address}, {link.network}") for link in (peer, link)
        ],
        fix=[
            you("Compare the addresses of both nodes.", f"ip -br addr   # on {peer.node} and {link.node}"),
            *_mend(ways, link, peer, ""),
        ],
    )


def _against(subnet: Subnet, other: Subnet, *, undecided: bool) -> str:
    """Of two equally large sides what decides which is the odd one, or that nothing does."""
    if len(subnet.links) != len(other.links):
        return ""
    count = len(subnet.links)
    if undecided:
        return f" ({count} against {count}: nothing here shows which side is the wrong one)"
    return f", {other.remark}" if other.remark and other.doubts < subnet.doubts else ""


def _choose(ways: Ways, link: lan.LanPlace, other: Subnet) -> Remedy:
    """The interface that is in the other subnet, where this node has one; else only where to look."""
    second = ways.second(link, other)
    if second is None or second[0].name == link.interface.name:
        return you(
            "Compare the addresses of both nodes.", f"ip -br addr   # on {link.node} and {other.links[0].node}"
        )
    name = second[0].name
    return you(
        f"On {link.node} name the interface of that subnet.",
        f'export NCCL_SOCKET_IFNAME="={name}"',
        f"export GLOO_SOCKET_IFNAME={name}",
    )


def _down(ways: Ways, link: lan.LanPlace, other: Subnet) -> str:
    """The interface of this node that should be in the other subnet, but has no link."""
    for interface in lan.interfaces(ways.nodes[link.node]):
        away = interface.up is False or interface.running is False
        belongs = interface.name == other.links[0].interface.name or any(
            network == other.network for _, network in lan.global_networks(interface)
        )
        if away and belongs and interface.name != link.interface.name:
            return interface.name
    return ""


def _bare(ways: Ways, link: lan.LanPlace, other: Subnet) -> str:
    """The interface of this node that is called as that of the others is, and has no address of that kind."""
    names = (
        interface.name
        for interface in lan.interfaces(ways.nodes[link.node])
        if _is_bare(interface, link, other.links[0])
    )
    return next(names, "")


def _is_bare(interface: Interface, link: lan.LanPlace, peer: lan.LanPlace) -> bool:
    if (
        interface.name != peer.interface.name
        or interface.name == link.interface.name
        or interface.kind == "loopback"
    ):
        return False
    return all(network.version != peer.network.version for _, network in lan.global_networks(interface))


def _cause(ways: Ways, link: lan.LanPlace, other: Subnet, down: str) -> str:
    name = link.interface.name
    if down:
        off = flapping.off(ways.nodes[link.node], down)
        return f"{off}, so the job would use {name} ({link.address}), which has"
    if bare := _bare(ways, link, other):
        none = f"{bare} has no address of IPv{other.network.version}"
        return f"{none}, so the job would use {name} ({link.address}), which has"
    if astray := ways.astray.get(link.node):
        return f"{astray.words}, and has"
    if link.network.overlaps(other.network):
        own, theirs = link.network.prefixlen, other.network.prefixlen
        return f"{name} has the prefix length /{own}, the others /{theirs}; it has"
    return f"{name} is in {link.network} and has"


def _mend(ways: Ways, link: lan.LanPlace, peer: lan.LanPlace, down: str) -> list[Remedy]:
    name, node = link.interface.name, ways.nodes[link.node]
    if down:
        return [flapping.bring_up(node, down)]
    if astray := ways.astray.get(link.node):
        return [astray.fix]
    if bare := next((interface.name for interface in lan.interfaces(node) if _is_bare(interface, link, peer)), ""):
        return [
            admin(
                "Give it its address back, here and in the network configuration, and see what took it: a DHCP "
                "lease that ended, NetworkManager, a script.",
                f"ip -br addr show dev {quote(bare)}   # on {node.name}",
                f"journalctl -u NetworkManager -u systemd-networkd --since -1h | tail   # on {node.name}",
            )
        ]
    if link.network.overlaps(peer.network):
        return [prefixes.widened(ways, link, peer)]
    return unrouted.offers(node, name, link.interface_address, peer.network, peer.node, ways.nodes.values())


def _elsewhere(ways: Ways, link: lan.LanPlace, other: Subnet, leads: str) -> Finding:
    peer, down = other.links[0], _down(ways, link, other)
    astray = None if down else ways.astray.get(link.node)
    narrow = not down and astray is None and link.network.overlaps(other.network)
    failed = ways.passes(link, other) is False or (astray is not None and _is_unreached(ways, link, other))
    failed = failed or (narrow and _some_fail(ways, link, other))
    level = fail if failed else warn
    own, theirs = link.network.prefixlen, other.network.prefixlen
    because = f"{flapping.off(ways.nodes[link.node], down)}; " if down else f"{astray.words}; " if astray else ""
    because = f"{link.interface.name} has the prefix length /{own}, the others /{theirs}; " if narrow else because
    return level(
        Where(node=link.node, device=down or link.interface.name, peer=peer.node),
        f"{because}its way to {other} leaves by {leads}, not by the chosen {link.interface.name}"
        + (", and connections between them fail" if narrow and failed else "")
        + (f", and nobody there reaches {link.node} under that address" if failed and not narrow else ""),
        why="The job runs over another network than the chosen one, often a slow one for management."
        if not failed
        else _WAIT,
        owner="node",
        evidence=[seen("routes", f"to {peer.address} by {leads}")],
        fix=[astray.fix]
        if astray
        else [*([] if down or narrow else [_lead_there(leads)]), *_mend(ways, link, peer, down)],
    )


def _some_fail(ways: Ways, link: lan.LanPlace, other: Subnet) -> bool:
    """Whether a connection between it and a node there was tried, and failed; one that is its gateway may pass."""
    tries = ways.reached.tries if ways.reached else {}
    out = [ok for peer, ok in tries.get(link.node, []) if peer in other.nodes]
    back = [ok for name in other.nodes for peer, ok in tries.get(name, []) if peer == link.node]
    return not all([*out, *back])


def _is_unreached(ways: Ways, link: lan.LanPlace, other: Subnet) -> bool:
    """Whether the others tried to reach it, and none could: connections pass from it to them at best."""
    tried = [ways.reached.passes(name, {link.node}) for name in other.nodes] if ways.reached else []
    return False in tried and True not in tried


def _lead_there(leads: str) -> Remedy:
    return you(
        "Choose the interface that leads there.",
        f"export NCCL_SOCKET_IFNAME={quoted(f'={leads}')}",
        f"export GLOO_SOCKET_IFNAME={quote(leads)}",
    )


def _routed(ways: Ways, subnets: list[Subnet], gateways: list[str]) -> Finding:
    shown = ", ".join(str(subnet) for subnet in subnets[:4]) + (", ..." if len(subnets) > 4 else "")
    place = {name: subnet.place for subnet in subnets for name in subnet.nodes}
    tries = ways.reached.tries if ways.reached else {}
    ends = [ok for a, peers in tries.items() for b, ok in peers if place.get(a) != place.get(b)]
    evidence = seen("routes", f"by the gateways {', '.join(sorted(set(gateways))[:4])}")
    if ends and all(ends):
        return fine(
            Where(), f"{len(subnets)} subnets, {len(ends)} connections between them pass: {shown}", evidence
        )
    proof = f"{sum(ends)} of {len(ends)} connections pass" if ends else "not yet proved"
    return note(
        Where(),
        f"{len(subnets)} subnets, routed to each other, {proof}: {shown}",
        why="A route says where packets are sent, not that they arrive.",
        evidence=[evidence],
    )


def _unread(link: lan.LanPlace, fact: Unread) -> Finding:
    why = "It is in another subnet than other nodes, and may or may not be routed to them."
    return not_read(Where(node=link.node), "routes", fact, "its routes could not be read", why=why)

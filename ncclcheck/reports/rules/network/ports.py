"""Rule about connections between nodes: who reaches whom on the ports that the job needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from shlex import quote

from ncclcheck.probes.facts import Cluster, Filter, Node, NoDoor, PortRange, Unread, at, value_or
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    seen,
    unknown,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.addresses import to_itself, translated
from ncclcheck.reports.subjects.addresses.names import by_name
from ncclcheck.reports.subjects.failures import lost
from ncclcheck.reports.subjects.links import flapping
from ncclcheck.reports.subjects.links.filters import firewall, kept, knocked, trunk, volleys
from ncclcheck.reports.subjects.links.paths import neighbours, own_way, two_cards, unheard
from ncclcheck.reports.subjects.links.reached import (
    Blame,
    Pair,
    Reached,
    after_the_job,
    blame,
    closed,
    groups,
    reached,
    required,
    shared_addresses,
)
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names

_NOT_OURS = "Cannot assign requested address"  # EADDRNOTAVAIL
_WHY = "The ranks cannot connect to each other: torchrun, gloo and NCCL only wait, for half an hour by default."
_SAID = {
    "refused": "connection refused",
    "timed_out": "no answer",
    "unreachable": "unreachable",
    "stranger": "something else answered",
    "not_sent": "not sent",
}
_MOST_PAIRS = 8  # pairs that are named; chosen
_OWN_FILTER = "of the two only {} has a packet filter of its own that can stop it or lead it elsewhere"


@rule(
    "NET006",
    "every node reaches every other on the job's ports, in both directions",
    worst=State.FAIL,
    needs=("network.interfaces",),
    at_least=2,
    ground=("NCC007", "NET001", "NET002", "NET003", "NET010"),
    between_machines=True,
    gates_job="by any failure",
)
def ports(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether a TCP connection to a random high port passes, from each node to each other one (in a large cluster
    to at least log2 N others), over the interface that the job would use.

    ## Why it matters
    Only the port of the rendezvous is fixed; NCCL, gloo and torchrun take random high ports for all else. Where
    a firewall drops them, ssh and ping work, and the job waits without a word until a time-out.

    ## Seen as
    hangs, does not start, setting without effect

    ## How we know
    Each node opens a random port of `net.ipv4.ip_local_port_range`, and each tries those of the others several
    times within 2.5 s. A node that can open no TCP port fails by itself, and so does one with an LD_PRELOAD of
    its own by which every connection is refused, also to itself. A node that reaches nobody and that nobody
    reaches is named once, before its pairs. A to B failing while B to A works is a filter: most often on what
    comes in to B, else on what leaves A. Packets of UDP that pass meanwhile show that cable, address and route
    are well. Nodes that NET001 to NET003 or NET010 explain are left out. Where the kernel's neighbour entry
    (ARP) of a peer that is not reached has another MAC address than the peer, a permanent entry or another
    machine with that address is the cause. A node that itself keeps back what it sends is named and nobody else:
    its kernel refuses a route to a UDP socket, by which nothing is sent (ip-rule(8), a route of type prohibit,
    blackhole or unreachable), or says of a connection that what it sent again never left (TCP_INFO). For a peer
    that is not reached the kernel is asked for its route (`ip route get`): an interface without carrier, a
    bridge's port, a tunnel, another interface's address as the sender, and a gateway or one of several next hops
    that answers no ARP are the cause. Each node also connects to its own address, as its ranks do. A node that
    nobody reaches and that has two cards in one subnet drops what comes in (rp_filter). Where the packet filter
    may be read, which only root may, the chain is named that can stop it, and a rule before it is the fix. Where
    nodes fall into two groups in each of which all passes, and between which a part of the connections is lost,
    a member of the trunk between them is the cause. Where some of the connections opened at once have no answer,
    they are tried once more from the same ports, the last one first: if each fares as before, its ports decide,
    so that it is a dead member of a trunk or of equal routes, and no limit, loss or host. A node whose interface
    counts next to no bytes while the others send to it is deaf, and no filter of its own has a part in it: where
    it finds no MAC address on its wire, its link is dead in one direction or its switch port does not forward;
    where it finds them, the switch sends its frames elsewhere. Two nodes that reach all others and not each
    other, without an answer to ARP, are kept apart by the switch (private VLAN, port isolation). A peer tells
    from which address it was called: another one than ours is NAT on the path, a warning within one subnet; an
    address of another interface of ours is a rule or route that leads there, a failure where bursts were slow
    so too. Where gloo would announce another address, the first of a node's own name and often one of IPv6, the
    others knock there too: no answer is a failure, though the first address passes. Then up to 8 connections are
    opened at once: it is a warning where more than 10 % of those to a node, and at least 3, have no answer
    within 0.8 s, or are refused, although packets pass: a limit on new ones, and a failure where the ranks of the
    job then waited for each other in vain. After a job that failed or hung it is tried once
    more: what passed before the job and fails after it was lost in between. A node that falls silent in a job is
    tried by up to 64 others, on a port that was open before it: a refusal is an answer. Where some have one and
    some have none, the path between is a failure.

    ## Fix
    - **you** try it by hand as shown, and leave the node out until it is repaired.
    - **admin** let the nodes of a job connect to each other on all ports from 1024 to 65535: nftables, firewalld,
      ufw, the cloud's security group; or bring up the link.

    ## Source
    NVIDIA/nccl#352, NVIDIA/nccl-tests#162; ip(7) (ip_local_port_range), connect(2), nft(8).
    """
    no_doors = [*_no_doors(cluster)]
    yield from no_doors
    if no_doors and reached(cluster) is None:
        return
    tries = _Tries.of(cluster)
    gone = list(knocked.findings(cluster))
    yield from gone
    yield from tries.unasked()
    misled = neighbours.misled(cluster, tries.found, tries.bad)
    yield from neighbours.findings(misled, tries.links)
    tries = tries.without({misled.pair for misled in misled})
    half = own_way.half_lost(tries.found)
    by_own_way = [*own_way.findings(cluster, tries.found, half | {p for p in tries.bad if not tries.down(p[0])})]
    yield from (finding for finding, _ in by_own_way)
    tries = tries.without({pair for _, pairs in by_own_way for pair in pairs})
    itself = [*to_itself.findings(cluster, tries.links)]
    yield from itself
    by_library = {*tries.hosts} & {*to_itself.preloaded(cluster)}
    tries = tries.without({pair for pair in tries.bad if pair[0] in by_library})
    at_source = kept.kept(cluster, tries.found, tries.bad)
    yield from kept.findings(tries.found, at_source, tries.links)
    tries = tries.without({pair for one in at_source for pair in one.pairs})
    across = trunk.trunk(tries.found)
    split = across.pairs if across else frozenset()
    yield from trunk.findings(tries.found, across) if across else ()
    kept_back = {pair for one in at_source for pair in one.pairs}
    if hashed := trunk.by_ports(tries.found, {*split, *half, *kept_back}):
        yield from trunk.findings_by_ports(tries.found, hashed)
        split = split | hashed.pairs
    tries = tries.without({*split})
    told = [*by_own_way, *itself, *at_source, *split]
    yield from by_name.findings(cluster, tries.found, tries.links)
    shut = closed(cluster)
    for run in tries.apart():
        yield from (
            finding
            for finding in _judged(run)
            if finding.state is not State.OK or not (shut or no_doors or gone or misled or told)
        )
    yield from translated.findings(cluster, tries.found, tries.links)
    networks = {node: str(link.network) for node, link in tries.links.items()}
    yield from volleys.findings(
        own_way.without_volleys(tries.found, {*half, *split}),
        cluster.policy.thresholds.get("NET009.loss_percent", 1.0),
        networks,
        tries.hosts,
        in_vain=lost.none_to_blame(cluster),
    )
    if shut:
        yield from _closed(cluster, shut)


def _closed(cluster: Cluster, shut: set[Pair]) -> Iterator[Finding]:
    """Connections that passed before the job and failed after it; a node that is to blame for them says why."""
    after = after_the_job(cluster)
    tries = replace(_Tries.of(after), bad=shut)
    for finding in _after(after, tries):
        before = seen("before the job", "all of these connections passed")
        what = f"{finding.what}. It passed before the job, and failed after it"
        told = fail(
            finding.where,
            what,
            why=finding.why,
            owner=finding.owner,
            evidence=[before, *finding.evidence],
            fix=finding.remedies,
        )
        yield flapping.explained(cluster, told)


def _after(after: Cluster, tries: _Tries) -> Iterator[Finding]:
    """What its own kernel or filter explains, then the rest."""
    by_own_way = [*own_way.findings(after, tries.found, {p for p in tries.bad if not tries.down(p[0])})]
    yield from (finding for finding, _ in by_own_way)
    tries = tries.without({pair for _, pairs in by_own_way for pair in pairs})
    at_source = kept.kept(after, tries.found, tries.bad)
    yield from kept.findings(tries.found, at_source, tries.links)
    tries = tries.without({pair for one in at_source for pair in one.pairs})
    for run in tries.apart():
        yield from _judged(run) if run.bad else ()


def _judged(tries: _Tries) -> Iterator[Finding]:
    together = groups(tries.nodes, tries.judged - tries.bad)
    yield from _apart(tries, together)
    group = {node: number for number, nodes in enumerate(together) for node in nodes}
    culprits, pairs = blame({p for p in tries.bad if group[p[0]] == group[p[1]]}, tries.judged)
    yield from (_one_way(tries, culprit) for culprit in culprits)
    yield from _pairs(tries, pairs)
    if not tries.bad:
        what = (
            f"all {len(tries.nodes)} nodes reach each other: {len(tries.judged)} connections on random high ports"
        )
        yield fine(Where(), what)


@dataclass(frozen=True)
class _Tries:
    """The connections that were tried, without those that another rule explains."""

    hosts: dict[str, Node]
    links: dict[str, lan.Link]
    found: Reached
    shared: set[str]
    judged: set[Pair]
    bad: set[Pair]
    no_doors: set[str]

    @classmethod
    def of(cls, cluster: Cluster) -> _Tries:
        found = required(cluster)
        connects = {pair: connect for pair, connect in found.connects.items() if connect.outcome != "silent"}
        bad = {pair for pair, connect in connects.items() if connect.outcome != "ok"}
        links = {link.node: link for link in lan.links(cluster)}
        doors = {no_door.node for no_door in cluster.measurements.no_doors}
        hosts = {node.name: node for node in cluster.nodes}
        return cls(hosts, links, found, shared_addresses(cluster), set(connects), bad, doors)

    @cached_property
    def nodes(self) -> list[str]:
        """The nodes of the pairs, in the launcher's order."""
        named = {node for pair in self.judged for node in pair}
        return [*(node for node in self.links if node in named), *sorted(named - set(self.links))]

    def apart(self) -> Iterator[_Tries]:
        """By nodes that tried each other: in merged results those of one run did, and no others."""
        for nodes in groups(self.nodes, self.judged):
            yield replace(self, judged=_within(nodes, self.judged), bad=_within(nodes, self.bad))

    def without(self, explained: set[Pair]) -> _Tries:
        """Without pairs that are explained: what comes back goes the same wrong way."""
        both = explained | {(b, a) for a, b in explained}
        return replace(self, judged=self.judged - (both & self.bad), bad=self.bad - both) if both else self

    def unasked(self) -> Iterator[Finding]:
        """Nodes of which nobody knows: they opened no port, or their listener did not speak."""
        known = set(self.nodes)
        for link in self.links.values():
            if link.node not in known | self.no_doors and link.address not in self.shared:
                yield unknown(
                    Where(node=link.node, device=link.interface.name),
                    "it was not seen whether other nodes reach it",
                    why="It opened no port, or what listened there did not speak in time.",
                    evidence=[seen("TCP connect", "no try with a known end")],
                )

    def evidence(self, pairs: Sequence[Pair]) -> list[Evidence]:
        """What the kernels said, a few by name, and whether UDP passed."""
        shown = [f"{a} to {b} ({self.found.seen[a, b].address}): {self.said((a, b))}" for a, b in pairs[:4]]
        more = f"; and {len(pairs) - 4} more" if len(pairs) > 4 else ""
        named = dict.fromkeys(node for pair in pairs[:4] for node in pair)
        chains = [(node, one) for node in named for one in [*self.writers(node), *self.chains(node)]]
        return [
            seen("TCP connect to a random high port", "; ".join(shown) + more),
            *self._udp(pairs),
            *(firewall.on_node(node, one) for node, one in chains[:4]),
        ]

    def chains(self, node: str) -> list[Filter]:
        """The chains of a node's own packet filter that can stop packets, in or out."""
        host = self.hosts[node]
        return [*firewall.harmful(host, "input"), *firewall.harmful(host, "output")]

    def writers(self, node: str) -> list[Filter]:
        """The chains that can write another sender on what it sends from its address here."""
        return firewall.writing(self.hosts[node], self.links[node].address) if node in self.links else []

    def stopper(self, pair: Pair) -> str:
        """The one of two nodes whose own filter can stop packets, where the filters of both could be read."""
        able = [node for node in pair if self.chains(node) or self.writers(node)]
        readable = all(firewall.known(self.hosts[node]) for node in pair)
        return able[0] if readable and len(able) == 1 else ""

    def said(self, pair: Pair) -> str:
        """How one try ended."""
        connect = self.found.connects[pair]
        word = _SAID.get(connect.outcome, connect.outcome)
        return word if connect.detail in ("", word) else f"{word} ({connect.detail})"

    def _udp(self, pairs: Sequence[Pair]) -> list[Evidence]:
        passed = sum(self._udp_passes(pair) for pair in pairs)
        return [seen("small UDP packets", f"passed in {passed} of {len(pairs)} of these pairs")]

    def _udp_passes(self, pair: Pair) -> bool:
        echoes = self.found.seen[pair].echoes
        return not isinstance(echoes, Unread) and echoes.arrived > 0

    def reason(self, pairs: Sequence[Pair]) -> str:
        """What it looks like, from what passes and what does not."""
        connects = [self.found.connects[pair] for pair in pairs]
        outcomes = Counter(connect.outcome for connect in connects)
        own, refused = self._own_filter(pairs), outcomes["refused"] == len(pairs)
        if refused or any(self._udp_passes(pair) for pair in pairs):
            said = "rejects" if outcomes["unreachable"] + outcomes["refused"] else "drops"
            what = "it is refused though its port is open" if refused else "UDP passes and TCP does not"
            other = " or another machine has this address" if refused else ", not a cable"
            return f"{what}: {own}" if own else f"{what}, so a packet filter {said} it{other}"
        if deaf := unheard.deaf(self.found, pairs):
            return deaf.words(self.found.interface(deaf.node))
        if all(connect.kept == "neighbour" for connect in connects):
            return self._unheard(pairs)
        if outcomes["stranger"] == len(pairs):
            return "something else answers at this address"
        if all(self._crosses(pair) for pair in pairs):
            return (
                "nothing passes between their subnets: the router does not forward it, or a packet filter drops it"
            )
        if own:
            return f"nothing passes: {own}"
        return "nothing passes: a packet filter, a VLAN, a switch port or a cable"

    def _unheard(self, pairs: Sequence[Pair]) -> str:
        """ARP finds nobody. Both ends answered us by another way, so that they are up; their links may be, too."""
        told = "no machine answers for the address on this wire (ARP)"
        ends = [self.links.get(node) for pair in pairs for node in pair]
        if all(end is not None and end.interface.up is True and end.interface.running is True for end in ends):
            return (
                f"{told}, though all of these hosts are up and their interfaces have a link: a switch port in "
                "another VLAN, or one that does not forward"
            )
        return f"{told}: a VLAN, a switch port or a cable"

    def _own_filter(self, pairs: Sequence[Pair]) -> str:
        """The chain of the one node that all have in common, where those of the others could stop nothing."""
        common = set.intersection(*(set(pair) for pair in pairs))
        others = {node for pair in pairs for node in pair} - common
        if len(common) == 2 and (stopper := self.stopper(pairs[0])):
            common, others = {stopper}, common - {stopper}
        if len(common) != 1 or not others:
            return ""
        (node,) = common
        sound = all(firewall.known(self.hosts[one]) and not self.chains(one) for one in others)
        chains = [*self.writers(node), *self.chains(node)]
        does = f"{firewall.verb(chains[0])} ({firewall.shown(chains[0])})" if chains else ""
        return f"{node}'s own packet filter {does}" if chains and sound else ""

    def _crosses(self, pair: Pair) -> bool:
        a, b = (self.links.get(node) for node in pair)
        return bool(a and b and a.network != b.network)

    def down(self, node: str) -> str:
        """The interface of a node that took part and is not up, if it is so."""
        link = self.links.get(node)
        if link is None or False not in (link.interface.up, link.interface.running):
            return ""
        return f"{link.interface.name} is {'down' if link.interface.up is False else 'up, but has no link'}"

    def fix(self, pairs: Sequence[Pair], node: str, *others: str) -> list[Remedy]:
        """By hand, then by the administrator of the node, and of others that may be the cause as well."""
        client, server = next((pair for pair in pairs if node in pair), pairs[0])
        name, address = self.found.interface(node) or "eth0", self.found.seen[client, server].address
        by_hand = you(
            "Try it by hand, and leave the node out until it passes.",
            f"python3 -m http.server 45000 --bind {address}   # on {server}",
            f"curl -m 5 http://{address}:45000/   # on {client}",
        )
        if self.down(node):
            return [by_hand, admin("Bring the link up.", f"ip link set dev {name} up", f"ethtool {name}")]
        networks = list(
            dict.fromkeys(str(self.links[one].network) for one in (client, server) if one in self.links)
        )
        if let_pass := [remedy for network in networks for remedy in self.let_pass(node, network)]:
            return [by_hand, *let_pass]
        deaf = unheard.deaf(self.found, pairs)
        if deaf and not deaf.asks:
            return [by_hand, unheard.in_the_switch(deaf.node, self.found.interface(deaf.node) or "eth0")]
        wire = admin(
            "FAILED or nothing here means that not even ARP passes, which no firewall of a host does: look at "
            "cable, switch port and VLAN. Else it is a firewall.",
            f"ip neigh show {address}   # on {client}",
            f"ethtool {name} | grep -E 'Speed|Link detected'   # on {node}",
        )
        opened = firewall.let_in(
            "Let the nodes of the job's network connect to each other on all high ports, also in the cloud's "
            "security group.",
            networks,
            fold_names([node, *others]).replace(", ", " and "),
        )
        silent = not any(map(self._udp_passes, pairs)) and not any(map(self._crosses, pairs))
        unasked = all(self.found.connects[pair].kept == "neighbour" for pair in pairs)
        on_wire = silent and (unasked or deaf is not None)
        return [by_hand, *([wire] if silent else []), *([opened] if networks and not on_wire else [])]

    def let_pass(self, node: str, network: str) -> list[Remedy]:
        """In the chains of its own filter that can stop what comes in to it, or leaves it."""
        host = self.hosts[node]
        sides: tuple[firewall.Side, ...] = ("input", "output")
        found = {side: firewall.harmful(host, side) for side in sides}
        found["output"] = [*self.writers(node), *found["output"]]
        return [firewall.let_pass(found[side], side, network) for side in sides if found[side]]


def _no_doors(cluster: Cluster) -> Iterator[Finding]:
    links = {link.node: link for link in lan.links(cluster)}
    hosts = {node.name: node for node in cluster.nodes}
    yield from (
        _no_door(hosts[no_door.node], links[no_door.node], no_door)
        for no_door in cluster.measurements.no_doors
        if no_door.node in links
    )


def _no_door(node: Node, link: lan.Link, door: NoDoor) -> Finding:
    """Its ranks ask the kernel for the same."""
    ports = value_or(at(node, "system.ports"), PortRange(first=1, last=0))
    held_back = ports.reserved > (ports.last - ports.first + 1) / 2
    if door.why == _NOT_OURS and door.address == link.address:
        gone = bool(door.interfaces) and link.interface.name not in door.interfaces
        return _interface_gone(link, door.interfaces) if gone else _address_gone(link)
    make, why = (
        (fail, "Its ranks cannot listen there either: gloo and NCCL take a port that the kernel chooses.")
        if door.protocol == "TCP"
        else (unknown, "So no node could try it; UDP is not what a job needs.")
    )
    return make(
        Where(node=link.node, device=link.interface.name),
        f"it can open no {door.protocol} port on its own address {door.address}: {door.why}"
        + f" (HST016: net.ipv4.ip_local_reserved_ports holds back {ports.reserved} of them)" * held_back,
        why=why,
        owner="node",
        evidence=[seen(f"bind(2) to port 0 of {door.address}", door.why)],
        fix=[
            you("See how many ports are taken there, and by whom.", "ss -H -tanp | head -20", "ip -br addr"),
            admin("Reserve none of them.", "sysctl -w net.ipv4.ip_local_reserved_ports=")
            if held_back
            else admin(
                "Where the range of ports is small, let it be the kernel's own.",
                'sysctl -w net.ipv4.ip_local_port_range="32768 60999"',
            ),
        ],
    )


def _address_gone(link: lan.Link) -> Finding:
    """It had the address when its facts were read."""
    held = quote(f"{link.address}/{link.network.prefixlen}")
    name = quote(link.interface.name)
    return fail(
        Where(node=link.node, device=link.interface.name),
        f"{link.interface.name} has lost its address {link.address} during the run: it was removed or changed",
        why="Connections that stood hang, for nothing that is sent to the address arrives any more.",
        owner="node",
        evidence=[seen(f"bind(2) to {link.address}", f"{_NOT_OURS}; it had it before")],
        fix=[
            admin(
                "Give it its address back, and see what took it: a DHCP lease that ended, NetworkManager.",
                f"ip addr add {held} dev {name}   # on {link.node}",
                f"journalctl -u NetworkManager -u systemd-networkd --since -15min | tail   # on {link.node}",
            ),
        ],
    )


def _interface_gone(link: lan.Link, left: list[str]) -> Finding:
    """It was there when the facts were read; nothing can be added to it now."""
    name = link.interface.name
    return fail(
        Where(node=link.node, device=name),
        f"the interface {name} with the address {link.address} is gone since the run began",
        why="Connections that stood hang: its driver died or was unloaded, its card fell off the bus, or it was "
        "deleted or renamed.",
        owner="node",
        evidence=[
            seen(f"bind(2) to {link.address}", f"{_NOT_OURS}; it had it before"),
            seen("interfaces that are left", ", ".join(left)),
        ],
        fix=[
            admin(
                "See what took it away, then bring it back: load its driver anew, start the service that makes it "
                "again, or reboot.",
                f"dmesg -T | grep -iE '{name}|pci|link' | tail -20   # on {link.node}",
                f"journalctl -u NetworkManager -u systemd-networkd --since -15min | tail   # on {link.node}",
                f"ip -br link   # on {link.node}",
            ),
            you("Leave the node out until then.", f"#SBATCH --exclude={quote(link.node)}"),
        ],
    )


def _within(nodes: Collection[str], pairs: set[Pair]) -> set[Pair]:
    return {pair for pair in pairs if pair[0] in nodes}


def _apart(tries: _Tries, together: list[list[str]]) -> Iterator[Finding]:
    """Groups that do not reach each other at all: the smaller ones are cut off."""
    if len(together) < 2:
        return
    first, second = together[0], together[1]
    between = sorted(tries.bad)
    if len(tries.nodes) == 2:
        yield _either(tries, between)
    elif len(first) == len(second):
        nobody = len(first) == 1
        shown = "; ".join(fold_names(nodes) for nodes in together[:4]) + ("; ..." if len(together) > 4 else "")
        what = "no node reaches any other" if nobody else f"groups of nodes do not reach each other: {shown}"
        yield _failed(tries, Where(), between, second[0], what)
    else:
        yield from (_cut_off(tries, group, first) for group in together[1:])


def _either(tries: _Tries, pairs: list[Pair]) -> Finding:
    """Two nodes, either way: neither is blamed, unless its interface is down."""
    a, b = tries.nodes
    if stopper := tries.stopper((a, b)):
        where = Where(node=stopper, device=tries.found.interface(stopper) or None)
        what = f"{a} and {b} cannot connect to each other, in either direction: {_OWN_FILTER.format(stopper)}"
        return _failed(tries, where, pairs, stopper, what)
    down = [(node, state) for node in tries.nodes if (state := tries.down(node))]
    what = f"{a} and {b} cannot connect to each other, in either direction: "
    if len(down) == 1:
        node, state = down[0]
        where = Where(node=node, peer=b if node == a else a, device=tries.found.interface(node) or None)
        return _failed(tries, where, pairs, node, f"{what}on {node} {state}")
    why = f"on {a} {down[0][1]}, on {b} {down[1][1]}" if down else tries.reason(pairs)
    return fail(
        Where(),
        f"{what}{why}",
        why=_WHY,
        owner="site",
        evidence=tries.evidence(pairs),
        fix=tries.fix(pairs, b, a),
    )


def _cut_off(tries: _Tries, group: list[str], main: list[str]) -> Finding:
    node = group[0]
    pairs = sorted(pair for pair in tries.bad if (pair[0] in group) != (pair[1] in group))
    where = Where(node=node, device=tries.found.interface(node) or None)
    if len(group) == 1:
        others = {other for pair in pairs for other in pair} - {node}
        down = tries.down(node)
        why = f"its {down}" if down else tries.reason(pairs)
        what = f"{node} is cut off from all {len(others)} others, in both directions: {why}"
    else:
        what = f"{fold_names(group)} reach each other, but none of the other {len(main)} nodes"
    return _failed(tries, where, pairs, node, what)


def _one_way(tries: _Tries, culprit: Blame) -> Finding:
    node, pairs = culprit.node, sorted(culprit.pairs)
    where = Where(node=node, device=tries.found.interface(node) or None)
    others = sorted({other for pair in pairs for other in pair} - {node})
    why = tries.reason(pairs)
    if culprit.way == "out":
        return _failed(
            tries, where, pairs, node,
            f"{node} cannot connect to any of {len(others)} other nodes, though they connect to it: "
            f"outgoing connections from {node} do not pass; {why}",
        )  # fmt: skip
    what = f"none of {len(others)} other nodes can connect to {node}, though it connects to them: "
    refused = any(tries.found.connects[pair].outcome in ("refused", "stranger") for pair in pairs)
    link = tries.links.get(node)
    if link and not refused and (twin := two_cards.twin(tries.hosts[node], link)):
        back = tries.found.seen.get(pairs[0][::-1])
        peer = back.address if back else ""
        return two_cards.dropped(where, link, twin, what, _WHY, tried=tries.evidence(pairs), peer=peer)
    return _failed(tries, where, pairs, node, f"{what}incoming connections to {node} do not pass; {why}")


def _pairs(tries: _Tries, pairs: list[Pair]) -> Iterator[Finding]:
    """What no single node explains, a few by name."""
    stopped = {pair: stopper for pair in pairs if (stopper := tries.stopper(pair))}
    for pair, stopper in stopped.items():
        if pair[::-1] not in stopped or pair < pair[::-1]:
            yield _stopped(tries, [one for one in (pair, pair[::-1]) if one in stopped], stopper)
    pairs = [pair for pair in pairs if pair not in stopped]
    if apart := unheard.kept_apart(tries.found, pairs, tries.judged - tries.bad):
        yield unheard.apart_finding(tries.found, apart, tries.evidence(sorted(apart)), _WHY)
        pairs = [pair for pair in pairs if pair not in apart]
    for a, b in pairs[:_MOST_PAIRS]:
        back = tries.found.connects.get((b, a))
        works = f", though {b} connects to {a}" if back and back.outcome == "ok" else ""
        more = len(pairs) - _MOST_PAIRS
        rest = f"; and {more} more pairs" if more > 0 and (a, b) == pairs[_MOST_PAIRS - 1] else ""
        likely = f": look first at what comes in to {b}, then at what leaves {a}" if works else ""
        yield _failed(
            tries, Where(node=b, peer=a, device=tries.found.interface(b) or None), [(a, b)], b,
            f"{a} cannot connect to {b}{works}{likely}; {tries.reason([(a, b)])}{rest}",
        )  # fmt: skip


def _stopped(tries: _Tries, pairs: list[Pair], node: str) -> Finding:
    a, b = pairs[0]
    said = f"{a} and {b} cannot connect to each other" if len(pairs) == 2 else f"{a} cannot connect to {b}"
    where = Where(node=node, device=tries.found.interface(node) or None)
    return _failed(tries, where, pairs, node, f"{said}: {_OWN_FILTER.format(node)}; {tries.reason(pairs)}")


def _failed(tries: _Tries, where: Where, pairs: list[Pair], node: str, what: str) -> Finding:
    return fail(
        where, what, why=_WHY, owner="site", evidence=tries.evidence(pairs), fix=tries.fix(pairs, node)
    )  # fmt: skip

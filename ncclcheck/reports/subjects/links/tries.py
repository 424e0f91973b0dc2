"""The connections that nodes tried with each other: those that failed, what they look like, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ncclcheck.probes.facts import Cluster, Filter, Node, Unread
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, Where, admin, seen, unknown, you
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.paths import unheard
from ncclcheck.reports.subjects.links.reached import Pair, Reached, groups, required, shared_addresses
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names

_SAID = {
    "refused": "connection refused",
    "timed_out": "no answer",
    "unreachable": "unreachable",
    "stranger": "something else answered",
    "not_sent": "not sent",
}


@dataclass(frozen=True)
class Tries:
    """The connections that were tried, without those that another rule explains."""

    hosts: dict[str, Node]
    links: dict[str, lan.LanPlace]
    reached: Reached
    shared: set[str]
    judged: set[Pair]
    bad: set[Pair]
    no_doors: set[str]

    @classmethod
    def of(cls, cluster: Cluster) -> Tries:
        reached = required(cluster)
        connects = {pair: connect for pair, connect in reached.connects.items() if connect.outcome != "silent"}
        bad = {pair for pair, connect in connects.items() if connect.outcome != "ok"}
        links = {link.node: link for link in lan.links(cluster)}
        doors = {no_door.node for no_door in cluster.measurements.no_doors}
        hosts = {node.name: node for node in cluster.nodes}
        return cls(hosts, links, reached, shared_addresses(cluster), set(connects), bad, doors)

    @cached_property
    def nodes(self) -> list[str]:
        """The nodes of the pairs, in the launcher's order."""
        named = {node for pair in self.judged for node in pair}
        return [*(node for node in self.links if node in named), *sorted(named - set(self.links))]

    def apart(self) -> Iterator[Tries]:
        """By nodes that tried each other: in merged results those of one run did, and no others."""
        for nodes in groups(self.nodes, self.judged):
            yield replace(self, judged=_within(nodes, self.judged), bad=_within(nodes, self.bad))

    def without(self, explained: set[Pair]) -> Tries:
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
        shown = [f"{a} to {b} ({self.reached.seen[a, b].address}): {self.end_of((a, b))}" for a, b in pairs[:4]]
        more = f"; and {len(pairs) - 4} more" if len(pairs) > 4 else ""
        named = dict.fromkeys(node for pair in pairs[:4] for node in pair)
        chains = [(node, chain) for node in named for chain in [*self.writers(node), *self.chains(node)]]
        return [
            seen("TCP connect to a random high port", "; ".join(shown) + more),
            *self._udp(pairs),
            *(firewall.on_node(node, chain) for node, chain in chains[:4]),
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

    def end_of(self, pair: Pair) -> str:
        """How one try ended."""
        connect = self.reached.connects[pair]
        word = _SAID.get(connect.outcome, connect.outcome)
        return word if connect.detail in ("", word) else f"{word} ({connect.detail})"

    def _udp(self, pairs: Sequence[Pair]) -> list[Evidence]:
        passed = sum(self._udp_passes(pair) for pair in pairs)
        return [seen("small UDP packets", f"passed in {passed} of {len(pairs)} of these pairs")]

    def _udp_passes(self, pair: Pair) -> bool:
        echoes = self.reached.seen[pair].echoes
        return not isinstance(echoes, Unread) and echoes.arrived > 0

    def reason(self, pairs: Sequence[Pair]) -> str:
        """What it looks like, from what passes and what does not."""
        connects = [self.reached.connects[pair] for pair in pairs]
        outcomes = Counter(connect.outcome for connect in connects)
        own, refused = self._own_filter(pairs), outcomes["refused"] == len(pairs)
        if refused or any(self._udp_passes(pair) for pair in pairs):
            does = "rejects" if outcomes["unreachable"] + outcomes["refused"] else "drops"
            what = "it is refused though its port is open" if refused else "UDP passes and TCP does not"
            other = " or another machine has this address" if refused else ", not a cable"
            return f"{what}: {own}" if own else f"{what}, so a packet filter {does} it{other}"
        if deaf := unheard.deaf(self.reached, pairs):
            return deaf.words(self.reached.interface(deaf.node))
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
        words = "no machine answers for the address on this wire (ARP)"
        ends = [self.links.get(node) for pair in pairs for node in pair]
        if all(end is not None and end.interface.up is True and end.interface.running is True for end in ends):
            return (
                f"{words}, though all of these hosts are up and their interfaces have a link: a switch port in "
                "another VLAN, or one that does not forward"
            )
        return f"{words}: a VLAN, a switch port or a cable"

    def _own_filter(self, pairs: Sequence[Pair]) -> str:
        """The chain of the one node that all have in common, where those of the others could stop nothing."""
        common = set.intersection(*(set(pair) for pair in pairs))
        others = {node for pair in pairs for node in pair} - common
        if len(common) == 2 and (stopper := self.stopper(pairs[0])):
            common, others = {stopper}, common - {stopper}
        if len(common) != 1 or not others:
            return ""
        (node,) = common
        sound = all(firewall.known(self.hosts[other]) and not self.chains(other) for other in others)
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
        name, address = self.reached.interface(node) or "eth0", self.reached.seen[client, server].address
        by_hand = you(
            "Try it by hand, and leave the node out until it passes.",
            f"python3 -m http.server 45000 --bind {address}   # on {server}",
            f"curl -m 5 http://{address}:45000/   # on {client}",
        )
        if self.down(node):
            return [by_hand, admin("Bring the link up.", f"ip link set dev {name} up", f"ethtool {name}")]
        networks = list(
            dict.fromkeys(str(self.links[end].network) for end in (client, server) if end in self.links)
        )
        if let_pass := [remedy for network in networks for remedy in self.let_pass(node, network)]:
            return [by_hand, *let_pass]
        deaf = unheard.deaf(self.reached, pairs)
        if deaf and not deaf.asks:
            return [by_hand, unheard.in_the_switch(deaf.node, self.reached.interface(deaf.node) or "eth0")]
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
        unasked = all(self.reached.connects[pair].kept == "neighbour" for pair in pairs)
        on_wire = silent and (unasked or deaf is not None)
        return [by_hand, *([wire] if silent else []), *([opened] if networks and not on_wire else [])]

    def let_pass(self, node: str, network: str) -> list[Remedy]:
        """In the chains of its own filter that can stop what comes in to it, or leaves it."""
        host = self.hosts[node]
        sides: tuple[firewall.Side, ...] = ("input", "output")
        chains = {side: firewall.harmful(host, side) for side in sides}
        chains["output"] = [*self.writers(node), *chains["output"]]
        return [firewall.let_pass(chains[side], side, network) for side in sides if chains[side]]


def _within(nodes: Collection[str], pairs: set[Pair]) -> set[Pair]:
    return {pair for pair in pairs if pair[0] in nodes}

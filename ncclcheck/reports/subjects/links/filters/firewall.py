"""The packet filters of hosts: which chains can keep a way closed, where they could be read, and what opens it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from shlex import quote
from typing import Literal

from ncclcheck.probes.facts import Filter, Node, Unread, at
from ncclcheck.reports.judgement.findings import Evidence, Remedy, admin, seen

Side = Literal["input", "output"]
SIDES: tuple[Side, Side] = ("input", "output")

# ports without privilege, where NCCL, gloo and torchrun listen unless told otherwise. Source: ip(7)
HIGH = (1024, 65535)
_FIND = "nft list ruleset | grep -nE 'table|chain|hook|drop|reject|limit'"
_HOOKS: dict[Side, tuple[str, ...]] = {
    "input": ("ingress", "prerouting", "input"),
    "output": ("output", "postrouting", "egress"),
}
_STOPS = {"drop", "reject", "queue"}
_TURNS = {"dnat", "redirect"}
_WRITES = {"snat", "masquerade"}
_DOES = {
    "dnat": "leads it to another address by DNAT",
    "redirect": "leads it to a port of its own by REDIRECT",
    "snat": "writes another sender on it by SNAT",
    "masquerade": "writes another sender on it by SNAT",
}
_OF_NEW_ONES = re.compile(
    r"& syn|\bct state new\b|\bct count\b|\b(connlimit|recent)\b|--(ct)?state NEW\b|,ACK SYN\b"
)
_SENDER = re.compile(r"(?:\bip6? saddr (?!!=)|(?<!! )(?<!\S)-s )(\S+)")
_LEGACY = {"iptables-legacy": "ip", "ip6tables-legacy": "ip6"}


def known(node: Node) -> bool:
    """Whether its filters could be read."""
    return not isinstance(at(node, "network.filters"), Unread)


def harmful(node: Node, side: Side) -> list[Filter]:
    """Its chains that can drop, refuse or lead elsewhere what comes in to it, or leaves it."""
    return [chain for chain in _of(node) if chain.hook in _HOOKS[side] and (_STOPS | _TURNS) & set(chain.does)]


def writing(node: Node, address: str = "") -> list[Filter]:
    """Its chains that can write another sender on what leaves it, from this address: not those for containers."""
    filters = [chain for chain in _of(node) if chain.hook == "postrouting" and _WRITES & set(chain.does)]
    return [chain for chain in filters if not address or _is_for(chain, address)]


def clamping(node: Node) -> list[Filter]:
    """Its chains that write another size of segments into TCP's first packets."""
    return [chain for chain in _of(node) if "tcpmss" in chain.does]


def _is_for(chain: Filter, address: str) -> bool:
    """Whether the sender that a rule names, if it names one, can be this one."""
    named = _SENDER.search(chain.rule)
    with suppress(ValueError):
        return named is None or ip_address(address) in ip_network(named[1], strict=False)
    return True


def limiting(node: Node, side: Side) -> list[Filter]:
    """Its chains with a rule that stops some of what comes in to it, or leaves it, and not all."""
    return [chain for chain in harmful(node, side) if chain.part]


def partial(node: Node, side: Side) -> list[Filter]:
    """Those of them that stop packets of connections that are open."""
    return [chain for chain in limiting(node, side) if not _OF_NEW_ONES.search(chain.part)]


@dataclass(frozen=True)
class Partial:
    """A node whose own filter stops some of the packets of certain ways, and not all."""

    node: str
    side: Side
    chains: list[Filter]

    @property
    def words(self) -> str:
        """After the node's name."""
        does = "takes in" if self.side == "input" else "sends"
        return f"stops a part of what it {does} by a rule of its own packet filter ({part(self.chains[0])})"

    @property
    def evidence(self) -> list[Evidence]:
        """Its chains."""
        return [on_node(self.node, chain, part(chain)) for chain in self.chains[:2]]

    def fix(self, network: str) -> Remedy:
        """The job's network passes before them."""
        return let_pass(self.chains, self.side, network)


def stops_a_part(nodes: Mapping[str, Node], ways: Collection[tuple[str, str]]) -> Partial | None:
    """The one end that all of these ways have in common whose own filter explains that a part of it is lost."""
    ends = sorted(set.intersection(*(set(way) for way in ways)) & {*nodes}) if ways else []
    partials = [
        Partial(node, side, chains)
        for node in ends
        for side, place in zip(SIDES, (1, 0), strict=True)
        if any(way[place] == node for way in ways) and (chains := partial(nodes[node], side))
    ]
    return partials[0] if len({stopper.node for stopper in partials}) == 1 else None


def part(chain: Filter) -> str:
    """The chain, and the rule that stops some packets."""
    return f"chain {chain.family} {chain.table} {chain.chain} (hook {chain.hook}): {chain.part}"


def verb(chain: Filter) -> str:
    """What the rule that is shown does, as far as it is known."""
    return _DOES.get(chain.does[0], "can stop it") if chain.does else "can stop it"


def _of(node: Node) -> list[Filter]:
    chains = at(node, "network.filters")
    return [] if isinstance(chains, Unread) else chains


def shown(chain: Filter) -> str:
    """The chain, and the rule that does it."""
    rule = f": {chain.rule}" if chain.rule else f", whose policy is {chain.does[0]}"
    return f"chain {chain.family} {chain.table} {chain.chain} (hook {chain.hook}){rule}"


def on_node(node: str, chain: Filter, words: str = "") -> Evidence:
    """The chain and its rule, by what lists them."""
    lists = f"{chain.family}-save" if chain.family in _LEGACY else "nft list ruleset"
    return seen(f"{lists} on {node}", words or shown(chain))


def let_pass(chains: Sequence[Filter], side: Side, network: str) -> Remedy:
    """Where the chains are known. A rule before all others in each: an accept in another chain would not help."""
    flag = "-d" if side == "output" else "-s"
    version, end = "ip6" if ":" in network else "ip", "daddr" if side == "output" else "saddr"
    return admin(
        "Let the job's network pass in each chain that can stop it, here and in the files that it is loaded from.",
        *(
            f"nft insert rule {chain.family} {quote(chain.table)} {quote(chain.chain)} "
            f"{version} {end} {network} accept"
            for chain in chains
            if chain.family in ("inet", "netdev", version)
        ),
        *(
            f"{chain.family} -t {chain.table} -I {quote(chain.chain)} {flag} {network} -j ACCEPT"
            for chain in chains
            if _LEGACY.get(chain.family) == version
        ),
    )


def let_in(text: str, networks: Sequence[str], on: str, ports: tuple[int, int] = HIGH) -> Remedy:
    """Where none could be read. First what shows the rule, then a line for each tool.

    One of them is right, the others change nothing.
    """
    return admin(
        f"{text} Only the line of the tool that keeps the rules there has an effect, until they are loaded again: "
        "then put the same into its own file.",
        f"{_FIND}   # on {on}",
        *(f"{line}   # {tool}, on {on}" for tool, line in _lines(list(dict.fromkeys(networks)), ports)),
    )


def _lines(networks: list[str], ports: tuple[int, int]) -> list[tuple[str, str]]:
    """Between these networks, both ways: new connections come in at one end and leave the other."""
    first, last = ports
    six = any(ip_network(network, strict=False).version == 6 for network in networks)
    ip, tables = ("ip6", "ip6tables") if six else ("ip", "iptables")
    among, span = ",".join(networks), f"{first}" if first == last else f"{first}-{last}"
    either = f"{{ {', '.join(networks)} }}" if len(networks) > 1 else among
    colon = span.replace("-", ":")
    chains = "awk '/^table/{t=$2\" \"$3} /chain/{c=$2} /filter hook (prerouting|input|output)/{print t,c}'"
    insert = f"nft insert rule $c {ip} saddr {either} {ip} daddr {either} tcp dport {span} accept"
    return [
        ("nftables", f"nft list chains | {chains} | grep -v '[A-Z]' | while read c; do {insert}; done"),
        (
            "iptables",
            f"for c in INPUT OUTPUT; do {tables} -I $c -s {among} -d {among} -p tcp --dport {colon} -j ACCEPT; "
            "done",
        ),
        ("firewalld", "; ".join(f"firewall-cmd --zone=trusted --add-source={network}" for network in networks)),
        (
            "ufw",
            "; ".join(f"ufw prepend allow proto tcp from {network} to any port {colon}" for network in networks),
        ),
    ]

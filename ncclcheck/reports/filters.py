"""The packet filters of hosts where they could be read: which chains can keep a way closed, and what opens it."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Literal

from ncclcheck.probes.facts import Filter, Node, Unread, at
from ncclcheck.reports.findings import Remedy, admin

Side = Literal["input", "output"]

_HOOKS: dict[Side, tuple[str, ...]] = {
    "input": ("ingress", "prerouting", "input"),
    "output": ("output", "postrouting", "egress"),
}
_STOPS = {"drop", "reject", "queue"}
_TURNS = {"dnat", "redirect"}
_WRITES = {"snat", "masquerade"}


def known(node: Node) -> bool:
    """Whether its filters could be read."""
    return not isinstance(at(node, "network.filters"), Unread)


def harmful(node: Node, side: Side) -> list[Filter]:
    """Its chains that can drop, refuse or lead elsewhere what comes in to it, or leaves it."""
    return [one for one in _of(node) if one.hook in _HOOKS[side] and (_STOPS | _TURNS) & set(one.does)]


def writing(node: Node) -> list[Filter]:
    """Its chains that can write another sender on what leaves it."""
    return [one for one in _of(node) if one.hook == "postrouting" and _WRITES & set(one.does)]


def _of(node: Node) -> list[Filter]:
    found = at(node, "network.filters")
    return [] if isinstance(found, Unread) else found


def shown(one: Filter) -> str:
    """The chain, and the rule that does it."""
    rule = f": {one.rule}" if one.rule else f", whose policy is {one.does[0]}"
    return f"chain {one.family} {one.table} {one.chain} (hook {one.hook}){rule}"


def let_pass(chains: Sequence[Filter], side: Side, network: str) -> Remedy:
    """A rule before all others in each of these chains: an accept in another chain would not help."""
    version, end = "ip6" if ":" in network else "ip", "daddr" if side == "output" else "saddr"
    return admin(
        "Let the job's network pass in each chain that can stop it, here and in the files that it is loaded from.",
        *(
            f"nft insert rule {one.family} {quote(one.table)} {quote(one.chain)} {version} {end} {network} accept"
            for one in chains
            if one.family in ("inet", "netdev", version)
        ),
    )

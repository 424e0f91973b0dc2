"""Nodes of which a part of the ports does not answer, though a node listens on all that were tried."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ncclcheck.probes.facts import Connect, Echoes, Filter, Node, PeerReach, Spread
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, seen
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.reached import Pair, Reached
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names

_RANGE = re.compile(r"\b(?:dport|dports|--dports?) (?:!= )?\{?([\d, :-]+)\}?")


_LET = "Let the nodes of the job connect to each other on all high ports."


@dataclass(frozen=True)
class Shut:
    """node: whose ports do not answer, or whose connections to such ports are stopped. pairs: who tried whom."""

    node: str
    side: firewall.Side
    pairs: frozenset[Pair]
    shut: list[int]
    open: list[int]


def shut_ports(reached: Reached, explained: Collection[Pair] = ()) -> list[Shut]:
    """Where all who tried a node agree on a port; else where one node alone is stopped, to each of the others."""
    spreads = {
        pair: peer.spread
        for pair, peer in reached.seen.items()
        if isinstance(peer.spread, Spread) and pair not in explained and _is_sound(peer)
    }
    into: dict[str, dict[str, Spread]] = {}
    for (a, b), spread in spreads.items():
        into.setdefault(b, {})[a] = spread
    ends = [end for node, by in into.items() if (end := _incoming(node, by))]
    known = {pair for end in ends for pair in end.pairs}
    if len(into) == 2 and len(ends) == 2:  # one rule of either stops both ways
        return ends[:1]
    left = {pair: spread for pair, spread in spreads.items() if pair not in known and spread.shut}
    for node in sorted({a for a, _ in left} - {end.node for end in ends}):  # its answers may be stopped alike
        tried = {pair: spread for pair, spread in spreads.items() if pair[0] == node}
        if len(tried) > 1 and all(spread.shut for spread in tried.values()):
            ends.append(_end(node, "output", tried))
    return ends


def _is_sound(peer: PeerReach) -> bool:
    """Whether nothing else lost packets to it: NET009 speaks of that."""
    echoes = peer.echoes
    spread = peer.spread
    passed = isinstance(peer.connect, Connect) and peer.connect.outcome == "ok"
    passed = passed or (
        isinstance(spread, Spread) and bool(spread.shut and spread.open)
    )  # it met one that is shut
    return passed and (not isinstance(echoes, Echoes) or echoes.returned >= echoes.sent * 0.99)


def _incoming(node: str, by: Mapping[str, Spread]) -> Shut | None:
    """Ports that nobody who tried them reached."""
    agreed = set.intersection(*(set(spread.shut) for spread in by.values()))
    return _end(node, "input", {(peer, node): spread for peer, spread in by.items()}) if agreed else None


def _end(node: str, side: firewall.Side, tried: Mapping[Pair, Spread]) -> Shut:
    shut = sorted({port for spread in tried.values() for port in spread.shut})
    is_open = sorted({port for spread in tried.values() for port in spread.open} - {*shut})
    return Shut(node, side, frozenset(tried), shut, is_open)


def findings(
    reached: Reached, ends: list[Shut], nodes: Mapping[str, Node], links: Mapping[str, lan.LanPlace]
) -> Iterator[Finding]:
    """One a node."""
    for end in ends:
        node, part = nodes[end.node], _between(end)
        harmful = firewall.harmful(node, end.side)
        chains = [chain for chain in harmful if _covers(chain, end.shut)] or harmful
        peers = fold_names(sorted({name for pair in end.pairs for name in pair} - {end.node}))
        whose = "answers on some of its ports and on others not"
        if end.side == "output":
            whose = "connects to some ports of other nodes and to others not"
        by = f"its own packet filter ({firewall.shown(chains[0])})" if chains else "a packet filter"
        near = str(links[end.node].network) if end.node in links else ""
        yield fail(
            Where(node=end.node, device=reached.interface(end.node) or None),
            f"{end.node} {whose}: to {_listed(end.shut)} none passes, to {_listed(end.open)} all do: {by} closes "
            f"a part of the range from which ranks get their ports, within {part}",
            why="Ranks listen on ports that the kernel picks from this range: a job hangs where one of them is "
            "closed, and the next job may pass.",
            owner="site",
            evidence=[
                seen(f"TCP connect of {peers}, each port twice, with a listener on each",
                     f"none passes to {_listed(end.shut)}"),
                *(firewall.on_node(end.node, chain) for chain in chains[:2]),
            ],
            fix=[
                firewall.let_pass(chains, end.side, near)
                if chains and near
                else firewall.let_in(_LET, [near or "10.0.0.0/8"], end.node),
                admin("Or let the kernel give no port of that part, on this node.",
                      f"sysctl -w net.ipv4.ip_local_reserved_ports={part.replace(' to ', '-')}   # on {end.node}"),
            ],
        )  # fmt: skip


def is_counted(end: Shut, node: Node) -> bool:
    """Whether a rule of the node that counts new connections explains it, and none that names one of the ports."""
    chains = firewall.limiting(node, end.side)
    new = [chain for chain in chains if chain not in firewall.partial(node, end.side)]
    return bool(new) and not any(_covers(chain, end.shut) for chain in firewall.harmful(node, end.side))


def _between(end: Shut) -> str:
    """The largest part that can be closed, by the ports beside it that answer."""
    low = max((port for port in end.open if port < end.shut[0]), default=end.shut[0] - 1) + 1
    high = min((port for port in end.open if port > end.shut[-1]), default=end.shut[-1] + 1) - 1
    return f"{low} to {high}"


def _listed(ports: list[int]) -> str:
    return ", ".join(map(str, ports[:8])) or "no other"


def _covers(chain: Filter, ports: list[int]) -> bool:
    """Whether the rule that is shown names one of the ports, alone or in a range."""
    for spans in _RANGE.findall(chain.rule):
        for span in re.findall(r"\d+(?:[-:]\d+)?", spans):
            low, _, high = span.replace(":", "-").partition("-")
            if any(int(low) <= port <= int(high or low) for port in ports):
                return True
    return False

"""Rule about a faster network that all nodes share, and that carries no data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, Interface, Node, at, value_or
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fine,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.output.settings_forms import quoted
from ncclcheck.reports.subjects.job.used import used
from ncclcheck.reports.subjects.links import flows
from ncclcheck.reports.subjects.links.reached import reached
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names

# How many times as fast. By what interfaces report: the next step of Ethernet, 1 to 2.5 or 10 to 25 Gb/s, is 2.5.
# As measured: bursts and exchanges of the same link differed by up to 2 on two busy cores.
_REPORTED = 2.0
_MEASURED = (
    4.0  # times as fast: what was measured under other load must differ by more than what is reported; chosen
)
_GBIT_A_BYTE = 8.0  # bits in a byte


@dataclass(frozen=True)
class _Faster:
    """By node: the interface that carries the data, and the one that would. evidence: both rates."""

    carries: Mapping[str, str]
    better: Mapping[str, str]
    slow: str
    fast: str
    evidence: list[Evidence]


@rule(
    "NET017",
    "no shared network is far faster than the one in use",
    worst=State.WARN,
    needs=("network.interfaces", "job.variables"),
    at_least=2,
    ground=("NET003",),
    between_machines=True,
)
def faster_network(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Which interface carries the data between nodes over TCP, against the other networks that all nodes share.

    ## Why it matters
    gloo takes the interface to whose address the node's own name resolves, NCCL's sockets what NCCL_SOCKET_IFNAME
    names: by names and by order, never by speed. Where /etc/hosts leads all names to the management network, all
    data goes over its 1 Gb/s while the 100 Gb/s beside it carry nothing. No error is written anywhere.

    ## Seen as
    slow

    ## How we know
    Of gloo's choice by /sys/class/net/NAME/speed, where both interfaces are cards: at least twice as fast. After
    a job by what was measured, too: the best exchange of two nodes over the interface that carried it, below
    2 Gb/s (NET008.enough_gbit), against the bursts between all nodes over the other one, at least four times as
    fast. NCCL is judged where its log said that it uses sockets between nodes; RCCL of AMD is not.

    ## Fix
    - **you** name the fast interface: `export GLOO_SOCKET_IFNAME=eth0`, `export NCCL_SOCKET_IFNAME==eth0`.
    - **admin** or let the names of the nodes lead to the addresses of the fast network.

    ## Source
    NCCL user guide, NCCL_SOCKET_IFNAME; PyTorch, distributed, "Choosing the network interface to use";
    pytorch/pytorch source, ProcessGroupGloo::createDefaultDevice.
    """
    faster = _measured(cluster) or _reported(cluster)
    if faster is None:
        taken = sorted({link.interface.name for link in lan.links(cluster)})
        yield fine(Where(), f"no faster network than that of {', '.join(taken)} is known to be shared")
        return
    slow, fast = _named(faster.carries), _named(faster.better)
    yield warn(
        Where(),
        f"the data goes over {slow}, {faster.slow}, and all nodes share a faster network: {fast}, {faster.fast}",
        why="The interface is chosen by names and by order, not by speed; the fast one carries nothing.",
        owner="job",
        evidence=faster.evidence,
        fix=_fix(cluster, faster.better),
    )


def _named(of_nodes: Mapping[str, str]) -> str:
    return ", ".join(sorted(set(of_nodes.values())))


def _fix(cluster: Cluster, better: Mapping[str, str]) -> list[Remedy]:
    gloo = lan.uses_gloo(cluster)
    by_name: dict[str, list[str]] = {}
    for node, interface in better.items():
        by_name.setdefault(interface, []).append(node)
    exports = [
        f"export {'GLOO_SOCKET_IFNAME=' if gloo else 'NCCL_SOCKET_IFNAME='}{quoted(name if gloo else f'={name}')}"
        + (f"   # on {fold_names(nodes)}" if len(by_name) > 1 else "")
        for name, nodes in by_name.items()
    ]
    named = [you("Name the fast interface.", *exports)]
    if gloo:
        named.append(
            admin(
                "Or let the nodes' names lead to their addresses there, in DNS or /etc/hosts. Every program that "
                "asks for a name is touched; undo: the entries from before.",
                "getent ahosts $(hostname)",
            )
        )
    return named


def _measured(cluster: Cluster) -> _Faster | None:
    """The exchanges of the job over one network, the bursts before it over another one."""
    reach, job = reached(cluster), used(cluster) if cluster.measurements.transport else []
    if reach is None or not job or (not lan.uses_gloo(cluster) and any(use.network != "Socket" for use in job)):
        return None
    carries = {use.node.name: {end.interface for end in use.interfaces} - {""} for use in job}
    better = {name: of_node.interface for name, of_node in reach.of_node.items()}
    rates = flows.rates(reach, 100.0)
    pairs = [rate for pair in cluster.measurements.pairs for rate in (pair.a_to_b_gb_s, pair.b_to_a_gb_s) if rate]
    names = set(carries)
    if not pairs or not rates or names != {node.name for node in cluster.nodes} or names - {*better}:
        return None
    if any(len(taken) != 1 or better[name] in taken for name, taken in carries.items()):
        return None
    if {name for pair in rates for name in pair} != names:
        return None
    slow, fast = max(pairs) * _GBIT_A_BYTE, min(rates.values())
    enough = cluster.policy.thresholds.get("NET008.enough_gbit", flows.ENOUGH)
    if slow >= enough or fast < _MEASURED * slow:
        return None
    return _Faster(
        {name: next(iter(taken)) for name, taken in carries.items()},
        {name: better[name] for name in carries},
        f"at most {slow:.2g} Gb/s between two nodes",
        f"at least {fast:.2g}",
        [
            seen("exchanges of two nodes in the job", f"{slow:.3g} Gb/s the best"),
            seen("bursts over TCP before it", f"{fast:.3g} Gb/s the worst"),
        ],
    )


def _reported(cluster: Cluster) -> _Faster | None:
    """By the speeds of cards; of gloo alone, for where NCCL puts its data is known after a job only."""
    if not lan.uses_gloo(cluster) or any(_of_amd(node) for node in cluster.nodes):
        return None
    links = [lan.link(node, lan.choice_of_gloo(node)) for node in cluster.nodes]
    taken = [link for link in links if link is not None and link.interface.kind == "physical"]
    slow = [flows.reported_gbit(link.interface.speed_mbit) for link in taken]
    if len(taken) < len(cluster.nodes) or not all(slow):
        return None
    for network in _shared(cluster):
        others = {node.name: _in_network(node, network) for node in cluster.nodes}
        fast = {name: flows.reported_gbit(interface.speed_mbit) for name, interface in others.items() if interface}
        if len(fast) == len(taken) and min(fast.values()) >= _REPORTED * max(slow):
            evidence = [
                seen(f"/sys/class/net/NAME/speed on {link.node}",
                     f"{link.interface.name} {rate:g} Gb/s, {_name(others[link.node])} {fast[link.node]:g} Gb/s")
                for link, rate in zip(taken, slow, strict=True)
            ]  # fmt: skip
            return _Faster(
                {link.node: link.interface.name for link in taken},
                {name: _name(interface) for name, interface in others.items()},
                f"{max(slow):g} Gb/s",
                f"{min(fast.values()):g} Gb/s",
                evidence[:4],
            )
    return None


def _of_amd(node: Node) -> bool:
    """Whether torch is built for AMD's GPUs: RCCL carries their data, over HCAs that no rule here judges."""
    return "rocm" in value_or(at(node, "stack.torch"), "")


def _name(interface: Interface | None) -> str:
    return interface.name if interface else ""


def _shared(cluster: Cluster) -> list[lan.IPNetwork]:
    """The subnets in which every node has a card with a link."""
    of_nodes = [{net for card in _cards(node) for _, net in lan.global_networks(card)} for node in cluster.nodes]
    return sorted(set.intersection(*of_nodes), key=str) if of_nodes else []


def _in_network(node: Node, network: lan.IPNetwork) -> Interface | None:
    interfaces = [card for card in _cards(node) if network in {net for _, net in lan.global_networks(card)}]
    return max(interfaces, key=lambda interface: flows.reported_gbit(interface.speed_mbit), default=None)


def _cards(node: Node) -> list[Interface]:
    listed = value_or(at(node, "network.interfaces"), [])
    return [interface for interface in listed if interface.kind == "physical" and lan.is_usable(interface)]

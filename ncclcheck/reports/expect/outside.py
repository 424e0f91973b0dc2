"""What a node can send to the others: by the ports that NCCL takes and their PCIe links, or by its interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ncclcheck.probes.facts import Cluster, Node, PciDevice, Unread, at, value_or
from ncclcheck.reports.expect.formulas import gts, pcie
from ncclcheck.reports.expect.unseen import unseen
from ncclcheck.reports.subjects.links import flows
from ncclcheck.reports.subjects.links.reached import reached
from ncclcheck.reports.subjects.nccl import lan, wiring
from ncclcheck.reports.subjects.nccl.carrying import carrying
from ncclcheck.reports.subjects.nccl.hca import UsedPort
from ncclcheck.reports.subjects.nccl.variables import values

Carrier = Literal["rdma", "socket", "burst"]

_BURST_GBIT = 2.0  # beyond it a core may have set the pace of a single stream, and not the link
_GLOO_GBIT = 10.0  # Gb/s beyond which gloo is bound by cores, so that no expectation is made of it; chosen
_WITHOUT_PCIE = ("GB200", "GB300", "GH200")


@dataclass(frozen=True)
class Rate:
    """What one node can send, GB/s. usual: whether it is known how much of it sound clusters reach, else why not.

    limited: nothing can pass it; a measured burst limits nobody.
    """

    gb_s: float
    carrier: Carrier
    text: str
    unusual: str = ""
    limited: bool = True


def slowest(cluster: Cluster, own: int) -> Rate | str:
    """The rate of the node that sets the pace, with `own` ranks on each node; else why there is none."""
    rates: dict[str, Rate] = {}
    bursts = {} if not lan.uses_gloo(cluster) and _all_rdma(cluster) else _bursts(cluster)
    for node in cluster.nodes:
        speed = _of_node(cluster, node, own, bursts.get(node.name))
        if isinstance(speed, str):
            return f"{speed} ({node.name})"
        rates[node.name] = speed
    if len({rate.carrier == "rdma" for rate in rates.values()}) > 1:
        return "some nodes would use RDMA and others TCP"
    name = min(rates, key=lambda rate: rates[rate].gb_s)
    others = [rate.gb_s for rate in rates.values() if rate.gb_s > rates[name].gb_s]
    each = " a node" if rates[name].carrier == "rdma" else ""
    least = f", {name} the least" if others else ""
    return replace(rates[name], text=f"{rates[name].text}{each}{least}")


def _all_rdma(cluster: Cluster) -> bool:
    return all(wiring.choice(node).used or wiring.efa(node) for node in cluster.nodes)


def _of_node(cluster: Cluster, node: Node, own: int, burst: float | None) -> Rate | str:
    network = values(node).get("NCCL_NET", "")
    if lan.uses_gloo(cluster) or network == "Socket":
        return _socket(cluster, node, burst)
    devices = at(node, "rdma.devices")
    if isinstance(devices, Unread) and devices.kind != "absent":
        raise unseen(node, "the HCAs", devices)
    plugins = value_or(at(node, "nccl.plugins"), [])
    if wiring.efa(node) and plugins:
        ports = [UsedPort(hca, port) for hca in wiring.efa(node) for port in value_or(hca.ports, [])]
        return _rdma(node, own, ports)
    if taken := wiring.choice(node).used:
        return _rdma(node, own, taken)
    if plugins or network not in ("", "IB"):
        return (
            f"a network plugin ({network or ', '.join(plugins)}) carries the data, over links that are not known"
        )
    return _socket(cluster, node, burst)


def _rdma(node: Node, own: int, ports: Sequence[UsedPort]) -> Rate:
    """B = sum over NICs of min(rate, PCIe), and no more than the GPUs of the ranks send over their own PCIe."""
    cards = at(node, "gpus.cards")
    if isinstance(cards, Unread):
        raise unseen(node, "the GPUs", cards)
    slots: dict[str, list[UsedPort]] = {}
    for port in carrying(node, ports):
        if isinstance(port.port.rate_gbit, Unread):
            raise unseen(node, f"the rate of {port.name}", port.port.rate_gbit)
        slots.setdefault(value_or(port.hca.pci, port.name).rpartition(".")[0] or port.name, []).append(port)
    links = {device.name.rpartition(".")[0]: device for device in wiring.functions(node, "nic")}
    parts = [_slot(node, of_slot, links.get(slot)) for slot, of_slot in slots.items()]
    total, text = sum(gb_s for gb_s, _ in parts), _sum([part for _, part in parts])
    over_pcie = own * _gpu_pcie(node)
    if over_pcie and over_pcie < total:
        total, text = over_pcie, f"{own} GPU{'s' * (own > 1)} over PCIe, {over_pcie:.3g} GB/s"
    every = len(cards) + len(value_or(at(node, "gpus.others"), []))
    some = f"{own} of {every} GPUs of a node take part, and which NICs serve those is not known"
    return Rate(total, "rdma", text, some if own != every else "")


def _slot(node: Node, ports: Sequence[UsedPort], device: PciDevice | None) -> tuple[float, str]:
    """What the ports of one slot carry; a virtual machine does not see the real link."""
    rates = [value_or(port.port.rate_gbit, 0.0) for port in ports]
    link = device.link if device and wiring.is_virtual(node) is False else None
    most = pcie(link.gts, link.width) if link and not isinstance(link, Unread) else 0.0
    if 0 < most < sum(rates) / 8:
        return most, f"PCIe {most:.3g} GB/s"
    return sum(rates) / 8, _sum([f"{rate:g} Gb/s" for rate in rates])


def _sum(parts: Sequence[str]) -> str:
    """`8 x 400 Gb/s`."""
    counted = Counter(parts)
    return " + ".join(f"{times} x {part}" if times > 1 else part for part, times in counted.items())


def _gpu_pcie(node: Node) -> float:
    """The slowest PCIe link among the GPUs at its full speed, for an idle link slows down; 0 where unknown."""
    rates = []
    for card in value_or(at(node, "gpus.cards"), []):
        by_other_way = any(name in value_or(card.model, "") for name in _WITHOUT_PCIE)
        if by_other_way or isinstance(card.pcie_gen_max, Unread) or isinstance(card.pcie_width, Unread):
            return 0.0
        rates.append(pcie(gts(card.pcie_gen_max), card.pcie_width))
    return min(rates, default=0.0)


def _bursts(cluster: Cluster) -> dict[str, float]:
    """By node the best stream that it sent or received before the job, whichever direction is slower; Gb/s.

    As it was counted: what a stream might have carried with a core of its own would be no bound.
    """
    reach = reached(cluster)
    best: dict[tuple[str, int], float] = {}
    for pair, peer in reach.seen.items() if reach else ():
        for way, node in enumerate(pair):
            best[node, way] = max([best.get((node, way), 0.0), *map(flows.gbit, peer.bursts)])
    both = {n: min(best[n, 0], best[n, 1]) for n, way in best if way == 0 and (n, 1) in best}
    return {node: rate for node, rate in both.items() if rate}


def _socket(cluster: Cluster, node: Node, burst: float | None) -> Rate | str:
    """The speed of the interfaces that the job uses, and what a single stream carried where that was little."""
    interfaces = at(node, "network.interfaces")
    if isinstance(interfaces, Unread):
        raise unseen(node, "the interfaces", interfaces)
    gloo = lan.uses_gloo(cluster)
    choice = lan.choice_of_gloo(node) if gloo else lan.choice_of_nccl(node)
    used = [interface for interface in interfaces if interface.name in choice.names]
    if not used or any(interface.kind == "loopback" for interface in used):
        return f"the job would use {', '.join(choice.names) or 'no interface'}"
    name = "+".join(interface.name for interface in used)
    slow = burst if burst is not None and burst < _BURST_GBIT else None
    speeds = [0 if isinstance(interface.speed_mbit, Unread) else interface.speed_mbit for interface in used]
    gbit = sum(speeds) / 1000
    if slow is not None and (slow < gbit or not all(speeds)):
        reported = f", of {gbit:g} Gb/s that it reports" if all(speeds) else ""
        text = f"{name}, {slow:.2g} Gb/s by a TCP stream before the job{reported}"
        return Rate(slow / 8, "burst", text, limited=False)
    if not all(speeds):
        return f"{name} reports no speed, and a core may set the pace of what it carried before the job"
    unusual = f"several interfaces ({name}) share the work" if len(used) > 1 else ""
    if gloo and gbit > _GLOO_GBIT:
        unusual = f"beyond {_GLOO_GBIT:g} Gb/s the cores set the pace of gloo, and not {name}"
    return Rate(gbit / 8, "socket", f"{name} at {gbit:g} Gb/s", unusual)

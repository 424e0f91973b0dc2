"""What the GPUs of one node can exchange: over NVLink, with or without a switch that reduces, or over PCIe."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, Gpu, Node, NvFabric, Unread, at, known, value_or
from ncclcheck.reports.expect.formulas import gts, nvlink_ring, nvls, pcie
from ncclcheck.reports.expect.unseen import unseen
from ncclcheck.reports.subjects.nccl.variables import nccl_version, parse_int, values

_RAW_MBPS = 26562  # what NVML says of a link of 25 GB/s; later ones are multiples of it
_LEAST_PUBLISHED = 5  # GPUs of a node: nothing is published for fewer, so nothing is expected of them
_NVLS_SINCE = (2, 17, 1)  # the first NCCL with NVLink SHARP
# The parts of NVLink that 8 GPUs reached in published runs: as a ring, and where the switch reduces.
_EFFICIENCY: dict[str, tuple[float, float | None]] = {
    "A100": (0.78, None),
    "H100": (0.82, 0.681),
    "H200": (0.82, 0.681),
    "B200": (0.76, 0.602),
}


@dataclass(frozen=True)
class Inside:
    """GB/s within a node. limit: of one GPU. ring, in_switch: what healthy nodes reach as busbw, None: unknown."""

    limit: float
    nvlink: bool
    text: str
    gpus: int = 0
    switched: bool = False
    ring: float | None = None
    in_switch: float | None = None
    unusual: str = ""

    def most(self, op: str) -> float:
        """What no busbw within the node can pass."""
        return nvls(self.limit, self.gpus, 1.0) if op == "all_reduce" and self.switched else self.limit


def slowest(cluster: Cluster, own: int) -> Inside | str:
    """The node that sets the pace, with `own` GPUs of each; else why nothing is known."""
    floors = []
    for node in cluster.nodes:
        floor = _of_node(node, own)
        if isinstance(floor, str):
            return f"{floor} ({node.name})"
        floors.append(floor)
    return min(floors, key=lambda inside: (inside.nvlink, inside.limit), default="no node has reported its facts")


def one_domain(cluster: Cluster) -> bool:
    """Whether NVLink joins GPUs of several nodes, as in a rack of GB200."""
    domains = set()
    for node in cluster.nodes:
        for card in value_or(at(node, "gpus.cards"), []):
            fabric = card.fabric if isinstance(card.fabric, NvFabric) else NvFabric(state="not_started")
            domains.add((fabric.cluster.strip("0-"), fabric.clique))
    return len(domains) == 1 and bool(domains.pop()[0])


def _of_node(node: Node, own: int) -> Inside | str:
    cards = at(node, "gpus.cards")
    if isinstance(cards, Unread):
        raise unseen(node, "the GPUs", cards)
    if own > len(cards):
        return f"it has {own} ranks and {len(cards)} GPUs"
    least = min(_nvlink(node, card) for card in cards)
    return _over_nvlink(node, cards, own, least) if least else _over_pcie(node, cards)


def _nvlink(node: Node, card: Gpu) -> float:
    """GB/s of all NVLinks of a GPU that are up; by the nominal rate, of which the raw one is a little more."""
    links = card.nvlinks
    if isinstance(links, Unread):
        if links.kind == "absent":
            return 0.0
        raise unseen(node, f"the NVLinks of {card.name}", links)
    up = links.links - len(links.down)
    if up and isinstance(links.speed_mbps, Unread):
        raise unseen(node, f"the rate of the NVLinks of {card.name}", links.speed_mbps)
    return up * 25.0 * round(value_or(links.speed_mbps, 0) / _RAW_MBPS)


def _over_nvlink(node: Node, cards: list[Gpu], own: int, link: float) -> Inside:
    model = value_or(cards[0].model, "")
    fabric = all(isinstance(card.fabric, NvFabric) and card.fabric.state == "completed" for card in cards)
    named = re.search(rf"\b({'|'.join(_EFFICIENCY)})\b", model)
    text = f"NVLink at {link:g} GB/s a GPU"
    if named is None or not (fabric or "SXM" in model):
        why = f"what healthy nodes reach over NVLink is not published for {model or 'this GPU'} without NVSwitch"
        return Inside(link, True, text, own, fabric, unusual=why)
    ring, switch = _EFFICIENCY[named[1]]
    off = parse_int(values(node).get("NCCL_NVLS_ENABLE", "")).value == 0
    able = fabric and switch and not off and (nccl_version(node) or _NVLS_SINCE) >= _NVLS_SINCE
    return Inside(
        limit=link,
        nvlink=True,
        text=text,
        gpus=own,
        switched=fabric,
        ring=nvlink_ring(link, ring),
        in_switch=nvls(link, own, switch) if able and switch and own >= _LEAST_PUBLISHED else None,
        unusual="" if own >= _LEAST_PUBLISHED else f"nothing is published for {own} GPUs of a node",
    )


def _over_pcie(node: Node, cards: list[Gpu]) -> Inside:
    rates = []
    for card in cards:
        generation, width = card.pcie_gen_max, card.pcie_width
        for fact in (generation, width):
            if isinstance(fact, Unread):
                raise unseen(node, f"the PCIe link of {card.name}", fact)
        rates.append(pcie(gts(known(generation)), known(width)))
    why = "how much GPUs without NVLink reach depends on the host, and is not published"
    return Inside(min(rates), False, f"PCIe at {min(rates):.3g} GB/s a GPU", unusual=why)

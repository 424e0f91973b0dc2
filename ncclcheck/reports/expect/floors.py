"""What a healthy GPU of a model never falls below, and what its link to the host never does."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ncclcheck.probes.facts import Gpu, Node, Unread, at, value_or
from ncclcheck.reports.subjects.nccl import wiring

# Half precision without sparsity in TFLOP/s, and memory in GB/s, by NVIDIA's data sheets and white papers of these
# models. Of those that are held down by their power (L4: 72 W, A10: 150 W) half of that.
_MODELS: tuple[tuple[str, float, float], ...] = (
    (r"Tesla V100-SXM[23]", 125, 900),
    (r"Tesla V100-PCIE", 112, 900),
    (r"A100-SXM4-40GB|A100-PCIE-40GB", 312, 1555),
    (r"A100-SXM4-80GB|A100 80GB PCIe|A800", 312, 1935),
    (r"A10G", 35, 600),
    (r"A10\b", 62, 600),
    (r"A30\b", 165, 933),
    (r"A40\b", 149, 696),
    (r"L4\b", 60, 300),
    (r"L40S", 362, 864),
    (r"H100 80GB HBM3|H800", 989, 3350),
    (r"H100 PCIe", 756, 2000),
    (r"H100 NVL", 835, 3900),
    (r"H200( NVL)?\b", 835, 4800),
    (r"H20\b", 148, 4000),
    (r"GH200 480GB", 989, 4000),
    (r"G?B200\b", 2250, 7700),
    (r"GeForce RTX 3090(?! Laptop)", 71, 936),
    (r"GeForce RTX 4090(?! (?:Laptop|D))", 165, 1008),
)
# Of the data sheet. Products of 8192 x 8192 are said to reach 60 to 80 % of it on sound GPUs, copies within memory
# 85 to 93 %. None of this was measured with this program.
_PRODUCT, _MEMORY = 0.4, 0.5
# Of the raw rate of the PCIe link. Azure's health check asks for 48 of 63 GB/s on H100 and H200 and for 21 of 31.5
# on A100, Oracle's for 52; here all GPUs copy at once, out of the same memory.
_COPY = 0.25
_GB_S_A_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.56}
_BY_NVLINK = re.compile(r"\bG[HB][23]00\b")  # their way to the host is no PCIe


@dataclass(frozen=True)
class Floor:
    """The least value of one metric, and where that comes from. sure: a value below it is worth a warning."""

    metric: str
    least: float
    basis: str
    sure: bool = True


def model_of(node: Node) -> Gpu | None:
    """A GPU of the job on this node, where all are of one model and none is divided."""
    cards: list[Gpu] = value_or(at(node, "gpus.cards"), [])
    alike = len({value_or(card.model, "") for card in cards}) == 1
    whole = all(card.mig is not True and " MIG " not in value_or(card.model, "") for card in cards)
    return cards[0] if alike and whole else None


def known_model(card: Gpu) -> bool:
    """Whether there is a floor for it."""
    return _figures(card) is not None


def floors(node: Node, card: Gpu) -> list[Floor]:
    """Those of a node whose GPUs are of this card's model; none where it is not known."""
    figures = _figures(card)
    if figures is None:
        return []
    tflops, memory = figures
    limits = [Floor("memory_gb_s", _MEMORY * memory, f"{100 * _MEMORY:.0f} % of the data sheet's {memory:g} GB/s")]
    if not _held_down(card):
        basis = f"{100 * _PRODUCT:.0f} % of the data sheet's {tflops:g} TFLOP/s"
        limits.append(Floor("matmul_gflop_s", 1000 * _PRODUCT * tflops, basis))
    return limits + _copies(node, card)


def _figures(card: Gpu) -> tuple[float, float] | None:
    model = value_or(card.model, "")
    matches = ((tflops, memory) for name, tflops, memory in _MODELS if re.search(rf"\b(?:{name})", model))
    return next(matches, None)


def _held_down(card: Gpu) -> bool:
    """By a power limit below the default one."""
    return value_or(card.power_cap, 0.0) < 0.95 * value_or(card.power_default, 0.0)


def _copies(node: Node, card: Gpu) -> list[Floor]:
    """By the slowest link of the job's GPUs, parted where several share one way to the processor."""
    if _BY_NVLINK.search(value_or(card.model, "")):
        return []
    links = [(gpu.pcie_gen_max, gpu.pcie_width_max) for gpu in value_or(at(node, "gpus.cards"), [])]
    rates = [_GB_S_A_LANE.get(gen, 0.0) * width for gen, width in links
             if not isinstance(gen, Unread) and not isinstance(width, Unread)]  # fmt: skip
    sharing = _sharing(node)
    if not rates or len(rates) < len(links) or not min(rates) or not sharing:
        return []
    least = _COPY * min(rates) / sharing
    basis = f"{100 * _COPY:.0f} % of a PCIe link of {min(rates):.3g} GB/s" + (
        f", which {sharing} GPUs share" if sharing > 1 else ""
    )
    return [Floor(name, least, basis, sure=False) for name in ("to_device_gb_s", "from_device_gb_s")]


def _sharing(node: Node) -> int:
    """How many GPUs at most hang below one root port; 0 where that cannot be seen, as in a guest."""
    gpus = wiring.functions(node, "gpu")
    ports = [value_or(device.path, [])[:1] for device in gpus]
    return max((ports.count(port) for port in ports), default=0) if all(ports) else 0

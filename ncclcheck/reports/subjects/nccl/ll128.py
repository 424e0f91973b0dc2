"""Where NCCL uses the protocol LL128 by itself, for 128 bytes are stored as a whole on all of the way.

Source: NVIDIA/nccl src/graph/tuning.cc, ncclTopoTuneModel (2.18 to 2.30).
"""

from __future__ import annotations

from ncclcheck.probes.facts import Gpu, Node, NvLinks, at, value_or
from ncclcheck.reports.subjects.nccl import carrying, wiring

_THROUGH_ANOTHER_GPU = ("H100", "H200", "H20", "GH200", "B200", "B300", "GB200", "GB300")  # PXN: from Hopper on
_WITH_NVLINK = ("V100", "A100", "A800", "H800", *_THROUGH_ANOTHER_GPU)
_NEAR = ("PIX", "PXB")


def is_safe(node: Node) -> bool:
    """GPUs of one such model whose NVLinks are up, and a NIC below their own switches; unknown is not safe."""
    cards = value_or(at(node, "gpus.cards"), [])
    models = {value_or(card.model, "") for card in cards}
    if len(models) != 1 or not all(map(_has_nvlink, cards)):
        return False
    (model,) = models
    if not any(name in model for name in _WITH_NVLINK):
        return False
    return _near(node, all_of_them=not any(name in model for name in _THROUGH_ANOTHER_GPU))


def _has_nvlink(card: Gpu) -> bool:
    return isinstance(card.nvlinks, NvLinks) and card.nvlinks.links > len(card.nvlinks.down)


def _near(node: Node, *, all_of_them: bool) -> bool:
    """Whether every GPU, or for PXN one at least, has a NIC near it; a node without NICs has no network by it."""
    gpus = wiring.functions(node, "gpu")
    used = {port.hca.pci for port in carrying.choice(node).used}
    nics = [function for function in wiring.functions(node, "nic") if function.name in used]
    near = [wiring.nearest([wiring.distance(gpu, nic) for nic in nics]) in _NEAR for gpu in gpus]
    return bool(near) and (all(near) if all_of_them else any(near))

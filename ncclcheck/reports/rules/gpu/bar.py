"""GPU060: network cards reach all of a GPU's memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Gpu, Node, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fine, note, seen, warn
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import carrying
from ncclcheck.reports.text.words.fold import many, size

# Boards with that much memory have a window over all of it; of smaller ones T4 and P4 have 256 MiB for good.
_LARGE = 30 * 2**30
_NO_GPUDIRECT = re.compile(r"GeForce|TITAN", re.IGNORECASE)
_SLICE = re.compile(r"-\d+(-\d+)?[CQBA]\b")  # NVIDIA A30-8C: a share that the hypervisor gives


@rule("GPU060", "BAR1 is as large as the GPU's memory", worst=State.WARN,
      needs=("gpus.cards",))  # fmt: skip
def bar1(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    BAR1 of each GPU beside which an HCA carries data: at least as large as the GPU's memory.

    ## Why it matters
    Through BAR1 network cards read and write a GPU's memory. Where it is small, only so much can be registered for
    GPUDirect RDMA: `ibv_reg_mr` fails with `Cannot allocate memory` or `Bad address` once buffers of many peers,
    or a registered tensor, no longer fit, and only then. A BIOS without `Above 4G Decoding`, or a virtual machine
    with too small an MMIO window, makes it small.

    ## Seen as
    out of memory

    ## How we know
    nvmlDeviceGetBAR1MemoryInfo and nvmlDeviceGetMemoryInfo. A warning for boards of 30 GiB and more whose window
    holds less than half of it; else a note, for a T4 has 256 MiB by design and runs NCCL within it. GPUs that a
    CPU reaches over NVLink-C2C, GeForce boards, MIG instances and shares (vGPU) are not judged.

    ## Fix
    - **admin** `Above 4G Decoding` and a large MMIO window in the BIOS; of a virtual machine, 64-bit MMIO space of
      twice the GPUs' memory (OVMF: `X-PciMmio64Mb`).
    - **you** until then `NCCL_NET_GDR_LEVEL=LOC` copies through the host.

    ## Source
    Mellanox/nv_peer_memory#101 (256 MiB of a T4), Mellanox/nv_peer_memory#27, openucx/ucx#8049; NVIDIA, GPUDirect
    RDMA, Display BAR Space.
    """
    nodes = [(node, cards) for node, _ in carrying.using(cluster) if (cards := _judged(node))]
    if not nodes:
        raise NothingToJudge("no GPU that HCAs reach through BAR1")
    for node, cards in nodes:
        small = [card for card in cards if known(card.bar1) < known(card.memory_total)]
        for card in small:
            yield _small(node, card)
        if not small:
            yield fine(Where(node=node.name), f"{many(len(cards), 'GPU')} with all memory behind BAR1")


def _judged(node: Node) -> list[Gpu]:
    cards = value_or(at(node, "gpus.cards"), [])
    return [card for card in cards if _is_reached(card)]


def _is_reached(card: Gpu) -> bool:
    model = value_or(card.model, "GeForce")
    if isinstance(card.bar1, Unread) or isinstance(card.memory_total, Unread) or card.mig is True:
        return False
    return card.bar1 > 0 and not _NO_GPUDIRECT.search(model) and not _SLICE.search(model)


def _small(node: Node, card: Gpu) -> Finding:
    window, memory = known(card.bar1), known(card.memory_total)
    level = warn if memory >= _LARGE and window * 2 < memory else note
    return level(
        Where(node=node.name, device=card.name),
        f"BAR1 is {size(window)} and the memory {size(memory)}",
        why="Of memory beyond it nothing can be registered for GPUDirect RDMA: ibv_reg_mr fails once it is full.",
        owner="node",
        evidence=[seen("nvmlDeviceGetBAR1MemoryInfo", window), seen("nvmlDeviceGetMemoryInfo", memory)],
        fix=[admin("Let the BIOS, or the hypervisor, give the GPU its whole window.",
                   "nvidia-smi -q -d MEMORY | grep -A3 BAR1", f"lspci -vs {value_or(card.pci, '')}")],
    )  # fmt: skip

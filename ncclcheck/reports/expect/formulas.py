"""What bandwidth can be at most, by formula: GB/s of 1e9 bytes, one direction, busbw as nccl-tests counts it.

n: ranks of the job, k: nodes, g = n/k: ranks of a node, S: bytes that a rank reduces or ends up with.
"""

from __future__ import annotations

# share of a PCIe link's coded rate that is payload: the rest is packet headers and credits; chosen
_PAYLOAD = 0.88
_OF_GENERATION = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


def gts(generation: int) -> float:
    """The transfer rate of a PCIe generation, GT/s a lane; 0 for one that is not known."""
    return _OF_GENERATION.get(generation, 0.0)


def pcie(gts: float, width: int) -> float:
    """0.88 x lanes x rate after line coding: what packets of a link carry beside their headers.

    Coding: 8b/10b up to 5 GT/s, 128b/130b up to 32, none to speak of in 64. Gives 13.9, 27.7 and 55.4 for x16 of
    generations 3 to 5; one GPU behind four 400 Gb/s NICs reached 41 to 50 (nccl-tests#232).
    """
    coding = 0.8 if gts <= 5 else 128 / 130 if gts <= 32 else 1.0
    return _PAYLOAD * coding * gts * width / 8


def outside(rate: float, ranks: int, nodes: int) -> float:
    """B x k(n-1) / (n(k-1)): no algorithm without reduction in the network can pass it.

    A node must send and receive at least the share of the other nodes: 2S(k-1)/k for all_reduce, S(k-1)/k for
    all_gather and reduce_scatter. A flat ring stays below B; trees come nearer to this, which for two nodes is
    almost 2B: 125 Gb/s were seen on a 100 Gb/s adapter (nccl-tests#22; NVIDIA/nccl#209).
    """
    return rate * nodes * (ranks - 1) / (ranks * (nodes - 1))


def in_network(rate: float, ranks: int) -> float:
    """2B(n-1)/n, all_reduce where switches reduce (SHARP): each node sends S once and receives S once."""
    return 2 * rate * (ranks - 1) / ranks


def all_to_all(rate: float, ranks: int, nodes: int) -> float:
    """(B/g) x (n-1)/(n-g): each of the g ranks of a node sends S/n to every rank elsewhere."""
    own = ranks // nodes
    return rate / own * (ranks - 1) / (ranks - own)


def nvlink_ring(link: float, efficiency: float) -> float:
    """e x L within a node, L: NVLinks x rate of a GPU. Protocol takes about a fifth of L.

    e from published runs on 8 GPUs: A100 234.9 of 300, H200 367.6 of 450, B200 682 of 900 (stas00/ml-engineering).
    """
    return efficiency * link


def nvls(link: float, gpus: int, efficiency: float) -> float:
    """eta x L x 2(n-1)/(n+1), all_reduce within a node where NVSwitch reduces (NVLS).

    A GPU moves S(1 + 1/n) each way, for the switch reduces on the way in and copies on the way out. eta from
    published runs: H200 473.1 on 8 GPUs, B200 838 on 8 (stas00/ml-engineering); H100 477.9 (Azure).
    """
    return efficiency * link * 2 * (gpus - 1) / (gpus + 1)


def widened(busbw: float, gpus: int, ranks: int) -> float:
    """[(n-1)/n] / [(g-1)/g]: the bandwidth of one node's part as busbw of the whole job."""
    return busbw * ((ranks - 1) / ranks) / ((gpus - 1) / gpus)

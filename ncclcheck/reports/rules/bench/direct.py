"""BEN010, BEN011: GPUs of one node talk directly, and HCAs read and write their memory."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, NvLinks, Unread, at, value_or
from ncclcheck.reports.judgement.findings import Finding, State, admin, fine, seen, unknown, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.job.used import UsedRanks, by_nccl
from ncclcheck.reports.subjects.nccl.settings import settings_of
from ncclcheck.reports.subjects.nodes.cards import peers
from ncclcheck.reports.text.words.fold import fold_names

_WITHOUT_P2P = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_HOSTID", "NCCL_SHM_DISABLE")
_WITHOUT_GDR = ("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE")


@rule(
    "BEN010",
    "GPUs of a node use peer-to-peer transfers where they can",
    worst=State.WARN,
    over="measurements.transport",
    commands=("bench",),
    between_machines=True,
)
def direct_within_a_node(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Connections within a node that go through shared memory (SHM) or the network (NET), though all of its GPUs have
    NVLinks that are up, or peer access below one PCIe switch.

    ## Why it matters
    Each byte goes through the host's memory, or out of the network card and back: all_reduce within the node is
    several times slower, and every ring goes through it. P2P is lost to ACS, to virtual machines, to ranks in
    containers of their own, and to an NCCL_P2P_DISABLE=1 that once helped somebody.

    ## Seen as
    slow

    ## How we know
    The lines `via SHM` and `via NET` of NCCL's log between ranks of the same node, against NVML's NVLinks and peer
    status. Cards that have no peer access are sound with SHM (GPU021 speaks of them).

    ## Fix
    - **you** `unset NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE`; run all ranks of a node in one container.
    - **admin** turn ACS off on the bridges above the GPUs (FAB rules say where), share IPC and /dev/shm.

    ## Source
    NCCL user guide, Troubleshooting, GPU-to-GPU communication; NVIDIA/nccl#2079, NVIDIA/nccl#631.
    """
    judged = [use for use in by_nccl(cluster) if use.kinds("intra")]
    if not judged:
        raise NothingToJudge("no connection within a node was seen")
    for used in judged:
        detour = {kind: count for kind, count in used.kinds("intra").items() if kind.startswith(("SHM", "NET"))}
        way = _direct_way(used.node)
        if not detour or way == "":
            yield fine(used.where, f"within the node {', '.join(sorted(used.kinds('intra')))}", used.seen("intra"))
        elif way is None:
            yield unknown(
                used.where,
                f"{', '.join(sorted(detour))} was used within the node, and what its GPUs can do was not read",
                why="Shared memory is right for GPUs without peer access, and slow for all others.",
                evidence=[used.seen("intra")],
            )
        else:
            yield _detour(used, detour, way)


def _direct_way(node: Node) -> str | None:
    """How all GPUs of the node could talk directly; empty where they cannot, None where it is not known."""
    cards = at(node, "gpus.cards")
    if isinstance(cards, Unread):
        return None if cards.kind != "absent" else ""
    links = [card.nvlinks for card in cards]
    if len(cards) > 1 and all(isinstance(link, NvLinks) and link.links > len(link.down) for link in links):
        return "NVLink"
    pairs = [peer for some in peers(node).values() for peer in some]
    if not pairs or any(isinstance(peer.p2p, Unread) or isinstance(peer.path, Unread) for peer in pairs):
        return None if len(cards) > 1 else ""
    near = all(peer.p2p == "ok" and peer.path in ("INT", "PIX", "PXB") for peer in pairs)
    return "peer access over one PCIe switch" if near else ""


def _detour(used: UsedRanks, detour: dict[str, int], way: str) -> Finding:
    own = settings_of(used.node).evidence(*_WITHOUT_P2P)
    fix = [admin("Look for ACS on the bridges above the GPUs, and share IPC between containers of one job.",
                 "lspci -vvv | grep ACSCtl", "docker run --ipc=host IMAGE")]  # fmt: skip
    if own:
        fix = [you("Remove what turns it off.", "unset " + " ".join(e.value.partition("=")[0] for e in own))]
    return warn(
        used.where,
        f"GPUs of the node talked over {' and '.join(sorted(detour))}, though they have {way}",
        why="All data within the node takes a detour through the host: several times slower.",
        owner="job" if own else "node",
        evidence=[used.seen("intra"), seen("NVML", way), *own],
        fix=fix,
    )


@rule(
    "BEN011",
    "GPUDirect RDMA is used where the hardware supports it",
    worst=State.WARN,
    over="measurements.transport",
    commands=("bench",),
)
def gpudirect_used(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Connections `via NET/IB/n` without `/GDRDMA`, on a node where NCCL itself said that the HCA can reach the
    memory of GPUs, where the kernel's module for it is loaded, or while other nodes of the same job use it.

    ## Why it matters
    Without GPUDirect RDMA each byte is copied through the host's memory first: 10 GB/s instead of 180 were
    measured. One node without it sets the pace of all.

    ## Seen as
    slow

    ## How we know
    NCCL's log of this job. `Enabled for HCA` in it and no GDRDMA on any connection: GPU and HCA are too far from
    each other (NCCL's default asks for a common PCIe switch), or NCCL_NET_GDR_LEVEL was set. `Disabled` with
    nvidia_peermem loaded: NCCL before 2.23 does not see it.

    ## Fix
    - **you** `unset NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ`; NCCL 2.23 or later.
    - **admin** `modprobe nvidia-peermem` on the node that lacks it; put HCA and GPU below one PCIe switch.

    ## Source
    NVIDIA/nccl#897 (peermem was missing on one of two nodes), NVIDIA/nccl#1676, NVIDIA/nccl#1343; NCCL user guide,
    NCCL_NET_GDR_LEVEL.
    """
    judged = [use for use in by_nccl(cluster) if any("NET/" in kind for kind in _over_rdma(use))]
    if not judged:
        raise NothingToJudge("no connection over RDMA was seen")
    direct = {use.node.name for use in judged if any("GDRDMA" in kind for kind in _over_rdma(use))}
    for used in judged:
        if used.node.name in direct:
            yield fine(used.where, "GPUDirect RDMA is used", used.seen("inter"))
        elif reason := _could_be_direct(used, direct):
            yield _not_direct(used, reason)


def _over_rdma(used: UsedRanks) -> list[str]:
    kinds = [kind for peers in ("inter", "unknown", "intra") for kind in used.kinds(peers)]
    return [kind for kind in kinds if kind.startswith("NET/IB")]


def _could_be_direct(used: UsedRanks, direct: set[str]) -> str:
    """Why it should have been; empty where nothing says so."""
    able = sorted({device.name for rank in used.ranks for device in rank.devices if device.gpudirect})
    modules = value_or(at(used.node, "rdma.peer_modules"), [])
    if able:
        return f"NCCL reported that it is enabled for {fold_names(able)}"
    if modules:
        return f"{modules[0]} is loaded"
    return f"{_some(direct)} used it in the same job" if direct else ""


def _some(names: set[str]) -> str:
    """The first few of many: one example is enough."""
    listed = sorted(names)[:4]
    return fold_names(listed) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _not_direct(used: UsedRanks, reason: str) -> Finding:
    own = settings_of(used.node).evidence(*_WITHOUT_GDR)
    by_card = [f"{d.name}: {'enabled' if d.gpudirect else 'disabled'}"
            for d in used.ranks[0].devices if d.gpudirect is not None]  # fmt: skip
    fix = [admin("Load the module, and look how far HCA and GPU are from each other.",
                 "modprobe nvidia-peermem", "nvidia-smi topo -m")]  # fmt: skip
    if own:
        fix = [you("Remove what turns it off.", "unset " + " ".join(e.value.partition("=")[0] for e in own)), *fix]
    return warn(
        used.where,
        f"RDMA went without GPUDirect, though {reason}",
        why="What goes over the network is copied through the host's memory: a tenth of the speed was measured.",
        owner="job" if own else "node",
        evidence=[
            used.seen("inter", "unknown"),
            *([seen("NCCL's log, by HCA", ", ".join(by_card))] if by_card else []),
            *own,
        ],
        fix=fix,
    )

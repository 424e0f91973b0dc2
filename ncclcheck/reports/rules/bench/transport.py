"""BEN005: between nodes the job ran over the best transport that is there."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, at, value_or
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    note,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.job.used import UsedRanks, has_fact, unseen, used
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nccl.settings import settings_of
from ncclcheck.reports.text.words.fold import fold_names

_LAYERS = ("InfiniBand", "Ethernet")
_WITHOUT_RDMA = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_IB_HCA")
_SLOW = "Data between nodes goes through the kernel's TCP: a tenth of the speed of RDMA, or less."


@rule(
    "BEN005",
    "the job uses the fastest transport available",
    worst=State.FAIL,
    over="measurements.transport",
    commands=("bench",),
)
def best_transport(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How the ranks of the measured job were actually connected. Plain TCP between nodes (NET/Socket) is wrong where
    an HCA with an active port, or an EFA device, is there.

    ## Why it matters
    NCCL falls back to TCP without an error: a container without /dev/infiniband, libibverbs that is missing from
    the image, a plugin that is not found. The job runs at a tenth of its speed or less; 3 GB/s instead of 489 were
    seen for weeks. Only the log says so.

    ## Seen as
    slow, setting without effect

    ## How we know
    `bench` runs its ranks with NCCL_DEBUG=INFO into a file of its own and counts the lines `via NET/IB`,
    `via NET/Socket`, `via P2P`...; what the HCAs are is read from /sys/class/infiniband. FAIL with InfiniBand and
    EFA; a warning with Ethernet cards that can do RoCE, for not every network carries it; one level lower where
    your own NCCL_IB_DISABLE or NCCL_NET asks for TCP. Nodes without an HCA are sound with TCP. Where your own
    NCCL_DEBUG_FILE and a lower NCCL_DEBUG keep the log silent, it is unknown. gloo knows TCP alone; there the
    sockets of the ranks are read.

    ## Fix
    - **you** `unset NCCL_IB_DISABLE`, and NCCL_NET; take an image with libibverbs and the provider (rdma-core).
    - **admin** containers: `--device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1`; EC2: the EFA plugin.

    ## Source
    NVIDIA/nccl#451, vllm-project/vllm#42075, NVIDIA/aicr#2689, areal-project/AReaL#639; NCCL user guide,
    Troubleshooting, Networking issues.
    """
    yield from unseen(cluster)
    shared: dict[str, list[UsedRanks]] = {}
    several = len({rank.node for rank in cluster.measurements.transport}) > 1
    for use in used(cluster):
        bad = _sockets(use) if several and use.ranks[0].source == "log" and _over_sockets(use) else None
        if bad:
            yield bad
        else:
            shared.setdefault(_summary(use), []).append(use)
    for summary, alike in shared.items():
        where = alike[0].where if len(alike) == 1 else Where()
        names = f"{fold_names(member.node.name for member in alike)}: " if len(alike) > 1 else ""
        yield fine(where, names + summary, alike[0].seen("inter", "intra", "unknown"))


def _over_sockets(use: UsedRanks) -> bool:
    """By its connections between nodes; before NCCL has made one, by what it chose."""
    kinds = use.kinds("inter")
    return "NET/Socket" in kinds or (not kinds and use.network == "Socket")


def _summary(use: UsedRanks) -> str:
    """What a person looks for: which transport, over what."""
    if use.ranks[0].source == "sockets":
        names = ", ".join(dict.fromkeys(endpoint.interface or endpoint.address for endpoint in use.interfaces))
        return f"gloo over TCP, by {names}" if names else "gloo, without a connection to another rank"
    devices = {device.name.removesuffix(":1") for rank in use.ranks for device in rank.devices}
    within, between = (", ".join(sorted(use.kinds(peers))) for peers in ("intra", "inter"))
    if not (within or between) and use.network:
        return f"NCCL chose {use.network}"
    by = f" over {fold_names(sorted(devices))}" if devices and "Socket" not in between else ""
    parts = (f"between nodes {between}{by}" if between else "", f"within the node {within}" if within else "")
    return "; ".join(part for part in parts if part) or "no connection was made"


def _sockets(use: UsedRanks) -> Finding | None:
    """TCP between nodes: sound where nothing better is there."""
    if not has_fact(use.node, "rdma.devices"):
        why = at(use.node, "rdma.devices").why
        return unknown(
            use.where,
            f"TCP was used between nodes, and whether an HCA is there could not be read: {why}",
            why="TCP is right without an HCA, and a tenth of the speed with one.",
            evidence=[use.seen("inter"), seen("rdma.devices", why)],
        )
    better = _active(use.node)
    if not better:
        return None
    own = [item for item in settings_of(use.node).evidence(*_WITHOUT_RDMA) if _turns_off(item)]
    hcas = seen("/sys/class/infiniband", f"ACTIVE: {', '.join(better)}")
    return _slow(use, f"TCP (NET/Socket) was used between nodes, though {fold_names(better)} could be", hcas, own)


def _slow(use: UsedRanks, what: str, hcas: Evidence, own: list[Evidence]) -> Finding:
    """Ethernet cards can speak RoCE where their network does not carry it, and then TCP may be right."""
    why, evidence = _SLOW, [use.seen("inter"), hcas, *own, *_reason(use)]
    if not own:
        level = fail if _surely_rdma(use.node) else warn
        return level(use.where, what, why=why, owner="node", evidence=evidence, fix=_rdma_remedies())
    fix = [you("Remove what turns RDMA off.", "unset " + " ".join(item.value.partition("=")[0] for item in own))]
    what = f"{what}: {', '.join(item.value for item in own)}"
    if not _surely_rdma(use.node):
        return note(use.where, what, why="Right where the network carries no RoCE.", evidence=evidence, fix=fix)
    return warn(use.where, what, why=why, owner="job", evidence=evidence, fix=fix)


def _surely_rdma(node: Node) -> bool:
    """InfiniBand or EFA: there is no other use for them."""
    ports = [port for hca in value_or(at(node, "rdma.devices"), []) for port in value_or(hca.ports, [])]
    infiniband = any(port.state == "ACTIVE" and port.link_layer == "InfiniBand" for port in ports)
    return infiniband or bool(wiring.efa(node))


def _turns_off(item: Evidence) -> bool:
    name, _, value = item.value.partition("=")
    return value == "Socket" if name == "NCCL_NET" else value not in ("", "0")


def _active(node: Node) -> list[str]:
    """HCAs with an active port, and EFA devices."""
    efa = {hca.name for hca in wiring.efa(node)}
    devices = value_or(at(node, "rdma.devices"), [])
    return [
        hca.name
        for hca in devices
        if hca.name in efa
        or any(port.state == "ACTIVE" and port.link_layer in _LAYERS for port in value_or(hca.ports, []))
    ]


def _reason(use: UsedRanks) -> list[Evidence]:
    """NCCL's own word why it uses no RDMA."""
    reason = next((rank.no_infiniband for rank in use.ranks if rank.no_infiniband), "")
    return [seen("NCCL's log", reason)] if reason else []


def _rdma_remedies() -> list[Remedy]:
    return [
        you("See what NCCL says of it.", "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET"),
        admin(
            "Give the container the devices and the memory lock, and the image libibverbs with its provider.",
            "docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1 IMAGE",
            "ibv_devinfo",
        ),
    ]

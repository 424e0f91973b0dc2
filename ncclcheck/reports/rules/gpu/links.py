"""Rules about the ways between GPUs of one node: NVLink, the NVSwitch fabric, peer access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ncclcheck.probes.facts import Cluster, Gpu, Node, NvFabric, NvLinks, Unread, at, known, value_or
from ncclcheck.reports.judgement.derived import derived_from
from ncclcheck.reports.judgement.findings import Finding, State, admin, fail, fine, note, warn
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nodes.cards import Card, cards, leave_out, odd_ones, peers, reset

_GPUS = "nodes.gpus.cards"
_FABRIC_MANAGER = "systemctl status nvidia-fabricmanager"


@rule("GPU018", "every NVLink is up", worst=State.FAIL, over=_GPUS, needs=(".nvlinks",))
def links_up(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How many NVLinks of each GPU are active, against other GPUs of its model and, behind an NVSwitch, against all
    that it has.

    ## Why it matters
    A GPU whose links are down is reached over PCIe, ten times slower, or by way of the host; with one link of
    many down every ring through this GPU loses that share. NCCL says it in a line of its INFO log at most.

    ## Seen as
    slow

    ## How we know
    nvmlDeviceGetNvLinkState of every link. No link up while most GPUs of the model have some is a failure, some
    missing a warning. Cards without a bridge have none on all GPUs, which is sound. A GPU that is divided by MIG
    uses none and is not judged.

    ## Fix
    - **admin** `nvidia-smi nvlink -s`; reset the GPUs and the NVSwitches together; reseat the bridge or baseboard.
    - **you** leave the node out.

    ## Source
    nvidia-smi(1), nvlink; NVIDIA/nccl#1488; Azure/azurehpc-health-checks (an A100 with "all links are inactive").
    """
    gpus = [card for card in cards(cluster) if not value_or(card.gpu.mig, False)]
    usual = {id(card.gpu): most for card, _, most in odd_ones(gpus, lambda card: _up(known(card.gpu.nvlinks)))}
    for card in gpus:
        links = known(card.gpu.nvlinks)
        expected = usual.get(id(card.gpu), _up(links))
        if isinstance(card.gpu.fabric, NvFabric):
            expected = max(expected, links.links)
        if _up(links) >= expected:
            continue
        level = warn if _up(links) else fail
        yield level(
            card.where,
            f"{_up(links)} of {expected} NVLinks are up",
            why="Traffic of this GPU goes over fewer links or over PCIe, and the whole job at its pace.",
            owner="node",
            evidence=[card.seen("NVLinks that are down", ", ".join(map(str, links.down)))],
            fix=[
                admin("Look at the links, then reset GPUs and NVSwitches.", "nvidia-smi nvlink -s -i N"),
                leave_out(),
            ],
        )


def _up(links: NvLinks) -> int:
    return links.links - len(links.down)


@rule("GPU019", "NVLinks show few errors", worst=State.WARN, over=_GPUS, needs=(".nvlinks",))
def link_errors(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Errors that the NVLinks of a GPU counted: recoveries of a link, packets sent again, checksum errors.

    ## Why it matters
    A link that has to recover stands still for that time and may go down for good (Xid 74); many repeated
    packets cost bandwidth on that one link, and so on all of them.

    ## Seen as
    slow, dies

    ## How we know
    nvmlDeviceGetNvLinkErrorCounter, summed over the links of a GPU. A recovery, or at least 1000
    (`GPU019.errors`) of the others is a warning. GPUs whose driver counts in another way are skipped.

    ## Fix
    - **admin** `nvidia-smi nvlink -e`; look again after an hour; reset GPUs and NVSwitches; then the hardware.
    - **you** leave the node out where GPU018 speaks too.

    ## Source
    NVML API reference, nvmlNvLinkErrorCounter; NVIDIA Fabric Manager user guide, NVLink errors; NVIDIA Xid 74.
    """
    most = cluster.policy.thresholds.get("GPU019.errors", 1000.0)
    for card in cards(cluster):
        links = known(card.gpu.nvlinks)
        counts = {
            "recoveries": links.recoveries,
            "repeated packets": links.replays,
            "checksum errors": links.crc_errors,
        }
        seen = {name: count for name, count in counts.items() if not isinstance(count, Unread) and count}
        many = [f"{count} {name}" for name, count in seen.items() if name == "recoveries" or count >= most]
        if many:
            yield warn(
                card.where,
                f"its NVLinks counted {' and '.join(many)}",
                why="A link with errors is slow, and may go down in the middle of a job.",
                owner="node",
                evidence=[
                    card.seen("NVLink errors", ", ".join(f"{count} {name}" for name, count in seen.items()))
                ],
                fix=[admin("See which link it is, and look again after an hour.", "nvidia-smi nvlink -e -i N")],
            )


@rule(
    "GPU020",
    "every GPU is registered with the NVLink fabric",
    worst=State.FAIL,
    over=_GPUS,
    needs=(".fabric",),
)
def fabric(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    On machines with NVSwitch (Hopper and later): whether the fabric manager has set this GPU up, and how healthy
    the fabric says it is.

    ## Why it matters
    Until it is registered CUDA answers 802, "system not yet initialized", or NCCL fails to bind multicast memory
    (NVLS, CUDA error 401). The usual reasons are a fabric manager that is off or of another version than the
    driver, and a GPU that was reset without it.

    ## How we know
    nvmlDeviceGetGpuFabricInfoV: its state and status must be completed and success. GPUs on no such fabric are
    skipped.

    ## Fix
    - **admin** the fabric manager in exactly the driver's version; restart it; then reset all GPUs of the node.
    - **you** `NCCL_NVLS_ENABLE=0` may help for the time being where only NVLS fails.

    ## Source
    NVIDIA Fabric Manager user guide; NVIDIA/nccl-tests#264; pytorch/ao#3841; NVIDIA/nccl#1488.
    """
    for card in cards(cluster):
        info = known(card.gpu.fabric)
        if info.state != "completed" or info.status:
            what = f"not registered with the NVSwitch fabric: {info.state.replace('_', ' ')}"
            yield _unregistered(card, what + (f", NVML error {info.status}" if info.status else ""))
        elif info.health in ("unhealthy", "limited_capacity"):
            yield warn(
                card.where,
                f"the NVSwitch fabric says of it: {info.health.replace('_', ' ')}",
                why="Some of its paths are down or slow, and the whole job goes at their pace.",
                owner="node",
                evidence=[card.seen("fabric health", info.health)],
                fix=[
                    admin("Look at links and switches.", "nvidia-smi -q -d FABRIC -i N", _FABRIC_MANAGER),
                    reset(),
                ],
            )


def _unregistered(card: Card, what: str) -> Finding:
    return fail(
        card.where,
        what,
        why="CUDA or NVLS cannot start on this GPU.",
        owner="node",
        evidence=[card.seen("fabric", str(known(card.gpu.fabric).state))],
        fix=[
            admin(
                "Start the fabric manager of exactly the driver's version.",
                _FABRIC_MANAGER,
                "systemctl restart nvidia-fabricmanager",
            ),
            leave_out(),
        ],
    )


@rule(
    "GPU021", "peer-to-peer access works between GPUs of a node", worst=State.WARN, over=_GPUS, needs=(".peers",)
)
def peer_access(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the driver allows peer access (P2P) between the GPUs of a node.

    ## Why it matters
    Without it NCCL copies through memory of the host: all_reduce within the node becomes several times slower.
    Between GPUs that have NVLinks it must work; if it does not, hardware or driver are at fault.

    ## Seen as
    slow

    ## How we know
    nvmlDeviceGetP2PStatus for reads. No peer access between GPUs with active NVLinks is a warning, and so
    is none on a node where most GPUs of the model, on other nodes, have it. Elsewhere it is a note: gaming
    cards, GPUs divided by MIG, some hosts and most virtual machines have none, and NCCL knows how to do without.

    ## Fix
    - **admin** `nvidia-smi topo -p2p r`; reset the GPUs; the fabric manager where there are NVSwitches.
    - **you** nothing in the job's settings mends it; `NCCL_P2P_DISABLE=1` only hides it.

    ## Source
    NVML API reference, nvmlGpuP2PStatus; NCCL's "P2P is disabled between NVLINK connected GPUs"; NVIDIA/nccl#631.
    """
    gpus = list(cards(cluster))
    reading = {card.node.name for card in gpus if card.gpu.name in _reading(card.node)}
    odd = odd_ones(gpus, lambda card: card.node.name in reading)
    unlike = {id(card.gpu) for card, mine, usual in odd if usual and not mine}
    for card in gpus:
        refused = _refused(card.node).get(card.gpu.name)
        if not refused:
            continue
        reasons = ", ".join(sorted(set(refused.values())))
        what = f"no peer access to {', '.join(refused)}: {reasons}"
        evidence = [card.seen("P2P status", reasons)]
        linked = _is_linked(card.gpu) and any(
            gpu.name in refused and _is_linked(gpu) for gpu in known(at(card.node, "gpus.cards"))
        )
        if (linked or id(card.gpu) in unlike) and not value_or(card.gpu.mig, False):
            yield warn(
                card.where,
                what,
                why=f"NCCL goes through memory of the host instead of {'NVLink' if linked else 'PCIe'}.",
                owner="node",
                evidence=evidence,
                fix=[admin("Look at peer access, then reset the GPUs.", "nvidia-smi topo -p2p r"), leave_out()],
            )
        else:
            yield note(
                card.where, what, why="NCCL goes through memory of the host.", owner="site", evidence=evidence
            )
    if gpus and all(isinstance(value_or(card.gpu.peers, []), list) for card in gpus):
        yield from _paths(gpus)


def _is_linked(gpu: Gpu) -> bool:
    return isinstance(gpu.nvlinks, NvLinks) and bool(_up(gpu.nvlinks))


@derived_from("gpus")
def _refused(node: Node) -> Mapping[str, Mapping[str, str]]:
    """By GPU those of its node that it may not read, with the reason."""
    by_gpu = {
        name: {peer.name: peer.p2p for peer in mine if not isinstance(peer.p2p, Unread) and peer.p2p != "ok"}
        for name, mine in peers(node).items()
    }
    return {name: refused for name, refused in by_gpu.items() if refused}


@derived_from("gpus")
def _reading(node: Node) -> frozenset[str]:
    """The GPUs that can read at least one other GPU of their node; a GPU alone has none to read."""
    return frozenset(
        name
        for name, mine in peers(node).items()
        if not mine or any(isinstance(peer.p2p, Unread) or peer.p2p == "ok" for peer in mine)
    )


@derived_from("gpus")
def _ways(node: Node) -> str:
    """The PCIe ways between the GPUs of a node; empty where none is known."""
    paths = {peer.path for mine in peers(node).values() for peer in mine if not isinstance(peer.path, Unread)}
    return ", ".join(sorted(paths))


def _paths(gpus: list[Card]) -> Iterator[Finding]:
    """The ways between the GPUs of each node, which a person looks for."""
    first_of: dict[str, Card] = {}
    for card in gpus:
        first_of.setdefault(card.node.name, card)
    for first in first_of.values():
        if pcie := _ways(first.node):
            links = first.gpu.nvlinks
            way = "over NVLink" if isinstance(links, NvLinks) and _up(links) else "over PCIe"
            yield fine(
                first.where, f"reaches the other GPUs {way}; PCIe between them: {pcie}", first.seen("paths", pcie)
            )

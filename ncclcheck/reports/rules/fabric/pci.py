"""FAB001, FAB002: nothing sends the traffic between GPUs and HCAs through the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ncclcheck.probes.facts import Cluster, Node, NvLinks, PciDevice, Unread, at, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fine, note, seen, unknown, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nodes.cards import peers
from ncclcheck.reports.subjects.nodes.fixes import boot

_REDIRECTS = {"ReqRedir", "CmpltRedir"}


def _bare_metal(cluster: Cluster) -> Iterator[Node | Finding]:
    """Nodes of several cards that are no virtual machines: a guest's bridges and IOMMU are not the real ones."""
    several = [node for node in wiring.with_gpus(cluster) if len(_cards(node)) > 1]
    if not several:
        raise NothingToJudge("no node with several GPUs and HCAs, which could talk to each other over PCIe")
    nodes = [(node, wiring.is_virtual(node)) for node in several]
    if all(virtual is True for _, virtual in nodes):
        raise NothingToJudge("virtual machines: their bridges and IOMMU are the host's business")
    for node, virtual in nodes:
        if virtual is None:
            yield unknown(
                Where(node=node.name),
                "whether this is a virtual machine could not be read",
                why="In a virtual machine bridges and IOMMU are the host's business.",
                evidence=[seen("/proc/cpuinfo, /sys/class/dmi/id", "not read")],
            )
        elif not virtual:
            yield node


def _cards(node: Node) -> list[PciDevice]:
    """The job's GPUs, and the HCAs: what talks to each other over PCIe."""
    names = wiring.hca_names(node)
    left_out = {value_or(gpu.pci, "").lower()[-12:] for gpu in value_or(at(node, "gpus.others"), [])}
    gpus = [function for function in wiring.functions(node, "gpu") if function.name[-12:] not in left_out]
    return [*gpus, *(function for function in wiring.functions(node) if function.name in names)]


@rule("FAB001", "ACS is off on PCIe bridges between GPUs and HCAs", worst=State.WARN, needs=("fabric.pci",))
def acs(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No port of a PCIe switch of a bare-metal node with several GPUs or HCAs below it redirects their traffic by
    Access Control Services (ACS).

    ## Why it matters
    With ACS on, what a GPU sends to its neighbour or to the HCA beside it goes up to the CPU and back: 50 to 65 %
    of the speed, `status 4 / vendor err 81` with GPUDirect RDMA, or a hang of the first collective while all GPUs
    show 100 %. It comes on again with a BIOS update or a new kernel option.

    ## Seen as
    hangs, slow

    ## How we know
    The ACS capability of each bridge on the path, in /sys/bus/pci/devices/ADDRESS/config; ReqRedir or CmpltRedir
    is the redirection. Only root may read that far. For a user cards of one switch that share an IOMMU group show
    that it was off when the kernel started; where each has a group of its own, or there is no IOMMU, it is
    unknown, for a script may have turned it off since. Root ports are not judged: traffic through two of them goes
    through the CPU anyway. In a virtual machine ACS says nothing, for it must be
    on there, and ATS is the way; nor are Arm servers (SMMU) judged, nor a card that has no neighbour below its
    switch.

    ## Fix
    - **admin** `setpci -s ADDRESS ECAP_ACS+0x6.w=0000` for each bridge at boot, or off in the BIOS; `iommu=pt`. It
      takes the isolation from virtual machines that were given cards below these bridges (VFIO).
    - **you** `sudo lspci -vvv | grep ACSCtl` on a node where you may; NCCL_P2P_DISABLE=1 avoids a hang until then.

    ## Source
    NCCL user guide, Troubleshooting, PCI Access Control Services; NVIDIA/nccl#928, NVIDIA/nccl-tests#112,
    NVIDIA/nccl#2079; setpci(8); the kernel's page driver-api/vfio (IOMMU groups).
    """
    for node in _bare_metal(cluster):
        if isinstance(node, Finding):
            yield node
            continue
        if _is_arm(node):
            continue
        above = _of_switches(_cards(node))
        bridges = [bridge for bridge in wiring.functions(node, "bridge") if bridge.name in above]
        hidden = [bridge for bridge in bridges if isinstance(bridge.acs, Unread) and bridge.acs.kind != "absent"]
        on = [bridge for bridge in bridges if _REDIRECTS & set(value_or(bridge.acs, []))]
        if on:
            yield _redirected(node, on)
        elif hidden and _shares_groups(node):
            yield fine(Where(node=node.name), "cards of one switch share an IOMMU group: ACS did not part them")
        elif hidden:
            yield _hidden(node, hidden)
        elif bridges:
            yield fine(Where(node=node.name), f"{len(bridges)} bridges above its cards redirect nothing")


def _is_arm(node: Node) -> bool:
    """Whether an SMMU is there, which needs the redirection."""
    return any(name.startswith(("smmu", "arm-smmu")) for name in value_or(at(node, "fabric.iommus"), []))


def _of_switches(cards: list[PciDevice]) -> set[str]:
    """The ports of switches that have several cards below them, without the root ports above."""
    slots: dict[str, set[str]] = {}
    for card in cards:
        for bridge in value_or(card.path, []):
            slots.setdefault(bridge, set()).add(card.name.rpartition(".")[0])
    chains = [value_or(card.path, []) for card in cards]
    return {lower for chain in chains for upper, lower in pairwise(chain) if len(slots[upper]) > 1}


def _redirected(node: Node, on: list[PciDevice]) -> Finding:
    names = [bridge.name for bridge in on]
    return warn(
        Where(node=node.name),
        f"ACS is on in {len(on)} bridges above its GPUs and HCAs, as in {names[0]}",
        why="Traffic between GPUs and HCAs goes through the CPU: half the speed, errors or a hang.",
        owner="node",
        evidence=[
            seen(f"ACSCtl of {bridge.name}", "+ ".join(value_or(bridge.acs, [])) + "+") for bridge in on[:4]
        ],
        fix=[
            admin(
                "Turn it off in each bridge, at every boot, or in the BIOS. It touches all that is below these "
                "bridges, and takes isolation from virtual machines that have cards there; a reboot undoes it.",
                *[f"setpci -s {name} ECAP_ACS+0x6.w=0000" for name in names[:4]],
            ),
            you("Where the job hangs, until then:", "export NCCL_P2P_DISABLE=1"),
        ],
    )


def _groups(node: Node) -> list[list[int]]:
    """The IOMMU groups of the cards below each port of a switch that has several cards below it."""
    below: dict[str, dict[str, int]] = {}
    for card in _cards(node):
        for bridge in value_or(card.path, [])[1:]:
            if not isinstance(card.iommu_group, Unread):
                below.setdefault(bridge, {})[card.name.rpartition(".")[0]] = card.iommu_group
    return [list(groups.values()) for groups in below.values() if len(groups) > 1]


def _shares_groups(node: Node) -> bool:
    """Whether under every switch all cards are in one group: the kernel found nothing that keeps them apart."""
    by_switch = _groups(node)
    return bool(by_switch) and all(len(set(groups)) == 1 for groups in by_switch)


def _hidden(node: Node, hidden: list[PciDevice]) -> Finding:
    fact = hidden[0].acs
    why = fact.why if isinstance(fact, Unread) else ""
    apart = any(len(set(groups)) > 1 for groups in _groups(node))
    parted = "the kernel parted the cards of a switch when it started, so that it was on then" if apart else ""
    return unknown(
        Where(node=node.name),
        f"whether ACS is on in {len(hidden)} bridges could not be read: {parted or why}",
        why="Only root sees these registers. It matters where collectives hang, or reach half their speed.",
        evidence=[seen("config", why), *([seen("iommu_group", "one for each card")] if apart else [])],
        fix=[admin("Look as root.", "lspci -vvv | grep -i acsctl")],
    )


@rule("FAB002", "the IOMMU is off or in passthrough mode", worst=State.WARN, needs=("fabric.pci",))
def iommu(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    On bare metal the IOMMU is off, or in passthrough mode for GPUs and HCAs.

    ## Why it matters
    An IOMMU that translates sends traffic between cards through the CPU. PCIe peer-to-peer then gives wrong data,
    or hangs after `Init COMPLETE` with all GPUs at 100 %, and GPUDirect RDMA loses half its speed. Some BIOS
    updates and distributions turn it on.

    ## Seen as
    hangs, slow, wrong results

    ## How we know
    /sys/kernel/iommu_groups/N/type of each GPU and HCA (Linux 5.11 and later): DMA or DMA-FQ is translated,
    identity is passed through, no group is off. On older kernels the kernel command line says so. Virtual machines
    and Arm servers (SMMU) are not judged: there it is as it must be. Nor is a single GPU without an HCA. Where the
    driver allows no peer access between the GPUs, or NVLink joins the only two, and there is no HCA, nothing goes
    from card to card over PCIe: a note.

    ## Fix
    - **admin** `iommu=pt` on the kernel command line (`grubby`, or `/etc/default/grub` and `update-grub`; reboot),
      or VT-d or AMD-Vi off in the BIOS.
    - **you** NCCL_P2P_DISABLE=1 avoids a hang until then.

    ## Source
    NCCL user guide, Troubleshooting, PCI Access Control Services; NVIDIA/nccl#257, NVIDIA/nccl#631;
    the kernel's ABI page sysfs-kernel-iommu_groups.
    """
    for node in _bare_metal(cluster):
        if isinstance(node, Finding):
            yield node
            continue
        if _is_arm(node):
            continue
        cards = _cards(node)
        translated = [card.name for card in cards if isinstance(card.iommu, str) and card.iommu.startswith("DMA")]
        if translated and _has_no_way(node):
            what = f"the IOMMU translates the addresses of {len(translated)} GPUs"
            yield note(
                Where(node=node.name), what, why="Nothing goes from card to card over PCIe here: it costs nothing."
            )
        elif translated:
            yield _translated(node, translated)
        elif unread := _unread_iommu(node, cards):
            yield unread
        elif cards:
            yield fine(Where(node=node.name), "the IOMMU is off or passes through")


def _unread_iommu(node: Node, cards: list[PciDevice]) -> Finding | None:
    """Where an IOMMU is there and nothing tells what it does."""
    iommus, line = at(node, "fabric.iommus"), value_or(at(node, "fabric.command_line"), "")
    groups = [card for card in cards if isinstance(card.iommu, str)]
    if groups or not iommus or (isinstance(iommus, Unread) and iommus.kind == "absent"):
        return None
    if any(word in line.split() for word in ("iommu=pt", "iommu=off", "iommu.passthrough=1", "amd_iommu=off")):
        return None
    why = iommus.why if isinstance(iommus, Unread) else "this kernel does not say what it does"
    return unknown(
        Where(node=node.name),
        f"what the IOMMU does could not be read: {why}",
        why="It matters where collectives hang after init, or reach half their speed.",
        evidence=[seen("/sys/class/iommu", why if isinstance(iommus, Unread) else ", ".join(iommus))],
        fix=[admin("Look whether iommu=pt is set.", "cat /proc/cmdline", "dmesg | grep -i -e dmar -e iommu")],
    )


def _has_no_way(node: Node) -> bool:
    """No HCA, and no two GPUs that read each other over PCIe: all are refused, or NVLink joins the only two."""
    gpus = value_or(at(node, "gpus.cards"), [])
    reached = [peer.p2p for row in peers(node).values() for peer in row]
    refused = bool(reached) and all(isinstance(answer, str) and answer != "ok" for answer in reached)
    links = [gpu.nvlinks for gpu in gpus]
    joined = len(links) == 2 and all(isinstance(link, NvLinks) and link.links > len(link.down) for link in links)
    return (refused or joined) and not wiring.hca_names(node)


def _translated(node: Node, cards: list[str]) -> Finding:
    return warn(
        Where(node=node.name),
        f"the IOMMU translates the addresses of {len(cards)} GPUs and HCAs",
        why="Traffic between cards goes through the CPU: half the speed, wrong data or a hang.",
        owner="node",
        evidence=[
            seen("iommu_groups/*/type", f"DMA for {', '.join(cards[:4])}"),
            seen("/proc/cmdline", value_or(at(node, "fabric.command_line"), "not read")[:200]),
        ],
        fix=[
            admin(
                "Let it pass addresses through, and reboot. All devices of this machine are touched.",
                *boot.add(node, "iommu=pt"),
            ),
            you("Where the job hangs, until then:", "export NCCL_P2P_DISABLE=1"),
        ],
    )

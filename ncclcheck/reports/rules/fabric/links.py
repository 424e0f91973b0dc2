"""FAB003 to FAB005: the PCIe links of HCAs and switches: their speed, what they must carry, their errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ncclcheck.probes.facts import Cluster, Node, PciDevice, Unread, at, value_or
from ncclcheck.reports.judgement.derived import derived_from
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, note, seen, warn
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import carrying, wiring
from ncclcheck.reports.subjects.nccl.hca import UsedPort
from ncclcheck.reports.text.words.fold import fold_names


@rule("FAB003", "HCAs and PCIe switches run at full PCIe speed and width", worst=State.WARN, needs=("fabric.pci",))
def links(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The PCIe link of each HCA, and of each PCIe switch above a GPU or HCA, has the speed and width that both of its
    ends can have.

    ## Why it matters
    An HCA at x8 or at generation 3 carries a half or a quarter of its network, and a switch's link sets the pace
    of all that hangs below it. A card that is not well seated, a riser or a bad slot; no error is written.

    ## Seen as
    hangs, slow

    ## How we know
    current_link_speed and _width against max_link_speed and _width of both ends, in /sys/bus/pci/devices. GPUs
    lower their speed when idle and are judged by GPU015 and GPU016. In a virtual machine only the card's own
    registers count: a note, and a warning where the card of that name has its full link on all other nodes.

    ## Fix
    - **admin** reseat the card or riser, look at the slot's settings in the BIOS, replace:
      `lspci -vvv -s ADDRESS | grep -i lnk`.
    - **you** leave the node out.

    ## Source
    NVIDIA/nccl#820; facebookresearch/gcm and imbue-ai/cluster-health check it; lspci(8).
    """
    judged = False
    full = _full_in_guests(cluster)
    for node in wiring.with_gpus(cluster):
        hcas, by_name = set(wiring.hca_names(node)), wiring.by_address(node)
        virtual = wiring.is_virtual(node) is not False
        for lower, upper in _links(hcas, by_name, virtual):
            if not isinstance(lower.link, Unread):
                judged = True
                guest = virtual and full.get(wiring.hca_names(node).get(lower.name, ""), 0) != _others(cluster)
                yield from _slow_link(node, lower, upper, guest)
    if not judged:
        raise NothingToJudge("no HCA or PCIe switch whose link is seen")


def _others(cluster: Cluster) -> int:
    """How many other nodes there are, where they can outvote one; -1 where they cannot."""
    return len(cluster.nodes) - 1 if len(cluster.nodes) > 2 else -1


def _full_in_guests(cluster: Cluster) -> Counter[str]:
    """On how many nodes the HCA of each name has the link that it can have."""
    return Counter(
        name
        for node in cluster.nodes
        for device in wiring.functions(node)
        if (name := wiring.hca_names(node).get(device.name)) and not isinstance(link := device.link, Unread)
        if (link.gts, link.width) == (link.most_gts, link.most_width)
    )


def _links(
    hcas: set[str], by_name: Mapping[str, PciDevice], virtual: bool
) -> Iterator[tuple[PciDevice, PciDevice | None]]:
    """Lower and upper end of each link: HCAs, and the upstream ports of switches, every second of a path."""
    done: set[str] = set()
    for card in [device for device in by_name.values() if device.kind == "gpu" or device.name in hcas]:
        chain = [*value_or(card.path, []), card.name]
        for index in [] if virtual or len(chain) % 2 else range(1, len(chain), 2):
            lower = by_name.get(chain[index])
            if lower and lower.kind != "gpu" and lower.name not in done:
                done.add(lower.name)
                yield lower, by_name.get(chain[index - 1])
        if card.name in hcas and card.name not in done:
            done.add(card.name)
            yield card, None


def _slow_link(node: Node, lower: PciDevice, upper: PciDevice | None, virtual: bool) -> Iterator[Finding]:
    link, above = lower.link, upper.link if upper else None
    if isinstance(link, Unread):
        return
    most_gts, most_width = link.most_gts, link.most_width
    if above is not None and not isinstance(above, Unread):
        most_gts, most_width = min(most_gts, above.most_gts), min(most_width, above.most_width)
    if link.gts >= most_gts and link.width >= most_width:
        return
    device = wiring.hca_names(node).get(lower.name, lower.name)
    now, most = f"{link.gts:g} GT/s x{link.width}", f"{most_gts:g} GT/s x{most_width}"
    where, what = Where(node=node.name, device=device), f"its PCIe link runs at {now}, both ends can {most}"
    evidence = [seen(f"/sys/bus/pci/devices/{lower.name}", f"{now} of {most}")]
    fix = [admin("Reseat the card or riser, and look at the slot.", f"lspci -vvv -s {lower.name} | grep -i lnk")]
    why = "What goes through it is as slow as this link."
    if virtual:
        yield note(where, what, why="In a virtual machine this may be what the host shows.", evidence=evidence)
    else:
        yield warn(where, what, why=why, owner="node", evidence=evidence, fix=fix)


@rule(
    "FAB004",
    "every HCA's PCIe slot is fast enough for its network port",
    worst=State.WARN,
    needs=("fabric.pci", "rdma.devices"),
)
def slots(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The most that the PCIe slot of an HCA can carry, against the sum of its ACTIVE ports that NCCL would use.

    ## Why it matters
    A 400 Gb/s card in a slot of generation 4 gets 252 Gb/s and looks healthy in every other check: state, rate
    and link are all as they should be. It is the usual reason why a new cluster reaches 60 % of what was bought.

    ## Seen as
    slow

    ## How we know
    The greatest speed and width of the card and the port above it, less the line code (128b/130b); the rates of
    the ports of all functions of the card. A warning below 90 % (FAB004.percent) of one port, a note where the
    slot carries one port and not all: two ports of 200 Gb/s in a slot of generation 4 are sold so, for the second
    to stand in for the first. Not in virtual machines.

    ## Fix
    - **admin** move the card to a slot of its generation with 16 lanes; BIOS: slot speed on auto, no bifurcation.
    - **you** expect no more than what the slot carries.

    ## Source
    PCI Express base specification; NVIDIA/nccl#820; NCCL user guide, Troubleshooting.
    """
    percent = cluster.policy.thresholds.get("FAB004.percent", 90.0)
    judged = False
    slots_of: dict[tuple[int, int], list[_Slot]] = {}
    using = carrying.using(cluster)
    for node, taken in using:
        if wiring.is_virtual(node) is not False or _is_gb10(node):
            continue
        key = id(taken), id(node.fabric)  # nodes alike share both
        if key not in slots_of:
            slots_of[key] = [*_slots(node, taken.used)]
        for names, total, most, carried in slots_of[key]:
            judged = True
            if carried < total * percent / 100:
                level = note if carried >= most * percent / 100 else warn
                yield _narrow(level, node, names, carried, total)
    if not judged:
        raise NothingToJudge("no HCA on bare metal whose slot is seen")


_Slot = tuple[list[str], float, float, float]


def _slots(node: Node, ports: Sequence[UsedPort]) -> Iterator[_Slot]:
    """Of each card that is seen its ports, Gb/s of all and of the fastest one, and Gb/s that its slot carries."""
    by_name = wiring.by_address(node)
    needs: dict[str, tuple[float, float, list[str]]] = {}
    for port in _once_a_port(node, ports):
        address, rate = value_or(port.hca.pci, ""), value_or(port.port.rate_gbit, 0.0)
        total, most, names = needs.get(address.rpartition(".")[0], (0.0, 0.0, []))
        needs[address.rpartition(".")[0]] = (total + rate, max(most, rate), [*names, port.name])
    for card, (total, most, names) in needs.items():
        if (carried := _carried(by_name, card)) is not None:
            yield names, total, most, carried


@derived_from("gpus")
def _is_gb10(node: Node) -> bool:
    """DGX Spark and its like: one port of 200 Gb/s is two functions of four lanes each, which share its data."""
    return any("GB10" in value_or(card.model, "").split()[-1:] for card in value_or(at(node, "gpus.cards"), []))


def _once_a_port(node: Node, ports: Sequence[UsedPort]) -> list[UsedPort]:
    """One of the virtual functions of a card: each shows the rate of the whole port."""
    virtual = {function.name for function in wiring.functions(node) if function.virtual_function}
    kept: dict[str, UsedPort] = {}
    for port in ports:
        address = value_or(port.hca.pci, "")
        kept.setdefault(address.rpartition(":")[0] if address in virtual else port.name, port)
    return [*kept.values()]


def _carried(by_name: Mapping[str, PciDevice], card: str) -> float | None:
    """Gb/s that the link of a card can carry at best."""
    function = next(
        (by_name[name] for name in (f"{card}.{number}" for number in range(8)) if name in by_name), None
    )
    if function is None or isinstance(function.link, Unread):
        return None
    gts, width = function.link.most_gts, function.link.most_width
    above = by_name.get(value_or(function.path, [])[-1]) if value_or(function.path, []) else None
    if above is not None and not isinstance(above.link, Unread):
        gts, width = min(gts, above.link.most_gts), min(width, above.link.most_width)
    return gts * width * (0.8 if gts < 8 else 128 / 130)


def _narrow(level: Callable[..., Finding], node: Node, names: list[str], carried: float, total: float) -> Finding:
    return level(
        Where(node=node.name, device=fold_names(names)),
        f"its PCIe slot carries {carried:.0f} Gb/s at best, its network {total:g}",
        why="The slot sets the pace, not the network.",
        owner="node",
        evidence=[seen("max_link_speed, max_link_width", f"{carried:.0f} Gb/s"), seen("rate", f"{total:g} Gb/s")],
        fix=[
            admin(
                "Use a slot of the card's generation with 16 lanes.", "lspci -vvv | grep -i -e mellanox -e lnkcap"
            )
        ],
    )


# errors since the boot. Chosen (FAB005.correctable): each costs a replay; one in a while is no fault
_CORRECTABLE = 1000.0


@rule(
    "FAB005",
    "no PCIe errors on GPUs, HCAs or the bridges above them",
    worst=State.WARN,
    needs=("fabric.pci",),
)
def errors(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The counters of PCIe errors (AER) of GPUs, network cards and the bridges above them.

    ## Why it matters
    Correctable errors are sent again: many of them make one card slow. Uncorrectable ones end in a GPU that falls
    off the bus (Xid 79) or an HCA that resets, mostly in the middle of a long job. The kernel log shows them to
    root alone; these counters everybody may read.

    ## Seen as
    slow, dies

    ## How we know
    aer_dev_correctable, aer_dev_nonfatal and aer_dev_fatal in /sys/bus/pci/devices, counted since boot. A warning
    from 1000 correctable ones on (FAB005.correctable), and for each uncorrectable one.

    ## Fix
    - **admin** reseat or replace card and riser; `dmesg | grep -i aer` names the kind; drain the node when it
      counts on.
    - **you** leave the node out.

    ## Source
    The kernel's PCIe AER page and ABI page sysfs-bus-pci-devices-aer_stats; imbue-ai/cluster-health checks the
    log for them.
    """
    most = cluster.policy.thresholds.get("FAB005.correctable", _CORRECTABLE)
    counted = [
        (node, function, function.errors)
        for node in wiring.with_gpus(cluster)
        for function in wiring.functions(node)
        if not isinstance(function.errors, Unread)
    ]
    if not counted:
        raise NothingToJudge("no card whose PCIe errors are counted")
    for node, device, counts in counted:
        if counts.nonfatal + counts.fatal or counts.correctable >= most:
            text = f"{counts.correctable} correctable, {counts.nonfatal + counts.fatal} uncorrectable"
            yield warn(
                Where(node=node.name, device=wiring.hca_names(node).get(device.name, device.name)),
                f"{text} PCIe errors since boot",
                why="The link is marginal: the card is slow, or will be lost in the middle of a job.",
                owner="node",
                evidence=[seen(f"/sys/bus/pci/devices/{device.name}/aer_dev_*", text)],
                fix=[
                    admin(
                        "Reseat or replace it, and watch the counter.",
                        f"cat /sys/bus/pci/devices/{device.name}/aer_dev_*",
                    )
                ],
            )

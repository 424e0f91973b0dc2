"""FAB060: network cards ask for enough at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, PciDevice, Unread, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fine, note, seen, unknown, warn
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import carrying, wiring
from ncclcheck.reports.text.words.fold import fold_names, many

# chosen: the slower the port, the fewer bytes must be under way on PCIe; 400 Gb/s cards were halved
_FAST_GBIT = 200.0
_FULL_BYTES = 4096  # the largest MaxReadReq that PCIe knows (base specification, Device Control)
_Card = tuple[Node, str, PciDevice]


@rule("FAB060", "fast HCAs use a large PCIe read request size", worst=State.WARN,
      needs=("fabric.pci", "rdma.devices"))  # fmt: skip
def requests(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Cards of 200 Gb/s and more are set to read up to 4096 bytes in one PCIe request (MaxReadReq) and to have 256
    outstanding requests (extended tags), and cards of one model are set alike.

    ## Why it matters
    A card reads what it sends out of GPU or host memory. With 512 bytes a request, or 32 requests at a time, the
    PCIe link idles between answers, the more so the longer the path: a 400 Gb/s card then sends at half its rate
    while it receives at all of it. The setting is lost at a boot, so one node may lack what the others have.

    ## Seen as
    slow

    ## How we know
    Device Control of the PCIe capability in /sys/bus/pci/devices/ADDRESS/config, which only root may read; for
    other users it is unknown. A card set lower than most of its model is a warning. Where all are below 4096 it is
    a note: whether it costs something depends on platform and firmware, and only a measurement shows it.

    ## Fix
    - **admin** `setpci -s ADDRESS CAP_EXP+8.w=5000:7000` for 4096 bytes, at every boot. The register counts from
      0 for 128 bytes to 5.

    ## Source
    NVIDIA, Understanding PCIe Configuration for Maximum Performance; Mellanox/nic-configuration-operator
    (pciPerformanceOptimized sets 4096); oracle-quickstart/oci-hpc (check_pcie_max_read.sh); setpci(8); PCIe base
    specification, 7.5.3.4.
    """
    cards = list(_fast(cluster))
    if not cards:
        raise NothingToJudge("no card of 200 Gb/s or more on a machine that is not virtual")
    hidden = [card for _, _, card in cards if isinstance(card.max_read, Unread) and card.max_read.kind != "absent"]
    seen_cards = [card for card in cards if not isinstance(card[2].max_read, Unread)]
    if hidden and not seen_cards:
        yield unknown(
            Where(),
            f"how much {many(len(hidden), 'card')} read in one request could not be seen",
            why="Only root sees this register. It matters where sending is slower than receiving.",
            evidence=[seen("config", str(getattr(hidden[0].max_read, "why", "")))],
            fix=[admin("Look as root.", "lspci -vv -d 15b3: | grep -e ^[0-9a-f] -e MaxReadReq -e ExtTag")],
        )
    by_model: dict[str, list[_Card]] = defaultdict(list)
    for seen_card in seen_cards:
        by_model[seen_card[1].rpartition("/")[2]].append(seen_card)
    for group in by_model.values():
        yield from _of_one_model(group)


def _fast(cluster: Cluster) -> Iterator[_Card]:
    """Node, HCA/model, and the function of each physical card that carries data."""
    for node, taken in carrying.using(cluster):
        if wiring.is_virtual(node) is not False:
            continue
        functions = {device.name: device for device in wiring.functions(node)}
        for port in taken.used:
            device = functions.get(str(port.hca.pci))
            if device and not device.virtual_function and value_or(port.port.rate_gbit, 0.0) >= _FAST_GBIT:
                yield node, f"{port.hca.name}/{value_or(port.hca.model, '')}", device


def _of_one_model(cards: list[_Card]) -> Iterator[Finding]:
    values = Counter(
        (value_or(card.max_read, 0), bool(value_or(card.extended_tags, True))) for _, _, card in cards
    )
    (usual, tags), count = values.most_common(1)[0]
    most = count * 2 > len(cards)
    odd = [card for card in cards if most and _is_lower(card[2], usual, tags=tags)]
    for node, name, card in odd:
        yield _lower(node, name.partition("/")[0], card, f"{count} of {len(cards)}", usual)
    if odd:
        return
    if usual < _FULL_BYTES or not tags:
        names = fold_names({node.name for node, _, _ in cards})
        text = f"at most {usual} bytes in one request" + ("" if tags else ", and without extended tags")
        yield note(
            Where(),
            f"{many(len(cards), 'fast network card')} on {names} read {text}",
            why="On some platforms sending is then slower than receiving; 4096 bytes are NVIDIA's advice.",
            owner="node",
            evidence=[seen("Device Control", f"MaxReadReq {usual}, ExtTag{'+' if tags else '-'}")],
            fix=[
                admin(
                    "Where `bench` finds sending slow, set 4096. Only this card is touched; a reboot undoes it.",
                    _set(cards[0][2]),
                )
            ],
        )
    else:
        yield fine(Where(), f"{many(len(cards), 'fast network card')}: up to {usual} bytes in one request")


def _is_lower(card: PciDevice, usual: int, *, tags: bool) -> bool:
    return value_or(card.max_read, usual) < usual or (tags and value_or(card.extended_tags, True) is False)


def _set(card: PciDevice) -> str:
    return f"setpci -s {card.name} CAP_EXP+8.w=5000:7000"


def _lower(node: Node, hca: str, card: PciDevice, most: str, usual: int) -> Finding:
    reads = value_or(card.max_read, usual)
    what = f"reads at most {reads} bytes in one request" if reads < usual else "has no extended tags"
    fix = _set(card) if reads < usual else f"setpci -s {card.name} CAP_EXP+8.w=0100:0100"
    return warn(
        Where(node=node.name, device=hca),
        f"{hca} {what}; {most} cards of its model are set higher",
        why="It sends more slowly than it receives, and more slowly than the others.",
        owner="node",
        evidence=[seen(f"Device Control of {card.name}", f"MaxReadReq {reads}")],
        fix=[admin("Set it as on the others, at every boot. Only this card is touched; a reboot undoes it.", fix)],
    )

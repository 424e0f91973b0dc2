"""Rules about a GPU's PCIe link: width, generation, repeated packets."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, admin, note, warn
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nodes.cards import Card, busy, cards, leave_out, odd_ones

_GPUS = "nodes.gpus.cards"


@rule(
    "GPU015",
    "every GPU's PCIe link runs at its maximum width",
    worst=State.WARN,
    over=_GPUS,
    needs=(".pcie_width", ".pcie_width_max"),
)
def width(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The number of lanes of each GPU's PCIe link, compared with its maximum and with its peers.

    ## Why it matters
    A GPU at x8 or x1 loads its batches and reaches its NIC at a half or a sixteenth of the speed: one slow rank,
    and no message. A card that is not well seated, a bad riser or a dirty contact is the usual reason.

    ## Seen as
    slow

    ## How we know
    nvmlDeviceGetCurrPcieLinkWidth and ...GetMaxPcieLinkWidth. Some links give up lanes while they are idle, so
    what all GPUs of a model on a node have while they do nothing is a note; a narrower one than its peers, or a
    narrow one at work (20 % utilization, `GPU015.busy`), is a warning. A GPU that has all lanes of the port
    above it (max_link_width in sysfs) is a note: boards for two GPUs share sixteen lanes. A lower maximum than
    on most GPUs of the model points at the slot or its settings.

    ## Fix
    - **admin** reseat the card or its riser, look at the slot's bifurcation in the BIOS, then replace.
    - **you** leave the node out.

    ## Source
    NVML API reference; nvidia-smi(1), pcie.link.width.current ("may be reduced when the GPU is not in use");
    NVIDIA GPU debug guidelines; imbue-ai/cluster-health and facebookresearch/gcm check it.
    """
    gpus = list(cards(cluster))
    least = cluster.policy.thresholds.get("GPU015.busy", 20.0)
    for card in gpus:
        now, most = known(card.gpu.pcie_width), known(card.gpu.pcie_width_max)
        what, evidence = f"its PCIe link has {now} of {most} lanes", card.seen("link width", f"x{now} of x{most}")
        full = now < most and now >= (_lanes_of_port(card) or most)
        if now < most and not full and (busy(card, least) or _has_wider_peer(card, gpus)):
            yield _slow(card, what, evidence)
        elif now < most:
            why = "It is idle, and so are its peers alike: such a link may have more lanes at work."
            if full:
                why = "Its slot has no more: the board shares its lanes among several slots."
            yield note(card.where, what, why=why, owner="node", evidence=[evidence])
    for card, mine, usual in odd_ones(gpus, lambda card: known(card.gpu.pcie_width_max)):
        if mine < usual and known(card.gpu.pcie_width) == mine:
            what = f"its slot gives {mine} lanes, that of most others {usual}"
            yield _slow(card, what, card.seen("greatest link width", f"x{mine}"))


def _lanes_of_port(card: Card) -> int:
    """How many lanes the port above this GPU can have; 0 where that is not seen, as in a virtual machine."""
    functions = {function.name: function for function in value_or(at(card.node, "fabric.pci"), [])}
    mine = functions.get(value_or(card.gpu.pci, ""))
    above = functions.get(path[-1]) if mine and (path := value_or(mine.path, [])) else None
    return 0 if above is None or isinstance(above.link, Unread) else above.link.most_width


def _has_wider_peer(card: Card, gpus: list[Card]) -> bool:
    """Whether a GPU of this model has more lanes now."""
    widths = [known(other.gpu.pcie_width) for other in gpus if other.model == card.model]
    return max(widths) > known(card.gpu.pcie_width)


@rule(
    "GPU016",
    "every GPU's PCIe link runs at its maximum generation",
    worst=State.WARN,
    over=_GPUS,
    needs=(".pcie_gen", ".pcie_gen_max"),
)
def generation(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The generation (speed) of each GPU's PCIe link, against what GPU and slot can do together.

    ## Why it matters
    A link that trained at generation 3 instead of 5 has a quarter of its speed, for loading batches as for
    GPUDirect RDMA.

    ## Seen as
    slow

    ## How we know
    nvmlDeviceGetCurrPcieLinkGeneration and ...GetMaxPcieLinkGeneration. Idle links lower their generation to
    save power, so a lower one counts only on a GPU with at least 20 % utilization (`GPU016.busy`). A lower
    maximum than on most GPUs of the model counts always: a slot, a riser or a BIOS setting.

    ## Fix
    - **admin** reseat the card or its riser; BIOS: link speed of the slot on auto.
    - **you** leave the node out.

    ## Source
    NVML API reference; nvidia-smi(1), pcie.link.gen.current ("may be reduced when the GPU is not in use").
    """
    gpus = list(cards(cluster))
    least = cluster.policy.thresholds.get("GPU016.busy", 20.0)
    for card in gpus:
        now, most = known(card.gpu.pcie_gen), known(card.gpu.pcie_gen_max)
        if now < most and busy(card, least):
            evidence = card.seen("link generation", f"{now} of {most} at {card.gpu.utilization} % utilization")
            yield _slow(card, f"its PCIe link runs at generation {now} of {most} while it computes", evidence)
    for card, mine, usual in odd_ones(gpus, lambda card: known(card.gpu.pcie_gen_max)):
        if mine < usual:
            what = f"its slot allows PCIe generation {mine}, that of most others {usual}"
            yield _slow(card, what, card.seen("greatest link generation", mine))


def _slow(card: Card, what: str, evidence: Evidence) -> Finding:
    return warn(
        card.where,
        what,
        why="It loads batches and reaches its NIC slower than the others, and all ranks wait for it.",
        owner="node",
        evidence=[evidence],
        fix=[
            admin("Reseat the card or riser, and look at the slot in the BIOS.", "lspci -vvv -s BUS | grep Lnk"),
            leave_out(),
        ],
    )


@rule("GPU017", "PCIe links show few replays", worst=State.WARN, over=_GPUS, needs=(".pcie_replays",))
def replays(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How often a GPU had to replay a PCIe packet since its last reset.

    ## Why it matters
    A few are normal (a sound H100 shows 9). Thousands mean a marginal slot, riser or cable: bandwidth drops now,
    and such links are the ones that later fall off the bus (Xid 79).

    ## Seen as
    slow, dies

    ## How we know
    nvmlDeviceGetPcieReplayCounter; at least 1000 (`GPU017.replays`) is a warning.

    ## Fix
    - **admin** reseat the card or riser; compare the counter an hour later; replace what still counts.
    - **you** leave the node out where PCIe bandwidth is low too.

    ## Source
    NVML API reference; NVIDIA DCGM user guide, PCIe replay policy; NVIDIA Xid errors, 79.
    """
    most = cluster.policy.thresholds.get("GPU017.replays", 1000.0)
    for card in cards(cluster):
        count = known(card.gpu.pcie_replays)
        if count >= most:
            yield warn(
                card.where,
                f"{count} PCIe packets had to be sent again",
                why="The link is marginal: it is slow, and may fall off the bus.",
                owner="node",
                evidence=[card.seen("PCIe replay counter", count)],
                fix=[admin("Reseat the card or its riser, and look again after an hour.",
                           "nvidia-smi -q -i N | grep -i replay")],
            )  # fmt: skip

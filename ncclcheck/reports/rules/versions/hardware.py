"""Agreement of what the machines have: network cards and processors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Interface, Node, at, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, admin, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nodes.agree.alike import LEAVE_OUT, fact, same


@rule(
    "VER012",
    "network cards are the same on all nodes",
    worst=State.WARN,
    needs=("network.interfaces",),
    at_least=2,
    between_machines=True,
)
def cards(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Drivers and number of the physical network cards that are up.

    ## Why it matters
    A card that is missing after a boot, or one whose cable is out, leaves a node with fewer ways than the others,
    and collectives over all nodes go at its pace. NCCL itself says nothing as long as one card is left.

    ## Seen as
    slow

    ## How we know
    /sys/class/net: physical interfaces that are up, by driver. Networks over USB, which the board's management
    controller brings, and virtual functions are left out. Speeds are NET008, RDMA devices are of the RDM family.

    ## Fix
    - **admin** `lspci | grep -i ether` and `ip -br link` on the node that differs.
    - **you** leave the node out until then.

    ## Source
    NCCL user guide, troubleshooting, networking; NVIDIA/nccl#1580; sysfs(5).
    """
    fix = [
        admin("Find the card or the cable that is missing.", "ip -br link", "lspci | grep -i ether"),
        LEAVE_OUT,
    ]
    why = "Collectives over all nodes go at the pace of the node with fewer or slower cards."
    yield from same(cluster, "the set of network cards", "/sys/class/net", _cards, why=why, fix=fix)


_VIRTUAL_FUNCTION = re.compile(r"en\w*v\d+")  # as systemd names them: enp24s0f0v3
# Networks over USB of a management controller, and drivers of virtual functions alone.
_NO_CARDS = ("rndis_host", "cdc_ether", "cdc_ncm", "cdc_eem", "cdc_subset", "ixgbevf", "iavf", "igbvf")


def _cards(node: Node) -> str:
    interfaces: list[Interface] = known(at(node, "network.interfaces"))
    up = [card for card in interfaces if value_or(card.kind, "virtual") == "physical" and value_or(card.up, False)]
    named = [value_or(card.driver, "") or "a card" for card in up if not _VIRTUAL_FUNCTION.fullmatch(card.name)]
    drivers = Counter(name for name in named if name not in _NO_CARDS)
    return ", ".join(f"{count} x {driver}" for driver, count in sorted(drivers.items())) or "none"


@rule(
    "VER014",
    "CPUs are the same on all nodes",
    worst=State.WARN,
    needs=("system.cpu",),
    at_least=2,
    between_machines=True,
)
def processors(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Vendor and model of the CPUs.

    ## Why it matters
    Ranks on slower processors prepare their batches later, and all others wait for them in every step. Some
    versions of NCCL even choose other algorithms (NCC036).

    ## Seen as
    slow

    ## How we know
    /proc/cpuinfo on each node; the odd one out by majority.

    ## Fix
    - **you** ask the job system for nodes of one kind: `#SBATCH --constraint=...`, a nodeSelector in the pod.

    ## Source
    NVIDIA/nccl#1136; sbatch(1), --constraint; proc_cpuinfo(5).
    """
    fix = [you("Ask for nodes of one kind.", "#SBATCH --constraint=FEATURE", "sinfo -o '%N %f'")]
    why = "Ranks on other processors are faster or slower, and all wait for the last one in every step."
    yield from same(cluster, "the processor", "/proc/cpuinfo", fact("system.cpu"), why=why, fix=fix, owner="job")

"""GPU042 and RDM030: machines have what their product is built with."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, at, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fine, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nodes.products import Product, data_cards, product

_DMI = "/sys/class/dmi/id"


@rule(
    "GPU042",
    "every machine has the number of GPUs its product ships with",
    worst=State.WARN,
    needs=("gpus.pci", "fabric.product"),
)
def gpus_of_the_product(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The GPUs that a machine shows on its PCIe bus against those that its product has: 8 in a DGX A100, H100, H200
    and B200, 16 in a DGX-2, 8 in p4d, p5, p5en and p6-b200, 4 or 8 in g5 and g6.

    ## Why it matters
    A GPU that did not come up at the last boot is missing everywhere: NVML lists seven, nothing reports an error,
    and a job of eight ranks a node does not start, or starts with seven. One node alone has no peer to be compared
    with.

    ## How we know
    The product name by DMI, which a cloud of Amazon gives the instance's type, and PCI functions of NVIDIA of the
    classes VGA and 3D controller. Products that are built in several ways (HGX boards of other makers, virtual
    machines of Azure, Google and Oracle, whose DMI does not give their size) are skipped. More than expected is
    fine. What several nodes lack alike is a note: something hides it. How many of them the job was given is
    GPU029's subject.

    ## Fix
    - **admin** `lspci -d 10de:`, `dmesg | grep -i -e pcie -e NVRM`, the BMC's log; power-cycle the machine, reseat
      or exchange the GPU. In a cloud, stop the instance and start it, which moves it to another host.
    - **you** leave the node out.

    ## Source
    NVIDIA DGX user guides; Amazon EC2 instance types; leptonai/gpud, component gpu-counts; oci-hpc,
    check_gpu_setup.py (GPU count).
    """
    nodes = _built(cluster)
    alike = len(nodes) > 1 and len({tuple(known(at(node, "gpus.pci"))) for node, _ in nodes}) == 1
    for node, built in nodes:
        gpus = known(at(node, "gpus.pci"))
        where = Where(node=node.name)
        evidence = [
            seen(_DMI, known(at(node, "fabric.product"))),
            seen("/sys/bus/pci/devices", ", ".join(gpus) or "none"),
        ]
        if len(gpus) >= built.gpus:
            yield fine(where, f"{len(gpus)} GPUs, as a {built.name} has", *evidence)
            continue
        what = f"{len(gpus)} GPUs are on its PCIe bus; a {built.name} has {built.gpus}"
        if alike:
            yield note(where, what, owner="site", evidence=evidence)
            continue
        yield warn(
            where,
            what,
            why="What is missing did not come up at the last boot, and nothing else reports it.",
            owner="node",
            evidence=evidence,
            fix=[
                admin("Find the missing one; power-cycle the machine.", "lspci -d 10de:", "dmesg | grep -i NVRM"),
                you("Leave the node out.", f"#SBATCH --exclude={node.name}"),
            ],
        )


@rule(
    "RDM030",
    "every machine has the number of HCAs its product ships with",
    worst=State.WARN,
    needs=("rdma.devices", "fabric.product"),
)
def cards_of_the_product(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The RDMA devices for data against those that a product has: 4 in a DGX-1, 8 in a DGX-2, A100, H100, H200 and
    B200; EFA devices: 4 in p4d, 32 in p5 and p5e, 16 in p5en, 8 in p6-b200.

    ## Why it matters
    NCCL goes on without a card that is missing: its GPU sends over the card of another one, and the whole job goes
    at that pace. A node that is looked at alone, as in a prolog, has no peer to be compared with.

    ## Seen as
    slow

    ## How we know
    The product name by DMI and /sys/class/infiniband. In a DGX the cards for data are alone on their slot, those
    for storage have two functions; bonds and virtual functions do not count. In a container with a network of its
    own devices may be hidden, so it is skipped. What several nodes lack alike is a note, and so is a node alone
    with a half, a quarter or so of the EFA devices that its instance can have: that is chosen at launch. None at
    all is not judged here.

    ## Fix
    - **admin** `lspci | grep -i -e mellanox -e efa`, `dmesg | grep -e mlx5 -e efa`, the BMC's log; power-cycle the
      machine. EC2: one EFA interface for each network card in the launch template.
    - **you** leave the node out.

    ## Source
    NVIDIA DGX user guides; Amazon EC2 user guide, EFA and maximum bandwidth; NVIDIA/aicr#2689.
    """
    judged = [
        (node, built, hcas)
        for node, built in _built(cluster)
        if built.cards is not None and not _hides(node) and (hcas := data_cards(node, built))
    ]
    if not judged:
        raise NothingToJudge("no machine whose product name says how many cards it has")
    alike = len({tuple(hca.name for hca in cards) for _, _, cards in judged}) == 1
    for node, built, hcas in judged:
        chosen = built.cloud and (built.cards or 0) % len(hcas) == 0
        yield _cards(node, built, len(hcas), meant=alike and (len(judged) > 1 or chosen))


def _built(cluster: Cluster) -> list[tuple[Node, Product]]:
    """Nodes of which it is known what they are built with. Raises NothingToJudge."""
    pairs = [(node, built) for node in cluster.nodes if not node.simulated and (built := product(node))]
    if not pairs:
        raise NothingToJudge("no machine of a product that is built in one way alone")
    return pairs


def _hides(node: Node) -> bool:
    """Whether devices may be there that this process cannot see."""
    own = any(
        namespace.name == "net" and namespace.host is False
        for namespace in value_or(at(node, "container.namespaces"), [])
    )
    return own or bool(wiring.shut(node))


def _cards(node: Node, built: Product, count: int, *, meant: bool) -> Finding:
    where, wanted = Where(node=node.name), built.cards or 0
    evidence = [
        seen(_DMI, known(at(node, "fabric.product"))),
        seen("/sys/class/infiniband", f"{count} {built.what} for data"),
    ]
    if count >= wanted:
        return fine(where, f"{count} {built.what}, as a {built.name} has", *evidence)
    what = f"{count} {built.what}; a {built.name} has {wanted}"
    if meant:
        less = "It was built or started with fewer, and has that part of its bandwidth."
        return note(where, what, why=less, owner="site", evidence=evidence)
    return warn(
        where,
        what,
        why="Its GPU sends over the card of another one, and the whole job goes at that pace.",
        owner="node",
        evidence=evidence,
        fix=[
            admin("Find the missing card; power-cycle the machine.", "lspci | grep -i -e mellanox -e efa",
                  "dmesg | grep -i -e mlx5 -e efa"),
            you("Leave the node out.", f"#SBATCH --exclude={node.name}"),
        ],
    )  # fmt: skip

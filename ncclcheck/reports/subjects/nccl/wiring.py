"""HCAs and the PCIe tree as rules look at them: what NCCL would use, how near cards are, what is virtual."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ncclcheck.probes import facts
from ncclcheck.probes.facts import Cluster, Hca, Node, PciDevice, Unread, at, value_or
from ncclcheck.reports.judgement.derived import derived, derived_from
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.subjects.nccl.hca import GidChoice, HcaChoice, UsedPort, gid_choice, hca_choice, is_routable
from ncclcheck.reports.subjects.nccl.variables import nccl_version, values

_VIRTUAL = (
    "kvm", "qemu", "vmware", "virtualbox", "virtual machine", "google compute engine", "openstack", "xen", "bochs",
    "amazon ec2", "alibaba cloud ecs", "hvm domu", "firecracker",
)  # fmt: skip
_NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")


def with_gpus(cluster: Cluster) -> list[Node]:
    """Nodes that have GPUs or may have some: the others use no NCCL. Raises NothingToJudge."""
    if cluster.job.backend_asked == "gloo":
        raise NothingToJudge("gloo was asked for, which uses no RDMA and no GPU")
    nodes = [node for node in cluster.nodes if has_gpus(node)]
    if not nodes:
        raise NothingToJudge("no GPU on any node, so NCCL is not used")
    return nodes


@derived
def has_gpus(node: Node) -> bool:
    """Whether a node has GPUs or may have some."""
    signs = (at(node, "gpus.pci"), at(node, "gpus.devices"))
    return any(fact.kind != "absent" if isinstance(fact, Unread) else fact for fact in signs)


@derived_from("rdma", "fabric", "nccl", "job.variables")
def choice(node: Node) -> HcaChoice:
    """What NCCL's InfiniBand transport takes on a node whose devices are known.

    NCCL skips a device that it cannot open; where it could open none that it wants, RDM002 says so of them all.
    """
    if not shut(node):
        return listed(node)
    opened = [hca for hca in _devices(node) if hca.name not in shut(node)]
    taken = _choice(node, opened)
    return taken if taken.used else listed(node)


@derived_from("rdma", "fabric", "nccl", "job.variables")
def listed(node: Node) -> HcaChoice:
    """The same of all devices that sysfs shows, though some cannot be opened."""
    return _choice(node, _devices(node))


@derived
def shut(node: Node) -> frozenset[str]:
    """HCAs in sysfs, which no namespace hides, that this process cannot open: those of other pods, most often."""
    files, opened = at(node, "rdma.device_files"), value_or(at(node, "rdma.opened"), [])
    refused = {file.name for file in opened if file.error}
    named = {hca.name: hca.uverbs for hca in _devices(node) if isinstance(hca.uverbs, str)}
    absent = set() if isinstance(files, Unread) else {*named.values()} - {*files}
    return frozenset(name for name, uverbs in named.items() if uverbs in refused | absent)


def _devices(node: Node) -> list[Hca]:
    return value_or(at(node, "rdma.devices"), [])


def _choice(node: Node, devices: list[Hca]) -> HcaChoice:
    return hca_choice(devices, values(node), nccl_version(node), _paths(node))


@derived_from("fabric")
def _paths(node: Node) -> Mapping[str, tuple[str, ...]]:
    return {device.name: tuple(value_or(device.path, [])) for device in functions(node)}


def choosing(cluster: Cluster) -> Iterator[tuple[Node, HcaChoice]]:
    """Nodes on which NCCL looks for HCAs, with what it takes. Raises NothingToJudge."""
    choices = [(node, choice(node)) for node in with_gpus(cluster)]
    wanting = [(node, taken) for node, taken in choices if not taken.reason.startswith("NCCL_IB_DISABLE")]
    if not wanting:
        raise NothingToJudge(f"{choices[0][1].reason}: NCCL does not look for HCAs")
    yield from wanting


@derived
def _gids(node: Node) -> Mapping[str, GidChoice | None]:
    return {port.name: gid_choice(port, values(node), nccl_version(node)) for port in choice(node).used}


def gid(node: Node, port: UsedPort) -> GidChoice | None:
    """The GID that NCCL would take on a port that it uses; None where the table was not read."""
    return _gids(node).get(port.name)


def wanted(taken: HcaChoice) -> tuple[UsedPort, ...]:
    """All ports that NCCL would take if they were well."""
    return (*taken.used, *taken.inactive, *taken.unseen)


@derived
def of_hypervisor(node: Node) -> frozenset[str]:
    """HCAs that are the fast path of a Hyper-V interface (accelerated networking, MANA).

    Their interface is a member of that of hv_netvsc, which has the address: the port is ACTIVE, its GID table
    holds no address that a peer could be reached at. Inferred
    from skypilot-org/skypilot#4448 (eth0 and its member in NCCL's list); the GID table was not seen.
    """
    interfaces = value_or(at(node, "network.interfaces"), [])
    if not any(interface.driver == "hv_netvsc" for interface in interfaces):
        return frozenset()
    return frozenset(hca.name for hca in _devices(node) if _is_ethernet(hca) and not reachable(hca))


def _is_ethernet(hca: Hca) -> bool:
    return all(port.link_layer == "Ethernet" for port in value_or(hca.ports, []))


def reachable(hca: Hca) -> bool:
    """Whether a port is ACTIVE and has an address of its fabric: always so of InfiniBand."""
    return any(
        port.state == "ACTIVE"
        and (port.link_layer == "InfiniBand" or any(is_routable(gid) for gid in value_or(port.gids, [])))
        for port in value_or(hca.ports, [])
    )


@derived
def has_rdma(node: Node) -> bool:
    """Whether some HCA of the node could carry data between machines as it stands."""
    return any(reachable(hca) for hca in _devices(node))


def efa(node: Node) -> list[Hca]:
    """Devices of Amazon's Elastic Fabric Adapter, which NCCL reaches by a plugin alone."""
    devices = value_or(at(node, "rdma.devices"), [])
    return [hca for hca in devices if hca.driver == "efa" or str(hca.model).startswith("efa")]


def functions(node: Node, kind: str = "") -> list[PciDevice]:
    """PCI functions of a node, all or of one kind; none where they were not read."""
    devices = value_or(at(node, "fabric.pci"), [])
    return [device for device in devices if kind in ("", device.kind)]


@derived_from("fabric")
def by_address(node: Node) -> Mapping[str, PciDevice]:
    """The PCI functions of a node by their addresses, as /sys has them."""
    return {function.name: function for function in functions(node)}


@derived_from("fabric")
def between(node: Node) -> Mapping[str, Mapping[str, str | None]]:
    """How near each other function is to each GPU, by their addresses, as /sys has them."""
    return _near(functions(node))


@derived_from("fabric", "nccl")
def placed(node: Node) -> Mapping[str, PciDevice]:
    """GPUs and network cards by address, as NCCL places them: its topology file counts more than /sys."""
    devices = {device.name: device for device in value_or(at(node, "nccl.topology"), [])}
    return {
        function.name: _as_told(function, devices[function.name]) if function.name in devices else function
        for function in functions(node)
    }


def _as_told(device: PciDevice, in_file: PciDevice) -> PciDevice:
    link = device.link if isinstance(in_file.link, Unread) else in_file.link
    return facts.replace(device, root=in_file.root, path=in_file.path, numa_node=in_file.numa_node, link=link)


@derived_from("rdma")
def hca_names(node: Node) -> Mapping[str, str]:
    """Name of the HCA at each PCI address."""
    devices = value_or(at(node, "rdma.devices"), [])
    return {hca.pci: hca.name for hca in devices if not isinstance(hca.pci, Unread)}


def is_virtual(node: Node) -> bool | None:
    """Whether the node is a virtual machine; None where nothing tells."""
    flag, product = at(node, "fabric.hypervisor"), at(node, "fabric.product")
    if not isinstance(flag, Unread):
        return bool(flag)
    if isinstance(product, Unread):
        return None
    text = product.lower()
    return ".metal" not in text and any(name in text for name in _VIRTUAL)


@derived_from("fabric", "nccl")
def from_gpus(node: Node) -> Mapping[str, Mapping[str, str | None]]:
    """How near each network card is to each GPU, by their addresses, as NCCL places them."""
    return _near(placed(node).values())


def _near(functions: Collection[PciDevice]) -> Mapping[str, Mapping[str, str | None]]:
    cards = [function for function in functions if function.kind != "gpu"]
    return {gpu.name: {card.name: distance(gpu, card) for card in cards} for gpu in functions if gpu.kind == "gpu"}


def distance(device: PciDevice, other: PciDevice) -> str | None:
    """How near two functions are, by the words of nvidia-smi topo; None where it was not read."""
    if isinstance(device.path, Unread) or isinstance(other.path, Unread):
        return _by_numa(device, other)
    if shared := [name for name in device.path if name in other.path]:
        longest = max(len(device.path), len(other.path)) - len(shared)
        return "PIX" if longest <= 1 else "PXB"
    if device.root == other.root and not isinstance(device.root, Unread):
        return "PHB"
    return _by_numa(device, other)


def _by_numa(device: PciDevice, other: PciDevice) -> str | None:
    a, b = device.numa_node, other.numa_node
    if isinstance(a, Unread) or isinstance(b, Unread) or a < 0 or b < 0:
        return None
    return "NODE" if a == b else "SYS"


def nearest(distances: list[str | None]) -> str | None:
    """The shortest of several distances; None where none is known."""
    return min([known for known in distances if known is not None], key=_NEAR.index, default=None)


def cpus(text: str) -> set[int]:
    """ "0-2,8" as {0, 1, 2, 8}; what is no number is left out."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal() and len(part) < 16:
            numbers |= set(range(int(first), min(int(last or first), int(first) + 16384) + 1))
    return numbers

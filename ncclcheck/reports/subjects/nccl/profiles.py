"""Clouds and makes of machines: what their own profiles set, and may therefore stay; reported by facts alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ncclcheck.probes.facts import Node, Unread, at, value_or
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nccl.variables import Version, as_version, effective

OCI = "OracleCloud.com"
GIB = "/usr/local/gib/"
_AZURE = "7783-7084-3265-9085-8269-3286-77"


@dataclass(frozen=True)
class Platform:
    """A platform, how it is recognised, and the variables that its own profile sets."""

    name: str
    is_it: Callable[[Sequence[Node]], bool]
    keeps: frozenset[str]


def products(nodes: Sequence[Node]) -> str:
    """Vendors, products and asset tags of the machines, by DMI."""
    facts = [at(node, path) for node in nodes for path in ("fabric.product", "fabric.asset_tag")]
    return ", ".join(dict.fromkeys(str(fact) for fact in facts if fact and not isinstance(fact, Unread)))


def is_aws(nodes: Sequence[Node]) -> bool:
    """Amazon's machines that all have EFA."""
    return "Amazon EC2" in products(nodes) and bool(nodes) and all(wiring.efa(node) for node in nodes)


def is_azure(nodes: Sequence[Node]) -> bool:
    """Virtual machines of Azure."""
    names = products(nodes)
    return _AZURE in names or "Microsoft Corporation Virtual Machine" in names


def is_oci(nodes: Sequence[Node]) -> bool:
    """Machines of Oracle's cloud."""
    return OCI in products(nodes)


def is_tcpx(nodes: Sequence[Node]) -> bool:
    """Google's a3-high: its variables are set."""
    return any(name.startswith("NCCL_GPUDIRECTTCPX_") for node in nodes for name in effective(node))


def is_tcpxo(nodes: Sequence[Node]) -> bool:
    """Google's a3-mega: its variables are set."""
    return any(name.startswith("NCCL_FASTRAK_") for node in nodes for name in effective(node))


def is_gib(nodes: Sequence[Node]) -> bool:
    """Google's plugin for RoCE is the one that NCCL would load."""
    return any(path.startswith(GIB) for node in nodes for path in value_or(at(node, "nccl.plugins"), []))


def is_coreweave(nodes: Sequence[Node]) -> bool:
    """HCAs are called ibp0 and on."""
    names = [value_or(at(node, "rdma.hcas"), []) for node in nodes]
    return bool(names) and all(hcas and all(name.startswith("ibp") for name in hcas) for hcas in names)


def is_erdma(nodes: Sequence[Node]) -> bool:
    """Alibaba's machines with elastic RDMA."""
    devices = [value_or(at(node, "rdma.devices"), []) for node in nodes]
    return bool(devices) and all(any(device.driver == "erdma" for device in listed) for listed in devices)


def is_slingshot(nodes: Sequence[Node]) -> bool:
    """Interfaces are called hsn0 and on."""
    return bool(nodes) and all(slingshot_interfaces(node) for node in nodes)


def slingshot_interfaces(node: Node) -> list[str]:
    """hsn0 and on."""
    listed = at(node, "network.interfaces")
    return (
        []
        if isinstance(listed, Unread)
        else [interface.name for interface in listed if interface.name.startswith("hsn")]
    )


PLATFORMS = (
    Platform("AWS with EFA", is_aws, frozenset({"NCCL_SOCKET_IFNAME", "NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE"})),
    Platform("Azure", is_azure, frozenset({"NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_TOPO_FILE",
    "NCCL_IGNORE_CPU_AFFINITY", "NCCL_PXN_DISABLE", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_MIN_NCHANNELS",
    "NCCL_GRAPH_FILE", "NCCL_SOCKET_IFNAME"})),
    Platform("OCI", is_oci, frozenset({
        "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_GID_INDEX", "NCCL_IB_TIMEOUT", "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_HCA", "NCCL_CUMEM_ENABLE", "NCCL_SOCKET_IFNAME",
        "NCCL_IGNORE_CPU_AFFINITY", "NCCL_BUFFSIZE"})),
    Platform("GCP with TCPX", is_tcpx, frozenset({
        "NCCL_ALGO", "NCCL_PROTO", "NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_PXN_LEVEL",
        "NCCL_SOCKET_IFNAME",
        "NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_DYNAMIC_CHUNK_SIZE"})),
    Platform("GCP with TCPXO", is_tcpxo, frozenset({
        "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_NVLSTREE_MAX_CHUNKSIZE",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_CROSS_NIC", "NCCL_SOCKET_IFNAME", "NCCL_NET_GDR_LEVEL", "NCCL_DYNAMIC_CHUNK_SIZE"})),
    Platform("GCP with gIB", is_gib, frozenset({
        "NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NVLS_CHUNKSIZE",
        "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_TC", "NCCL_IB_FIFO_TC"})),
    Platform("CoreWeave", is_coreweave, frozenset({
        "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_NET_PLUGIN", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE",
        "NCCL_IB_TC", "NCCL_IB_ADAPTIVE_ROUTING"})),
    Platform("Alibaba Cloud with eRDMA", is_erdma, frozenset({
        "NCCL_SOCKET_IFNAME", "NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_MIN_NCHANNELS", "NCCL_NET_PLUGIN"})),
    Platform("HPE Slingshot", is_slingshot, frozenset({
        "NCCL_NET", "NCCL_SOCKET_IFNAME", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC", "NCCL_PROTO"})),
)  # fmt: skip


def plugin_versions(nodes: Sequence[Node], product: str) -> list[Version]:
    """The versions of a plugin on all nodes, from the library's own text; none where one of them is not known."""
    versions: list[Version] = []
    for node in nodes:
        names = [str(value_or(file.product, "")) for file in value_or(at(node, "nccl.plugin_files"), [])]
        of_node = [
            version for text in names if text.startswith(product) and (version := as_version(text.split()[-1]))
        ]
        if not of_node:
            return []
        versions += of_node
    return versions


def asked(node: Node) -> set[str]:
    """The variables that are set on a node, and those that its platform's own profile or plugin sets."""
    return {*effective(node), *keeps([node])}


def keeps(nodes: Sequence[Node]) -> Mapping[str, str]:
    """Variables that the profile of this platform sets -> its name: they are not taken away as leftovers."""
    return {name: platform.name for platform in PLATFORMS if platform.is_it(nodes) for name in platform.keeps}

"""What the RDMA and fabric probes read: HCAs with their ports, the PCIe tree, NUMA nodes, kernel settings.

Rules import it from `facts`.
"""

from __future__ import annotations

from msgspec import Struct

from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread


class Gid(Struct, frozen=True, kw_only=True):
    """One used entry of a port's GID table. type: "RoCE v2" or "IB/RoCE v1". netdev: the interface behind it."""

    index: int
    gid: str
    type: str | Unread = NOT_RECORDED
    netdev: str | Unread = NOT_RECORDED


class Counter(Struct, frozen=True, kw_only=True):
    """An error counter of a port since its driver was loaded."""

    name: str
    value: int


class Port(Struct, frozen=True, kw_only=True):
    """One port of an HCA. name: its number. state: DOWN, INIT, ARMED or ACTIVE. physical: LinkUp, Polling...

    rate_gbit: the rate of the link now. pkeys: the first entries of the partition table, in order.
    """

    name: str
    state: str | Unread = NOT_RECORDED
    physical: str | Unread = NOT_RECORDED
    rate_gbit: float | Unread = NOT_RECORDED
    link_layer: str | Unread = NOT_RECORDED
    lid: int | Unread = NOT_RECORDED
    sm_lid: int | Unread = NOT_RECORDED
    gids: list[Gid] | Unread = NOT_RECORDED
    pkeys: list[int] | Unread = NOT_RECORDED
    counters: list[Counter] | Unread = NOT_RECORDED
    traffic_class: str | Unread = NOT_RECORDED


class Hca(Struct, frozen=True, kw_only=True):
    """One RDMA device. Source: /sys/class/infiniband.

    model: hca_type (MT4129 is a ConnectX-7). uverbs: the device file that a program must open to use it.
    pci: its address in the PCIe tree of `Fabric`.
    """

    name: str
    model: str | Unread = NOT_RECORDED
    board: str | Unread = NOT_RECORDED
    firmware: str | Unread = NOT_RECORDED
    node_guid: str | Unread = NOT_RECORDED
    driver: str | Unread = NOT_RECORDED
    pci: str | Unread = NOT_RECORDED
    uverbs: str | Unread = NOT_RECORDED
    ports: list[Port] | Unread = NOT_RECORDED


class DeviceFile(Struct, frozen=True, kw_only=True):
    """A file below /dev/infiniband that this process tried to open. error: why it could not; empty: it could."""

    name: str
    error: str = ""


class Leaf(Struct, frozen=True, kw_only=True):
    """The switch at the other end of a port's cable. name: HCA and port. identity: its GUID or chassis ID.

    told_by: LLDP as systemd-networkd or lldpd has it, or smpquery of InfiniBand.
    """

    name: str
    switch: str
    identity: str
    port: str
    told_by: str


class Rdma(Struct, frozen=True, kw_only=True, tag="rdma"):
    """RDMA devices, and what a program needs to use them.

    hcas: names alone. device_files: names below /dev/infiniband; opened: those of uverbs, and how opening went.
    libibverbs: where libibverbs.so.1 was found. providers: the driver libraries below it (mlx5, efa...).
    peer_modules: kernel modules through which an HCA reads GPU memory. open_driver: NVIDIA's open kernel module,
    which can do that by dma-buf. leaves: the switches that the ports are on, as far as they are known.
    """

    hcas: list[str] | Unread = NOT_RECORDED
    devices: list[Hca] | Unread = NOT_RECORDED
    device_files: list[str] | Unread = NOT_RECORDED
    opened: list[DeviceFile] | Unread = NOT_RECORDED
    libibverbs: str | Unread = NOT_RECORDED
    providers: list[str] | Unread = NOT_RECORDED
    peer_modules: list[str] | Unread = NOT_RECORDED
    open_driver: bool | Unread = NOT_RECORDED
    leaves: list[Leaf] | Unread = NOT_RECORDED


class PcieLink(Struct, frozen=True, kw_only=True, tag="link"):
    """A PCIe link: transfer rate in GT/s and lanes, now and at most. Source: pci(5) attributes of sysfs."""

    gts: float
    width: int
    most_gts: float
    most_width: int


class Errors(Struct, frozen=True, kw_only=True, tag="errors"):
    """PCIe errors that the device reported since boot (AER)."""

    correctable: int
    nonfatal: int
    fatal: int


class PciDevice(Struct, frozen=True, kw_only=True):
    """A GPU, a network card, or a bridge above one. name: its address, as 0000:1b:00.0.

    path: the bridges above it, the root first. root: the host bridge, as pci0000:17. numa_node: -1 is none.
    iommu: how the IOMMU treats it (identity: untouched; DMA, DMA-FQ: translated), and iommu_group the number of
    the group that it is in. acs: the controls that are on. max_read: bytes that one read request may ask for.
    extended_tags: whether it may have 256 requests under way, not 32.
    """

    name: str
    kind: str
    root: str | Unread = NOT_RECORDED
    path: list[str] | Unread = NOT_RECORDED
    numa_node: int | Unread = NOT_RECORDED
    link: PcieLink | Unread = NOT_RECORDED
    iommu: str | Unread = NOT_RECORDED
    acs: list[str] | Unread = NOT_RECORDED
    iommu_group: int | Unread = NOT_RECORDED
    relaxed_ordering: bool | Unread = NOT_RECORDED
    max_read: int | Unread = NOT_RECORDED
    extended_tags: bool | Unread = NOT_RECORDED
    errors: Errors | Unread = NOT_RECORDED
    virtual_function: bool = False


class NumaNode(Struct, frozen=True, kw_only=True):
    """One NUMA node. name: its number. cpus as the kernel lists them (0-31,64-95); memory in bytes."""

    name: str
    cpus: str | Unread = NOT_RECORDED
    memory: int | Unread = NOT_RECORDED
    distances: list[int] | Unread = NOT_RECORDED


class Bound(Struct, frozen=True, kw_only=True, tag="bound"):
    """CPUs and NUMA nodes that this process may use, as the kernel lists them. Source: /proc/self/status."""

    cpus: str
    mems: str


class HugePages(Struct, frozen=True, kw_only=True, tag="hugepages"):
    """Huge pages of the default size that are set aside, and the size. transparent: always, madvise or never."""

    total: int
    free: int
    size: int
    transparent: str | Unread = NOT_RECORDED


class Governor(Struct, frozen=True, kw_only=True, tag="governor"):
    """How the clock of the cores is set: one entry for each governor in use; preference: of the hardware."""

    names: list[str]
    driver: str | Unread = NOT_RECORDED
    preference: str | Unread = NOT_RECORDED


class Fabric(Struct, frozen=True, kw_only=True, tag="fabric"):
    """What connects GPUs, network cards, cores and memory within a node.

    hypervisor: the CPU says that it is a virtual one. product: vendor and product by DMI. asset_tag: that of the
    chassis, in which some clouds write who they are. topology_file: there is an XML file of the provider where
    NCCL looks for one.
    """

    pci: list[PciDevice] | Unread = NOT_RECORDED
    iommus: list[str] | Unread = NOT_RECORDED
    command_line: str | Unread = NOT_RECORDED
    numa: list[NumaNode] | Unread = NOT_RECORDED
    bound: Bound | Unread = NOT_RECORDED
    huge_pages: HugePages | Unread = NOT_RECORDED
    governor: Governor | Unread = NOT_RECORDED
    numa_balancing: int | Unread = NOT_RECORDED
    hypervisor: bool | Unread = NOT_RECORDED
    product: str | Unread = NOT_RECORDED
    asset_tag: str | Unread = NOT_RECORDED
    topology_file: bool | Unread = NOT_RECORDED

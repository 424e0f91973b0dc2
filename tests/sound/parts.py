"""What a machine is made of: GPUs by model, PCIe functions below their switches, network cards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ncclcheck.probes.facts import (
    Counter,
    DeviceFile,
    Gid,
    Gpu,
    GpuPeer,
    Hca,
    NvFabric,
    NvLinks,
    PciDevice,
    PcieLink,
    Port,
    RemappedRows,
    SpareRows,
    Unread,
)

ABSENT = Unread("absent", "there is none")
NOT_SUPPORTED = Unread("absent", "Not Supported")
ROOT_ONLY = Unread("denied", "only root reads more than 64 bytes of the configuration space")

_COUNTS = ("ecc_uncorrected", "ecc_corrected", "ecc_uncorrected_ever", "ecc_corrected_ever")

Path = Literal["INT", "PIX", "PXB", "PHB", "NODE", "SYS"]
Layer = Literal["InfiniBand", "Ethernet", "Unspecified"]


@dataclass(frozen=True)
class Model:
    """A model of GPU as NVML describes it idle. memory in MiB, link in Mbit/s a lane pair as NVML counts it."""

    name: str
    memory: int
    watts: float
    clock: int
    clock_memory: int
    gen: int
    links: int = 0
    link_mbps: int = 0
    vbios: str = "96.00.A5.00.01"
    ecc: bool = True
    switched: bool = False  # on an NVSwitch fabric with which it registers (Hopper and later)
    persistence: bool = True
    p2p: str = "ok"
    rests: bool = False  # slows its link and its memory down while it is idle


H100 = Model("NVIDIA H100 80GB HBM3", 81559, 700.0, 1980, 2619, 5, 18, 26562, switched=True)
H200 = Model("NVIDIA H200", 143771, 700.0, 1980, 3201, 5, 18, 26562, vbios="96.00.A5.00.03", switched=True)
B200 = Model("NVIDIA B200", 183359, 1000.0, 1965, 3996, 5, 18, 53125, vbios="97.00.88.00.0F", switched=True)
GB200 = Model("NVIDIA GB200", 189471, 1200.0, 2062, 3996, 6, 18, 53125, vbios="97.00.B9.00.09", switched=True)
GH200 = Model("NVIDIA GH200 480GB", 97871, 900.0, 1980, 2619, 5, vbios="96.00.84.00.02")
A100_SXM = Model("NVIDIA A100-SXM4-40GB", 40960, 400.0, 1410, 1215, 4, 12, 25781, vbios="92.00.45.00.03")
A100_PCIE = Model("NVIDIA A100-PCIE-40GB", 40960, 250.0, 1410, 1215, 4, vbios="92.00.25.00.08")
L40S = Model("NVIDIA L40S", 46068, 350.0, 2520, 9001, 4, vbios="95.02.66.00.02", rests=True)
RTX4090 = Model(
    "NVIDIA GeForce RTX 4090", 24564, 450.0, 3105, 10501, 4, vbios="95.02.3C.40.B8", ecc=False,
    persistence=False, p2p="chipset not supported", rests=True,
)  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """Where a PCIe function hangs. path: the bridges above it, the root first."""

    pci: str
    root: str
    path: tuple[str, ...] = ()
    numa: int = 0
    gts: float = 32.0
    width: int = 16
    most_width: int = 0  # of the card, where its slot has fewer lanes
    link: bool = True  # a guest's flat bus tells no speed
    vf: bool = False

    def at(self, pci: str) -> Slot:
        """Another function of the same card."""
        return replace(self, pci=pci)


def switch(root: str, numa: int, *functions: str, gts: float = 32.0, width: int = 16) -> list[Slot]:
    """Functions below one PCIe switch, each on a port of its own. root: domain and bus, as 0000:15."""
    domain, bus = root.split(":")
    up, down = (f"{domain}:{int(bus, 16) + number:02x}" for number in (1, 2))
    chain = (f"{root}:01.0", f"{up}:00.0")
    cards = list(dict.fromkeys(name[:-2] for name in functions))
    ports = {card: f"{down}:{number:02x}.0" for number, card in enumerate(cards)}
    return [Slot(name, f"pci{root}", (*chain, ports[name[:-2]]), numa, gts, width) for name in functions]


def direct(root: str, numa: int, function: str, gts: float = 32.0, width: int = 16) -> Slot:
    """A function on a root port, with no switch between."""
    return Slot(function, f"pci{root}", (f"{root}:01.0",), numa, gts, width)


def virtual(function: str, numa: int = 0, root: str = "") -> Slot:
    """A function on the flat bus that a hypervisor shows."""
    return Slot(function, root or f"pci{function[:7]}", (), numa, link=False)


@dataclass(frozen=True)
class Card:
    """One function of a network card.

    hca: its RDMA device, empty where it has none. netdev: its interface, empty where it has none or is in another
    network namespace. net: its address with {n}, which differs from node to node; empty where it has none.
    ours: whether this process has its device file.
    """

    hca: str
    slot: Slot
    gbit: float = 400.0
    layer: Layer = "InfiniBand"
    netdev: str = ""
    net: str = ""
    mtu: int = 0
    model: str = "MT4129"
    board: str = "MT_0000000838"
    firmware: str = "28.41.1000"
    driver: str = "mlx5_core"
    up: bool = True
    ours: bool = True
    data: bool = True  # whether NCCL should use it
    bond: str = ""
    traffic_class: str = ""


def gpu_facts(model: Model, slots: list[Slot], index: int) -> Gpu:
    """One GPU, idle, with its way to the others."""
    slot = slots[index]
    gen = min(model.gen, 5)
    return Gpu(
        name=f"GPU {index}",
        index=index,
        trouble="",
        recovery="none",
        uuid=f"GPU-{slot.pci.replace(':', '').replace('.', '')}-{index:04x}",
        model=model.name,
        pci=slot.pci,
        numa=slot.numa if slot.numa >= 0 else ABSENT,
        vbios=model.vbios,
        memory_total=model.memory * 2**20,
        memory_used=0,
        bar1=_window(model),
        processes=[],
        compute_mode="default",
        persistence=model.persistence,
        mig=False if model.ecc and model.name != "NVIDIA L40S" else NOT_SUPPORTED,
        mig_instances=Unread("absent", "MIG is off"),
        ecc=model.ecc or NOT_SUPPORTED,
        ecc_pending=model.ecc or NOT_SUPPORTED,
        **dict.fromkeys(_COUNTS, 0 if model.ecc else NOT_SUPPORTED),
        sram_exceeded=False if model.ecc else NOT_SUPPORTED,
        retired=NOT_SUPPORTED,
        remapped=RemappedRows(correctable=0, uncorrectable=0, pending=False, failed=False)
        if model.ecc
        else NOT_SUPPORTED,
        spare_rows=SpareRows(all=640, many=0, some=0, few=0, none=0) if model.ecc else NOT_SUPPORTED,
        inforom=True if model.ecc else NOT_SUPPORTED,
        utilization=0,
        clock=345 if model.ecc else 210,
        clock_max=model.clock,
        clock_memory=405 if model.rests else model.clock_memory,
        clock_memory_max=model.clock_memory,
        throttle=["idle"],
        power_draw=round(model.watts / 9, 1),
        power_cap=model.watts,
        power_default=model.watts,
        temperature=33,
        slowdown_at=NOT_SUPPORTED if model.links else 90,
        margin=52 if model.ecc else NOT_SUPPORTED,
        pcie_gen=1 if model.rests else gen,
        pcie_gen_max=gen,
        pcie_gen_device=gen,
        pcie_width=slot.width,
        pcie_width_max=slot.most_width or slot.width,
        pcie_replays=0,
        nvlinks=NvLinks(
            links=model.links, down=[], speed_mbps=model.link_mbps, replays=0, recoveries=0, crc_errors=0
        )
        if model.links
        else Unread("absent", "Not Supported (nvmlDeviceGetNvLinkState)"),
        fabric=NvFabric(state="completed", health="healthy")
        if model.switched
        else Unread("absent", "this GPU is on no NVSwitch fabric"),
        peers=[
            GpuPeer(name=f"GPU {number}", path=between(slot, other), p2p=model.p2p)
            for number, other in enumerate(slots)
            if number != index
        ],
    )


def _window(model: Model) -> int | Unread:
    """BAR1: the next power of two above the memory; GeForce boards have 256 MiB, and a C2C GPU has none."""
    if model is GH200 or model is GB200:
        return NOT_SUPPORTED
    return 256 * 2**20 if not model.ecc else 1 << (model.memory * 2**20 - 1).bit_length()


def between(slot: Slot, other: Slot) -> Path:
    """The way between two functions, by NVML's words."""
    common = sum(a == b for a, b in zip(slot.path, other.path, strict=False))
    if slot.root == other.root and common:
        return "PIX" if len(slot.path) - common <= 1 else "PXB"
    if slot.root == other.root:
        return "PHB"
    return "NODE" if slot.numa == other.numa else "SYS"


def pci_facts(slot: Slot, kind: str, *, root: bool, iommu: str | Unread, rests: bool = False) -> PciDevice:
    """A GPU, a network function or a bridge. root: whether the prober may read the registers."""
    now = 2.5 if rests else slot.gts
    link = PcieLink(gts=now, width=slot.width, most_gts=slot.gts, most_width=slot.most_width or slot.width)
    return PciDevice(
        name=slot.pci,
        kind=kind,
        root=slot.root,
        path=list(slot.path),
        numa_node=slot.numa,
        link=link if slot.link else Unread("absent", f"{slot.pci} reports no speed or width of its link"),
        iommu=iommu,
        acs=Unread("absent", "it is no bridge") if kind != "bridge" else [] if root else ROOT_ONLY,
        relaxed_ordering=True if root else ROOT_ONLY,
        iommu_group=ABSENT if isinstance(iommu, Unread) else int(slot.pci.split(":")[1], 16) + 8,
        max_read=4096 if root else ROOT_ONLY,
        extended_tags=True if root else ROOT_ONLY,
        errors=ABSENT,
        virtual_function=slot.vf,
    )


def bridges(slots: list[Slot]) -> list[Slot]:
    """The bridges above these functions, each once."""
    by_pci: dict[str, Slot] = {}
    for slot in slots:
        for depth, name in enumerate(slot.path):
            by_pci.setdefault(name, replace(slot, pci=name, path=slot.path[:depth], vf=False, most_width=0))
    return [by_pci[name] for name in sorted(by_pci)]


def guid(number: int, index: int) -> str:
    """The node GUID of a card, which no other card has."""
    return f"b83f:d203:{number + 0x10:04x}:{index + 0x100:04x}"


def hca_facts(card: Card, number: int, index: int) -> Hca:
    """The RDMA device of a card on the node of this number."""
    efa = card.layer == "Unspecified"
    return Hca(
        name=card.hca,
        model=ABSENT if efa else card.model,
        board=ABSENT if efa else card.board,
        firmware="0.0.0.0" if efa else card.firmware,
        node_guid="0000:0000:0000:0000" if efa else guid(number, index),
        driver=card.driver,
        pci=card.slot.pci,
        uverbs=f"uverbs{index}",
        ports=[_port(card, number, index)],
    )


def _port(card: Card, number: int, index: int) -> Port:
    infiniband = card.layer == "InfiniBand"
    return Port(
        name="1",
        state="ACTIVE" if card.up else "DOWN",
        physical="LinkUp" if card.up else "Disabled",
        rate_gbit=card.gbit,
        link_layer=card.layer,
        lid=(200 + number * 40 + index if card.up else 0xFFFF) if infiniband else 0,
        sm_lid=int(infiniband and card.up),
        gids=_gids(card, number, index),
        pkeys=[0xFFFF, 0, 0, 0, 0, 0, 0, 0] if not infiniband else [0xFFFF, 0x7FFF, 0, 0, 0, 0, 0, 0],
        counters=ABSENT
        if card.layer == "Unspecified"
        else [
            Counter(name=name, value=0)
            for name in ("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "packet_seq_err")
        ],
        traffic_class=card.traffic_class or ABSENT,
    )


def _gids(card: Card, number: int, index: int) -> list[Gid]:
    """What mlx5 has: of InfiniBand one entry; of RoCE two for each address of the interface, v1 before v2."""
    local = f"fe80:0000:0000:0000:{guid(number, index)}"
    if card.layer == "InfiniBand":
        return [Gid(index=0, gid=local, type="IB/RoCE v1", netdev=ABSENT)]
    if card.layer == "Unspecified":
        return [Gid(index=0, gid=local, type=ABSENT, netdev=ABSENT)]
    gids = [local]
    if address := card.net.format(n=number + 11).partition("/")[0]:
        a, b, c, d = (int(part) for part in address.split("."))
        gids.append(f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}")
    netdev = card.netdev or Unread("absent", "the interface is in another network namespace")
    return [
        Gid(index=2 * place + kind, gid=gid, type=("IB/RoCE v1", "RoCE v2")[kind], netdev=netdev)
        for place, gid in enumerate(gids)
        for kind in (0, 1)
    ]


def opened(cards: list[Card]) -> list[DeviceFile]:
    """The device files that this process has; all open."""
    return [DeviceFile(name=f"uverbs{index}") for index, card in enumerate(cards) if card.ours]

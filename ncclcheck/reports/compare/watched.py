"""Which facts of a node are compared, and which way of changing is for the worse. Only tables.

Not compared is what changes from minute to minute (free memory, clocks, temperature, processes), and what is told
elsewhere. A GPU's PCIe generation is compared by what its slot can do, for idle links lower the present one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ncclcheck.probes.facts import Unread, at

Sense = Literal["less", "more", "other"]


@dataclass(frozen=True)
class Watch:
    """One fact. worse: less, more, or `other` where no value is better than another.

    good: the only good value of a word. near: a smaller share of change is none. none: its absence is news too.
    grave: a job cannot run, or not rightly, with the worse value.
    """

    path: str
    words: str
    worse: Sense = "other"
    good: str | None = None
    unit: str = ""
    near: float = 0.0
    none: bool = False
    grave: bool = False


@dataclass(frozen=True)
class Count:
    """One counter. bad: from so many more on it is for the worse. ever: it survives a restart of the machine."""

    path: str
    words: str
    bad: float = 1
    share_of: str = ""
    ever: bool = False
    grave: bool = False


@dataclass(frozen=True)
class Part:
    """Things of a node in a list. key: what tells them apart. counts: the fact that holds named counters.

    grave: a job misses one that is gone. of: which ones are compared.
    """

    path: str
    noun: str
    key: str = "name"
    watches: tuple[Watch, ...] = ()
    counts: tuple[Count, ...] = ()
    counters: str = ""
    parts: tuple[Part, ...] = ()
    grave: bool = False
    of: Callable[[Any], bool] = lambda _: True


NODE = (
    Watch("nccl.loaded.version", "NCCL version", none=True),
    Watch("nccl.loaded.path", "libnccl in use"),
    Watch("stack.torch", "torch version", none=True),
    Watch("stack.torch_cuda", "CUDA of torch", none=True),
    Watch("stack.driver", "NVIDIA driver", none=True),
    Watch("stack.python", "Python version"),
    Watch("stack.ncclcheck", "ncclcheck version"),
    Watch("host.system", "operating system"),
    Watch("host.kernel", "kernel"),
    Watch("host.cores", "cores", "less"),
    Watch("host.usable_cores", "usable cores", "less"),
    Watch("host.memory", "memory", "less", unit="bytes", near=0.01),
    Watch("host.memory_limit", "memory limit", "less", unit="bytes", near=0.01),
    Watch("host.memlock.soft", "memlock limit"),
    Watch("host.nofile.soft", "open files limit"),
    Watch("host.shm.size", "/dev/shm", "less", unit="bytes", near=0.01),
    Watch("host.clocksource", "clock source", good="tsc"),
    Watch("system.cpu", "processor"),
    Watch("gpus.usable", "GPUs usable by CUDA", "less", grave=True),
    Watch("gpus.driver_cuda", "CUDA of the driver"),
    Watch("gpus.nvml", "error of NVML", good="", grave=True),
    Watch("gpus.chosen_by", "GPUs chosen by"),
    Watch("rdma.libibverbs", "libibverbs", none=True),
    Watch("rdma.open_driver", "NVIDIA's open kernel module"),
    Watch("fabric.command_line", "kernel command line"),
    Watch("fabric.numa_balancing", "automatic NUMA balancing"),
    Watch("fabric.huge_pages.total", "huge pages"),
    Watch("fabric.huge_pages.transparent", "transparent huge pages"),
)

_GPU = (
    Watch("model", "model"),
    Watch("uuid", "card"),
    Watch("trouble", "NVML's word", good="", grave=True),
    Watch("recovery", "what the driver asks for", good="none", grave=True),
    Watch("vbios", "VBIOS"),
    Watch("memory_total", "memory", "less", unit="bytes", near=0.01),
    Watch("ecc", "ECC", "less"),
    Watch("mig", "MIG"),
    Watch("compute_mode", "compute mode"),
    Watch("persistence", "persistence mode"),
    Watch("power_cap", "power limit", "less", unit="W", near=0.01),
    Watch("clock_max", "greatest clock", "less", unit="MHz", near=0.01),
    Watch("pcie_gen_max", "PCIe generation that is possible", "less"),
    Watch("pcie_width", "PCIe lanes", "less"),
    Watch("nvlinks.links", "NVLinks", "less"),
    Watch("nvlinks.down", "NVLinks that are down", "more"),
    Watch("nvlinks.speed_mbps", "NVLink speed", "less", unit="Mb/s"),
    Watch("fabric.state", "registration with NVSwitch", good="completed", grave=True),
    Watch("fabric.health", "health by NVSwitch"),
    Watch("sram_exceeded", "SRAM errors beyond NVIDIA's limit", "more", grave=True),
    Watch("remapped.pending", "row remapping that waits for a reset", "more"),
    Watch("remapped.failed", "failed row remapping", "more", grave=True),
    Watch("retired.pending", "pages that wait to be retired", "more"),
)
_GPU_COUNTS = (
    Count("ecc_uncorrected_ever", "uncorrected ECC errors", ever=True, grave=True),
    Count("ecc_corrected_ever", "corrected ECC errors", bad=1000, ever=True),
    Count("remapped.uncorrectable", "rows remapped for uncorrectable errors", ever=True),
    Count("remapped.correctable", "rows remapped for correctable errors", bad=2, ever=True),
    Count("retired.double_bit", "pages retired for uncorrectable errors", ever=True),
    Count("retired.single_bit", "pages retired for correctable errors", bad=2, ever=True),
    Count("pcie_replays", "repeated PCIe packets", bad=1000),
    Count("nvlinks.recoveries", "NVLink recoveries"),
    Count("nvlinks.replays", "repeated NVLink packets", bad=1000),
    Count("nvlinks.crc_errors", "NVLink checksum errors", bad=1000),
)

# From so many more on, a port's counter is for the worse; the rest is told only.
PORT_COUNTS = {
    "link_downed": 1.0,
    "link_error_recovery": 1.0,
    "local_link_integrity_errors": 1.0,
    "rx_icrc_encapsulated": 10.0,
    "symbol_error": 100.0,
    "port_rcv_errors": 100.0,
    "local_ack_timeout_err": 100.0,
    "packet_seq_err": 1000.0,
    "rnr_nak_retry_err": 1000.0,
    "implied_nak_seq_err": 1000.0,
    "roce_adp_retrans": 1000.0,
    "port_xmit_discards": 10000.0,
}

_PORT = Part(
    "ports",
    "port",
    watches=(
        Watch("state", "state", good="ACTIVE", grave=True),
        Watch("physical", "physical state", good="LinkUp"),
        Watch("rate_gbit", "rate", "less", unit="Gb/s"),
        Watch("link_layer", "link layer"),
        Watch("traffic_class", "traffic class"),
    ),
    counters="counters",
)


def _lasts(interface: Any) -> bool:
    """Whether it is of the machine; what containers make comes and goes."""
    return interface.kind in ("physical", "bond", "vlan", "ipoib")


def _has_link_errors(device: Any) -> bool:
    return type(at(device, "errors")) is not Unread or type(at(device, "link")) is not Unread


PARTS = (
    Part("gpus.pci", "GPU", key="", grave=True),
    Part("gpus.cards", "GPU", key="pci", watches=_GPU, counts=_GPU_COUNTS),
    Part(
        "rdma.devices",
        "HCA",
        watches=(
            Watch("model", "model"),
            Watch("board", "board"),
            Watch("firmware", "firmware"),
            Watch("node_guid", "card"),
        ),
        parts=(_PORT,),
        grave=True,
    ),
    Part(
        "network.interfaces",
        "interface",
        watches=(
            Watch("running", "link", "less"),
            Watch("up", "up", "less"),
            Watch("speed_mbit", "speed", "less", unit="Mb/s"),
            Watch("mtu", "MTU"),
            Watch("driver", "driver"),
            Watch("addresses", "addresses"),
            Watch("members", "members"),
        ),
        counts=(
            Count("packets.errors", "errors", bad=0.1, share_of="packets.packets"),
            Count("packets.drops", "drops", bad=0.1, share_of="packets.packets"),
        ),
        of=_lasts,
    ),
    Part(
        "fabric.pci",
        "PCIe device",
        watches=(
            Watch("link.width", "PCIe lanes", "less"),
            Watch("link.most_gts", "PCIe rate that is possible", "less", unit="GT/s"),
            Watch("numa_node", "NUMA node"),
            Watch("iommu", "IOMMU"),
            Watch("acs", "access control (ACS)"),
            Watch("relaxed_ordering", "relaxed ordering"),
        ),
        counts=(
            Count("errors.fatal", "fatal PCIe errors", grave=True),
            Count("errors.nonfatal", "uncorrectable PCIe errors"),
            Count("errors.correctable", "correctable PCIe errors", bad=1000),
        ),
        of=_has_link_errors,
    ),
)

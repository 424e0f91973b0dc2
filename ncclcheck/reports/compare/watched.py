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
class WatchedFact:
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
class WatchedCounter:
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
    watches: tuple[WatchedFact, ...] = ()
    counts: tuple[WatchedCounter, ...] = ()
    counters: str = ""
    parts: tuple[Part, ...] = ()
    grave: bool = False
    of: Callable[[Any], bool] = lambda _: True


NODE = (
    WatchedFact("nccl.loaded.version", "NCCL version", none=True),
    WatchedFact("nccl.loaded.path", "libnccl in use"),
    WatchedFact("stack.torch", "torch version", none=True),
    WatchedFact("stack.torch_cuda", "CUDA of torch", none=True),
    WatchedFact("stack.driver", "NVIDIA driver", none=True),
    WatchedFact("stack.python", "Python version"),
    WatchedFact("stack.ncclcheck", "ncclcheck version"),
    WatchedFact("host.system", "operating system"),
    WatchedFact("host.kernel", "kernel"),
    WatchedFact("host.cores", "cores", "less"),
    WatchedFact("host.usable_cores", "usable cores", "less"),
    WatchedFact("host.memory", "memory", "less", unit="bytes", near=0.01),
    WatchedFact("host.memory_limit", "memory limit", "less", unit="bytes", near=0.01),
    WatchedFact("host.memlock.soft", "memlock limit"),
    WatchedFact("host.nofile.soft", "open files limit"),
    WatchedFact("host.shm.size", "/dev/shm", "less", unit="bytes", near=0.01),
    WatchedFact("host.clocksource", "clock source", good="tsc"),
    WatchedFact("system.cpu", "processor"),
    WatchedFact("gpus.usable", "GPUs usable by CUDA", "less", grave=True),
    WatchedFact("gpus.driver_cuda", "CUDA of the driver"),
    WatchedFact("gpus.nvml", "error of NVML", good="", grave=True),
    WatchedFact("gpus.chosen_by", "GPUs chosen by"),
    WatchedFact("rdma.libibverbs", "libibverbs", none=True),
    WatchedFact("rdma.open_driver", "NVIDIA's open kernel module"),
    WatchedFact("fabric.command_line", "kernel command line"),
    WatchedFact("fabric.numa_balancing", "automatic NUMA balancing"),
    WatchedFact("fabric.huge_pages.total", "huge pages"),
    WatchedFact("fabric.huge_pages.transparent", "transparent huge pages"),
)

_GPU = (
    WatchedFact("model", "model"),
    WatchedFact("uuid", "card"),
    WatchedFact("trouble", "NVML's word", good="", grave=True),
    WatchedFact("recovery", "what the driver asks for", good="none", grave=True),
    WatchedFact("vbios", "VBIOS"),
    WatchedFact("memory_total", "memory", "less", unit="bytes", near=0.01),
    WatchedFact("ecc", "ECC", "less"),
    WatchedFact("mig", "MIG"),
    WatchedFact("compute_mode", "compute mode"),
    WatchedFact("persistence", "persistence mode"),
    WatchedFact("power_cap", "power limit", "less", unit="W", near=0.01),
    WatchedFact("clock_max", "greatest clock", "less", unit="MHz", near=0.01),
    WatchedFact("pcie_gen_max", "PCIe generation that is possible", "less"),
    WatchedFact("pcie_width", "PCIe lanes", "less"),
    WatchedFact("nvlinks.links", "NVLinks", "less"),
    WatchedFact("nvlinks.down", "NVLinks that are down", "more"),
    WatchedFact("nvlinks.speed_mbps", "NVLink speed", "less", unit="Mb/s"),
    WatchedFact("fabric.state", "registration with NVSwitch", good="completed", grave=True),
    WatchedFact("fabric.health", "health by NVSwitch"),
    WatchedFact("sram_exceeded", "SRAM errors beyond NVIDIA's limit", "more", grave=True),
    WatchedFact("remapped.pending", "row remapping that waits for a reset", "more"),
    WatchedFact("remapped.failed", "failed row remapping", "more", grave=True),
    WatchedFact("retired.pending", "pages that wait to be retired", "more"),
)
_GPU_COUNTS = (
    WatchedCounter("ecc_uncorrected_ever", "uncorrected ECC errors", ever=True, grave=True),
    WatchedCounter("ecc_corrected_ever", "corrected ECC errors", bad=1000, ever=True),
    WatchedCounter("remapped.uncorrectable", "rows remapped for uncorrectable errors", ever=True),
    WatchedCounter("remapped.correctable", "rows remapped for correctable errors", bad=2, ever=True),
    WatchedCounter("retired.double_bit", "pages retired for uncorrectable errors", ever=True),
    WatchedCounter("retired.single_bit", "pages retired for correctable errors", bad=2, ever=True),
    WatchedCounter("pcie_replays", "repeated PCIe packets", bad=1000),
    WatchedCounter("nvlinks.recoveries", "NVLink recoveries"),
    WatchedCounter("nvlinks.replays", "repeated NVLink packets", bad=1000),
    WatchedCounter("nvlinks.crc_errors", "NVLink checksum errors", bad=1000),
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
        WatchedFact("state", "state", good="ACTIVE", grave=True),
        WatchedFact("physical", "physical state", good="LinkUp"),
        WatchedFact("rate_gbit", "rate", "less", unit="Gb/s"),
        WatchedFact("link_layer", "link layer"),
        WatchedFact("traffic_class", "traffic class"),
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
            WatchedFact("model", "model"),
            WatchedFact("board", "board"),
            WatchedFact("firmware", "firmware"),
            WatchedFact("node_guid", "card"),
        ),
        parts=(_PORT,),
        grave=True,
    ),
    Part(
        "network.interfaces",
        "interface",
        watches=(
            WatchedFact("running", "link", "less"),
            WatchedFact("up", "up", "less"),
            WatchedFact("speed_mbit", "speed", "less", unit="Mb/s"),
            WatchedFact("mtu", "MTU"),
            WatchedFact("driver", "driver"),
            WatchedFact("addresses", "addresses"),
            WatchedFact("members", "members"),
        ),
        counts=(
            WatchedCounter("packets.errors", "errors", bad=0.1, share_of="packets.packets"),
            WatchedCounter("packets.drops", "drops", bad=0.1, share_of="packets.packets"),
        ),
        of=_lasts,
    ),
    Part(
        "fabric.pci",
        "PCIe device",
        watches=(
            WatchedFact("link.width", "PCIe lanes", "less"),
            WatchedFact("link.most_gts", "PCIe rate that is possible", "less", unit="GT/s"),
            WatchedFact("numa_node", "NUMA node"),
            WatchedFact("iommu", "IOMMU"),
            WatchedFact("acs", "access control (ACS)"),
            WatchedFact("relaxed_ordering", "relaxed ordering"),
        ),
        counts=(
            WatchedCounter("errors.fatal", "fatal PCIe errors", grave=True),
            WatchedCounter("errors.nonfatal", "uncorrectable PCIe errors"),
            WatchedCounter("errors.correctable", "correctable PCIe errors", bad=1000),
        ),
        of=_has_link_errors,
    ),
)

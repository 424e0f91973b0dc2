"""What is known of GPUs. Clocks are MHz, power is watts, temperatures are degrees Celsius, memory is bytes.

Source of all but `pci`, `devices`, `usable` and Xids: NVML, by the call that is named in brackets.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread
from ncclcheck.probes.facts.machine.fabric import DeviceFile


class GpuProcess(Struct, frozen=True, kw_only=True):
    """A process with a context on a GPU (nvmlDeviceGetComputeRunningProcesses). name: its program.

    state: the letter of /proc/PID/stat, or "gone" where no such process exists. In a container that numbers its
    own processes the pid is the host's, and nothing else can be known here. user: who the process belongs to.
    """

    name: str | Unread = NOT_RECORDED
    pid: int
    memory: int | Unread = NOT_RECORDED
    user: str | Unread = NOT_RECORDED
    state: str | Unread = NOT_RECORDED


class RetiredPages(Struct, frozen=True, kw_only=True, tag="retired_pages"):
    """Pages of memory taken out of use, on GPUs before Ampere (nvmlDeviceGetRetiredPages)."""

    single_bit: int
    double_bit: int
    pending: bool


class RemappedRows(Struct, frozen=True, kw_only=True, tag="remapped_rows"):
    """Rows of memory replaced by spare ones, on Ampere and later (nvmlDeviceGetRemappedRows)."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


class SpareRows(Struct, frozen=True, kw_only=True, tag="spare_rows"):
    """Banks of memory by the spare rows that they have left (nvmlDeviceGetRowRemapperHistogram)."""

    all: int
    many: int
    some: int
    few: int
    none: int


class NvLinks(Struct, frozen=True, kw_only=True, tag="nvlinks"):
    """NVLinks of one GPU and their errors since the last reset (nvmlDeviceGetNvLinkState, ...ErrorCounter)."""

    links: int
    down: list[int]
    speed_mbps: int | Unread = NOT_RECORDED
    replays: int | Unread = NOT_RECORDED
    recoveries: int | Unread = NOT_RECORDED
    crc_errors: int | Unread = NOT_RECORDED


FabricState = Literal["not_started", "in_progress", "completed"]
FabricHealth = Literal["", "healthy", "unhealthy", "limited_capacity"]


class NvFabric(Struct, frozen=True, kw_only=True, tag="nvfabric"):
    """A GPU's registration with the NVSwitch fabric (nvmlDeviceGetGpuFabricInfoV). status: 0 is success."""

    state: FabricState
    status: int = 0
    health: FabricHealth = ""
    cluster: str = ""
    clique: int = 0


class GpuPeer(Struct, frozen=True, kw_only=True):
    """The way to another GPU (nvmlDeviceGetTopologyCommonAncestor, nvmlDeviceGetP2PStatus for reads)."""

    name: str
    path: Literal["INT", "PIX", "PXB", "PHB", "NODE", "SYS"] | Unread = NOT_RECORDED
    p2p: str | Unread = NOT_RECORDED


ThrottleReason = Literal[
    "idle",
    "application_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display",
]
ComputeMode = Literal["default", "exclusive_thread", "prohibited", "exclusive_process"]
Recovery = Literal["none", "reset", "reboot", "drain_p2p", "drain_and_reset", "other"]


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU as NVML tells it. name: GPU and its NVML index.

    trouble: NVML's own word where it cannot use this GPU (GPU is lost, reset required), else empty; the other
    facts are absent then. recovery: what the driver itself asks for (driver 570 and later). margin: degrees
    until it must slow down. pcie_gen_max: what GPU and slot can do together; pcie_gen_device: the GPU alone.
    sram_exceeded: NVIDIA's limit of SRAM errors is passed. inforom: its checksums are right
    (nvmlDeviceValidateInforom). utilization: percent of the last sample period. bar1: bytes of the window through
    which other PCIe devices reach its memory (nvmlDeviceGetBAR1MemoryInfo).
    """

    name: str
    index: int
    trouble: str | Unread = NOT_RECORDED
    recovery: Recovery | Unread = NOT_RECORDED
    uuid: str | Unread = NOT_RECORDED
    model: str | Unread = NOT_RECORDED
    pci: str | Unread = NOT_RECORDED
    numa: int | Unread = NOT_RECORDED
    vbios: str | Unread = NOT_RECORDED
    memory_total: int | Unread = NOT_RECORDED
    memory_used: int | Unread = NOT_RECORDED
    bar1: int | Unread = NOT_RECORDED
    processes: list[GpuProcess] | Unread = NOT_RECORDED
    compute_mode: ComputeMode | Unread = NOT_RECORDED
    persistence: bool | Unread = NOT_RECORDED
    mig: bool | Unread = NOT_RECORDED
    mig_instances: list[str] | Unread = NOT_RECORDED
    ecc: bool | Unread = NOT_RECORDED
    ecc_pending: bool | Unread = NOT_RECORDED
    ecc_uncorrected: int | Unread = NOT_RECORDED
    ecc_corrected: int | Unread = NOT_RECORDED
    ecc_uncorrected_ever: int | Unread = NOT_RECORDED
    ecc_corrected_ever: int | Unread = NOT_RECORDED
    sram_exceeded: bool | Unread = NOT_RECORDED
    retired: RetiredPages | Unread = NOT_RECORDED
    remapped: RemappedRows | Unread = NOT_RECORDED
    spare_rows: SpareRows | Unread = NOT_RECORDED
    inforom: bool | Unread = NOT_RECORDED
    utilization: int | Unread = NOT_RECORDED
    clock: int | Unread = NOT_RECORDED
    clock_max: int | Unread = NOT_RECORDED
    clock_memory: int | Unread = NOT_RECORDED
    clock_memory_max: int | Unread = NOT_RECORDED
    throttle: list[ThrottleReason] | Unread = NOT_RECORDED
    power_draw: float | Unread = NOT_RECORDED
    power_cap: float | Unread = NOT_RECORDED
    power_default: float | Unread = NOT_RECORDED
    temperature: int | Unread = NOT_RECORDED
    slowdown_at: int | Unread = NOT_RECORDED
    margin: int | Unread = NOT_RECORDED
    pcie_gen: int | Unread = NOT_RECORDED
    pcie_gen_max: int | Unread = NOT_RECORDED
    pcie_gen_device: int | Unread = NOT_RECORDED
    pcie_width: int | Unread = NOT_RECORDED
    pcie_width_max: int | Unread = NOT_RECORDED
    pcie_replays: int | Unread = NOT_RECORDED
    nvlinks: NvLinks | Unread = NOT_RECORDED
    fabric: NvFabric | Unread = NOT_RECORDED
    peers: list[GpuPeer] | Unread = NOT_RECORDED


class Xid(Struct, frozen=True, kw_only=True):
    """An error that the driver wrote to the kernel log, the last of its number and GPU. name: Xid and number.

    hours: how long ago; times: how often since the log begins.
    """

    name: str
    code: int
    pci: str
    line: str
    times: int = 1
    hours: float | Unread = NOT_RECORDED


class Service(Struct, frozen=True, kw_only=True):
    """A service or kernel module of NVIDIA's. state: systemd's ActiveState; of a module loaded.

    version: of the program on the disk, which may not be the one that runs; of a module that which is loaded.
    """

    name: str
    state: str | Unread = NOT_RECORDED
    version: str | Unread = NOT_RECORDED


class Gpus(Struct, frozen=True, kw_only=True, tag="gpus"):
    """Signs of GPUs, what CUDA's driver library says, and what NVML says.

    usable: cuDeviceGetCount. cuda_error: name and number of the error that cuInit gave; empty when it gave none.
    nvml: the error that NVML gave when it was initialised, else empty. cards: those that this job may use, by
    CUDA_VISIBLE_DEVICES or Slurm (chosen_by), others: the rest of them. user: who this process belongs to.
    imex: the channels of IMEX in /dev/nvidia-caps-imex-channels, and how opening them went; one that is needed.
    """

    pci: list[str] | Unread = NOT_RECORDED
    devices: list[str] | Unread = NOT_RECORDED
    usable: int | Unread = NOT_RECORDED
    cuda_error: str | Unread = NOT_RECORDED
    driver_cuda: str | Unread = NOT_RECORDED
    nvml: str | Unread = NOT_RECORDED
    nvml_driver: str | Unread = NOT_RECORDED
    user: str | Unread = NOT_RECORDED
    chosen_by: str = ""
    cards: list[Gpu] | Unread = NOT_RECORDED
    others: list[Gpu] | Unread = NOT_RECORDED
    xids: list[Xid] | Unread = NOT_RECORDED
    imex: list[DeviceFile] | Unread = NOT_RECORDED
    services: list[Service] | Unread = NOT_RECORDED

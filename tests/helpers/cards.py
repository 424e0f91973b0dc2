"""A healthy GPU of an NVSwitch node for tests of rules, and nodes with such GPUs."""

from __future__ import annotations

from typing import Any

from ncclcheck.probes.facts import (
    Gpu,
    GpuPeer,
    GpuProcess,
    Gpus,
    Node,
    NvFabric,
    NvLinks,
    RemappedRows,
    SpareRows,
    Unread,
    replace,
)
from tests.helpers.clusters import node

NOT_SUPPORTED = Unread("absent", "Not Supported")
GIB = 2**30
MIB = 2**20
LINKS = NvLinks(links=18, down=[], speed_mbps=26562, replays=0, recoveries=0, crc_errors=0)
ROWS = RemappedRows(correctable=0, uncorrectable=0, pending=False, failed=False)
SPARE = SpareRows(all=640, many=0, some=0, few=0, none=0)
FABRIC = NvFabric(state="completed", health="healthy")
SOUND = Gpu(
    name="GPU 0", index=0, trouble="", recovery="none", uuid="GPU-0", model="NVIDIA H100 80GB HBM3",
    pci="0000:10:00.0", numa=0, vbios="96.00.A5.00.01", memory_total=80 * GIB, memory_used=0, processes=[],
    compute_mode="default", persistence=True, mig=False, mig_instances=NOT_SUPPORTED, ecc=True, ecc_pending=True,
    ecc_uncorrected=0, ecc_corrected=0, ecc_uncorrected_ever=0, ecc_corrected_ever=0, sram_exceeded=False,
    retired=NOT_SUPPORTED, remapped=ROWS, spare_rows=SPARE, inforom=True, utilization=0,
    clock=345, clock_max=1980, clock_memory=2619,
    clock_memory_max=2619, throttle=["idle"], power_draw=70.0, power_cap=700.0, power_default=700.0,
    temperature=41, slowdown_at=NOT_SUPPORTED, margin=46, pcie_gen=5, pcie_gen_max=5, pcie_gen_device=5,
    pcie_width=16, pcie_width_max=16, pcie_replays=9, nvlinks=LINKS, fabric=FABRIC, peers=[],
)  # fmt: skip


def card(index: int = 0, **changes: Any) -> Gpu:
    """GPU `index`, sound but for the changes."""
    own = {"name": f"GPU {index}", "index": index, "pci": f"0000:{16 + index:02x}:00.0", "uuid": f"GPU-{index}"}
    peers = [GpuPeer(name=f"GPU {other}", path="NODE", p2p="ok") for other in range(4) if other != index]
    return replace(SOUND, **{**own, "peers": peers, **changes})


def four(*, last: dict[str, Any] | None = None, every: dict[str, Any] | None = None) -> list[Gpu]:
    """Four GPUs: changes to all of them, and to the last one."""
    return [card(index, **(every or {}), **((last or {}) if index == 3 else {})) for index in range(4)]


def gpu_node(name: str, *gpus: Gpu, facts: dict[str, Any] | None = None, **more: Any) -> Node:
    """A node with these GPUs, for which the kernel log was read and is empty."""
    given: dict[str, Any] = {"cards": list(gpus), "others": [], "nvml": "", "user": "ada", "xids": []}
    return node(name, gpus=Gpus(**{**given, **(facts or {})}), **more)


def process(pid: int, memory: Any, user: Any = "ada", state: Any = "S") -> GpuProcess:
    """A process on a GPU."""
    return GpuProcess(name="python", pid=pid, memory=memory, user=user, state=state)

"""What several kinds of machines have in common."""

from __future__ import annotations

from ncclcheck.probes.facts import Interface, Unread
from tests.helpers.clusters import nic
from tests.sound.parts import Slot, switch

CONNECTX7_VF = "MT4126"
UNTOLD_SPEED = Unread("absent", "a virtual interface reports no real speed")
NO_GOVERNOR = Unread("absent", "/sys/devices/system/cpu/cpufreq: No such file or directory")
NOT_OF_THIS_CPU = Unread("absent", "this kind of CPU does not say whether it is virtual")
DOCKER = nic("docker0", "172.17.0.1/16", kind="bridge", running=False)

MEGATRON = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
NEMO = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1", "NCCL_NVLS_ENABLE": "0",
    "TORCH_NCCL_HIGH_PRIORITY": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}  # fmt: skip


def wire(name: str, address: str, gbit: int = 25, mtu: int = 1500, driver: str = "mlx5_core") -> Interface:
    """An Ethernet interface that belongs to none of the listed cards."""
    return nic(name, address, mtu=mtu, speed_mbit=gbit * 1000, driver=driver)


HGX_NICS = ["1d", "33", "49", "5f", "9d", "b3", "c9", "df"]
HGX_GPUS = ["1e", "34", "4a", "60", "9e", "b4", "ca", "e0"]


def hgx(nics: list[str], gpus: list[str]) -> list[list[Slot]]:
    """Eight pairs of a network card and a GPU below one switch each."""
    return [
        switch(f"0000:{int(card, 16) - 3:02x}", int(place > 3), f"0000:{card}:00.0", f"0000:{gpu}:00.0")
        for place, (card, gpu) in enumerate(zip(nics, gpus, strict=True))
    ]

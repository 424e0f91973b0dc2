"""Machines of one person or one class: desktops, and a part of a GPU."""

from __future__ import annotations

from ncclcheck.probes.facts import Governor, Node, Unread, known, replace
from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.machine import Plan
from tests.sound.parts import Slot, virtual
from tests.sound.usual import DOCKER, NO_GOVERNOR, UNTOLD_SPEED


def _desktop(count: int) -> Plan:
    buses = ["01", "02"][:count]
    slots = [
        Slot(f"0000:{bus}:00.0", "pci0000:00", (f"0000:00:01.{place}",), 0, 16.0, 16 // count, 16)
        for place, bus in enumerate(buses)
    ]
    return Plan(
        kind=f"desktop-{count}-gpu",
        source="nvidia-smi -q of GeForce RTX 4080 SUPER (recorded, utkuozdemir/nvidia_gpu_exporter) for the "
        "fields that "
        "a consumer board lacks; github.com/NVIDIA/nccl-tests/issues/307 for RTX 4090 without P2P",
        story="A workstation with a display, driver 570, two boards at eight lanes each where there are two.",
        product="ASUS System Product Name", gpu=parts.RTX4090, gpus=slots, cards=[],
        interfaces=[
            nic("enp6s0", "192.168.1.{n}/24", speed_mbit=2500, driver="igc"),
            nic("wlp5s0", "192.168.1.1{n}/24", speed_mbit=ABSENT, driver="iwlwifi"),
            DOCKER,
        ],
        control="enp6s0", gateway="192.168.1.1", names="desk{n}", counts=(1,), launcher="local",
        cpu="AuthenticAMD AMD Ryzen 9 7950X 16-Core Processor", numa=(("0-31", 64),),
        kernel="6.8.0-57-generic", command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.0-57-generic ro quiet splash",
        iommu="DMA-FQ", iommus=("ivhd0",), open_driver=False, peer_modules=(), mounts=("ext4", "/dev/nvme0n1p2"),
        governor=Governor(names=["powersave"], driver="amd-pstate-epp", preference="balance_performance"),
        profiles={"guide": {"NCCL_P2P_DISABLE": "1"} if count > 1 else {"CUDA_VISIBLE_DEVICES": "0"}},
    )  # fmt: skip


def desktop_one() -> Plan:
    """One consumer GPU, which is where most people start."""
    return _desktop(1)


def desktop_two() -> Plan:
    """Two consumer GPUs, which cannot read each other's memory."""
    return _desktop(2)


_INSTANCE = "MIG-6b5f0f3c-7d0e-5a4e-9f0e-6f6d3f5a2a11"


def _cut(node: Node) -> Node:
    """MIG is on; what NVML does not tell of a whole GPU then."""
    gpus = known(node.gpus)
    untold = Unread("absent", "Not Supported")
    changes = {
        "mig": True,
        "mig_instances": [_INSTANCE],
        "nvlinks": untold,
        "fabric": untold,
        "utilization": untold,
    }
    chosen = next((v.name for v in known(known(node.job).variables) if v.name == "CUDA_VISIBLE_DEVICES"), "")
    cards = [replace(card, **changes) for card in known(gpus.cards)]
    return replace(node, gpus=replace(gpus, cards=cards, chosen_by=chosen))


def mig_node() -> Plan:
    """A guest with one GPU cut into instances, of which the job has one."""
    return Plan(
        kind="mig-instance", tweak=_cut,
        source="nvidia-smi captures of an H100 with MIG on (recorded, utkuozdemir/nvidia_gpu_exporter: bus "
        "00:09.0, "
        "instances of 40448, 20096 and 9984 MiB); docs.nvidia.com/datacenter/tesla/mig-user-guide",
        story="A student's job on one instance, one rank: NCCL takes one GPU per rank, and that is what it has.",
        product="QEMU Standard PC (Q35 + ICH9, 2009)", gpu=parts.H100, gpus=[virtual("0000:00:09.0")], cards=[],
        interfaces=[nic("enp1s0", "10.5.0.{n}/24", speed_mbit=UNTOLD_SPEED, driver="virtio_net")],
        control="enp1s0", names="mig{n}", numa=(("0-15", 120),), kernel="6.8.0-57-generic",
        system="Ubuntu 24.04.2 LTS", command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.0-57-generic root=/dev/vda1 ro",
        iommu=ABSENT, iommus=(), hypervisor=True, governor=NO_GOVERNOR, clocksource="kvm-clock",
        driver="590.48.01", cuda="13.1", nccl="2.27.5", torch="2.9.0+cu129", peer_modules=(), open_driver=True,
        counts=(1,), mounts=("nfs4", "filer:/home"), usable_gpus=1,
        profiles={"slurm": {"CUDA_VISIBLE_DEVICES": _INSTANCE}},
    )  # fmt: skip

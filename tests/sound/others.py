"""Machines without an NVIDIA GPU, and one with an embedded one.

`source` begins with "read:" where its documents were opened for the names and numbers that they tell; the rest
is what such a node has. Without that word it says where to look, and names and numbers may differ from a real one.
"""

# ruff: noqa: E501, PLC0415

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ncclcheck.probes.facts import Gpus, Node, Unread, known, replace
from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.machine import Plan
from tests.sound.parts import Card, Model, Slot, direct
from tests.sound.usual import DOCKER, HGX_GPUS, HGX_NICS, hgx, wire

_NONE = Unread("absent", "no NVIDIA device on this machine")
ORIN = Model("Orin (nvgpu)", 0, 60.0, 1300, 0, 4, ecc=False, persistence=False, rests=True)


def without_nvidia(torch: str) -> Callable[[Node], Node]:
    """What the probes say where no device of NVIDIA is, and torch is built for something else."""

    def change(node: Node) -> Node:
        built = Unread("absent", "this torch was built without CUDA: it loads no NCCL")
        fabric = known(node.fabric)
        return replace(
            node,
            gpus=Gpus(
                pci=_NONE,
                devices=_NONE,
                usable=_NONE,
                cuda_error=_NONE,
                driver_cuda=_NONE,
                nvml=_NONE,
                nvml_driver=_NONE,
                user=_NONE,
                cards=_NONE,
                others=_NONE,
                xids=_NONE,
                imex=_NONE,
                services=_NONE,
            ),
            nccl=replace(
                known(node.nccl),
                loaded=built,
                known_names=built,
                wheels=[],
                wanted=built,
                plugins=[],
                plugin_files=[],
            ),
            stack=replace(known(node.stack), torch=torch, torch_cuda=ABSENT, driver=_NONE),
            fabric=replace(fabric, pci=[device for device in known(fabric.pci) if device.kind != "gpu"]),
        )

    return change


def mi300x() -> Plan:
    """Eight MI300X behind eight RoCE cards; RCCL reads the same variables."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
    cards = [
        Card(
            f"bnxt_re{k}",
            p[0],
            400.0,
            "Ethernet",
            f"ens{k // 2 + 1}{k % 2 + 1}np0",
            f"192.168.{k + 1}.{{n}}/24",
            mtu=9000,
            model="BCM57608",
            board="BCM957608",
            firmware="230.2.52.0",
            driver="bnxt_en",
        )
        for k, p in enumerate(pairs)
    ]
    return Plan(
        kind="mi300x",
        tweak=without_nvidia("2.7.1+rocm6.3"),
        source="read: rocm.docs.amd.com/projects/cvs reference/configuration-files/rccl (bnxt_re0 to bnxt_re7, ens11np0, "
        "ens12np0, ens21np0, ...), projects/primus multi-node networking. NCCL_MIN_NCHANNELS: general knowledge",
        story="Dell XE9680 with MI300X.",
        product="Dell Inc. PowerEdge XE9680",
        gpu=parts.H100,
        gpus=[p[1] for p in pairs],
        cards=cards,
        interfaces=[wire("eno8303", "10.60.7.{n}/24", 10, driver="tg3")],
        control="eno8303",
        names="mi300x-{n}",
        counts=(1, 2, 4),
        providers=("bnxt_re",),
        peer_modules=(),
        profiles={
            "rccl": {
                "NCCL_IB_HCA": ",".join(f"bnxt_re{k}" for k in range(8)),
                "NCCL_IB_GID_INDEX": "3",
                "NCCL_SOCKET_IFNAME": "eno8303",
                "HSA_NO_SCRATCH_RECLAIM": "1",
                "NCCL_DEBUG": "VERSION",
                "RCCL_MSCCL_ENABLE": "0",
                "NCCL_MIN_NCHANNELS": "112",
                "NCCL_PXN_DISABLE": "0",
                "NCCL_IGNORE_CPU_AFFINITY": "1",
            }
        },
    )


def cpu_cluster() -> Plan:
    """gloo over IPoIB: training of small models and data preparation."""
    card = Card(
        "mlx5_0",
        direct("0000:37", 0, "0000:38:00.0", 16.0),
        200.0,
        netdev="ib0",
        net="10.61.0.{n}/22",
        mtu=2044,
        model="MT4123",
        board="MT_0000000223",
        firmware="20.43.1014",
    )
    return Plan(
        kind="cpu-cluster",
        tweak=without_nvidia("2.7.1+cpu"),
        source="docs.hpc.shef.ac.uk-like HPC documentation: HDR100 CPU partitions",
        story="Slurm's CPU partition, one rank a socket.",
        product="Dell Inc. PowerEdge C6525",
        gpu=parts.H100,
        gpus=[],
        cards=[card],
        interfaces=[wire("eno1", "10.62.0.{n}/22", 1, driver="tg3")],
        control="eno1",
        names="cn{n}",
        counts=(1, 2, 16),
        peer_modules=(),
        cpu="AuthenticAMD AMD EPYC 7742 64-Core Processor",
        profiles={"gloo": {"GLOO_SOCKET_IFNAME": "ib0", "OMP_NUM_THREADS": "64"}},
    )


def jetson() -> Plan:
    """A board whose GPU is no PCI device; NVML says little."""
    none = Unread("absent", "Not Supported")

    def change(node: Node) -> Node:
        gpus, fabric = known(node.gpus), known(node.fabric)
        hidden = dict.fromkeys(
            (
                "memory_total",
                "memory_used",
                "bar1",
                "clock",
                "clock_max",
                "clock_memory",
                "clock_memory_max",
                "throttle",
                "power_draw",
                "power_cap",
                "power_default",
                "temperature",
                "margin",
                "slowdown_at",
                "pcie_gen",
                "pcie_gen_max",
                "pcie_gen_device",
                "pcie_width",
                "pcie_width_max",
                "pcie_replays",
                "pci",
                "numa",
                "vbios",
                "persistence",
                "compute_mode",
                "processes",
                "utilization",
            ),
            none,
        )
        no_dmi = Unread("absent", "/sys/class/dmi/id/product_name: No such file or directory")
        return replace(
            node,
            gpus=replace(
                gpus, pci=[], devices=["nvidia0"], cards=[replace(gpu, **hidden) for gpu in known(gpus.cards)]
            ),
            fabric=replace(fabric, pci=[], product=no_dmi, asset_tag=no_dmi),
        )

    return Plan(
        kind="jetson-orin",
        tweak=change,
        source="docs.nvidia.com Jetson Linux (nvidia-smi on r36: N/A for most)",
        story="A robot's computer.",
        product="",
        gpu=ORIN,
        gpus=[Slot("0000:00:00.0", "pci0000:00", (), -1, link=False)],
        cards=[],
        interfaces=[
            nic("eno1", "192.168.55.{n}/24", speed_mbit=10000, driver="nvethernet"),
            nic("usb0", kind="physical", up=True, running=False, driver="g_ether"),
            DOCKER,
        ],
        control="eno1",
        names="orin-{n}",
        counts=(1, 2),
        launcher="ssh",
        cpu="ARM Cortex-A78AE",
        numa=(("0-11", 62),),
        kernel="5.15.148-tegra",
        iommu="DMA",
        iommus=(),
        driver="540.4.0",
        cuda="12.6",
        nccl="2.21.5",
        torch="2.5.0+cu126",
        peer_modules=(),
        hypervisor=Unread("absent", "this kind of CPU does not say whether it is virtual"),
        clocksource="arch_sys_counter",
        mounts=("ext4", "/dev/nvme0n1p1"),
        command_line="root=/dev/nvme0n1p1 rw",
        open_driver=True,
    )


def oci_a100() -> Plan:
    """Sixteen RoCE ports of 100 Gb/s beside eight GPUs of BM.GPU4.8, two of the front end."""
    from tests.sound.clouds import oci_h100

    plan = oci_h100()
    cards = [
        dataclasses.replace(
            c,
            gbit=100.0,
            model="MT4119" if c.data else c.model,
            firmware="16.35.2000" if c.data else c.firmware,
            board="ORC0000000003" if c.data else c.board,
            slot=dataclasses.replace(c.slot, gts=16.0),
        )
        for c in plan.cards
    ]
    names = iter((0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 4, 5))
    cards = [dataclasses.replace(c, hca=f"mlx5_{next(names)}") for c in cards]
    env = {
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_SPLIT_DATA_ON_QPS": "0",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_IB_HCA": "=" + ",".join(card.hca for card in cards if card.data),
        "NCCL_IB_TC": "41",
        "NCCL_IB_SL": "0",
        "NCCL_IB_TIMEOUT": "22",
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": "eth0",
    }
    return dataclasses.replace(
        plan,
        kind="oci-a100",
        source="read: github.com/oracle-quickstart/oci-hpc-oke manifests/nccl-tests/host-network/mpi-operator/"
        "BM.GPU4.8.yaml (the sixteen names, the variables, GPUs of 40 GB). Buses: general knowledge",
        gpu=parts.A100_SXM,
        gpus=[dataclasses.replace(s, gts=16.0) for s in plan.gpus],
        cards=cards,
        profiles={"oci": env},
        nccl="2.21.5",
        torch="2.5.1+cu121",
        driver="550.90.12",
        cuda="12.4",
        product="Oracle Corporation ORACLE SERVER E4-2c",
    )


def vela() -> Plan:
    """Guests with two virtual functions for RoCE, and a pod's eth0 beside them."""
    from tests.sound.humble import A100_80

    gpus = [
        Slot(f"0000:{8 + k:02x}:00.0", "pci0000:00", (f"0000:00:02.{k}",), int(k > 3), link=False)
        for k in range(8)
    ]
    cards = [
        Card(
            f"mlx5_{k}",
            Slot(f"0000:{0x20 + k:02x}:00.0", "pci0000:00", (f"0000:00:05.{k}",), k, link=False),
            100.0,
            "Ethernet",
            f"net1-{k}",
            f"10.24{k}.0.{{n}}/18",
            mtu=9000,
            model="MT4124",
            board="IBM0000000023",
            firmware="22.36.1010",
        )
        for k in range(2)
    ]
    return Plan(
        kind="ibm-vela",
        source="research.ibm.com Vela (A100, 2 x 100G per NIC, multi-NIC CNI net1-0, net1-1); github.com/foundation-model-stack/multi-nic-cni",
        story="OpenShift pods over guests; GDR by RoCE after the upgrade.",
        product="IBM Red Hat KVM",
        gpu=A100_80,
        gpus=gpus,
        cards=cards,
        pod=True,
        launcher="ssh",
        interfaces=[
            nic(
                "eth0",
                "10.131.2.{n}/23",
                kind="veth",
                mtu=8942,
                speed_mbit=Unread("absent", "virtual"),
                driver="veth",
            )
        ],
        control="eth0",
        names="trainer-worker-{n}",
        counts=(1, 2, 8),
        hypervisor=True,
        iommu=ABSENT,
        iommus=(),
        numa=(("0-39", 600), ("40-79", 600)),
        topology_file=True,
        system="Red Hat Enterprise Linux 9.4 (Plow)",
        kernel="5.14.0-427.42.1.el9_4.x86_64",
        cpu="GenuineIntel Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz",
        profiles={
            "vela": {
                "NCCL_IB_GID_INDEX": "3",
                "NCCL_SOCKET_IFNAME": "net1-0,net1-1",
                "NCCL_SOCKET_NTHREADS": "2",
                "NCCL_CROSS_NIC": "0",
                "NCCL_IB_DISABLE": "0",
                "NCCL_IB_CUDA_SUPPORT": "1",
                "NCCL_MIN_NCHANNELS": "4",
                "NCCL_ALGO": "Ring",
            }
        },
    )


KINDS: tuple[Callable[[], Plan], ...] = (mi300x, cpu_cluster, jetson, oci_a100, vela)

"""Machines of the third look: other clouds, other supercomputers, other boards.

`source` begins with "read:" where its documents were opened for the names and numbers that they tell; the rest
is what such a node has. Without that word it says where to look, and names and numbers may differ from a real one.
"""

# ruff: noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ncclcheck.probes.facts import Governor, Node, NvFabric, PcieLink, RuntimeSign, known, replace
from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.humble import RTX3090, V100, volta, wsl_desktop
from tests.sound.machine import GIB, Plan
from tests.sound.newer import GH200_120
from tests.sound.parts import Card, Model, Slot, direct, switch, virtual
from tests.sound.usual import (
    DOCKER,
    HGX_GPUS,
    HGX_NICS,
    MEGATRON,
    NEMO,
    NO_GOVERNOR,
    NOT_OF_THIS_CPU,
    UNTOLD_SPEED,
    hgx,
    wire,
)

H100_64 = Model("NVIDIA H100", 65247, 700.0, 1980, 1593, 5, 18, 26562, vbios="96.00.74.00.11")
H100_FOUR = dataclasses.replace(parts.H100, switched=False)
H200_NVL = Model("NVIDIA H200 NVL", 143771, 600.0, 1785, 3201, 5, 18, 26562, vbios="96.00.BC.00.02")
GB300 = Model("NVIDIA GB300", 284208, 1400.0, 2032, 3996, 6, 18, 53125, vbios="97.10.45.00.09", switched=True)
A6000 = Model("NVIDIA RTX A6000", 49140, 300.0, 2100, 8001, 4, 4, 14062, vbios="94.02.5C.00.04", rests=True)
T4 = Model("Tesla T4", 15360, 70.0, 1590, 5001, 3, vbios="90.04.96.00.9F", rests=True, p2p="chipset not supported")
_EPYC = Governor(names=["performance"], driver="acpi-cpufreq", preference=ABSENT)
_GRACE = Governor(names=["performance"], driver="cppc_cpufreq", preference=ABSENT)
_OFI = ("net v6", "net v7", "net v8", "net v9", "net v10")


def ibm_gx3d() -> Plan:
    """A virtual server of IBM: eight RoCE cards in eight subnets, buses without switches, a file for the rest."""
    gpus = [virtual(f"0000:{0xA4 + 4 * k:02x}:00.0", int(k > 3), "pci0000:00") for k in range(8)]
    cards = [
        Card(
            f"mlx5_{k}",
            virtual(f"0000:{0xA5 + 4 * k:02x}:00.0", int(k > 3), "pci0000:00"),
            400.0,
            "Ethernet",
            f"ens{k + 4}",
            f"10.0.{k}.{{n}}/24",
            mtu=9000,
            model="MT4126",
            board="IBM0000000035",
            firmware="28.39.1002",
        )
        for k in range(8)
    ]
    profile = {
        "NCCL_IB_PCI_RELAXED_ORDERING": "2",
        "NCCL_IB_QPS_PER_CONNECTION": "16",
        "NCCL_IB_ADAPTIVE_ROUTING": "1",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_IB_RETRY_CNT": "10",
        "NCCL_CHECKS_DISABLE": "1",
        "NCCL_CHECK_POINTERS": "0",
        "NCCL_CROSS_NIC": "2",
        "NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "NCCL_SOCKET_NTHREADS": "4",
        "NCCL_NSOCKS_PERTHREAD": "4",
        "NCCL_IB_HCA": ",".join(card.hca for card in cards),
        "NCCL_TOPO_FILE": "/opt/ibm/topo.xml",
    }
    return Plan(
        kind="ibm-gx3d",
        expected={
            "FAB009": "Without the vendor's topology file NCCL sees no switch, and no card is near any GPU."
        },
        source="read: github.com/ibm-cloud-docs/vpc cn-hopper-1-profile.md (eight subnets of 400 Gb/s, RoCE v2, all "
        "variables of the profile, NCCL 2.22.3). Buses and names of interfaces: general knowledge",
        story="gx3d-160x1792x8h100 with an eight-subnet cluster network; the profile names the vendor's topology file.",
        product="IBM gx3d-160x1792x8h100",
        gpu=parts.H100,
        gpus=gpus,
        cards=cards,
        interfaces=[nic("ens3", "10.240.64.{n}/24", mtu=9000, speed_mbit=UNTOLD_SPEED, driver="virtio_net")],
        control="ens3",
        names="gx3d-{n}",
        launcher="ssh",
        hypervisor=True,
        iommu=ABSENT,
        iommus=(),
        governor=NO_GOVERNOR,
        numa=(("0-79", 896), ("80-159", 896)),
        kernel="5.15.0-1063-ibm",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro console=ttyS0",
        clocksource="kvm-clock",
        driver="550.127.08",
        cuda="12.4",
        nccl="2.22.3",
        torch="2.5.1+cu124",
        mounts=("nfs4", "10.240.64.4:/share"),
        counts=(1, 2, 4),
        profiles={"ibm": profile, "ibm-megatron": {**MEGATRON, **profile}},
    )


def h200_vm_bridges() -> Plan:
    """A guest whose hypervisor builds a bridge above each GPU and its card, and says 2.5 GT/s of its link."""
    gpus, cards = [], []
    for k in range(8):
        bus = 0x65 + 4 * k
        path = (f"0000:00:{3 + k:02x}.0", f"0000:{bus:02x}:00.0")
        root = "pci0000:00"
        gpus.append(Slot(f"0000:{bus + 3:02x}:00.0", root, (*path, f"0000:{bus + 1:02x}:01.0"), int(k > 3)))
        slot = Slot(f"0000:{bus + 2:02x}:00.0", root, (*path, f"0000:{bus + 1:02x}:00.0"), int(k > 3))
        cards.append(Card(f"mlx5_{k}", slot, netdev=f"ib{k}", firmware="28.43.2566", mtu=2044))

    def change(node: Node) -> Node:
        fabric = known(node.fabric)
        slow = PcieLink(gts=2.5, width=1, most_gts=2.5, most_width=1)
        pci = [replace(device, link=slow) if device.kind == "bridge" else device for device in known(fabric.pci)]
        return replace(node, fabric=replace(fabric, pci=pci))

    return Plan(
        kind="h200-vm-bridges",
        tweak=change,
        source="read: NVIDIA/nccl-tests#256 (H200 in a VM: bridge 65, NIC 67, GPU 68, PCI[0.2] above the bridges, "
        "NET of 50 GB/s); names of hosts and addresses as in drmysore/nebius-h100-16gpu-benchmark",
        story="Nebius-like guests with InfiniBand passed through; IPoIB has no address, eth0 carries TCP.",
        product="Nebius Cloud Compute",
        gpu=parts.H200,
        gpus=gpus,
        cards=cards,
        interfaces=[nic("eth0", "10.2.0.{n}/16", mtu=8910, speed_mbit=UNTOLD_SPEED, driver="virtio_net")],
        control="eth0",
        gateway="10.2.0.1",
        names="computeinstance-e00e9ncccc{n}",
        launcher="ssh",
        hypervisor=True,
        iommu=ABSENT,
        iommus=(),
        governor=NO_GOVERNOR,
        numa=(("0-63", 786), ("64-127", 786)),
        cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8468",
        system="Ubuntu 24.04.2 LTS",
        kernel="6.11.0-1016-nvidia",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro console=ttyS0",
        driver="570.158.01",
        open_driver=True,
        mounts=("virtiofs", "filesystem-0"),
        counts=(1, 2, 8),
        profiles={
            "provider": {
                "NCCL_TOPO_FILE": "/etc/nccl-topo-h200-v1.xml",
                "NCCL_IB_HCA": "mlx5",
                "NCCL_SOCKET_IFNAME": "eth0",
            },
            "nemo": {**NEMO, "NCCL_TOPO_FILE": "/etc/nccl-topo-h200-v1.xml"},
        },
    )


def dgx_b200() -> Plan:
    """Eight ConnectX-7 and two BlueField-3 with two ports each; management on a bridge over a bond."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
    order = [4, 7, 8, 9, 10, 13, 14, 15]
    compute = [
        Card(
            f"mlx5_{hca}",
            pair[0],
            netdev=f"ibp{int(pair[0].pci[5:7], 16)}s0",
            net=f"172.22.{rail}.{{n}}/22",
            firmware="28.44.1036",
        )
        for rail, (hca, pair) in enumerate(zip(order, pairs, strict=True))
    ]
    first, second = direct("0000:26", 0, "0000:29:00.0"), direct("0000:a7", 1, "0000:aa:00.0")
    rest = [
        Card(
            "mlx5_5",
            first,
            400.0,
            netdev="ibp41s0f0",
            net="172.23.1.{n}/24",
            model="MT41692",
            board="MT_0000000884",
            firmware="32.44.1036",
            data=False,
        ),
        Card(
            "mlx5_6",
            first.at("0000:29:00.1"),
            200.0,
            "Ethernet",
            "enp41s0f1np1",
            mtu=9000,
            model="MT41692",
            board="MT_0000000884",
            firmware="32.44.1036",
            data=False,
        ),
        Card(
            "mlx5_11",
            second,
            400.0,
            netdev="ibp170s0f0",
            net="172.23.2.{n}/24",
            model="MT41692",
            board="MT_0000000884",
            firmware="32.44.1036",
            data=False,
        ),
        Card(
            "mlx5_12",
            second.at("0000:aa:00.1"),
            200.0,
            "Ethernet",
            "enp170s0f1np1",
            mtu=9000,
            model="MT41692",
            board="MT_0000000884",
            firmware="32.44.1036",
            data=False,
        ),
    ]
    cards = sorted([*compute, *rest], key=lambda card: int(card.hca[5:]))
    return Plan(
        kind="dgx-b200",
        source="read: a public MLPerf configuration of HiPerGator's DGX B200 (NCCL_IB_HCA with mlx5_15, 10, 14, 13, 8, 7, 9, 4; "
        "NCCL_SOCKET_IFNAME=bridge-1145); docs.nvidia.com DGX B200 user guide. Addresses: general knowledge",
        story="TCP goes over a bridge of the kernel on the two Ethernet ports; storage is InfiniBand of its own.",
        product="NVIDIA DGXB200",
        gpu=parts.B200,
        gpus=[pair[1] for pair in pairs],
        cards=cards,
        interfaces=[
            nic(
                "bond0",
                kind="bond",
                mtu=9000,
                speed_mbit=400_000,
                members=["enp41s0f1np1", "enp170s0f1np1"],
                driver=ABSENT,
            ),
            nic("bridge-1145", "10.51.45.{n}/24", kind="bridge", mtu=9000, members=["bond0"], driver=ABSENT),
        ],
        control="bridge-1145",
        names="c10{n}b-s1",
        cpu="GenuineIntel INTEL(R) XEON(R) PLATINUM 8570",
        numa=(("0-55,112-167", 2048), ("56-111,168-223", 2048)),
        system="Ubuntu 24.04.3 LTS",
        kernel="6.8.0-1031-nvidia",
        driver="580.82.07",
        cuda="13.0",
        nccl="2.27.7",
        torch="2.9.0+cu130",
        open_driver=True,
        counts=(1, 2, 4),
        profiles={
            "site": {
                "NCCL_IB_HCA": "mlx5_15,mlx5_10,mlx5_14,mlx5_13,mlx5_8,mlx5_7,mlx5_9,mlx5_4",
                "NCCL_SOCKET_IFNAME": "bridge-1145",
                "OMPI_MCA_pml": "ucx",
                "OMPI_MCA_btl": "^openib",
            },
            "nemo": {**NEMO, "NCCL_NVLS_ENABLE": "1"},
        },
    )


def h100_four_snc() -> Plan:
    """Four GPUs joined by six links each, each with a card of 200 Gb/s below its switch; NUMA nodes interleaved."""
    groups = [
        switch(f"0000:{root}", numa, f"0000:{card}:00.0", f"0000:{gpu}:00.0")
        for root, card, gpu, numa in (
            ("15", "1a", "1b", 3),
            ("36", "3b", "3c", 1),
            ("86", "8b", "8c", 7),
            ("b7", "bc", "bd", 5),
        )
    ]
    cards = [
        Card(
            f"mlx5_{i}",
            g[0],
            200.0,
            netdev=f"ib{i}",
            net=f"10.{64 + i}.4.{{n}}/16" if i == 0 else "",
            mtu=2044,
            board="MT_0000000834",
            firmware="28.39.3004",
        )
        for i, g in enumerate(groups)
    ]
    return Plan(
        kind="h100-four-snc",
        source="read: NVIDIA/nccl#1617 (four H100, NV6, a NIC at PIX of each, NUMA 3, 1, 7, 5, cores 6,14,22,30 of the first); "
        "memory of 64 GB as in MareNostrum 5. Buses: general knowledge",
        story="Cores of a NUMA node are every eighth one.",
        product="Lenovo ThinkSystem SD650-N V3",
        gpu=H100_64,
        gpus=[g[1] for g in groups],
        cards=cards,
        interfaces=[wire("eno1", "10.1.4.{n}/16", 1, driver="igb")],
        control="ib0",
        names="as04r1b{n}",
        cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8460Y+",
        numa=tuple((",".join(str(8 * k + i) for k in range(4)), 64) for i in range(8)),
        system="Red Hat Enterprise Linux 9.2 (Plow)",
        kernel="5.14.0-284.30.1.el9_2.x86_64",
        driver="535.86.10",
        cuda="12.2",
        nccl="2.20.5",
        torch="2.4.0+cu121",
        counts=(1, 2, 16),
        profiles={
            "site": {
                "NCCL_SOCKET_IFNAME": "ib0",
                "NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_2,mlx5_3",
                "OMP_NUM_THREADS": "8",
            },
            "megatron": {**MEGATRON, "NCCL_SOCKET_IFNAME": "ib0"},
        },
    )


def kestrel() -> Plan:
    """Four H100 of a Cray, two Slingshot cards for them, libfabric's plugin from a user's folder."""
    gpus = [
        direct(f"0000:{r}", n, f"0000:{b}:00.0")
        for r, b, n in (("00", "04", 0), ("40", "44", 0), ("80", "84", 1), ("c0", "c4", 1))
    ]
    cards = [
        Card(
            "",
            direct(f"0000:{r}", n, f"0000:{b}:00.0", 16.0),
            200.0,
            "Ethernet",
            f"hsn{n}",
            f"10.150.{n}.{{n}}/16",
            mtu=9000,
            driver="cxi_ss1",
        )
        for r, b, n in (("20", "21", 0), ("a0", "a1", 1))
    ]
    nrel = {
        "FI_CXI_DISABLE_HOST_REGISTER": "1",
        "FI_MR_CACHE_MONITOR": "userfaultfd",
        "NCCL_CROSS_NIC": "1",
        "NCCL_SOCKET_IFNAME": "hsn",
        "NCCL_NET": "AWS Libfabric",
        "NCCL_NET_GDR_LEVEL": "PHB",
        "MPICH_GPU_SUPPORT_ENABLED": "0",
        "LD_LIBRARY_PATH": "/home/kim/nccl-ofi-plugin/install/plugin/lib",
    }
    return Plan(
        kind="kestrel-h100",
        source="read: github.com/mselensky/nccl-ofi-plugin run_tests.sh (gpu-h100, four a node, all variables). Buses and two "
        "cards a node: general knowledge",
        story="HPE Cray EX254 of NREL; the plugin is the user's own build.",
        product="HPE HPE_CRAY_EX254",
        gpu=H100_FOUR,
        gpus=gpus,
        cards=cards,
        interfaces=[wire("eno1", "10.148.0.{n}/16", 25, driver="bnxt_en")],
        control="hsn0",
        gateway="10.150.255.254",
        names="x3102c0s{n}b0n0",
        cpu="AuthenticAMD AMD EPYC 9554 64-Core Processor",
        numa=(("0-63", 192), ("64-127", 192)),
        system="Red Hat Enterprise Linux 8.10",
        kernel="4.18.0-553.22.1.el8_10.x86_64",
        command_line="initrd=initrd ro iommu=pt",
        iommus=("ivhd0", "ivhd1"),
        driver="550.54.15",
        cuda="12.4",
        nccl="2.21.5",
        torch="2.6.0+cu124",
        peer_modules=("nvidia_peermem",),
        plugins=("/home/kim/nccl-ofi-plugin/install/plugin/lib/libnccl-net.so",),
        product_of_plugin="aws-ofi-nccl 1.9.1",
        symbols_of_plugin=("net v5", "net v6", "net v7", "net v8"),
        governor=_EPYC,
        counts=(1, 2, 4),
        mounts=("lustre", "10.150.0.1@kfi:/projects"),
        profiles={"nrel": nrel, "nrel-megatron": {**MEGATRON, **nrel}},
    )


def vista() -> Plan:
    """One GH200 a node, one NDR card, pages of 64 KiB."""
    return Plan(
        kind="tacc-vista",
        source="read: github.com/TACC/TACC-Docs docs/hpc/vista.md (Grace Hopper nodes, NDR InfiniBand, Rocky). The name of the "
        "card and its bus: general knowledge",
        story="600 nodes with one GPU each; MPI over mlx5_0.",
        product="Supermicro ARS-111GL-NHR",
        gpu=GH200_120,
        gpus=[direct("0009:00", 0, "0009:01:00.0")],
        cards=[
            Card(
                "mlx5_0",
                direct("0000:00", 0, "0000:01:00.0"),
                400.0,
                netdev="ibp1s0",
                net="192.168.16.{n}/21",
                mtu=2044,
            )
        ],
        interfaces=[wire("enp2s0", "129.114.16.{n}/22", 1, driver="igb")],
        control="ibp1s0",
        names="c6{n}-001",
        cpu="ARM Neoverse-V2",
        numa=(("0-71", 117),),
        system="Rocky Linux 9.3 (Blue Onyx)",
        kernel="5.14.0-362.24.1.el9_3.aarch64+64k",
        command_line="BOOT_IMAGE=vmlinuz ro iommu.passthrough=1 init_on_alloc=0",
        iommus=("smmu3.0x11000000",),
        driver="560.35.03",
        cuda="12.6",
        nccl="2.25.1",
        torch="2.7.0+cu126",
        open_driver=True,
        peer_modules=("nvidia_peermem",),
        hypervisor=NOT_OF_THIS_CPU,
        governor=_GRACE,
        clocksource="arch_sys_counter",
        page=512 * 2**20,
        counts=(1, 2, 16),
        mounts=("nfs4", "scratch:/scratch"),
        profiles={"tacc": {"NCCL_IB_HCA": "mlx5_0", "NCCL_SOCKET_IFNAME": "ib"}, "megatron": MEGATRON},
    )


def aws_p5en() -> Plan:
    """Two EFA of 200 Gb/s beside each H200."""
    starts = [0x4F, 0x5E, 0x6D, 0x7C, 0x8B, 0x9A, 0xA9, 0xB8]
    groups = [
        switch(f"0000:{start - 3:02x}", int(place > 3), *(f"0000:{start + k:02x}:00.0" for k in range(3)))
        for place, start in enumerate(starts)
    ]
    cards = [
        Card(f"rdmap{int(slot.pci[5:7], 16)}s0", slot, 200.0, "Unspecified", driver="efa")
        for group in groups
        for slot in group[:2]
    ]
    base = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu"
    return Plan(
        kind="aws-p5en",
        source="docs.aws.amazon.com AWSEC2 efa-acc-inst-types (p5en: sixteen cards); public nccl-tests directories for p5en with "
        "ParallelCluster (NCCL 2.27.7). Buses: general knowledge",
        story="ParallelCluster with EFA-only cards beside one ENA interface; OFI_NCCL variables are left alone.",
        product="Amazon EC2 p5en.48xlarge",
        asset_tag="Amazon EC2",
        gpu=parts.H200,
        gpus=[group[2] for group in groups],
        cards=cards,
        interfaces=[nic("enp39s0", "10.9.32.{n}/20", mtu=9001, speed_mbit=UNTOLD_SPEED, driver="ena"), DOCKER],
        control="enp39s0",
        names="queue-st-p5en-{n}",
        cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8488C",
        numa=(("0-47,96-143", 1024), ("48-95,144-191", 1024)),
        kernel="6.8.0-1035-aws",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro console=ttyS0",
        iommu=ABSENT,
        iommus=(),
        open_driver=True,
        peer_modules=(),
        providers=("efa",),
        plugins=(f"{base}/libnccl-net.so", f"{base}/libnccl-ofi-tuner.so"),
        product_of_plugin="aws-ofi-nccl 1.17.1",
        symbols_of_plugin=_OFI,
        driver="580.95.05",
        cuda="13.0",
        nccl="2.27.7",
        torch="2.9.0+cu130",
        hypervisor=True,
        governor=NO_GOVERNOR,
        huge_pages=5128,
        mounts=("lustre", "10.9.40.2@tcp:/fsx"),
        counts=(1, 2, 4),
        profiles={
            "aws": {
                "FI_PROVIDER": "efa",
                "FI_EFA_FORK_SAFE": "1",
                "NCCL_SOCKET_IFNAME": "^docker,lo,veth",
                "NCCL_TUNER_PLUGIN": f"{base}/libnccl-ofi-tuner.so",
                "LD_LIBRARY_PATH": base,
            },
            "nemo": {**NEMO, "FI_PROVIDER": "efa", "NCCL_SOCKET_IFNAME": "^docker,lo,veth"},
        },
    )


def aws_p6e_gb200() -> Plan:
    """A tray of AWS's rack: four GB200 with an IMEX channel, EFA of 400 Gb/s beside each."""
    gpus = [direct(f"{d}:00", n, f"{d}:01:00.0") for d, n in (("0008", 0), ("0009", 0), ("0018", 1), ("0019", 1))]
    efas = [
        Card(f"rdmap{int(d, 16)}s0", direct(f"{d}:00", n, f"{d}:01:00.0"), 400.0, "Unspecified", driver="efa")
        for d, n in (("0002", 0), ("0004", 0), ("0012", 1), ("0014", 1))
    ]
    plugin = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"

    def change(node: Node) -> Node:
        g = known(node.gpus)
        domain = NvFabric(
            state="completed", health="healthy", cluster="0f3e9a6c41d84b8ab1a6b0c2d4e5f607", clique=2
        )
        return replace(node, gpus=replace(g, cards=[replace(card, fabric=domain) for card in known(g.cards)]))

    return Plan(
        kind="aws-p6e-gb200",
        tweak=change,
        source="docs.aws.amazon.com parallelcluster: support-nvidia-imex-p6e-gb200-instance (18 instances a rack, nvidia-imex is "
        "started by the service). Buses and cards: general knowledge",
        story="ParallelCluster 3.14; a job inside one UltraServer.",
        product="Amazon EC2 p6e-gb200.36xlarge",
        asset_tag="Amazon EC2",
        gpu=parts.GB200,
        gpus=gpus,
        cards=efas,
        interfaces=[nic("enP1s5", "10.7.16.{n}/20", mtu=9001, speed_mbit=UNTOLD_SPEED, driver="ena")],
        control="enP1s5",
        names="ultra-st-p6e-{n}",
        cpu="ARM Neoverse-V2",
        numa=(("0-71", 480), ("72-143", 480)),
        system="Ubuntu 24.04.3 LTS",
        kernel="6.14.0-1012-aws-64k",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro console=ttyS0 init_on_alloc=0",
        iommu=ABSENT,
        iommus=(),
        open_driver=True,
        peer_modules=(),
        providers=("efa",),
        plugins=(plugin,),
        product_of_plugin="aws-ofi-nccl 1.16.3",
        symbols_of_plugin=_OFI,
        imex=("channel0",),
        driver="570.172.08",
        nccl="2.27.5",
        torch="2.8.0+cu128",
        hypervisor=NOT_OF_THIS_CPU,
        governor=NO_GOVERNOR,
        clocksource="arch_sys_counter",
        page=512 * 2**20,
        mounts=("lustre", "10.7.20.2@tcp:/fsx"),
        counts=(1, 2, 16),
        profiles={
            "aws": {"FI_PROVIDER": "efa", "NCCL_SOCKET_IFNAME": "^docker,lo", "NCCL_MNNVL_ENABLE": "1"},
            "nemo": {**MEGATRON, "NCCL_NVLS_ENABLE": "1", "NCCL_CUMEM_ENABLE": "1", "FI_PROVIDER": "efa"},
        },
    )


def dgx_2() -> Plan:
    """Sixteen V100 on twelve NVSwitches, eight EDR cards, two for Ethernet."""
    groups = [
        switch(f"0000:{root}", int(place > 3), *(f"0000:{int(root, 16) + k:02x}:00.0" for k in (3, 4, 5)), gts=8.0)
        for place, root in enumerate(("10", "30", "50", "70", "90", "b0", "d0", "e8"))
    ]
    compute = [
        Card(
            f"mlx5_{i}",
            g[0],
            100.0,
            netdev=f"ib{i}",
            net=f"172.25.{i}.{{n}}/16" if i == 0 else "",
            mtu=2044,
            model="MT4119",
            board="MT_0000000008",
            firmware="16.35.3006",
        )
        for i, g in enumerate(groups)
    ]
    front = [
        Card(
            f"mlx5_{8 + i}",
            direct(r, i, f"{r[:-2]}{b}:00.0", 8.0),
            100.0,
            "Ethernet",
            f"enp{int(b, 16)}s0",
            net,
            mtu=1500,
            data=False,
            model="MT4119",
            board="MT_0000000008",
            firmware="16.35.3006",
        )
        for i, (r, b, net) in enumerate((("0000:5c", "5d", "10.33.2.{n}/24"), ("0000:fa", "fb", "")))
    ]
    return Plan(
        kind="dgx-2",
        tweak=volta,
        source="read: NVIDIA/nccl-tests#78 (nvidia-smi topo -m: sixteen GPUs at NV6, mlx5_0 to mlx5_9, cores 0-23,48-71). Buses: "
        "general knowledge",
        story="Two boards of eight V100; two Ethernet ports of the same family as the EDR cards, one not configured.",
        product="NVIDIA DGX-2",
        gpu=V100,
        gpus=[s for g in groups for s in g[1:]],
        cards=[*compute, *front],
        interfaces=[DOCKER],
        control="enp93s0",
        names="dgx2-{n}",
        cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz",
        numa=(("0-23,48-71", 768), ("24-47,72-95", 768)),
        system="Ubuntu 22.04.5 LTS",
        kernel="5.15.0-130-generic",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro iommu=pt",
        driver="535.216.01",
        cuda="12.2",
        nccl="2.18.5",
        torch="2.1.2+cu121",
        counts=(1, 2, 4),
        profiles={
            "site": {"NCCL_SOCKET_IFNAME": "enp93s0", "NCCL_IB_HCA": "=" + ",".join(c.hca for c in compute)},
            "deepspeed": {"NCCL_SOCKET_IFNAME": "enp93s0", "NCCL_TREE_THRESHOLD": "0", "NCCL_DEBUG": "WARN"},
        },
    )


def a6000_bridges() -> Plan:
    """Eight boards of a workstation's kind below four switches, bridged in pairs; no RDMA."""
    groups = [
        switch(f"0000:{root}", int(place > 1), f"0000:{first}:00.0", f"0000:{second}:00.0", gts=16.0)
        for place, (root, first, second) in enumerate(
            (("16", "1b", "1c"), ("40", "45", "46"), ("96", "9b", "9c"), ("c0", "c5", "c6"))
        )
    ]
    return Plan(
        kind="a6000-bridges",
        source="read: NVIDIA/nccl#1121 (ps-SYS-420GP-TNR, eight A6000 with four bridges, eno1 192.168.223.11, NCCL 2.18.5)",
        story="A laboratory's server for fine-tuning on one node or two, over 10 Gb/s.",
        product="Supermicro SYS-420GP-TNR",
        gpu=A6000,
        gpus=[s for g in groups for s in g],
        cards=[],
        interfaces=[
            nic("eno1", "192.168.223.{n}/24", speed_mbit=10_000, driver="i40e"),
            nic("eno2", kind="physical", running=False, driver="i40e"),
            DOCKER,
        ],
        control="eno1",
        gateway="192.168.223.1",
        names="ps-SYS-420GP-TNR-{n}",
        launcher="ssh",
        cpu="GenuineIntel Intel(R) Xeon(R) Gold 6348 CPU @ 2.60GHz",
        numa=(("0-27,56-83", 256), ("28-55,84-111", 256)),
        kernel="5.15.0-91-generic",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro quiet splash",
        iommu=ABSENT,
        iommus=(),
        peer_modules=(),
        driver="535.129.03",
        cuda="12.2",
        nccl="2.18.5",
        torch="2.1.1+cu118",
        mounts=("ext4", "/dev/md0"),
        counts=(1, 2),
        profiles={"deepspeed": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NCCL_DEBUG": "INFO"}, "megatron": MEGATRON},
    )


def wsl_two() -> Plan:
    """Windows with two boards: Ubuntu in WSL 2 sees both, and no bus of either."""
    plan = wsl_desktop()
    gpus = [Slot(f"0000:{b}:00.0", f"pci0000:{b}", (), -1, link=False) for b in ("01", "02")]
    return dataclasses.replace(
        plan,
        kind="wsl-two",
        source="read: vllm-project/vllm#4411 (WSL 2 on an i7-12700KF, two RTX 3090, driver 551.76, torch 2.2.1+cu121); "
        "NVIDIA's WSL user guide",
        story="Two boards without a bridge; copies between them go through host memory.",
        gpu=dataclasses.replace(RTX3090, links=0, link_mbps=0, p2p="chipset not supported"),
        gpus=gpus,
        cpu="GenuineIntel 12th Gen Intel(R) Core(TM) i7-12700KF",
        numa=(("0-5", 47),),
        kernel="5.15.133.1-microsoft-standard-WSL2",
        system="Ubuntu 22.04.2 LTS",
        driver="551.76",
        cuda="12.4",
        nccl="2.19.3",
        torch="2.2.1+cu121",
        profiles={"vllm": {"NCCL_P2P_DISABLE": "1"}, "megatron": MEGATRON},
    )


def t4_runner() -> Plan:
    """A pod of a test runner with four T4 and 46 of a node's 48 cores."""

    def change(node: Node) -> Node:
        fabric, host = known(node.fabric), known(node.host)
        return replace(
            node,
            host=replace(
                host, usable_cores=45.0, memory_limit=172 * GIB, shm=replace(host.shm, size=8 * GIB, free=8 * GIB)
            ),
            fabric=replace(fabric, bound=replace(fabric.bound, cpus="1-23,48-71")),
        )

    return Plan(
        kind="t4-runner",
        tweak=change,
        source="read: pytorch/ci-infra#490 (mt-l-x86iavx512-45-172-t4-4: 45 cores, 172 GB, /dev/shm mounted); ray-project/ray#15495 "
        "(g4dn: T4 at 00:1b.0 to 00:1e.0, PHB)",
        story="A runner of GitHub Actions in Kubernetes; tests of torch.distributed on one node.",
        product="Amazon EC2 g4dn.12xlarge",
        asset_tag="Amazon EC2",
        gpu=T4,
        gpus=[Slot(f"0000:00:{s}.0", "pci0000:00", (), -1, 8.0, 16, link=False) for s in ("1b", "1c", "1d", "1e")],
        cards=[],
        interfaces=[nic("eth0", "10.0.121.{n}/32", kind="veth", mtu=9001, speed_mbit=UNTOLD_SPEED, driver="veth")],
        control="eth0",
        gateway="169.254.1.1",
        names="mt-l-x86iavx512-45-172-t4-4-csmpw-{n}",
        launcher="local",
        pod=True,
        cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz",
        numa=(("0-95", 186),),
        system="Ubuntu 22.04.5 LTS",
        kernel="6.1.141-155.222.amzn2023.x86_64",
        command_line="BOOT_IMAGE=(hd0,gpt1)/boot/vmlinuz ro console=ttyS0",
        iommu=ABSENT,
        iommus=(),
        peer_modules=(),
        hypervisor=True,
        governor=NO_GOVERNOR,
        driver="580.82.07",
        cuda="13.0",
        nccl="2.27.5",
        torch="2.9.0+cu128",
        mounts=("ext4", "/dev/nvme1n1"),
        counts=(1,),
        profiles={
            "ci": {"CI": "true", "NCCL_DEBUG": "INFO", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
            "megatron": MEGATRON,
        },
    )


def gcp_a2_mega() -> Plan:
    """Sixteen A100 in one guest, and TCP over one gVNIC with Google's Fast Socket."""
    return Plan(
        kind="gcp-a2-mega",
        source="read: NVIDIA/nccl#651 (A100 on GCP: ens8, NET/FastSocket, NCCL_SOCKET_NTHREADS=4); github.com/google/nccl-fastsocket "
        "net_fastsocket.cc (NCCL_FLOW_PLACEMENT_ENABLE); cloud.google.com accelerator-optimized "
        "machines (a2-megagpu-16g: sixteen A100 of 40 GB, 100 Gb/s). Buses: general knowledge",
        story="One large guest of Vertex or two; a plugin that speaks TCP.",
        product="Google Google Compute Engine",
        gpu=parts.A100_SXM,
        gpus=[
            Slot(
                f"0000:{4 + k:02x}:00.0" if k < 8 else f"0000:{0x80 + k:02x}:00.0",
                "pci0000:00" if k < 8 else "pci0000:80",
                (f"0000:{'00' if k < 8 else '80'}:0{k % 8 + 1}.0",),
                int(k > 7),
                16.0,
                16,
                link=False,
            )
            for k in range(16)
        ],
        cards=[],
        interfaces=[nic("ens8", "10.128.0.{n}/32", mtu=8896, speed_mbit=UNTOLD_SPEED, driver="gve"), DOCKER],
        control="ens8",
        gateway="10.128.0.1",
        names="a100-16-train{n}",
        launcher="ssh",
        cpu="GenuineIntel Intel(R) Xeon(R) CPU @ 2.20GHz",
        numa=(("0-23,48-71", 680), ("24-47,72-95", 680)),
        system="Debian GNU/Linux 11 (bullseye)",
        kernel="5.10.0-35-cloud-amd64",
        command_line="BOOT_IMAGE=/boot/vmlinuz-5.10.0-35-cloud-amd64 ro console=ttyS0",
        iommu=ABSENT,
        iommus=(),
        peer_modules=(),
        hypervisor=True,
        governor=NO_GOVERNOR,
        driver="550.90.07",
        cuda="12.4",
        nccl="2.19.3",
        torch="2.2.2+cu121",
        plugins=("/usr/lib/libnccl-net.so",),
        symbols_of_plugin=("net v4", "net v5", "net v6", "net v7"),
        mounts=("fuse.gcsfuse", "bucket"),
        counts=(1, 2, 4),
        profiles={
            "fast-socket": {
                "NCCL_SOCKET_NTHREADS": "4",
                "NCCL_SOCKET_IFNAME": "ens8",
                "NCCL_FLOW_PLACEMENT_ENABLE": "1",
            },
            "megatron": MEGATRON,
        },
    )


def h200_nvl4() -> Plan:
    """Eight boards in two bridges of four, which nothing but the processors joins; two RoCE cards a half."""
    groups = [
        switch(f"0000:{root}", int(place > 1), *(f"0000:{int(root, 16) + k:02x}:00.0" for k in (3, 4, 5)))
        for place, root in enumerate(("15", "35", "95", "c5"))
    ]
    cards = [
        Card(
            f"mlx5_{i}",
            g[0],
            400.0,
            "Ethernet",
            f"ens{10 + i}np0",
            f"172.30.{i}.{{n}}/24",
            mtu=9000,
            traffic_class="Global tclass=106",
            firmware="28.45.1020",
        )
        for i, g in enumerate(groups)
    ]
    return Plan(
        kind="h200-nvl4",
        source="read: kubernetes.recipes h200-nvl4-topology-bandwidth-tiers (two bridges of four without an NVSwitch, two PCIe switches "
        "a socket, RoCE of 400 Gb/s). Product, buses and addresses: general knowledge",
        story="OpenShift's pods with the host's network.",
        product="Dell Inc. PowerEdge XE7745",
        gpu=H200_NVL,
        gpus=[s for g in groups for s in g[1:]],
        cards=cards,
        interfaces=[
            nic("br-ex", "10.21.4.{n}/24", kind="bridge", mtu=9000, members=["bond0"], driver=ABSENT),
            nic(
                "bond0",
                kind="bond",
                mtu=9000,
                speed_mbit=50_000,
                members=["eno12399np0", "eno12409np1"],
                driver=ABSENT,
            ),
            nic("eno12399np0", kind="physical", mtu=9000, speed_mbit=25_000, driver="bnxt_en"),
            nic("eno12409np1", kind="physical", mtu=9000, speed_mbit=25_000, driver="bnxt_en"),
        ],
        control="br-ex",
        names="ocp-gpu{n}",
        launcher="ssh",
        cpu="AuthenticAMD AMD EPYC 9575F 64-Core Processor",
        numa=(("0-63,128-191", 1152), ("64-127,192-255", 1152)),
        system="Red Hat Enterprise Linux CoreOS 418",
        kernel="5.14.0-427.79.1.el9_4.x86_64",
        command_line="BOOT_IMAGE=(hd0,gpt3)/ostree/rhcos ro iommu=pt",
        iommus=("ivhd0", "ivhd1"),
        open_driver=True,
        driver="570.172.08",
        nccl="2.27.3",
        governor=_EPYC,
        mounts=("nfs4", "vast:/train"),
        counts=(1, 2, 4),
        profiles={
            "site": {
                "NCCL_IB_GID_INDEX": "3",
                "NCCL_IB_TC": "106",
                "NCCL_SOCKET_IFNAME": "br-ex",
                "NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_2,mlx5_3",
            },
            "nemo": NEMO,
        },
    )


def gb300_pod() -> Plan:
    """Pods on trays of a GB300 rack: four GPUs, four ports of 800 Gb/s, a channel of a ComputeDomain."""
    gpus = [direct(f"{d}:00", n, f"{d}:01:00.0") for d, n in (("0008", 0), ("0009", 0), ("0018", 1), ("0019", 1))]
    cards = [
        Card(f"ibp{i}", Slot(f"{d}:03:00.0", f"pci{d}:00", (f"{d}:00:00.0", f"{d}:01:00.0", f"{d}:02:00.0"), n, 64.0, 16), 800.0,
             model="MT4131", board="NVD0000000066", firmware="40.46.3048")
        for i, (d, n) in enumerate((("0000", 0), ("0002", 0), ("0010", 1), ("0012", 1)))
    ]  # fmt: skip

    def change(node: Node) -> Node:
        g = known(node.gpus)
        domain = NvFabric(
            state="completed", health="healthy", cluster="b1946ac92492d2347c6235b4d2611184", clique=1
        )
        c = known(node.container)
        return replace(
            node,
            gpus=replace(g, cards=[replace(card, fabric=domain) for card in known(g.cards)]),
            container=replace(
                c, runtimes=[*known(c.runtimes), RuntimeSign(name="containerd", source="/proc/1/cgroup")]
            ),
        )

    return Plan(
        kind="gb300-pod",
        tweak=change,
        source="docs.nvidia.com ConnectX-8, GB300 NVL72 reference; docs.coreweave.com (ibp0 to ibp3, NCCL_IB_HCA=ibp, NCCL_SOCKET_IFNAME=eth0); "
        "NVIDIA k8s-dra-driver-gpu (a channel a workload). Buses: general knowledge",
        story="A job of CoreWeave's kind inside one rack.",
        product="Supermicro ARS-121GL-NB3B",
        gpu=GB300,
        gpus=gpus,
        cards=cards,
        interfaces=[nic("eth0", "10.16.9.{n}/24", kind="veth", mtu=8950, speed_mbit=UNTOLD_SPEED, driver="veth")],
        control="eth0",
        names="llama-worker-{n}",
        launcher="ssh",
        pod=True,
        cpu="ARM Neoverse-V2",
        numa=(("0-71", 480), ("72-143", 480)),
        system="Ubuntu 24.04.3 LTS",
        kernel="6.8.0-1041-nvidia-64k",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro iommu.passthrough=1 init_on_alloc=0",
        iommus=("smmu3.0x11000000",),
        open_driver=True,
        peer_modules=(),
        imex=("channel0",),
        hypervisor=NOT_OF_THIS_CPU,
        governor=_GRACE,
        clocksource="arch_sys_counter",
        page=512 * 2**20,
        driver="580.95.05",
        cuda="13.0",
        nccl="2.28.3",
        torch="2.9.0+cu130",
        mounts=("nfs4", "vast:/mnt"),
        counts=(1, 2, 16),
        profiles={
            "coreweave": {
                "NCCL_IB_HCA": "ibp",
                "NCCL_SOCKET_IFNAME": "eth0",
                "UCX_NET_DEVICES": "ibp0:1,ibp1:1,ibp2:1,ibp3:1",
                "SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING": "1",
            },
            "nemo": {
                **MEGATRON,
                "NCCL_NVLS_ENABLE": "1",
                "NCCL_MNNVL_ENABLE": "1",
                "NCCL_GRAPH_REGISTER": "0",
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            },
        },
    )


def address_range() -> Plan:
    """Four RoCE cards for eight GPUs, named and given by their subnets."""
    groups = [
        switch(f"0000:{root}", int(place > 1), *(f"0000:{int(root, 16) + k:02x}:00.0" for k in (3, 4, 5)))
        for place, root in enumerate(("15", "35", "95", "c5"))
    ]
    names = [0, 1, 4, 5]
    cards = [
        Card(
            f"mlx5_{h}",
            g[0],
            200.0,
            "Ethernet",
            f"ens{20 + i}np0",
            f"10.{i + 1}.0.{{n}}/16",
            mtu=9000,
            traffic_class="Global tclass=106",
        )
        for i, (h, g) in enumerate(zip(names, groups, strict=True))
    ]
    storage = [
        Card(f"mlx5_{h}", direct(r, n, f"{r[:-2]}{b}:00.0", 16.0), 100.0, "Ethernet", f"ens{30 + n}np0", f"10.{9 + n}.0.{{n}}/16", mtu=9000,
             model="MT4125", board="MT_0000000359", firmware="22.41.1000", data=False)
        for h, r, b, n in ((2, "0000:65", "66", 0), (3, "0000:e5", "e6", 1))
    ]  # fmt: skip
    profile = {
        "NCCL_IB_ADDR_RANGE": "10.1.0.0/16,10.2.0.0/16,10.3.0.0/16,10.4.0.0/16",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1,mlx5_4:1,mlx5_5:1",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1,mlx5_4:1,mlx5_5:1",
        "UCX_MAX_EAGER_RAILS": "4",
        "UCX_MAX_RNDV_RAILS": "4",
        "OMPI_MCA_btl_tcp_if_include": "10.1.0.0/16,10.2.0.0/16,10.3.0.0/16,10.4.0.0/16",
    }
    return Plan(
        kind="address-range",
        source="read: a public profile of a Japanese cluster (hosts a000; the four names of cards, NCCL_IB_ADDR_RANGE of four /16, GID 3, UCX "
        "variables). Model of server and buses: general knowledge",
        story="Each rail is a /16; storage has two cards and subnets of its own.",
        product="Supermicro SYS-821GE-TNHR",
        gpu=parts.H100,
        gpus=[s for g in groups for s in g[1:]],
        cards=sorted([*cards, *storage], key=lambda card: card.hca),
        interfaces=[wire("eno1", "10.100.0.{n}/16", 10, driver="ixgbe")],
        control="eno1",
        names="a0{n}",
        driver="550.144.03",
        cuda="12.4",
        nccl="2.23.4",
        torch="2.6.0+cu124",
        counts=(1, 2, 8),
        profiles={"site": profile, "site-nemo": {**NEMO, **profile}},
    )


KINDS: tuple[Callable[[], Plan], ...] = (
    ibm_gx3d, h200_vm_bridges, dgx_b200, h100_four_snc, kestrel, vista, aws_p5en, aws_p6e_gb200, dgx_2, a6000_bridges,
    wsl_two, t4_runner, gcp_a2_mega, h200_nvl4, gb300_pod, address_range,
)  # fmt: skip

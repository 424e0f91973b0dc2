"""Machines of processors, clouds and containers that no rule had been tried on before: Arm guests, POWER9, eRDMA, LXC.

`source` begins with "read:" where its documents were opened for the names and numbers that they tell; the rest
is what such a node has. Without that word it says where to look, and names and numbers may differ from a real one.
"""

# ruff: noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ncclcheck.probes.facts import (
    Governor,
    Limits,
    Namespace,
    Node,
    NumaNode,
    NvFabric,
    RuntimeSign,
    Unread,
    known,
    replace,
)
from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.humble import RTX3090, V100, volta
from tests.sound.machine import Plan
from tests.sound.newer import GH200_120, RTX_PRO
from tests.sound.others import jetson
from tests.sound.parts import Card, Model, Slot, direct, virtual
from tests.sound.sites import dgx_h100, l40s_roce
from tests.sound.unusual import H20
from tests.sound.usual import (
    CONNECTX7_VF,
    DOCKER,
    MEGATRON,
    NEMO,
    NO_GOVERNOR,
    NOT_OF_THIS_CPU,
    UNTOLD_SPEED,
    wire,
)

_NONE = Unread("absent", "Not Supported")
_GRACE = Governor(names=["performance"], driver="cppc_cpufreq", preference=ABSENT)
_OTHER = "its number is not that of the machine's own one"
# Of a superchip's board of four: six links to each of the three others, as nvidia-smi shows NV6.
GH200_QUAD = dataclasses.replace(GH200_120, name="NVIDIA GH200 120GB", watts=680.0)
THOR = Model("NVIDIA Thor", 0, 130.0, 1575, 0, 4, vbios="97.00.00.00.00", ecc=False, persistence=False)
V100_16 = dataclasses.replace(V100, name="Tesla V100-SXM2-16GB", memory=16160, vbios="88.00.43.00.03")


def jupiter() -> Plan:
    """Four superchips a node, NDR200 of InfiniBand beside each, addresses on ib0 alone."""
    cards = [
        Card(f"mlx5_{i}", direct(f"{d}:00", i, f"{d}:01:00.0"), 200.0, netdev=f"ib{i}",
             net="10.128.16.{n}/16" if i == 0 else "", mtu=2044, board="NVD0000000025", firmware="28.40.1000")
        for i, d in enumerate(("0000", "0010", "0020", "0030"))
    ]  # fmt: skip

    def change(node: Node) -> Node:
        fabric = known(node.fabric)
        of_gpus = [
            NumaNode(name=str(4 + 8 * i), cpus="", memory=96 * 2**30, distances=[80, 80, 80, 80, 10])
            for i in range(4)
        ]
        return replace(node, fabric=replace(fabric, numa=[*known(fabric.numa), *of_gpus]))

    jsc = {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib0", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    return Plan(
        kind="jupiter-gh200", tweak=change,
        source="read: interTwin-eu/itwinai src/itwinai/slurm/system-base-scripts (ib0 for NCCL and gloo on JSC's machines); "
        "apps.fz-juelich.de/jsc/hps/jupiter (four GH200, four NDR200 a node). Buses as of Alps; names of nodes: general knowledge",
        story="JUPITER's booster: Eviden BullSequana XH3000 with ParTec's stack.",
        product="Eviden BullSequana XH3515-HMQ", gpu=GH200_QUAD,
        gpus=[direct(f"{d}:00", i, f"{d}:01:00.0") for i, d in enumerate(("0009", "0019", "0029", "0039"))],
        cards=cards, interfaces=[wire("eth0", "10.11.16.{n}/16", 10, driver="igb")], control="ib0", names="jpbo-001-{n}",
        cpu="ARM Neoverse-V2", numa=tuple((f"{72 * i}-{72 * i + 71}", 120) for i in range(4)),
        system="Red Hat Enterprise Linux 9.4 (Plow)", kernel="5.14.0-427.42.1.el9_4.aarch64+64k",
        command_line="BOOT_IMAGE=vmlinuz ro iommu.passthrough=1 init_on_alloc=0", iommus=("smmu3.0x11000000",),
        driver="570.133.20", cuda="12.8", nccl="2.26.2", torch="2.7.0+cu128", open_driver=True, peer_modules=("nvidia_peermem",),
        hypervisor=NOT_OF_THIS_CPU, governor=_GRACE, clocksource="arch_sys_counter", page=512 * 2**20, counts=(1, 2, 16),
        mounts=("gpfs", "exafs"), profiles={"jsc": jsc, "megatron": {**MEGATRON, **jsc}},
    )  # fmt: skip


def azure_nd_gb200() -> Plan:
    """A tray of a rack as a guest of Hyper-V on Arm: flat buses, four functions of InfiniBand, an IMEX channel."""
    gpus = [virtual(f"{n:04x}:00:00.0", int(place > 1)) for place, n in enumerate((8, 9, 0x18, 0x19))]
    cards = [
        Card(f"mlx5_ib{rail}", virtual(f"01{rail + 1:02x}:00:00.0", int(rail > 1)), netdev=f"ib{rail}",
             net=f"172.16.{rail + 1}.{{n}}/16", mtu=2044, model=CONNECTX7_VF, board="MT_0000000840", firmware="28.43.2566")
        for rail in range(4)
    ]  # fmt: skip
    accelerated = Card(
        "mlx5_an0", virtual("0200:00:02.0", 0), 200.0, "Ethernet", "enP512s1", mtu=1500, model="MT4122",
        board="MSF0010110035", firmware="16.31.2424", data=False,
    )  # fmt: skip

    def change(node: Node) -> Node:
        g = known(node.gpus)
        domain = NvFabric(
            state="completed", health="healthy", cluster="5d41402abc4b2a76b9719d911017c592", clique=32766
        )
        return replace(node, gpus=replace(g, cards=[replace(card, fabric=domain) for card in known(g.cards)]))

    return Plan(
        kind="azure-nd-gb200-v6", tweak=change, imex=("channel0",),
        source="read: Azure's benchmark guide of ND GB200 v6 (Ubuntu 24.04, driver 570.133.20, Neoverse-V2, NCCL 2.25.1, torch 2.6); "
        "github.com/Azure/azhpc-images (nccl.conf of ndv6). Buses and the accelerated function: as of ND H100",
        story="CycleCloud nodes in one rack.", product="Microsoft Corporation Virtual Machine",
        asset_tag="7783-7084-3265-9085-8269-3286-77", gpu=dataclasses.replace(parts.GB200, name="NVIDIA GB200"), gpus=gpus,
        cards=[*cards, accelerated], interfaces=[nic("eth0", "10.0.8.{n}/20", speed_mbit=200_000, driver="hv_netvsc")],
        control="eth0", names="ndgb200-{n}", cpu="ARM Neoverse-V2", numa=(("0-63", 430), ("64-127", 430)),
        system="Ubuntu 24.04.2 LTS", kernel="6.8.0-1025-azure-nvidia", command_line="BOOT_IMAGE=/boot/vmlinuz ro console=ttyS0",
        iommu=ABSENT, iommus=(), driver="570.133.20", cuda="12.8", nccl="2.25.1", torch="2.6.0+cu126", open_driver=True,
        peer_modules=(), hypervisor=NOT_OF_THIS_CPU, governor=NO_GOVERNOR, clocksource="arch_sys_counter", counts=(1, 2, 4),
        mounts=("nfs4", "anf:/shared"), conf={"NCCL_IB_PCI_RELAXED_ORDERING": "1", "NCCL_IGNORE_CPU_AFFINITY": "1"},
        profiles={"azure": {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_MNNVL_ENABLE": "1", "NCCL_CUMEM_ENABLE": "1",
                            "NCCL_NVLS_ENABLE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "nemo": NEMO},
    )  # fmt: skip


def soperator() -> Plan:
    """Slurm whose nodes are pods on guests: eight functions of InfiniBand, the pod's own network, root."""
    gpus = [Slot(f"0000:{0x8D + 2 * i:02x}:00.0", f"pci0000:{0x8C + 2 * i:02x}", (), int(i > 3)) for i in range(8)]
    cards = [
        Card(f"mlx5_{i}", Slot(f"0000:{0x8d + 2 * i:02x}:01.0", f"pci0000:{0x8c + 2 * i:02x}", (), int(i > 3), link=False),
             model=CONNECTX7_VF, board="NVD0000000033", firmware="28.43.2026")
        for i in range(8)
    ]  # fmt: skip
    nebius = {
        "NCCL_TOPO_FILE": "/etc/nccl-topo-h200-v1.xml", "NCCL_IB_HCA": "mlx5", "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1",
        "SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING": "1", "NCCL_COLLNET_ENABLE": "0", "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    }  # fmt: skip
    return Plan(
        kind="nebius-soperator",
        source="read: skypilot examples/nebius and nebius-solutions-library/soperator/test as described there (Slurm in pods, mlx5, "
        "UCX_NET_DEVICES); docs.nebius.com on NCCL tests (a topology file a platform). Buses: general knowledge",
        story="Workers of soperator: srun starts ranks in the jail of a pod that owns the whole guest.",
        product="QEMU Standard PC (Q35 + ICH9, 2009)", gpu=parts.H200, gpus=gpus, cards=cards,
        interfaces=[nic("eth0", "10.8.3.{n}/32", kind="veth", mtu=8910, speed_mbit=UNTOLD_SPEED, driver="veth")],
        control="eth0", gateway="10.8.0.1", names="worker-{n}", pod=True, root=True, launcher="slurm",
        numa=(("0-63", 800), ("64-127", 800)), cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8468", kernel="6.11.0-1016-nvidia",
        system="Ubuntu 24.04.2 LTS", command_line="BOOT_IMAGE=/boot/vmlinuz ro console=ttyS0", iommu=ABSENT, iommus=(),
        hypervisor=True, governor=NO_GOVERNOR, clocksource="kvm-clock", driver="570.158.01", mounts=("virtiofs", "jail"),
        conf={"NCCL_TOPO_FILE": "/etc/nccl-topo-h200-v1.xml"},
        counts=(1, 2, 8), profiles={"nebius": nebius, "nemo": {**NEMO, **nebius}},
    )  # fmt: skip


def alibaba_erdma() -> Plan:
    """Two eRDMA interfaces, which are the host's two Ethernet functions too; GIDs of one kind, the address at index 1."""
    cards = [
        Card(f"erdma_{i}", virtual(f"0000:00:{0x05 + i:02x}.0", i, f"pci0000:{0x00 + i:02x}"), 200.0, "Ethernet", f"eth{i}",
             f"192.168.{8 * i}.{{n}}/21", mtu=8500, model="EHFA", board="ALIBABA", firmware="0.2.38", driver="virtio_net")
        for i in range(2)
    ]  # fmt: skip

    def change(node: Node) -> Node:
        rdma = known(node.rdma)
        devices = []
        for hca in known(rdma.devices):
            port = known(hca.ports)[0]
            gids = [replace(gid, index=place, type="RoCE v2") for place, gid in enumerate(known(port.gids)[1::2])]
            devices.append(
                replace(
                    hca,
                    driver="erdma",
                    board=ABSENT,
                    ports=[replace(port, gids=gids, counters=ABSENT, pkeys=[0xFFFF])],
                )
            )
        return replace(node, rdma=replace(rdma, devices=devices))

    pai = {
        "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_GID_INDEX": "1", "NCCL_IB_HCA": "erdma",
        "NCCL_IB_QPS_PER_CONNECTION": "8", "NCCL_MIN_NCHANNELS": "16", "NCCL_NET_PLUGIN": "none",
    }  # fmt: skip
    return Plan(
        kind="alibaba-erdma", tweak=change,
        source="read: alibabacloud.com PAI, eRDMA for distributed training (2 interfaces of ebmgn8v.48xlarge, the variables and values); "
        "kubernetes-sigs/dranet examples/alibaba_ack_examples (erdma_0:1/RoCE, OOB eth0). Buses: general knowledge",
        story="ebmgn8v with eight H20: RDMA over the VPC, from the same functions that carry TCP.",
        product="Alibaba Cloud Alibaba Cloud ECS", gpu=H20,
        gpus=[virtual(f"0000:{0x10 + i:02x}:00.0", int(i > 3), f"pci0000:{0x10 + i:02x}") for i in range(8)],
        cards=cards, interfaces=[DOCKER], control="eth0", gateway="192.168.7.253", names="iZ2zeg0kcgyxepyc5r63kg{n}",
        numa=(("0-47,96-143", 512), ("48-95,144-191", 512)), cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8469C",
        system="Alibaba Cloud Linux 3.2104 U11 (OpenAnolis Edition)", kernel="5.10.134-18.al8.x86_64", launcher="ssh",
        command_line="BOOT_IMAGE=(hd0,gpt3)/boot/vmlinuz ro crashkernel=0M-2G:0M", iommu=ABSENT, iommus=(), hypervisor=True,
        governor=NO_GOVERNOR, providers=("erdma",), driver="550.127.08", cuda="12.4", nccl="2.21.5", torch="2.5.1+cu124",
        root=True, counts=(1, 2, 4), mounts=("nfs4", "cpfs:/share"), profiles={"pai": pai},
        expected={"FAB009": "The guest's bus is flat and no topology file is published for it; without NCCL_NET_GDR_LEVEL=SYS "
                            "GPUDirect RDMA is off there, as public notes on such nodes say."},
    )  # fmt: skip


def gcp_g4() -> Plan:
    """Eight boards without NVLink in a guest whose switches are hidden, P2P as Google's host allows; two gVNICs."""
    board = dataclasses.replace(RTX_PRO, rests=False)
    return Plan(
        kind="gcp-g4",
        source="read: cloud.google.com/blog on G4's P2P fabric (PCIe only, P2P between all; NCCL_P2P_LEVEL=SYS) and "
        "docs.cloud.google.com gpu-network-bandwidth (400 Gb/s, no RDMA). Buses: general knowledge",
        story="g4-standard-384 for fine-tuning; TCP between nodes.", product="Google Google Compute Engine", gpu=board,
        gpus=[virtual(f"0000:{bus}:00.0", int(i > 3), f"pci0000:{0x01 + i:02x}")
              for i, bus in enumerate(("05", "06", "16", "17", "85", "86", "96", "97"))],
        cards=[], interfaces=[nic("enp0s3", "10.128.0.{n}/32", mtu=8896, speed_mbit=UNTOLD_SPEED, driver="gve"),
                              nic("enp192s20", "10.129.0.{n}/32", mtu=8896, speed_mbit=UNTOLD_SPEED, driver="gve"), DOCKER],
        control="enp0s3", gateway="10.128.0.1", names="g4-{n}", numa=(("0-95,192-287", 720), ("96-191,288-383", 720)),
        cpu="AuthenticAMD AMD EPYC 9B45", kernel="6.8.0-1040-gcp", system="Ubuntu 24.04.3 LTS",
        command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.0-1040-gcp root=PARTUUID=1 ro console=ttyS0", iommu=ABSENT, iommus=(),
        open_driver=True, peer_modules=(), hypervisor=True, governor=NO_GOVERNOR, driver="580.95.05", cuda="13.0",
        nccl="2.28.3", torch="2.9.0+cu130", counts=(1, 2), launcher="ssh", mounts=("fuse.gcsfuse", "bucket"),
        profiles={"google": {"NCCL_P2P_LEVEL": "SYS"}, "two-nics": {"NCCL_SOCKET_IFNAME": "enp0s3,enp192s20"}},
    )  # fmt: skip


def lambda_gh200() -> Plan:
    """One superchip in an Arm guest with virtio."""
    return Plan(
        kind="lambda-gh200",
        source="docs.lambda.ai on-demand 1x GH200 (64 vCPU, 432 GiB, Lambda Stack); nvidia-smi of such instances in public threads",
        story="The cheap Hopper by the hour.", product="QEMU KVM Virtual Machine",
        gpu=dataclasses.replace(parts.GH200, name="NVIDIA GH200 480GB"), gpus=[virtual("0000:dd:00.0", 0)], cards=[],
        interfaces=[nic("eno1", "192.168.3.{n}/24", speed_mbit=UNTOLD_SPEED, driver="virtio_net"), DOCKER], control="eno1",
        names="192-222-50-{n}", counts=(1,), launcher="local", cpu="ARM Neoverse-V2", numa=(("0-63", 432),),
        system="Ubuntu 22.04.5 LTS", kernel="6.8.0-1013-nvidia-64k", command_line="BOOT_IMAGE=/vmlinuz ro console=ttyAMA0",
        iommu=ABSENT, iommus=(), open_driver=True, peer_modules=(), hypervisor=NOT_OF_THIS_CPU, governor=NO_GOVERNOR,
        clocksource="arch_sys_counter", page=512 * 2**20, driver="570.148.08", mounts=("nfs4", "persistent:/lambda/nfs"),
        profiles={"megatron": MEGATRON},
    )  # fmt: skip


def power9() -> Plan:
    """Six V100 on NVLink with their processors; two ports of EDR that each socket reaches by a function of its own."""
    gpus = [direct(f"{d}:00", n, f"{d}:{b}:00.0", gts=8.0, width=4)
            for d, b, n in (("0004", "04", 0), ("0004", "05", 0), ("0004", "06", 0), ("0035", "03", 1), ("0035", "04", 1),
                            ("0035", "05", 1))]  # fmt: skip
    cards = [
        Card(f"mlx5_{i}", direct(f"{d}:00", n, f"{d}:01:00.{port}", gts=16.0, width=8), 100.0, netdev=f"ib{i}",
             net="10.41.0.{n}/20" if i == 0 else "", mtu=2044, model="MT4121", board="IBM0000000002", firmware="16.26.0292")
        for i, (d, port, n) in enumerate((("0003", "0", 0), ("0003", "1", 0), ("0033", "0", 1), ("0033", "1", 1)))
    ]  # fmt: skip

    def change(node: Node) -> Node:
        old = volta(node)
        fabric = known(old.fabric)
        numa = [replace(node, name=str(8 * place)) for place, node in enumerate(known(fabric.numa))]
        none = Unread("absent", "/sys/class/dmi/id/product_name: No such file or directory")
        return replace(old, fabric=replace(fabric, numa=numa, product=none, asset_tag=none))

    return Plan(
        kind="power9-v100", tweak=change,
        source="read: rapidsai/ucx-py#616 (nvidia-smi topo -m of Summit: NV2 between three, NODE to two ports, SYS to the others; cores "
        "0-83 and 88-171). Domains 0004, 0035, 0003, 0033: general knowledge of AC922",
        story="An AC922 that outlived Summit: NVLink 2 between a processor and its three GPUs.", product="", gpu=V100_16,
        gpus=gpus, cards=cards, interfaces=[wire("enP48p1s0f0", "10.40.0.{n}/20", 1, driver="tg3")], control="ib0",
        names="batch{n}", cpu="POWER9, altivec supported", numa=(("0-83", 256), ("88-171", 256)),
        system="Red Hat Enterprise Linux 8.2 (Ootpa)", kernel="4.18.0-193.46.1.el8_2.ppc64le",
        command_line="root=UUID=1 ro cgroup.memory=nokmem", iommu="DMA", iommus=(), hypervisor=NOT_OF_THIS_CPU,
        governor=Governor(names=["performance"], driver="powernv-cpufreq", preference=ABSENT), clocksource="timebase",
        driver="450.80.02", cuda="11.0", nccl="2.10.3", torch="1.12.1+cu111", peer_modules=("nv_peer_mem",), launcher="ssh",
        counts=(1, 2, 8), mounts=("gpfs", "alpine"), page=2 * 2**20,
        profiles={"site": {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_HCA": "mlx5"}},
    )  # fmt: skip


def jetson_thor() -> Plan:
    """A board with JetPack 7: NVML names the GPU and its bus, and little more."""
    plan = jetson()

    def change(node: Node) -> Node:
        before = plan.tweak(node)
        gpus = known(before.gpus)
        cards = [replace(gpu, pci="0000:01:00.0", persistence=False, utilization=0, processes=[], compute_mode="default")
                 for gpu in known(gpus.cards)]  # fmt: skip
        return replace(before, gpus=replace(gpus, cards=cards))

    return dataclasses.replace(
        plan, kind="jetson-thor", tweak=change, gpu=THOR, names="thor-{n}",
        source="read: vllm-project/vllm#34470 (NVIDIA Thor, 580.00, torch 2.10.0+cu130, 6.8.12-tegra), "
        "nvidia-cosmos/cosmos-reason1#61 and rbonghi/jetson_stats#698 (NVML names it; memory, clocks, power are not supported)",
        interfaces=[nic("mgbe0_0", "192.168.55.{n}/24", speed_mbit=10000, driver="nvethernet"),
                    nic("can0", kind="virtual", up=False, running=False, mtu=16), DOCKER],
        control="mgbe0_0", cpu="ARM Neoverse-V3AE", numa=(("0-13", 122),), kernel="6.8.12-tegra", system="Ubuntu 24.04.4 LTS",
        driver="580.00", cuda="13.0", nccl="2.28.3", torch="2.10.0+cu130",
    )  # fmt: skip


def lxc() -> Plan:
    """An unprivileged container of Proxmox: a user namespace, an address of the bridge by a veth, files passed in."""
    slots = [Slot(f"0000:{bus}:00.0", f"pci0000:{bus}", (f"0000:{root}:01.1",), 0, 16.0, 16)
             for bus, root in (("01", "00"), ("41", "40"))]  # fmt: skip

    def change(node: Node) -> Node:
        container, host = known(node.container), known(node.host)
        spaces = [
            Namespace(name=namespace.name, host=False, how=_OTHER) for namespace in known(container.namespaces)
        ]
        return replace(
            node,
            container=replace(
                container, runtimes=[RuntimeSign(name="lxc", source="container=lxc")], namespaces=spaces,
                capabilities=["CHOWN", "NET_ADMIN", "NET_BIND_SERVICE", "SYS_ADMIN"], seccomp="filter",
            ),
            host=replace(host, memlock=Limits(soft=8 * 2**20, hard=8 * 2**20), ipc_lock=False),
        )  # fmt: skip

    return Plan(
        kind="lxc-3090", tweak=change,
        source="pve.proxmox.com/wiki/Linux_Container and public threads on GPUs in LXC (lxc.mount.entry of /dev/nvidia*); "
        "as bridged-3090 without its bridge",
        story="A home server: one container a user, the router gives it an address of the house.",
        product="ASRockRack ROMED8-2T", gpu=dataclasses.replace(RTX3090, links=0, p2p="chipset not supported"), gpus=slots,
        cards=[], interfaces=[nic("eth0", "192.168.1.{n}/24", kind="veth", speed_mbit=UNTOLD_SPEED, driver="veth")],
        control="eth0", gateway="192.168.1.1", names="ml-{n}", counts=(1, 2), launcher="ssh",
        cpu="AuthenticAMD AMD EPYC 7302P 16-Core Processor", numa=(("0-31", 128),), system="Debian GNU/Linux 12 (bookworm)",
        kernel="6.8.12-9-pve", command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.12-9-pve root=ZFS=rpool ro quiet", iommu="identity",
        iommus=("ivhd0",), peer_modules=(), driver="550.163.01", cuda="12.4", nccl="2.21.5", torch="2.6.0+cu124",
        governor=Governor(names=["performance"], driver="acpi-cpufreq", preference=ABSENT), mounts=("zfs", "rpool/data"),
        profiles={"guide": {"NCCL_P2P_DISABLE": "1"}},
    )  # fmt: skip


def pyxis() -> Plan:
    """srun --container-image on a DGX: a user namespace in which one is root, the host's network and devices."""
    plan = dgx_h100()

    def change(node: Node) -> Node:
        before = plan.tweak(node)
        container, system = known(before.container), known(before.system)
        spaces = [Namespace(name=namespace.name, host=namespace.name != "user", how=_OTHER if namespace.name == "user" else namespace.how)
                  for namespace in known(container.namespaces)]  # fmt: skip
        return replace(
            before,
            container=replace(container, runtimes=[RuntimeSign(name="enroot", source="ENROOT_ROOTFS")], namespaces=spaces,
                              no_new_privileges=True, capabilities=[]),
            system=replace(system, uid=0),
        )  # fmt: skip

    hpcx = {
        "OPAL_PREFIX": "/opt/hpcx/ompi",
        "LD_LIBRARY_PATH": "/opt/hpcx/nccl_rdma_sharp_plugin/lib:/usr/local/cuda/lib64",
    }
    return dataclasses.replace(
        plan, kind="pyxis-h100", tweak=change, root=False, system="Ubuntu 24.04.2 LTS",
        plugins=("/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so",),
        source="github.com/NVIDIA/pyxis and enroot READMEs (root remapped in a user namespace); NGC images (/opt/hpcx)",
        profiles={"ngc": {**hpcx, "ENROOT_ROOTFS": "/run/enroot/user-1007/data/pyxis_48213"},
                  "ngc-nemo": {**NEMO, **hpcx, "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor"}},
    )  # fmt: skip


def talos() -> Plan:
    """Pods on an immutable host without /etc and shell: Cilium's netkit in place of veth, kernel and system of Talos."""
    plan = l40s_roce()
    given: dict[str, Any] = {
        "kind": "talos-l40s", "pod": True, "root": False, "system": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.12.43-talos",
        "cards": [], "providers": (), "peer_modules": (), "launcher": "ssh", "iommu": "DMA-FQ",
        "command_line": "BOOT_IMAGE=/A/vmlinuz talos.platform=metal console=tty0 init_on_alloc=1 slab_nomerge pti=on "
        "consoleblank=0 nvme_core.io_timeout=4294967295 printk.devkmsg=on selinux=1",
        "interfaces": [nic("eth0", "10.244.2.{n}/32", kind="veth", mtu=1500, speed_mbit=UNTOLD_SPEED, driver="netkit")],
        "control": "eth0", "gateway": "10.244.2.1", "names": "trainer-{n}", "counts": (1, 2), "mounts": ("ceph", "mon:/csi"),
        "source": "docs.siderolabs.com (kernel arguments, NVIDIA extensions); docs.cilium.io (netkit as datapath mode)",
        "story": "A small company's cluster: four L40S a node, TCP over 25 GbE.",
        "profiles": {"pod": {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "megatron": MEGATRON},
        "expected": {"FAB002": "P2P of four boards crosses an IOMMU that translates: NVIDIA asks for it to be off."},
    }  # fmt: skip
    return dataclasses.replace(plan, **given)


def egpu() -> Plan:
    """A laptop with a board in a box: four lanes of the third generation, four bridges above it."""
    path = ("0000:00:07.0", "0000:20:00.0", "0000:21:01.0", "0000:22:00.0")
    return Plan(
        kind="egpu-3090",
        source="egpu.io builds and public nvidia-smi -q of Thunderbolt boxes (link width 4x of 16x, Gen3)",
        story="The link is what Thunderbolt carries; the board could more.", product="LENOVO 21CBCTO1WW",
        gpu=dataclasses.replace(RTX3090, links=0, p2p="chipset not supported"),
        gpus=[Slot("0000:23:00.0", "pci0000:00", path, -1, 8.0, 4, 16)], cards=[],
        interfaces=[nic("wlp0s20f3", "192.168.0.{n}/24", speed_mbit=UNTOLD_SPEED, driver="iwlwifi"), DOCKER],
        control="wlp0s20f3", names="t14-{n}", counts=(1,), launcher="local", cpu="GenuineIntel 12th Gen Intel(R) Core(TM) i7-1260P",
        numa=(("0-15", 32),), system="Ubuntu 24.04.2 LTS", kernel="6.11.0-26-generic", iommu="DMA-FQ", iommus=("dmar0", "dmar1"),
        command_line="BOOT_IMAGE=/boot/vmlinuz-6.11.0-26-generic ro quiet splash", peer_modules=(), mounts=("ext4", "/dev/dm-0"),
        governor=Governor(names=["powersave"], driver="intel_pstate", preference="balance_performance"), driver="550.144.03",
        cuda="12.4", nccl="2.21.5", torch="2.6.0+cu124", profiles={"megatron": MEGATRON},
    )  # fmt: skip


KINDS: tuple[Callable[[], Plan], ...] = (
    jupiter, azure_nd_gb200, soperator, alibaba_erdma, gcp_g4, lambda_gh200, power9, jetson_thor, lxc, pyxis, talos, egpu,
)  # fmt: skip

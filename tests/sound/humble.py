"""Older and humbler machines: GPUs of before Hopper, networks without RDMA, desktops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclcheck.probes.facts import Governor, Node, RetiredPages, RuntimeSign, Unread, known, replace
from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.machine import OFED, Plan
from tests.sound.parts import Card, Layer, Model, Slot, direct, switch
from tests.sound.usual import DOCKER, MEGATRON, NO_GOVERNOR, UNTOLD_SPEED, wire

A100_80 = Model("NVIDIA A100-SXM4-80GB", 81920, 400.0, 1410, 1593, 4, 12, 25781, vbios="92.00.45.00.05")
A10G = Model("NVIDIA A10G", 23028, 300.0, 1710, 6251, 4, vbios="94.02.75.00.01", rests=True,
             p2p="chipset not supported")  # fmt: skip
V100 = Model("Tesla V100-SXM2-32GB", 32768, 300.0, 1530, 877, 3, 6, 25781, vbios="88.00.80.00.01")
RTX3090 = Model("NVIDIA GeForce RTX 3090", 24576, 350.0, 2100, 9751, 4, 4, 14062, vbios="94.02.42.00.B0",
    ecc=False,
                persistence=False, rests=True)  # fmt: skip
RTX4070 = Model("NVIDIA GeForce RTX 4070", 12282, 200.0, 3105, 10501, 4, vbios="95.04.31.00.B3", ecc=False,
                persistence=False, rests=True)  # fmt: skip


def dgx_a100() -> Plan:
    """Eight NUMA nodes; two GPUs and two compute ports below each of four switches; two storage cards."""
    groups = [
        switch("0000:00", 3, "0000:0c:00.0", "0000:12:00.0", "0000:07:00.0", "0000:0f:00.0", gts=16.0),
        switch("0000:40", 1, "0000:4b:00.0", "0000:54:00.0", "0000:47:00.0", "0000:4e:00.0", gts=16.0),
        switch("0000:80", 7, "0000:8d:00.0", "0000:94:00.0", "0000:87:00.0", "0000:90:00.0", gts=16.0),
        switch("0000:b0", 5, "0000:ba:00.0", "0000:cc:00.0", "0000:b7:00.0", "0000:bd:00.0", gts=16.0),
    ]
    hcas = [0, 1, 2, 3, 6, 7, 8, 9]
    slots = [slot for group in groups for slot in group[:2]]
    compute = [
        Card(f"mlx5_{hca}", slot, 200.0, netdev=f"ibp{int(slot.pci[5:7], 16)}s0",
        net=f"100.126.{rail + 1}.{{n}}/24",
             model="MT4123", board="MT_0000000223", firmware="20.38.1002")
        for rail, (hca, slot) in enumerate(zip(hcas, slots, strict=True))
    ]  # fmt: skip
    first, second = direct("0000:60", 2, "0000:61:00.0", 16.0), direct("0000:e0", 6, "0000:e1:00.0", 16.0)
    rows: list[tuple[int, Slot, Layer, str, str, int]] = [
        (4, first, "InfiniBand", "ibp97s0f0", "100.127.1.{n}/24", 2044),
        (5, first.at("0000:61:00.1"), "Ethernet", "enp97s0f1np1", "", 1500),
        (10, second, "InfiniBand", "ibp225s0f0", "100.127.2.{n}/24", 2044),
        (11, second.at("0000:e1:00.1"), "Ethernet", "enp225s0f1np1", "10.42.0.{n}/22", 1500),
    ]
    storage = [
        Card(f"mlx5_{hca}", slot, 200.0, layer, name, net, mtu=mtu, model="MT4123", board="MT_0000000224",
             firmware="20.38.1002", data=False)
        for hca, slot, layer, name, net, mtu in rows
    ]  # fmt: skip
    cards = sorted([*compute, *storage], key=lambda card: int(card.hca.partition("_")[2]))
    cpus = [f"{16 * i}-{16 * i + 15},{128 + 16 * i}-{143 + 16 * i}" for i in range(8)]
    return Plan(
        kind="dgx-a100",
        source="docs.nvidia.com/dgx/dgxa100-user-guide; github.com/NVIDIA/nccl/issues/1505 (topo -m and topology "
        "XML of "
        "a DGX A100: NUMA nodes 3, 1, 7, 5)",
        story="DGX OS 6 with Slurm; NPS4, so that only four of eight NUMA nodes have GPUs.",
        product="NVIDIA DGXA100 920-23687-2530-000", gpu=A100_80, gpus=[s for g in groups for s in g[2:]],
        cards=cards,
        interfaces=[DOCKER], control="enp225s0f1np1", names="dgxa100-{n}", counts=(1, 2, 8),
        cpu="AuthenticAMD AMD EPYC 7742 64-Core Processor", numa=tuple((cpu_list, 256) for cpu_list in cpus),
        kernel="5.15.0-1053-nvidia", command_line="BOOT_IMAGE=/boot/vmlinuz ro iommu=pt", iommus=("ivhd0",
        "ivhd1"),
        driver="535.183.06", cuda="12.2", nccl="2.21.5", torch="2.5.1+cu121", root=True,
        governor=Governor(names=["performance"], driver="acpi-cpufreq", preference=ABSENT),
        profiles={
            "nemo": {"NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9",
            "NCCL_IB_TIMEOUT": "22",
                     "NCCL_SOCKET_IFNAME": "enp225s0f1np1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            "megatron": MEGATRON,
        },
    )  # fmt: skip


def aws_p4d() -> Plan:
    """Four EFA devices, two GPUs beside each."""
    groups = [
        switch(
            f"0000:{bus}0", int(place > 1), f"0000:{bus}0:1b.0", f"0000:{bus}0:1c.0", f"0000:{bus}0:1d.0", gts=16.0
        )
        for place, bus in enumerate(("1", "2", "9", "a"))
    ]
    plugin = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"
    return Plan(
        kind="aws-p4d",
        source="github.com/aws/aws-ofi-nccl/issues/64 (lspci of a p4d: 10:1b.0, 10:1c.0, 10:1d.0, 20:1b.0, ...); "
        "topology/p4d-24xl-topo.xml; docs.aws.amazon.com efa-start-nccl.html",
        story="p4d.24xlarge with the Deep Learning AMI; four interfaces of one subnet, one on each card.",
        product="Amazon EC2 p4d.24xlarge", asset_tag="Amazon EC2", gpu=parts.A100_SXM,
        gpus=[slot for group in groups for slot in group[1:]],
        cards=[Card(f"rdmap{int(g[0].pci[5:7], 16)}s27", g[0], 100.0, "Unspecified",
        driver="efa") for g in groups],
        interfaces=[
            nic(name, f"10.2.{place}.{{n}}/16", mtu=9001, speed_mbit=UNTOLD_SPEED, driver="ena")
            for place, name in enumerate(("ens32", "ens65", "ens130", "ens163"))
        ],
        control="ens32", names="ip-10-2-0-{n}", counts=(1, 2, 4),
        cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8275CL",
        numa=(("0-23,48-71", 560), ("24-47,72-95", 560)), kernel="6.8.0-1021-aws", iommu=ABSENT, iommus=(),
        command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.0-1021-aws ro console=ttyS0", open_driver=True, peer_modules=(),
        providers=("efa",), plugins=(plugin,), product_of_plugin="aws-ofi-nccl 1.13.2",
        symbols_of_plugin=("net v6", "net v7", "net v8", "net v9"), hypervisor=True,
        governor=NO_GOVERNOR, huge_pages=5128, mounts=("lustre", "10.2.9.9@tcp:/fsx"),
        profiles={"aws": {"FI_PROVIDER": "efa", "NCCL_SOCKET_IFNAME": "ens32", "NCCL_PROTO": "simple",
                          "FI_EFA_USE_DEVICE_RDMA": "1"}},
    )  # fmt: skip


def aws_g5() -> Plan:
    """Four A10G on the flat bus of a guest without RDMA: TCP over one interface goes to other nodes."""
    return Plan(
        kind="aws-g5",
        source="docs.aws.amazon.com accelerated computing instances (g5.12xlarge: 4 A10G, 40 Gb/s); "
        "github.com/aws/aws-ofi-nccl/pull/873 (g5.48xlarge: bus 00:1b.0 to 00:1e.0, a NUMA node of -1)",
        story="Nodes that many people fine-tune on. A10G in these hosts cannot read each other.",
        product="Amazon EC2 g5.12xlarge", asset_tag="Amazon EC2", gpu=A10G,
        gpus=[Slot(f"0000:00:{slot}.0", "pci0000:00", (), -1, 16.0, 16, link=False) for slot in ("1b", "1c",
        "1d", "1e")],
        cards=[], interfaces=[nic("ens5", "172.31.8.{n}/20", mtu=9001, speed_mbit=UNTOLD_SPEED, driver="ena"),
        DOCKER],
        control="ens5", names="ip-172-31-8-{n}", counts=(1, 2, 4), launcher="ssh",
        cpu="AuthenticAMD AMD EPYC 7R32", numa=(("0-47", 186),), kernel="6.8.0-1021-aws",
        command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.0-1021-aws ro console=ttyS0", iommu=ABSENT, iommus=(),
        open_driver=True, peer_modules=(), hypervisor=True, governor=NO_GOVERNOR, mounts=("nfs4", "fs-1:/"),
        profiles={"accelerate": {"NCCL_SOCKET_IFNAME": "ens5"}, "deepspeed": MEGATRON},
    )  # fmt: skip


def dgx_1_v100() -> Plan:
    """Volta: six NVLinks in a cube, PCIe of the third generation, retired pages in place of remapped rows."""
    groups = [
        switch("0000:03", 0, "0000:05:00.0", "0000:06:00.0", "0000:07:00.0", gts=8.0),
        switch("0000:08", 0, "0000:0c:00.0", "0000:0a:00.0", "0000:0b:00.0", gts=8.0),
        switch("0000:83", 1, "0000:84:00.0", "0000:85:00.0", "0000:86:00.0", gts=8.0),
        switch("0000:87", 1, "0000:8b:00.0", "0000:89:00.0", "0000:8a:00.0", gts=8.0),
    ]
    cards = [
        Card(f"mlx5_{place}", group[0], 100.0, netdev=f"ib{place}", net=f"10.9.{place}.{{n}}/24", mtu=2044,
             model="MT4115", board="MT_2180110032", firmware="12.28.2006")
        for place, group in enumerate(groups)
    ]  # fmt: skip
    return Plan(
        kind="dgx-1-v100", tweak=volta,
        source="docs.nvidia.com/dgx/dgx1-user-guide; recorded V100 sysinfo of superbench-results (nvidia-smi -q "
        "-x, topo "
        "-m, ibstat)",
        story="An old cluster that still teaches. CUDA 12.6 is the last for Volta; four EDR cards.",
        product="NVIDIA DGX-1 with V100-32", gpu=V100, gpus=[s for g in groups for s in g[1:]], cards=cards,
        interfaces=[wire("enp1s0f0", "10.8.0.{n}/24", 10, driver="ixgbe")], control="enp1s0f0", names="volta{n}",
        cpu="GenuineIntel Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", numa=(("0-19,40-59", 256), ("20-39,60-79",
        256)),
        kernel="5.15.0-140-generic", command_line="BOOT_IMAGE=/boot/vmlinuz ro", iommu=ABSENT, iommus=(),
        driver="550.163.01", cuda="12.4", nccl="2.21.5", torch="2.5.1+cu124", counts=(1, 2, 4),
        governor=Governor(names=["performance"], driver="intel_cpufreq", preference=ABSENT), mounts=("nfs4",
        "nas:/home"),
        profiles={"site": {"NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "enp1s0f0"}},
    )  # fmt: skip


def volta(node: Node) -> Node:
    """NVML of before Ampere: pages are retired, no row is remapped, MIG does not exist."""
    gpus = known(node.gpus)
    none = Unread("absent", "Not Supported")
    pages = RetiredPages(single_bit=0, double_bit=0, pending=False)
    absent = dict.fromkeys(("remapped", "spare_rows", "mig", "margin", "fabric"), none)
    changes: dict[str, Any] = {**absent, "retired": pages, "slowdown_at": 87}
    return replace(node, gpus=replace(gpus, cards=[replace(card, **changes) for card in known(gpus.cards)]))


def bridged_3090() -> Plan:
    """Two GeForce boards with an NVLink bridge, in a container of Docker with the host's network and memory."""
    slots = [Slot(f"0000:{bus}:00.0", "pci0000:00", (f"0000:00:{port}",), 0, 16.0, 8, 16)
             for bus, port in (("01", "01.0"), ("02", "01.1"))]  # fmt: skip
    return Plan(
        kind="bridged-3090", tweak=_in_docker,
        source="public threads on RTX 3090 with a bridge (nvidia-smi topo -m: NV4); docs.docker.com, --gpus all "
        "--ipc=host "
        "--network=host",
        story="A laboratory's workstation; Ubuntu on a desktop board, Tailscale and libvirt beside.",
        product="ASRock X570 Taichi", gpu=RTX3090, gpus=slots, cards=[],
        interfaces=[
            nic("enp4s0", "192.168.178.{n}/24", speed_mbit=1000, driver="igb"), DOCKER,
            nic("tailscale0", "100.101.102.{n}/32", kind="tunnel", mtu=1280, speed_mbit=ABSENT, driver=ABSENT),
            nic("virbr0", "192.168.122.1/24", kind="bridge", running=False, driver=ABSENT),
        ],
        control="enp4s0", gateway="192.168.178.1", names="lab{n}", counts=(1,), launcher="local",
        cpu="AuthenticAMD AMD Ryzen 9 5950X 16-Core Processor", numa=(("0-31", 128),), kernel="6.8.0-57-generic",
        command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.0-57-generic ro quiet", iommu="DMA-FQ", iommus=("ivhd0",),
        peer_modules=(), mounts=("ext4", "/dev/nvme0n1p2"),
        governor=Governor(names=["schedutil"], driver="acpi-cpufreq", preference=ABSENT),
        profiles={"megatron": MEGATRON},
    )  # fmt: skip


def _in_docker(node: Node) -> Node:
    return replace(
        node, container=replace(known(node.container), runtimes=[RuntimeSign(name="docker", source="/.dockerenv")])
    )


def wsl_desktop() -> Plan:
    """WSL 2: a guest of Windows with one GPU, of which NVML tells less."""
    return Plan(
        kind="wsl-desktop", tweak=_of_windows,
        source="docs.nvidia.com/cuda/wsl-user-guide (NVML: what is not supported; /dev/dxg); "
        "learn.microsoft.com/windows/wsl",
        story="A student's laptop or desktop under Windows 11 with Ubuntu in WSL 2.",
        product="", gpu=RTX4070, gpus=[Slot("0000:01:00.0", "pci0000:01", (), -1, link=False)], cards=[],
        interfaces=[nic("eth0", "172.25.112.{n}/20", speed_mbit=10000, driver="hv_netvsc"), DOCKER],
        control="eth0",
        names="DESKTOP-{n}", counts=(1,), launcher="local",
        cpu="AuthenticAMD AMD Ryzen 7 7800X3D 8-Core Processor",
        numa=(("0-15", 31),), kernel="5.15.167.4-microsoft-standard-WSL2", system="Ubuntu 24.04.2 LTS",
        command_line="initrd=\\initrd.img WSL_ROOT_INIT=1 panic=-1", iommu=ABSENT, iommus=(), peer_modules=(),
        hypervisor=True, governor=NO_GOVERNOR, driver="572.83", mounts=("ext4", "/dev/sdc"),
        profiles={"megatron": MEGATRON},
    )  # fmt: skip


def _of_windows(node: Node) -> Node:
    """No device files but /dev/dxg, no PCI functions of NVIDIA, no processes."""
    gpus, fabric = known(node.gpus), known(node.fabric)
    none = Unread("absent", "Not Supported")
    cards = [replace(card, processes=none, numa=none, pcie_replays=none, memory_used=1100 * 2**20)
             for card in known(gpus.cards)]  # fmt: skip
    no_dmi = Unread("absent", "/sys/class/dmi/id/product_name: No such file or directory")
    return replace(
        node, gpus=replace(gpus, cards=cards, pci=[], devices=[]),
        fabric=replace(fabric, pci=[], product=no_dmi, asset_tag=no_dmi),
        container=replace(known(node.container), gpu_files=[]),
    )  # fmt: skip


def two_over_ethernet() -> Plan:
    """Workstations of one group, one GPU each, joined over 10 Gb/s."""
    slot = Slot("0000:01:00.0", "pci0000:00", ("0000:00:01.0",), 0, 16.0, 16)
    return Plan(
        kind="over-ethernet",
        source="public threads on data parallel training over 10GbE with one GPU a node; nvidia-smi of RTX 4090",
        story="`ncclcheck --hosts`; no RDMA, no NVLink: sockets carry all, and that is what they have.",
        product="Micro-Star International Co., Ltd. MS-7E12", gpu=parts.RTX4090, gpus=[slot], cards=[],
        interfaces=[wire("enp5s0", "192.168.50.{n}/24", 10, 9000, "atlantic"), DOCKER],
        control="enp5s0", gateway="192.168.50.1", names="ws{n}", counts=(1, 2, 4), launcher="ssh",
        cpu="AuthenticAMD AMD Ryzen 9 7950X 16-Core Processor", numa=(("0-31", 64),), kernel="6.8.0-57-generic",
        command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.0-57-generic ro quiet splash", iommu="DMA-FQ",
        iommus=("ivhd0",),
        peer_modules=(), mounts=("nfs4", "nas:/home"),
        governor=Governor(names=["powersave"], driver="amd-pstate-epp", preference="balance_performance"),
        profiles={"guide": {"NCCL_SOCKET_IFNAME": "enp5s0", "NCCL_IB_DISABLE": "1",
        "GLOO_SOCKET_IFNAME": "enp5s0"}},
    )  # fmt: skip


def a100_bonded_roce() -> Plan:
    """Eight GPUs, four dual-port cards whose ports are bonded: one RDMA device each, in a /31 of its own."""
    pairs = [
        switch(
            f"0000:{root}",
            int(place > 1),
            f"0000:{card}:00.0",
            f"0000:{first}:00.0",
            f"0000:{second}:00.0",
            gts=16.0,
        )
        for place, (root, card, first, second) in enumerate(
            (
                ("10", "1a", "18", "19"),
                ("40", "4a", "48", "49"),
                ("90", "9a", "98", "99"),
                ("c0", "ca", "c8", "c9"),
            )
        )
    ]
    cards = [
        Card(f"mlx5_bond_{place}", pair[0], 200.0, "Ethernet", f"bond{place + 1}", f"10.70.{place + 1}.{{n}}/24",
             mtu=9000, model="MT4125", board="MT_0000000436", firmware="22.36.1010",
             traffic_class="Global tclass=160")
        for place, pair in enumerate(pairs)
    ]  # fmt: skip
    return Plan(
        kind="a100-bonded-roce", tweak=_bonded,
        source="NVIDIA/nccl#1015 and NVIDIA/nccl-tests#191 (mlx5_bond devices of A100 clouds); Alibaba and "
        "Tencent GPU "
        "cluster guides (dual-port ConnectX-6 Dx, bond4, NCCL_IB_TC=160, NCCL_IB_GID_INDEX=3)",
        story="The usual RoCE of Chinese clouds: two ports of a card in a bond of LACP to two leaf switches.",
        product="Inspur NF5488A5", gpu=A100_80, gpus=[s for p in pairs for s in p[1:]], cards=cards,
        interfaces=[nic("bond0", "10.60.0.{n}/24", kind="bond", speed_mbit=50_000, members=["eth0", "eth1"],
        driver=ABSENT)],
        control="bond0", names="a100-{n}", counts=(1, 2, 8), cpu="AuthenticAMD AMD EPYC 7543 32-Core Processor",
        numa=(("0-31,64-95", 512), ("32-63,96-127", 512)), system="CentOS Linux 7 (Core)",
        kernel="5.4.119-19.0009.28", command_line="BOOT_IMAGE=/boot/vmlinuz ro iommu=pt", driver="535.161.08",
        cuda="12.2",
        nccl="2.21.5", torch="2.4.1+cu121", peer_modules=OFED, launcher="ssh", root=True,
        governor=Governor(names=["performance"], driver="acpi-cpufreq", preference=ABSENT),
        mounts=("fuse.juicefs", "JuiceFS"),
        profiles={
            "site": {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "160", "NCCL_IB_HCA": "mlx5_bond",
            "NCCL_IB_TIMEOUT": "22",
                     "NCCL_SOCKET_IFNAME": "bond0", "NCCL_IB_QPS_PER_CONNECTION": "8", "NCCL_IB_SL": "5"},
            "megatron": {**MEGATRON, "NCCL_IB_GID_INDEX": "3", "NCCL_SOCKET_IFNAME": "bond0"},
        },
    )  # fmt: skip


def _bonded(node: Node) -> Node:
    """The interfaces of the cards are bonds of two ports each."""
    network = known(node.network)
    interfaces = [
        replace(
            interface,
            kind="bond",
            driver=ABSENT,
            members=[f"eth{2 * int(interface.name[4:])}", f"eth{2 * int(interface.name[4:]) + 1}"],
        )
        if interface.name.startswith("bond") and interface.name != "bond0"
        else interface
        for interface in known(network.interfaces)
    ]
    return replace(node, network=replace(network, interfaces=interfaces))


KINDS: tuple[Callable[[], Plan], ...] = (
    dgx_a100, aws_p4d, aws_g5, dgx_1_v100, bridged_3090, wsl_desktop, two_over_ethernet, a100_bonded_roce,
)  # fmt: skip

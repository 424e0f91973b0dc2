"""GPUs by the hour: containers of marketplaces, virtual machines, parts of a host.

`source` begins with "read:" where its documents were opened for the names and numbers that they tell; the rest
is what such a node has. Without that word it says where to look, and names and numbers may differ from a real one.
"""

# ruff: noqa: E501, PLC0415

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ncclcheck.probes.facts import Governor, Limits, Node, RuntimeSign, Space, Unread, known, replace
from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.humble import A100_80, V100
from tests.sound.machine import GIB, Plan
from tests.sound.parts import Card, Model, Slot, virtual
from tests.sound.usual import DOCKER, MEGATRON, NEMO, NO_GOVERNOR, UNTOLD_SPEED

NOT_SUPPORTED = Unread("absent", "Not Supported")
A100_NC = Model("NVIDIA A100 80GB PCIe", 81920, 300.0, 1410, 1512, 4, 12, 25781, vbios="92.00.A0.00.05")
H100_NVL = Model("NVIDIA H100 NVL", 95830, 400.0, 1785, 2619, 5, 12, 26562, vbios="96.00.99.00.01")
L4 = Model(
    "NVIDIA L4", 23034, 72.0, 2040, 6251, 4, vbios="95.04.29.00.06", rests=True, p2p="chipset not supported"
)
RTX5090 = Model(
    "NVIDIA GeForce RTX 5090",
    32607,
    575.0,
    3090,
    14001,
    5,
    vbios="98.02.2E.00.AF",
    ecc=False,
    persistence=False,
    p2p="chipset not supported",
    rests=True,
)
A40_VGPU = Model(
    "NVIDIA A40-48Q", 49152, 300.0, 1740, 7251, 4, vbios="00.00.00.00.00", rests=False, p2p="not supported"
)
TITAN_X = Model(
    "NVIDIA GeForce GTX TITAN X",
    12288,
    250.0,
    1392,
    3505,
    3,
    vbios="84.00.45.00.90",
    ecc=False,
    persistence=False,
    rests=True,
)


def _in(runtime: Literal["docker", "podman"], source: str, memlock: int = 8 * 2**20) -> Callable[[Node], Node]:
    """In a container of its own network, with Docker's limits; it has memory of its control group."""

    def change(node: Node) -> Node:
        host, container = known(node.host), known(node.container)
        own = "its number is not that of the machine's own one"
        namespaces = [
            replace(namespace, host=namespace.name == "user", how=own) for namespace in known(container.namespaces)
        ]
        return replace(
            node,
            host=replace(
                host,
                memlock=Limits(soft=memlock, hard=memlock),
                ipc_lock=False,
                memory_limit=int(known(host.memory) * 0.9),
                usable_cores=float(int(known(host.cores) * 0.8)),
                nofile=Limits(soft=1048576, hard=1048576),
                shm=Space(size=known(host.memory) // 4, free=known(host.memory) // 4, path="/dev/shm"),
                tmp=Space(size=80 * GIB, free=60 * GIB, path="/tmp"),
            ),
            container=replace(
                container,
                runtimes=[RuntimeSign(name=runtime, source=source)],
                namespaces=namespaces,
                capabilities=["CHOWN", "NET_BIND_SERVICE"],
                seccomp="filter",
            ),
        )

    return change


def runpod() -> Plan:
    """A container with four boards of a host's eight, overlay storage and a name that is a number."""
    pci = ["0000:01:00.0", "0000:25:00.0", "0000:81:00.0", "0000:a1:00.0"]
    return Plan(
        kind="runpod-4090",
        tweak=_in("docker", "/.dockerenv"),
        source="read: axolotl-ai-cloud/axolotl#3132 (nvidia-smi topo -p2p n of RunPod: NS between all GPUs), "
        "NVIDIA/nccl-tests#307 (8 RTX 4090: no P2P, SYS between the halves)",
        story="Root in a container of somebody's EPYC board. sysfs shows the host's devices, NVML the four boards.",
        product="Gigabyte MZ72-HB0-00",
        gpu=parts.RTX4090,
        gpus=[
            Slot(
                address,
                f"pci{address[:7]}",
                (f"{address[:8]}00.0".replace(":00.0", ":01.1"),),
                int(k > 1),
                16.0,
                16,
            )
            for k, address in enumerate(pci)
        ],
        cards=[],
        interfaces=[nic("eth0", "172.18.0.{n}/16", kind="veth", speed_mbit=UNTOLD_SPEED, driver="veth")],
        control="eth0",
        gateway="172.18.0.1",
        names="b2f1c0a9d3{n}",
        counts=(1,),
        launcher="local",
        root=False,
        cpu="AuthenticAMD AMD EPYC 7713 64-Core Processor",
        numa=(("0-63,128-191", 504), ("64-127,192-255", 504)),
        kernel="6.8.0-57-generic",
        command_line="BOOT_IMAGE=/vmlinuz ro amd_iommu=on",
        iommu="DMA-FQ",
        iommus=("ivhd0", "ivhd1"),
        peer_modules=(),
        driver="550.127.05",
        cuda="12.4",
        nccl="2.21.5",
        torch="2.6.0+cu124",
        mounts=("overlay", "overlay"),
        governor=Governor(names=["schedutil"], driver="acpi-cpufreq", preference=ABSENT),
        profiles={
            "guide": {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"},
            "accelerate": {"RUNPOD_POD_ID": "x"},
        },
    )


def vast() -> Plan:
    """One board on a riser of eight lanes."""
    return Plan(
        kind="vast-5090",
        tweak=_in("docker", "/.dockerenv", 65536),
        source="vast.ai/docs (Docker without privileges, PCIe lanes listed per offer)",
        story="A desktop board: the offer says PCIe 4.0, 8x, and that is what it has.",
        product="ASUS System Product Name",
        gpu=RTX5090,
        gpus=[Slot("0000:01:00.0", "pci0000:00", ("0000:00:01.0",), 0, 32.0, 8, 16)],
        cards=[],
        interfaces=[nic("eth0", "172.17.0.{n}/16", kind="veth", speed_mbit=UNTOLD_SPEED, driver="veth")],
        control="eth0",
        gateway="172.17.0.1",
        names="C.1836{n}",
        counts=(1,),
        launcher="local",
        cpu="GenuineIntel Intel(R) Core(TM) Ultra 9 285K",
        numa=(("0-23", 94),),
        kernel="6.11.0-29-generic",
        iommu="DMA-FQ",
        iommus=("dmar0",),
        open_driver=True,
        peer_modules=(),
        driver="575.57.08",
        cuda="12.9",
        torch="2.7.1+cu128",
        mounts=("overlay", "overlay"),
        command_line="BOOT_IMAGE=/vmlinuz ro quiet splash",
        governor=Governor(names=["powersave"], driver="intel_pstate", preference="balance_performance"),
    )


def lambda_a100() -> Plan:
    """A guest with eight GPUs whose NVSwitches the host manages, and one virtio card."""
    return Plan(
        kind="lambda-a100",
        tweak=lambda node: replace(node, gpus=replace(known(node.gpus), services=[])),
        source="docs.lambda.ai on-demand (gpu_8x_a100), public nvidia-smi topo -m of them (NV12, flat bus 07 to 0e)",
        story="On-demand instances; two of them talk by TCP over the provider's network.",
        product="QEMU Standard PC (Q35 + ICH9, 2009)",
        gpu=A100_80,
        gpus=[virtual(f"0000:{7 + k:02x}:00.0", -1, "pci0000:00") for k in range(8)],
        cards=[],
        interfaces=[
            nic("eno1", "10.19.60.{n}/20", mtu=1500, speed_mbit=UNTOLD_SPEED, driver="virtio_net"),
            DOCKER,
        ],
        control="eno1",
        names="104-171-203-{n}",
        numa=(("0-239", 1772),),
        counts=(1, 2),
        launcher="ssh",
        cpu="AuthenticAMD AMD EPYC 7J13 64-Core Processor",
        kernel="6.8.0-1013-nvidia",
        iommu=ABSENT,
        iommus=(),
        command_line="BOOT_IMAGE=/vmlinuz ro console=ttyS0",
        hypervisor=True,
        governor=NO_GOVERNOR,
        clocksource="kvm-clock",
        peer_modules=(),
        open_driver=True,
        driver="570.148.08",
        torch="2.7.0+cu128",
        mounts=("virtiofs", "lambda"),
        profiles={"guide": {"NCCL_SOCKET_IFNAME": "eno1", "NCCL_P2P_LEVEL": "NVL"}, "nemo": NEMO},
    )


def paperspace() -> Plan:
    """One V100 of the cloud's own VMs."""
    return Plan(
        kind="paperspace-v100",
        source="docs.digitalocean.com/products/paperspace/machines (V100-32G, Xen then KVM)",
        story="A student's machine.",
        product="QEMU Standard PC (i440FX + PIIX, 1996)",
        gpu=V100,
        tweak=_volta_guest,
        gpus=[virtual("0000:00:05.0", -1, "pci0000:00")],
        cards=[],
        interfaces=[nic("ens3", "10.64.12.{n}/24", mtu=1450, speed_mbit=UNTOLD_SPEED, driver="virtio_net")],
        control="ens3",
        names="psz{n}",
        counts=(1,),
        launcher="local",
        numa=(("0-7", 30),),
        kernel="5.4.0-216-generic",
        system="Ubuntu 20.04.6 LTS",
        command_line="BOOT_IMAGE=/vmlinuz ro",
        iommu=ABSENT,
        iommus=(),
        hypervisor=True,
        cpu="GenuineIntel Intel(R) Xeon(R) Gold 6226R CPU @ 2.90GHz",
        governor=NO_GOVERNOR,
        clocksource="kvm-clock",
        peer_modules=(),
        driver="535.183.01",
        cuda="12.2",
        nccl="2.19.3",
        torch="2.2.2+cu121",
        mounts=("ext4", "/dev/vda1"),
    )


def _volta_guest(node: Node) -> Node:
    from tests.sound.humble import volta

    node = volta(node)
    gpus = known(node.gpus)
    none = Unread("absent", "Not Supported")
    return replace(
        node,
        gpus=replace(gpus, cards=[replace(gpu, nvlinks=none, persistence=False) for gpu in known(gpus.cards)]),
    )


def azure_nc_h100() -> Plan:
    """Two boards with an NVLink bridge; the network card is Azure's own, an RDMA device that NCCL cannot use."""
    gpus = [virtual("0001:00:00.0", 0), virtual("0002:00:00.0", 1)]
    mana = Card(
        "mana_0",
        virtual("7870:00:00.0", 0),
        200.0,
        "Ethernet",
        "enP30832s1",
        mtu=1500,
        model="MANA",
        board="",
        firmware="0.0.0",
        driver="mana",
        data=False,
    )
    return Plan(
        kind="azure-nc-h100",
        tweak=_mana,
        expected={"RDM013": "Without NCCL_IB_DISABLE=1 NCCL takes the card that serves eth0."},
        source="read: microsoft/azurelinux#17960 (the RDMA device mana_0 and its provider mana of rdma-core). "
        "NC80adis has two H100 NVL: general knowledge",
        story="CycleCloud nodes for inference and small training; TCP alone between them.",
        product="Microsoft Corporation Virtual Machine",
        asset_tag="7783-7084-3265-9085-8269-3286-77",
        gpu=H100_NVL,
        gpus=gpus,
        cards=[mana],
        interfaces=[nic("eth0", "10.9.0.{n}/24", speed_mbit=200_000, driver="hv_netvsc")],
        control="eth0",
        names="nch100-{n}",
        counts=(1, 2),
        numa=(("0-39", 320), ("40-79", 320)),
        cpu="AuthenticAMD AMD EPYC 9V84 96-Core Processor",
        kernel="6.8.0-1030-azure",
        iommu=ABSENT,
        iommus=(),
        command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.0-1030-azure root=UUID=1 ro",
        hypervisor=True,
        governor=NO_GOVERNOR,
        clocksource="hyperv_clocksource_tsc_page",
        open_driver=True,
        peer_modules=(),
        providers=("mlx5", "mana"),
        mounts=("nfs4", "anf:/shared"),
        driver="570.172.08",
        torch="2.8.0+cu128",
        profiles={"guide": {"NCCL_SOCKET_IFNAME": "eth0"}, "megatron": MEGATRON},
    )


def _mana(node: Node) -> Node:
    """mana_ib fills in no board, no firmware and no GIDs."""
    rdma = known(node.rdma)
    none = Unread("absent", "No such file or directory")
    devices = [
        replace(hca, model=none, board=none, firmware=none, ports=[replace(p, gids=[]) for p in known(hca.ports)])
        for hca in known(rdma.devices)
    ]
    return replace(node, rdma=replace(rdma, devices=devices))


def azure_nc_a100() -> Plan:
    """Four boards, bridged in pairs, with Azure's topology and graph files."""
    gpus = [virtual(f"{k + 1:04x}:00:00.0", k) for k in range(4)]
    an0 = Card(
        "mlx5_0",
        virtual("3a1f:00:02.0", 0),
        40.0,
        "Ethernet",
        "enP14879s1",
        mtu=1500,
        model="MT4122",
        board="MSF0010110035",
        firmware="16.30.5026",
        data=False,
    )
    profile = {
        "NCCL_TOPO_FILE": "/opt/microsoft/ncv4/topo.xml",
        "NCCL_GRAPH_FILE": "/opt/microsoft/ncv4/graph.xml",
    }
    return Plan(
        kind="azure-nc-a100",
        expected={"RDM013": "Without NCCL_IB_DISABLE=1 NCCL takes the card that serves eth0."},
        source="read: github.com/Azure/azhpc-images customizations/ncv4.sh (/etc/nccl.conf has these two variables and "
        "no other). NC A100 v4 itself: general knowledge",
        story="Accelerated networking shows a ConnectX-5 function that belongs to eth0.",
        product="Microsoft Corporation Virtual Machine",
        asset_tag="7783-7084-3265-9085-8269-3286-77",
        gpu=A100_NC,
        gpus=gpus,
        cards=[an0],
        interfaces=[nic("eth0", "10.8.0.{n}/24", speed_mbit=80_000, driver="hv_netvsc")],
        control="eth0",
        names="nca100-{n}",
        counts=(1, 2),
        numa=tuple((f"{24 * k}-{24 * k + 23}", 220) for k in range(4)),
        cpu="AuthenticAMD AMD EPYC 7V13 64-Core Processor",
        kernel="5.15.0-1089-azure",
        iommu=ABSENT,
        iommus=(),
        command_line="BOOT_IMAGE=/boot/vmlinuz-5.15.0-1089-azure root=UUID=1 ro",
        hypervisor=True,
        governor=NO_GOVERNOR,
        clocksource="hyperv_clocksource_tsc_page",
        peer_modules=OFED_NONE,
        mounts=("nfs4", "anf:/shared"),
        driver="550.144.03",
        cuda="12.4",
        nccl="2.21.5",
        torch="2.6.0+cu124",
        profiles={"azure": profile},
    )


OFED_NONE: tuple[str, ...] = ()


def aws_g6e() -> Plan:
    """Eight L40S, four EFA of 100 Gb/s without GPUDirect on read."""
    slots = [
        Slot(f"0000:{bus}:00.0", f"pci0000:{bus[0]}0", (f"0000:{bus[0]}0:01.0",), int(k > 3), 16.0, 16, link=False)
        for k, bus in enumerate(("31", "33", "35", "37", "a1", "a3", "a5", "a7"))
    ]
    efas = [
        Card(
            f"rdmap{int(bus, 16)}s0",
            Slot(f"0000:{bus}:00.0", f"pci0000:{bus[0]}0", (f"0000:{bus[0]}0:02.0",), int(k > 1), link=False),
            100.0,
            "Unspecified",
            driver="efa",
        )
        for k, bus in enumerate(("32", "36", "a2", "a6"))
    ]
    plugin = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"
    return Plan(
        kind="aws-g6e-48xlarge",
        source="docs.aws.amazon.com efa.html (g6e.48xlarge: four network cards), instance-types g6e",
        story="ParallelCluster; four ENA interfaces in one subnet.",
        product="Amazon EC2 g6e.48xlarge",
        asset_tag="Amazon EC2",
        gpu=parts.L40S,
        gpus=slots,
        cards=efas,
        interfaces=[
            nic(f"enp{k}s0", f"10.4.{k}.{{n}}/16", mtu=9001, speed_mbit=UNTOLD_SPEED, driver="ena")
            for k in (39, 40)
        ],
        control="enp39s0",
        names="g6e-{n}",
        counts=(1, 2, 4),
        cpu="AuthenticAMD AMD EPYC 7R13 Processor",
        numa=(("0-47,96-143", 768), ("48-95,144-191", 768)),
        kernel="6.8.0-1021-aws",
        iommu=ABSENT,
        iommus=(),
        command_line="BOOT_IMAGE=/boot/vmlinuz ro console=ttyS0",
        open_driver=True,
        peer_modules=(),
        providers=("efa",),
        plugins=(plugin,),
        product_of_plugin="aws-ofi-nccl 1.13.2",
        symbols_of_plugin=("net v6", "net v7", "net v8", "net v9"),
        hypervisor=True,
        governor=NO_GOVERNOR,
        huge_pages=5128,
        mounts=("nfs4", "fs-1:/"),
        profiles={"aws": {"FI_PROVIDER": "efa", "FI_EFA_FORK_SAFE": "1"}},
    )


def aws_g6() -> Plan:
    """One L4, as most people rent it."""
    return Plan(
        kind="aws-g6",
        source="docs.aws.amazon.com instance types g6.4xlarge",
        story="Two instances, DDP by TCP.",
        product="Amazon EC2 g6.4xlarge",
        asset_tag="Amazon EC2",
        gpu=L4,
        gpus=[virtual("0000:31:00.0", -1, "pci0000:00")],
        cards=[],
        interfaces=[nic("ens5", "172.31.40.{n}/20", mtu=9001, speed_mbit=UNTOLD_SPEED, driver="ena")],
        control="ens5",
        names="ip-172-31-40-{n}",
        counts=(1, 2),
        launcher="ssh",
        numa=(("0-15", 62),),
        cpu="AuthenticAMD AMD EPYC 7R13 Processor",
        kernel="6.8.0-1021-aws",
        iommu=ABSENT,
        iommus=(),
        hypervisor=True,
        command_line="BOOT_IMAGE=/boot/vmlinuz ro console=ttyS0",
        open_driver=True,
        peer_modules=(),
        governor=NO_GOVERNOR,
        mounts=("nfs4", "fs-1:/"),
        profiles={"megatron": MEGATRON},
    )


def vgpu() -> Plan:
    """A whole A40 by NVIDIA's vGPU: NVML tells neither power nor clocks nor links."""
    return Plan(
        kind="vgpu-a40",
        tweak=_cut_off,
        source="docs.nvidia.com/vgpu: nvidia-smi in a guest shows N/A for power, fan, ECC counters",
        story="A desktop of VMware for teaching.",
        product="VMware, Inc. VMware Virtual Platform",
        gpu=A40_VGPU,
        gpus=[virtual("0000:02:00.0", -1, "pci0000:00")],
        cards=[],
        interfaces=[nic("ens192", "10.77.8.{n}/24", speed_mbit=10000, driver="vmxnet3")],
        control="ens192",
        names="vdi-{n}",
        counts=(1, 2),
        launcher="ssh",
        numa=(("0-15", 126),),
        hypervisor=True,
        governor=NO_GOVERNOR,
        cpu="GenuineIntel Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz",
        kernel="4.18.0-553.el8_10.x86_64",
        system="Red Hat Enterprise Linux 8.10 (Ootpa)",
        command_line="BOOT_IMAGE=(hd0,msdos1)/vmlinuz ro crashkernel=auto",
        iommu=ABSENT,
        iommus=(),
        driver="550.144.02",
        cuda="12.4",
        nccl="2.21.5",
        torch="2.6.0+cu124",
        peer_modules=(),
        mounts=("nfs4", "filer:/home"),
    )


def _cut_off(node: Node) -> Node:
    gpus = known(node.gpus)
    none = dict.fromkeys(
        (
            "power_draw",
            "power_cap",
            "power_default",
            "temperature",
            "margin",
            "slowdown_at",
            "clock",
            "clock_max",
            "clock_memory",
            "clock_memory_max",
            "throttle",
            "pcie_gen",
            "pcie_gen_max",
            "pcie_width",
            "pcie_width_max",
            "pcie_gen_device",
            "pcie_replays",
            "bar1",
            "inforom",
            "spare_rows",
            "remapped",
            "ecc",
            "ecc_pending",
            "processes",
            "numa",
            "vbios",
        ),
        NOT_SUPPORTED,
    )
    return replace(
        node, gpus=replace(gpus, cards=[replace(gpu, **none) for gpu in known(gpus.cards)], services=[])
    )


def titan_x() -> Plan:
    """Maxwell with the last driver of its branch."""
    slots = [
        Slot(f"0000:{b}:00.0", f"pci0000:{r}", (f"0000:{r}:02.0",), 0, 8.0, 16)
        for b, r in (("02", "00"), ("03", "00"))
    ]
    return Plan(
        kind="titan-x",
        source="nvidia-smi -q of GeForce GTX TITAN X in public threads; driver 535 supports Maxwell",
        story="A workstation of 2015 that still teaches.",
        product="ASUSTeK COMPUTER INC. X99-E WS",
        gpu=TITAN_X,
        gpus=slots,
        cards=[],
        interfaces=[nic("eno1", "129.132.10.{n}/24", speed_mbit=1000, driver="e1000e")],
        control="eno1",
        names="titan{n}",
        counts=(1,),
        launcher="local",
        numa=(("0-11", 62),),
        cpu="GenuineIntel Intel(R) Core(TM) i7-5930K CPU @ 3.50GHz",
        kernel="5.4.0-216-generic",
        system="Ubuntu 18.04.6 LTS",
        command_line="BOOT_IMAGE=/vmlinuz ro quiet splash",
        iommu=ABSENT,
        iommus=(),
        driver="470.256.02",
        cuda="11.4",
        nccl="2.18.6",
        torch="2.1.2+cu118",
        peer_modules=(),
        mounts=("ext4", "/dev/sda2"),
        governor=Governor(names=["ondemand"], driver="acpi-cpufreq", preference=ABSENT),
    )


KINDS: tuple[Callable[[], Plan], ...] = (
    runpod,
    vast,
    lambda_a100,
    paperspace,
    azure_nc_h100,
    azure_nc_a100,
    aws_g6e,
    aws_g6,
    vgpu,
    titan_x,
)

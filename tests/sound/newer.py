"""Machines of 2024 and later: superchips, Blackwell, cards of 800 Gb/s.

`source` begins with "read:" where its documents were opened for the names and numbers that they tell; the rest
is what such a node has. Without that word it says where to look, and names and numbers may differ from a real one.
"""

# ruff: noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ncclcheck.probes.facts import Governor, Node, NumaNode, Unread, known, replace
from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.machine import GIB, Plan
from tests.sound.parts import Card, Model, Slot, direct, switch
from tests.sound.usual import (
    CONNECTX7_VF,
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

NOT_SUPPORTED = Unread("absent", "Not Supported")
_GRACE = Governor(names=["performance"], driver="cppc_cpufreq", preference=ABSENT)

GH200_120 = Model("NVIDIA GH200 120GB", 97871, 680.0, 1980, 2619, 5, 18, 25781, vbios="96.00.97.00.02")
GB10 = Model("NVIDIA GB10", 0, 140.0, 3003, 0, 5, vbios="9A.0B.13.00.00", ecc=False, rests=True)
B300 = Model(
    "NVIDIA B300 SXM6 AC", 275040, 1100.0, 2032, 3996, 6, 18, 53125, vbios="97.10.3D.00.01", switched=True
)
RTX_PRO = Model(
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    97887,
    600.0,
    2430,
    12481,
    5,
    vbios="98.02.6B.00.03",
    rests=True,
)


def alps() -> Plan:
    """Four superchips a node, each with its own CPU, memory and Slingshot card."""
    domains = ["0009", "0019", "0029", "0039"]
    nics = ["0001", "0011", "0021", "0031"]
    cards = [
        Card(
            "",
            direct(f"{domain}:00", place, f"{domain}:01:00.0"),
            200.0,
            "Ethernet",
            f"hsn{place}",
            f"172.28.{place}.{{n}}/16",
            mtu=9000,
            driver="cxi_ss1",
        )
        for place, domain in enumerate(nics)
    ]
    cscs = {
        "NCCL_NET": "AWS Libfabric",
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_CROSS_NIC": "1",
        "NCCL_PROTO": "^LL128",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
        "FI_CXI_DEFAULT_TX_SIZE": "32768",
        "FI_CXI_DISABLE_HOST_REGISTER": "1",
        "FI_CXI_RX_MATCH_MODE": "software",
        "FI_MR_CACHE_MONITOR": "userfaultfd",
        "MPICH_GPU_SUPPORT_ENABLED": "0",
        "NCCL_SOCKET_IFNAME": "hsn",
        "CUDA_CACHE_DISABLE": "1",
    }
    return Plan(
        kind="alps-gh200",
        tweak=_memory_of_gpus,
        source="read: github.com/eth-cscs/cscs-docs docs/software/communication/nccl_env_vars (the variables) and "
        "nccl.md (bus 0009:01:00 to 0039:01:00, NVIDIA GH200 120GB, nid00...), docs/alps/hardware.md (four modules, "
        "four cards a node); docs.isambard.ac.uk env_vars.sh. NV6 is from general knowledge",
        story="A Cray EX254n. Four NUMA nodes have cores, the memory of each GPU is one more without cores.",
        product="HPE HPE_CRAY_EX254N",
        gpu=GH200_120,
        gpus=[direct(f"{d}:00", i, f"{d}:01:00.0") for i, d in enumerate(domains)],
        cards=cards,
        interfaces=[wire("nmn0", "10.100.32.{n}/22", 1, driver="igb")],
        control="hsn0",
        gateway="172.28.255.254",
        names="nid00{n}",
        cpu="ARM Neoverse-V2",
        numa=tuple((f"{72 * i}-{72 * i + 71}", 120) for i in range(4)),
        system="SUSE Linux Enterprise Server 15 SP6",
        kernel="6.4.0-150600.23.17_15.0.66-cray_shasta_c_64k",
        command_line="kernel initrd=initrd ro init_on_alloc=0 iommu.passthrough=1",
        iommus=("smmu3.0x11000000",),
        driver="550.54.15",
        cuda="12.4",
        nccl="2.26.2",
        torch="2.7.0+cu128",
        open_driver=True,
        peer_modules=(),
        plugins=("/opt/aws-ofi-nccl/lib/libnccl-net.so",),
        product_of_plugin="aws-ofi-nccl 1.14.1",
        symbols_of_plugin=("net v6", "net v7", "net v8", "net v9", "net v10"),
        hypervisor=NOT_OF_THIS_CPU,
        governor=_GRACE,
        clocksource="arch_sys_counter",
        page=512 * 2**20,
        counts=(1, 2, 8),
        mounts=("lustre", "172.28.0.1@kfi:/capstor"),
        profiles={"cscs": cscs, "megatron": {**MEGATRON, **cscs}},
    )


def _memory_of_gpus(node: Node) -> Node:
    """Of 36 NUMA nodes those with memory: the CPUs' and the GPUs'."""
    fabric = known(node.fabric)
    distances = [[10 if i == j else 40 for j in range(36)] for i in range(36)]
    ours = [replace(node, distances=distances[i]) for i, node in enumerate(known(fabric.numa))]
    gpus = [
        NumaNode(name=str(4 + 8 * i), cpus="", memory=96 * GIB, distances=distances[4 + 8 * i]) for i in range(4)
    ]
    return replace(node, fabric=replace(fabric, numa=[*ours, *gpus]))


def dgx_spark() -> Plan:
    """One GB10, whose memory is the CPU's; a ConnectX-7 that two PCIe links reach, so that each port is twice."""
    slots = [
        Slot(f"{domain}:01:00.{port}", f"pci{domain}:00", (f"{domain}:00:00.0",), -1, 32.0, 4, 16)
        for domain in ("0000", "0002")
        for port in (0, 1)
    ]
    names = [
        ("rocep1s0f0", "enp1s0f0np0"),
        ("rocep1s0f1", "enp1s0f1np1"),
        ("roceP2p1s0f0", "enP2p1s0f0np0"),
        ("roceP2p1s0f1", "enP2p1s0f1np1"),
    ]
    cards = [
        Card(
            hca,
            slot,
            200.0 if port else 40.0,
            "Ethernet",
            netdev,
            f"192.168.10{port}.{{n}}/24" if port else "",
            mtu=9000 if port else 1500,
            board="NVD0000000087",
            firmware="28.45.4028",
            up=bool(port),
            data=bool(port),
        )
        for (hca, netdev), slot, port in zip(names, slots, (0, 1, 0, 2), strict=True)
    ]
    return Plan(
        kind="dgx-spark",
        tweak=_unified,
        source="read: build.nvidia.com/spark/connect-two-sparks/stacked-sparks (ibdev2netdev: roceP2p1s0f1 and "
        "rocep1s0f1 Up, the first ports Down, two names a physical port), build.nvidia.com/playbooks/nccl. "
        "What NVML does not support is from general knowledge",
        story="Two desktops with one cable between their second ports.",
        product="NVIDIA NVIDIA_DGX_Spark",
        gpu=GB10,
        gpus=[Slot("000f:01:00.0", "pci000f:00", ("000f:00:00.0",), -1, 2.5, 1)],
        cards=cards,
        interfaces=[
            nic("enP7s7", "192.168.1.{n}/24", speed_mbit=10000, driver="r8127"),
            nic("wlP9s9", "192.168.1.2{n}/24", speed_mbit=ABSENT, driver="mt7925e"),
            DOCKER,
        ],
        control="enP7s7",
        names="spark-{n}",
        cpu="ARM Cortex-X925",
        numa=(("0-19", 119),),
        launcher="ssh",
        system="Ubuntu 24.04.3 LTS",
        kernel="6.11.0-1016-nvidia",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro quiet",
        iommu="DMA-FQ",
        iommus=("smmu3.0x21000000",),
        driver="580.95.05",
        cuda="13.0",
        nccl="2.28.3",
        torch="2.9.0+cu130",
        open_driver=True,
        peer_modules=(),
        hypervisor=NOT_OF_THIS_CPU,
        governor=_GRACE,
        clocksource="arch_sys_counter",
        counts=(1, 2),
        mounts=("ext4", "/dev/nvme0n1p2"),
        profiles={
            "playbook": {
                "NCCL_SOCKET_IFNAME": "enp1s0f1np1",
                "UCX_NET_DEVICES": "enp1s0f1np1",
                "OMPI_MCA_btl_tcp_if_include": "enp1s0f1np1",
            },
            "ib": {"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1", "NCCL_SOCKET_IFNAME": "enp1s0f1np1"},
        },
    )


def _unified(node: Node) -> Node:
    """NVML tells neither memory nor its clock of a GPU that shares the CPU's."""
    gpus = known(node.gpus)
    none = dict.fromkeys(
        (
            "memory_total",
            "memory_used",
            "bar1",
            "clock_memory",
            "clock_memory_max",
            "power_cap",
            "power_default",
            "numa",
        ),
        NOT_SUPPORTED,
    )
    return replace(
        node, gpus=replace(gpus, cards=[replace(gpu, **none, persistence=True) for gpu in known(gpus.cards)])
    )


def faster(slot: Slot) -> Slot:
    """The same at 64 GT/s, PCIe's sixth generation."""
    return dataclasses.replace(slot, gts=64.0)


def hgx_b300() -> Plan:
    """Each GPU hangs on the switch of its own ConnectX-8, whose 800 Gb/s are one port."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
    cards = [
        Card(
            f"mlx5_{rail}",
            faster(pair[0]),
            800.0,
            netdev=f"ibs{rail}",
            mtu=4092,
            model="MT4131",
            board="NVD0000000079",
            firmware="40.47.1026",
        )
        for rail, pair in enumerate(pairs)
    ]
    field3 = Card(
        "mlx5_8",
        direct("0000:6b", 0, "0000:6c:00.0"),
        200.0,
        "Ethernet",
        "ens20f0np0",
        "10.52.0.{n}/22",
        mtu=9000,
        model="MT41692",
        board="MT_0000000884",
        firmware="32.45.1020",
        data=False,
    )
    return Plan(
        kind="hgx-b300",
        source="docs.nvidia.com ConnectX-8 SuperNIC (hca_type MT4131, PCIe Gen6 switch); DGX B300 user guide "
        "(eight OSFP of 800 Gb/s, BlueField-3 for the rest)",
        story="The rails have no IPoIB; TCP goes over one port of a BlueField.",
        product="NVIDIA DGXB300",
        gpu=B300,
        gpus=[faster(pair[1]) for pair in pairs],
        cards=[*cards, field3],
        interfaces=[DOCKER],
        control="ens20f0np0",
        names="b300-{n}",
        cpu="GenuineIntel Intel(R) Xeon(R) 6776P",
        numa=(("0-63,128-191", 2048), ("64-127,192-255", 2048)),
        system="Ubuntu 24.04.3 LTS",
        kernel="6.8.0-1040-nvidia",
        driver="580.95.05",
        cuda="13.0",
        nccl="2.28.7",
        torch="2.9.1+cu130",
        open_driver=True,
        peer_modules=(),
        counts=(1, 2, 8),
        root=True,
        profiles={
            "site": {"NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7"},
            "nemo": NEMO,
        },
    )


def aws_p6_b200() -> Plan:
    """Eight EFA of 400 Gb/s, one beside each GPU."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
    cards = [
        Card(f"rdmap{int(pair[0].pci[5:7], 16)}s0", pair[0], 400.0, "Unspecified", driver="efa") for pair in pairs
    ]
    plugin = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
    return Plan(
        kind="aws-p6-b200",
        source="read: docs.aws.amazon.com AWSEC2 efa-acc-inst-types (an ENA interface at index 0, EFA-only ones "
        "beside), aws/aws-ofi-nccl src/platform-aws.cpp (p6 is of the p-series: RDMA protocol, what it sets itself). "
        "Eight cards of 400 Gb/s are from general knowledge",
        story="Kubernetes pods of HyperPod with the EFA device plugin and hostNetwork.",
        product="Amazon EC2 p6-b200.48xlarge",
        asset_tag="Amazon EC2",
        gpu=parts.B200,
        gpus=[p[1] for p in pairs],
        cards=cards,
        interfaces=[
            nic("enp71s0", "10.3.64.{n}/18", mtu=9001, speed_mbit=UNTOLD_SPEED, driver="ena"),
            *(nic(f"eni{i}a{i}", kind="veth", mtu=9001, speed_mbit=UNTOLD_SPEED, driver="veth") for i in range(3)),
        ],
        control="enp71s0",
        names="ip-10-3-64-{n}",
        counts=(1, 2, 4),
        launcher="ssh",
        cpu="GenuineIntel INTEL(R) XEON(R) PLATINUM 8570",
        numa=(("0-47,96-143", 1024), ("48-95,144-191", 1024)),
        kernel="6.1.134-152.225.amzn2023.x86_64",
        system="Amazon Linux 2023.7.20250512",
        command_line="BOOT_IMAGE=(hd0,gpt1)/boot/vmlinuz-6.1.134 root=UUID=1 ro console=ttyS0 selinux=1",
        iommu=ABSENT,
        iommus=(),
        open_driver=True,
        peer_modules=(),
        providers=("efa",),
        plugins=(plugin,),
        product_of_plugin="aws-ofi-nccl 1.16.2",
        symbols_of_plugin=("net v6", "net v7", "net v8", "net v9", "net v10"),
        driver="570.172.08",
        nccl="2.27.5",
        torch="2.8.0+cu128",
        hypervisor=True,
        governor=NO_GOVERNOR,
        huge_pages=5128,
        mounts=("lustre", "10.3.70.2@tcp:/fsx"),
        profiles={
            "hyperpod": {
                "FI_PROVIDER": "efa",
                "NCCL_SOCKET_IFNAME": "^docker,lo,veth,eni",
                "FI_EFA_USE_HUGE_PAGE": "0",
                "NCCL_DEBUG": "INFO",
                "KUBERNETES_SERVICE_HOST": "10.100.0.1",
            }
        },
    )


def gke_a4() -> Plan:
    """A pod with the host's eight RDMA interfaces moved into it, and the network of Kubernetes beside."""
    groups = [
        switch("0000:8c", 0, "0000:8f:00.0", "0000:90:00.0", "0000:91:00.0", "0000:92:00.0"),
        switch("0000:93", 0, "0000:96:00.0", "0000:97:00.0", "0000:98:00.0", "0000:99:00.0"),
        switch("0000:c1", 1, "0000:c4:00.0", "0000:c5:00.0", "0000:c6:00.0", "0000:c7:00.0"),
        switch("0000:c8", 1, "0000:cb:00.0", "0000:cc:00.0", "0000:cd:00.0", "0000:ce:00.0"),
    ]
    slots = [slot for group in groups for slot in group[2:]]
    cards = [
        Card(
            f"mlx5_{rail}",
            slot,
            400.0,
            "Ethernet",
            f"eth{rail + 2}",
            f"10.{rail + 4}.128.{{n}}/32",
            mtu=8896,
            model=CONNECTX7_VF,
            board="GGL0000000001",
            firmware="28.43.2026",
        )
        for rail, slot in enumerate(slots)
    ]
    gib = {
        "KUBERNETES_SERVICE_HOST": "34.118.224.1",
        "NCCL_NET": "gIB",
        "NCCL_CROSS_NIC": "0",
        "NCCL_NET_GDR_LEVEL": "PIX",
        "NCCL_P2P_NET_CHUNKSIZE": "131072",
        "NCCL_NVLS_CHUNKSIZE": "524288",
        "NCCL_IB_ADAPTIVE_ROUTING": "1",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
        "NCCL_IB_TC": "52",
        "NCCL_IB_FIFO_TC": "84",
        "LD_LIBRARY_PATH": "/usr/local/gib/lib64:/usr/local/nvidia/lib64",
        "NCCL_TUNER_CONFIG_PATH": "/usr/local/gib/configs/tuner_config_a4.txtpb",
    }
    return Plan(
        kind="gke-a4",
        source="read: github.com/GoogleCloudPlatform/container-engine-accelerators gpudirect-rdma/nccl-test-a4.yaml "
        "(hostNetwork: false, eth0 and eth2 to eth9 as rdma-0 to rdma-7, no eth1, /usr/local/gib). The values of "
        "set_nccl_env.sh are from general knowledge",
        story="A JobSet of two to eight pods; eth0 is the pod's network.",
        product="Google Google Compute Engine",
        gpu=parts.B200,
        gpus=[s for g in groups for s in g[:2]],
        cards=cards,
        interfaces=[
            nic("eth0", "10.108.3.{n}/24", kind="veth", mtu=1460, speed_mbit=UNTOLD_SPEED, driver="veth"),
        ],
        control="eth0",
        names="a4-workers-0-{n}",
        launcher="ssh",
        pod=True,
        counts=(1, 2, 8),
        numa=(("0-55,112-167", 1984), ("56-111,168-223", 1984)),
        cpu="GenuineIntel INTEL(R) XEON(R) PLATINUM 8581C CPU @ 2.10GHz",
        system="Ubuntu 22.04.5 LTS",
        kernel="6.6.87+",
        command_line="BOOT_IMAGE=/syslinux/vmlinuz.A console=ttyS0 cros_efi lsm.module_locking=1 systemd.unified_cgroup_hierarchy=true",
        iommu=ABSENT,
        iommus=(),
        open_driver=True,
        peer_modules=(),
        hypervisor=True,
        governor=NO_GOVERNOR,
        clocksource="kvm-clock",
        driver="570.133.20",
        nccl="2.27.5",
        torch="2.8.0+cu128",
        plugins=("/usr/local/gib/lib64/libnccl-net.so", "/usr/local/gib/lib64/libnccl-tuner.so"),
        mounts=("fuse.gcsfuse", "bucket"),
        profiles={"gib": gib, "gib-megatron": {**MEGATRON, **gib}},
    )


def rtx_pro_server() -> Plan:
    """Eight boards without NVLink on Gen5 switches, each pair beside a 400 Gb/s port of RoCE."""
    groups = [
        switch(
            f"0000:{root}",
            int(place > 1),
            f"0000:{int(root, 16) + 4:02x}:00.0",
            f"0000:{int(root, 16) + 5:02x}:00.0",
            f"0000:{int(root, 16) + 6:02x}:00.0",
        )
        for place, root in enumerate(("10", "40", "90", "c0"))
    ]
    cards = [
        Card(
            f"rocep{int(g[0].pci[5:7], 16)}s0",
            g[0],
            400.0,
            "Ethernet",
            f"enp{int(g[0].pci[5:7], 16)}s0np0",
            f"10.90.{rail}.{{n}}/31" if rail > 9 else f"10.90.{rail}.{{n}}/24",
            mtu=9000,
            traffic_class="Global tclass=106",
        )
        for rail, g in enumerate(groups)
    ]
    return Plan(
        kind="rtx-pro-6000",
        source="NVIDIA RTX PRO Server reference (eight boards, four to eight NICs); "
        "docs.nvidia.com RTX PRO 6000 Blackwell Server Edition product brief (600 W, no NVLink, ECC)",
        story="An enterprise server with Ethernet of Spectrum-X; persistent names of rdma-core.",
        product="Dell Inc. PowerEdge XE7745",
        gpu=RTX_PRO,
        gpus=[s for g in groups for s in g[1:]],
        cards=cards,
        interfaces=[wire("eno12399np0", "10.91.0.{n}/24", 25, driver="bnxt_en")],
        control="eno12399np0",
        names="pro{n}",
        cpu="AuthenticAMD AMD EPYC 9575F 64-Core Processor",
        numa=(("0-63,128-191", 768), ("64-127,192-255", 768)),
        system="Ubuntu 24.04.3 LTS",
        kernel="6.14.0-29-generic",
        iommus=("ivhd0", "ivhd1", "ivhd2", "ivhd3"),
        iommu="DMA-FQ",
        command_line="BOOT_IMAGE=/vmlinuz ro",
        open_driver=True,
        peer_modules=(),
        driver="580.82.07",
        cuda="13.0",
        nccl="2.27.7",
        torch="2.9.0+cu130",
        counts=(1, 2, 4),
        governor=Governor(names=["performance"], driver="amd-pstate-epp", preference="performance"),
        mounts=("nfs4", "vast:/data"),
        expected={"FAB002": "The IOMMU translates what goes between boards."},
        profiles={"site": {"NCCL_IB_HCA": "rocep", "NCCL_IB_TC": "106", "NCCL_SOCKET_IFNAME": "eno12399np0"}},
    )


_OCI = {
    "NCCL_DEBUG": "WARN", "NCCL_CUMEM_ENABLE": "0", "NCCL_IB_SPLIT_DATA_ON_QPS": "0", "NCCL_IB_GID_INDEX": "3",
    "NCCL_IB_TC": "41", "NCCL_IB_SL": "0", "NCCL_IB_TIMEOUT": "22", "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_IGNORE_CPU_AFFINITY": "1", "UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0", "HCOLL_ENABLE_MCAST_ALL": "0",
    "RX_QUEUE_LEN": "8192", "IB_RX_QUEUE_LEN": "8192",
}  # fmt: skip


def oci_rtx_pro() -> Plan:
    """Oracle's shape of the same boards: one port of RoCE beside each, hostNetwork."""
    plan = rtx_pro_server()
    hcas = (0, 1, 2, 3, 6, 7, 8, 9)
    groups = [
        switch(
            f"0000:{root}",
            int(place > 1),
            *(f"0000:{int(root, 16) + k:02x}:00.0" for k in (4, 5, 6, 7)),
        )
        for place, root in enumerate(("10", "40", "90", "c0"))
    ]
    ports = [slot for group in groups for slot in group[:2]]
    cards = [
        Card(f"mlx5_{hca}", slot, 200.0, "Ethernet", f"rdma{k}", f"10.224.{k}.{{n}}/12", mtu=4220)
        for k, (hca, slot) in enumerate(zip(hcas, ports, strict=True))
    ]
    env = {
        **_OCI,
        "NCCL_IB_HCA": "=" + ",".join(card.hca for card in cards),
        "NCCL_MIN_NCHANNELS": "8",
        "NCCL_IB_QPS_PER_CONNECTION": "1",
        "NCCL_NET_PLUGIN": "none",
    }
    return dataclasses.replace(
        plan,
        kind="oci-rtx-pro",
        source="read: github.com/oracle-quickstart/oci-hpc-oke manifests/nccl-tests/host-network/mpi-operator/"
        "BM.GPU.RTXPRO.8.yaml (mlx5_0 to mlx5_3 and mlx5_6 to mlx5_9, and the variables; but NCCL_ALGO=Tree, which is for its all_reduce alone: a job that also "
        "broadcasts ends by it, NCC018). The buses are from general knowledge",
        story="The variables of Oracle's test of bandwidth, but those that suit all_reduce alone.",
        product="Oracle Corporation ORACLE SERVER E6-2c",
        asset_tag="OracleCloud.com",
        gpus=[slot for group in groups for slot in group[2:]],
        cards=cards,
        interfaces=[wire("eth0", "10.140.0.{n}/20", 100)],
        control="eth0",
        launcher="ssh",
        profiles={"oci": env},
    )


def oci_b300() -> Plan:
    """Oracle's B300: two ports of each ConnectX-8, RoCE."""
    plan = hgx_b300()
    hcas = (0, 1, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21)
    rails = [card.slot for card in plan.cards if card.data]
    slots = [slot.at(slot.pci[:-1] + str(port)) for slot in rails for port in (0, 1)]
    cards = [
        Card(f"mlx5_{hca}", slot, 400.0, "Ethernet", f"rdma{k}", f"10.224.{k}.{{n}}/12", mtu=4220, model="MT4131",
             board="ORC0000000011", firmware="40.47.1026")
        for k, (hca, slot) in enumerate(zip(hcas, slots, strict=True))
    ]  # fmt: skip
    return dataclasses.replace(
        plan,
        kind="oci-b300",
        source="read: github.com/oracle-quickstart/oci-hpc-oke manifests/nccl-tests/host-network/mpi-operator/"
        "BM.GPU.B300.8.yaml (the sixteen names, the variables, hostNetwork). The rates and buses are from general "
        "knowledge",
        story="Bare metal of a cluster network, pods with the host's network.",
        product="Oracle Corporation ORACLE SERVER E6-2c",
        asset_tag="OracleCloud.com",
        cards=cards,
        interfaces=[wire("eth0", "10.140.0.{n}/20", 100)],
        control="eth0",
        launcher="ssh",
        profiles={"oci": {**_OCI, "NCCL_IB_HCA": "=" + ",".join(card.hca for card in cards)}},
    )


KINDS: tuple[Callable[[], Plan], ...] = (
    alps, dgx_spark, hgx_b300, aws_p6_b200, gke_a4, rtx_pro_server, oci_rtx_pro, oci_b300,
)  # fmt: skip

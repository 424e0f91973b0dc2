"""Later machines of clouds.

`source` begins with "read:" where its documents were opened for the names and numbers that they tell; the rest
is what such a node has. Without that word it says where to look, and names and numbers may differ from a real one.
"""

# ruff: noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ncclcheck.probes.facts import Node, known, replace
from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.clouds import azure_nd_h100
from tests.sound.humble import V100, volta
from tests.sound.machine import Plan
from tests.sound.parts import Card, Slot, direct, switch
from tests.sound.sites import gb200_nvl72
from tests.sound.usual import (
    CONNECTX7_VF,
    DOCKER,
    HGX_GPUS,
    HGX_NICS,
    MEGATRON,
    NO_GOVERNOR,
    NOT_OF_THIS_CPU,
    UNTOLD_SPEED,
    hgx,
)


def azure_nd_h200() -> Plan:
    """As ND H100 v5, with IPoIB that has no address."""
    p = azure_nd_h100()
    cards = [
        dataclasses.replace(c, firmware="28.42.1000", net="", mtu=2044) if c.hca.startswith("mlx5_ib") else c
        for c in p.cards
    ]
    site = {
        "NCCL_SOCKET_IFNAME": "eth0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NCCL_IB_PCI_RELAXED_ORDERING": "1",
        "UCX_TLS": "rc",
        "SHARP_SMX_UCX_INTERFACE": "mlx5_ib0:1",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
        "NCCL_PXN_DISABLE": "1",
        "NCCL_MIN_NCHANNELS": "32",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
    }
    return dataclasses.replace(
        p,
        kind="azure-nd-h200-v5",
        gpu=parts.H200,
        cards=cards,
        driver="580.65.06",
        cuda="13.0",
        nccl="2.27.7",
        torch="2.9.0+cu128",
        system="Ubuntu 24.04.3 LTS",
        kernel="6.8.0-1036-azure",
        names="ndh200-{n}",
        counts=(1, 2, 8),
        source="github.com/Azure/azhpc-images setup_sku_customizations.sh (nd96is*_h[1-2]00_v5 -> ndv5), customizations/ndv5.sh",
        story="ND96isr_H200_v5 of the HPC image; IPoIB has no address.",
        conf={
            "NCCL_IB_PCI_RELAXED_ORDERING": "1",
            "NCCL_TOPO_FILE": "/opt/microsoft/ndv5/topo.xml",
            "NCCL_IGNORE_CPU_AFFINITY": "1",
        },
        profiles={"azure": site, "megatron": {**MEGATRON, "NCCL_NVLS_ENABLE": "0", "MASTER_PORT": "6000"}},
    )


def oci_b200() -> Plan:
    """Eight RoCE ports, and two cards of the front end of which one is not cabled."""
    hcas = [0, 3, 4, 5, 6, 9, 10, 11]
    pairs = hgx(HGX_NICS, HGX_GPUS)
    rails = [
        Card(
            f"mlx5_{h}",
            pair[0],
            400.0,
            "Ethernet",
            f"rdma{i}",
            f"10.224.{i}.{{n}}/12",
            mtu=4220,
            board="ORC0000000011",
            firmware="28.43.2566",
        )
        for i, (h, pair) in enumerate(zip(hcas, pairs, strict=True))
    ]
    f = direct("0000:6a", 0, "0000:6b:00.0", 16.0)
    g = direct("0000:a8", 1, "0000:a9:00.0", 16.0)
    front = [
        Card(
            "mlx5_1",
            f,
            100.0,
            "Ethernet",
            "eth0",
            "10.140.0.{n}/20",
            mtu=9000,
            model="MT4125",
            board="ORC0000000006",
            firmware="22.43.1014",
            data=False,
        ),
        Card(
            "mlx5_2",
            f.at("0000:6b:00.1"),
            40.0,
            "Ethernet",
            "enp107s0f1np1",
            mtu=1500,
            model="MT4125",
            board="ORC0000000006",
            firmware="22.43.1014",
            up=False,
            data=False,
        ),
        Card(
            "mlx5_7",
            g,
            40.0,
            "Ethernet",
            "enp169s0f0np0",
            mtu=1500,
            model="MT4125",
            board="ORC0000000006",
            firmware="22.43.1014",
            up=False,
            data=False,
        ),
        Card(
            "mlx5_8",
            g.at("0000:a9:00.1"),
            40.0,
            "Ethernet",
            "enp169s0f1np1",
            mtu=1500,
            model="MT4125",
            board="ORC0000000006",
            firmware="22.43.1014",
            up=False,
            data=False,
        ),
    ]
    cards = sorted([*rails, *front], key=lambda c: int(c.hca[5:]))
    env = {
        "NCCL_SOCKET_NTHREADS": "16",
        "NCCL_DEBUG": "WARN",
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_IB_SPLIT_DATA_ON_QPS": "0",
        "NCCL_IB_QPS_PER_CONNECTION": "1",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_IB_TC": "41",
        "NCCL_IB_SL": "0",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "UCX_NET_DEVICES": "eth0",
        "UCX_TLS": "tcp",
        "NCCL_IB_HCA": "=" + ",".join(c.hca for c in rails),
    }
    return Plan(
        kind="oci-b200",
        source="read: prishajain1/training_results_v5.0 Oracle/.../8xBM.GPU.B200.8/config_common.sh (all variables, HCA list)",
        story="BM.GPU.B200.8 of a cluster network; MLPerf's profile.",
        product="Oracle Corporation ORACLE SERVER X11-2c",
        asset_tag="OracleCloud.com",
        gpu=parts.B200,
        gpus=[p[1] for p in pairs],
        cards=cards,
        interfaces=[],
        control="eth0",
        names="gpu-{n}",
        cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8592+",
        system="Ubuntu 22.04.5 LTS",
        kernel="5.15.0-1074-oracle",
        command_line="BOOT_IMAGE=/vmlinuz ro intel_iommu=on iommu=pt",
        driver="570.148.08",
        nccl="2.26.5",
        open_driver=True,
        mounts=("nfs4", "10.140.0.4:/fss"),
        counts=(1, 2, 4),
        profiles={
            "mlperf": env,
            "mlperf-graph": {
                **env,
                "NCCL_NVLS_ENABLE": "1",
                "NCCL_GRAPH_REGISTER": "0",
                "NCCL_LOCAL_REGISTER": "0",
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            },
        },
    )


def gcp_a3_high() -> Plan:
    """Four gVNICs for GPUDirect-TCPX."""
    groups = [
        switch(f"0000:{a:02x}", int(a > 0x7F), *(f"0000:{a + 3 + k:02x}:00.0" for k in range(3)))
        for a in (0x01, 0x07, 0x81, 0x87)
    ]
    rails = ["enp6s0", "enp12s0", "enp134s0", "enp140s0"]
    cards = [
        Card("", g[2], 200.0, "Ethernet", nm, f"10.{10 + r}.0.{{n}}/32", mtu=8244, driver="gve")
        for r, (nm, g) in enumerate(zip(rails, groups, strict=True))
    ]
    env = {
        "NCCL_SOCKET_IFNAME": "enp0s12",
        "NCCL_CROSS_NIC": "0",
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
        "NCCL_NSOCKS_PERTHREAD": "4",
        "NCCL_SOCKET_NTHREADS": "1",
        "NCCL_MAX_NCHANNELS": "12",
        "NCCL_MIN_NCHANNELS": "12",
        "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
        "NCCL_P2P_NET_CHUNKSIZE": "524288",
        "NCCL_P2P_PCI_CHUNKSIZE": "524288",
        "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
        "NCCL_BUFFSIZE": "4194304",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
        "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": ",".join(rails),
        "NCCL_GPUDIRECTTCPX_CTRL_DEV": "enp0s12",
        "NCCL_NET_GDR_LEVEL": "PIX",
        "NCCL_P2P_PXN_LEVEL": "0",
        "NCCL_GPUDIRECTTCPX_FORCE_ACK": "0",
        "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": "/run/tcpx",
        "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS": "500000",
        "LD_LIBRARY_PATH": "/var/lib/tcpx/lib64",
    }
    return Plan(
        kind="gcp-a3-high",
        source="read: public TCPX run scripts found by search (set_nccl_gpudirect_tcpx_specific_configuration; a3 sbatch); cloud.google.com a3-highgpu",
        story="GPUDirect-TCPX: four gVNICs, NCCL of 2.19 as the plugin's image.",
        product="Google Google Compute Engine",
        gpu=parts.H100,
        gpus=[s for g in groups for s in g[:2]],
        cards=cards,
        interfaces=[nic("enp0s12", "10.0.0.{n}/32", mtu=8244, speed_mbit=UNTOLD_SPEED, driver="gve"), DOCKER],
        control="enp0s12",
        names="a3-{n}",
        gateway="10.0.0.1",
        numa=(("0-51,104-155", 936), ("52-103,156-207", 936)),
        cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
        kernel="5.15.0-1065-gcp",
        command_line="BOOT_IMAGE=/boot/vmlinuz root=PARTUUID=1 ro",
        iommu=ABSENT,
        iommus=(),
        open_driver=True,
        peer_modules=(),
        driver="535.183.06",
        cuda="12.2",
        nccl="2.19.4",
        torch="2.2.2+cu121",
        plugins=("/var/lib/tcpx/lib64/libnccl-net.so",),
        hypervisor=True,
        governor=NO_GOVERNOR,
        mounts=("nfs4", "10.0.0.2:/home"),
        counts=(2, 4),
        profiles={"tcpx": env},
    )


def gcp_a4x() -> Plan:
    """A compute tray with four RoCE functions and Google's plugin."""
    p = gb200_nvl72()
    places = [("0000", 0), ("0002", 0), ("0010", 1), ("0012", 1)]
    cards = [
        Card(
            f"mlx5_{i}",
            direct(f"{d}:00", n, f"{d}:01:00.0"),
            400.0,
            "Ethernet",
            f"gpu{i}rdma0",
            f"192.168.{i + 1}.{{n}}/32",
            mtu=8896,
            model=CONNECTX7_VF,
            board="GGL0000000002",
            firmware="28.43.2026",
        )
        for i, (d, n) in enumerate(places)
    ]
    gib = {
        "NCCL_NET": "gIB",
        "NCCL_CROSS_NIC": "0",
        "NCCL_NET_GDR_LEVEL": "PIX",
        "NCCL_P2P_NET_CHUNKSIZE": "131072",
        "NCCL_NVLS_CHUNKSIZE": "524288",
        "NCCL_IB_ADAPTIVE_ROUTING": "1",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
        "NCCL_IB_TC": "52",
        "NCCL_IB_FIFO_TC": "84",
        "NCCL_MNNVL_ENABLE": "2",
        "NCCL_CUMEM_ENABLE": "1",
        "NCCL_TUNER_CONFIG_PATH": "/usr/local/gib/configs/tuner_config_a4x.txtpb",
        "LD_LIBRARY_PATH": "/usr/local/gib/lib64",
        "NCCL_SOCKET_IFNAME": "enp0s3",
    }
    return dataclasses.replace(
        p,
        kind="gcp-a4x",
        source="cloud.google.com AI Hypercomputer A4X (4 x CX-7 400G, gIB, ComputeDomain of numNodes: found by search); env as of a4's image",
        story="A tray as a VM: gIB plugin over four RoCE functions, IMEX by a compute domain.",
        product="Google Google Compute Engine",
        cards=cards,
        interfaces=[nic("enp0s3", "10.0.0.{n}/32", mtu=8896, speed_mbit=UNTOLD_SPEED, driver="gve")],
        control="enp0s3",
        gateway="10.0.0.1",
        names="a4x-{n}",
        kernel="6.8.0-1030-gcp-64k",
        iommu=ABSENT,
        iommus=(),
        hypervisor=NOT_OF_THIS_CPU,
        governor=NO_GOVERNOR,
        plugins=("/usr/local/gib/lib64/libnccl-net.so", "/usr/local/gib/lib64/libnccl-tuner.so"),
        counts=(1, 2, 4),
        mounts=("nfs4", "10.0.0.2:/home"),
        profiles={"gib": gib},
    )


def aws_p3dn() -> Plan:
    """One EFA of the first generation."""
    gpus = [Slot(f"0000:00:{0x16 + i:02x}.0", "pci0000:00", (), int(i > 3), 8.0, 16, link=False) for i in range(8)]
    efa = Card(
        "rdmap0s6", Slot("0000:00:06.0", "pci0000:00", (), 0, link=False), 100.0, "Unspecified", driver="efa"
    )
    pl = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"
    return Plan(
        kind="aws-p3dn",
        source="read: aws-samples EFA on EKS README (p3dn.24xlarge, EFA); docs.aws.amazon.com efa: p3dn has no RDMA read",
        story="V100 with one EFA of the first generation, without GPUDirect.",
        tweak=volta,
        product="Amazon EC2 p3dn.24xlarge",
        asset_tag="Amazon EC2",
        gpu=V100,
        gpus=gpus,
        cards=[efa],
        interfaces=[nic("eth0", "172.31.40.{n}/20", mtu=9001, speed_mbit=UNTOLD_SPEED, driver="ena"), DOCKER],
        control="eth0",
        names="ip-172-31-40-{n}",
        counts=(1, 2),
        cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8175M CPU @ 2.50GHz",
        numa=(("0-23,48-71", 372), ("24-47,72-95", 372)),
        system="Amazon Linux 2",
        kernel="5.10.226-214.880.amzn2.x86_64",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro console=ttyS0",
        iommu=ABSENT,
        iommus=(),
        peer_modules=(),
        providers=("efa",),
        plugins=(pl,),
        product_of_plugin="aws-ofi-nccl 1.11.0",
        symbols_of_plugin=("net v5", "net v6", "net v7", "net v8"),
        hypervisor=True,
        governor=NO_GOVERNOR,
        driver="535.183.01",
        cuda="12.2",
        nccl="2.21.5",
        torch="2.5.1+cu121",
        mounts=("lustre", "10.1.70.2@tcp:/fsx"),
        profiles={"aws": {"FI_PROVIDER": "efa", "NCCL_PROTO": "simple", "NCCL_SOCKET_IFNAME": "eth0"}},
    )


def h100_vm_dual() -> Plan:
    """Two functions beside each GPU, by the topology file alone."""
    gpus = [
        Slot(f"0000:{1 + i:02x}:00.0", "pci0000:00", (f"0000:00:01.{i}",), int(i > 3), link=False)
        for i in range(8)
    ]
    cards = [
        Card(
            f"mlx5_{2 * i + f}",
            Slot(
                f"0000:{0x10 + 2 * i + f:02x}:00.0",
                "pci0000:00",
                (f"0000:00:0{2 + i // 4}.{i % 4 * 2 + f}",),
                int(i > 3),
                link=False,
                vf=True,
            ),
            200.0,
            "Ethernet",
            f"enp{16 + 2 * i + f}s0",
            f"10.{100 + 2 * i + f}.0.{{n}}/24",
            mtu=9000,
            model=CONNECTX7_VF,
        )
        for i in range(8)
        for f in range(2)
    ]
    return Plan(
        kind="h100-vm-dualport",
        source="read: NVIDIA/nccl#1303 (KVM guests, 8 H100, 8 dual-port CX-7, 16 functions, topology file)",
        story="Two functions beside each GPU by the topology file; flat buses otherwise.",
        product="QEMU Standard PC (Q35 + ICH9, 2009)",
        gpu=parts.H100,
        gpus=gpus,
        cards=cards,
        interfaces=[nic("enp1s0", "192.168.122.{n}/24", mtu=1500, speed_mbit=UNTOLD_SPEED, driver="virtio_net")],
        control="enp1s0",
        names="h100vm{n}",
        numa=(("0-79", 800), ("80-159", 800)),
        kernel="5.15.0-107-generic",
        system="Ubuntu 22.04.4 LTS",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro",
        iommu=ABSENT,
        iommus=(),
        hypervisor=True,
        governor=NO_GOVERNOR,
        clocksource="kvm-clock",
        driver="550.54.15",
        cuda="12.4",
        nccl="2.21.5",
        torch="2.4.1+cu121",
        mounts=("nfs4", "filer:/home"),
        counts=(1, 2),
        launcher="ssh",
        profiles={
            "site": {
                "NCCL_TOPO_FILE": "/etc/nccl/topo1.xml",
                "NCCL_IB_GID_INDEX": "3",
                "NCCL_SOCKET_IFNAME": "enp1s0",
                "NCCL_IB_TC": "106",
            }
        },
    )


def crusoe() -> Plan:
    """A guest whose nccl.conf names the topology file."""
    gpus = [Slot(f"0000:00:{4 + place:02x}.0", "pci0000:00", (), -1, link=False) for place in range(8)]
    cards = [
        Card(
            f"mlx5_{place}",
            Slot(f"0000:00:{16 + place:02x}.0", "pci0000:00", (), -1, link=False, vf=True),
            netdev=f"ibs{16 + place}",
            model=CONNECTX7_VF,
        )
        for place in range(8)
    ]
    return Plan(
        kind="crusoe-h100",
        source="read: docs.crusoecloud.com managing-infiniband-networks",
        story="Cloud Hypervisor guests on a flat bus; the image's nccl.conf names what belongs together.",
        product="Crusoe Cloud Hypervisor",
        gpu=parts.H100,
        gpus=gpus,
        cards=cards,
        interfaces=[nic("ens3", "172.27.16.{n}/20", speed_mbit=UNTOLD_SPEED, driver="virtio_net"), DOCKER],
        control="ens3",
        names="crusoe-{n}",
        launcher="ssh",
        numa=(("0-87", 480), ("88-175", 480)),
        kernel="5.15.0-140-generic",
        command_line="console=ttyS0",
        iommu=ABSENT,
        iommus=(),
        hypervisor=True,
        governor=NO_GOVERNOR,
        clocksource="kvm-clock",
        nccl="2.26.2",
        torch="2.7.0+cu128",
        counts=(1, 2, 8),
        conf={"NCCL_TOPO_FILE": "/etc/crusoe/nccl_topo/h100-80gb-sxm-ib-cloud-hypervisor.xml"},
        profiles={"megatron": MEGATRON},
    )


def verda() -> Plan:
    """A tenant's partition at index 1 of InfiniBand's table."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
    cards = [
        Card(f"mlx5_{rail}", pair[0], netdev=f"ib{rail}", net=f"10.7.{rail}.{{n}}/24")
        for rail, pair in enumerate(pairs)
    ]
    cards.append(
        Card(
            "mlx5_8",
            direct("0000:a0", 1, "0000:a1:00.0", 16.0),
            100.0,
            "Ethernet",
            "eth0",
            "10.3.0.{n}/16",
            mtu=1500,
            model="MT41692",
            board="MT_0000000884",
            firmware="32.41.1000",
            data=False,
        )
    )

    def change(node: Node) -> Node:
        rdma = known(node.rdma)
        devices = [
            replace(
                hca,
                ports=[
                    replace(port, pkeys=[0x7FFF, 0x8042]) if port.link_layer == "InfiniBand" else port
                    for port in known(hca.ports)
                ],
            )
            for hca in known(rdma.devices)
        ]
        return replace(node, rdma=replace(rdma, devices=devices))

    return Plan(
        kind="verda-h200",
        tweak=change,
        source="read: docs.verda.com instant-clusters good-to-know (NCCL_IB_PKEY=1)",
        story="Instant cluster; the vendor says which entry is the tenant's.",
        product="Supermicro AS -8125GS-TNHR",
        gpu=parts.H200,
        gpus=[pair[1] for pair in pairs],
        cards=cards,
        interfaces=[],
        control="eth0",
        names="verda-{n}",
        system="Ubuntu 24.04.2 LTS",
        kernel="6.8.0-60-generic",
        driver="570.158.01",
        counts=(1, 2, 4),
        conf={"NCCL_IB_PKEY": "1"},
        profiles={"site": {"NCCL_IB_HCA": "^mlx5_8", "NCCL_SOCKET_IFNAME": "eth0"}},
    )


KINDS: tuple[Callable[[], Plan], ...] = (
    azure_nd_h200,
    oci_b200,
    gcp_a3_high,
    gcp_a4x,
    aws_p3dn,
    h100_vm_dual,
    crusoe,
    verda,
)

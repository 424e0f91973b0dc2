"""Instances of clouds."""

from __future__ import annotations

from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.machine import OFED, Plan
from tests.sound.parts import Card, Slot, direct, switch, virtual
from tests.sound.usual import CONNECTX7_VF, DOCKER, MEGATRON, NEMO, NO_GOVERNOR, UNTOLD_SPEED


def aws_p5() -> Plan:
    """Thirty-two EFA devices, four beside each GPU."""
    starts = [0x4F, 0x60, 0x71, 0x82, 0x93, 0xA4, 0xB5, 0xC6]
    groups = [
        switch(f"0000:{start - 0xB:02x}", int(place > 3), *(f"0000:{start + k:02x}:00.0" for k in range(5)))
        for place, start in enumerate(starts)
    ]
    efas = [
        Card(f"rdmap{int(slot.pci[5:7], 16)}s0", slot, 100.0, "Unspecified", driver="efa")
        for group in groups
        for slot in group[:4]
    ]
    plugin = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"
    tuner = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-ofi-tuner.so"
    return Plan(
        kind="aws-p5",
        source="docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html and efa-start-nccl.html; "
        "github.com/aws/aws-ofi-nccl topology/p5.48xl-topo.xml; device names as in UCX_NET_DEVICES lists of p5 "
        "nodes; "
        "awslabs/awsome-distributed-training efa-cheatsheet.md",
        story="p5.48xlarge of ParallelCluster with EFA-only secondary cards: one ENA interface for all TCP.",
        product="Amazon EC2 p5.48xlarge", asset_tag="Amazon EC2", gpu=parts.H100,
        gpus=[group[4] for group in groups], cards=efas,
        interfaces=[nic("ens32", "10.1.64.{n}/18", mtu=9001, speed_mbit=UNTOLD_SPEED, driver="ena"), DOCKER],
        control="ens32", names="ip-10-1-64-{n}", counts=(1, 2, 4, 8),
        cpu="AuthenticAMD AMD EPYC 7R13 Processor", numa=(("0-47,96-143", 1024), ("48-95,144-191", 1024)),
        kernel="6.8.0-1021-aws", command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.0-1021-aws ro console=ttyS0",
        iommu=ABSENT, iommus=(), open_driver=True, peer_modules=(), providers=("efa",),
        plugins=(plugin, tuner), product_of_plugin="aws-ofi-nccl 1.14.2",
        symbols_of_plugin=("net v6", "net v7", "net v8", "net v9", "net v10", "tuner v1", "tuner v2", "tuner v3"),
        hypervisor=True, governor=NO_GOVERNOR,
        huge_pages=5128,
        mounts=("lustre", "10.1.70.2@tcp:/fsx"),
        profiles={
            "aws": {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0", "NCCL_SOCKET_IFNAME": "^docker,lo,veth",
                    "LD_LIBRARY_PATH": "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu:/opt/amazon/efa/lib"},
            "megatron": {**MEGATRON, "FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1",
                         "NCCL_TUNER_PLUGIN": tuner, "NCCL_SOCKET_IFNAME": "ens"},
        },
    )  # fmt: skip


_TCPXO = "/var/lib/tcpxo/lib64"


def gcp_a3_mega() -> Plan:
    """Eight gVNICs for GPUDirect-TCPXO, which are no RDMA devices, and one for the rest."""
    groups = [
        switch("0000:01", 0, "0000:04:00.0", "0000:05:00.0", "0000:06:00.0", "0000:07:00.0"),
        switch("0000:08", 0, "0000:0b:00.0", "0000:0c:00.0", "0000:0d:00.0", "0000:0e:00.0"),
        switch("0000:81", 1, "0000:84:00.0", "0000:85:00.0", "0000:86:00.0", "0000:87:00.0"),
        switch("0000:88", 1, "0000:8b:00.0", "0000:8c:00.0", "0000:8d:00.0", "0000:8e:00.0"),
    ]
    rails = ["enp6s0", "enp7s0", "enp13s0", "enp14s0", "enp134s0", "enp135s0", "enp141s0", "enp142s0"]
    slots = [slot for group in groups for slot in group[2:]]
    cards = [
        Card("", slot, 200.0, "Ethernet", name, f"10.{8 + rail}.0.{{n}}/32", mtu=8244, driver="gve")
        for rail, (name, slot) in enumerate(zip(rails, slots, strict=True))
    ]
    env = {
        "NCCL_FASTRAK_CTRL_DEV": "enp0s12", "NCCL_FASTRAK_IFNAME": ",".join(rails),
        "NCCL_SOCKET_IFNAME": "enp0s12",
        "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": "/dev/aperture_devices", "NCCL_CROSS_NIC": "0",
        "NCCL_ALGO": "Ring,Tree", "NCCL_PROTO": "Simple", "NCCL_MIN_NCHANNELS": "4",
        "NCCL_P2P_NET_CHUNKSIZE": "524288", "NCCL_P2P_PCI_CHUNKSIZE": "524288",
        "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
        "NCCL_FASTRAK_NUM_FLOWS": "2", "NCCL_FASTRAK_ENABLE_CONTROL_CHANNEL": "0", "NCCL_BUFFSIZE": "8388608",
        "NCCL_FASTRAK_USE_SNAP": "1", "NCCL_FASTRAK_USE_LLCM": "1", "NCCL_NET_GDR_LEVEL": "PIX",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "NCCL_FASTRAK_ENABLE_HOTPATH_LOGGING": "0",
        "NCCL_TUNER_PLUGIN": "libnccl-tuner.so", "NCCL_NVLS_ENABLE": "0",
        "NCCL_TUNER_CONFIG_PATH": f"{_TCPXO}/a3plus_tuner_config.textproto",
        "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE": f"{_TCPXO}/a3plus_guest_config.textproto",
        "NCCL_FASTRAK_PLUGIN_ACCEPT_TIMEOUT_MS": "600000", "LD_LIBRARY_PATH": _TCPXO,
    }  # fmt: skip
    return Plan(
        kind="gcp-a3-mega",
        source="cloud.google.com/cluster-toolkit a3-megagpu-8g example run-nccl-tests.sh (nccl-env-profile.sh); "
        "bus "
        "numbers of nccl-tests outputs of a3-megagpu-8g",
        story="Slurm nodes of the cluster toolkit. Data goes over TCPXO, so that no RDMA device exists.",
        product="Google Google Compute Engine", gpu=parts.H100,
        gpus=[slot for group in groups for slot in group[:2]], cards=cards,
        interfaces=[nic("enp0s12", "10.0.0.{n}/32", mtu=8244, speed_mbit=UNTOLD_SPEED, driver="gve"), DOCKER],
        control="enp0s12", names="a3mega-{n}", gateway="10.0.0.1", numa=(("0-51,104-155", 936),
        ("52-103,156-207", 936)),
        cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
        kernel="6.8.0-1020-gcp", command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.0-1020-gcp root=PARTUUID=1 ro",
        iommu=ABSENT, iommus=(), open_driver=True, peer_modules=(),
        plugins=(f"{_TCPXO}/libnccl-net.so", f"{_TCPXO}/libnccl-tuner.so"), hypervisor=True, governor=NO_GOVERNOR,
        mounts=("nfs4", "10.0.0.2:/home"), profiles={"tcpxo": env, "tcpxo-nemo": {**NEMO, **env}},
    )  # fmt: skip


def gcp_a3_ultra() -> Plan:
    """Eight ConnectX-7 virtual functions for RoCE, two gVNICs for the rest."""
    groups = [
        switch("0000:8c", 0, "0000:8f:00.0", "0000:90:00.0", "0000:91:00.0", "0000:92:00.0"),
        switch("0000:93", 0, "0000:96:00.0", "0000:97:00.0", "0000:98:00.0", "0000:99:00.0"),
        switch("0000:c1", 1, "0000:c4:00.0", "0000:c5:00.0", "0000:c6:00.0", "0000:c7:00.0"),
        switch("0000:c8", 1, "0000:cb:00.0", "0000:cc:00.0", "0000:cd:00.0", "0000:ce:00.0"),
    ]
    slots = [slot for group in groups for slot in group[2:]]
    cards = [
        Card(f"mlx5_{rail}", slot, 400.0, "Ethernet", f"gpu{rail}rdma0", f"192.168.{rail + 1}.{{n}}/32", mtu=8896,
             model=CONNECTX7_VF, board="GGL0000000001", firmware="28.43.2026")
        for rail, slot in enumerate(slots)
    ]  # fmt: skip
    gib = {
        "NCCL_NET": "gIB", "NCCL_CROSS_NIC": "0", "NCCL_NET_GDR_LEVEL": "PIX", "NCCL_P2P_NET_CHUNKSIZE": "131072",
        "NCCL_NVLS_CHUNKSIZE": "524288", "NCCL_IB_ADAPTIVE_ROUTING": "1", "NCCL_IB_QPS_PER_CONNECTION": "4",
        "NCCL_IB_TC": "52", "NCCL_IB_FIFO_TC": "84", "LD_LIBRARY_PATH": "/usr/local/gib/lib64",
        "NCCL_TUNER_CONFIG_PATH": "/usr/local/gib/configs/tuner_config_a3u.txtpb",
        "NCCL_SOCKET_IFNAME": "enp0s19,enp192s20",
    }  # fmt: skip
    return Plan(
        kind="gcp-a3-ultra",
        source="cloud.google.com/ai-hypercomputer/docs: NCCL/gIB, /usr/local/gib/scripts/set_nccl_env.sh; "
        "cluster-toolkit a3-ultragpu-8g blueprint (VPC of RDMA, MTU 8896)",
        story="Slurm nodes. The gIB plugin is loaded; without its variables NCCL's own NET/IB takes the same "
        "cards.",
        product="Google Google Compute Engine", gpu=parts.H200,
        gpus=[slot for group in groups for slot in group[:2]], cards=cards,
        interfaces=[
            nic("enp0s19", "10.0.0.{n}/32", mtu=8896, speed_mbit=UNTOLD_SPEED, driver="gve"),
            nic("enp192s20", "10.1.0.{n}/32", mtu=8896, speed_mbit=UNTOLD_SPEED, driver="gve"),
        ],
        control="enp0s19", names="a3ultra-{n}", gateway="10.0.0.1", counts=(1, 2, 8),
        numa=(("0-55,112-167", 1472), ("56-111,168-223", 1472)),
        cpu="GenuineIntel INTEL(R) XEON(R) PLATINUM 8581C CPU @ 2.10GHz",
        kernel="6.8.0-1020-gcp", command_line="BOOT_IMAGE=/boot/vmlinuz-6.8.0-1020-gcp root=PARTUUID=1 ro",
        iommu=ABSENT, iommus=(), open_driver=True, peer_modules=OFED,
        plugins=("/usr/local/gib/lib64/libnccl-net.so", "/usr/local/gib/lib64/libnccl-tuner.so"), hypervisor=True,
        governor=NO_GOVERNOR, mounts=("nfs4", "10.0.0.2:/home"),
        profiles={"gib": gib, "gib-megatron": {**MEGATRON, **gib, "NCCL_NVLS_ENABLE": "0"}},
    )  # fmt: skip


def azure_nd_h100() -> Plan:
    """Virtual functions of InfiniBand on buses of their own; a topology file says what belongs together."""
    gpus = [virtual(f"{rail + 1:04x}:00:00.0", int(rail > 3)) for rail in range(8)]
    cards = [
        Card(f"mlx5_ib{rail}", virtual(f"01{rail + 1:02x}:00:00.0", int(rail > 3)), netdev=f"ib{rail}",
             net=f"172.16.{rail + 1}.{{n}}/16", mtu=2044, model=CONNECTX7_VF, board="MT_0000000840",
             firmware="28.40.1000")
        for rail in range(8)
    ]  # fmt: skip
    accelerated = Card(
        "mlx5_an0", virtual("64cc:00:02.0", 0), 100.0, "Ethernet", "enP25804s1", mtu=1500, model="MT4122",
        board="MSF0010110035", firmware="16.31.2424", data=False,
    )  # fmt: skip
    profile = {
        "NCCL_SOCKET_IFNAME": "eth0", "NCCL_TOPO_FILE": "/opt/microsoft/ndv5-topo.xml",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NCCL_IB_PCI_RELAXED_ORDERING": "1", "UCX_TLS": "rc", "UCX_NET_DEVICES": "mlx5_ib0:1",
        "NCCL_DEBUG": "WARN",
    }  # fmt: skip
    return Plan(
        kind="azure-nd-h100-v5",
        conf={"NCCL_IB_PCI_RELAXED_ORDERING": "1", "NCCL_TOPO_FILE": "/opt/microsoft/ndv5/topo.xml",
              "NCCL_IGNORE_CPU_AFFINITY": "1"},
        source="github.com/Azure/azhpc-images topology/ndv5-topo.xml and customizations/ndv5.sh "
        "(/etc/nccl.conf); learn.microsoft.com ND H100 v5; run "
        "scripts that "
        "set NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml; recorded NDv4 sysinfo of superbench-results for the "
        "shape",
        story="CycleCloud nodes of the HPC image. eth0 and the accelerated-networking function are one interface.",
        product="Microsoft Corporation Virtual Machine", asset_tag="7783-7084-3265-9085-8269-3286-77",
        gpu=parts.H100, gpus=gpus, cards=[*cards, accelerated],
        interfaces=[nic("eth0", "10.0.4.{n}/20", speed_mbit=100_000, driver="hv_netvsc")],
        control="eth0", names="ndh100-{n}", counts=(1, 2, 4),
        numa=(("0-47", 950), ("48-95", 950)), cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8480C",
        kernel="5.15.0-1064-azure", command_line="BOOT_IMAGE=/boot/vmlinuz-5.15.0-1064-azure root=UUID=1 ro",
        iommu=ABSENT, iommus=(), hypervisor=True, governor=NO_GOVERNOR, clocksource="hyperv_clocksource_tsc_page",
        mounts=("nfs4", "anf:/shared"),
        profiles={"azure": profile, "azure-megatron": {
            **MEGATRON, **profile, "NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_PXN_DISABLE": "1",
            "NCCL_IGNORE_CPU_AFFINITY": "1", "NCCL_P2P_NET_CHUNKSIZE": "524288", "NCCL_MIN_NCHANNELS": "32"}},
    )  # fmt: skip


def oci_h100() -> Plan:
    """Sixteen RoCE ports of eight cards, two beside each GPU, and two cards of the front end."""
    nics = ["0c", "2a", "41", "58", "86", "a5", "bd", "d5"]
    gpus = ["0f", "2d", "44", "5b", "89", "a8", "c0", "d8"]
    hcas = [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17]
    groups = [
        switch(f"0000:{int(card, 16) - 3:02x}", int(place > 3), f"0000:{card}:00.0", f"0000:{card}:00.1",
               f"0000:{gpu}:00.0")
        for place, (card, gpu) in enumerate(zip(nics, gpus, strict=True))
    ]  # fmt: skip
    slots = [slot for group in groups for slot in group[:2]]
    rails = [
        Card(f"mlx5_{hca}", slot, 200.0, "Ethernet", f"rdma{rail}", f"10.224.{rail * 16}.{{n}}/12", mtu=4220,
             board="ORC0000000007", firmware="28.39.2048")
        for rail, (hca, slot) in enumerate(zip(hcas, slots, strict=True))
    ]  # fmt: skip
    front = direct("0000:1c", 0, "0000:1f:00.0", 16.0)
    fronts = [
        Card("mlx5_2", front, 100.0, "Ethernet", "eth0", "10.140.0.{n}/20", mtu=9000, model="MT4125",
             board="ORC0000000006", firmware="22.39.2048", data=False),
        Card("mlx5_11", front.at("0000:1f:00.1"), 100.0, "Ethernet", "eth1", mtu=9000, model="MT4125",
             board="ORC0000000006", firmware="22.39.2048", up=False, data=False),
    ]  # fmt: skip
    hca_list = "=" + ",".join(card.hca for card in rails)
    profile = {
        "NCCL_DEBUG": "WARN", "NCCL_CUMEM_ENABLE": "0", "NCCL_IB_SPLIT_DATA_ON_QPS": "0", "NCCL_IB_GID_INDEX": "3",
        "NCCL_IB_HCA": hca_list, "NCCL_IB_TC": "41", "NCCL_IB_SL": "0", "NCCL_IB_TIMEOUT": "22",
        "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IGNORE_CPU_AFFINITY": "1", "UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0",
        "NCCL_NET_PLUGIN": "none",
    }  # fmt: skip
    return Plan(
        kind="oci-bm-gpu-h100",
        source="github.com/oracle-quickstart/oci-hpc-oke manifests (oci-nccl-parameters of BM.GPU.H100.8); "
        "nccl-tests of "
        "BM.GPU.H100.8 on Oracle Linux 8.9 (bus numbers 0f, 2d, ...); docs.oracle.com cluster networks "
        "(10.224.0.0/12)",
        story="Bare metal of a cluster network. All rails are in one /12, which Oracle's agent configures.",
        product="Oracle Corporation ORACLE SERVER E6-2c", asset_tag="OracleCloud.com", gpu=parts.H100,
        gpus=[group[2] for group in groups], cards=[*rails, *fronts], interfaces=[], control="eth0",
        names="inst-{n}-h100", cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8480+",
        system="Oracle Linux Server 8.9", kernel="5.15.0-206.153.7.1.el8uek.x86_64", mounts=("nfs4",
        "10.140.0.4:/fss"),
        command_line="BOOT_IMAGE=(hd0,gpt2)/vmlinuz-5.15.0 ro intel_iommu=on iommu=pt", counts=(1, 2, 4),
        profiles={"oci": profile, "oci-nemo": {**NEMO, **profile}},
    )  # fmt: skip


def vm_passthrough() -> Plan:
    """A guest with eight GPUs, eight virtual functions of InfiniBand, and a topology file."""
    gpus = [
        Slot(f"0000:{8 + place:02x}:00.0", "pci0000:00", (f"0000:00:02.{place}",), int(place > 3), link=False)
        for place in range(8)
    ]
    cards = [
        Card(f"mlx5_{place}", Slot(f"0000:{16 + place:02x}:00.0", "pci0000:00", (f"0000:00:03.{place}",),
                                   int(place > 3), link=False), model=CONNECTX7_VF)
        for place in range(8)
    ]  # fmt: skip
    profile = {"NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "eth0", "UCX_NET_DEVICES": "mlx5_0:1",
               "NCCL_TOPO_FILE": "/etc/nccl-topo-h100-v1.xml"}  # fmt: skip
    return Plan(
        kind="vm-passthrough",
        source="docs.nebius.com and skypilot examples/nebius (NCCL_IB_HCA=mlx5, UCX_NET_DEVICES, NCCL_TOPO_FILE "
        "of the VM "
        "image); docs.nvidia.com vGPU: nvidia-topologyd and /var/run/nvidia-topologyd/virtualTopology.xml",
        story="KVM guests of a provider. IPoIB is not configured; TCP goes over virtio.",
        product="QEMU Standard PC (Q35 + ICH9, 2009)", gpu=parts.H100, gpus=gpus, cards=cards,
        interfaces=[nic("eth0", "10.70.0.{n}/24", mtu=1500, speed_mbit=UNTOLD_SPEED, driver="virtio_net")],
        control="eth0", names="computeinstance-{n}", numa=(("0-79", 800), ("80-159", 800)),
        kernel="5.15.0-140-generic", command_line="BOOT_IMAGE=/boot/vmlinuz-5.15.0-140-generic root=LABEL=root ro",
        iommu=ABSENT, iommus=(), hypervisor=True, governor=NO_GOVERNOR, clocksource="kvm-clock",
        topology_file=True,
        mounts=("virtiofs", "shared"), counts=(1, 2, 4), profiles={"provider": profile, "nemo": {**NEMO,
        **profile}},
    )  # fmt: skip

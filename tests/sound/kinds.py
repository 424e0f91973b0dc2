"""The kinds of sound machines. Each says where its facts are from; the rest is what such a node has."""

from __future__ import annotations

from ncclcheck.probes.facts import Governor, Interface, Node, NvFabric, Unread, known, replace
from tests.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.machine import OFED, Plan
from tests.sound.parts import Card, Slot, direct, switch, virtual

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


def dgx_h100() -> Plan:
    """Eight compute ports of InfiniBand, two storage ports, two Ethernet ports of the same cards in a bond."""
    buses = ["18", "40", "4f", "5e", "9a", "c0", "ce", "dc"]
    gpus = ["1b", "43", "52", "61", "9d", "c3", "d1", "df"]
    hcas = [0, 3, 4, 5, 6, 9, 10, 11]
    roots = ["15", "37", "48", "57", "97", "b7", "c7", "d7"]
    pairs = [
        switch(f"0000:{root}", int(place > 3), f"0000:{nic_}:00.0", f"0000:{gpu}:00.0")
        for place, (root, nic_, gpu) in enumerate(zip(roots, buses, gpus, strict=True))
    ]
    compute = [
        Card(f"mlx5_{hca}", pair[0], netdev=f"ibp{int(bus, 16)}s0", net=f"100.126.{rail + 1}.{{n}}/24")
        for rail, (hca, bus, pair) in enumerate(zip(hcas, buses, pairs, strict=True))
    ]
    first, second = direct("0000:26", 0, "0000:29:00.0"), direct("0000:a7", 1, "0000:aa:00.0")
    storage = [
        Card("mlx5_1", first, netdev="ibp41s0f0", net="100.127.1.{n}/24", data=False),
        Card("mlx5_2", first.at("0000:29:00.1"), 100.0, "Ethernet", "enp41s0f1np1", mtu=1500, data=False),
        Card("mlx5_7", second, netdev="ibp170s0f0", net="100.127.2.{n}/24", data=False),
        Card("mlx5_8", second.at("0000:aa:00.1"), 100.0, "Ethernet", "enp170s0f1np1", mtu=1500, data=False),
    ]
    cards = sorted([*compute, *storage], key=lambda card: int(card.hca.partition("_")[2]))
    return Plan(
        kind="dgx-h100",
        source="docs.nvidia.com/dgx/dgxh100-user-guide: network interfaces, PCIe bus IDs; DGX SuperPOD reference "
        "architecture; github.com/bytedance/flux/issues/14 (nvidia-smi topo -m)",
        story="A SuperPOD node. Storage ports are InfiniBand of another fabric; bond0 is for management.",
        product="NVIDIA DGXH100", gpu=parts.H100, gpus=[pair[1] for pair in pairs], cards=cards,
        interfaces=[
            nic("bond0", "10.41.8.{n}/24", kind="bond", speed_mbit=200_000,
                members=["enp41s0f1np1", "enp170s0f1np1"], driver=ABSENT),
            nic("eno3", kind="physical", up=False, running=False, driver="i40e"),
            DOCKER,
        ],
        control="bond0", names="dgx-{n}", kernel="5.15.0-1063-nvidia", counts=(1, 2, 4, 16), root=True,
        driver="570.133.20",
        profiles={
            "superpod": {"NCCL_IB_HCA": "=mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11",
                         "NCCL_SOCKET_IFNAME": "bond0"},
            "nemo": {**NEMO, "NCCL_P2P_NET_CHUNKSIZE": "2097152", "OMP_NUM_THREADS": "1"},
        },
    )  # fmt: skip


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
        plugins=(plugin, tuner), product_of_plugin="aws-ofi-nccl 1.14.2", hypervisor=True, governor=NO_GOVERNOR,
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


def _hgx(nics: list[str], gpus: list[str]) -> list[list[Slot]]:
    """Eight pairs of a network card and a GPU below one switch each."""
    return [
        switch(f"0000:{int(card, 16) - 3:02x}", int(place > 3), f"0000:{card}:00.0", f"0000:{gpu}:00.0")
        for place, (card, gpu) in enumerate(zip(nics, gpus, strict=True))
    ]


_NICS = ["1d", "33", "49", "5f", "9d", "b3", "c9", "df"]
_GPUS = ["1e", "34", "4a", "60", "9e", "b4", "ca", "e0"]


def kubernetes_sriov() -> Plan:
    """A pod sees all devices of the host in sysfs, and has files and interfaces of its own functions."""
    pairs = _hgx(_NICS, _GPUS)
    physical = [
        Card(f"mlx5_{rail}", pair[0], 400.0, "Ethernet", ours=False, data=False) for rail, pair in enumerate(pairs)
    ]
    functions = [
        Card(f"mlx5_{8 + 2 * rail + other}", _function(pair[0], 2 + other), 400.0, "Ethernet",
             "" if other else f"net{rail + 1}", "" if other else f"192.168.{rail + 1}.{{n}}/24", mtu=9000,
             model=CONNECTX7_VF, ours=not other, data=not other)
        for rail, pair in enumerate(pairs)
        for other in (0, 1)
    ]  # fmt: skip
    profile = {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_GID_INDEX": "3",
        "NCCL_IB_TC": "106",
        "NCCL_IB_HCA": "=" + ",".join(card.hca for card in functions if card.ours),
    }  # fmt: skip
    return Plan(
        kind="kubernetes-sriov",
        source="docs.nvidia.com/networking network-operator: SR-IOV network with RDMA, secondary networks net1 "
        "to net8; "
        "github.com/k8snetworkplumbingwg/sriov-network-device-plugin (shared RDMA namespace)",
        story="Worker pods of an MPIJob on HGX H100. Each rail has a function of ours and one of another pod.",
        product="Supermicro SYS-821GE-TNHR", gpu=parts.H100, gpus=[pair[1] for pair in pairs],
        cards=[*physical, *functions],
        interfaces=[nic("eth0", "10.244.3.{n}/24", kind="veth", mtu=1450, speed_mbit=UNTOLD_SPEED, driver="veth")],
        control="eth0", names="job-worker-{n}", launcher="ssh", pod=True, system="Ubuntu 24.04.2 LTS",
        kernel="6.8.0-57-generic", command_line="BOOT_IMAGE=/boot/vmlinuz ro intel_iommu=on iommu=pt",
        mounts=("nfs4", "filer:/pvc-1"), counts=(1, 2, 8),
        profiles={"operator": profile, "operator-nemo": {**NEMO, **profile}},
    )  # fmt: skip


def _function(slot: Slot, number: int) -> Slot:
    """A virtual function of the card in this slot: on the same port of the switch."""
    return Slot(slot.pci[:-1] + str(number), slot.root, slot.path, slot.numa, link=False, vf=True)


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


def l40s_roce() -> Plan:
    """Four GPUs on root ports, one card with two 200 Gb/s ports."""
    gpus = [
        direct("0000:17", 0, "0000:18:00.0", 16.0), direct("0000:3d", 0, "0000:3e:00.0", 16.0),
        direct("0000:97", 1, "0000:98:00.0", 16.0), direct("0000:bd", 1, "0000:be:00.0", 16.0),
    ]  # fmt: skip
    card = direct("0000:37", 0, "0000:38:00.0", 32.0)
    cards = [
        Card(f"mlx5_{port}", card.at(f"0000:38:00.{port}"), 200.0, "Ethernet", f"ens3f{port}np{port}",
             f"10.20.{port + 1}.{{n}}/24", mtu=9000, traffic_class="Global tclass=106")
        for port in (0, 1)
    ]  # fmt: skip
    return Plan(
        kind="l40s-roce",
        source="nvidia-smi -q of L40S (recorded, utkuozdemir/nvidia_gpu_exporter); "
        "github.com/warpem/miss-alignment/issues/106 (nvidia-smi topo -m of four L40S: NODE and SYS); NVIDIA OVX "
        "L40S",
        story="OVX-like servers without NVLink. A dual-port ConnectX-7 at 2x200G; ports in subnets of their own.",
        product="Dell Inc. PowerEdge R760xa", gpu=parts.L40S, gpus=gpus, cards=cards,
        interfaces=[wire("eno8303", "10.10.0.{n}/24", 1, driver="tg3")],
        control="eno8303", names="ovx{n}", cpu="GenuineIntel Intel(R) Xeon(R) Gold 6448Y",
        numa=(("0-31,64-95", 512), ("32-63,96-127", 512)), kernel="6.8.0-57-generic",
        system="Ubuntu 24.04.2 LTS", command_line="BOOT_IMAGE=/boot/vmlinuz ro iommu=pt intel_iommu=on",
        open_driver=True, peer_modules=(), counts=(1, 2, 6),
        profiles={
            "site": {"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_IB_GID_INDEX": "3", "NCCL_SOCKET_IFNAME": "=eno8303",
                     "NCCL_IB_TC": "106"},
            "megatron": MEGATRON,
        },
    )  # fmt: skip


def gb200_nvl72() -> Plan:
    """A compute tray: four GPUs that are one NVLink domain with those of the other trays."""
    gpus = [
        direct("0008:00", 0, "0008:01:00.0"), direct("0009:00", 0, "0009:01:00.0"),
        direct("0018:00", 1, "0018:01:00.0"), direct("0019:00", 1, "0019:01:00.0"),
    ]  # fmt: skip
    places = [("0000", 0), ("0002", 0), ("0010", 1), ("0012", 1)]
    cards = [
        Card(f"mlx5_{hca}", direct(f"{domain}:00", numa, f"{domain}:03:00.0"), netdev=f"ibP{int(domain, 16)}p3s0",
             net=f"100.126.{hca + 1}.{{n}}/24")
        for hca, (domain, numa) in zip((0, 1, 3, 4), places, strict=True)
    ]  # fmt: skip
    field3 = [
        Card(f"mlx5_{hca}", direct(f"{domain}:00", numa, f"{domain}:03:00.0"), 200.0, "Ethernet",
             f"enP{int(domain, 16)}p3s0f0np0", mtu=9000, model="MT41692", board="MT_0000000884",
             firmware="32.43.2026", data=False)
        for hca, domain, numa in ((2, "0006", 0), (5, "0016", 1))
    ]  # fmt: skip
    return Plan(
        kind="gb200-nvl72", tweak=_in_one_clique, imex=("channel0",),
        source="docs.nvidia.com/multi-node-nvlink-systems: imex, nvidia-smi topo -m of GB200; "
        "github.com/NVIDIA/k8s-test-infra/issues/371 (topo -m of a tray: 0-71 and 72-143); nvml-mock gb200 "
        "profile",
        story="Trays of one NVL72 rack: the GPUs of all are in one clique, so that NVLink carries what crosses "
        "trays.",
        product="NVIDIA GB200 NVL", gpu=parts.GB200, gpus=gpus,
        cards=sorted([*cards, *field3], key=lambda card: card.hca),
        interfaces=[
            nic("bond0", "10.30.0.{n}/24", kind="bond", mtu=9000, speed_mbit=400_000,
                members=["enP6p3s0f0np0", "enP22p3s0f0np0"], driver=ABSENT),
        ],
        control="bond0", names="gb200-{n}", cpu="ARM Neoverse-V2", numa=(("0-71", 480), ("72-143", 480)),
        system="Ubuntu 24.04.2 LTS", kernel="6.8.0-1028-nvidia-64k",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro iommu.passthrough=1 init_on_alloc=0",
        iommus=("smmu3.0x11000000",),
        driver="575.57.08", cuda="12.9", nccl="2.27.5", torch="2.9.0+cu129", open_driver=True, peer_modules=(),
        hypervisor=NOT_OF_THIS_CPU, governor=Governor(names=["performance"], driver="cppc_cpufreq",
        preference=ABSENT),
        clocksource="arch_sys_counter", page=512 * 2**20, counts=(1, 2, 16),
        profiles={
            "nemo": {**MEGATRON, "NCCL_NVLS_ENABLE": "1", "NCCL_CUMEM_ENABLE": "1", "NCCL_MNNVL_ENABLE": "1",
                     "NCCL_NET_GDR_C2C": "1", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1"},
            "site": {"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_3,mlx5_4", "NCCL_SOCKET_IFNAME": "bond0"},
        },
    )  # fmt: skip


def _in_one_clique(node: Node) -> Node:
    """Registered with the rack's NVLink domain."""
    gpus = known(node.gpus)
    domain = NvFabric(
        state="completed", health="healthy", cluster="8d1f3c5a97b24c0ea4b5dd1f4c3b2a19", clique=32766
    )
    return replace(node, gpus=replace(gpus, cards=[replace(card, fabric=domain) for card in known(gpus.cards)]))


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


_INSTANCE = "MIG-6b5f0f3c-7d0e-5a4e-9f0e-6f6d3f5a2a11"


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


def coreweave_h100() -> Plan:
    """A pod with all InfiniBand devices of its host, and no interface of theirs."""
    pairs = _hgx(_NICS, _GPUS)
    cards = [Card(f"ibp{rail}", pair[0]) for rail, pair in enumerate(pairs)]
    profile = {
        "KUBERNETES_SERVICE_HOST": "10.16.0.1", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "ibp",
        "UCX_NET_DEVICES": ",".join(f"ibp{rail}:1" for rail in range(8)), "NCCL_COLLNET_ENABLE": "0",
    }  # fmt: skip
    return Plan(
        kind="coreweave-h100",
        source="github.com/coreweave/nccl-tests MPIJob manifests (rdma/ib: 1, NCCL_IB_HCA=ibp, "
        "NCCL_SOCKET_IFNAME=eth0); "
        "skypilot examples/coreweave_nccl_test.yaml",
        story="Pods of the managed Kubernetes. The BlueField card of the host is not among what the pod sees.",
        product="Supermicro SYS-821GE-TNHR", gpu=parts.H100, gpus=[pair[1] for pair in pairs], cards=cards,
        interfaces=[nic("eth0", "10.0.12.{n}/32", kind="veth", mtu=9000, speed_mbit=UNTOLD_SPEED, driver="veth")],
        control="eth0", gateway="169.254.1.1", names="nccl-worker-{n}", launcher="ssh", pod=True,
        kernel="6.5.13-65-650-4141-22041-coreweave", command_line="BOOT_IMAGE=/boot/vmlinuz ro iommu=off",
        iommu=ABSENT,
        iommus=(), mounts=("nfs4", "vast:/pvc"), counts=(1, 2, 16), profiles={
            "coreweave": profile,
            "coreweave-sharp": {**profile, "NCCL_COLLNET_ENABLE": "1",
            "SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING": "1",
                                "NCCL_ALGO": "Ring,Tree,NVLS,NVLSTree,CollNetDirect,CollNetChain"}},
    )  # fmt: skip


def slingshot_a100() -> Plan:
    """Four GPUs linked in pairs of four links each, four Cassini cards, libfabric's cxi below the plugin."""
    buses = ["03", "41", "82", "c1"]
    gpus = [direct(f"0000:{int(bus, 16) - 3:02x}", 3 - place, f"0000:{bus}:00.0", 16.0)
            for place, bus in enumerate(buses)]  # fmt: skip
    nics = ["21", "61", "a1", "e1"]
    cards = [
        Card("", direct(f"0000:{int(bus, 16) - 1:02x}", 3 - place, f"0000:{bus}:00.0", 16.0), 200.0, "Ethernet",
             f"hsn{place}", f"10.249.{place}.{{n}}/16", mtu=9000, driver="cxi_core")
        for place, bus in enumerate(nics)
    ]  # fmt: skip
    nersc = {
        "NCCL_SOCKET_IFNAME": "hsn", "NCCL_NET": "AWS Libfabric", "NCCL_CROSS_NIC": "1",
        "NCCL_NET_GDR_LEVEL": "PHB",
        "FI_CXI_DISABLE_HOST_REGISTER": "1", "FI_MR_CACHE_MONITOR": "userfaultfd",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
        "FI_CXI_RDZV_PROTO": "alt_read", "FI_CXI_RDZV_GET_MIN": "0", "FI_CXI_RDZV_THRESHOLD": "0",
        "FI_CXI_RDZV_EAGER_SIZE": "0", "LD_LIBRARY_PATH": "/global/common/software/nersc9/nccl/plugin/lib",
    }  # fmt: skip
    return Plan(
        kind="slingshot-a100",
        source="docs.nersc.gov/systems/perlmutter/architecture; docs.nersc.gov and docs.isambard.ac.uk on NCCL "
        "over "
        "Slingshot (NCCL_NET='AWS Libfabric', FI_CXI_*); github.com/eth-cscs/cscs-docs communication/nccl",
        story="HPE Cray EX nodes. The cards are no verbs devices; the plugin reaches them through libfabric.",
        product="HPE HPE_CRAY_EX235n", gpu=parts.A100_SXM, gpus=gpus, cards=cards,
        interfaces=[wire("nmn0", "10.100.0.{n}/22", 1, driver="igb")],
        control="hsn0", gateway="10.249.255.254", names="nid0010{n}",
        cpu="AuthenticAMD AMD EPYC 7763 64-Core Processor",
        numa=(("0-15,64-79", 64), ("16-31,80-95", 64), ("32-47,96-111", 64), ("48-63,112-127", 64)),
        system="SUSE Linux Enterprise Server 15 SP5", kernel="5.14.21-150500.55.65_13.0.73-cray_shasta_c",
        command_line="kernel initrd=initrd ro iommu=pt", iommus=("ivhd0", "ivhd1", "ivhd2", "ivhd3"),
        driver="550.163.01", cuda="12.4", nccl="2.24.3", torch="2.6.0+cu124", peer_modules=(),
        plugins=("/global/common/software/nersc9/nccl/plugin/lib/libnccl-net.so",),
        product_of_plugin="aws-ofi-nccl 1.14.0", counts=(1, 2, 4),
        governor=Governor(names=["performance"], driver="acpi-cpufreq", preference=ABSENT),
        mounts=("lustre", "10.249.0.1@kfi:/pscratch"), profiles={"nersc": nersc, "nersc-megatron": {**MEGATRON,
        **nersc}},
    )  # fmt: skip


def h200_roce() -> Plan:
    """Two nodes of eight 400 Gb/s RoCE rails, each rail a subnet of its own."""
    pairs = _hgx(_NICS, _GPUS)
    cards = [
        Card(f"mlx5_{rail}", pair[0], 400.0, "Ethernet", f"ens{rail + 1}np0", f"10.200.{rail + 1}.{{n}}/24",
        mtu=9000,
             traffic_class="Global tclass=106")
        for rail, pair in enumerate(pairs)
    ]  # fmt: skip
    profile = {
        "NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "106", "NCCL_IB_HCA": ",".join(card.hca for card in cards),
        "NCCL_SOCKET_IFNAME": "bond0", "NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_TIMEOUT": "22",
    }  # fmt: skip
    field3 = Card("mlx5_bond_0", direct("0000:6b", 0, "0000:6c:00.0"), 200.0, "Ethernet", "enp108s0f0np0",
        mtu=1500,
                  model="MT41692", board="MT_0000000884", firmware="32.38.3056", data=False)  # fmt: skip
    return Plan(
        kind="h200-roce",
        source="juniper.net JVD AI data centre appendix D (GID table of an H100/H200 rail, 10.200.1.0/24); "
        "docs.nvidia.com "
        "Spectrum-X; recorded mlx5_bond_0 of an HGX node (leptonai/gpud testdata)",
        story="HGX H200 behind a leaf-spine of Ethernet with PFC on DSCP 26, which traffic class 106 selects.",
        product="Dell Inc. PowerEdge XE9680", gpu=parts.H200, gpus=[pair[1] for pair in pairs],
        cards=[*cards, field3],
        interfaces=[nic("bond0", "10.10.1.{n}/24", kind="bond", speed_mbit=200_000, members=["enp108s0f0np0"],
                        driver=ABSENT)],
        control="bond0", names="h200-{n}", counts=(1, 2), kernel="5.15.0-140-generic", root=True,
        profiles={"site": profile, "nemo": {**NEMO, **profile}},
    )  # fmt: skip


def hgx_b200() -> Plan:
    """Eight compute ports of InfiniBand, and four ports of the NVLink switches that look like more of them."""
    pairs = _hgx(_NICS, _GPUS)
    cards = [
        Card(f"mlx5_{rail}", pair[0], netdev=f"ibs{rail + 1}", net=f"100.126.{rail + 1}.{{n}}/24")
        for rail, pair in enumerate(pairs)
    ]
    bridge = [direct("0000:05", 0, "0000:07:00.0", 16.0, 2), direct("0000:08", 0, "0000:0a:00.0", 16.0, 2)]
    switches = [
        Card(f"mlx5_{8 + 2 * place + function}", slot.at(f"{slot.pci[:-1]}{function}"), 400.0, model="MT4129",
             board="NVD0000000054", firmware="28.43.2566", data=False,
             netdev=f"ibp{int(slot.pci[5:7], 16)}s0f{function}")
        for place, slot in enumerate(bridge)
        for function in (0, 1)
    ]  # fmt: skip
    return Plan(
        kind="hgx-b200",
        source="github.com/siderolabs/extensions/issues/893 (mlx5_8 to mlx5_11 of an HGX B200 are NVSwitch ports "
        "with a "
        "subnet manager of their own, nvlsm); github.com/aws/sagemaker-hyperpod-cli/pull/282 (the same on "
        "p6-b200)",
        story="A node whose NVLink switches are managed through four InfiniBand ports, which carry no data of "
        "NCCL.",
        product="Supermicro SYS-822GA-NBRT", gpu=parts.B200, gpus=[pair[1] for pair in pairs],
        cards=[*cards, *switches],
        interfaces=[wire("eno1np0", "10.50.0.{n}/24", 25, driver="bnxt_en")],
        control="eno1np0", names="b200-{n}", cpu="GenuineIntel Intel(R) Xeon(R) 6960P",
        numa=(("0-71,144-215", 1536), ("72-143,216-287", 1536)), system="Ubuntu 24.04.2 LTS",
        kernel="6.8.0-57-generic", driver="570.133.20", nccl="2.27.5", torch="2.8.0+cu128", open_driver=True,
        peer_modules=(), counts=(1, 2, 4),
        profiles={
            "site": {"NCCL_IB_HCA": "=" + ",".join(card.hca for card in cards), "NCCL_SOCKET_IFNAME": "eno1np0"},
            "nemo": NEMO,
        },
    )  # fmt: skip


def a100_pcie() -> Plan:
    """Four boards without NVLink below two switches, one InfiniBand card."""
    first = switch("0000:20", 0, "0000:23:00.0", "0000:24:00.0", gts=16.0)
    second = switch("0000:a0", 1, "0000:a3:00.0", "0000:a4:00.0", "0000:a5:00.0", gts=16.0)
    card = Card("mlx5_0", second[2], 200.0, netdev="ib0", net="10.60.0.{n}/24", mtu=2044, model="MT4123",
                board="MT_0000000223", firmware="20.43.1014")  # fmt: skip
    return Plan(
        kind="a100-pcie",
        source="Supermicro AS-4124GS-TNR manual (PCIe switches, four boards each socket); hpc.fau.de Alex "
        "cluster (two "
        "HDR200 cards and PCIe boards); docs.nvidia.com A100 PCIe product brief (250 W)",
        story="A university's node: no NVLink bridges are fitted; P2P goes through the switches.",
        product="Supermicro AS -4124GS-TNR", gpu=parts.A100_PCIE, gpus=[*first, *second[:2]], cards=[card],
        interfaces=[wire("eno1", "10.61.0.{n}/24", 10, driver="ixgbe")],
        control="eno1", names="gpu{n}", cpu="AuthenticAMD AMD EPYC 7543 32-Core Processor",
        numa=(("0-31,64-95", 256), ("32-63,96-127", 256)), system="Rocky Linux 9.5 (Blue Onyx)",
        kernel="5.14.0-503.40.1.el9_5.x86_64", command_line="BOOT_IMAGE=(hd0,gpt2)/vmlinuz ro iommu=pt",
        iommus=("ivhd0", "ivhd1", "ivhd2", "ivhd3"), driver="550.163.01", cuda="12.4", nccl="2.21.5",
        torch="2.6.0+cu124", mounts=("nfs4", "filer:/home"), counts=(1, 2, 4),
        governor=Governor(names=["performance"], driver="acpi-cpufreq", preference=ABSENT),
        profiles={"site": {"NCCL_SOCKET_IFNAME": "ib0"}, "megatron": MEGATRON},
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


def grace_hopper() -> Plan:
    """One superchip: a GPU that shares its memory with the CPU, and one Ethernet card."""
    card = Card("mlx5_0", direct("0002:00", 0, "0002:01:00.0"), 200.0, "Ethernet", "enP2s2f0np0", "10.80.0.{n}/24",
                mtu=1500, model="MT41692", board="MT_0000000884", firmware="32.43.2026", data=False)  # fmt: skip
    return Plan(
        kind="grace-hopper",
        source="docs.nvidia.com Grace performance tuning guide; Supermicro ARS-111GL-NHR manual; nvidia-smi of "
        "GH200 480GB "
        "(97871 MiB, 900 W) in public threads",
        story="A developer's node with one GH200. There is nothing to communicate with but itself.",
        product="Supermicro ARS-111GL-NHR", gpu=parts.GH200, gpus=[direct("0009:00", 0, "0009:01:00.0")],
        cards=[card], interfaces=[], control="enP2s2f0np0", names="gh{n}", counts=(1,), launcher="local",
        cpu="ARM Neoverse-V2", numa=(("0-71", 480), ("", 96)), system="Ubuntu 24.04.2 LTS",
        kernel="6.8.0-1028-nvidia-64k", command_line="BOOT_IMAGE=/boot/vmlinuz ro init_on_alloc=0",
        iommu="DMA-FQ", iommus=("smmu3.0x10000000",), open_driver=True, peer_modules=(),
        hypervisor=NOT_OF_THIS_CPU, governor=Governor(names=["performance"], driver="cppc_cpufreq",
        preference=ABSENT),
        clocksource="arch_sys_counter", page=512 * 2**20, mounts=("ext4", "/dev/nvme0n1p2"),
        profiles={"megatron": MEGATRON},
        expected={"RDM015": "Its only card is RoCE with Ethernet's MTU: as soon as a second node joins, RDMA "
                            "sends packets of 1024 bytes, and nothing else would say so."},
    )  # fmt: skip


PLANS: list[Plan] = [
    make()
    for make in (
        dgx_h100, aws_p5, gcp_a3_mega, gcp_a3_ultra, azure_nd_h100, kubernetes_sriov, desktop_one, desktop_two,
        l40s_roce, gb200_nvl72, mig_node, oci_h100, coreweave_h100, slingshot_a100, h200_roce, hgx_b200, a100_pcie,
        vm_passthrough, grace_hopper,
    )
]  # fmt: skip

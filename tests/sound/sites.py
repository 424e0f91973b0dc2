"""Nodes of clusters that stand in somebody's own rooms."""

from __future__ import annotations

from ncclcheck.probes.facts import Governor, Node, NvFabric, known, replace
from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.machine import Plan
from tests.sound.parts import Card, direct, switch
from tests.sound.usual import DOCKER, HGX_GPUS, HGX_NICS, MEGATRON, NEMO, NOT_OF_THIS_CPU, hgx, wire


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
        driver="570.133.20", leaves={card.hca: f"leaf-{rail + 1:02}" for rail, card in enumerate(compute)},
        profiles={
            "superpod": {"NCCL_IB_HCA": "=mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11",
                         "NCCL_SOCKET_IFNAME": "bond0"},
            "nemo": {**NEMO, "NCCL_P2P_NET_CHUNKSIZE": "2097152", "OMP_NUM_THREADS": "1"},
        },
    )  # fmt: skip


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
        product_of_plugin="aws-ofi-nccl 1.14.0",
        symbols_of_plugin=("net v6", "net v7", "net v8", "net v9", "net v10"), counts=(1, 2, 4),
        governor=Governor(names=["performance"], driver="acpi-cpufreq", preference=ABSENT),
        mounts=("lustre", "10.249.0.1@kfi:/pscratch"), profiles={"nersc": nersc, "nersc-megatron": {**MEGATRON,
        **nersc}},
    )  # fmt: skip


def h200_roce() -> Plan:
    """Two nodes of eight 400 Gb/s RoCE rails, each rail a subnet of its own."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
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
    pairs = hgx(HGX_NICS, HGX_GPUS)
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

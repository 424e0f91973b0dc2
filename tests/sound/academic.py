"""Supercomputers and nodes of universities.

`source` begins with "read:" where its documents were opened for the names and numbers that they tell; the rest
is what such a node has. Without that word it says where to look, and names and numbers may differ from a real one.
"""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable

from ncclcheck.probes.facts import Governor, Interface, Limits, Node, RuntimeSign, known, replace
from tests.helpers.clusters import ABSENT, address, nic
from tests.sound import parts
from tests.sound.machine import Plan
from tests.sound.others import without_nvidia
from tests.sound.parts import Card, Model, direct, switch
from tests.sound.usual import HGX_GPUS, HGX_NICS, MEGATRON, NEMO, hgx, wire

TORCHRUN = {"MASTER_PORT": "29500", "OMP_NUM_THREADS": "8"}
A100_64 = Model("NVIDIA A100-SXM-64GB", 65536, 440.0, 1395, 1597, 4, 12, 25781, vbios="92.00.45.00.06")
H100_NVL = Model("NVIDIA H100 NVL", 95830, 400.0, 1785, 2619, 5, 12, 26562, vbios="96.00.99.00.01")


def meluxina() -> Plan:
    """Two HDR200 cards for four GPUs, each beside one of them."""
    groups = [
        switch("0000:00", 1, "0000:03:00.0", gts=16.0),
        switch("0000:40", 0, "0000:43:00.0", "0000:44:00.0", gts=16.0),
        switch("0000:80", 3, "0000:83:00.0", "0000:84:00.0", gts=16.0),
        switch("0000:c0", 2, "0000:c4:00.0", gts=16.0),
    ]
    cards = [
        Card(
            "mlx5_0",
            groups[1][0],
            200.0,
            netdev="ib0",
            net="10.3.24.{n}/20",
            mtu=2044,
            model="MT4123",
            board="MT_0000000223",
            firmware="20.38.1002",
        ),
        Card(
            "mlx5_1",
            groups[2][0],
            200.0,
            netdev="ib1",
            net="10.3.40.{n}/20",
            mtu=2044,
            model="MT4123",
            board="MT_0000000223",
            firmware="20.38.1002",
        ),
    ]
    return Plan(
        kind="meluxina-a100",
        source="read: NVIDIA/nccl#595 (topo -m: four A100 at 03, 44, 84, c4; mlx5_0 PIX of GPU1, mlx5_1 PIX of GPU2; NUMA 1, 0, 3, 2; mel2037)",
        story="Two HDR200 cards for four GPUs, each beside one of them.",
        product="Bull SAS BullSequana XH2000",
        gpu=parts.A100_SXM,
        gpus=[groups[0][0], groups[1][1], groups[2][1], groups[3][0]],
        cards=cards,
        interfaces=[wire("eno1", "10.1.24.{n}/20", 1, driver="igb")],
        control="eno1",
        names="mel20{n}",
        cpu="AuthenticAMD AMD EPYC 7452 32-Core Processor",
        numa=(("0-15,64-79", 128), ("16-31,80-95", 128), ("32-47,96-111", 128), ("48-63,112-127", 128)),
        system="Rocky Linux 8.10",
        kernel="4.18.0-553.16.1.el8_10.x86_64",
        command_line="BOOT_IMAGE=vmlinuz ro iommu=pt",
        iommus=("ivhd0", "ivhd1"),
        driver="550.163.01",
        cuda="12.4",
        nccl="2.21.5",
        torch="2.6.0+cu124",
        governor=Governor(names=["performance"], driver="acpi-cpufreq", preference=ABSENT),
        counts=(1, 2, 8),
        profiles={"site": {"NCCL_SOCKET_IFNAME": "ib0"}, "megatron": {**MEGATRON, "NCCL_IB_HCA": "mlx5_0,mlx5_1"}},
    )


def juwels() -> Plan:
    """Eight NUMA nodes; a GPU and a card below each of four switches; all TCP over IPoIB."""
    bus = ["03", "44", "84", "c4"]
    groups = [
        switch(
            f"0000:{r}",
            n,
            f"0000:{int(b, 16) + 1:02x}:00.0",
            f"0000:{b}:00.0",
            gts=16.0,
        )
        for r, b, n in zip(("00", "40", "80", "c0"), bus, (3, 1, 7, 5), strict=True)
    ]
    cards = [
        Card(
            f"mlx5_{i}",
            g[0],
            200.0,
            netdev=f"ib{i}",
            net=f"10.{13 + i}.16.{{n}}/16",
            mtu=2044,
            model="MT4123",
            board="MT_0000000223",
            firmware="20.36.1010",
        )
        for i, g in enumerate(groups)
    ]
    return Plan(
        kind="juwels-booster",
        source="apps.fz-juelich.de/jsc/hps/juwels booster overview (4 A100, 4 HDR200 CX-6, two EPYC 7402, NPS4: GPUs on NUMA 3, 1, 7, 5)",
        story="NPS4; all traffic, TCP too, over IPoIB with the i-suffix names.",
        product="Bull SAS BullSequana X2415",
        gpu=parts.A100_SXM,
        gpus=[g[1] for g in groups],
        cards=cards,
        interfaces=[],
        control="ib0",
        names="jwb00{n}",
        cpu="AuthenticAMD AMD EPYC 7402 24-Core Processor",
        numa=tuple((f"{6 * i}-{6 * i + 5},{48 + 6 * i}-{53 + 6 * i}", 64) for i in range(8)),
        system="Rocky Linux 9.4",
        kernel="5.14.0-427.el9.x86_64",
        command_line="BOOT_IMAGE=vmlinuz ro iommu=pt",
        iommus=("ivhd0", "ivhd1"),
        driver="560.35.03",
        cuda="12.6",
        nccl="2.23.4",
        torch="2.6.0+cu126",
        governor=Governor(names=["performance"], driver="acpi-cpufreq", preference=ABSENT),
        counts=(1, 2, 4),
        profiles={
            "jsc": {
                "NCCL_SOCKET_IFNAME": "ib0",
                "GLOO_SOCKET_IFNAME": "ib0",
                "NCCL_IB_TIMEOUT": "50",
                "UCX_RC_TIMEOUT": "4s",
                "NCCL_IB_RETRY_CNT": "10",
            },
            "torchrun": {**TORCHRUN, "NCCL_SOCKET_IFNAME": "ib0"},
        },
    )


def leonardo() -> Plan:
    """One socket, four GPUs, and two cards with two ports of 100 Gb/s each."""
    bus = ["1d", "56", "8f", "c8"]
    gpus = [direct(f"0000:{int(b, 16) - 1:02x}", 0, f"0000:{b}:00.0", 16.0) for b in bus]
    n1, n2 = direct("0000:31", 0, "0000:32:00.0", 16.0), direct("0000:a2", 0, "0000:a3:00.0", 16.0)
    slots = [n1, n1.at("0000:32:00.1"), n2, n2.at("0000:a3:00.1")]
    cards = [
        Card(
            f"mlx5_{i}",
            s,
            100.0,
            netdev=f"ib{i}",
            net="10.128.0.{n}/15" if i == 0 else "",
            mtu=2044,
            model="MT4123",
            board="MT_0000000224",
            firmware="20.35.3006",
        )
        for i, s in enumerate(slots)
    ]
    return Plan(
        kind="leonardo-booster",
        source="docs.hpc.cineca.it Leonardo Booster (4 custom A100 64GB, two dual-port HDR100, one Xeon 8358 32 cores, 512 GB)",
        story="One socket; two ports of 100 Gb/s a card; GPUs and cards on root ports of their own.",
        product="Bull SAS BullSequana X2135",
        gpu=A100_64,
        gpus=gpus,
        cards=cards,
        interfaces=[wire("eno1", "10.2.0.{n}/16", 1, driver="igb")],
        control="ib0",
        names="lrdn00{n}",
        cpu="GenuineIntel Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz",
        numa=(("0-15", 256), ("16-31", 256)),
        system="Red Hat Enterprise Linux 8.7",
        kernel="4.18.0-425.19.2.el8_7.x86_64",
        command_line="BOOT_IMAGE=vmlinuz ro iommu=pt",
        iommus=("dmar0",),
        driver="535.54.03",
        cuda="12.2",
        nccl="2.18.5",
        torch="2.1.2+cu121",
        counts=(1, 2, 4),
        profiles={
            "cineca": {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_SL": "1", "UCX_IB_SL": "1"},
        },
    )


def abci3() -> Plan:
    """Eight ports of 200 Gb/s on cards that could have 400, in a container of Singularity."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
    cards = [
        Card(f"mlx5_ibn{i}", p[0], 200.0, netdev=f"ibn{i}", net=f"10.{50 + i}.0.{{n}}/16", board="MT_0000000844")
        for i, p in enumerate(pairs)
    ]
    front = Card(
        "mlx5_eth0",
        direct("0000:6a", 0, "0000:6b:00.0", 16.0),
        25.0,
        "Ethernet",
        "ens1f0np0",
        "10.10.0.{n}/16",
        mtu=1500,
        model="MT4127",
        board="MT_0000000531",
        firmware="26.41.1000",
        data=False,
    )

    def change(node: Node) -> Node:
        c = known(node.container)
        return replace(
            node,
            container=replace(
                c, runtimes=[RuntimeSign(name="apptainer", source="SINGULARITY_NAME")], no_new_privileges=True
            ),
        )

    return Plan(
        kind="abci3-h200",
        source="docs.abci.ai/v3 system overview (HPE Cray XD670, 8 H200, NDR200 x 8); PBS; SingularityPRO",
        story="Eight rails of NDR200 on one-port cards of 400 Gb/s silicon.",
        tweak=change,
        product="HPE HPE Cray XD670",
        gpu=parts.H200,
        gpus=[p[1] for p in pairs],
        cards=[*cards, front],
        interfaces=[],
        control="ens1f0np0",
        names="hnode0{n}",
        launcher="ssh",
        system="Rocky Linux 9.4",
        kernel="5.14.0-427.24.1.el9_4.x86_64",
        driver="560.35.05",
        cuda="12.6",
        nccl="2.22.3",
        torch="2.5.1+cu124",
        counts=(1, 2, 4),
        profiles={
            "none-mpi": {"SINGULARITY_NAME": "pytorch.sif", "NCCL_IB_HCA": "mlx5_ibn", "PBS_JOBID": "1.pbs1"},
            "nemo": {**NEMO, "SINGULARITY_NAME": "nemo.sif"},
        },
    )


def h100_nvl() -> Plan:
    """Eight boards in four bridged pairs below four switches, two InfiniBand cards."""
    groups = [
        switch("0000:16", 0, "0000:19:00.0", "0000:1a:00.0", "0000:1b:00.0"),
        switch("0000:40", 0, "0000:43:00.0", "0000:44:00.0"),
        switch("0000:96", 1, "0000:99:00.0", "0000:9a:00.0", "0000:9b:00.0"),
        switch("0000:c0", 1, "0000:c3:00.0", "0000:c4:00.0"),
    ]
    cards = [
        Card(f"mlx5_{i}", g[2], 400.0, netdev=f"ibs{i}", net=f"10.77.{i}.{{n}}/24", mtu=4092)
        for i, g in ((0, groups[0]), (1, groups[2]))
    ]
    return Plan(
        kind="h100-nvl-pairs",
        source="lenovopress SR675 V3 (eight double-wide boards, bridges over pairs, NDR); NVIDIA H100 NVL product brief",
        story="Eight H100 NVL, bridged in pairs below one switch each; two NDR cards.",
        product="Lenovo ThinkSystem SR675 V3",
        gpu=H100_NVL,
        gpus=[s for g in groups for s in g[:2]],
        cards=cards,
        interfaces=[
            nic(
                "bond0",
                "10.78.0.{n}/24",
                kind="bond",
                speed_mbit=50000,
                members=["ens1f0", "ens1f1"],
                driver=ABSENT,
            ),
            nic("ens1f0", kind="physical", speed_mbit=25000, driver="bnxt_en"),
            nic("ens1f1", kind="physical", speed_mbit=25000, driver="bnxt_en"),
        ],
        control="bond0",
        names="sr{n}",
        cpu="AuthenticAMD AMD EPYC 9554 64-Core Processor",
        numa=(("0-63", 768), ("64-127", 768)),
        system="Ubuntu 22.04.5 LTS",
        kernel="5.15.0-141-generic",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro iommu=pt",
        iommus=("ivhd0", "ivhd1"),
        driver="570.158.01",
        counts=(1, 2, 4),
        governor=Governor(names=["performance"], driver="acpi-cpufreq", preference=ABSENT),
        profiles={"site": {"NCCL_SOCKET_IFNAME": "bond0", "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1"}, "nemo": NEMO},
    )


def imbue() -> Plan:
    """Of two cards for storage only the first port of each is cabled."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
    rails = [
        Card(f"mlx5_{hca}", pair[0], netdev=f"ibp{place}")
        for place, (hca, pair) in enumerate(zip((0, 3, 4, 5, 6, 9, 10, 11), pairs, strict=True))
    ]
    storage: list[Card] = []
    for place, (first, bus, net) in enumerate(((1, "1b", "10.10.0.{n}/24"), (7, "9a", "10.20.0.{n}/24"))):
        slot = direct(f"0000:{int(bus, 16) - 1:02x}", place, f"0000:{bus}:00.0", 16.0)
        storage += [
            Card(
                f"mlx5_{first}",
                slot,
                100.0,
                "Ethernet",
                f"enp{bus}s0f0np0",
                net,
                mtu=9000 if place else 1500,
                model="MT4125",
                board="MT_0000000359",
                firmware="22.35.2000",
                data=False,
            ),
            Card(
                f"mlx5_{first + 1}",
                slot.at(slot.pci[:-1] + "1"),
                40.0,
                "Ethernet",
                f"enp{bus}s0f1np1",
                mtu=1500,
                model="MT4125",
                board="MT_0000000359",
                firmware="22.35.2000",
                up=False,
                data=False,
            ),
        ]
    cards = sorted([*rails, *storage], key=lambda card: int(card.hca[5:]))
    return Plan(
        kind="imbue-h100",
        source="read: github.com/imbue-ai/cluster-health issue 4 (ibdev2netdev)",
        story="Bare metal: InfiniBand without IPoIB, two cards of 100 Gb/s of which the second ports hang free.",
        product="Dell Inc. PowerEdge XE9680",
        gpu=parts.H100,
        gpus=[pair[1] for pair in pairs],
        cards=cards,
        interfaces=[],
        control="enp1bs0f0np0",
        names="node{n}",
        driver="550.54.15",
        cuda="12.4",
        nccl="2.20.5",
        torch="2.3.1+cu121",
        launcher="ssh",
        counts=(1, 2, 4),
        profiles={
            "site": {
                "NCCL_IB_HCA": "=" + ",".join(card.hca for card in rails),
                "NCCL_SOCKET_IFNAME": "enp1bs0f0np0",
            },
            "megatron": MEGATRON,
        },
    )


def ipv6_rails() -> Plan:
    """RoCE rails whose only addresses are of IPv6, by router advertisement."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
    cards = [
        Card(
            f"mlx5_{rail}",
            pair[0],
            400.0,
            "Ethernet",
            f"gpu{rail}_eth",
            mtu=9000,
            traffic_class="Global tclass=104",
        )
        for rail, pair in enumerate(pairs)
    ]

    def change(node: Node) -> Node:
        number = int(node.name[-2:])
        rdma, network = known(node.rdma), known(node.network)
        devices = []
        for rail, hca in enumerate(known(rdma.devices)):
            port = known(hca.ports)[0]
            table = known(port.gids)
            whole = f"fc00:0200:{rail:04x}:0000:0000:0000:a288:{number:04x}"
            more = [replace(gid, index=gid.index + 2, gid=whole) for gid in table[:2]]
            devices.append(replace(hca, ports=[replace(port, gids=[*table[:2], *more])]))
        interfaces: list[Interface] = [
            replace(
                interface,
                addresses=[
                    address(f"fc00:200:{interface.name[3]}::a288:{number:x}/64"),
                    address(f"fe80::{number:x}/64"),
                ],
            )
            if interface.name.endswith("_eth")
            else interface
            for interface in known(network.interfaces)
        ]
        return replace(node, rdma=replace(rdma, devices=devices), network=replace(network, interfaces=interfaces))

    return Plan(
        kind="ipv6-rails",
        tweak=change,
        source="read: juniper.net JVD AI data centre multitenancy, appendix D (FC00:200:... at GID 4 and 5, NCCL_IB_ADDR_FAMILY)",
        story="Addresses of the rails by SLAAC; NCCL is told that they are of IPv6.",
        product="Supermicro SYS-821GE-TNHR",
        gpu=parts.H100,
        gpus=[pair[1] for pair in pairs],
        cards=cards,
        interfaces=[wire("eno8303", "10.161.33.{n}/24", 1, driver="tg3")],
        control="eno8303",
        names="H100-{n}",
        launcher="ssh",
        counts=(1, 2, 4),
        conf={"NCCL_IB_ADDR_FAMILY": "AF_INET6"},
        profiles={"jvd": {"NCCL_SOCKET_IFNAME": "eno8303"}},
    )


def login_node() -> Plan:
    """Where jobs are written and submitted: no GPU, InfiniBand for the file system, limits of a login session."""
    card = Card(
        "mlx5_0",
        direct("0000:40", 0, "0000:41:00.0", 16.0),
        100.0,
        netdev="ib0",
        net="10.29.80.{n}/21",
        mtu=2044,
        model="MT4123",
        board="MT_0000000222",
        firmware="20.38.1002",
        data=False,
    )
    bare = without_nvidia("2.6.0+cu124")

    def change(node: Node) -> Node:
        node = bare(node)
        return replace(
            node, host=replace(known(node.host), memlock=Limits(soft=65536, hard=65536), ipc_lock=False)
        )

    return Plan(
        kind="login-node",
        tweak=change,
        source="doc.nhr.fau.de, front ends of Alex",
        story="A front end; what is set here is what the job will have.",
        product="Supermicro AS -2124BT",
        gpu=parts.H100,
        gpus=[],
        cards=[card],
        interfaces=[wire("eno1np0", "131.188.3.{n}/24", 25, driver="bnxt_en")],
        control="eno1np0",
        names="alex{n}",
        counts=(1,),
        launcher="local",
        peer_modules=(),
        cpu="AuthenticAMD AMD EPYC 7713 64-Core Processor",
        numa=(("0-63", 256), ("64-127", 256)),
        system="AlmaLinux 8.10",
        kernel="4.18.0-553.el8_10.x86_64",
        driver="560.35.03",
        cuda="12.6",
        nccl="2.21.5",
        torch="2.6.0+cu124",
        profiles={"site": {"NCCL_SOCKET_IFNAME": "ib0"}},
    )


KINDS: tuple[Callable[[], Plan], ...] = (
    meluxina,
    juwels,
    leonardo,
    abci3,
    h100_nvl,
    imbue,
    ipv6_rails,
    login_node,
)

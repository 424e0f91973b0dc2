"""Healthy machines whose network or whose rights are unlike the others'.

`source` begins with "read:" where its documents were opened for the names and numbers that they tell; the rest
is what such a node has. Without that word it says where to look, and names and numbers may differ from a real one.
"""

# ruff: noqa: E501, PLC0415

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ncclcheck.probes.facts import (
    Address,
    Governor,
    Interface,
    Limits,
    Namespace,
    Node,
    Route,
    RuntimeSign,
    Unread,
    Variable,
    known,
    replace,
)
from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.machine import Plan
from tests.sound.parts import Card, Model, direct
from tests.sound.sites import dgx_h100, h200_roce, l40s_roce
from tests.sound.usual import HGX_GPUS, HGX_NICS, MEGATRON, NEMO, UNTOLD_SPEED, hgx, wire

H20 = Model("NVIDIA H20", 97871, 500.0, 1980, 2619, 5, 18, 26562, vbios="96.00.A5.00.06", switched=True)
H800 = Model("NVIDIA H800", 81559, 700.0, 1980, 2619, 5, 8, 26562, vbios="96.00.A5.00.01", switched=True)
_IB = tuple(f"mlx5_{k}" for k in range(8))


def _ib_rails(net: str = "", **changes: Any) -> list[Card]:
    return [
        Card(f"mlx5_{rail}", pair[0], netdev=f"ib{rail}", net=net.format(rail=rail, n="{n}"), **changes)
        for rail, pair in enumerate(hgx(HGX_NICS, HGX_GPUS))
    ]


def _gpus() -> list[parts.Slot]:
    return [pair[1] for pair in hgx(HGX_NICS, HGX_GPUS)]


def _hgx(kind: str, story: str, source: str, **changes: Any) -> Plan:
    """Eight H100 with eight rails of InfiniBand without addresses."""
    given: dict[str, Any] = {
        "product": "Supermicro SYS-821GE-TNHR",
        "gpu": parts.H100,
        "gpus": _gpus(),
        "cards": _ib_rails(),
        "interfaces": [wire("eno1", "10.33.0.{n}/24", 25, driver="ice")],
        "control": "eno1",
        "counts": (1, 2, 4),
        "kernel": "5.15.0-140-generic",
        "names": "hgx{n}",
    }
    return Plan(kind=kind, story=story, source=source, **{**given, **changes})


def _with_interfaces(node: Node, *more: Interface, drop: tuple[str, ...] = ()) -> Node:
    network = known(node.network)
    kept = [interface for interface in known(network.interfaces) if interface.name not in drop]
    return replace(node, network=replace(network, interfaces=[*kept, *more]))


def kube_host() -> Plan:
    """hostNetwork pods: the interfaces of kube-proxy's IPVS, of Calico, and a cache of names, alike on all hosts."""

    def change(node: Node) -> Node:
        return _with_interfaces(
            node,
            nic("cni0", "10.42.7.1/24", kind="bridge", speed_mbit=UNTOLD_SPEED, members=["veth1", "veth2"]),
            nic(
                "kube-ipvs0",
                "10.96.0.1/32",
                "10.96.0.10/32",
                "10.104.7.33/32",
                kind="virtual",
                up=False,
                running=False,
            ),
            nic("nodelocaldns", "169.254.20.10/32", "10.96.0.10/32", kind="virtual", up=False, running=False),
            nic("vxlan.calico", f"10.244.{node.name[-2:]}.0/32", kind="tunnel", mtu=1450, speed_mbit=ABSENT),
            *(nic(f"cali{k:011x}", kind="veth", mtu=1450, speed_mbit=10000, driver="veth") for k in range(20)),
        )

    return _hgx(
        "kube-host-ipvs",
        "Kubeflow on bare metal with hostNetwork: true.",
        "read: kubernetes/kubernetes#107662 (kube-ipvs0: BROADCAST,NOARP, state DOWN, 10.96.0.1/32 scope global), "
        "kubernetes/website#18716 (NodeLocal DNSCache at 169.254.20.10). cali*: general knowledge",
        tweak=change,
        launcher="ssh",
        profiles={"mpi": {"NCCL_SOCKET_IFNAME": "eno1", "NCCL_IB_HCA": "mlx5"}},
    )


def bridge_host() -> Plan:
    """The host's address is on a bridge (Proxmox, KVM hosts, br-ex of OpenShift), its port is a bond."""
    bond = nic("bond0", kind="bond", speed_mbit=50_000, members=["eno1", "eno2"], driver=ABSENT)
    return _hgx(
        "bridge-host",
        "A hypervisor that also trains: vmbr0 carries the address, guests hang beside.",
        "pve.proxmox.com/wiki Network_Configuration (vmbr0 over bond0)",
        interfaces=[
            bond,
            nic(
                "vmbr0",
                "10.34.0.{n}/24",
                kind="bridge",
                speed_mbit=50_000,
                members=["bond0", "tap100i0"],
                driver=ABSENT,
            ),
            nic("tap100i0", kind="virtual", speed_mbit=10, driver="tun"),
            nic("eno1", kind="physical", speed_mbit=25_000, driver="ice"),
            nic("eno2", kind="physical", speed_mbit=25_000, driver="ice"),
        ],
        control="vmbr0",
        launcher="ssh",
        profiles={"nemo": NEMO},
    )


def vlans() -> Plan:
    """The address is on a VLAN of a bond; the bond itself has none."""
    return _hgx(
        "vlan-bond",
        "Two VLANs on one bond: cluster and storage.",
        "docs.kernel.org networking/bonding; site practice",
        interfaces=[
            nic("bond0", kind="bond", speed_mbit=50_000, mtu=9000, members=["eno1", "eno2"], driver=ABSENT),
            nic("bond0.210", "10.35.0.{n}/23", kind="vlan", mtu=1500, speed_mbit=50_000, driver=ABSENT),
            nic("bond0.220", "10.36.0.{n}/23", kind="vlan", mtu=9000, speed_mbit=50_000, driver=ABSENT),
            nic("idrac", "169.254.0.2/24", speed_mbit=ABSENT, driver="cdc_ether"),
        ],
        control="bond0.210",
        profiles={"site": {"NCCL_SOCKET_IFNAME": "bond0.210"}},
    )


def routed_host() -> Plan:
    """BGP on the host: the address is on lo, the cables have addresses of the link only."""

    def change(node: Node) -> Node:
        network = known(node.network)
        own = f"10.37.0.{node.name[-2:]}"
        interfaces = [
            replace(
                interface, addresses=[*known(interface.addresses), Address(family="ipv4", address=own, prefix=32)]
            )
            if interface.name == "lo"
            else interface
            for interface in known(network.interfaces)
        ]
        routes = [
            Route(destination=f"10.38.{k}.0/24", gateway=f"10.38.{k}.10", interface=f"eth{k + 2}", metric=20)
            for k in range(8)
        ]
        return replace(
            node, network=replace(network, interfaces=interfaces, routes=[*known(network.routes), *routes])
        )

    return _hgx(
        "routed-host",
        "FRR with BGP unnumbered; rails are routed /31s of RoCE; ssh over a management port.",
        "docs.nvidia.com Cumulus Linux, FRR on hosts",
        tweak=change,
        cards=[
            Card(
                f"mlx5_{k}",
                p[0],
                400.0,
                "Ethernet",
                f"eth{k + 2}",
                f"10.38.{k}.{{n}}/31",
                mtu=9216,
                traffic_class="Global tclass=106",
            )
            for k, p in enumerate(hgx(HGX_NICS, HGX_GPUS))
        ],
        counts=(1, 2),
    )


def vrf() -> Plan:
    """The management port is in a VRF."""

    def change(node: Node) -> Node:
        return _with_interfaces(
            node,
            nic("mgmt", "127.0.0.1/8", kind="virtual", mtu=65575, speed_mbit=ABSENT),
            nic("eth9", f"192.168.200.{node.name[-2:]}/24", speed_mbit=1000, driver="igb"),
        )

    return _hgx(
        "vrf-mgmt",
        "Management in a VRF of its own, as Cumulus and SONiC habits go.",
        "docs.kernel.org networking/vrf (127.0.0.1 on the VRF device)",
        tweak=change,
    )


def ipv6_only() -> Plan:
    """No IPv4 but on lo."""

    def change(node: Node) -> Node:
        network, host = known(node.network), known(node.host)
        number = node.name[-2:]
        interfaces = [
            replace(
                interface,
                addresses=[
                    Address(family="ipv6", address=f"2001:db8:7::{number}", prefix=64),
                    Address(family="ipv6", address=f"fe80::5054:ff:fe00:{number}", prefix=64),
                ],
            )
            if interface.name == "eno1"
            else interface
            for interface in known(network.interfaces)
        ]
        routes = [
            Route(destination="2001:db8:7::/64", gateway="", interface="eno1", metric=256),
            Route(destination="::/0", gateway="fe80::1", interface="eno1", metric=1024),
        ]
        own = replace(known(host.own_name), addresses=[f"2001:db8:7::{number}"])
        return replace(
            node, network=replace(network, interfaces=interfaces, routes=routes), host=replace(host, own_name=own)
        )

    return _hgx(
        "ipv6-only",
        "A site of Meta's manner: IPv6 alone on Ethernet.",
        "NCCL user guide, NCCL_SOCKET_FAMILY",
        tweak=change,
        counts=(1,),
    )


def ipoib_bond() -> Plan:
    """Two ports of InfiniBand in an active-backup bond for TCP."""
    gpus = [direct("0000:17", 0, "0000:18:00.0", 16.0), direct("0000:97", 1, "0000:98:00.0", 16.0)]
    card = direct("0000:37", 0, "0000:38:00.0", 16.0)
    cards = [
        Card(
            f"mlx5_{p}",
            card.at(f"0000:38:00.{p}"),
            200.0,
            netdev=f"ib{p}",
            mtu=2044,
            model="MT4123",
            board="MT_0000000224",
            firmware="20.43.1014",
        )
        for p in (0, 1)
    ]
    return Plan(
        kind="ipoib-bond",
        source="read: Mellanox OFED user manual, Bonding IPoIB (active-backup alone, MTU 2044 in datagram mode, names "
        "ibX and bondX); access.redhat.com RHEL 8, network bonding",
        story="A chemistry group's RHEL 8 cluster: A100 PCIe, bond of ib0 and ib1, NFS over it.",
        product="Lenovo ThinkSystem SR670 V2",
        gpu=parts.A100_PCIE,
        gpus=gpus,
        cards=cards,
        interfaces=[
            wire("eno1", "10.1.1.{n}/24", 1, driver="tg3"),
            nic(
                "bond0",
                "10.2.1.{n}/24",
                kind="bond",
                mtu=2044,
                speed_mbit=200_000,
                members=["ib0", "ib1"],
                driver=ABSENT,
            ),
        ],
        control="bond0",
        names="node0{n}",
        system="Red Hat Enterprise Linux 8.10 (Ootpa)",
        kernel="4.18.0-553.el8_10.x86_64",
        cpu="GenuineIntel Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz",
        numa=(("0-31,64-95", 256), ("32-63,96-127", 256)),
        iommu=ABSENT,
        iommus=(),
        command_line="BOOT_IMAGE=(hd0,gpt2)/vmlinuz ro rd.lvm.lv=rhel/root",
        driver="535.183.06",
        cuda="12.2",
        nccl="2.18.6",
        torch="2.1.2+cu121",
        mounts=("nfs4", "nas:/home"),
        counts=(1, 2, 4),
        governor=Governor(names=["performance"], driver="intel_pstate", preference="performance"),
        profiles={"site": {"NCCL_SOCKET_IFNAME": "bond0", "NCCL_IB_HCA": "mlx5"}, "megatron": MEGATRON},
    )


def h20_bonded() -> Plan:
    """The usual H20 of Chinese clouds: eight dual-port cards of 2 x 200 Gb/s, each a bond, one beside each GPU."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
    cards = [
        Card(
            f"mlx5_bond_{k + 1}",
            pairs[k][0],
            400.0,
            "Ethernet",
            f"bond{k + 1}",
            f"172.16.{k + 1}.{{n}}/24",
            mtu=1500,
            board="MT_0000000834",
            firmware="28.39.2048",
        )
        for k in range(8)
    ]

    def change(node: Node) -> Node:
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

    return _hgx(
        "h20-bonded",
        "eGPU bare metal of a cloud; NCCL set by its image.",
        "read: NVIDIA/nccl#2150 (eight bonds of 802.3ad, each PXB beside its GPU, NV18), sgl-project/sglang#3685 "
        "(mlx5_bond_1 to mlx5_bond_8), NVIDIA/nccl-tests#191 (GID 3, RDMA MTU 1024, NCCL_IB_QPS_PER_CONNECTION=8, "
        "NCCL_NET_GDR_LEVEL, NCCL_PXN_DISABLE). NCCL_IB_TC=160: general knowledge",
        gpu=H20,
        cards=cards,
        product="Alibaba Alibaba Cloud ECS",
        tweak=change,
        launcher="ssh",
        expected={"RDM015": "Their MTU is 1500, so that RDMA sends 1024 bytes a packet, as in nccl-tests#191."},
        interfaces=[
            nic("bond0", "10.0.8.{n}/24", kind="bond", speed_mbit=100_000, members=["eth0", "eth1"], driver=ABSENT)
        ],
        control="bond0",
        profiles={
            "site": {
                "NCCL_IB_GID_INDEX": "3",
                "NCCL_IB_HCA": ",".join(f"mlx5_bond_{k}" for k in range(1, 9)),
                "NCCL_IB_TC": "160",
                "NCCL_IB_SL": "3",
                "NCCL_SOCKET_IFNAME": "bond0",
                "NCCL_IB_QPS_PER_CONNECTION": "8",
                "NCCL_MIN_CTAS": "4",
                "NCCL_NVLS_ENABLE": "0",
                "NCCL_COLLNET_ENABLE": "0",
                "NCCL_P2P_LEVEL": "NVL",
                "SHARP_COLL_ENABLE_SAT": "0",
                "NCCL_IB_CUDA_SUPPORT": "1",
                "NCCL_NET_GDR_LEVEL": "2",
                "NCCL_PXN_DISABLE": "0",
            }
        },
    )


def h800() -> Plan:
    """H800: eight NVLinks, not eighteen."""
    return _hgx(
        "h800",
        "InfiniBand NDR; NVLink of half the links by export rules.",
        "read: uccl-project/uccl#172 (nvidia-smi topo -m: NV8 between eight GPUs, 0-47,96-143). That these were H800 is "
        "from general knowledge",
        gpu=H800,
        cards=_ib_rails("10.45.{rail}.{n}/24"),
        profiles={"nemo": NEMO},
    )


def broadcom() -> Plan:
    """RoCE of Broadcom: bnxt_re devices named by rdma-core, one GID table of another order."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
    cards = [
        Card(
            f"bnxt_re{k}",
            p[0],
            400.0,
            "Ethernet",
            f"ens{k + 1}np0",
            f"10.46.{k}.{{n}}/24",
            mtu=9000,
            model="BCM57608",
            board="BCM957608-P1400GDF00",
            firmware="231.0.162.0",
            driver="bnxt_en",
        )
        for k, p in enumerate(pairs)
    ]
    return _hgx(
        "broadcom-thor2",
        "HGX H200 with Thor 2; DCQCN and PFC set by bnxt_setup, class by DSCP of the switch.",
        "techdocs.broadcom.com RoCE configuration guide (NCCL_IB_HCA, GID index 3)",
        gpu=parts.H200,
        cards=cards,
        providers=("bnxt_re",),
        peer_modules=("nvidia_peermem",),
        interfaces=[wire("eno8303", "10.47.0.{n}/24", 10, driver="tg3")],
        control="eno8303",
        profiles={
            "site": {
                "NCCL_IB_HCA": "bnxt_re",
                "NCCL_IB_GID_INDEX": "3",
                "NCCL_IB_TC": "104",
                "NCCL_SOCKET_IFNAME": "eno8303",
            }
        },
    )


def omni_path() -> Plan:
    """Cornelis's hfi1: InfiniBand by name, with a driver of its own, mostly used by PSM2."""
    gpus = [direct("0000:17", 0, "0000:18:00.0", 8.0), direct("0000:97", 1, "0000:98:00.0", 8.0)]
    card = Card(
        "hfi1_0",
        direct("0000:37", 0, "0000:38:00.0", 8.0),
        100.0,
        netdev="ib0",
        net="10.48.0.{n}/24",
        mtu=10236,
        model="",
        board="HPE 100Gb 1-port OP101 QSFP28 x16 PCIe Gen3 with Intel Omni-Path Adapter",
        firmware="1.27.0",
        driver="hfi1",
    )

    def change(node: Node) -> Node:
        rdma = known(node.rdma)
        none = Unread("absent", "No such file or directory")
        return replace(node, rdma=replace(rdma, devices=[replace(hca, model=none) for hca in known(rdma.devices)]))

    from tests.sound.humble import V100

    pcie = dataclasses.replace(V100, name="Tesla V100-PCIE-16GB", memory=16384, links=0, watts=250.0)
    return Plan(
        kind="omni-path",
        tweak=lambda n: change(_volta_pcie(n)),
        source="read: recorded /sys/class/infiniband/hfi1_0 (prometheus/procfs fixtures: board_id, fw_ver 1.27.0, no "
        "hca_type, 100 Gb/sec (4X EDR), InfiniBand). psm2-nccl: general knowledge",
        story="A cluster of 2018 whose fabric is Omni-Path 100.",
        product="Dell Inc. PowerEdge C4140",
        gpu=pcie,
        gpus=gpus,
        cards=[card],
        interfaces=[wire("em1", "10.49.0.{n}/24", 10, driver="ixgbe")],
        control="ib0",
        names="v100-{n}",
        providers=("hfi1verbs", "mlx5"),
        system="Rocky Linux 8.10 (Green Obsidian)",
        kernel="4.18.0-553.el8_10.x86_64",
        iommu=ABSENT,
        iommus=(),
        cpu="GenuineIntel Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz",
        numa=(("0-19,40-59", 192), ("20-39,60-79", 192)),
        peer_modules=(),
        command_line="BOOT_IMAGE=(hd0,msdos1)/vmlinuz ro",
        driver="535.183.06",
        cuda="12.2",
        nccl="2.19.3",
        torch="2.2.2+cu121",
        counts=(1, 2, 4),
        mounts=("lustre", "10.48.0.250@o2ib:/work"),
        governor=Governor(names=["performance"], driver="intel_pstate", preference="performance"),
        expected={"RDM022": "Omni-Path reads GPU memory only by PSM2 and its own driver, if at all."},
    )


def _volta_pcie(node: Node) -> Node:
    from tests.sound.humble import volta

    return volta(node)


def intel_e810() -> Plan:
    """RoCE by Intel's irdma on a server for inference."""
    plan = l40s_roce()
    cards = [
        dataclasses.replace(
            c,
            hca=f"rocep56s0f{k}",
            gbit=100.0,
            model="",
            board="",
            firmware="1.71",
            driver="irdma",
            traffic_class="",
        )
        for k, c in enumerate(plan.cards)
    ]

    def change(node: Node) -> Node:
        rdma = known(node.rdma)
        none = Unread("absent", "No such file or directory")
        return replace(
            node, rdma=replace(rdma, devices=[replace(hca, model=none, board=none) for hca in known(rdma.devices)])
        )

    return dataclasses.replace(
        plan,
        kind="intel-e810",
        cards=cards,
        providers=("irdma",),
        tweak=change,
        source="docs of Intel E810 RoCEv2 (irdma); " + plan.source,
        profiles={},
        counts=(1, 2),
    )


def hidden() -> Plan:
    """A hardened site: SELinux and lockdown keep most of /sys and all of the kernel's log from users."""
    denied = Unread("denied", "Permission denied")

    def change(node: Node) -> Node:
        fabric, rdma, container, gpus, health = (
            known(part) for part in (node.fabric, node.rdma, node.container, node.gpus, node.health)
        )
        return replace(
            node,
            fabric=replace(
                fabric,
                pci=denied,
                iommus=denied,
                command_line=denied,
                governor=denied,
                product=denied,
                asset_tag=denied,
                numa=denied,
                hypervisor=False,
            ),
            rdma=replace(rdma, peer_modules=denied, leaves=denied, open_driver=denied),
            container=replace(container, namespaces=denied),
            gpus=replace(gpus, services=denied),
            health=replace(health, memory_errors=denied, kernel=denied, waiting=denied, nvmes=denied),
        )

    return _hgx(
        "hidden-sysfs",
        "A government site.",
        "kernel_lockdown(7); SELinux confined users (user_u)",
        tweak=change,
        cards=_ib_rails("10.51.{rail}.{n}/24"),
        profiles={"site": {"NCCL_IB_HCA": "mlx5"}},
    )


def half_node() -> Plan:
    """Slurm gave four of eight GPUs: NVML and the control group show those, sysfs shows all."""
    plan = dgx_h100()

    def change(node: Node) -> Node:
        gpus, fabric, job = known(node.gpus), known(node.fabric), known(node.job)
        more = [
            Variable(name="CUDA_VISIBLE_DEVICES", value="0,1,2,3"),
            Variable(name="SLURM_JOB_GPUS", value="4,5,6,7"),
            Variable(name="SLURM_GPUS_ON_NODE", value="4"),
        ]
        bound = replace(known(fabric.bound), cpus="56-111", mems="1")
        cards = [
            replace(
                gpu,
                index=k,
                name=f"GPU {k}",
                peers=[p for p in known(gpu.peers) if p.name in ("GPU 4", "GPU 5", "GPU 6", "GPU 7")],
            )
            for k, gpu in enumerate(known(gpus.cards)[4:])
        ]
        cards = [
            replace(card, peers=[replace(p, name=f"GPU {int(p.name[-1]) - 4}") for p in known(card.peers)])
            for card in cards
        ]
        return replace(
            node,
            gpus=replace(gpus, cards=cards, usable=4, chosen_by=""),
            fabric=replace(fabric, bound=bound),
            job=replace(job, variables=[*known(job.variables), *more]),
            host=replace(known(node.host), usable_cores=56.0, memory_limit=900 * 2**30),
            system=replace(known(node.system), uid=1007),
        )

    return dataclasses.replace(plan, kind="dgx-half", tweak=change, profiles={}, counts=(1, 2), root=False)


def podman_rootless() -> Plan:
    """Root in a user namespace: no capability of the host, limits of the user's session."""
    plan = l40s_roce()

    def change(node: Node) -> Node:
        container, host, system = known(node.container), known(node.host), known(node.system)
        not_ours = "its number is not that of the machine's own one"
        spaces = [
            Namespace(name=namespace.name, host=namespace.name == "net", how=not_ours)
            for namespace in known(container.namespaces)
        ]
        return replace(
            node,
            container=replace(
                container,
                runtimes=[RuntimeSign(name="podman", source="/run/.containerenv")],
                namespaces=spaces,
                capabilities=["CHOWN", "SETUID"],
                seccomp="filter",
            ),
            host=replace(host, memlock=Limits(soft=8 * 2**20, hard=8 * 2**20), ipc_lock=False),
            system=replace(system, uid=0),
        )

    return dataclasses.replace(
        plan,
        kind="podman-rootless",
        tweak=change,
        profiles={},
        counts=(1,),
        cards=[],
        providers=(),
        interfaces=[wire("eno8303", "10.10.0.{n}/24", 1, driver="tg3")],
    )


def apptainer() -> Plan:
    """The usual container of universities: the host's network, its /dev and its /tmp."""
    plan = h200_roce()

    def change(node: Node) -> Node:
        container = known(node.container)
        return replace(
            node,
            container=replace(
                container,
                runtimes=[RuntimeSign(name="apptainer", source="APPTAINER_NAME")],
                no_new_privileges=True,
            ),
        )

    return dataclasses.replace(
        plan,
        kind="apptainer",
        tweak=change,
        root=False,
        profiles={"site": {**next(iter(plan.profiles.values())), "APPTAINER_NAME": "pytorch.sif"}},
    )


KINDS: tuple[Callable[[], Plan], ...] = (
    kube_host,
    bridge_host,
    vlans,
    routed_host,
    vrf,
    ipv6_only,
    ipoib_bond,
    h20_bonded,
    h800,
    broadcom,
    omni_path,
    intel_e810,
    hidden,
    half_node,
    podman_rootless,
    apptainer,
)

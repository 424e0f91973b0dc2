"""Pods with a part of a node, and workstations with unlike GPUs.

`source` begins with "read:" where its documents were opened for the names and numbers that they tell; the rest
is what such a node has. Without that word it says where to look, and names and numbers may differ from a real one.
"""

# ruff: noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ncclcheck.probes.facts import Governor, Node, Unread, known, replace
from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.machine import GIB, Plan
from tests.sound.parts import Card, Model, Slot, direct
from tests.sound.usual import (
    CONNECTX7_VF,
    DOCKER,
    HGX_GPUS,
    HGX_NICS,
    UNTOLD_SPEED,
    hgx,
    wire,
)

A100_80 = Model("NVIDIA A100-SXM4-80GB", 81920, 275.0, 1410, 1593, 4, 12, 25781, vbios="92.00.36.00.02")
RTX4090 = parts.RTX4090


def dgx_station() -> Plan:
    """Four compute boards, and a display board that the guide leaves out."""
    buses = ["01", "47", "81", "c2"]
    gpus = [direct(f"0000:{int(b, 16) & 0xC0:02x}", 0, f"0000:{b}:00.0", 16.0) for b in buses] + [
        direct("0000:c0", 0, "0000:c1:00.0", 8.0)
    ]

    def change(node: Node) -> Node:
        g = known(node.gpus)
        cards = known(g.cards)
        none = Unread("absent", "Not Supported")
        last = replace(
            cards[4],
            model="NVIDIA DGX Display",
            memory_total=4096 * 2**20,
            memory_used=210 * 2**20,
            bar1=256 * 2**20,
            nvlinks=none,
            mig=none,
            ecc=none,
            ecc_pending=none,
            ecc_uncorrected=none,
            ecc_corrected=none,
            ecc_uncorrected_ever=none,
            ecc_corrected_ever=none,
            sram_exceeded=none,
            remapped=none,
            spare_rows=none,
            inforom=none,
            power_cap=50.0,
            power_default=50.0,
            power_draw=3.0,
            clock=300,
            clock_max=2100,
            clock_memory=405,
            clock_memory_max=5001,
            pcie_gen=1,
            pcie_gen_max=3,
            pcie_gen_device=3,
            margin=none,
            vbios="90.17.95.00.1F",
            pcie_width=8,
            pcie_width_max=8,
            peers=[replace(p, p2p="chipset not supported") for p in known(cards[4].peers)],
        )
        cards = [
            replace(
                c,
                peers=[
                    replace(p, p2p="chipset not supported") if p.name == "GPU 4" else p for p in known(c.peers)
                ],
            )
            for c in cards[:4]
        ] + [last]
        chosen = next((v.name for v in known(known(node.job).variables) if v.name == "CUDA_VISIBLE_DEVICES"), "")
        if chosen:
            return replace(node, gpus=replace(g, cards=cards[:4], others=[last], usable=4, chosen_by=chosen))
        return replace(node, gpus=replace(g, cards=cards))

    return Plan(
        kind="dgx-station-a100",
        expected={"GPU028": "Without the guide's variable the display board is one of the job's GPUs."},
        source="docs.nvidia.com/dgx/dgx-station-a100-user-guide (4 A100, fifth is DGX Display at c1; CUDA_VISIBLE_DEVICES=0,1,2,4 in its guide)",
        story="A deskside machine; the display board is no partner for training and the guide says to leave it out.",
        tweak=change,
        product="NVIDIA DGX Station A100 920-23487-2530-000",
        gpu=A100_80,
        gpus=gpus,
        cards=[],
        interfaces=[
            wire("enp97s0f0", "192.168.7.{n}/24", 10, driver="ixgbe"),
            nic("enp97s0f1", kind="physical", running=False, driver="ixgbe"),
            DOCKER,
            nic("bmc_redfish0", "169.254.0.18/24", kind="physical", driver="cdc_ether", speed_mbit=10),
        ],
        control="enp97s0f0",
        names="station{n}",
        counts=(1,),
        launcher="local",
        cpu="AuthenticAMD AMD EPYC 7742 64-Core Processor",
        numa=(("0-127", 512),),
        kernel="5.15.0-1053-nvidia",
        system="Ubuntu 22.04.4 LTS",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro quiet",
        iommus=("ivhd0",),
        driver="550.127.05",
        cuda="12.4",
        nccl="2.21.5",
        torch="2.6.0+cu124",
        mounts=("ext4", "/dev/md1"),
        governor=Governor(names=["performance"], driver="acpi-cpufreq", preference=ABSENT),
        profiles={"guide": {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}},
    )


def mixed_desktop() -> Plan:
    """A large board for work and a small one for the screens."""
    gpus = [direct("0000:00", 0, "0000:01:00.0", 16.0), direct("0000:00", 0, "0000:04:00.0", 8.0, 4)]
    gpus[1] = dataclasses.replace(gpus[1], path=("0000:00:1c.0",), width=4, most_width=16)

    def change(node: Node) -> Node:
        g = known(node.gpus)
        cards = known(g.cards)
        small = replace(
            cards[1],
            model="NVIDIA GeForce GTX 1650",
            memory_total=4096 * 2**20,
            memory_used=512 * 2**20,
            power_cap=75.0,
            power_default=75.0,
            power_draw=9.0,
            clock_max=2130,
            clock_memory_max=4001,
            pcie_gen_max=3,
            pcie_gen_device=3,
            vbios="90.17.3D.00.4E",
        )
        if any(v.name == "CUDA_VISIBLE_DEVICES" for v in known(known(node.job).variables)):
            return replace(
                node,
                gpus=replace(
                    g,
                    cards=[replace(cards[0], peers=[])],
                    others=[small],
                    usable=1,
                    chosen_by="CUDA_VISIBLE_DEVICES",
                ),
            )
        return replace(node, gpus=replace(g, cards=[cards[0], small]))

    return Plan(
        kind="mixed-desktop",
        expected={
            "GPU028": "Without a choice torch sees both boards, and a rank on each goes at the pace of the small one."
        },
        source="public threads: RTX 4090 for work and GTX 1650 for the screens",
        story="The second board drives the monitors; the user gives CUDA the first.",
        tweak=change,
        product="ASUS System Product Name",
        gpu=RTX4090,
        gpus=gpus,
        cards=[],
        interfaces=[
            nic("enp6s0", "192.168.1.{n}/24", speed_mbit=2500, driver="igc"),
            nic("wlo1", kind="physical", running=False, driver="iwlwifi"),
        ],
        control="enp6s0",
        gateway="192.168.1.1",
        names="pc{n}",
        counts=(1,),
        launcher="local",
        cpu="GenuineIntel 13th Gen Intel(R) Core(TM) i9-13900K",
        numa=(("0-31", 64),),
        kernel="6.14.0-29-generic",
        system="Ubuntu 24.04.3 LTS",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro quiet splash",
        iommu="DMA-FQ",
        iommus=("dmar0",),
        peer_modules=(),
        driver="580.65.06",
        cuda="13.0",
        nccl="2.27.5",
        torch="2.9.0+cu128",
        mounts=("ext4", "/dev/nvme0n1p2"),
        governor=Governor(names=["powersave"], driver="intel_pstate", preference="balance_performance"),
        profiles={"first": {"CUDA_VISIBLE_DEVICES": "0"}},
    )


def kube_one_gpu() -> Plan:
    """One GPU and one InfiniBand function a pod; two pods share a host."""
    pairs = hgx(HGX_NICS, HGX_GPUS)

    def change(node: Node) -> Node:
        i = int(node.name[-1])
        host = known(node.host)
        c = known(node.container)
        return replace(
            node,
            host=replace(
                host,
                boot_id=f"b007{'a' if i < 3 else 'b'}000111122223333444455556666",
                memory_limit=128 * GIB,
                usable_cores=16.0,
                shm=replace(host.shm, size=32 * GIB, free=32 * GIB),
            ),
            container=replace(c, gpu_files=["nvidia-uvm", "nvidiactl", "nvidia3"]),
        )

    vf = Slot(
        pairs[3][0].pci[:-1] + "2", pairs[3][0].root, pairs[3][0].path, pairs[3][0].numa, link=False, vf=True
    )
    cards = [Card("mlx5_12", vf, 400.0, netdev="net1", net="192.168.5.{n}/24", mtu=2044, model=CONNECTX7_VF)]
    return Plan(
        kind="kube-one-gpu",
        expected={
            "CON003": "Two workers share a host and its NVLink, and go over the network: one pod with both GPUs is faster."
        },
        source="docs.nvidia.com network-operator: SR-IOV InfiniBand with ib-kubernetes, ipoib CNI (net1); nvidia device plugin, one GPU a pod",
        story="Four workers of a PyTorchJob, one GPU and one InfiniBand function each; two share a host.",
        tweak=change,
        product="Dell Inc. PowerEdge XE9680",
        gpu=parts.H100,
        gpus=[pairs[3][1]],
        cards=cards,
        interfaces=[nic("eth0", "10.244.6.{n}/24", kind="veth", mtu=1450, speed_mbit=UNTOLD_SPEED, driver="veth")],
        control="eth0",
        names="bert-worker-{n}",
        launcher="ssh",
        pod=True,
        system="Ubuntu 22.04.5 LTS",
        kernel="5.15.0-140-generic",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro intel_iommu=on iommu=pt",
        mounts=("nfs4", "filer:/pvc"),
        counts=(2, 4),
        profiles={
            "kubeflow": {
                "KUBERNETES_SERVICE_HOST": "10.96.0.1",
                "MASTER_PORT": "23456",
                "PET_NNODES": "4",
                "NCCL_SOCKET_IFNAME": "eth0",
            },
            "bare": {"KUBERNETES_SERVICE_HOST": "10.96.0.1"},
        },
    )


def macvlan_rails() -> Plan:
    """A pod with macvlan interfaces on shared RDMA devices, whose tables begin with the host's entries."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
    cards = [
        Card(
            f"mlx5_{rail}", pair[0], 400.0, "Ethernet", f"net{rail + 1}", f"192.168.{rail + 1}.{{n}}/24", mtu=9000
        )
        for rail, pair in enumerate(pairs)
    ]

    def change(node: Node) -> Node:
        rdma, network = known(node.rdma), known(node.network)
        devices = [
            replace(
                hca,
                ports=[
                    replace(port, gids=[replace(gid, index=gid.index + 6) for gid in known(port.gids)])
                    for port in known(hca.ports)
                ],
            )
            for hca in known(rdma.devices)
        ]
        interfaces = [
            replace(interface, kind="macvlan", driver=ABSENT) if interface.name.startswith("net") else interface
            for interface in known(network.interfaces)
        ]
        return replace(node, rdma=replace(rdma, devices=devices), network=replace(network, interfaces=interfaces))

    return Plan(
        kind="macvlan-rails",
        tweak=change,
        source="docs.nvidia.com network-operator, macvlan with the RDMA shared device plugin; Mellanox/k8s-rdma-shared-dev-plugin README",
        story="Pods of the RDMA shared device plugin.",
        product="Dell Inc. PowerEdge XE9680",
        gpu=parts.H100,
        gpus=[pair[1] for pair in pairs],
        cards=cards,
        interfaces=[nic("eth0", "10.244.1.{n}/24", kind="veth", mtu=1450, speed_mbit=UNTOLD_SPEED, driver="veth")],
        control="eth0",
        names="train-worker-{n}",
        launcher="ssh",
        pod=True,
        kernel="5.14.0-427.el9.x86_64",
        mounts=("nfs4", "filer:/vol"),
        counts=(1, 2, 4),
        profiles={
            "operator": {
                "KUBERNETES_SERVICE_HOST": "172.30.0.1",
                "NCCL_SOCKET_IFNAME": "eth0",
                "NCCL_IB_HCA": "mlx5",
            }
        },
    )


KINDS: tuple[Callable[[], Plan], ...] = (dgx_station, mixed_desktop, kube_one_gpu, macvlan_rails)

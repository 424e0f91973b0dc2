"""Pods of Kubernetes, which see more of their host than is theirs."""

from __future__ import annotations

from tests.helpers.clusters import ABSENT, nic
from tests.sound import parts
from tests.sound.machine import Plan
from tests.sound.parts import Card, Slot
from tests.sound.usual import CONNECTX7_VF, HGX_GPUS, HGX_NICS, NEMO, UNTOLD_SPEED, hgx


def kubernetes_sriov() -> Plan:
    """A pod sees all devices of the host in sysfs, and has files and interfaces of its own functions."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
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


def coreweave_h100() -> Plan:
    """A pod with all InfiniBand devices of its host, and no interface of theirs."""
    pairs = hgx(HGX_NICS, HGX_GPUS)
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

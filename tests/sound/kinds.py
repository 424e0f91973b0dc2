"""The kinds of healthy machines. Each says where its facts are from; the rest is what such a node has."""

from __future__ import annotations

from tests.sound import (
    academic,
    clouds,
    fresh,
    further,
    humble,
    later,
    newer,
    others,
    parted,
    pods,
    rented,
    sites,
    small,
    unusual,
)
from tests.sound.machine import Plan

PLANS: list[Plan] = [
    make()
    for make in (
        sites.dgx_h100, clouds.aws_p5, clouds.gcp_a3_mega, clouds.gcp_a3_ultra, clouds.azure_nd_h100,
        pods.kubernetes_sriov, small.desktop_one, small.desktop_two, sites.l40s_roce, sites.gb200_nvl72,
        small.mig_node,
        clouds.oci_h100, pods.coreweave_h100, sites.slingshot_a100, sites.h200_roce, sites.hgx_b200,
        sites.a100_pcie,
        clouds.vm_passthrough, sites.grace_hopper, *humble.KINDS,
    )
]  # fmt: skip

# Further ones; faults are put into them in the nightly tests.
ROOMS = (newer, rented, unusual, others, academic, later, parted, further, fresh)
MORE: list[Plan] = [make() for room in ROOMS for make in room.KINDS]

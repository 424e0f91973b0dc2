"""Rules about RDMA devices."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Unread, at
from ncclcheck.reports.judgement.findings import Finding, State, admin, fine, seen, you
from ncclcheck.reports.judgement.required import RequiredCount, required, too_few
from ncclcheck.reports.judgement.rule import rule


@rule("RDM001", "every node has the required HCAs", worst=State.FAIL)
def required_hcas(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The number of RDMA devices of each node against `--require hca=N`, or the site file.

    ## Why it matters
    A node that lost an HCA runs on, with its traffic on the others or on TCP, and the whole job goes at its
    pace. In a container /sys/class/infiniband is often there and /dev/infiniband is not, or neither.

    ## Seen as
    slow

    ## How we know
    The names in /sys/class/infiniband. What could not be read counts as missing, for the site asks for proof.

    ## Fix
    - **you** in a container: `--device=/dev/infiniband`, or the pod's `nvidia.com/rdma-vf` resource.
    - **admin** `ibv_devinfo`, `lspci | grep -i mellanox`, `dmesg | grep mlx5`; drain the node until it is back.

    ## Source
    NVIDIA/nccl#451, vllm-project/vllm#42075; ibv_devinfo(1).
    """
    wanted = required(cluster, "hca")
    for node in cluster.nodes:
        names = at(node, "rdma.hcas")
        number = names if isinstance(names, Unread) else len(names)
        count = RequiredCount(node.name, "HCA", wanted, number, "/sys/class/infiniband")
        if count.enough:
            yield fine(count.where, f"{number} HCAs", seen("/sys/class/infiniband", ", ".join(names)))
            continue
        yield too_few(
            count,
            why="The job would go on without it at the pace of this node, or over TCP.",
            fix=[
                you("In a container, map the devices into it.", "docker run --device=/dev/infiniband ..."),
                admin("Find the missing device.", "ibv_devinfo", "lspci | grep -i mellanox", "dmesg | grep mlx5"),
            ],
        )

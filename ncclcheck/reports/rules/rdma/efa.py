"""RDM004: Amazon's Elastic Fabric Adapter, which NCCL reaches by a plugin alone."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Hca, Node, Unread, at, known
from ncclcheck.reports.judgement.findings import Finding, State, Where, fail, fine, not_read, seen, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.text.words.fold import fold_names


@rule(
    "RDM004",
    "nodes with EFA devices have the NCCL plugin for EFA",
    worst=State.FAIL,
    needs=("rdma.devices",),
)
def efa_plugin(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    A node with Elastic Fabric Adapters (Amazon EC2) has a network plugin that NCCL would load.

    ## Why it matters
    NCCL itself cannot use EFA; the plugin aws-ofi-nccl does. Without it NCCL takes the plain network cards over
    TCP and says so in one line at INFO: 3 GB/s instead of 489 were measured so, and nobody noticed for weeks.

    ## Seen as
    setting without effect

    ## How we know
    HCAs whose driver is efa, and the files libnccl-net*.so and libnccl-ofi*.so where NCCL would look for them.
    That the plugin works is seen in NCCL's log (`NET/OFI Selected provider is efa`), which `bench` reads.

    ## Fix
    - **you** take an image with the plugin (AWS Deep Learning Containers), or install it and put its folder on
      LD_LIBRARY_PATH; `NCCL_NET="AWS Libfabric"` makes its absence an error instead of a slow job.
    - **admin** run the EFA installer, which brings libfabric and the plugin.

    ## Source
    aws/aws-ofi-nccl; NVIDIA/nccl#229, NVIDIA/aicr#2689.
    """
    nodes = [(node, wiring.efa(node)) for node in wiring.with_gpus(cluster)]
    if not any(hcas for _, hcas in nodes):
        raise NothingToJudge("no EFA device")
    for node, hcas in nodes:
        plugins = at(node, "nccl.plugins")
        if hcas and isinstance(plugins, Unread):
            yield not_read(Where(node=node.name), "nccl.plugins", plugins)
        elif hcas:
            yield _judge(node, hcas, [path for path in known(plugins) if "nccl-net" in path or "nccl-ofi" in path])


def _judge(node: Node, hcas: list[Hca], plugins: list[str]) -> Finding:
    if plugins:
        return fine(Where(node=node.name), f"{len(hcas)} EFA devices, plugin {plugins[0]}")
    return _no_plugin(node, hcas)


def _no_plugin(node: Node, hcas: list[Hca]) -> Finding:
    return fail(
        Where(node=node.name),
        f"{len(hcas)} EFA devices, and no NCCL plugin that could use them",
        why="NCCL has no EFA transport of its own and would use TCP.",
        owner="job",
        evidence=[
            seen("/sys/class/infiniband", fold_names(hca.name for hca in hcas)),
            seen("libnccl-net*.so", "not found where NCCL would look"),
        ],
        fix=[
            you(
                "Use an image with aws-ofi-nccl, or put its folder on the path; and let its absence be an error.",
                "export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:$LD_LIBRARY_PATH",
                "export NCCL_NET='AWS Libfabric'",
            )
        ],
    )

"""NCC008: the plugins that NCCL loads by their names."""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, at, known
from ncclcheck.reports.agreement import disagreements
from ncclcheck.reports.findings import Finding, State, admin, fail, you
from ncclcheck.reports.rule import rule


@rule(
    "NCC008", "the same NCCL plugins are found on all nodes", worst=State.FAIL, needs=("nccl.plugins",), at_least=2
)
def same_plugins_everywhere(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The network, tuner, profiler and environment plugins that NCCL would load by their names are the same files
    on all nodes.

    ## Why it matters
    A network plugin that stands on some nodes only makes these speak another protocol than the others: the job
    hangs while it connects, or ends with `wrong type 3 != 4`.

    ## How we know
    The names that NCCL tries (`libnccl-net.so` and its kin, and what NCCL_NET_PLUGIN and NCCL_TUNER_PLUGIN say)
    are looked for where the dynamic linker would look: LD_LIBRARY_PATH, then its cache. File names are compared.

    ## Fix
    - **you** Use the same image and the same LD_LIBRARY_PATH on all nodes; `NCCL_NET_PLUGIN=none` on all of them
      leaves network plugins out.
    - **admin** Install the plugin on all nodes, or on none.

    ## Source
    NVIDIA/nccl#1634 (a plugin on some nodes only); ld.so(8); NCCL 2.11 and later read NCCL_NET_PLUGIN.
    """
    yield from disagreements(
        {node.name: _plugins(node) for node in cluster.nodes},
        "the set of NCCL plugins",
        "the dynamic linker's paths",
        level=fail,
        why="Nodes with and without a network plugin do not understand each other: the job hangs as it connects.",
        owner="site",
        fix=[
            you("Leave network plugins out on all nodes, to get going.", "export NCCL_NET_PLUGIN=none"),
            admin("Install the same plugins on all nodes, or on none."),
        ],
    )


def _plugins(node: Node) -> str:
    paths: list[str] = known(at(node, "nccl.plugins"))
    return ", ".join(sorted(os.path.basename(path) for path in paths)) or "none"

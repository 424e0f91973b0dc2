"""How long judging takes: the healthy story's nodes copied to 2,000, every rule over them.

    python benchmarks/judging.py [--nodes 2000]

Target: 2,000 nodes in under 5 s.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.probes.facts import Cluster, replace
from ncclcheck.reports.judge import judge
from ncclcheck.reports.rule import all_rules
from tests import stories


def cluster_of(count: int) -> Cluster:
    """So many nodes with the facts of the healthy story, each under a name of its own."""
    told = stories.load("healthy").cluster
    nodes = [replace(told.nodes[i % len(told.nodes)], name=f"n{i:05d}") for i in range(count)]
    return replace(told, nodes=nodes, job=replace(told.job, nodes_asked=count, nodes_answered=count))


def main() -> None:
    """Print the whole time and the slowest rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    cluster = cluster_of(parser.parse_args().nodes)
    times = []
    for rule in all_rules():
        begin = time.perf_counter()
        judge(cluster, [rule])
        times.append((rule.code, time.perf_counter() - begin))
    times.sort(key=lambda item: -item[1])
    print(tabulate(times[:12], ["rule", "seconds"], floatfmt=".3f"))
    print(f"{len(times)} rules over {len(cluster.nodes)} nodes: {sum(seconds for _, seconds in times):.2f} s")


if __name__ == "__main__":
    main()

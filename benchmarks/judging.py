"""How long judging takes: the healthy story's nodes copied to 2,000, every rule over them.

    python benchmarks/judging.py [--nodes 2000] [--rounds 3]

Each copy has its own facts in memory, its own name and its own address, as nodes that were measured have.
CPU time of this process, so that neighbours on the machine count little. Target: 2,000 nodes in under 5 s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.probes.facts import Cluster, Node, replace
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import Rule, all_rules
from tests.helpers import stories


def cluster_of(count: int) -> Cluster:
    """So many nodes with the facts of the healthy story."""
    cluster = stories.load("healthy").cluster
    addresses = {reach.node: reach.address for reach in cluster.measurements.reach}
    written = [(node.name, addresses[node.name], msgspec.json.encode(node).decode()) for node in cluster.nodes]
    nodes = [_copy(*written[number % len(written)], number) for number in range(count)]
    return replace(cluster, nodes=nodes, job=replace(cluster.job, nodes_asked=count, nodes_answered=count))


def _copy(name: str, address: str, text: str, number: int) -> Node:
    """250 nodes to a subnet; host name and boot id hold the name, so they become unique too."""
    own_address = f"10.41.{number // 250}.{number % 250 + 1}"
    own = text.replace(name, f"n{number:05d}").replace(address, own_address)
    return msgspec.json.decode(own, type=Node)


def seconds(cluster: Cluster, rules: Iterable[Rule]) -> float:
    """CPU time of judging; nothing that an earlier round derived from the nodes is left."""
    fresh = replace(cluster, nodes=[replace(node) for node in cluster.nodes])
    begin = time.process_time()
    judge(fresh, rules)
    return time.process_time() - begin


def main() -> None:
    """Print the slowest rules, each judged alone, and the time of all of them together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3, help="how often all rules are judged (default 3)")
    asked = parser.parse_args()
    cluster, rules = cluster_of(asked.nodes), all_rules()
    alone = sorted(((seconds(cluster, [rule]), rule.code) for rule in rules), reverse=True)
    print(tabulate([(code, time) for time, code in alone[:12]], ["rule, alone", "CPU seconds"], floatfmt=".3f"))
    times = [seconds(cluster, rules) for _ in range(asked.rounds)]
    print(
        f"{len(rules)} rules over {asked.nodes} nodes: {statistics.median(times):.2f} s (median of {asked.rounds})"
    )


if __name__ == "__main__":
    main()

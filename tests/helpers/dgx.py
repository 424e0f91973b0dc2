"""A made-up cluster of DGX-like nodes: one recorded machine again and again, with names and addresses of its own.

Each has eight IPoIB rails in one subnet and its name on the bond: what every node has is found on every node.
Three are broken, each in its own way.
"""

from __future__ import annotations

from functools import cache

import msgspec

from ncclcheck.probes.facts import Cluster, Job, Node, Resolution, Variable, known, replace
from ncclcheck.probes.facts.guard.alike import Kinds
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.survey import survey
from ncclcheck.reports.judgement.jsondoc import Document, NodeEntry
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.conftest import ROOT
from tests.helpers import clusters

RAILS = 8


def cluster(count: int) -> Cluster:
    """So many nodes; a GPU is gone on one, a port is down on another, a third runs another kernel."""
    kinds = Kinds()
    nodes = [kinds.shared(_node(number)) for number in range(count)]
    third = known(nodes[2].host)
    nodes[0] = replace(nodes[0], gpus=replace(known(nodes[0].gpus), cards=known(known(nodes[0].gpus).cards)[1:]))
    nodes[1] = _with_a_port_down(nodes[1])
    nodes[2] = replace(nodes[2], host=replace(third, kernel="5.15.0-1042-generic"))
    return Cluster(nodes=nodes, job=Job(launcher="slurm", nodes_asked=count, nodes_answered=count))


def document(count: int) -> Document:
    """Its whole result."""
    return finish.make(cluster(count), Options(command="env"), _STORY)


def unjudged(count: int) -> Document:
    """Its nodes in a result that is to be judged anew."""
    whole, bare = cluster(count), finish.make(Cluster(job=Job(nodes_asked=1)), Options(command="env"), _STORY)
    entries = [NodeEntry(name=node.name, facts=node) for node in whole.nodes]
    return replace(bare, job=whole.job, nodes=entries, verdicts=[])


_STORY = finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0)


@cache
def _pattern() -> str:
    """The recorded machine as JSON, with marks where every node has its own."""
    node = survey("gpu-a17", Machine(str(ROOT / "tests/machines/h100-node"), recorded=True), 30.0)
    network, host, job = known(node.network), known(node.host), known(node.job)
    rails = [
        replace(clusters.nic(f"ibp{rail}s0", f"100.RAIL{rail}/10"), speed_mbit=400_000) for rail in range(RAILS)
    ]
    own = Resolution(name="gpu-a17", addresses=["10.99.8.17"])  # of an old network: NET005
    kept = [
        variable for variable in known(job.variables) if variable.name not in ("NCCL_SOCKET_IFNAME", "MASTER_ADDR")
    ]
    made = replace(
        node,
        host=replace(host, hostname="gpu-a17", own_name=own),
        network=replace(network, interfaces=[*known(network.interfaces), *rails]),
        job=replace(job, variables=[*kept, Variable(name="MASTER_ADDR", value="dgx-00000")]),
    )
    return msgspec.json.encode(made).decode()


def _node(number: int) -> Node:
    """What is one node's own differs: its name, its addresses, the id of its boot."""
    text = _pattern()
    for rail in range(RAILS):
        place = number * RAILS + rail
        text = text.replace(f"RAIL{rail}", f"{64 + place // 62_500}.{_two(place % 62_500)}")
    own = {
        "gpu-a17": f"dgx-{number:05d}",
        "10.41.8.17": f"10.41.{_two(number)}",
        "10.99.8.17": f"10.99.{_two(number)}",
        "172.30.4.17": f"172.30.{_two(number)}",
        "2001:db8:41:8::17": f"2001:db8:41:8::{number + 1:x}",
        "9a55-2c9e8f1f6b17": f"9a55-{number:012x}",
    }
    for old, new in own.items():
        text = text.replace(old, new)
    return msgspec.json.decode(text, type=Node)


def _two(number: int) -> str:
    """The last two numbers of an address."""
    return f"{number // 250}.{number % 250 + 1}"


def _with_a_port_down(node: Node) -> Node:
    rdma = known(node.rdma)
    first, *others = known(rdma.devices)
    ports = [replace(port, state="DOWN", physical="Polling") for port in known(first.ports)]
    return replace(node, rdma=replace(rdma, devices=[replace(first, ports=ports), *others]))

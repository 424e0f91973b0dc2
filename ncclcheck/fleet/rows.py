"""A document as rows of three tables: nodes with their versions, verdicts, measurements."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import median
from typing import NamedTuple

from ncclcheck.probes.facts import Node, at, value_or
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document

# Columns that say of a node what it runs and where it stands; an upgrade is a change of one, and nodes that fail
# together are looked at by each.
VERSIONS = ("driver", "kernel", "nccl", "torch", "hca_firmware", "vbios", "image", "leaf")
_TOLD = (State.FAIL, State.WARN, State.UNKNOWN)


class NodeRow(NamedTuple):
    """One node in one result. serial: what stays the same when it is renamed; state: its worst finding."""

    started: str
    result: str
    serial: str
    node: str
    command: str
    state: str
    driver: str
    kernel: str
    nccl: str
    torch: str
    hca_firmware: str
    vbios: str
    image: str
    leaf: str


class VerdictRow(NamedTuple):
    """What a check found on a node, once for its worst state."""

    started: str
    result: str
    serial: str
    code: str
    state: str
    what: str


class MeasuredRow(NamedTuple):
    """A figure of one node. more_is_better: what slower means."""

    started: str
    result: str
    serial: str
    metric: str
    value: float
    more_is_better: bool


class Rows(NamedTuple):
    """All rows of one result. key: the same for the same result, so that writing it twice leaves it once."""

    key: str
    nodes: list[NodeRow]
    verdicts: list[VerdictRow]
    measurements: list[MeasuredRow]


def of(document: Document) -> Rows:
    """The rows of one result; findings and figures of no node are left out."""
    serials = {entry.name: serial(entry.facts) for entry in document.nodes}
    key = hashlib.sha256("\n".join([document.started, document.command, *sorted(serials.values())]).encode())
    head = document.started, key.hexdigest()[:16]
    verdicts = [VerdictRow(*head, serials[node], *rest) for node, *rest in _found(document) if node in serials]
    worst: dict[str, str] = {}
    for row in verdicts:
        worst[row.serial] = min(worst.get(row.serial, row.state), row.state, key=lambda state: State(state).rank)
    nodes = [
        NodeRow(
            *head, serials[entry.name], entry.name, document.command, worst.get(serials[entry.name], "ok"),
            *_versions(entry.facts),
        )
        for entry in document.nodes
    ]  # fmt: skip
    measured = [MeasuredRow(*head, serials[n], m, v, b) for n, m, v, b in _measured(document) if n in serials]
    return Rows(head[1], nodes, verdicts, measured)


def serial(node: Node) -> str:
    """What a machine keeps when it is renamed and reinstalled: the GUID of its first HCA, a MAC, else its name."""
    guids = [device.node_guid for device in value_or(at(node, "rdma.devices"), [])]
    if known := sorted(guid for guid in guids if isinstance(guid, str) and guid.strip("0:")):
        return known[0]
    macs = [
        interface.mac for interface in value_or(at(node, "network.interfaces"), []) if interface.kind == "physical"
    ]
    return next(iter(sorted(mac for mac in macs if isinstance(mac, str) and mac.strip("0:"))), node.name)


def _versions(node: Node) -> Iterator[str]:
    def text(path: str) -> str:
        value = at(node, path)
        return value if isinstance(value, str) else ""

    yield from (text(path) for path in ("stack.driver", "host.kernel", "nccl.loaded.version", "stack.torch"))
    yield _all(card.firmware for card in value_or(at(node, "rdma.devices"), []))
    yield _all(card.vbios for card in value_or(at(node, "gpus.cards"), []))
    variables = {variable.name: variable.value for variable in value_or(at(node, "job.variables"), [])}
    yield variables.get("SLURM_CONTAINER") or text("host.system")
    yield next(iter(sorted(leaf.switch for leaf in value_or(at(node, "rdma.leaves"), []))), "")


def _all(values: Iterable[object]) -> str:
    return ", ".join(sorted({value for value in values if isinstance(value, str)}))


def _found(document: Document) -> Iterator[tuple[str, str, str, str]]:
    """Node, code, state and words of the worst finding of each check on each node."""
    for verdict in document.verdicts:
        seen: set[str] = set()
        for finding in verdict.findings:  # the worst first
            node = finding.where.node
            if node is not None and node not in seen and finding.state in _TOLD:
                seen.add(node)
                yield node, verdict.code, finding.state.value, finding.what[:500]


def _measured(document: Document) -> Iterator[tuple[str, str, float, bool]]:
    """Figures by node: the slowest of its GPUs, the bandwidth within it, the median of its pairs."""
    measurements = document.measurements
    least: dict[tuple[str, str], float] = {}
    for speed in measurements.rank_speeds:
        for metric in ("memory_gb_s", "matmul_gflop_s", "to_device_gb_s", "from_device_gb_s"):
            if (value := getattr(speed, metric)) is not None:
                least[speed.node, metric] = min(value, least.get((speed.node, metric), value))
    yield from ((node, metric, value, True) for (node, metric), value in least.items())
    yield from (
        (node_speed.node, "node_busbw_gb_s", node_speed.busbw_gb_s, True)
        for node_speed in measurements.node_speeds
        if node_speed.busbw_gb_s
    )
    speeds: dict[str, list[float]] = defaultdict(list)
    waits: dict[str, list[float]] = defaultdict(list)
    for pair in measurements.pairs:
        for node in (pair.a, pair.b):
            speeds[node] += [v for v in (pair.a_to_b_gb_s, pair.b_to_a_gb_s) if v is not None]
            waits[node] += [pair.latency_us] if pair.latency_us is not None else []
    yield from ((node, "pair_gb_s", median(values), True) for node, values in speeds.items() if values)
    yield from ((node, "pair_latency_us", median(values), False) for node, values in waits.items() if values)

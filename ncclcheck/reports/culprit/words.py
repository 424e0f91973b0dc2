"""Blames in plain words with their numbers: the names, where to look, and why."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from msgspec import UNSET

from ncclcheck.probes.facts import Cluster, Node, at, value_or
from ncclcheck.reports.culprit.alone import METRICS, Late, Outlier
from ncclcheck.reports.culprit.pairs.blame import BlamedSuspect
from ncclcheck.reports.culprit.pairs.samples import PairSamples, repeats
from ncclcheck.reports.culprit.pairs.suspects import Suspect
from ncclcheck.reports.culprit.pairs.two import SlowerDirection
from ncclcheck.reports.judgement.findings import Where
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import duration, flops, fold_names

Kind = Literal["node", "nic", "gpu", "rank", "link", "fabric"]

_DIRECTION = {"out": "in what it sends", "in": "in what it receives", "both": "in both directions"}
_REASON = {
    "starved": "it was runnable and had no core: other processes take them",
    "busy": "its own process computed meanwhile: input, garbage collection, or a slow core",
    "stopped": "it did not run though it was due: its processes are stopped, frozen or throttled from outside",
    "idle": "it neither ran nor wanted to: it slept, or waited for a disk or for memory",
    "unseen": "what it did meanwhile could not be read",
}


Place = Callable[[str, int | None], Where]


def places(cluster: Cluster) -> Place:
    """The NIC of a node behind a rail: the interface where it is the only one, else the rail's number."""
    nodes = {node.name: node for node in cluster.nodes}

    def place(name: str, rail: int | None) -> Where:
        if rail is None and (interface := _interface(cluster, nodes.get(name))):
            return Where(node=name, device=interface)
        return Where(node=name, device=f"rail {rail or 0}", rail=rail or 0)

    return place


def _interface(cluster: Cluster, node: Node | None) -> str | None:
    if node is None or not value_or(at(node, "network.interfaces"), []) or not lan.uses_gloo(cluster):
        return None
    chosen = lan.choice_of_job(cluster, node).bootstrap
    return chosen.name if chosen else None


def kind(suspect: Suspect) -> Kind:
    """The kind of a culprit for a suspect: a slow rail is a switch of the fabric."""
    return "fabric" if suspect.part == "rail" else suspect.part


def names(suspect: Suspect, place: Place) -> list[str]:
    """The names of a suspect in the document: `rail 2`, `gpu-a07/mlx5_3`, or its nodes."""
    if suspect.part == "rail":
        return [f"rail {suspect.rail}"]
    if suspect.part == "nic":
        nic = place(suspect.names[0], suspect.rail)
        return [f"{nic.node}/{nic.device}"]
    return [*suspect.names]


def where(suspect: Suspect, place: Place) -> list[Where]:
    """The places of a suspect, for a finding."""
    rail = UNSET if suspect.rail is None else suspect.rail
    named = None if suspect.rail is None else f"rail {suspect.rail}"
    if suspect.part == "rail":
        return [Where(device=named, rail=rail)]
    if suspect.part == "nic":
        return [place(suspect.names[0], suspect.rail)]
    if suspect.part == "link":
        return [Where(node=suspect.names[0], device=named, peer=suspect.names[1], rail=rail)]
    return [Where(node=name) for name in suspect.names]


def confidence(blame: BlamedSuspect, samples: PairSamples) -> float:
    """An order, no probability: how far above the limit, and how often and with how many seen."""
    above = blame.slowness / samples.least(blame.seen) - 1
    spare = blame.seen - repeats(2 * len(samples.names))
    return round(min(0.99, 0.8 + 0.1 * min(1.0, above) + 0.02 * max(0, min(5, spare))), 2)


def numbers(blame: BlamedSuspect, samples: PairSamples) -> str:
    """`reaches 6.1 of 11.8 GB/s (52 %)`, or that nothing arrived."""
    if blame.is_dead:
        return "carries nothing"
    speed = samples.healthy_gb_s * math.exp(-blame.slowness)
    return f"reaches {speed:.3g} of {samples.healthy_gb_s:.3g} GB/s ({100 * math.exp(-blame.slowness):.0f} %)"


def what(blame: BlamedSuspect, samples: PairSamples) -> str:
    """One sentence: how slow, in which direction, seen with whom."""
    suspect, words = blame.suspect, numbers(blame, samples)
    rail = f" on rail {suspect.rail}" if suspect.rail is not None and suspect.part in ("link", "fabric") else ""
    if suspect.part == "link":
        there = "in both directions" if suspect.direction == "both" else f"from {suspect.names[0]}"
        return (
            f"the link{rail} {words} {there}, {blame.seen} times of {blame.seen}; both nodes are fast with others"
        )
    if suspect.part == "fabric":
        rest, way = fold_names(suspect.others), _between(suspect)
        words = f"all pairs {words} {way}"
        return f"between {fold_names(suspect.names)} and {rest}{rail}: {words}; each side is fast within"
    if suspect.part == "rail":
        return f"rail {suspect.rail} {words} on all nodes, and the other rails of the same nodes are fast"
    way = _DIRECTION[suspect.direction]
    return f"{words} {way}, with each of {blame.partners} partners that are fast with others"


def of_two(slower: SlowerDirection) -> str:
    """The slower direction between two nodes."""
    way, rail = slower.way, f" on rail {slower.way.rail}" if slower.rails > 1 else ""
    return f"{way.source} to {way.target}{rail} carries {100 * slower.share:.0f} % of what the best way does"


def _between(suspect: Suspect) -> str:
    return {"out": "towards the latter", "in": "towards the former", "both": "both ways"}[suspect.direction]


def late(rank: Late) -> str:
    """How late, what it costs, and what the process did."""
    fact = rank.fact
    return (
        f"comes {duration(rank.by_us)} later than most, the last in {fact.last} of {fact.iterations} iterations, "
        f"which is {100 * rank.share:.0f} % of the time; {_REASON[rank.reason]} "
        f"(CPU {_percent(fact.cpu_s, fact.wall_s)}, others {100 * rank.others_cpu:.0f} %; "
        f"waiting for a core {_percent(fact.runqueue_s, fact.wall_s)}, others {100 * rank.others_runqueue:.0f} %)"
    )


def _percent(seconds: float | None, of: float) -> str:
    return "unread" if seconds is None else f"{100 * seconds / of:.0f} %"


def slow(outlier: Outlier) -> str:
    """The rank's number, and that which its peers reach, with unit and per cent."""
    name = METRICS.get(outlier.metric, "all_reduce among its own ranks")
    scale, unit = flops(outlier.healthy) if outlier.metric == "matmul_gflop_s" else (1.0, "GB/s")
    peers = f"the {_figure(outlier.healthy / scale)} that {outlier.peers} peers reach"
    return f"{name}: {_figure(outlier.value / scale)} {unit}, {outlier.percent:.0f} % of {peers}"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"

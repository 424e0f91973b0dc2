"""Planting: random faults of a kind, and whether an answer is right."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from benchmarks.simulation.fabric import Fabric, Fault, Kind, Way
from ncclcheck.reports.judgement.findings import Culprit

_WAYS: tuple[Way, ...] = ("out", "in", "both")


def plant(
    kind: Kind, names: Sequence[str], rails: int, chance: random.Random, factor: float | None = None
) -> Fault:
    """One fault of a kind; what is left is 25 to 80 % where nothing is said: it slows by 20 % or more."""
    left = 0.0 if kind.startswith("dead") else factor or chance.uniform(0.25, 0.8)
    count = 2 if "link" in kind and kind != "uplink" else 1
    way: Way = (
        "both"
        if kind in ("host", "dead node", "dead link")
        else chance.choice(_WAYS[::2] if count == 2 else _WAYS)
    )
    chosen = tuple(chance.sample(list(names), count)) if kind != "rail" else ()
    return Fault(kind, chosen, chance.randrange(rails), way, left)


def is_right(fabric: Fabric, answer: Iterable[Culprit]) -> bool:
    """Every fault named with its kind and names, and nothing else.

    Of a node with a fault of its own it may be left open on which side of a slow switch it stands.
    """
    own = {name for fault in fabric.faults if fault.kind != "uplink" for name in fault.names}
    named = {_told(culprit, own if culprit.kind == "fabric" else set()) for culprit in answer}
    truths = [_true(fabric, fault, own) for fault in fabric.faults]
    return len(named) == len(truths) and all(named & truth for truth in truths)


def _told(culprit: Culprit, open_: set[str]) -> str:
    names = sorted(culprit.names) if culprit.kind == "link" else culprit.names
    return f"{culprit.kind} {' '.join(name for name in names if name not in open_)}"


def _true(fabric: Fabric, fault: Fault, own: set[str]) -> set[str]:
    """What may be answered; of a cut, either side."""
    first = fault.names[0] if fault.names else ""
    if fault.kind == "uplink":
        group = [name for name in fabric.members(fault) if name not in own]
        rest = [name for name in fabric.names if name not in own and name not in group]
        return {f"fabric {' '.join(group)}", f"fabric {' '.join(rest)}"}
    if "link" in fault.kind:
        return {f"link {' '.join(sorted(fault.names))}"}
    if fault.kind == "rail":
        return {f"fabric rail {fault.rail}"}
    if fault.kind == "nic" or (fabric.rails == 1 and fault.kind in ("node", "dead node")):
        return {f"nic {first}/rail {fault.rail if fabric.rails > 1 else 0}"}
    if fault.kind == "gpu" and fabric.rails > 1:
        return {f"gpu {first}/cuda:{fault.rail}"}
    if fault.kind == "late" and fabric.rails > 1:
        return {f"rank {first}/rank {fabric.names.index(first) * fabric.rails + fault.rail}"}
    return {f"node {first}"}

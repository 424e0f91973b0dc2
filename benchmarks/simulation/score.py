"""Many fabrics of one sort, and how often each method was right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.simulation.baselines import bisection, slowest_by_duration, two_rounds
from benchmarks.simulation.fabric import Fabric, Kind, Weather
from benchmarks.simulation.faults import is_right, plant
from ncclcheck.probes.facts import Cluster, Job, JobFacts, Measurements, Node, Variable
from ncclcheck.reports.culprit import culprits, next_round
from ncclcheck.reports.judgement.findings import Culprit

Level = Literal["quick", "full"]
BASELINES = {"slowest by duration": slowest_by_duration, "two rounds": two_rounds, "bisection": bisection}


@dataclass(frozen=True)
class Shape:
    """How large the fabric is. known: whether Slurm says which nodes share a leaf switch."""

    nodes: int
    rails: int = 1
    group: int = 16
    known: bool = False


@dataclass(frozen=True)
class Score:
    """named: somebody was; right: all faults were, and nobody else; rounds: on average."""

    trials: int
    named: int
    right: int
    rounds: float


def answer(fabric: Fabric, level: Level, shape: Shape) -> tuple[list[Culprit], int]:
    """Rounds until nothing is left to ask, and the culprits, as the tool does it."""
    done: list[object] = []
    rounds = 0
    while pairs := next_round(fabric.names, level, done):  # type: ignore[arg-type]
        done += fabric.exchange(pairs, rounds)
        rounds += 1
    measurements = Measurements(pairs=done, lateness=fabric.lateness(), rank_speeds=fabric.speeds())  # type: ignore[arg-type]
    nodes = [_node(fabric, name) for name in fabric.names] if shape.known else []
    return culprits(
        Cluster(command="bench", nodes=nodes, job=Job(backend="nccl"), measurements=measurements)
    ), rounds


def _node(fabric: Fabric, name: str) -> Node:
    place = Variable(name="SLURM_TOPOLOGY_ADDR", value=f"spine.leaf{fabric.place[name]}.{name}")
    return Node(name=name, job=JobFacts(variables=[place]))


def fabrics(shape: Shape, kinds: Sequence[Kind], weather: Weather, trials: int, seed: int) -> list[Fabric]:
    """Fabrics with these faults planted at different nodes."""
    planted = []
    for trial in range(trials):
        chance = random.Random(f"{seed} {trial}")
        names = [f"n{index:04d}" for index in range(shape.nodes)]
        faults = []
        for kind in kinds:
            fault = plant(kind, names, shape.rails, chance)
            names = [name for name in names if name not in fault.names]
            faults.append(fault)
        planted.append(Fabric(shape.nodes, shape.rails, shape.group, weather, faults, chance))
    return planted


def score(level: Level, shape: Shape, many: Sequence[Fabric]) -> Score:
    """The tool."""
    named = right = rounds = 0
    for fabric in many:
        accused, used = answer(fabric, level, shape)
        named, right, rounds = named + bool(accused), right + is_right(fabric, accused), rounds + used
    return Score(len(many), named, right, rounds / len(many))


def baseline(method: Callable[[Fabric], tuple[set[str], int]], many: Sequence[Fabric]) -> Score:
    """Another method; it names nodes, and is right where these are the ones at which the faults stand."""
    named = right = rounds = 0
    for fabric in many:
        nodes, used = method(fabric)
        truth = {name for fault in fabric.faults for name in fabric.members(fault)}
        named, right, rounds = named + bool(nodes), right + (nodes == truth), rounds + used
    return Score(len(many), named, right, rounds / len(many))

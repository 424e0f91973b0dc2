"""Nodes, rails, NICs and switches; what an exchange measures on them, with noise and bursts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ncclcheck.probes.facts import Lateness, PairTime, RankSpeed, Times

Kind = Literal[
    "node", "nic", "link", "rail", "uplink", "host", "gpu", "late", "dead node", "dead link"
]  # fmt: skip
Way = Literal["out", "in", "both"]

BYTES = 2**22
ALPHA_S = 5e-6
GB_S = 50.0


@dataclass(frozen=True)
class Weather:
    """noise: the spread of the logarithm of one measurement; bursts: the share of measurements that are disturbed.

    A burst makes a measurement 1.2 to 3 times slower. unlike: how much healthy NICs differ for good.
    """

    noise: float = 0.02
    bursts: float = 0.005
    unlike: float = 0.01


@dataclass(frozen=True)
class Fault:
    """factor: what is left of the bandwidth (of the speed, for a GPU or host; of the time, for a late rank)."""

    kind: Kind
    names: tuple[str, ...]
    rail: int = 0
    way: Way = "both"
    factor: float = 0.5


@dataclass
class Fabric:
    """nodes in groups behind one leaf switch each; `rails` NICs a node."""

    nodes: int
    rails: int
    group: int
    weather: Weather
    faults: Sequence[Fault]
    chance: random.Random
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = [f"n{index:04d}" for index in range(self.nodes)]
        self.place = {name: index // self.group for index, name in enumerate(self.names)}
        usual = [(name, rail) for name in self.names for rail in range(self.rails)]
        self.nic = {key: math.exp(-abs(self.chance.gauss(0, self.weather.unlike))) for key in usual}
        self.sick = {name for fault in self.faults for name in self.members(fault)}
        self.on_rails = any(fault.kind == "rail" for fault in self.faults)

    def members(self, fault: Fault) -> list[str]:
        """The nodes through which a fault can be felt; an uplink is that of its first node's group."""
        if fault.kind == "uplink":
            return [name for name in self.names if self.place[name] == self.place[fault.names[0]]]
        return [*fault.names]

    def capacity(self, source: str, target: str, rail: int) -> float:
        """GB/s: the least of what the parts of this way carry; 0 where it is dead."""
        speed = GB_S * min(self.nic[source, rail], self.nic[target, rail])
        if self.on_rails or source in self.sick or target in self.sick:
            speed = min([speed, *(self._left(fault, source, target, rail) for fault in self.faults)])
        return speed

    def _left(self, fault: Fault, source: str, target: str, rail: int) -> float:
        return GB_S * fault.factor if self._through(fault, source, target, rail) else math.inf

    def _through(self, fault: Fault, source: str, target: str, rail: int) -> bool:
        kind, first = fault.kind, fault.names[0] if fault.names else ""
        if kind in ("link", "dead link"):
            there = (source, target) == fault.names
            return there or (fault.way == "both" and (target, source) == fault.names)
        if kind == "rail":
            return rail == fault.rail
        if kind == "uplink":
            mine = self.place[first]
            out, into = self.place[source] == mine, self.place[target] == mine
            return out != into and ((out and fault.way != "in") or (into and fault.way != "out"))
        on_rail = kind != "nic" or rail == fault.rail
        sent, received = source == first and fault.way != "in", target == first and fault.way != "out"
        return kind in ("node", "nic", "host", "dead node") and on_rail and (sent or received)

    def measure(self, source: str, target: str, rail: int) -> float | None:
        """GB/s as measured: latency and transfer, noise, and now and then a burst."""
        capacity = self.capacity(source, target, rail)
        if capacity == 0:
            return None
        seconds = ALPHA_S + BYTES / (capacity * 1e9)
        seconds *= math.exp(self.chance.gauss(0, self.weather.noise))
        if self.chance.random() < self.weather.bursts:
            seconds *= self.chance.uniform(1.2, 3.0)
        return BYTES / seconds / 1e9

    def exchange(self, pairs: Sequence[tuple[str, str]], number: int) -> list[PairTime]:
        """One round."""
        measured = []
        for a, b in pairs:
            for rail in range(self.rails):
                out, into = self.measure(a, b, rail), self.measure(b, a, rail)
                measured.append(
                    PairTime(
                        a=a, b=b, bytes=BYTES, rail=rail, round=number, a_to_b_gb_s=out, b_to_a_gb_s=into,
                        state="timed_out" if out is None or into is None else "ok",
                    )
                )  # fmt: skip
        return measured

    def speeds(self) -> list[RankSpeed]:
        """What every rank reaches alone."""
        slow = {(f.names[0], f.rail): f.factor for f in self.faults if f.kind == "gpu"}
        hosts = {f.names[0]: f.factor for f in self.faults if f.kind == "host"}
        measured = []
        for index, (name, rail) in enumerate(self.nic):
            left = slow.get((name, rail), 1.0) * hosts.get(name, 1.0)
            flops, copy = (left * math.exp(self.chance.gauss(0, self.weather.noise)) for _ in range(2))
            measured.append(
                RankSpeed(
                    rank=index,
                    node=name,
                    device=f"cuda:{rail}" if self.rails > 1 else "cpu",
                    memory_gb_s=2000 * copy,
                    matmul_gflop_s=50e3 * flops,
                )
            )
        return measured

    def lateness(self) -> list[Lateness]:
        """100 iterations of 10 ms: how late every rank came."""
        late = {(f.names[0], f.rail): 1 - f.factor for f in self.faults if f.kind == "late"}
        measured = []
        for index, (name, rail) in enumerate(self.nic):
            by = late.get((name, rail), 0.0)
            p50 = abs(self.chance.gauss(0, 50)) + 10_000 * by
            times = Times(p50=p50, p95=p50 * 1.3, p99=p50 * 1.6, min=0, max=p50 * 2, mean=p50 * 1.05)
            measured.append(
                Lateness(
                    rank=index, node=name, iterations=100, last=90 if by else 0, late_us=times, wall_s=1.0,
                    cpu_s=0.5, runqueue_s=by if by else 0.01,
                )
            )  # fmt: skip
        return measured

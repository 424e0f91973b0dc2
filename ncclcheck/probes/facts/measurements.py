"""All that the job measured, told in parts by many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from msgspec import Struct, field

from ncclcheck.probes.facts.bench import Collective, Expectation, Soak, Startup, WrongResult
from ncclcheck.probes.facts.memory import JobMemory
from ncclcheck.probes.facts.pairs import Lateness, NodeSpeed, PairTime, RankSpeed
from ncclcheck.probes.facts.reach import NodeReach
from ncclcheck.probes.facts.transport import Diagnostics, Traffic, Transport


class Measurements(Struct, frozen=True, kw_only=True):
    """What the job measured, and before it the nodes of each other."""

    collectives: list[Collective] = field(default_factory=list)
    wrong: list[WrongResult] = field(default_factory=list)
    soak: Soak | None = None
    startup_s: Startup | None = None
    expectation: Expectation | None = None
    reach: list[NodeReach] = field(default_factory=list)
    pairs: list[PairTime] = field(default_factory=list)
    lateness: list[Lateness] = field(default_factory=list)
    rank_speeds: list[RankSpeed] = field(default_factory=list)
    node_speeds: list[NodeSpeed] = field(default_factory=list)
    memory: JobMemory = JobMemory()
    transport: list[Transport] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    diagnostics: Diagnostics | None = None


def together(parts: Sequence[Measurements]) -> Measurements:
    """Many parts as one: lists are joined, and of what is single the last one told counts."""
    told = {name: [value for part in parts if (value := getattr(part, name))] for name in _FIELDS}
    return Measurements(**{name: _joined(values) for name, values in told.items() if values})


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], JobMemory):
        return JobMemory(ranks=_joined([value.ranks for value in values]))
    return [*chain.from_iterable(values)] if isinstance(values[0], list) else values[-1]


_FIELDS = Measurements.__struct_fields__

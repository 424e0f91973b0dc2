"""All that the job measured, told in parts by many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ncclcheck.probes.facts.data import DataReport, by_node
from ncclcheck.probes.facts.data.resources import Pickled
from ncclcheck.probes.facts.guard.bounds import Amount
from ncclcheck.probes.facts.live.box import Box
from ncclcheck.probes.facts.live.processes import JobRecord, Live
from ncclcheck.probes.facts.live.ras import Ras
from ncclcheck.probes.facts.log.logs import Logs
from ncclcheck.probes.facts.measured.bench import Collective, Expectation, Soak, Startup, WrongResult
from ncclcheck.probes.facts.measured.groups import GroupTime
from ncclcheck.probes.facts.measured.memory import JobMemory
from ncclcheck.probes.facts.measured.pairs import Lateness, NodeSpeed, PairTime, RankSpeed
from ncclcheck.probes.facts.measured.resources import Resources
from ncclcheck.probes.facts.measured.transport import Diagnostics, Interruptions, Traffic, Transport
from ncclcheck.probes.facts.measured.trial import Trial
from ncclcheck.probes.facts.measured.tuning import Tuning
from ncclcheck.probes.facts.measured.verified import Verified
from ncclcheck.probes.facts.run.init import InitSeen
from ncclcheck.probes.facts.run.reach import NodeReach, NoDoor
from ncclcheck.probes.facts.script import Script
from ncclcheck.probes.facts.training import Checks, Saves, Side, Smoke


class Measurements(Struct, frozen=True, kw_only=True):
    """What the job measured, and before it the nodes of each other.

    no_doors: nodes that could not be tried, for they could open no port.
    init: what nodes see of the place where the ranks are to find each other. pickled: what spawn would pickle.
    reach_after: the same once more after a job that failed, to tell whether a way has closed meanwhile.
    measuring_s: seconds of rank 0 from its first collective to the end of all that was measured.
    """

    collectives: list[Collective] = field(default_factory=list)
    wrong: list[WrongResult] = field(default_factory=list)
    soak: Soak | None = None
    startup_s: Startup | None = None
    measuring_s: Amount | None = None
    expectation: Expectation | None = None
    reach: list[NodeReach] = field(default_factory=list)
    reach_after: list[NodeReach] = field(default_factory=list)
    no_doors: list[NoDoor] = field(default_factory=list)
    init: list[InitSeen] = field(default_factory=list)
    pickled: list[Pickled] = field(default_factory=list)
    pairs: list[PairTime] = field(default_factory=list)
    groups: list[GroupTime] = field(default_factory=list)
    lateness: list[Lateness] = field(default_factory=list)
    rank_speeds: list[RankSpeed] = field(default_factory=list)
    node_speeds: list[NodeSpeed] = field(default_factory=list)
    memory: JobMemory = JobMemory()
    transport: list[Transport] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    interruptions: list[Interruptions] = field(default_factory=list)
    resources: list[Resources] = field(default_factory=list)
    diagnostics: Diagnostics | None = None
    data: list[DataReport] = field(default_factory=list)
    smoke: Smoke | None = None
    verified: Verified | None = None
    trial: Trial | None = None
    tuning: Tuning | None = None
    logs: Logs | None = None
    live: list[Live] = field(default_factory=list)
    ras: list[Ras] = field(default_factory=list)
    records: list[JobRecord] = field(default_factory=list)
    script: Script | None = None
    boxes: list[Box] = field(default_factory=list)


def together(parts: Sequence[Measurements]) -> Measurements:
    """Many parts as one: lists are joined, and of what is single the last one told counts."""
    whole: Measurements = _joined([Measurements(), *parts])
    last = {rank.rank: rank for rank in whole.memory.ranks}  # of several jobs the last one counts
    return replace(whole, data=by_node(whole.data), memory=JobMemory(ranks=[*last.values()]))


def _joined(values: list[Any]) -> Any:
    """Structs whose parts are told apart are joined field by field."""
    first = values[0]
    if isinstance(first, list):
        return [*chain.from_iterable(values)]
    if not isinstance(first, _TOLD_IN_PARTS):
        return values[-1]
    fields = {n: [v for value in values if (v := getattr(value, n)) is not None] for n in first.__struct_fields__}
    return type(first)(**{name: _joined(parts) for name, parts in fields.items() if parts})


_TOLD_IN_PARTS = (Measurements, JobMemory, Smoke, Checks, Saves, Side, Logs)

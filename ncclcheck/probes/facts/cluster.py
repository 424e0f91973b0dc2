"""All that is known: the only thing that a rule sees."""

from __future__ import annotations

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Word
from ncclcheck.probes.facts.measured.measurements import Measurements
from ncclcheck.probes.facts.node import Node
from ncclcheck.probes.facts.run.course import Run
from ncclcheck.probes.facts.run.job import Job


class Requirement(Struct, frozen=True, kw_only=True):
    """One `--require`: a count (`gpu=8`) or, with count None, the code of a rule."""

    what: str
    count: int | None = None


class Policy(Struct, frozen=True, kw_only=True):
    """What the site and the user expect; from options, NCCLCHECK_* and ncclcheck.toml.

    min_busbw: GB/s that an operation must reach.
    """

    require: list[Requirement] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)
    contact: str = ""
    min_busbw: dict[str, float] = field(default_factory=dict)


class Crash(Struct, frozen=True, kw_only=True):
    """A rule that raised."""

    code: str
    error: str


class Cluster(Struct, frozen=True, kw_only=True, dict=True):  # its __dict__: what reports derive from these facts
    """All that is known: the only thing that a rule sees."""

    command: Word = "env"
    nodes: list[Node] = field(default_factory=list)
    job: Job = field(default_factory=Job)
    run: Run = field(default_factory=Run)
    measurements: Measurements = field(default_factory=Measurements)
    policy: Policy = field(default_factory=Policy)
    crashes: list[Crash] = field(default_factory=list)
    baseline: Baseline | None = None


class Baseline(Struct, frozen=True, kw_only=True):
    """The saved result that this one is held against; never saved with it. name: its file."""

    name: str
    started: str = ""
    cluster: Cluster

"""What jobs on different nodes measured, side by side: ranks get new numbers, and the slowest row counts.

What names its nodes is kept as it is. Of two tables of bandwidth each row is that of the slower job, so that what
was too slow or wrong is there; that takes jobs of one shape, for the bandwidth to expect depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from msgspec.structs import replace

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import (
    Cluster,
    Collective,
    Diagnostics,
    JobMemory,
    Measurements,
    RankState,
    Soak,
    Startup,
    together,
)

T = TypeVar("T")
_Shape = tuple[int, int, str]

# What two jobs cannot have in one result, and why.
_SINGLE = {
    "smoke": "a training: steps and weights are compared between the ranks of one job",
    "tuning": "settings that were tried (tune): they were measured on their own nodes",
    "trial": "a setting that was tried (--with): it was measured on its own nodes",
    "verified": "a run with recommended settings: they were proved on its own nodes",
    "logs": "logs: give the log files themselves to one ncclcheck logs",
    "boxes": "boxes: give the folders themselves to one ncclcheck report",
    "script": "a script: give the scripts themselves to ncclcheck script",
}


def check(results: Sequence[tuple[str, Cluster]]) -> None:
    """Raises UsageError with what cannot be merged, and why."""
    for name, why in _SINGLE.items():
        paths = [path for path, cluster in results if getattr(cluster.measurements, name)]
        if len(paths) > 1:
            raise UsageError(f"report: {paths[0]} and {paths[1]} each hold {why}; give one of them, or --compare")
    shapes = [(path, _shape(cluster)) for path, cluster in results]
    for path, shape in shapes[1:]:
        if shape != shapes[0][1]:
            raise UsageError(
                f"report: {shapes[0][0]} was measured by {_words(shapes[0][1])}, {path} by {_words(shape)}: "
                "their bandwidths are no one table; merge jobs of one shape, or --compare"
            )


def _shape(cluster: Cluster) -> _Shape | None:
    rows = cluster.measurements.collectives
    return (rows[0].ranks, rows[0].nodes, cluster.job.backend) if rows else None


def _words(shape: _Shape | None) -> str:
    if shape is None:
        return "no job"
    ranks, nodes, backend = shape
    return f"{ranks} ranks on {nodes} nodes with {backend or 'an unknown backend'}"


def measured(clusters: Sequence[Cluster]) -> Measurements:
    """All that was measured, each rank under its new number."""
    every = [
        _renumbered(cluster.measurements, first)
        for cluster, first in zip(clusters, _firsts(clusters), strict=True)
    ]
    return replace(
        together(every),
        collectives=_slowest(row for measurements in every for row in measurements.collectives),
        startup_s=_whole([measurements.startup_s for measurements in every], _longest),
        soak=_whole([measurements.soak for measurements in every], _soaked),
        diagnostics=_whole([measurements.diagnostics for measurements in every], _diagnosed),
        expectation=None,  # worked out anew
    )


def ranks(clusters: Sequence[Cluster]) -> list[RankState]:
    """The ranks of all jobs."""
    return [
        rank
        for cluster, first in zip(clusters, _firsts(clusters), strict=True)
        for rank in _moved(cluster.run.ranks, first)
    ]


def _firsts(clusters: Sequence[Cluster]) -> list[int]:
    """The new number of each job's rank 0."""
    counts = [max([cluster.job.ranks, *(rank.rank + 1 for rank in cluster.run.ranks)]) for cluster in clusters]
    return [0, *accumulate(counts[:-1])]


def _renumbered(measurements: Measurements, first: int) -> Measurements:
    wrong = [
        row if row.source_rank is None else replace(row, source_rank=row.source_rank + first)
        for row in measurements.wrong
    ]
    return replace(
        measurements,
        wrong=_moved(wrong, first),
        lateness=_moved(measurements.lateness, first),
        rank_speeds=_moved(measurements.rank_speeds, first),
        transport=_moved(measurements.transport, first),
        memory=JobMemory(ranks=_moved(measurements.memory.ranks, first)),
    )


def _moved(rows: Sequence[Any], first: int) -> list[Any]:
    return [replace(row, rank=row.rank + first) for row in rows]


def _slowest(rows: Iterable[Collective]) -> list[Collective]:
    """One row for each operation and size: a wrong one before all, then the slowest, then one that was skipped."""
    worst: dict[tuple[str, int, str], Collective] = {}
    for row in rows:
        key = (row.op, row.bytes, row.dtype)
        worst[key] = max(worst.get(key, row), row, key=_badness)
    return [*worst.values()]


def _badness(row: Collective) -> tuple[bool, float]:
    return row.correct is False or row.state == "fail", row.time_us.p50 if row.time_us else -1.0


def _whole(parts: Sequence[T | None], join: Callable[[list[T]], T]) -> T | None:
    known = [part for part in parts if part is not None]
    return join(known) if known else None


def _longest(startups: list[Startup]) -> Startup:
    return Startup(
        **{name: max(getattr(startup, name) for startup in startups) for name in Startup.__struct_fields__}
    )


def _soaked(soaks: list[Soak]) -> Soak:
    spans = {name: max(getattr(soak, name) for soak in soaks) for name in ("asked_s", "seconds")}
    counts = {name: sum(getattr(soak, name) for soak in soaks) for name in ("rounds", "results", "wrong", "bytes")}
    return Soak(**spans, **counts)


def _diagnosed(parts: list[Diagnostics]) -> Diagnostics:
    return Diagnostics(
        results=[result for diagnostics in parts for result in diagnostics.results],
        seconds=max(diagnostics.seconds for diagnostics in parts),
        problem=next((diagnostics.problem for diagnostics in parts if diagnostics.problem), ""),
    )

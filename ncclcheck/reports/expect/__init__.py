"""What bandwidth to expect: bounds from what is present, a fit of what was measured, and what a user demands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ncclcheck.probes.facts import (
    Cluster,
    Collective,
    Expectation,
    Expected,
    Fit,
    Measurements,
    NotKnown,
    Unread,
    replace,
)
from ncclcheck.reports.expect.bounds import BandwidthBound, Ground, bound, ground
from ncclcheck.reports.expect.fit import fit, is_large, reached

# Per cent of the bound below which BEN002 warns and fails, by what carries the data; its page says why.
SHARES = {"rdma": (70.0, 50.0), "nvlink": (85.0, 50.0), "socket": (30.0, 10.0), "burst": (30.0, 10.0)}


@dataclass(frozen=True)
class Outlook:
    """One operation: its rows that have a bandwidth, the fit of them, its bound, and what it reached."""

    op: str
    rows: list[Collective]
    fit: Fit | None
    bound: BandwidthBound | None
    warn_percent: float = 0.0
    fail_percent: float = 0.0

    @property
    def most(self) -> float:
        """What a healthy cluster comes near to, to tell large rows by where there is no fit."""
        return (self.bound.usual or self.bound.best) if self.bound else 0.0

    @property
    def reached(self) -> float | None:
        """busbw where bandwidth rules; None where all rows were too small for it."""
        return reached(self.rows, self.fit, self.most) if self.bound else None

    @property
    def expected(self) -> Expected | None:
        """The range in which a healthy cluster's large rows lie."""
        if self.bound is None or self.bound.usual is None:
            return None
        low = self.bound.usual * self.warn_percent / 100
        return Expected(low=low, high=self.bound.best, basis=self.bound.basis)


@dataclass(frozen=True)
class Outlooks:
    """All operations that were measured. reason: why nothing is expected; unread: the fact that is missing."""

    of_op: dict[str, Outlook]
    reason: str = ""
    unread: Unread | None = None


def outlooks(cluster: Cluster) -> Outlooks:
    """What to expect of each operation that was measured."""
    rows = [row for row in cluster.measurements.collectives if row.busbw_gb_s]
    if not rows:
        return Outlooks({}, "no bandwidth was measured")
    on, unread = _ground(cluster, rows[0].ranks, rows[0].nodes)
    groups: dict[str, list[Collective]] = {}
    for row in rows:
        groups.setdefault(row.op, []).append(row)
    of_op = {op: _outlook(cluster, on, op, group) for op, group in groups.items()}
    return Outlooks(of_op, on if isinstance(on, str) else "", unread)


def _ground(cluster: Cluster, ranks: int, nodes: int) -> tuple[Ground | str, Unread | None]:
    try:
        return ground(cluster, ranks, nodes), None
    except NotKnown as missing:
        return missing.unread.why, missing.unread


def _outlook(cluster: Cluster, on: Ground | str, op: str, rows: list[Collective]) -> Outlook:
    limits = None if isinstance(on, str) else bound(on, op)
    if limits is None:
        return Outlook(op, rows, fit(rows), None)
    warn, fail = SHARES[limits.carrier]
    given = cluster.policy.thresholds
    return Outlook(
        op,
        rows,
        fit(rows),
        limits,
        min(100.0, max(0.0, given.get(f"BEN002.{limits.carrier}_warn_percent", warn))),
        min(100.0, max(0.0, given.get(f"BEN002.{limits.carrier}_fail_percent", fail))),
    )


def completed(cluster: Cluster) -> Measurements:
    """The measurements with fits, and with the expectation of every row where bandwidth rules."""
    measured = cluster.measurements
    if not measured.collectives:
        return measured
    forecast = outlooks(cluster)
    rows = [replace(row, expected_gb_s=_expected(row, forecast.of_op.get(row.op))) for row in measured.collectives]
    known = [outlook.bound for outlook in forecast.of_op.values() if outlook.bound]
    return replace(
        measured,
        collectives=rows,
        expectation=Expectation(
            fits=[outlook.fit for outlook in forecast.of_op.values() if outlook.fit],
            basis=known[0].basis if known else "",
            reason=forecast.reason or next((floor.unusual for floor in known if floor.unusual), ""),
        ),
    )


def _expected(row: Collective, outlook: Outlook | None) -> Expected | None:
    expected = outlook and outlook.expected
    return expected if outlook and expected and is_large(row, outlook.fit, outlook.most) else None


def impossible(cluster: Cluster, ranks: int, nodes: int) -> Iterator[str]:
    """What nothing on this cluster can reach of what the user demands, with the bound that it breaks."""
    on, _ = _ground(cluster, ranks, nodes)
    for op, demanded in cluster.policy.min_busbw.items():
        limits = None if isinstance(on, str) else bound(on, op)
        if ranks < 2:
            yield f"{op}={demanded:g}: one rank has no bandwidth; it takes two"
        elif limits and limits.limit is not None and demanded > limits.limit:
            yield (
                f"{op}={demanded:g} cannot be reached by {ranks} ranks on {nodes} node{'s' * (nodes > 1)}: "
                f"at most {limits.limit:.4g} GB/s, from {limits.basis}"
            )

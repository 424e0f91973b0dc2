"""Questions to a fleet's tables: who fails again, who became slower, what fails together, what upgrades do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from math import exp, expm1, lgamma, log
from operator import itemgetter
from statistics import median
from typing import Any, NamedTuple

from ncclcheck.fleet import drift
from ncclcheck.fleet.answers import Fleet, RepeatedFailure, SlowerNode, Together, Upgrade
from ncclcheck.fleet.rows import VERSIONS

# By chance alone one answer in a hundred fleets: the bound is divided by how many were looked at.
_CHANCE = 0.01
_FEWEST_FAILS = 3  # on so many days: once or twice is no habit
_FEWEST_TOGETHER = 3  # nodes
_FEWEST_UPGRADED = 5  # nodes: fewer have no median worth telling
_AROUND = timedelta(days=14)  # results before and after an upgrade that are compared
_LEAST_GAIN = 0.01  # 1 %: a smaller change of a version is nothing to act on; chosen
_LEAST_RATE = 0.02  # of results: a check that fails that much more or less often since
_OF_UPGRADE = timedelta(days=4)  # a node that slows down so near its upgrade is told with the upgrade
_MOST_NAMES = 50  # nodes of one answer: chosen, the rest is counted


def asked(tables: Any, days: int | None) -> Fleet:
    """All answers. tables: a connection of `store.opened`; days: of the newest results, None for all."""
    if days is not None:
        newest = "SELECT max(started) FROM nodes"
        for name in ("measurements", "verdicts", "nodes"):
            tables.execute(f"DELETE FROM {name} WHERE started < ({newest}) - to_days($1)", [days])
    results, nodes, first, last = tables.execute(
        "SELECT count(DISTINCT result), count(DISTINCT serial), min(started), max(started) FROM nodes"
    ).fetchone()
    upgrades, when = _upgrades(tables)
    return Fleet(
        results=results,
        nodes=nodes,
        first=_day(first),
        last=_day(last),
        repeats=[*_repeats(tables)],
        slower=[*_slower(tables, when)],
        together=_together(tables),
        upgrades=upgrades,
    )


def _day(at: datetime | None) -> str:
    return at.date().isoformat() if at else ""


def _repeats(tables: Any) -> Iterator[RepeatedFailure]:
    """Nodes on which a check fails more often than chance has it, by how often it fails on all others."""
    rows = tables.execute(
        """
        WITH runs AS (
            SELECT serial, count(DISTINCT result) AS n, arg_max(node, started) AS node FROM nodes GROUP BY 1
        ),
        fails AS (
            SELECT serial, code, count(DISTINCT result) AS k, count(DISTINCT date_trunc('day', started)) AS days,
                   max(started) AS last, arg_max(what, started) AS what
            FROM verdicts WHERE state = 'fail' GROUP BY 1, 2
        )
        SELECT serial, node, code, k, n, days, last, what, sum(k) OVER (PARTITION BY code) AS all_k,
               (SELECT sum(n) FROM runs) AS all_n, count(*) OVER () AS looked_at
        FROM fails JOIN runs USING (serial) ORDER BY k DESC, serial, code
        """
    ).fetchall()
    for serial, node, code, k, n, days, last, what, all_k, all_n, looked_at in rows:
        others = (all_k - k + 0.5) / (all_n - n + 1.0)
        if days >= _FEWEST_FAILS and _tail(k, n, others) < _CHANCE / looked_at:
            yield RepeatedFailure(
                serial=serial, node=node, code=code, fails=k, results=n, usual=others, last=_day(last), what=what
            )


def _tail(k: int, n: int, p: float) -> float:
    """How likely k or more of n are, each with the chance p (binomial)."""
    if p >= 1:
        return 1.0
    yes, no = log(p), log(1 - p)
    logs = (lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) + i * yes + (n - i) * no for i in range(k, n + 1))
    return min(1.0, sum(map(exp, logs)))


def _slower(tables: Any, upgraded: dict[tuple[str, str], list[datetime]]) -> Iterator[SlowerNode]:
    tables.execute(drift.DAILY)
    (span,) = tables.execute(drift.SPAN).fetchone()
    tables.execute(f"CREATE OR REPLACE TEMP TABLE changed AS {drift.changed(span)}")
    names = dict(tables.execute("SELECT serial, arg_max(node, started) FROM nodes GROUP BY 1").fetchall())
    made = []
    for (serial, metric), rows in groupby(_series(tables), key=itemgetter(0, 1)):
        _, _, days, values, usual, more = zip(*rows, strict=True)
        sign = 1 if more[0] else -1
        against = [sign * (log(v) - u) for v, u in zip(values, usual, strict=True)]
        fall = drift.placed(against)
        if fall is None or expm1(fall.change) > -drift.LEAST_CHANGE:
            continue
        begun, change, slowly = fall
        if any(abs(day - days[begun]) <= _OF_UPGRADE for day in upgraded.get((serial, metric), [])):
            continue
        level = median(against[:begun])
        made.append(
            SlowerNode(
                serial=serial,
                node=names.get(serial, serial),
                metric=metric,
                since=_day(days[begun]),
                change=expm1(change),
                slowly=slowly,
                recovered=median(against[-7:]) - level > change / 2,
                before=median(values[:begun]),
                after=median(values[begun:]),
                trend=[
                    (_day(days[at]), round(exp(median(against[at : at + 7]) - level), 4))
                    for at in range(0, len(days), 7)
                ],
            )
        )
    yield from sorted(made, key=lambda slower: (slower.recovered, slower.change))


def _series(tables: Any) -> list[tuple[Any, ...]]:
    """Of each series that changed: serial, figure, time, value, the fleet's logarithm, whether more is better."""
    rows = tables.execute(
        """
        SELECT m.serial, m.metric, started, value, CASE WHEN many >= 5 THEN usual ELSE 0 END, more_is_better
        FROM measurements m JOIN changed USING (serial, metric)
        JOIN daily d ON d.metric = m.metric AND d.day = started::DATE ORDER BY ALL
        """
    ).fetchall()
    return [*rows]


def _together(tables: Any) -> list[Together]:
    """Checks whose failing nodes share a leaf, a firmware, an image, beyond what chance does."""
    newest = ", ".join(f"arg_max({column}, started)" for column in ("node", *VERSIONS))
    rows = tables.execute(f"SELECT serial, {newest} FROM nodes GROUP BY 1").fetchall()
    names = {row[0]: row[1] for row in rows}
    values = {attribute: {row[0]: row[2 + at] for row in rows} for at, attribute in enumerate(VERSIONS)}
    failing: dict[str, set[str]] = defaultdict(set)
    bad_ones = "SELECT DISTINCT code, serial FROM verdicts WHERE state = 'fail'"
    for code, serial in tables.execute(bad_ones).fetchall():
        failing[code].add(serial)
    patterns: dict[tuple[str, frozenset[str]], Together] = {}
    groups = [
        (a, v, {s for s, version in values[a].items() if version == v})
        for a in VERSIONS
        for v in _values(values[a])
    ]
    for code, bad in sorted(failing.items()):
        for attribute, value, members in groups:
            both, others = bad & members, len(names) - len(members)
            if len(both) < _FEWEST_TOGETHER or not others:
                continue
            elsewhere = len(bad) - len(both)
            rate, other = len(both) / len(members), elsewhere / others
            chance = _chance(len(both), len(members), len(bad), len(names))
            if rate < 2 * other or chance * len(groups) * len(failing) > _CHANCE:
                continue
            key = code, frozenset(members)
            if key in patterns:  # what always goes together cannot be told apart
                patterns[key].shared.append(f"{attribute} {value}")
                continue
            patterns[key] = Together(
                code=code,
                attribute=attribute,
                value=value,
                failing=len(both),
                of=len(members),
                elsewhere=elsewhere,
                of_elsewhere=others,
                nodes=sorted(names[serial] for serial in both)[:_MOST_NAMES],
                shared=[],
            )
    return sorted(patterns.values(), key=lambda together: -together.failing / together.of)


def _values(by_serial: dict[str, str]) -> list[str]:
    return sorted({value for value in by_serial.values() if value})


def _chance(both: int, members: int, bad: int, whole: int) -> float:
    """That so many of the bad ones are members, if they were drawn at random (hypergeometric)."""

    def ways(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    most, rest = min(members, bad), whole - members
    logs = (ways(members, k) + ways(rest, bad - k) for k in range(both, most + 1) if bad - k <= rest)
    return min(1.0, sum(exp(term - ways(whole, bad)) for term in logs))


class _Move(NamedTuple):
    """One version that took the place of another."""

    attribute: str
    before: str
    after: str
    nodes: int
    first: str
    last: str

    def changed(self, subject: str, change: float, low: float, high: float) -> Upgrade:
        return Upgrade(**self._asdict(), subject=subject, change=change, low=low, high=high)


def _upgrades(tables: Any) -> tuple[list[Upgrade], dict[tuple[str, str], list[datetime]]]:
    """What changed with each version, and when nodes whose figure it changed were upgraded."""
    upgrades: list[Upgrade] = []
    when: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    for attribute in _changing(tables):
        for (before, after), moves in _moves(tables, attribute).items():
            if len(moves) < _FEWEST_UPGRADED:
                continue
            days = sorted(at for _, at in moves)
            move = _Move(attribute, before, after, len(moves), _day(days[0]), _day(days[-1]))
            tables.execute("CREATE OR REPLACE TEMP TABLE moved (serial VARCHAR, moved TIMESTAMP)")
            tables.execute(
                "INSERT INTO moved SELECT unnest($1::VARCHAR[]), unnest($2::TIMESTAMP[])",
                [[s for s, _ in moves], [at for _, at in moves]],
            )
            for metric, changes in _figures(tables).items():
                if len(changes) < _FEWEST_UPGRADED:
                    continue
                low, high = (expm1(bound) for bound in drift.interval(changes))
                change = expm1(median(changes))
                if low * high > 0 and abs(change) >= _LEAST_GAIN:
                    upgrades.append(move.changed(metric, change, low, high))
                    for serial, at in moves:
                        when[serial, metric].append(at)
            upgrades += [move.changed(*rate) for rate in _rates(tables, len(moves))]
    return sorted(upgrades, key=lambda upgrade: -abs(upgrade.change)), when


def _changing(tables: Any) -> list[str]:
    """The versions of which there is more than one at all; a leaf is none, its nodes were moved."""
    listed = [version for version in VERSIONS if version != "leaf"]
    asked = ", ".join(f"min({version}) <> max({version})" for version in listed)
    differ = tables.execute(f"SELECT {asked} FROM nodes").fetchone()
    return [version for version, several in zip(listed, differ, strict=True) if several]


def _moves(tables: Any, attribute: str) -> dict[tuple[str, str], list[tuple[str, datetime]]]:
    """Nodes and times at which this version changed, by the old and the new one."""
    rows = tables.execute(
        f"""
        SELECT * FROM (
            SELECT serial, started, {attribute} AS now, lag({attribute}) OVER w AS was
            FROM nodes WHERE {attribute} <> '' WINDOW w AS (PARTITION BY serial ORDER BY started)
        ) WHERE was <> now
        """
    ).fetchall()
    changes: dict[tuple[str, str], list[tuple[str, datetime]]] = defaultdict(list)
    for serial, at, now, was in rows:
        changes[was, now].append((serial, at))
    return changes


def _figures(tables: Any) -> dict[str, Sequence[float]]:
    """By figure, by how much its logarithm got better on each upgraded node, less what the other nodes did."""
    rows = tables.execute(
        """
        WITH others AS (
            SELECT metric, date_trunc('day', started) AS day, median(ln(value)) AS usual FROM measurements
            WHERE serial NOT IN (SELECT serial FROM moved)
              AND started BETWEEN (SELECT min(moved) FROM moved) - $1::INTERVAL - INTERVAL 1 DAY
                              AND (SELECT max(moved) FROM moved) + $1::INTERVAL + INTERVAL 1 DAY
            GROUP BY 1, 2 HAVING count(DISTINCT serial) >= 5
        )
        SELECT m.metric,
               (median(ln(value) - coalesce(usual, 0)) FILTER (m.started >= moved)
                - median(ln(value) - coalesce(usual, 0)) FILTER (m.started < moved))
               * any_value(CASE WHEN more_is_better THEN 1 ELSE -1 END) AS change
        FROM measurements m JOIN moved USING (serial)
        LEFT JOIN others o ON o.metric = m.metric AND o.day = date_trunc('day', m.started)
        WHERE m.started BETWEEN moved - $1::INTERVAL AND moved + $1::INTERVAL
        GROUP BY serial, m.metric
        HAVING count(*) FILTER (m.started >= moved) >= 3 AND count(*) FILTER (m.started < moved) >= 3
        """,
        [_AROUND],
    ).fetchall()
    changes: dict[str, list[float]] = defaultdict(list)
    for metric, change in rows:
        changes[metric].append(change)
    return {**changes}


def _rates(tables: Any, nodes: int) -> Iterator[tuple[str, float, float, float]]:
    """Checks that fail more or less often on these nodes since, with the change of the share of results."""
    rows = tables.execute(
        """
        WITH runs AS (
            SELECT count(*) FILTER (started >= moved) AS after, count(*) FILTER (started < moved) AS before
            FROM nodes JOIN moved USING (serial)
            WHERE started BETWEEN moved - $1::INTERVAL AND moved + $1::INTERVAL
        )
        SELECT code, count(*) FILTER (started >= moved), count(*) FILTER (started < moved),
               any_value(after), any_value(before), count(DISTINCT serial)
        FROM verdicts JOIN moved USING (serial), runs
        WHERE state = 'fail' AND started BETWEEN moved - $1::INTERVAL AND moved + $1::INTERVAL
        GROUP BY code ORDER BY code
        """,
        [_AROUND],
    ).fetchall()
    for code, since, until, after, before, failing in rows:
        if not (after and before) or failing < min(_FEWEST_TOGETHER, nodes):
            continue
        more, less = since / after, until / before
        error = 2.576 * ((more * (1 - more)) / after + (less * (1 - less)) / before) ** 0.5
        change = more - less
        if abs(change) >= _LEAST_RATE and abs(change) > error:
            yield code, change, change - error, change + error

"""Metrics for the textfile collector of node_exporter: base units, no timestamps, a label set once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple, get_args

from ncclcheck.reports.judgement.decision import Outcome
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.rule import FAMILIES

_TOLD = (State.FAIL, State.WARN, State.UNKNOWN)
_Labels = tuple[tuple[str, str], ...]


class _PrometheusMetric(NamedTuple):
    """One metric with its samples, all of them gauges: a file holds the last run alone."""

    name: str
    help: str
    samples: Mapping[_Labels, float]


def text(document: Document) -> str:
    """The whole file."""
    return "".join(_written(metric) for metric in _metrics(document) if metric.samples)


def _written(metric: _PrometheusMetric) -> str:
    name = f"ncclcheck_{metric.name}"
    lines = [f"# HELP {name} {metric.help}", f"# TYPE {name} gauge"]
    lines += [f"{name}{_labelled(labels)} {_number(value)}" for labels, value in metric.samples.items()]
    return "\n".join(lines) + "\n"


def _labelled(labels: _Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace("\r", " ").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def _labels(**named: object) -> _Labels:
    return tuple((name, str(value)) for name, value in named.items())


def _metrics(document: Document) -> Iterator[_PrometheusMetric]:
    job = document.job
    yield _one("info", "What ran.", 1, version=document.version, command=document.command, launcher=job.launcher)
    states = {_labels(state=state): float(state == document.state) for state in get_args(Outcome)}
    yield _PrometheusMetric("state", "Whether this is the state of the whole run.", states)
    yield _one("exit_code", "The exit code of the run; 0 is ready.", document.exit_code)
    yield from _started(document)
    yield _one("duration_seconds", "How long the run took.", document.seconds)
    yield _one("nodes_asked", "Nodes that were asked for.", job.nodes_asked)
    yield _one("nodes_answered", "Nodes that answered.", job.nodes_answered)
    counts = {_labels(state=state): float(number) for state, number in document.counts.items()}
    yield _PrometheusMetric("checks", "How many checks have this state.", counts)
    checks = {
        _labels(code=v.code, family=FAMILIES[v.code[:3]], state=v.state.value): 1.0 for v in document.verdicts
    }
    yield _PrometheusMetric("check", "The state of each check.", checks)
    yield _findings(document)
    yield from _measured(document)
    blamed = {
        _labels(kind=culprit.kind, name=(" to " if culprit.kind == "link" else ", ").join(culprit.names)):
        culprit.confidence for culprit in document.culprits
    }  # fmt: skip
    yield _PrometheusMetric("culprit_confidence", "The culprit, with its confidence from 0 to 1.", blamed)
    advised = {_labels(variable=advice.variable, action=advice.action): 1.0 for advice in document.recommendations}
    yield _PrometheusMetric("recommendation", "Settings that are recommended.", advised)


def _one(name: str, words: str, value: float, **labels: object) -> _PrometheusMetric:
    return _PrometheusMetric(name, words, {_labels(**labels): float(value)})


def _started(document: Document) -> Iterator[_PrometheusMetric]:
    """When the run began; nothing where a file tells no time that can be read."""
    try:
        seconds = datetime.fromisoformat(document.started.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        return
    yield _one("started_timestamp_seconds", "When the run began, seconds since 1970.", seconds)


def _findings(document: Document) -> _PrometheusMetric:
    """By node, so that one rule of the alert manager serves all checks."""
    counted = Counter(
        _labels(code=verdict.code, state=finding.state.value, node=finding.where.node or "")
        for verdict in document.verdicts
        for finding in verdict.findings
        if finding.state in _TOLD
    )
    return _PrometheusMetric("findings", "What failed, warned or was not seen, by check and node.", counted)


def _measured(document: Document) -> Iterator[_PrometheusMetric]:
    times: dict[_Labels, float] = {}
    rates: dict[_Labels, float] = {}
    least: dict[_Labels, float] = {}
    for row in document.measurements.collectives:
        key = _labels(op=row.op, bytes=row.bytes, dtype=row.dtype, nodes=row.nodes, ranks=row.ranks)
        if row.time_us is not None:
            times[key] = row.time_us.p50 / 1e6
        if row.busbw_gb_s is not None:
            rates[key] = row.busbw_gb_s * 1e9
        if row.expected_gb_s is not None and math.isfinite(row.expected_gb_s.low):
            least[key] = row.expected_gb_s.low * 1e9
    yield _PrometheusMetric("collective_seconds", "The slowest rank's time, median over iterations.", times)
    yield _PrometheusMetric("collective_busbw_bytes_per_second", "Bus bandwidth as nccl-tests defines it.", rates)
    yield _PrometheusMetric(
        "collective_busbw_expected_bytes_per_second", "The least that is expected of it.", least
    )

"""Logs for tests: text -> what the LOG rules say of it."""

from __future__ import annotations

import io

from ncclcheck.probes.facts import Cluster, Logs, Measurements
from ncclcheck.probes.logs.reading import LogReading
from ncclcheck.reports.judgement.findings import Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules


def parsed(*texts: bytes | str) -> Logs:
    """The facts of these files."""
    reading = LogReading()
    for index, text in enumerate(texts):
        data = text.encode() if isinstance(text, str) else text
        reading.take(f"log{index or ''}", io.BytesIO(data))
    return reading.logs()


def judged(*texts: bytes | str) -> dict[str, Verdict]:
    """Code -> verdict of every LOG rule."""
    cluster = Cluster(command="logs", measurements=Measurements(logs=parsed(*texts)))
    rules = [rule for rule in all_rules() if rule.code.startswith("LOG")]
    return {verdict.code: verdict for verdict in judge(cluster, rules)}


def raised(*texts: bytes | str) -> dict[str, str]:
    """Code -> state of the rules that found something."""
    return {
        code: verdict.state.value
        for code, verdict in judged(*texts).items()
        if verdict.state.value in ("fail", "warn")
    }

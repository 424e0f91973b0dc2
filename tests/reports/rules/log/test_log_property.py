"""For any log of the collections: without one line, its beginning or a rank's file a failure is never healthy."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.reports.judgement import decision
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.rules.log.ends import ENDED
from tests.helpers import logcases
from tests.helpers.logs import parsed

_DATA = logcases.FOLDER.parent
_RULES = [rule for rule in all_rules() if rule.code.startswith("LOG")]
_LONGEST = 400  # lines of a log of which each line is left out
_MOST_FILES = 12  # of one log
_EACH, _SOME = 4, 12  # of the variants of a log, and every so manieth log, in the gate


# Two runs in one log, of which the second came to a good end: without the first nothing failed.
_TWO_RUNS = ("C1-p2p-read-stuck", "C2-rtx4090-wrong-results")

# Two sound tables where one belongs: without a row or a summary of one of them it reads like one run.
_TWO_TABLES = "two-runs-instead-of-one"


def _outcome(*texts: bytes) -> str:
    """That of the verdicts; "went on" where nothing failed and no end is shown: that is not called healthy."""
    cluster = Cluster(command="logs", measurements=Measurements(logs=parsed(*texts)))
    verdicts = judge(cluster, _RULES)
    ends = [finding.what for verdict in verdicts if verdict.code == "LOG007" for finding in verdict.findings]
    outcome = decision.outcome(verdicts)
    return "went on" if outcome == "ok" and ENDED not in ends else outcome


def _files(case: logcases.Case) -> list[bytes]:
    """The log of each rank, and what nobody's is."""
    ranks = sorted({rank for rank, _ in case.lines}, key=lambda rank: -1 if rank is None else rank)
    return ["".join(f"{text}\n" for of, text in case.lines if of == rank).encode() for rank in ranks]


def _logs() -> Iterator[tuple[str, list[bytes]]]:
    for folder in ("cases", "held"):
        for case in logcases.cases(_DATA / folder):
            yield f"{folder}/{case.name}", [case.clean()]
            yield f"{folder}/{case.name} by rank", _files(case)
    others = [*_DATA.glob("torch/*/log.txt"), *_DATA.glob("*.log"), *_DATA.glob("public/*.log")]
    for path in sorted(others):
        yield str(path.relative_to(_DATA)), [path.read_bytes()]
    failed = [path for path in _DATA.glob("stories/*.log") if "=fail" in path.read_text().partition("\n")[0]]
    for path in sorted([*others, *failed]):
        files = logcases.by_writer(path.read_bytes())
        if len(files) > 1:
            yield f"{path.relative_to(_DATA)} by writer", files[:_MOST_FILES]


def _variants(files: list[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Without a file; of a single one without each line, and without each beginning."""
    if len(files) > 1:
        for gone in range(len(files)):
            yield f"without file {gone}", [*files[:gone], *files[gone + 1 :]]
        return
    lines = files[0].splitlines(keepends=True)
    for at in range(1, len(lines) if len(lines) <= _LONGEST else 0):
        yield f"without line {at}", [b"".join([*lines[: at - 1], *lines[at:]])]
        yield f"from line {at + 1}", [b"".join(lines[at:])]


_ALL = [*_logs()]


def _sound_ones(files: list[bytes], chance: Random | None) -> list[str]:
    """Which variants of a log that tells of a failure end with exit code 0."""
    if _outcome(*files) != "fail":
        return []
    variants = [*_variants(files)]
    if chance is not None:
        variants = chance.sample(variants, min(_EACH, len(variants)))
    return [name for name, texts in variants if _outcome(*texts) == "ok"]


@pytest.mark.parametrize("log", _ALL[::_SOME], ids=[name for name, _ in _ALL[::_SOME]])
def test_a_part_of_a_failure_is_not_healthy(log: tuple[str, list[bytes]]) -> None:
    assert _but_second_runs(log[0], _sound_ones(log[1], Random(log[0]))) == []


@pytest.mark.nightly
@pytest.mark.parametrize("log", _ALL, ids=[name for name, _ in _ALL])
def test_no_part_of_a_failure_is_healthy(log: tuple[str, list[bytes]]) -> None:
    assert _but_second_runs(log[0], _sound_ones(log[1], None)) == []


def _but_second_runs(log: str, variants: list[str]) -> list[str]:
    if _TWO_TABLES in log:
        return []
    if not any(name in log for name in _TWO_RUNS):
        return variants
    return [variant for variant in variants if not variant.startswith("from line ")]

"""Which settings gain, over pairs of jobs with drift, jitter and bursts: a planted gain is found, none made up."""

from __future__ import annotations

import math
import random
from contextlib import suppress

import pytest

from benchmarks.tuning import LOOKS, candidates, planted
from ncclcheck.probes.facts import Candidate, Cluster, Job, Measurements, Tuning, replace
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.recommend.settings import measured
from ncclcheck.reports.recommend.site import Site
from ncclcheck.reports.subjects.job import tuning
from ncclcheck.reports.subjects.job.tuning import TuningSearch

RULE = [rule for rule in all_rules() if rule.code == "BEN020"]


def cluster(result: Tuning | None) -> Cluster:
    return Cluster(command="tune", nodes=[], job=Job(backend="gloo"), measurements=Measurements(tuning=result))


def state(result: Tuning | None) -> State:
    return judge(cluster(result), RULE)[0].state


def test_a_gain_of_10_percent_is_found_and_recommended() -> None:
    runs = [planted(0.10, random.Random(f"tests gain {number}")) for number in range(20)]
    chosen = [tuning.named(tried) for run in runs if (tried := tuning.recommended(run))]
    assert chosen.count("NCCL_GOOD=1") >= 19
    result = next(run for run in runs if tuning.recommended(run))
    recommendations = measured.weighed(Site(cluster(result), []), [])
    assert [
        (recommendation.variable, recommendation.action, recommendation.basis)
        for recommendation in recommendations
    ] == [("NCCL_GOOD", "set", "measured")]
    assert state(result) is State.OK


def test_without_a_gain_nothing_is_recommended() -> None:
    runs = [planted(0.0, random.Random(f"tests none {number}")) for number in range(20)]
    assert not [run for run in runs if tuning.recommended(run)]
    result = runs[0]
    assert not measured.weighed(Site(cluster(result), []), [])
    assert state(result) is State.OK


def fed(answers: dict[str, object], *, short_of_time: bool = False) -> TuningSearch:
    """Candidates NCCL_A, NCCL_B ..., whose pairs always come out the same; a text: the job ends with it."""
    search = TuningSearch([Candidate(variable=f"NCCL_{name}", value="1") for name in answers], (4, 8))
    pairs = search.pairs()
    settings = next(pairs, None)
    number = 0
    while settings is not None:
        number += 1
        outcomes = [answers[setting.variable.removeprefix("NCCL_")] for setting in settings]
        texts = [outcome for outcome in outcomes if isinstance(outcome, str)]
        factor = math.prod(outcome for outcome in outcomes if isinstance(outcome, float))
        jitter = 1 + 0.002 * (number % 3)
        key = ("all_reduce", 2**20)
        if short_of_time:
            search.conclude()
        try:
            settings = pairs.send(texts[0] if texts else ({key: 100.0 * jitter}, {key: 100.0 / factor}))
        except StopIteration:
            settings = None
    return search


def test_verdicts() -> None:
    result = fed({"A": 1.2, "B": 1.0, "C": 0.8, "D": "dead rank"}).tuning()
    assert [tuning.verdict(tried) for tried in result.tried] == ["gains", "same", "loses", "failed"]
    assert result.whole is not None
    assert tuning.named(result.whole) == "NCCL_A=1"
    assert result.whole.pairs == 8


def test_where_time_runs_out_what_gains_is_measured_once_more_as_a_whole() -> None:
    result = fed({"A": 1.2, "B": 1.1, "C": 1.0}, short_of_time=True).tuning()
    assert [tried.pairs for tried in result.tried] == [5, 4, 4]  # asked while the fifth ran
    assert result.whole is not None
    assert tuning.named(result.whole) == "NCCL_A=1 NCCL_B=1"
    assert result.whole.pairs == 8


def test_where_nothing_gains_by_then_the_search_goes_on() -> None:
    search, key = TuningSearch([Candidate(variable="NCCL_A", value="1")], (4, 8)), ("all_reduce", 2**20)
    pairs = search.pairs()
    next(pairs)
    with suppress(StopIteration):
        for number in range(20):
            search.conclude()
            pairs.send(({key: 100.0}, {key: (70.0, 95.0, 120.0, 90.0)[number % 4]}))
    assert [tried.pairs for tried in search.tuning().tried] == [8]
    assert search.tuning().whole is None


def test_what_is_without_promise_is_measured_no_further() -> None:
    result = fed({"A": 1.2, "B": 0.99, "C": 0.8}).tuning()
    assert [tried.pairs for tried in result.tried] == [8, 4, 4]


def test_a_whole_that_does_not_run_is_not_recommended() -> None:
    result = fed({"A": 1.2}).tuning()
    assert result.whole is not None
    broken = replace(result, whole=replace(result.whole, failed="dead rank"))
    assert tuning.recommended(broken) is None
    assert state(broken) is State.NOTE


def test_what_was_stopped_is_unknown() -> None:
    assert (
        state(Tuning(stopped="the deadline left no time", tried=fed({"A": 1.0}).tuning().tried)) is State.UNKNOWN
    )
    assert state(None) is State.SKIPPED


@pytest.mark.parametrize(("pairs", "words"), [(0, "no fresh pair"), (1, "1 fresh pair of jobs")])
def test_a_confirmation_that_was_cut_short_denies_nothing(pairs: int, words: str) -> None:
    result = fed({"A": 1.2}).tuning()
    assert result.whole is not None
    rows = [
        replace(row, without_us=row.without_us[:pairs], with_us=row.with_us[:pairs])
        for row in result.whole.rows[: min(pairs, 1)]
    ]
    late = "the deadline left no time for another pair of jobs"
    cut = replace(result, stopped=late, whole=replace(result.whole, pairs=pairs, rows=rows))
    judged = tuning.completed(Measurements(tuning=cut)).tuning
    assert state(judged) is State.UNKNOWN
    what = judge(cluster(judged), RULE)[0].findings[0].what
    assert what == f"NCCL_A=1 gained, but could not be confirmed ({words}): {late}"


def test_a_file_with_too_few_comparisons_makes_no_interval_narrower() -> None:
    result = planted(0.0, random.Random("tests file"))
    few = tuning.completed(Measurements(tuning=replace(result, comparisons=1))).tuning
    assert few is not None
    for tried, other in zip(few.tried, result.tried, strict=True):
        for row, original in zip(tried.rows, other.rows, strict=True):
            assert (row.low is None) == (original.low is None)


@pytest.mark.parametrize("count", [1, 6])
def test_every_candidate_is_measured_to_the_first_look(count: int) -> None:
    search = TuningSearch(candidates(count), LOOKS)
    first = []
    pairs = search.pairs()
    settings: list[Candidate] | None = next(pairs)
    while settings is not None:
        first.append(settings[0].variable)
        try:
            settings = pairs.send(({("all_reduce", 1): 1.0}, {("all_reduce", 1): 1.0}))
        except StopIteration:
            settings = None
    assert all(first.count(name) == LOOKS[0] for name in set(first))
    assert len(set(first)) == count


@pytest.mark.parametrize(("gain", "told_as"), [(1.10, State.NOTE), (0.93, State.OK), (0.90, State.OK)])
def test_what_noise_hides_is_not_called_no_difference(gain: float, told_as: State) -> None:
    """Jobs that differ by a third from one to the next, as on cores that ten processes want."""
    search, number = TuningSearch([Candidate(variable="NCCL_A", value="1")], (8,)), 0
    pairs = search.pairs()
    settings = next(pairs, None)
    while settings is not None:
        wild = 100.0 * (0.75, 1.3, 0.9, 1.2)[number % 4]
        number += 1
        try:
            settings = pairs.send(({("all_reduce", 1024): wild * gain}, {("all_reduce", 1024): 97.5}))
        except StopIteration:
            settings = None
    result = search.tuning()
    assert tuning.verdict(result.tried[0]) == "same"
    assert tuning.may_gain(result.tried[0].rows[0]) is (told_as is State.NOTE)
    assert state(result) is told_as

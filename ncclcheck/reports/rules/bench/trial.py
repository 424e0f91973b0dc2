"""BEN017: what `bench --with` says of the setting that was tried."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Trial, TrialRow
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    State,
    Where,
    fail,
    fine,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.job import trial as tried
from ncclcheck.reports.text.words.fold import duration

_LEAVE = "Leave this setting out. NCCL's own choice is right unless a measurement says otherwise."


@rule("BEN017", "the tried setting does no harm", worst=State.FAIL, commands=("bench",))
def does_no_harm(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    What `ncclcheck bench --with VAR=VALUE` measured: pairs of short jobs, one as it is and one with the setting,
    each operation and size in each of them.

    ## Why it matters
    Settings travel from cluster to cluster in job scripts and articles. What helped on one network costs half of
    the bandwidth on another, or stops the job, and nobody takes the line out again.

    ## Seen as
    slow

    ## How we know
    NCCL reads most variables once in the life of a process, so each measurement is a job of its own, and the
    order changes from pair to pair (without, with, with, without, ...): what drifts meanwhile favours neither. Of
    each job the median over its iterations counts. A row's speed-up is the mean of its pairs' ratios (of their
    logarithms), with Student's interval, widened so that it holds with 95 % for all rows together (Bonferroni). A
    row gains or loses where the whole interval lies on one side and the mean is at least 1 % off; all else is no
    difference beyond noise. Fewer than 3 pairs are `unknown`. A row that loses is a warning; a job that runs
    without the setting and not with it is a failure. Only gains without a loss become a recommended setting.

    ## Fix
    - **you** Leave the setting out, or set it only for jobs whose messages are of the sizes that gain.
    - **you** Too noisy to tell: `--full` takes ten pairs, `--time-budget` measures longer in each job.

    ## Source
    NCCL user guide, Environment Variables; NVIDIA/nccl#1401, NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    trial = cluster.measurements.trial
    if trial is None:
        raise NothingToJudge("no setting was tried (--with)")
    trial = tried.completed(cluster.measurements).trial or trial
    word = tried.verdict(trial)
    if word == "failed":
        yield _does_not_run(trial)
    elif slower := tried.of(trial, "loses"):
        yield _slower(cluster, trial, slower)
    elif word == "unknown":
        yield _unsure(trial)
    else:
        yield fine(Where(), tried.sentence(trial), *_figures(trial.rows))


def _does_not_run(trial: Trial) -> Finding:
    pairs = f"{trial.pairs} pairs of jobs" if trial.pairs else "no pair"
    return fail(
        Where(),
        tried.sentence(trial),
        why="The same job without it ran to its end just before.",
        owner="job",
        evidence=[seen("jobs in turn", f"{pairs} before it; then with {tried.setting(trial)}: {trial.failed}")],
        fix=[you(_LEAVE)],
    )


def _unsure(trial: Trial) -> Finding:
    return unknown(
        Where(),
        tried.sentence(trial),
        why="So few do not show whether the setting helps.",
        owner="tool",
        evidence=[seen("pairs of jobs that came to their end", trial.pairs)],
        fix=[you("Give it more time (--deadline), or fewer and smaller sizes (--ops, --sizes).")],
    )


def _slower(cluster: Cluster, trial: Trial, rows: list[TrialRow]) -> Finding:
    return warn(
        Where(),
        tried.sentence(trial),
        why=f"It was measured in turn with {tried.against(cluster, trial)}, on these very nodes.",
        owner="job",
        evidence=_figures(rows),
        fix=[you(_LEAVE)],
    )


def _figures(rows: list[TrialRow]) -> list[Evidence]:
    return [
        seen(tried.name(row), f"{_times(row)}, {tried.effect(row)}") for row in rows if row.speedup is not None
    ]


def _times(row: TrialRow) -> str:
    without, with_ = (duration(tried.middle(times)) for times in (row.without_us, row.with_us))
    return f"{without} without it, {with_} with it"

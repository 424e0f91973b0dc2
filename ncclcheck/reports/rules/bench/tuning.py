"""BEN020: what `tune` found."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Tried, Tuning
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, Where, fine, note, seen, unknown, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.job import trial, tuning

_WORDS: dict[tuning.Word, str] = {
    "gains": "gains", "loses": "loses", "mixed": "gains in some sizes, loses in others", "same": "no difference",
    "unknown": "too few pairs", "failed": "does not run",
}  # fmt: skip


@rule(
    "BEN020",
    "tuning came to its end, and what gains was confirmed",
    worst=State.UNKNOWN,
    over="",
    commands=("tune",),
)
def tuning_came_to_its_end(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    What `ncclcheck tune` measured: settings that may matter here, each in pairs of short jobs, without it and with
    it; then all that gained together, in pairs of their own.

    ## Why it matters
    Of many settings that are tried, the best one looks better than it is; of many figures some are good by chance.
    A setting that is carried along for nothing costs the next cluster.

    ## How we know
    Pairs of jobs, in changing order; the speed-up of a row is the mean of its pairs' ratios (of their
    logarithms), with Student's interval, so wide that all settings, sizes and looks hold together with 95 %
    (Bonferroni). After each look only the better half of what may still gain goes on. What gains in a row, by 1 %
    or more, and loses in none is tried again as a whole, in fresh pairs; only what gains then too, and loses
    nowhere, is recommended, with the figure of the second time.

    ## Fix
    - **you** Nothing gained: leave NCCL its own choice. Not confirmed, or one may gain (by 1 % or more, with an
      interval that reaches beyond 10 %): measure longer (`--full`), or when the machines are quiet. Cut short:
      give it more time (`--deadline`).

    ## Source
    NCCL user guide, Environment Variables; Abedi and Brecht, ICPE 2017 (interleaved trials); NVIDIA/nccl#1661.
    """
    told = tuning.completed(cluster.measurements).tuning
    if told is None:
        raise NothingToJudge("nothing was tuned")
    if told.stopped and not told.whole:
        yield _not_finished(told)
    elif told.whole is None and any(map(_may_gain, told.tried)):
        yield _open(told)
    elif told.whole is None:
        yield fine(Where(), f"none of {len(told.tried)} settings gains: NCCL's own choice stands", *_figures(told))
    elif tuning.recommended(told):
        yield fine(Where(), f"{tuning.named(told.whole)} gains, and gained again as a whole", *_rows(told.whole))
    elif told.stopped and tuning.verdict(told.whole) in ("same", "unknown"):
        yield _cut_short(told, told.whole)
    else:
        yield _not_confirmed(told.whole)


def _may_gain(tried: Tried) -> bool:
    return tuning.verdict(tried) == "same" and any(map(tuning.may_gain, tried.rows))


def _open(told: Tuning) -> Finding:
    tried = [one for one in told.tried if _may_gain(one)]
    names = ", ".join(map(tuning.named, tried))
    return note(
        Where(), f"none of {len(told.tried)} settings is shown to gain, but {names} may: the jobs differ too much",
        why="What is not shown is not recommended; noise as large as a gain hides it.", owner="tool",
        evidence=[one for each in tried for one in _rows(each)],
        fix=[you("Measure longer, or when the machines are quiet.", "ncclcheck tune --full")],
    )  # fmt: skip


def _not_finished(told: Tuning) -> Finding:
    return unknown(
        Where(), f"not all settings were measured to the end: {told.stopped}",
        why="What was not measured is not recommended.", owner="tool", evidence=_figures(told),
        fix=[you("Give it more time (--deadline), or fewer sizes and settings (--sizes, --try).")],
    )  # fmt: skip


def _cut_short(told: Tuning, whole: Tried) -> Finding:
    again = (
        f"{whole.pairs} fresh pair{'' if whole.pairs == 1 else 's'} of jobs" if whole.pairs else "no fresh pair"
    )
    return unknown(
        Where(), f"{tuning.named(whole)} gained, but could not be confirmed ({again}): {told.stopped}",
        why="The best of many looks better than it is; what was not confirmed is not recommended.", owner="tool",
        evidence=_rows(whole),
        fix=[you("Give it more time (--deadline), or fewer sizes and settings (--sizes, --try).")],
    )  # fmt: skip


def _not_confirmed(whole: Tried) -> Finding:
    how = whole.failed or _WORDS[tuning.verdict(whole)]
    return note(
        Where(), f"{tuning.named(whole)} gained, but not when it was tried again as a whole ({how})",
        why="The best of many looks better than it is; it is not recommended.", owner="tool",
        evidence=_rows(whole), fix=[you("Measure longer.", "ncclcheck tune --full")],
    )  # fmt: skip


def _figures(told: Tuning) -> list[Evidence]:
    return [seen(tuning.named(tried), tried.failed or _WORDS[tuning.verdict(tried)]) for tried in told.tried]


def _rows(tried: Tried) -> list[Evidence]:
    return [seen(trial.name(row), trial.effect(row)) for row in tried.rows]

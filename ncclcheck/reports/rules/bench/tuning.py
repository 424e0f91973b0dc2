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
    measured = tuning.completed(cluster.measurements).tuning
    if measured is None:
        raise NothingToJudge("nothing was tuned")
    if measured.stopped and not measured.whole:
        yield _not_finished(measured)
    elif measured.whole is None and any(map(_may_gain, measured.tried)):
        yield _open(measured)
    elif measured.whole is None:
        yield fine(
            Where(), f"none of {len(measured.tried)} settings gains: NCCL's own choice stands", *_figures(measured)
        )
    elif tuning.recommended(measured):
        yield fine(
            Where(), f"{tuning.named(measured.whole)} gains, and gained again as a whole", *_rows(measured.whole)
        )
    elif measured.stopped and tuning.verdict(measured.whole) in ("same", "unknown"):
        yield _cut_short(measured, measured.whole)
    else:
        yield _not_confirmed(measured.whole)


def _may_gain(tried: Tried) -> bool:
    return tuning.verdict(tried) == "same" and any(map(tuning.may_gain, tried.rows))


def _open(measured: Tuning) -> Finding:
    tried = [setting for setting in measured.tried if _may_gain(setting)]
    names = ", ".join(map(tuning.named, tried))
    return note(
        Where(),
        f"none of {len(measured.tried)} settings is shown to gain, but {names} may: the jobs differ too much",
        why="What is not shown is not recommended; noise as large as a gain hides it.", owner="tool",
        evidence=[row for each in tried for row in _rows(each)],
        fix=[you("Measure longer, or when the machines are quiet.", "ncclcheck tune --full")],
    )  # fmt: skip


def _not_finished(measured: Tuning) -> Finding:
    return unknown(
        Where(), f"not all settings were measured to the end: {measured.stopped}",
        why="What was not measured is not recommended.", owner="tool", evidence=_figures(measured),
        fix=[you("Give it more time (--deadline), or fewer sizes and settings (--sizes, --try).")],
    )  # fmt: skip


def _cut_short(measured: Tuning, whole: Tried) -> Finding:
    again = (
        f"{whole.pairs} fresh pair{'' if whole.pairs == 1 else 's'} of jobs" if whole.pairs else "no fresh pair"
    )
    return unknown(
        Where(), f"{tuning.named(whole)} gained, but could not be confirmed ({again}): {measured.stopped}",
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


def _figures(measured: Tuning) -> list[Evidence]:
    return [seen(tuning.named(tried), tried.failed or _WORDS[tuning.verdict(tried)]) for tried in measured.tried]


def _rows(tried: Tried) -> list[Evidence]:
    return [seen(trial.name(row), trial.effect(row)) for row in tried.rows]

"""What was measured goes before what a rule says: settings that `bench --with` and `tune` tried. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import Trial, TrialRow
from ncclcheck.reports.judgement.jsondoc import Recommendation
from ncclcheck.reports.recommend.site import Site
from ncclcheck.reports.subjects.job import trial as tried
from ncclcheck.reports.subjects.job import tuning

_ANY = ("try", "set", "unset")


def weighed(site: Site, recommendations: Sequence[Recommendation]) -> list[Recommendation]:
    """With the setting if it gains, without it where it loses or does not run, and never again to be tried."""
    return _of_trial(site, _of_tuning(site, recommendations))


def _of_tuning(site: Site, recommendations: Sequence[Recommendation]) -> list[Recommendation]:
    """What `tune` confirmed; what it tried otherwise is not to be tried again, and what lost not to be set."""
    measured = tuning.completed(site.cluster.measurements).tuning
    if measured is None:
        return [*recommendations]
    out = {"gains": ("try",), "same": ("try",), "mixed": ("try",), "loses": _ANY, "failed": _ANY}
    tried = {
        (setting.settings[0].variable, setting.settings[0].value): out.get(tuning.verdict(setting), ())
        for setting in measured.tried
    }
    left = [
        recommendation
        for recommendation in recommendations
        if recommendation.action not in tried.get((recommendation.variable, recommendation.value), ())
    ]
    if (whole := tuning.recommended(measured)) is None:
        return left
    names = {setting.variable for setting in whole.settings}
    gained = [
        _measured(site, setting.variable, setting.value, whole.rows, "BEN020", "tune")
        for setting in whole.settings
    ]
    return [*gained, *(recommendation for recommendation in left if recommendation.variable not in names)]


def _of_trial(site: Site, recommendations: Sequence[Recommendation]) -> list[Recommendation]:
    trial = tried.completed(site.cluster.measurements).trial
    if trial is None or (word := tried.verdict(trial)) == "unknown":
        return [*recommendations]
    if word == "gains":
        return [
            _gains(site, trial),
            *(recommendation for recommendation in recommendations if recommendation.variable != trial.variable),
        ]
    out = ("try",) if word in ("same", "mixed") else ("try", "set", "unset")
    this = (trial.variable, trial.value)
    return [
        recommendation
        for recommendation in recommendations
        if (recommendation.variable, recommendation.value) != this or recommendation.action not in out
    ]


def _gains(site: Site, trial: Trial) -> Recommendation:
    return _measured(site, trial.variable, trial.value, tried.of(trial, "gains"), "BEN017", "bench --with")


def _measured(
    site: Site, variable: str, value: str | None, rows: Sequence[TrialRow], code: str, command: str
) -> Recommendation:
    gaining, job = [row for row in rows if row.verdict == "gains"], site.cluster.job
    against = tried.held_against(site.cluster, variable)
    kind = "simulated node" if site.simulated else "node"
    nodes = f"{job.nodes_asked} {kind}{'s' * (job.nodes_asked > 1)}"
    gain = ", ".join(map(tried.effect, gaining))
    return Recommendation(
        variable=variable,
        action="unset" if value is None else "set",
        value=value,
        why=f"It was measured in turn with {against}: {tried.effect(gaining[0])}.",
        evidence=[f"{code}: {variable}={value or ''} gains in {gain}"],
        source=f"ncclcheck {command}, pairs of jobs on this cluster",
        basis="measured",
        gain=gain,
        risk="measured with collectives alone, on these nodes: measure again after a change of hardware or NCCL",
        valid_for=f"{job.backend}, {job.ranks} ranks on {nodes}, as measured",
        set_in=site.sources(variable),
        undo=site.undo(variable),
    )

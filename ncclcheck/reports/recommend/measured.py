"""What was measured goes before what a rule says: the setting that `bench --with` tried. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import Trial
from ncclcheck.reports.judgement.jsondoc import Recommendation
from ncclcheck.reports.recommend.site import Site
from ncclcheck.reports.subjects.job import trial as tried


def weighed(site: Site, found: Sequence[Recommendation]) -> list[Recommendation]:
    """With the setting if it gains, without it where it loses or does not run, and never again to be tried."""
    trial = tried.completed(site.cluster.measurements).trial
    if trial is None or (word := tried.verdict(trial)) == "unknown":
        return [*found]
    if word == "gains":
        return [_gains(site, trial), *(one for one in found if one.variable != trial.variable)]
    out = ("try",) if word in ("same", "mixed") else ("try", "set", "unset")
    this = (trial.variable, trial.value)
    return [one for one in found if (one.variable, one.value) != this or one.action not in out]


def _gains(site: Site, trial: Trial) -> Recommendation:
    rows, job = tried.of(trial, "gains"), site.cluster.job
    gain = ", ".join(tried.effect(row) for row in rows)
    against = tried.against(site.cluster, trial)
    kind = "simulated node" if site.simulated else "node"
    nodes = f"{job.nodes_asked} {kind}{'s' * (job.nodes_asked > 1)}"
    return Recommendation(
        variable=trial.variable,
        action="unset" if trial.value is None else "set",
        value=trial.value,
        why=f"It was measured in turn with {against}: {tried.effect(rows[0])}.",
        evidence=[f"BEN017: {tried.said(trial)}"],
        source="ncclcheck bench --with, pairs of jobs on this cluster",
        basis="measured",
        gain=gain,
        risk="measured with collectives alone, on these nodes: measure again after a change of hardware or NCCL",
        valid_for=f"{job.backend}, {job.ranks} ranks on {nodes}, as measured",
        set_in=site.sources(trial.variable),
        undo=site.undo(trial.variable),
    )

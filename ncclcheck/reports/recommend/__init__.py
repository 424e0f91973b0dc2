"""Cluster and verdicts -> recommended settings, each with its evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, NotKnown
from ncclcheck.reports.judgement.findings import Verdict
from ncclcheck.reports.judgement.jsondoc import Recommendation
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.recommend.advice import Action, Proposal, SettingRule
from ncclcheck.reports.recommend.settings import (
    hcas,
    inside,
    leftovers,
    measured,
    platforms,
    pytorch,
    rdma,
    rdma_leftovers,
    sockets,
)
from ncclcheck.reports.recommend.site import Site
from ncclcheck.reports.subjects.nccl import profiles
from ncclcheck.reports.subjects.nccl.variables import parsed_value
from ncclcheck.reports.subjects.nodes.fixes import one_voice

RULES: tuple[SettingRule, ...] = (
    *sockets.RULES,
    *hcas.RULES,
    *rdma.RULES,
    *rdma_leftovers.RULES,
    *inside.RULES,
    *platforms.RULES,
    *leftovers.RULES,
    *pytorch.RULES,
)
_ORDER: tuple[Action, ...] = ("set", "unset", "keep", "try")


@dataclass(frozen=True)
class Advice:
    """What one rule found."""

    rule: SettingRule
    proposal: Proposal

    @property
    def action(self) -> Action:
        """That of the finding, else of its rule."""
        return self.proposal.action or self.rule.action


def recommend(cluster: Cluster, verdicts: Sequence[Verdict]) -> list[Recommendation]:
    """What to set, to unset and to try; nothing where NCCL's own choice is right on every node.

    Nor what a fix says otherwise: a finding is about a fault that was seen.
    """
    site, values = Site(cluster, verdicts), one_voice.told_by(verdicts)
    recommendations = [_recommendation(site, advised) for advised in advice(site)]
    recommendations = [
        recommendation
        for recommendation in recommendations
        if values.get(recommendation.variable, recommendation.value) == recommendation.value
    ]
    return sorted(
        measured.weighed(site, recommendations), key=lambda recommendation: _ORDER.index(recommendation.action)
    )


def advice(site: Site) -> list[Advice]:
    """One advice a variable: what is proved goes before what is to be tried, the first rule before the others."""
    chosen: dict[str, Advice] = {}
    for advised in sorted(_all(site), key=lambda advised: _ORDER.index(advised.action)):
        chosen.setdefault(advised.proposal.variable, advised)
    return [*chosen.values()]


def _all(site: Site) -> Iterator[Advice]:
    kept = profiles.keeps(site.nodes)
    for rule in RULES:
        for proposal in _found(rule, site) if rule.applies(site) else ():
            of_profile = proposal.variable in kept and proposal.value is None and rule.action != "set"
            if not _changes_nothing(site, proposal) and (rule.harmful or not of_profile):
                yield Advice(rule, proposal)


def _found(rule: SettingRule, site: Site) -> list[Proposal]:
    """What a rule finds; a fact that was not read calls for nothing."""
    founds: list[Proposal] = []
    with suppress(NotKnown, NothingToJudge):
        founds.extend(rule.find(site))
    return founds


def _changes_nothing(site: Site, proposal: Proposal) -> bool:
    """Whether it is in force everywhere already, or what is taken without it."""
    if proposal.value is None or proposal.action == "keep":
        return False
    default = parsed_value(proposal.variable, None)
    by_itself = not site.is_set(proposal.variable) and parsed_value(proposal.variable, proposal.value) == default
    return site.value(proposal.variable) == proposal.value or (by_itself and default is not None)


def _recommendation(site: Site, advised: Advice) -> Recommendation:
    rule, proposal = advised.rule, advised.proposal
    return Recommendation(
        variable=proposal.variable,
        action=advised.action,
        value=proposal.value,
        why=proposal.why,
        evidence=proposal.evidence,
        source=rule.source,
        basis="rule",
        gain=rule.gain,
        risk=rule.risk,
        valid_for=rule.valid_for,
        set_in=site.sources(proposal.variable),
        undo=site.undo(proposal.variable),
        disagree=rule.disagree,
    )

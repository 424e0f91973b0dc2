"""What a page consists of: pictures, findings, settings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ncclcheck.reports.judgement.findings import Evidence, Remedy, State
from ncclcheck.reports.judgement.jsondoc import Document, Recommendation
from ncclcheck.reports.judgement.rule import FAMILIES
from ncclcheck.reports.output import settings_forms
from ncclcheck.reports.output.html import bars, curves, dataset, pairs, timeline
from ncclcheck.reports.output.html.limits import PageLimits, Shown, first
from ncclcheck.reports.output.html.picture import Figure
from ncclcheck.reports.text.groups import FindingBlock, FoldedPlaces, blocks, order
from ncclcheck.reports.text.headings import heading
from ncclcheck.reports.text.words.fold import fold_names

# a heading that holds for more checks than this gives them in a fold: chosen, 12 codes are one line
_FOLDED_CODES = 12
_ACTIONS = {
    "set": "Set: what the facts of this site call for",
    "unset": "Unset: what the job is better without",
    "keep": "Keep: what stays until it was measured",
    "try": "Try: what only a measurement can show",
}
_FORMS = {
    "All as nccl.env, for the shell": settings_forms.env_file,
    "All as nccl.conf": settings_forms.nccl_conf,
    "In a batch script of Slurm": settings_forms.sbatch,
    "With docker": settings_forms.docker,
    "For Kubernetes": settings_forms.kubernetes,
    "In front of torchrun": settings_forms.torchrun,
    "Back to what was before": settings_forms.revert,
}


@dataclass(frozen=True)
class ShownFinding:
    """A finding as the page shows it."""

    state: State
    codes: str
    page: str
    heading: str
    title: str
    why: str
    places: Shown[FoldedPlaces]
    evidence: Shown[Evidence]
    remedies: Shown[Remedy]


@dataclass(frozen=True)
class ShownSetting:
    """One recommendation, and the line to type."""

    advice: Recommendation
    line: str


def figures(document: Document) -> list[Figure]:
    """Every picture that something was measured for."""
    single = (timeline.figure, pairs.figure, bars.steps, bars.memory, dataset.figure)
    return [*curves.figures(document), *(figure for make in single if (figure := make(document)))]


def findings(document: Document, state: State, limits: PageLimits) -> Shown[ShownFinding]:
    """Those of one state, causes before symptoms."""
    shown = first([*blocks(document, [state])], limits.blocks)
    return Shown([_told(block, limits) for block in shown.items], shown.left)


def _told(block: FindingBlock, limits: PageLimits) -> ShownFinding:
    many = len(block.codes) > _FOLDED_CODES
    head = heading(block)
    return ShownFinding(
        block.state,
        f"{len(block.codes)} checks" if many else fold_names(block.codes),
        block.codes[0],
        head.text,
        block.title,
        block.why,
        first(head.below, limits.places),
        first(block.evidence, limits.places),
        first(block.remedies, limits.places),
    )


def first_thing(document: Document) -> FindingBlock | None:
    """What to do first: of the failure that is a cause, else of what kept the run from its end."""
    failures = [*blocks(document, [State.FAIL])]
    if not failures and document.state == "incomplete":
        failures = [block for block in blocks(document, [State.UNKNOWN]) if block.codes[0].startswith("RUN")]
    return next((block for block in failures if block.remedies), None)


def settings(document: Document, limits: PageLimits) -> list[tuple[str, Shown[ShownSetting]]]:
    """The lists of different standing, never mixed."""
    lists = []
    for action, title in _ACTIONS.items():
        chosen = [
            ShownSetting(recommendation, _line(recommendation))
            for recommendation in document.recommendations
            if recommendation.action == action
        ]
        if chosen:
            lists.append((title, first(chosen, limits.places)))
    return lists


def _line(recommendation: Recommendation) -> str:
    if recommendation.action == "try":
        return settings_forms.measure(recommendation)
    if recommendation.action == "keep":
        return (
            recommendation.variable
            if recommendation.value is None
            else f"{recommendation.variable}={recommendation.value}"
        )
    lines = settings_forms.env_file([recommendation]).splitlines()
    return "\n".join(line for line in lines if not line.startswith("#")) or "\n".join(lines[1:])


def forms(document: Document) -> list[tuple[str, str]]:
    """All settings at once, for each place that they go to; none where nothing is to be set or unset."""
    certain = [
        recommendation for recommendation in document.recommendations if recommendation.action in ("set", "unset")
    ]
    return [(title, write(document.recommendations)) for title, write in _FORMS.items()] if certain else []


def families(document: Document) -> list[tuple[str, dict[State, int]]]:
    """How many checks of each state, by family."""
    counted: dict[str, Counter[State]] = {}
    for verdict in sorted(document.verdicts, key=order):
        counted.setdefault(FAMILIES[verdict.code[:3]], Counter())[verdict.state] += 1
    return [(family, dict(states)) for family, states in counted.items()]

"""The end of a report: who is to blame, what was compared, and the decision with the first thing to do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ncclcheck.probes.facts import Node, Unread, at, value_or, variables
from ncclcheck.reports.judgement.causal import causes_first
from ncclcheck.reports.judgement.findings import Culprit, State, Where
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.box import page
from ncclcheck.reports.subjects.data import examined
from ncclcheck.reports.subjects.failures import silent
from ncclcheck.reports.subjects.job import trial
from ncclcheck.reports.subjects.live import running_text
from ncclcheck.reports.subjects.logs.answer import story_text
from ncclcheck.reports.text.words.fold import fold_names, fold_some

_SIGNALS = {1: "SIGHUP", 2: "^C (SIGINT)", 15: "SIGTERM"}
_MOST_LINKS = 3  # named in the last line, then a count: chosen, three fit 80 columns
_NO_TIME = "the time budget was used up"
_PARTS = {
    "content": "what samples contain",
    "streams": "workers and their random numbers",
    "structure": "shapes and batches",
    "sharding": "several ranks",
    "resources": "memory",
}
_BASELINE = ("BEN006", "VER015", "VER016")


def culprits(document: Document) -> list[str]:
    """Who is to blame, one line each, the surest first."""
    headings = {finding.what for verdict in document.verdicts for finding in verdict.findings}
    return [
        f"Culprit: {_named(culprit)} (confidence {culprit.confidence:.2f}): {_brief(culprit.why, headings)}"
        for culprit in document.culprits
    ]


def _brief(why: str, headings: Collection[str]) -> str:
    """`why`, cut to its first clause where a finding above says all of it."""
    return why.partition("; ")[0] if any(why in what for what in headings) else why


def _named(culprit: Culprit) -> str:
    names = " to ".join(culprit.names) if culprit.kind == "link" else fold_names(culprit.names)
    return names if names.startswith(culprit.kind) else f"{culprit.kind} {names}"


def compared(document: Document) -> list[str]:
    """What was held against a saved result and is no worse, and what was tried; all else is a finding."""
    verdicts = [verdict for verdict in document.verdicts if verdict.code in _BASELINE]
    sound = [finding.what for v in verdicts for finding in v.findings if finding.state is State.OK]
    if sound and document.command == "bench":
        sound += [f"no bandwidth was compared: {v.reason}" for v in verdicts if v.code == "BEN006" and v.reason]
    baseline = [f"Baseline: {'; '.join(sound)}."] if sound else []
    return baseline + [f"Tried: {trial.sentence(tried)}." for tried in [document.measurements.trial] if tried]


def decision(document: Document) -> str:
    """One sentence with the decision and the first thing to do; the exit code says the same."""
    if faults := document.job.injected:
        return f"{_decision(document)} Injected faults: {', '.join(faults)}; run without --inject to judge."
    return _decision(document)


def _decision(document: Document) -> str:
    if document.exit_code > 128:
        number = document.exit_code - 128
        return f"Not finished: {_SIGNALS.get(number, f'signal {number}')} ended it; what was gathered is above."
    if document.command == "logs":
        return story_text.decision(document)
    if document.command == "watch":
        return page.decision(document)
    if document.command == "hang":
        return running_text.decision(document)
    if any(v.state is State.FAIL for v in document.verdicts):
        unseen = _unseen(document) if document.command == "data" else ""
        return f"Not ready: fix {_first_failed(document)} first{f'; {unseen}' if unseen else ''}."
    if document.state == "incomplete":
        return f"Not finished. {_unfinished(document)}"
    return " ".join([_ready(document), *_caveats(document)])


def _ready(document: Document) -> str:
    if document.exit_code:
        return "Not ready: --strict counts warnings and unknowns as failures."
    rows = document.measurements.collectives
    if rows and all(row.state == "skipped" for row in rows):
        return "Nothing failed, but nothing was measured either: see BEN001."
    states = {verdict.state for verdict in document.verdicts if verdict.code.startswith("DAT")}
    if document.command == "data" and not states - {State.SKIPPED}:
        return "The dataset was not judged."
    if document.command != "data":
        return _ready_but_for(document)
    if _for_one_rank(document):
        return "Ready for one rank: see DAT016 before you train on more."
    if unseen := _unseen(document):
        return f"Ready, as far as was examined: {unseen}."
    return "Ready." if states & {State.WARN, State.UNKNOWN} else "Ready: nothing wrong was seen in the dataset."


def _ready_but_for(document: Document) -> str:
    """The decision `Ready`, with how many warnings there are and which comes first."""
    warned = [verdict.code for verdict in causes_first(document.verdicts) if verdict.state is State.WARN]
    if len(warned) > 1:
        return f"Ready, with {len(warned)} warnings: see {warned[0]} first."
    return f"Ready, with a warning: see {warned[0]}." if warned else "Ready."


def _unseen(document: Document) -> str:
    """Parts of the dataset's examination that did not take place, and why."""
    reasons: dict[str, dict[str, None]] = {}
    for report in document.measurements.data:
        for skipped in report.unseen:
            reasons.setdefault(skipped.why, {})[_PARTS.get(skipped.aspect, skipped.aspect)] = None
        if why := examined.growth_unseen(report):
            reasons.setdefault(why, {})[_PARTS["resources"]] = None
        if (
            report.streams
            and isinstance(report.streams.depends, Unread)
            and report.streams.depends.why == _NO_TIME
        ):
            reasons.setdefault(_NO_TIME, {})[_PARTS["streams"]] = None
        for text in report.content.unseen if report.content else []:
            part, _, why = text.rpartition(": ")
            if why == _NO_TIME:
                reasons.setdefault(why, {})[part] = None
    return "; ".join(f"not {', '.join(parts)} ({why})" for why, parts in list(reasons.items())[:2])


def _for_one_rank(document: Document) -> bool:
    """Whether it was asked for one rank, and several would read the same samples."""
    alone = any(report.sharding and report.sharding.wanted < 2 for report in document.measurements.data)
    return alone and any(v.code == "DAT016" and v.state is State.NOTE for v in document.verdicts)


def _first_failed(document: Document) -> str:
    """The first failure that is a cause, and where."""
    failed = [v for v in causes_first(document.verdicts) if v.state is State.FAIL]
    causes = [v for v in failed if v.code[:3] not in ("RUN", "BEN")]
    first = (causes or failed)[0]
    places = [f.where for f in first.findings if f.state is State.FAIL and f.where.node]
    if not places:
        return first.code
    if first.code == "NET009" and all(place.peer for place in places):
        return f"{first.code} on the link {places[0].node} -> {places[0].peer}"
    links = _links(places) if first.code[:3] == "BEN" or first.code == "NET006" else ""
    return f"{first.code} on {links or fold_some(place.node or '' for place in places)}"


def _links(places: Sequence[Where]) -> str:
    """Both ends of what was measured between two nodes; empty where other places are among them."""
    ends = [(place.node or "", place.peer) for place in places if place.peer and place.rank is None]
    if len(ends) < len(places):
        return ""
    links = list(dict.fromkeys(" - ".join(sorted(pair)) for pair in ends))
    more = f" and {len(links) - _MOST_LINKS} more" if len(links) > _MOST_LINKS else ""
    return f"the link{'s' if len(links) > 1 else ''} {', '.join(links[:_MOST_LINKS])}{more}"


def _unfinished(document: Document) -> str:
    if document.job.missing and not silent.hurried(document.run):
        return f"{fold_names(document.job.missing)} did not answer{_why_silent(document)}."
    for verdict in document.verdicts:
        for finding in verdict.findings:
            if verdict.code.startswith("RUN") and finding.state is State.UNKNOWN:
                return " ".join(part for part in (verdict.code, str(finding.where), finding.what) if part) + "."
    return "The run was cut short."


def _why_silent(document: Document) -> str:
    """`: WHAT` of the one finding of RUN001; empty where it has several."""
    findings = [
        finding for verdict in document.verdicts if verdict.code == "RUN001" for finding in verdict.findings
    ]
    return f": {findings[0].what}" if len(findings) == 1 else ""


def _caveats(document: Document) -> Iterator[str]:
    if document.command == "data":
        return
    nodes = [entry.facts for entry in document.nodes]
    if document.job.simulated:
        yield (
            "No second machine was tested. On two machines type, with the first one's address for HOST: "
            f"ncclcheck {document.command} --nodes 2 --node-rank 0 --rdzv-endpoint HOST:29500 there, and the "
            f"same with --node-rank 1 on the other; in a Slurm allocation just ncclcheck {document.command}."
        )
    elif nodes and all(_has_no_gpu(node) for node in nodes):
        yield from _without_gpus(document, nodes)


def _has_no_gpu(node: Node) -> bool:
    usable = at(node, "gpus.usable")
    return usable == 0 or (isinstance(usable, Unread) and usable.kind == "absent")


def _without_gpus(document: Document, nodes: list[Node]) -> Iterator[str]:
    login = document.job.launcher == "local" and any(
        "srun" in value_or(at(node, "job.launcher_programs"), []) and "SLURM_JOB_ID" not in variables(node)
        for node in nodes
    )
    if login:
        typed = f" Type: salloc -N 2 --gpus-per-node=8 ncclcheck {document.command}"
        warned = any(verdict.state is State.WARN for verdict in document.verdicts)
        yield f"This looks like a login node: no GPU node was judged.{'' if warned else typed}"
    elif any("rocm" in value_or(at(node, "stack.torch"), "") for node in nodes):
        yield "This torch is built for AMD's GPUs: neither they nor RCCL were judged, only hosts and networks."
    else:
        yield "No GPU here: NCCL itself was not judged."

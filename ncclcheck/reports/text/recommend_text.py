"""The recommended settings in the text report: three lists that are never mixed, SET, UNSET and TRY."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Unread, at
from ncclcheck.reports.judgement.jsondoc import Document, Recommendation
from ncclcheck.reports.output import settings_forms
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nccl.variables import nccl_version
from ncclcheck.reports.text.words.wrapping import wrapped

NOTHING = "nothing to set: NCCL's own choice is right on every node"
_HEADS = {
    "set": "SET     what the facts of this site call for",
    "unset": "UNSET   what the job is better without",
    "keep": "KEEP    what stays until it was measured",
    "try": "TRY     what only a measurement can show (before.json: saved without it)",
}
_MOST_TRIES = 3  # settings to try that are shown without -v: chosen, a person tries one after the other
_ALWAYS = ("bench", "preflight", "tune")


def text(document: Document, width: int, *, verbose: bool = False) -> str:
    """The block; empty where there is nothing to say, and with `env` where there is only something to try."""
    recommendations = document.recommendations
    certain = [setting for setting in recommendations if setting.action in ("set", "unset")]
    if not (certain or verbose or document.command in _ALWAYS):
        return ""
    lines = [] if certain or not may_say_nothing(document) else [f"  {NOTHING}"]
    for action, head in _HEADS.items():
        listed = [setting for setting in recommendations if setting.action == action]
        if listed:
            lines.append(f"  {head}")
        most = _MOST_TRIES if action == "try" and not verbose else len(listed)
        for recommendation in listed[:most]:
            lines += _lines(recommendation, width, verbose=verbose)
        if left := listed[most:]:
            lines.append(f"    and {len(left)} more to try (-v shows all)")
    return "\n".join(["Recommended settings", *lines]) if lines else ""


def may_say_nothing(document: Document) -> bool:
    """Whether enough was seen for that: NCCL, GPUs, variables, interfaces and HCAs of every node."""
    job, nodes = document.job, [entry.facts for entry in document.nodes]
    if (
        job.simulated
        or "gloo" in (job.backend, job.backend_asked)
        or job.missing
        or document.run.silent
        or not nodes
    ):
        return False
    seen = ("job.variables", "network.interfaces", "rdma.hcas", "nccl.conf_files")
    facts = [at(node, path) for node in nodes for path in seen]
    unread = [fact for fact in facts if isinstance(fact, Unread) and fact.kind != "absent"]
    able = [node for node in nodes if nccl_version(node) is not None and wiring.has_gpus(node)]
    return not unread and len(able) == len(nodes) and document.state in ("ok", "warn")


def _lines(recommendation: Recommendation, width: int, *, verbose: bool) -> Iterator[str]:
    yield f"    {_shown(recommendation)}"
    rows = [("why", recommendation.why)]
    if recommendation.action in ("set", "unset") or verbose:
        rows += [
            ("seen", evidence)
            for evidence in (recommendation.evidence if verbose else recommendation.evidence[:2])
        ]
    rows.append(("but", recommendation.disagree))
    if verbose:
        rows += [("gain", recommendation.gain), ("risk", recommendation.risk), ("for", recommendation.valid_for)]
        rows += [("from", recommendation.source), ("undo", recommendation.undo)]
    for label, words in rows:
        yield from _wrapped(label, words, width)


def _shown(recommendation: Recommendation) -> str:
    if recommendation.action == "try":
        return settings_forms.measure(recommendation)
    if recommendation.action == "unset":
        return f"unset {recommendation.variable}"
    return f"export {recommendation.variable}={settings_forms.quoted(recommendation.value or '')}"


def _wrapped(label: str, words: str, width: int) -> list[str]:
    first, rest = f"        {label:6}", " " * 14
    return wrapped(words, width, first=first, rest=rest)

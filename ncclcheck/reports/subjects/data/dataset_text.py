"""What `data` examined: the dataset, the curve of samples a second, and what there was no time for."""

from __future__ import annotations

from ncclcheck.probes.facts.data import DataReport
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.data import curve, examined
from ncclcheck.reports.text.words.fold import fold_names
from ncclcheck.reports.text.words.wrapping import wrapped

_ASPECTS = {
    "content": "contents",
    "streams": "random numbers",
    "structure": "batches",
    "sharding": "ranks",
    "resources": "memory",
    "speed": "speed",
}
_INDENT = 13  # columns: two, a label of ten, a space


def text(document: Document, width: int) -> str:
    """Empty where no dataset was examined."""
    reports = document.measurements.data
    rows = (
        ("dataset", _dataset(reports)),
        ("samples/s", _speed(reports)),
        ("examined", _examined(reports)),
        ("not seen", _not_seen(reports)),
    )
    lines = [line for label, words in rows for line in _labelled(label, words, width)]
    return "\n".join(lines)


def _labelled(label: str, words: str, width: int) -> list[str]:
    return wrapped(words, width, first=f"  {label:<10} ", rest=" " * _INDENT)


def _dataset(reports: list[DataReport]) -> str:
    """Each factory with what it gave, where nodes agree once."""
    return "; ".join(dict.fromkeys(_given(report) for report in reports))


def _given(report: DataReport) -> str:
    made = report.made
    if made is None or made.failure is not None:
        return report.factory
    samples = "" if made.length is None else f", {_digits(made.length)} samples"
    return f"{report.factory}: {made.dataset}{samples}"


def _digits(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _speed(reports: list[DataReport]) -> str:
    """The node that gives least, for the others wait for it at every step."""
    known = [(report.node, report.speed) for report in reports if report.speed and curve.plain(report.speed)]
    if not known:
        return ""
    node, slowest = min(known, key=lambda row: curve.most(row[1]))
    rates = [curve.most(speed) for _, speed in known]
    how = f"warm, in batches of {slowest.batch}" if slowest.batch else "warm"
    words = f"by workers {curve.by_workers(slowest)}; {how}"
    if len(known) == 1:
        return words
    return f"{words}; this is {node}, at best {curve.rate(max(rates))} on the fastest of {len(known)} nodes"


def _examined(reports: list[DataReport]) -> str:
    """What at least one node has examined."""
    seen = [name for name in _ASPECTS if any(_saw(report, name) for report in reports)]
    return ", ".join(_ASPECTS[name] for name in seen)


def _saw(report: DataReport, aspect: str) -> bool:
    """Memory is not seen by a process that gave no answer, whatever else is known of it."""
    if aspect == "resources" and report.resources is not None:
        return not examined.growth_unseen(report)
    return getattr(report, aspect) is not None


def _not_seen(reports: list[DataReport]) -> str:
    """Each reason once, with its aspects and, where nodes differ, its nodes."""
    reasons: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for report in reports:
        for entry in report.unseen:
            aspects, nodes = reasons.setdefault(entry.why, ({}, {}))
            aspects[entry.aspect] = nodes[report.node] = None
        if why := examined.growth_unseen(report):
            aspects, nodes = reasons.setdefault(why, ({}, {}))
            aspects["resources"] = nodes[report.node] = None
    return "; ".join(
        f"{', '.join(_ASPECTS.get(aspect, aspect) for aspect in aspects)}{_on(list(nodes), len(reports))}: {why}"
        for why, (aspects, nodes) in reasons.items()
    )


def _on(nodes: list[str], of: int) -> str:
    return "" if len(nodes) == of else f" on {fold_names(nodes)}"

"""One HTML file: no network, readable without JavaScript, at most 5 MB. Needs the extra `report`."""

from __future__ import annotations

from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output.html.limits import LIMITS, MOST_BYTES
from ncclcheck.reports.output.html.page import render
from ncclcheck.reports.output.html.sections import figures


def text(document: Document) -> str:
    """The page; where it would be too large, what is worst is kept and the rest is counted."""
    drawn = figures(document)
    for limits in LIMITS:
        whole = render(document, drawn, limits)
        if len(whole.encode(errors="backslashreplace")) <= MOST_BYTES:
            break
    return whole

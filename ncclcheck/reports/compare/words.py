"""Values of facts as people read them."""

from __future__ import annotations

from typing import Any

from ncclcheck.probes.facts import Address, Unread
from ncclcheck.reports.text.words.fold import size

# characters of a value: chosen, two lines of 80 columns with its name; a kernel command line has more
_LONGEST_VALUE = 120


def shown(value: Any, unit: str = "") -> str:
    """A value with its unit; an unread one with the reason."""
    words = _said(value, unit) or "nothing"
    return words if len(words) <= _LONGEST_VALUE else words[: _LONGEST_VALUE - 4] + " ..."


def _said(value: Any, unit: str) -> str:
    if isinstance(value, Unread):
        return "none" if value.kind == "absent" else f"unread ({value.why})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "bytes":
        return size(value)
    if isinstance(value, list):
        return ", ".join(_said(item, unit) for item in value) or "none"
    if isinstance(value, Address):
        return f"{value.address}/{value.prefix}"
    return f"{value:.10g} {unit}".strip() if isinstance(value, (int, float)) else str(value)

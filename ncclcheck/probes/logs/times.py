"""When a line was written, by its own words, as seconds since the year began: glog tells no year."""

from __future__ import annotations

import re

_WITHIN = 160  # after launchers' prefixes
_DAYS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_CLOCK = r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?"
_FORMS = (
    re.compile(rf"(?:^|\[|\s)[EWIF](\d{{1,2}})(\d\d) {_CLOCK}"),  # [E314 22:46:25.933 ProcessGroupNCCL.cpp:632]
    re.compile(rf"\d{{4}}-(\d\d)-(\d\d)[T _]{_CLOCK}"),  # ISO, Python's logging, NCCL's own, torchrun's block
)


def when(text: str) -> float | None:
    """The first time in the head of a line; None where there is none."""
    head = text[:_WITHIN]
    for form in _FORMS:
        if found := form.search(head):
            month, day, hour, minute, second = (int(part) for part in found.groups()[:5])
            if 1 <= month <= 12 and 1 <= day <= 31:
                part = float(f"0.{found[6]}") if found[6] else 0.0
                days = _DAYS[month - 1] + day - 1
                return days * 86400 + hour * 3600 + minute * 60 + second + part
    return None

"""When a line was written, by its own words, as seconds since the year began: glog tells no year."""

from __future__ import annotations

import re
from functools import lru_cache

_WITHIN = 160  # after launchers' prefixes
# of the year before each month; glog tells no year, so 29 February is 1 March, in all lines alike
_DAYS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_CLOCK = r"(\d\d:\d\d):(\d\d)(?:[.,](\d{1,6}))?"
_FORMS = (
    re.compile(rf"(?:^|\[|\s)[EWIF](\d{{1,2}})(\d\d) {_CLOCK}"),  # [E314 22:46:25.933 ProcessGroupNCCL.cpp:632]
    re.compile(rf"\d{{4}}-(\d\d)-(\d\d)[T _]{_CLOCK}"),  # ISO, Python's logging, NCCL's own, torchrun's block
)


def when(text: str) -> float | None:
    """The first time in the head of a line; None where there is none."""
    head = text[:_WITHIN]
    for form in _FORMS:
        if match := form.search(head):
            month, day, clock, second, part = match.groups()
            if (minute := _minute(month, day, clock)) is not None:
                return minute + int(second) + float(f"0.{part or 0}")
    return None


@lru_cache(maxsize=256)
def _minute(month: str, day: str, clock: str) -> float | None:
    """When a minute began: of lines that follow each other it is the same."""
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    return (_DAYS[int(month) - 1] + int(day) - 1) * 86400.0 + int(clock[:2]) * 3600 + int(clock[3:]) * 60

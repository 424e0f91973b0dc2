"""What is still to be done when the report is written: we leave by os._exit, which calls nothing registered."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress

_last_acts: list[Callable[[], None]] = []


def at_leave(act: Callable[[], None]) -> None:
    """Do this once, before the process ends, however it ends, or becomes another program."""
    if not _last_acts:
        atexit.register(do_last_acts)
    _last_acts.append(act)


def do_last_acts() -> None:
    """All of them; none holds up the others."""
    while _last_acts:
        with suppress(Exception):
            _last_acts.pop(0)()

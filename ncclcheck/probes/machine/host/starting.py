"""How long the start of this Python waits for something, before the first line of a program runs.

Recorded name: `python_start`, a number of seconds.
"""

from __future__ import annotations

import sys
import time

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine.access import Machine

_MOST_S = 5.0  # a healthy start takes a fraction of a second; what takes longer than this is told as this: chosen
# Nanoseconds on a core, and ready to run without one: schedstat of the child, when its own start is over.
_TELL = "print(open('/proc/self/schedstat').read())"


def waited(machine: Machine) -> float | Unread:
    """Seconds in which the start neither computed nor waited for a core; so many at most as are measured."""
    return machine.ask("python_start", float, lambda: _waited(machine))


def _waited(machine: Machine) -> float | Unread:
    begun = time.monotonic()
    done = machine.run([sys.executable, "-c", _TELL], _MOST_S)
    took = time.monotonic() - begun
    if isinstance(done, Unread):
        return _MOST_S if done.kind == "timed_out" else done
    words = done.out.split()[-3:]
    if done.status or len(words) != 3 or not all(word.isdecimal() for word in words):
        return Unread("no_tool", "it does not report how long it ran")
    return round(max(0.0, took - (int(words[0]) + int(words[1])) / 1e9), 3)

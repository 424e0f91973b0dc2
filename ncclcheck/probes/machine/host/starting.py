"""How long the start of this Python waits for something, before the first line of a program runs.

Recorded name: `python_start`, a number of seconds.
"""

from __future__ import annotations

import os
import sys

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine.access import Machine

_MOST_S = 5.0  # a healthy start takes a fraction of a second; what takes longer than this is told as this: chosen
# Of the child, when its own start is over: nanoseconds on a core, and ready to run without one (schedstat), the
# time now and that of its birth (proc(5), stat, field 22), both since the boot. Seen from here it would also have
# waited while this process had no core: 3.6 s of a healthy start at a load of 27 on 2 cores.
_TELL = (
    "import time; print(open('/proc/self/schedstat').read(), time.clock_gettime(time.CLOCK_BOOTTIME), "
    "open('/proc/self/stat').read().rpartition(')')[2].split()[19])"
)


def waited(machine: Machine) -> float | Unread:
    """Seconds in which the start neither computed nor waited for a core; so many at most as are measured."""
    return machine.ask("python_start", float, lambda: _waited(machine))


def _waited(machine: Machine) -> float | Unread:
    done = machine.run([sys.executable, "-c", _TELL], _MOST_S)
    if isinstance(done, Unread):
        return _MOST_S if done.kind == "timed_out" else done
    try:
        on_core, without, _, now, born = map(float, done.out.split()[-5:])
    except ValueError:
        return Unread("no_tool", "it does not report how long it ran")
    took = now - born / os.sysconf("SC_CLK_TCK")
    return round(max(0.0, took - (on_core + without) / 1e9), 3)

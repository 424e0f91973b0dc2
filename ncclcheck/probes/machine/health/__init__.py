"""Signs that a machine is failing or overloaded; nothing here touches a file system that may not answer.

Recorded names: `waiting` (list of Waiting), `answers` (list of Answer), `kernel_log`.
"""

from __future__ import annotations

from ncclcheck.probes.facts import Health
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.health import disks, errors, mounted, pressure, waiting


def probe(machine: Machine) -> Health:
    """Kernel log, mounts, disks, memory and processes that wait; each an Unread where it was not read."""
    return Health(
        memory_errors=errors.memory(machine),
        kernel=errors.kernel(machine),
        waiting=waiting.processes(machine),
        swap=pressure.swap(machine),
        pressure=pressure.memory(machine),
        commit=pressure.commit(machine),
        nvmes=disks.nvmes(machine),
        disks=mounted.disks(machine),
        answers=mounted.answers(machine),
    )

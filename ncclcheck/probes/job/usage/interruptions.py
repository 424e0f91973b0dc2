"""What held up this host while the job ran: links that went down, and times in which nothing here ran at all.

A thread that only sleeps and looks at the clock comes late where the whole host was stopped (a virtual machine
that was paused, a frozen control group, SIGSTOP), and where it had to wait for a core. The scheduler counts the
second (schedstat), so that the rest of its lateness is the first. The same thread looks at TCP's connections.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ncclcheck.probes.facts import Interruptions, LinkEvents, Unread
from ncclcheck.probes.job.usage import connections
from ncclcheck.probes.job.usage.port_counters import names
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.net.network import link_downs

_EVERY_S = 0.2  # sleep between two looks at the clock: chosen, the stops that matter last seconds
_NETS, _HCAS = "/sys/class/net", "/sys/class/infiniband"
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def _now() -> float:
    """Seconds of a clock that also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _waited_for_core() -> float:
    """Seconds in which this thread could run and had no core; 0 where the kernel does not count them."""
    with suppress(OSError, ValueError, IndexError):
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    return 0.0


class InterruptionWatch:
    """Watches this host in a thread, from its making until `seen`."""

    def __init__(
        self, machine: Machine, now: Callable[[], float] = _now, waited: Callable[[], float] = _waited_for_core
    ) -> None:
        self._machine, self._begun = machine, time.monotonic()
        self._now, self._waited = now, waited
        self._links, self._tcp = _links(machine), _tcp(machine)
        self._connections = connections.ConnectionWatch()
        self._paused = self._starved = 0.0
        self._over = threading.Event()
        threading.Thread(target=self._pulse, daemon=True, name="pulse").start()

    def seen(self, node: str) -> Interruptions:
        """Stops, lost links and retransmits since this was made."""
        self._over.set()
        links, tcp = _links(self._machine), _tcp(self._machine)
        fallen = {name: downs - self._links.get(name, downs) for name, downs in links.items()}
        segments, retransmits = (max(0, now - was) for now, was in zip(tcp, self._tcp, strict=True))
        return Interruptions(
            node=node,
            seconds=round(time.monotonic() - self._begun, 3),
            paused_s=round(self._paused, 3) if _SCHEDSTAT.exists() else None,
            starved_s=round(self._starved, 3) if _SCHEDSTAT.exists() else None,
            links=[LinkEvents(name=name, downs=downs) for name, downs in sorted(fallen.items()) if downs > 0],
            segments=segments if segments else None,
            retransmits=retransmits if segments else None,
            sent=self._connections.sent(),
        )

    def _pulse(self) -> None:
        waited = self._waited()
        while not self._over.is_set():
            due = self._now() + _EVERY_S
            time.sleep(_EVERY_S)
            late, before = max(0.0, self._now() - due), waited
            waited = self._waited()
            starved = min(late, waited - before)
            self._starved = max(self._starved, starved)
            self._paused = max(self._paused, late - starved)
            self._connections.look(time.monotonic())


def _links(machine: Machine) -> dict[str, int]:
    """How often each interface and each port of an HCA has lost its link since it was made."""
    downs_by_name: dict[str, int] = {}
    for name in names(machine, _NETS):
        if not isinstance(downs := link_downs(machine, f"{_NETS}/{name}"), Unread):
            downs_by_name[name] = downs
    for name in names(machine, _HCAS):
        for port in names(machine, f"{_HCAS}/{name}/ports"):
            downs = machine.number(f"{_HCAS}/{name}/ports/{port}/counters/link_downed")
            if not isinstance(downs, Unread):
                downs_by_name[f"{name}:{port}"] = downs
    return downs_by_name


def _tcp(machine: Machine) -> tuple[int, int]:
    """TCP segments that this host has sent, and those that it had to send again; zeros where nobody counts."""
    text = machine.read("/proc/net/snmp")
    lines = [] if isinstance(text, Unread) else [line.split() for line in text.splitlines()]
    rows = [line[1:] for line in lines if line[:1] == ["Tcp:"]]
    with suppress(ValueError):
        counted = dict(zip(*rows, strict=True)) if len(rows) == 2 else {}
        return int(counted.get("OutSegs", 0)), int(counted.get("RetransSegs", 0))
    return 0, 0

"""All probes of one node, side by side, each within its time limit: Machine -> Node."""

from __future__ import annotations

# Before any thread: what registers with os.fork (this, and logging below it) must not do so while another thread
# forks, or the parent releases a lock that nobody took: "release unlocked lock", seen twice in 17 runs at load.
import concurrent.futures.thread  # noqa: F401
import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

from ncclcheck.probes.facts import Node, ProbeRun, Unread
from ncclcheck.probes.machine.access import Machine

# The field of a node -> the module whose `probe` reads it.
PROBES = {
    "nccl": "software.nccl",
    "gpu": "gpu",
    "host": "host.host",
    "network": "net.network",
    "job": "environment.job_system",
    "rdma": "devices.rdma",
    "fabric": "devices.fabric",
    "stack": "software.stack",
    "container": "host.container",
    "storage": "host.storage",
    "system": "host.system",
    "health": "health",
}
_FIELDS = {"gpu": "gpus"}


def survey(
    name: str,
    machine: Machine,
    seconds: float,
    *,
    simulated: bool = False,
    step: Callable[[str], None] = lambda _: None,
) -> Node:
    """The facts of this node. A probe that is late or raises leaves an Unread and a ProbeRun that says so.

    A probe stuck in the kernel keeps its daemon thread; nobody waits for it.
    """
    begun = time.monotonic()
    running = [_RunningProbe(probe, machine) for probe in PROBES]
    for runner in running:
        runner.thread.start()
    step("probes " + " ".join(PROBES))
    facts: dict[str, Any] = {}
    runs: list[ProbeRun] = []
    for runner in running:
        runner.thread.join(max(0.0, begun + seconds - time.monotonic()))
        outcome, run = runner.outcome(seconds)
        facts[_FIELDS.get(runner.name, runner.name)] = outcome
        runs.append(run)
    return Node(name=name, simulated=simulated, probes=runs, **facts)


class _RunningProbe:
    """One probe in a thread of its own."""

    def __init__(self, name: str, machine: Machine) -> None:
        self.name = name
        self.thread = threading.Thread(target=self._run, args=(machine,), daemon=True, name=f"probe {name}")
        self._found: Any = None
        self._seconds = 0.0

    def _run(self, machine: Machine) -> None:
        begun = time.monotonic()
        try:
            self._found = importlib.import_module(f"ncclcheck.probes.machine.{PROBES[self.name]}").probe(machine)
        except Exception as error:
            self._found = Unread("broken", f"probe {self.name} raised {type(error).__name__}: {error}")
        self._seconds = time.monotonic() - begun

    def outcome(self, limit: float) -> tuple[Any, ProbeRun]:
        """What the probe found, or that it has not answered."""
        result = self._found or Unread("timed_out", f"probe {self.name} gave no answer in {limit:g} s")
        unread = result if isinstance(result, Unread) else None
        return result, ProbeRun(name=self.name, seconds=round(self._seconds, 4), unread=unread)

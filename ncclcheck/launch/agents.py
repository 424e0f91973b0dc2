"""Agents as a launcher sees them: processes that talk on pipes, all on one queue of events."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import ncclcheck
from ncclcheck import wire
from ncclcheck.probes import process


@dataclass(frozen=True)
class Said:
    """One agent said one record."""

    node: int
    record: wire.FromAgent


@dataclass(frozen=True)
class Closed:
    """One agent's channel closed; detail: the last that its process wrote to stderr."""

    node: int
    detail: str


@dataclass(frozen=True)
class Signalled:
    """Our own process was asked to end."""

    number: int


Event = Said | Closed | Signalled
Events = SimpleQueue[Event]


class Agent:
    """One started agent and its channel."""

    def __init__(self, node: int, name: str, argv: Sequence[str], env: Mapping[str, str], events: Events) -> None:
        self.node, self.name = node, name
        self.assembler = wire.Assembler()
        self._errors = bytearray()
        self.child = process.start(argv, env=env, cwd="/", control=True)
        self._stderr = threading.Thread(target=self._keep_errors, daemon=True)
        self._stderr.start()
        threading.Thread(target=self._listen, args=(events,), daemon=True).start()

    def _listen(self, events: Events) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if (record := self.assembler.feed(line)) is not None:
                events.put(Said(self.node, record))
        self._stderr.join(1.0)
        events.put(Closed(self.node, self._errors.decode(errors="backslashreplace").strip()[-2000:]))

    def _keep_errors(self) -> None:
        assert self.child.stderr is not None
        with suppress(OSError, ValueError):
            for line in self.child.stderr:
                self._errors += line
                del self._errors[:-65536]

    def send(self, order: wire.FromLauncher) -> None:
        """Give an order; an agent that is gone is noticed on its channel."""
        assert self.child.stdin is not None
        with suppress(OSError, ValueError):
            self.child.stdin.write(wire.order(order))
            self.child.stdin.flush()

    def close(self, seconds: float) -> None:
        """End of the channel: the agent kills all it started. One that does not leave is killed with its tree."""
        assert self.child.stdin is not None
        with suppress(OSError, ValueError):
            self.child.stdin.close()
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill_tree(self.child.pid)


def agent_argv(node: int, name: str, *more: str) -> list[str]:
    """The command line of an agent on this machine."""
    return [sys.executable, "-m", "ncclcheck.agent", "--node", str(node), "--name", name, *more]


def agent_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of an agent: ours, with this very ncclcheck importable whatever the working directory."""
    paths = [os.path.abspath(path) for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    home = str(Path(ncclcheck.__file__).resolve().parent.parent)
    if home not in {*paths, *site.getsitepackages(), site.getusersitepackages()}:
        paths.insert(0, home)
    return {**env, "PYTHONPATH": os.pathsep.join(paths)} if paths else dict(env)

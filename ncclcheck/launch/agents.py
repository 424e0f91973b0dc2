"""Agents as a launcher sees them: links (a child process, or a connection) that serve one node or many."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, Protocol, runtime_checkable

import ncclcheck
from ncclcheck.base import wire
from ncclcheck.launch.joining.trust import secret
from ncclcheck.launch.remote import doorstep
from ncclcheck.probes.facts import Dialled, Look, StartStep
from ncclcheck.probes.machine import process

_MOST_PRINTED = 1000  # characters of what a launcher printed before its agent began: enough for its error
_MOST_LINE = 65536  # bytes; a record's line has 900, what a login shell prints may have no end
# What doorstep.py writes as an agent begins: the node's name, the step, the process.
_STEP = re.compile(rb"ncclcheck-step (\S{1,255}) (shell|python|imported) (\d{1,9})")
ON_STDERR = b"ncclcheck: its agent's words come on its error output\n"  # once, in place of them
_MOST_STEPS = 6  # there are three; more are somebody else's words
_LAST_S = 1.0  # for a child to end once it has closed its stdout

Via = Literal["", "agent", "ssh", "srun"]


@dataclass(frozen=True)
class AgentRecord:
    """One agent said one record."""

    node: int
    record: wire.FromAgent


@dataclass(frozen=True)
class Closed:
    """The way to one node closed; detail: the last that was said beside the channel (ssh's or srun's words).

    printed: what came on the channel before any record of ours. via: the process that spoke for the node here, and
    its exit status, where that is known. start: how far that of its agent came.
    """

    node: int
    detail: str
    printed: str = ""
    via: Via = ""
    exit: int | None = None
    start: tuple[StartStep, ...] = ()


@dataclass(frozen=True)
class Looked:
    """What a second look at a silent node saw."""

    node: int
    look: Look


@dataclass(frozen=True)
class Signalled:
    """Our own process was asked to end."""

    number: int


Event = AgentRecord | Closed | Looked | Signalled
Events = SimpleQueue[Event]


class Link(Protocol):
    """A way to one node or several. It puts Said and Closed events on the queue it was made with."""

    @property
    def nodes(self) -> Mapping[int, str]:
        """Index and name of every node that it serves."""

    def send(self, node: int | None, order: wire.FromLauncher) -> None:
        """Give an order to one node or to all of them (None); a link that is broken is noticed as Closed."""

    def describe(self, node: int) -> Closed:
        """What is seen from here of the way to a silent node, as if it closed now."""

    def close(self, seconds: float) -> None:
        """End it and all that it started, within so many seconds."""


@runtime_checkable
class LookingLink(Link, Protocol):
    """A link that can look at a silent node by another way than the channel."""

    def look(self, node: int, pid: int | None, seconds: float) -> Look:
        """What is seen of the node and of its agent's process. Waits so long at most."""


@runtime_checkable
class DialledLink(Link, Protocol):
    """A link whose way to a node is a matter of the user's settings."""

    def dialled(self, node: int, *, lost: bool = False) -> Dialled | None:
        """What they are; lost: and what its port answers now. Waits a few seconds at most."""


@runtime_checkable
class LoginLink(Link, Protocol):
    """A link whose way to a node begins with a login."""

    @property
    def login_s(self) -> float:
        """Seconds that sshd has been checking the login; 0 where it answers soon."""


@runtime_checkable
class TiedLink(Link, Protocol):
    """A link that falls for all its nodes together once one of them cannot be started."""

    def go_on_without(self, nodes: Collection[int]) -> bool:
        """Begin anew on the others before that happens; whether they have still to tell their facts again."""


class ProcessLink:
    """A child process that speaks for its nodes on its pipes: an agent, or ssh or srun with agents behind it."""

    via: Via = "agent"

    def __init__(
        self, nodes: Mapping[int, str], argv: Sequence[str], env: Mapping[str, str], events: Events, cwd: str = "/"
    ) -> None:
        self.nodes: Mapping[int, str] = dict(nodes)
        self._printed, self._begun = "", False
        self._asked_at = time.monotonic()
        self._start: dict[str, list[StartStep]] = {}
        self._pids: dict[str, int] = {}
        self._events = events
        self._assemblers = {node: wire.Assembler() for node in nodes}
        self._orders: SimpleQueue[bytes | None] = SimpleQueue()
        self._errors = bytearray()
        self.child = process.start(argv, env=env, cwd=cwd, control=True)
        self._stderr = threading.Thread(target=self._keep_errors, daemon=True)
        self._stderr.start()
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        """Hand on orders; a child that does not read holds up this thread and nobody else."""
        assert self.child.stdin is not None
        with suppress(OSError, ValueError):
            while (order := self._orders.get()) is not None:
                self.child.stdin.write(order)
                self.child.stdin.flush()
        with suppress(OSError, ValueError):
            self.child.stdin.close()

    def _listen(self) -> None:
        assert self.child.stdout is not None
        try:
            with self.child.stdout as stream:
                for line in iter(lambda: stream.readline(_MOST_LINE), b""):
                    node = wire.node_of(line)
                    if node in self._assemblers and (record := self._assemblers[node].feed(line)) is not None:
                        self._begun = True
                        self._events.put(AgentRecord(node, record))
                    elif step := _STEP.fullmatch(line.strip()):
                        self._note(step)
                    elif not self._begun and len(self._printed) < _MOST_PRINTED:
                        self._printed += line.decode(errors="backslashreplace")[:_MOST_PRINTED]
        except wire.TooMuch as error:
            self._errors += f"ncclcheck: it printed {error}".encode()
        finally:
            self._stderr.join(1.0)
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(_LAST_S)
            for node in self.nodes:
                self._events.put(self.closed(node, self.errors))

    def _note(self, step: re.Match[bytes]) -> None:
        """Keep how far the start of an agent came; of a child for one node the name plays no part."""
        names = [*self.nodes.values()]
        name = names[0] if len(names) == 1 else step[1].decode(errors="replace")
        kept = self._start.setdefault(name, [])
        if name in names and len(kept) < _MOST_STEPS:
            at = round(time.monotonic() - self._asked_at, 1)
            kept.append(StartStep(step=step[2].decode(), at_s=at))  # type: ignore[arg-type]
            self._pids[name] = int(step[3])

    def begun_as(self, node: int) -> int | None:
        """The pid over there of an agent that has begun and has said no record; None where none is known."""
        return None if self._begun else self._pids.get(self.nodes[node])

    def _keep_errors(self) -> None:
        assert self.child.stderr is not None
        stray = False
        with suppress(OSError, ValueError), self.child.stderr as stream:
            for line in stream:
                stray = stray or bool(_STEP.fullmatch(line.strip()))
                if stray and (_STEP.fullmatch(line.strip()) or wire.node_of(line) in self._assemblers):
                    line = ON_STDERR if ON_STDERR not in self._errors else b""  # noqa: PLW2901
                self._errors += line
                del self._errors[:-65536]

    @property
    def errors(self) -> str:
        """The last that the process wrote to stderr."""
        return self._errors.decode(errors="backslashreplace").strip()[-2000:]

    def closed(self, node: int, detail: str) -> Closed:
        """The end of the way to a node, with what was seen of the child where it spoke for this node alone."""
        alone = len(self.nodes) == 1
        printed = self._printed.strip() if alone else ""
        start = tuple(self._start.get(self.nodes[node], ()))
        return Closed(node, detail, printed, self.via, self.child.returncode if alone else None, start)

    def send(self, node: int | None, order: wire.FromLauncher) -> None:
        """Give an order on the child's stdin, addressed to one node or to all."""
        self.pass_on(wire.order(node, order))

    def pass_on(self, line: bytes) -> None:
        """Give an order that is in its line already."""
        self._orders.put(line)

    def describe(self, node: int) -> Closed:
        """What the child printed, if anything."""
        return self.closed(node, self.errors)

    def look(self, node: int, pid: int | None, seconds: float) -> Look:
        """The state of the child, which is the agent."""
        del node, pid, seconds
        return Look(came="ran", state=process.state_of(self.child.pid), wchan=process.waiting_in(self.child.pid))

    def close(self, seconds: float) -> None:
        """End of the channel: agents kill all they started. A child that stays is killed with its tree."""
        self._orders.put(None)
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill_tree(self.child.pid)


def agent_argv(python: str, *more: str) -> list[str]:
    """The command line of an agent; without --node and --name it reads them from its job step (agent.py)."""
    return [python, "-c", doorstep.AGENT, *more]


def agent_here(node: int, name: str, events: Events, *more: str) -> ProcessLink:
    """An agent on this machine, a child of ours. It enters our directory by itself."""
    with suppress(OSError):
        more = ("--directory", _here(), *more)
    argv = agent_argv(sys.executable, "--node", str(node), "--name", name, *more)
    env = agent_environment(os.environ)
    env.pop(secret.VARIABLE, None)  # what runs there, the user's own code too, need not know it
    return ProcessLink({node: name}, argv, env, events)


def _here() -> str:
    """Our directory, for another process; one that was deleted can still be entered through us."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return f"/proc/{os.getpid()}/cwd"


def agent_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of an agent: ours, with this very ncclcheck importable whatever the working directory."""
    paths = [os.path.abspath(path) for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    home = str(Path(ncclcheck.__file__).resolve().parent.parent)
    if home not in {*paths, *site.getsitepackages(), site.getusersitepackages()}:
        paths.insert(0, home)
    return {**env, "PYTHONPATH": os.pathsep.join(paths)} if paths else dict(env)

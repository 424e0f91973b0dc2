"""Local: this machine under its own name, or N nodes simulated on it, one agent each."""

from __future__ import annotations

import socket

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.agents import Events, Link, agent_here

_MOST = 64  # nodes that one machine may simulate: each is a process tree with torch; chosen


def names(nodes: int | None) -> tuple[str, ...]:
    """This machine's own name, or sim0, sim1, ... for several. Raises UsageError."""
    count = 1 if nodes is None else nodes
    if not 1 <= count <= _MOST:
        raise UsageError(f"--nodes: {count} is out of range; allowed are 1 to {_MOST} on one machine")
    own = socket.gethostname() or "localhost"
    return (own,) if count == 1 else tuple(f"sim{index}" for index in range(count))


def start(nodes: tuple[str, ...], events: Events, *agent_options: str) -> list[Link]:
    """Start the agents. Raises OSError where not even a process can be started."""
    more = [*agent_options, *(["--simulated"] if len(nodes) > 1 else [])]
    return [agent_here(index, name, events, *more) for index, name in enumerate(nodes)]

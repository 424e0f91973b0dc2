"""Local: this machine under its own name, or N nodes simulated on it, one agent each."""

from __future__ import annotations

import os
import socket

from ncclcheck.launch.agents import Agent, Events, agent_argv, agent_environment


def names(nodes: int) -> list[str]:
    """This machine's own name, or sim0, sim1, ... for several."""
    return [socket.gethostname() or "localhost"] if nodes == 1 else [f"sim{index}" for index in range(nodes)]


def start(nodes: int, probe_seconds: float, events: Events, *options: str) -> list[Agent]:
    """Start the agents. Raises OSError where not even a process can be started."""
    simulated = ["--simulated"] if nodes > 1 else []
    env = agent_environment(os.environ)
    more = ["--probe-seconds", str(probe_seconds), *simulated, *options]
    return [
        Agent(index, name, agent_argv(index, name, *more), env, events) for index, name in enumerate(names(nodes))
    ]

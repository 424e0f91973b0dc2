"""The place where a job's ranks are to find each other, tried before the job: tcp://HOST:PORT or file:///PATH.

Every node opens what it has to open, then every node looks; both have a time limit, and `close` leaves nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from ncclcheck.probes.facts import InitSeen
from ncclcheck.probes.facts.run.init import host_and_port
from ncclcheck.probes.init.file import FileTrial
from ncclcheck.probes.init.tcp import TcpTrial

__all__ = ["FileTrial", "InitTrial", "TcpTrial", "trial"]


class InitTrial(Protocol):
    """One node's trial of an init method."""

    def opened(self) -> InitSeen:
        """What opening gave; asked once, before `looked`."""

    def looked(self, nodes: Collection[str]) -> InitSeen:
        """What this node then sees; nodes: those that take part."""

    def close(self) -> None:
        """Nothing of it is left."""


def trial(url: str, token: str, *, node: str, hosts: bool, seconds: float) -> InitTrial:
    """Begin to try. hosts: rank 0 runs on this node. Raises ValueError for another kind of URL."""
    kind, _, rest = url.partition("://")
    if kind == "tcp":
        host, port = host_and_port(rest)
        return TcpTrial(host, port, token, node=node, hosts=hosts, seconds=seconds)
    if kind == "file":
        return FileTrial(rest, token, node=node, hosts=hosts, seconds=seconds)
    raise ValueError(f"{url!r} is neither tcp:// nor file://")

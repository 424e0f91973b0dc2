"""Where the ranks of a run's jobs find each other: the store's address, or the user's own port or file."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection

from ncclcheck.base import endpoint, wire
from ncclcheck.base.errors import UsageError
from ncclcheck.run.plan.starts import JobStart
from ncclcheck.run.stages import Stages

_INIT_S = 4.0  # s for names, connections and files of the init method; two lost SYNs are sent again meanwhile


class MeetingPlace:
    """One for all jobs of a run. url: of the init method, empty for env:// and until one is chosen."""

    def __init__(self, stages: Stages, begin: JobStart) -> None:
        self._stages, self._begin = stages, begin
        self.url = begin.url
        self._first: int | None = None
        self._used = False
        self._moved = False

    def try_it(self, members: Collection[int]) -> None:
        """Let these nodes try the very port or file, once; a port again where rank 0 has moved to another node.

        Raises Interrupted, and UsageError for a join without a URL.
        """
        if self._begin.init == "env" or not members:
            return
        first, before = min(members), self._first
        if first == before or (self._begin.init == "file" and before is not None):
            return
        self.url, self._first = self._begin.url or self._chosen(first), first
        seconds = min(_INIT_S, self._stages.deadline.left / 4)
        with self._stages.stage("init", f"trying {self.url} on every node"):
            token = secrets.token_hex(16)
            orders = {
                index: wire.InitOrder(url=self.url, token=token, hosts=index == first, seconds=seconds)
                for index in members
            }
            names = self._stages.choice.names
            self._stages.session.init(orders, [names[index] for index in members], seconds)

    def of_next_job(self) -> str:
        """The URL for one job more. Each has a file of its own, for torch never empties one."""
        again, self._used = self._used, True
        return f"{self.url}.{time.time_ns()}" if again and self._begin.init == "file" else self.url

    def store(self, first: int) -> str:
        """HOST:PORT where the first node opens the store: as the user said, or a port that is free there."""
        choice = self._stages.choice
        given = self._stages.options.rdzv_endpoint
        if given and choice.launcher == "local":
            return given
        if choice.lead is not None and first == 0:
            return choice.lead.endpoint()
        host, port = self.addresses()[first], self._free_at(first)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def move(self) -> bool:
        """From now on another port, for that of the next job was taken; False where it is the user's own."""
        choice = self._stages.choice
        if self.url or (self._stages.options.rdzv_endpoint and choice.launcher == "local"):
            return False
        self._moved = True
        return True

    def addresses(self) -> dict[int, str]:
        """The address of each node on the job's network."""
        names = self._stages.choice.names
        if self._stages.choice.launcher == "local":
            return dict.fromkeys(range(len(names)), "127.0.0.1")
        links = self._stages.links()
        return {index: links[index].address if index in links else name for index, name in enumerate(names)}

    def _chosen(self, first: int) -> str:
        """An address of the first node and a port that is free there, or a new file where this command stands."""
        kind = self._begin.init
        if self._stages.choice.launcher == "join":  # whose nodes take a place only from their own command line
            raise UsageError(f"--init {kind}: give --init-method on every node of a join, as the script has it")
        if kind == "file":
            return f"file://{os.getcwd()}/.ncclcheck-{os.getpid()}-{time.time_ns()}"
        return f"tcp://{self.store(first)}"

    def _free_at(self, first: int) -> int:
        """A port that was free on that node when its door was open; its agent probes it again before use."""
        if self._stages.choice.launcher == "local":
            return endpoint.free_port("127.0.0.1")
        doors = {door.node: door for door in self._stages.session.gathered.doors}
        here = first in doors and not self._moved
        return doors[first].tcp_port if here else endpoint.random_port()

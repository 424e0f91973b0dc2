"""One node's torchrun or spawn, as its agent sees it: start it, listen to its ranks, look at them, end it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from ncclcheck.base import wire
from ncclcheck.node import agent_socket
from ncclcheck.node.ranks.proof import Proof
from ncclcheck.node.ranks.slots import Slots
from ncclcheck.node.ranks.worker import WorkerPlan
from ncclcheck.probes.facts import Measurements, RankState, replace
from ncclcheck.probes.job.context import JobPlan
from ncclcheck.probes.machine import process

_NOT_INHERITED = re.compile(
    r"(PET_.*|TORCHELASTIC_.*|MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE"
    r"|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_RANK|ROLE_WORLD_SIZE|NODE_RANK)$"
)
# Of its last words, and of the line that it prints first: `failed (exitcode: -6) local_rank: 0 (pid: 7)`.
_EXIT = re.compile(r"exitcode\s*:\s*(-?\d+)\)?\s*(?:local_rank: \d+ )?\(pid:\s*(\d+)\)")


class Torchrun:
    """A running torchrun. `heard` gets every record of a rank, and the pid of a rank whose line closed."""

    def __init__(self, job: wire.StartJob, node: str, folder: str, heard: agent_socket.Heard) -> None:
        self.job, self.node, self.folder = job, node, folder
        self.ranks: dict[int, RankState] = {}
        self._changed: dict[int, float] = {}
        self._slots = Slots(f"{folder}/slots", job.ranks_per_node, create=True)
        self.scratch = ""
        self._write_plan()
        agent_socket.listen(folder, heard)
        self.child = self._start()

    @property
    def log(self) -> str:
        """Where torchrun and the ranks print."""
        return f"{self.folder}/torchrun.log"

    def _write_plan(self) -> None:
        now = time.monotonic()
        plan = WorkerPlan(
            node=self.node,
            node_index=self.job.place,
            nodes=self.job.nodes,
            ranks_per_node=self.job.ranks_per_node,
            backend=self.job.backend,
            endpoint=self.job.endpoint,
            init_method=self.job.init_method,
            started=now,
            deadline=now + self.job.seconds,
            job=msgspec.json.decode(self.job.plan, type=JobPlan),
        )
        Path(self.folder, "plan.json").write_bytes(msgspec.json.encode(plan))
        if plan.job.training is not None:
            self.scratch = plan.job.training.run_folder

    def _start(self) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not _NOT_INHERITED.match(name)}
        env = {name: value for name, value in env.items() if name not in self.job.unset}
        env.update(self.job.env)
        self._proof = Proof(self.job, self.node, self.folder, env)
        env.update(self._proof.environment)
        env.update({agent_socket.RUN_VARIABLE: self.folder, "TMPDIR": self.folder, "PYTHONUNBUFFERED": "1"})
        if sys.dont_write_bytecode:
            env["PYTHONDONTWRITEBYTECODE"] = "1"
        with open(self.log, "wb") as log:
            return process.start(command(self.job), env=env, cwd=self.folder, out=log, err=subprocess.STDOUT)

    def note(self, record: wire.RankReport | wire.StepNotice) -> None:
        """Keep what a rank said of itself."""
        if isinstance(record, wire.RankReport):
            self.ranks[record.state.rank] = replace(record.state, last_step=self._last_step(record.state.rank))
            self._changed.setdefault(record.state.rank, time.monotonic())
            if record.state.phase == "world":
                self._proof.joined(record.state)
        elif record.rank in self.ranks:
            self.ranks[record.rank] = replace(self.ranks[record.rank], last_step=record.text)
            self._changed[record.rank] = time.monotonic()

    def _last_step(self, rank: int) -> str:
        return self.ranks[rank].last_step if rank in self.ranks else ""

    def looked_at(self) -> list[RankState]:
        """Every rank with its process state and the seconds since it last made progress."""
        self._proof.look([*self.ranks.values()])
        return [self._look(state) for state in self.ranks.values()]

    def _look(self, state: RankState) -> RankState:
        slot = self._slots.read(state.local_rank)
        ticked = max(slot.ticked, self._changed[state.rank])
        since = round(max(0.0, time.monotonic() - ticked), 1)
        letter = process.held_state_of(state.pid) if state.pid is not None else ""
        state = replace(state, ticks=slot.ticks - slot.stepped)
        return replace(state, since_s=since, proc_state="gone" if letter in ("Z", "X") else letter)

    def proof(self) -> Measurements:
        """Measurements of the transport that ranks of this node used; asked at their end."""
        return self._proof.measurements(self.ranks, self.log, died=not self.all_done)

    @property
    def all_done(self) -> bool:
        """Every rank of this node has finished its parts."""
        return len(self.ranks) == self.job.ranks_per_node and all(s.phase == "done" for s in self.ranks.values())

    def exits(self) -> dict[int, int]:
        """Exit statuses by pid, as far as torchrun has reported them in its log."""
        return {int(pid): int(status) for status, pid in _EXIT.findall(process.tail(self.log, 65536))}


def command(job: wire.StartJob, python: str = sys.executable) -> list[str]:
    """The command line. torchrun gets no short options: they would be taken for prefixes of its own."""
    if job.start == "spawn":
        return [python, "-m", "ncclcheck.node.ranks.spawn"]
    conf = {
        "is_host": str(job.is_host).lower(),
        "join_timeout": max(10, int(job.seconds)),
        "timeout": int(job.seconds),
    }
    return [
        *(python, "-m", "torch.distributed.run"),
        *("--nnodes", str(job.nodes), "--nproc-per-node", str(job.ranks_per_node)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", job.endpoint, "--rdzv-id", job.run_id),
        *("--rdzv-conf", ",".join(f"{key}={value}" for key, value in conf.items())),
        *("--local-addr", job.local_addr, "--max-restarts", "0", "--monitor-interval", "0.2"),
        *("-m", "ncclcheck.node.ranks.worker"),
    ]

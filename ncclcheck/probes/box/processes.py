"""The processes of one job, found by descent or by the box in their environment; how each of them ended."""

from __future__ import annotations

import json
import os
import re
import select
from contextlib import suppress
from dataclasses import dataclass, field

from ncclcheck.probes.live.machine.proc import Proc, fields, number

VARIABLE = "NCCLCHECK_BOX"
_MOST = 4096  # processes of one job on one node
_MOST_WATCHED = 900  # by a descriptor each; the usual limit is 1024
_SETTLED_S = 3.0  # a process becomes what it is to be (exec) soon after it begins; a shell may wait before that
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "FLUX_TASK_RANK", "PMI_RANK", "SLURM_PROCID")
_LAUNCHER = re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed")  # srun gives it a rank, as any task
_SHELL = re.compile(r"^(ba|da|z|k)?sh$|^(srun|env|time|timeout|numactl|nice|taskset|tee|sleep|cat)$")
_PYTHON = re.compile(r"python|torchrun")
_WAITS = re.compile(r"futex|poll|^0?$")  # kernel functions in which a rank waits for its peers, or for its threads
_TOLD = 4096  # bytes of what it tells
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Process:
    """One process. start: its start time in ticks since boot, which tells it from a later one of the same pid.

    rank: of its environment, -1 for none. status: as waitpid(2) has it, None where it could not be seen.
    cpu: ticks; moved: bytes read and written, wrote: written; apart: its main thread neither waited for another
    one nor at a poll.
    meets: MASTER_ADDR:MASTER_PORT. injected: Python's `site` ran there with what the box put into its path.
    named: it has told its rank itself.
    """

    pid: int
    start: str
    parent: int
    born: float
    name: str = ""
    command: str = ""
    rank: int = -1
    local_rank: int = -1
    world: int = 0
    meets: str = ""
    state: str = ""
    cpu: int = 0
    rss: int = 0
    rss_most: int = 0
    moved: int = 0
    wrote: int = 0
    apart: bool = False
    injected: bool = False
    status: int | None = None
    watched: int = -1
    named: bool = False
    identity: tuple[object, ...] = field(default=(), repr=False)

    @property
    def shell(self) -> bool:
        """Whether it only starts others."""
        return _SHELL.search(self.name) is not None


class Processes:
    """All that belong to the job of a box."""

    def __init__(self, box: str, root: int, proc: Proc) -> None:
        self.box, self.root, self._proc = box, root, proc
        self.alive: dict[int, Process] = {}
        self._others: dict[
            int, str
        ] = {}  # pid -> start, of processes that are none of the job's, or none any more
        self._poll = select.poll()
        self._by_file: dict[int, Process] = {}

    def find(self, now: float) -> list[Process]:
        """Look for new ones; those that began or changed what they are."""
        own = {os.getpid(), os.getppid()}
        changed: list[Process] = self._become_ranks()
        pids = sorted(int(name) for name in self._proc.names() if name.isdigit())
        for gone in self._others.keys() - set(pids):
            del self._others[gone]
        for pid in pids:
            known = self.alive.get(pid)
            if known is not None and not known.shell and now - known.born > _SETTLED_S:
                continue
            if known is None and (pid in own or pid in self._others or len(self.alive) >= _MOST):
                continue
            stat = fields(self._proc.text(str(pid), "stat"))
            if known is None:
                if not self._belongs(pid, stat):
                    self._others[pid] = stat[19]
                    continue
                known = self.alive[pid] = Process(pid, stat[19], number(stat[1]), now)
                self._watch(known)
            self._learn(known)
            above = self.alive.get(known.parent)
            if known.rank < 0 and not known.shell and above is not None and above.named:
                known.rank = above.rank  # as those have it in their environment that a launcher's rank starts
            identity = (known.name, known.command, known.rank, known.world)
            if known.identity != identity and known.command:
                known.identity = identity
                changed.append(known)
        return changed

    def _become_ranks(self) -> list[Process]:
        """Those whose Python has told which rank it became: their environment is that of their start."""
        ranks: list[Process] = []
        for process in self.alive.values():
            if process.rank >= 0 or not _PYTHON.search(process.command):
                continue
            with suppress(OSError, ValueError, KeyError, TypeError):
                with open(os.path.join(self.box, "said", f"{process.pid}.rank.jsonl"), "rb") as file:
                    words = dict(json.loads(file.read(_TOLD)))
                process.rank, process.world = int(words["rank"]), int(words["world"])
                process.named = True
                process.identity = (process.name, process.command, process.rank, process.world)
                ranks.append(process)
        return ranks

    def _belongs(self, pid: int, stat: list[str]) -> bool:
        if pid == self.root or number(stat[1]) in self.alive:
            return True
        return f"{VARIABLE}={self.box}\0" in self._proc.text(str(pid), "environ")

    def _learn(self, process: Process) -> None:
        pid = str(process.pid)
        command = self._proc.text(pid, "cmdline").split("\0")
        if not command[0]:
            return
        env = dict(line.partition("=")[::2] for line in self._proc.text(pid, "environ").split("\0"))
        process.name, process.command = self._proc.text(pid, "comm").strip(), program(command)
        if process.named:
            return
        launches = not env.get("RANK", "").isdigit() and _LAUNCHER.search(process.command)
        process.rank = (
            -1
            if launches or process.shell
            else next((int(env[name]) for name in _RANK if env.get(name, "").isdigit()), -1)
        )
        process.local_rank = int(env["LOCAL_RANK"]) if env.get("LOCAL_RANK", "").isdigit() else -1
        process.world = int(env["WORLD_SIZE"]) if env.get("WORLD_SIZE", "").isdigit() else 0
        place = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
        process.meets = ":".join(place)[:300] if all(place) and process.rank >= 0 else ""

    def _watch(self, process: Process) -> None:
        """The kernel wakes us when it ends."""
        if len(self._by_file) >= _MOST_WATCHED or not hasattr(os, "pidfd_open"):
            return
        with suppress(OSError):
            process.watched = os.pidfd_open(process.pid)
            self._by_file[process.watched] = process
            self._poll.register(process.watched, select.POLLIN)

    def wait(self, seconds: float) -> list[Process]:
        """Those that ended within so many seconds; back at once when one does."""
        ready = [file for file, _ in self._poll.poll(max(0.0, seconds) * 1000)]
        ended = [self._by_file[file] for file in ready if file in self._by_file]
        for process in ended:
            self._bury(process)
        return ended

    def wake_on(self, file: int) -> None:
        """`wait` comes back when this can be read, too."""
        self._poll.register(file, select.POLLIN)

    def _bury(self, process: Process) -> None:
        """While its parent has not waited for it the kernel tells how it ended."""
        stat = fields(self._proc.text(str(process.pid), "stat"))
        if stat[0] == "Z" and stat[19] == process.start:
            process.status = number(stat[49])
        process.state = "gone"
        self.alive.pop(process.pid, None)
        self._others[process.pid] = process.start  # its parent may not wait for it for long
        if process.watched >= 0:
            self._poll.unregister(process.watched)
            del self._by_file[process.watched]
            os.close(process.watched)
            process.watched = -1

    def measure(self) -> list[Process]:
        """CPU, memory and I/O of each; those that are gone without a word of the kernel's."""
        gone: list[Process] = []
        for process in [*self.alive.values()]:
            stat = fields(self._proc.text(str(process.pid), "stat"))
            if stat[19] != process.start or stat[0] in ("Z", "X"):
                if process.watched < 0:
                    self._bury(process)
                    gone.append(process)
                continue
            io = dict(line.partition(":")[::2] for line in self._proc.text(str(process.pid), "io").splitlines())
            process.state, process.parent = stat[0], number(stat[1])
            process.cpu = number(stat[11]) + number(stat[12])
            process.rss = number(stat[21]) * _PAGE
            process.rss_most = max(process.rss_most, process.rss)
            process.wrote = number(io.get("wchar"))
            process.moved = number(io.get("rchar")) + process.wrote
            process.injected = process.injected or os.path.exists(
                os.path.join(self.box, "fault", f"{process.pid}.txt")
            )
            if process.rank >= 0:
                process.apart = process.state in "RD" or not _WAITS.search(
                    self._proc.text(str(process.pid), "wchan")
                )
        return gone

    def working(self) -> list[Process]:
        """Those whose life is a sign of the job's: where there are ranks, not what a script does beside them.

        One that waits in a loop, `until test -e FILE; do sleep 1; done`, starts a process a second.
        """
        alive = [*self.alive.values()]
        if not any(process.rank >= 0 for process in alive):
            return alive
        return [process for process in alive if process.rank >= 0 or _PYTHON.search(process.command)]

    def helper(self, process: Process) -> bool:
        """Whether it works for a rank above it, such as a worker of a loader, or a program behind a shell."""
        above = self.alive.get(process.parent)
        while above is not None and above.shell and above.pid != self.root:
            above = self.alive.get(above.parent)
        return above is not None and above.rank == process.rank and not above.shell and above.pid != self.root


def program(argv: list[str]) -> str:
    """What it runs, without what it was given: that may hold a secret."""
    for at, word in enumerate(argv[1:5], 1):
        if word == "-c":
            return f"{argv[0]} -c {'multiprocessing' if 'multiprocessing' in argv[at + 1] else '...'}"[:300]
        if word == "-m":
            return " ".join([argv[0], *argv[at : at + 2]])[:300]
        if word and not word.startswith("-"):
            return f"{argv[0]} {word if '=' not in word else '...'}"[:300]
    return argv[0][:300]

"""The watcher of a box: a process of its own beside the job of one node, `BOX ROOT ON_STALL SECONDS`.

It looks once a second, writes what it sees at once, and outlives whatever dies: the wrapper, the launcher, the
ranks. It ends when no process of the job is left, or when its standard input says `end`. Standard library only, to
be small.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from ncclcheck.probes.box import bounds, kernel, limits
from ncclcheck.probes.box.gpus import GpuWatch
from ncclcheck.probes.box.journal import EVENTS, SAMPLES, Journal
from ncclcheck.probes.box.mapped import MappedFiles
from ncclcheck.probes.box.processes import Process, Processes
from ncclcheck.probes.box.read import folders
from ncclcheck.probes.box.stacks import Stacks
from ncclcheck.probes.live.machine import connections, wires
from ncclcheck.probes.live.machine.proc import Proc

_TICK_S = 1.0  # between two looks: chosen, what happens within a second is ordered by the ranks' own times
_QUICK_S, _QUICK_FOR_S = 0.2, 30.0  # at first it looks more often: a rank may die within its first second
_SELDOM = 5  # ticks between looks at the network and at disks
_LOOK_S = 6.0  # between the two looks of a stall: as `ncclcheck hang`
# for what `ncclcheck hang` sees of the job: two looks _LOOK_S apart, and questions with limits of their own
_LOOK_LIMIT_S = 60.0
# Signs of life, for a tick. A rank that waits in gloo has 0.02 of a core; beats of a store are below 8 KiB.
_CPU = 0.1
_MOVED = 8192  # bytes, see above
# Looks in a row at which one process could run and had no core: it is starved, not stalled. On 2 cores at a load
# of 30 torchrun was runnable for the 30 s that it took to end; one that polls is seen so now and then. Chosen.
_RUNNABLE = 3
_GAPS = 3.0  # times the longest silence so far; a checkpoint or an evaluation may be as long again
_KILL_S = 10.0  # between SIGTERM and SIGKILL of --on-stall kill: as Kubernetes' and Slurm's default is 30, a third
# without a process of the job, then it is over: chosen, launchers start the next attempt sooner
_ENOUGH_GONE_S = 2.0
_SETTLE_S = 1.0  # chosen: ranks of a launcher that is gone get SIGTERM or SIGPIPE
_MOST_CGROUPS = 64  # of ranks, whose memory events are read: chosen, a node has one or one a rank
_MOST_FILES = 64  # descriptors of a rank that are looked at for files it writes
_MOST_DISKS = 16  # whose room is watched: chosen, ranks write to a few
_MOST_LIMITS = 64  # ranks that are looked at while one fails, and words of them: chosen, 0.1 ms each
_MOST_XIDS = 64  # that are kept of the kernel log: chosen, the first ones tell the cause
_CLOCK_EVERY = 60  # ticks
# Times that one piece of data was sent again without an answer: the second is due 0.6 s after it was sent on a
# network of a millisecond, and a loss in passing is answered before.
_AGAIN = 2
_MOST_PEERS = 64  # addresses to which data waits: chosen, bounds a line of the journal
_DEAR_S = 0.02  # of looking at all connections: it is then done seldom
# Failures of ranks at which the others are asked where they are, and between two of them: chosen. Programs that a
# rank starts and that fail are such a one too, and what a first failure brings down follows within seconds.
_MOST_ASKED, _TOGETHER_S = 8, 5.0
_FOR_OTHERS_S = 12.0  # --on-stall kill: until the other nodes of the box have seen the stall too


class Watcher:
    """All that is known while the job runs."""

    def __init__(self, box: str, root: int, on_stall: str, stall_s: float) -> None:
        self.box, self.on_stall, self.stall_s = box, on_stall, stall_s
        self.proc = Proc()
        self.events = Journal(os.path.join(box, "events"), EVENTS)
        self.samples = Journal(os.path.join(box, "samples"), SAMPLES, turns=True)
        self.jobs = Processes(box, root, self.proc)
        self.messages = kernel.Messages()
        self.folders = kernel.cgroups_of(root)
        self.ooms = kernel.oom_kills(self.folders)
        self.wires = wires.counters(self.proc, str(root))
        self.stacks = Stacks(box, int(os.environ.get("NCCLCHECK_BOX_SIGNAL", "0")), self.proc)
        self.mapped = MappedFiles(self.proc)
        self.disks: dict[str, int] = {}
        self.written: dict[int, str] = {}  # device -> a folder on it in which ranks have written
        self.gpus = GpuWatch()
        self.cards: list[Any] = []
        self.known_pids: list[Any] = []
        self.unanswered: dict[str, int] = {}
        self.unsent, self.dear = 0, False
        self.xids = 0
        self.used_up: list[str] = []
        self.life = Life()
        self.asked, self.asked_at = 0, 0.0
        self.jobs.wake_on(0)
        self.alarm = -1
        with suppress(OSError):  # a file system without named pipes: the first end of a process is the sign
            path = os.path.join(box, "alarm")
            os.mkfifo(path, 0o600)
            self.alarm = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            self.jobs.wake_on(self.alarm)

    def note(self, what: str, **fields: Any) -> None:
        """One event, at once."""
        self.events.add({"t": round(time.time(), 3), "what": what, **fields})

    def run(self) -> None:
        """Until the job is gone or the wrapper says so."""
        self.note(
            "begin", kmsg=self.messages.readable, oom=sorted(self.ooms), pidfd=hasattr(os, "pidfd_open"),
            addresses=wires.addresses(self.proc, str(self.jobs.root)))  # fmt: skip
        begun = next_ = time.monotonic()
        alone_since, ticks = 0.0, 0
        while True:
            now = time.monotonic()
            if now >= next_:
                self.tick(ticks)
                ticks += 1
                next_ = now + (_QUICK_S if now - begun < _QUICK_FOR_S else _TICK_S)
            for process in self.jobs.wait(next_ - time.monotonic()):
                self.ended(process)
            self.alarmed()
            alone_since = 0.0 if self.jobs.alive else alone_since or time.monotonic()
            if self.told_to_end():
                self.settle()
                break
            if alone_since and time.monotonic() - alone_since > _ENOUGH_GONE_S:
                break
        self.tick(0)
        self.note("end", left=len(self.jobs.alive))
        self.gpus.end()

    def settle(self) -> None:
        """The launcher is gone: its ranks end a little later, if they do."""
        until = time.monotonic() + _SETTLE_S
        while self.jobs.alive and (left := until - time.monotonic()) > 0:
            for process in self.jobs.wait(left):
                self.ended(process)

    def told_to_end(self) -> bool:
        """Whether the wrapper says that the job is over; its death says nothing."""
        if not select.select([0], [], [], 0)[0]:
            return False
        if order := os.read(0, 64):
            return b"end" in order
        self.note("wrapper-gone")
        silent, _ = os.pipe()
        os.dup2(silent, 0)  # never readable again
        return False

    def tick(self, count: int) -> None:
        """One look at everything."""
        now = time.time()
        for begun in self.jobs.find(now):
            if begun.rank >= 0 and len(self.folders) < _MOST_CGROUPS:
                self.folders += [path for path in kernel.cgroups_of(begun.pid) if path not in self.folders]
            self.note(
                "process", pid=begun.pid, parent=begun.parent, rank=begun.rank, local_rank=begun.local_rank,
                world=begun.world, meets=begun.meets, helper=self.jobs.helper(begun), name=begun.name,
                command=begun.command,
                root=begun.pid == self.jobs.root, named=begun.named,
            )  # fmt: skip
        for ended in self.jobs.measure():
            self.ended(ended)
        self.memory()
        for text in self.messages.new():
            self.note("kernel", text=text)
        self.cards_said()
        if count % _SELDOM == 0 or not self.dear:
            self.peers()
        if count % _CLOCK_EVERY == 0:
            threading.Thread(target=self.clock, daemon=True).start()
        if count % _SELDOM == 0:
            self.network()
            self.mapped.look(self.jobs.alive.values())
            bounds.keep(self.box)
            threading.Thread(target=self.storage, daemon=True).start()  # a dead mount holds up nobody else
        rows = [
            [
                *(process.pid, process.cpu, process.rss >> 10, process.moved, process.state),
                *(int(process.apart), process.wrote),
            ]
            for process in self.jobs.alive.values()
        ]
        sample = {"t": round(now, 2), "p": rows, "free": self.disks, "node": kernel.node(), "unsent": self.unsent}
        sample |= {"net": wires.traffic(self.proc, "self"), "held": kernel.throttled(self.folders)}
        self.samples.add(sample | ({"gpus": self.cards} if self.cards else {}))
        self.stalled()

    def output(self) -> int:
        """A number that changes with whatever the job prints."""
        changed = 0
        for name in ("output.log", "output.0.log", "output.1.log"):
            with suppress(OSError):
                stats = os.stat(os.path.join(self.box, name))
                changed += stats.st_size + stats.st_mtime_ns
        return changed

    def memory(self) -> None:
        """The kernel's own count of those that it killed."""
        counted = kernel.oom_kills(self.folders)
        if grown := {at: n - self.ooms.get(at, 0) for at, n in counted.items() if n > self.ooms.get(at, 0)}:
            used = kernel.memory_of(self.folders)
            self.note("oom", by=grown, limit=used[1] if used else None)
        self.ooms = counted

    def network(self) -> None:
        """Counters of errors that grew."""
        counted = wires.counters(self.proc, "self")
        for wire in wires.between(self.wires, counted):
            if wire["trouble"]:
                self.note("network", name=wire["name"], trouble=wire["trouble"])
        self.wires = counted

    def cards_said(self) -> None:
        """What NVML says of GPUs, and Xids as they come."""
        for cards in self.gpus.new():
            self.cards = cards["gpus"]
            if cards["pids"] != self.known_pids:
                self.known_pids = cards["pids"]
                self.note("gpus", pids=cards["pids"])
            for gpu, code in cards["xids"]:
                self.xids += 1
                if self.xids <= _MOST_XIDS:
                    self.note("xid", gpu=gpu, code=code)

    def peers(self) -> None:
        """Who does not answer what was sent to it, and how much waits to be sent."""
        begun = time.monotonic()
        peers: dict[str, int] = {}
        self.unsent = 0
        for connection in connections.diagnosed().values():
            family, _, target = connection["ends"]
            peer = connections.address(family, target, 0).rpartition(":")[0].strip("[]")
            if not peer.startswith("127.") and peer != "::1":
                self.unsent += connection["unsent"]
                if connection["retries"] >= _AGAIN and (peer in peers or len(peers) < _MOST_PEERS):
                    peers[peer] = peers.get(peer, 0) + 1
        if peers.keys() != self.unanswered.keys():
            self.note("unanswered", by=peers)
        self.unanswered = peers
        self.dear = time.monotonic() - begun > _DEAR_S

    def clock(self) -> None:
        """What the clock of the box's file system says, beside ours: nodes that share it can be compared."""
        offset = folders.clock_of(self.box)
        if offset is not None:
            self.note("clock", offset=offset)

    def storage(self) -> None:
        """Room where ranks have files open for writing."""
        for process in [
            alive for alive in [*self.jobs.alive.values()] if alive.rank >= 0 or alive.pid == self.jobs.root
        ]:
            pid = str(process.pid)
            for name in self.proc.names(pid, "fd")[:_MOST_FILES]:
                path = self.proc.link(pid, "fd", name)
                flags = self.proc.text(pid, "fdinfo", name).partition("flags:")[2].split()
                if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/", self.box)) and flags:
                    with suppress(OSError, ValueError):
                        if int(flags[0], 8) & (os.O_WRONLY | os.O_RDWR):
                            folder = os.path.dirname(path)
                            device = os.stat(folder).st_dev
                            if device in self.written or len(self.written) < _MOST_DISKS:
                                self.written[device] = folder  # a checkpoint is open for moments only
        free: dict[str, int] = {}
        for folder in [*self.written.values()]:
            with suppress(OSError):
                room = os.statvfs(folder)
                free[folder] = room.f_bavail * room.f_frsize
        self.disks = free

    def ended(self, process: Process) -> None:
        """A process of the job is gone; at the first failure the others say where they are."""
        self.memory()
        self.note(
            "gone",
            pid=process.pid,
            rank=process.rank,
            status=process.status,
            rss=process.rss,
            rss_most=process.rss_most,
            name=process.name,
            injected=process.injected,
        )
        if (process.status or 0) & 0x7F == signal.SIGBUS and (text := self.mapped.cut(process.pid)):
            self.note("mapped", pid=process.pid, text=text)
        if process.status not in (None, 0) and (process.rank >= 0 or process.pid == self.jobs.root):
            self.ask("a process failed")

    def alarmed(self) -> None:
        """A rank says that it is about to end, before its launcher can end the others."""
        with suppress(OSError):
            if self.alarm >= 0 and os.read(self.alarm, 4096):
                self.ask("a rank fails")
                self.limits()

    def limits(self) -> None:
        """What a rank has used up while it fails; of few, for they all say much the same."""
        self.jobs.find(time.time())
        for process in [process for process in self.jobs.alive.values() if process.rank >= 0][:_MOST_LIMITS]:
            for text in limits.used_up(self.proc, process, self.jobs.alive.values()):
                if text not in self.used_up and len(self.used_up) < _MOST_LIMITS:
                    self.used_up.append(text)
                    self.note("limit", pid=process.pid, text=text)

    def ask(self, why: str) -> None:
        """Where all are; once for what fails together."""
        now = time.monotonic()
        if self.asked >= _MOST_ASKED or (self.asked and now - self.asked_at < _TOGETHER_S):
            return
        self.asked, self.asked_at = self.asked + 1, now
        self.peers()
        # Before they are asked: the signal takes a process out of the call in which it waits.
        for process in [process for process in self.jobs.alive.values() if process.rank >= 0][:_MOST_LIMITS]:
            if "wait_for_partner" in self.wchan(process):  # in open(2), until another process opens it too
                self.note("pipe", pid=process.pid, file=self.opens(process))
        self.note("stacks", why=why, pids=self.stacks.ask(self.jobs.alive))

    def opens(self, process: Process) -> str:
        """The file that its main thread opens; empty where that may not be seen."""
        from ncclcheck.probes.live import look  # noqa: PLC0415 - most jobs do not fail

        pid = str(process.pid)
        return look.file_of(self.proc, pid, self.proc.text(pid, "task", pid, "syscall").split())[:300]

    def stalled(self) -> None:
        """No sign of life for long: look once, keep it, and do what --on-stall says."""
        silenced = self.life.reported
        silent = self.life.silent(self.jobs.working(), self.output())
        if silenced and not self.life.reported:
            self.note("resumed")
        limit = max(self.stall_s, _GAPS * self.life.longest)
        if silent <= limit or self.life.reported or not self.jobs.alive:
            return
        self.life.reported = True
        # Before the look, which takes seconds: a timeout of the job's own may end it meanwhile.
        states = [
            [process.pid, process.rank, process.state, self.wchan(process)] for process in self.jobs.alive.values()
        ][:256]
        self.note("stacks", why="no sign of life", pids=self.stacks.ask(self.jobs.alive, wait=True))
        self.stacks.ask_workers(self.jobs.alive)
        stacks = self.stacks.written(self.jobs.alive)[:256]
        looked = self.look()
        if looked is not None and alive(looked):
            self.life.begin_anew()
            return
        self.note(
            "stall", silent=round(silent, 1), limit=round(limit, 1), states=states, stacks=stacks,
            action=self.on_stall,
        )  # fmt: skip
        print(json.dumps({"stall": round(silent, 1)}), flush=True)
        if self.on_stall == "dump":
            self.dump()
        elif self.on_stall == "kill":
            folders.wait_for_stalls(self.box, _FOR_OTHERS_S)
            self.kill()

    def wchan(self, process: Process) -> str:
        """The kernel function in which its main thread waits."""
        return self.proc.text(str(process.pid), "wchan").strip("0\n")

    def look(self) -> dict[str, Any] | None:
        """What `ncclcheck hang` sees of this job alone; None where it could not look."""
        from ncclcheck.probes.live import stream  # noqa: PLC0415 - most jobs do not stall

        argv = [sys.executable, "-", *stream.arguments(_LOOK_S)]
        try:
            done = subprocess.run(
                argv, input=stream.program(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=_LOOK_LIMIT_S, check=False,
            )  # fmt: skip
            looked: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return None
        looked["processes"] = [process for process in looked["processes"] if process["pid"] in self.jobs.alive]
        while looked.get("records") and sum(len(record["data"]) for record in looked["records"]) > bounds.LOOK:
            looked["records"].remove(max(looked["records"], key=lambda record: len(record["data"])))
        with suppress(OSError):
            path = os.path.join(self.box, "look.json")
            with open(
                path, "x", encoding="ascii", opener=lambda p, f: os.open(p, f | os.O_NOFOLLOW, 0o600)
            ) as file:
                json.dump(looked, file)
        return looked

    def dump(self) -> None:
        """Ask each rank for its Flight Recorder by the pipe that torch made for it."""
        for name in os.listdir(self.box):
            if name.startswith("pipe_"):
                with suppress(OSError):
                    file = os.open(os.path.join(self.box, name), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
                    os.write(file, b"1")
                    os.close(file)

    def kill(self) -> None:
        """SIGTERM, then SIGKILL, to all processes of the job here."""
        self.note("killed", pids=sorted(self.jobs.alive))
        print(json.dumps({"killed": True}), flush=True)
        for number, seconds in ((signal.SIGTERM, _KILL_S), (signal.SIGKILL, 2.0)):
            for pid in [*self.jobs.alive]:
                with suppress(OSError):
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)
            until = time.monotonic() + seconds
            while self.jobs.alive and time.monotonic() < until:
                for process in self.jobs.wait(0.2):
                    self.ended(process)


class Life:
    """When the job last showed that it advances, and the longest it ever did not."""

    def __init__(self) -> None:
        self.begin_anew()
        self.longest = 0.0

    def begin_anew(self) -> None:
        """It lives."""
        self.last, self.reported = time.monotonic(), False
        self._cpu: dict[int, int] = {}
        self._moved: dict[int, int] = {}
        self._runnable: dict[int, int] = {}
        self._printed, self._looked = -1, self.last

    def silent(self, alive: list[Process], printed: int) -> float:
        """Seconds without output, I/O or CPU time of any process, and without one that only lacks a core."""
        now = time.monotonic()
        passed, self._looked = max(now - self._looked, 1e-3), now
        cpu, moved = (
            {process.pid: process.cpu for process in alive},
            {process.pid: process.moved for process in alive},
        )
        used = max((count - self._cpu.get(pid, 0) for pid, count in cpu.items()), default=0)
        busy = used / os.sysconf("SC_CLK_TCK") / passed > _CPU
        io = any(count - self._moved.get(pid, 0) > _MOVED * passed for pid, count in moved.items())
        self._runnable = {
            process.pid: self._runnable.get(process.pid, 0) + 1 for process in alive if process.state == "R"
        }
        starved = max(self._runnable.values(), default=0) >= _RUNNABLE
        if busy or io or starved or printed != self._printed or cpu.keys() - self._cpu.keys():
            self.longest = max(self.longest, now - self.last) if not self.reported else self.longest
            self.last, self.reported = now, False
        self._cpu, self._moved, self._printed = cpu, moved, printed
        return now - self.last


def alive(looked: dict[str, Any]) -> bool:
    """Whether two looks show ranks that move data or work."""
    return any(
        (process.get("moved") or 0) > _MOVED or process["read"] + process["written"] > 2**20 * looked["seconds"]
        for process in looked["processes"]
    )


def main(argv: list[str]) -> None:
    """BOX ROOT ON_STALL SECONDS."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # what ends the job does not end its witness
    Watcher(argv[0], int(argv[1]), argv[2], float(argv[3])).run()


if __name__ == "__main__":
    main(sys.argv[1:])

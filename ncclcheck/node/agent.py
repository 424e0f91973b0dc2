"""What a launcher starts on every node, once for all stages: facts first, then that node's torchrun.

stdout is the channel to the launcher, stdin the channel back: at its end we kill everything we started and
leave. Whatever else prints to stdout goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, BinaryIO

import ncclcheck
from ncclcheck.base import endpoint, wire
from ncclcheck.base.errors import UsageError
from ncclcheck.launch.hosts import nodelist
from ncclcheck.node import rundir
from ncclcheck.node.channel import Channel, Lease
from ncclcheck.node.examination import Examination
from ncclcheck.node.ranks.running import RunningChild, explain_end
from ncclcheck.node.ranks.store_files import StoreFiles
from ncclcheck.node.ranks.torchrun import Torchrun
from ncclcheck.probes.facts import JobEnd, Leftover, Measurements, Node, NoDoor, RankState, replace
from ncclcheck.probes.facts.run.course import STOPPED
from ncclcheck.probes.job.usage import resources
from ncclcheck.probes.machine import process
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import tasks
from ncclcheck.probes.machine.survey import survey

if TYPE_CHECKING:
    from ncclcheck.probes import init
    from ncclcheck.probes.reach import Listener, MarkFile

_TICK_S = 0.1  # between two looks for orders of the launcher: chosen, a halt is heard at once as people see it
_LOOK_EVERY_S = 0.5  # between two looks at ranks that make no progress: chosen
_DRAIN_S = 1.0  # chosen: what ranks sent before they ended lies in a local socket
_MAY_LINGER_S = 3.0  # torchrun after its last rank is done: chosen, then it is ended


class Agent:
    """The agent of one node: reads its facts, then runs what the launcher orders, one thing at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.channel = Channel(options.node)
        self.events: SimpleQueue[wire.FromLauncher | wire.FromAgent | int] = SimpleQueue()
        self.folder = self.scratch = ""
        self.listener: Listener | None = None
        self.mark: MarkFile | None = None
        self.trial: init.InitTrial | None = None
        self.store_files = StoreFiles()
        self.resources: resources.ResourceWatch | None = None
        self.lease = Lease(lambda: self.leave("the launcher has been silent for too long"))

    def run(self) -> None:
        """Read the facts, send them, and follow orders until the launcher says stop or is gone."""
        self.lease.begin()
        threading.Thread(target=self._obey, args=(sys.stdin.buffer,), daemon=True).start()
        self.channel.say(_hello(self.options))
        with suppress(OSError):
            os.chdir(self.options.directory)
        self.channel.say(wire.Facts(node=self._survey()))
        while not isinstance(order := self.events.get(), wire.Stop):
            if isinstance(order, wire.Listen):
                self._open_door(order)
            elif isinstance(order, wire.ReachPeers):
                self._reach(order)
            elif isinstance(order, wire.KnockOrder):
                self._knock(order)
            elif isinstance(order, wire.InitOrder):
                self._try_init(order)
            elif isinstance(order, wire.InitLook):
                self._look_at_init(order)
            elif isinstance(order, wire.StartJob):
                self._job(order)
            elif isinstance(order, wire.Examine):
                self._examine(order)
        self.leave("stopped")

    def _obey(self, orders: BinaryIO) -> None:
        """Orders become events; the end of the channel ends everything, whatever the main thread does."""
        reason = "its thread that reads orders died"
        try:
            for line in orders:
                with suppress(wire.NoRecord):
                    if isinstance(order := wire.read_order(line, self.options.node), wire.Alive):
                        self.lease.renew()
                    elif order is not None:
                        self.events.put(order)
            reason = "the launcher is gone"
        finally:
            self.leave(reason)

    def leave(self, reason: str) -> None:
        """Kill everything we started, and end at once without waiting for threads."""
        for probe in (self.mark, self.trial):
            if probe is not None:
                probe.close()
        process.kill_tree()
        process.reap_all()
        if self.folder:
            rundir.remove(self.folder)
        if self.scratch:
            rundir.remove_scratch(self.scratch)
        self.store_files.remove()
        self.channel.say(wire.Bye(reason=reason))
        os._exit(0)

    def _survey(self) -> Node:
        o = self.options
        machine = Machine(o.sysroot or o.host_root or "/", recorded=bool(o.sysroot))
        return survey(o.name, machine, o.probe_seconds, simulated=o.simulated, step=self._step)

    def _open_door(self, order: wire.Listen) -> None:
        """Let the others try to reach us, and see whether they find our file in their working directory."""
        from ncclcheck.probes.reach import Listener, MarkFile  # noqa: PLC0415 - one node alone needs none of it

        self._close_door()
        self.mark = MarkFile()
        self.listener = Listener(order.address, node=self.options.node, name=self.options.name)
        door = self.listener.door
        if isinstance(door, NoDoor):
            self.channel.say(wire.Listening(door=None, problem=door))
        else:
            self.channel.say(wire.Listening(door=replace(door, file=self.mark.file())))

    def _reach(self, order: wire.ReachPeers) -> None:
        """Try to reach the others; our door is closed before anything else runs."""
        from ncclcheck.probes.reach import measure  # noqa: PLC0415

        if self.mark and self.listener and not isinstance(door := self.listener.door, NoDoor):
            self._step(f"reach {len(order.doors) - 1} peers")
            self.mark.look(door, order.doors)
            reach = measure(door, order.doors, order.names, order.seconds, order.gloo)
            self.channel.say(wire.Reach(reach=replace(reach, marks=self.mark.marks())))

    def _knock(self, order: wire.KnockOrder) -> None:
        """Try to connect to the hosts of silent nodes, and send what came of it."""
        from ncclcheck.probes.reach import knock  # noqa: PLC0415

        self._step(f"try {len(order.doors)} silent nodes")
        self.channel.say(wire.Knocked(found=knock(order.doors, self.options.name, order.seconds)))

    def _try_init(self, order: wire.InitOrder) -> None:
        """Open the port of the init method, or make a file beside its file."""
        from ncclcheck.probes import init  # noqa: PLC0415 - most jobs have env://

        self._step(f"try {order.url}")
        self.trial = init.trial(
            order.url, order.token, node=self.options.name, hosts=order.hosts, seconds=order.seconds
        )
        seen = self.trial.opened()
        self.store_files.tried(seen)
        self.channel.say(wire.InitTried(seen=seen))

    def _look_at_init(self, order: wire.InitLook) -> None:
        """Connect to that port, or look for the others' files; the port is free again afterwards."""
        if self.trial is not None:
            self.channel.say(wire.InitTried(seen=self.trial.looked(order.nodes)))

    def _close_door(self) -> None:
        """Close the listener, the mark file and the trial of the init method."""
        if self.trial is not None:
            self.trial.close()
            self.trial = None
        if self.mark is not None:
            self.mark.close()
        if self.listener is not None:
            self.listener.close()
        self.mark = self.listener = None

    def _step(self, text: str) -> None:
        self.channel.say(wire.StepNotice(text=text))

    def _job(self, job: wire.StartJob) -> None:
        """Run this node's ranks to their end; always says how it ended. Our own door is closed by then."""
        self._close_door()
        if job.is_host and not job.init_method and (problem := _port_problem(job.endpoint)):
            self._ended(problem, port_taken=True)
            return
        if job.is_host:
            self.store_files.begin(job.init_method)
        self._run(
            job.start,
            lambda folder: Torchrun(job, self.options.name, folder, self.events.put),
            job.seconds,
        )

    def _examine(self, order: wire.Examine) -> None:
        """Run the examiner of the user's dataset to its end; always says how it ended."""
        self._close_door()
        self._run("the examiner", lambda folder: Examination(order, folder, self.events.put), order.seconds)

    def _run(self, what: str, start: Callable[[str], RunningChild], seconds: float) -> None:
        """Start it in a folder of its own below the one that is locked, and see it to its end."""
        self._step(f"start {what}")
        self.resources = resources.ResourceWatch(Machine())
        try:
            self.folder = self.folder or rundir.create()
            running = start(rundir.below(self.folder))
            self.scratch = running.scratch
        except OSError as error:
            self._ended(f"{what} could not be started: {error}")
            return
        stopped = self._watch(running, time.monotonic() + seconds)
        self._finish(running)
        if stopped:
            self.leave("stopped")

    def _watch(self, running: RunningChild, end: float) -> bool:
        """Pass on what is said until it is over; True if the launcher said stop."""
        look, linger = 0.0, end
        while (now := time.monotonic()) < min(end, linger):
            with suppress(Empty):
                event = self.events.get(timeout=_TICK_S)
                if isinstance(event, (wire.Stop, wire.Halt)):
                    return isinstance(event, wire.Stop)
                self._pass_on(running, event)
            if running.child.poll() is not None:
                return False
            if running.all_done and linger == end:
                linger = now + _MAY_LINGER_S
            if now > look:
                self.channel.say(wire.AgentBeat())
                self._tell(running.looked_at())
                look = now + _LOOK_EVERY_S
        return False

    def _pass_on(self, running: RunningChild, event: wire.FromLauncher | wire.FromAgent | int) -> None:
        if isinstance(event, (wire.RankReport, wire.StepNotice)):
            running.note(event)
        if isinstance(event, int):
            self._tell([replace(s, proc_state="gone") for s in running.looked_at() if s.pid == event])
        elif isinstance(event, (wire.RankReport, wire.StepNotice, wire.RankResult)):
            self.channel.say(event)

    def _tell(self, states: list[RankState]) -> None:
        if self.resources is not None:
            self.resources.look(states)
        for state in states:
            self.channel.say(wire.RankReport(state=state))

    def _finish(self, running: RunningChild) -> None:
        """Look once more, end what is left, and say how it went."""
        self._drain(running)
        exits = running.exits()
        states = [replace(s, exit=exits.get(s.pid or -1)) for s in running.looked_at()]
        self._tell(states)
        status = 0 if running.all_done else running.child.poll()
        letter = process.held_state_of(running.child.pid)
        stuck = process.kill_tree()
        unheard = any(exits[pid] for pid in exits.keys() - {s.pid for s in states})
        died = status is None and (unheard or any(s.proc_state == "gone" and not s.error for s in states))
        detail = explain_end(running.log) if status or died else ""
        self.channel.say(wire.RankResult(part=running.proof()))
        leftovers = [_leftover(self.options.name, s) for s in stuck]
        end = JobEnd(node=self.options.name, exit=status, detail=detail)
        if letter in STOPPED:
            end = replace(end, held=letter, pid=running.child.pid)
        self._tell_end(end, leftovers)

    def _drain(self, running: RunningChild) -> None:
        """What the ranks said before they ended, for a short while; an order that comes meanwhile is kept."""
        end = time.monotonic() + _DRAIN_S
        with suppress(Empty):
            while time.monotonic() < end:
                event = self.events.get(timeout=0.05)
                if isinstance(event, wire.Stop):
                    self.events.put(event)
                    return
                self._pass_on(running, event)

    def _ended(self, detail: str, *, port_taken: bool = False) -> None:
        """It could not be started."""
        end = JobEnd(node=self.options.name, exit=None, detail=detail)
        self._tell_end(end, [], port_taken=port_taken)

    def _tell_end(self, end: JobEnd, leftovers: list[Leftover], *, port_taken: bool = False) -> None:
        if self.resources is not None:
            had = self.resources.seen(self.options.name, os.path.dirname(self.folder))
            self.channel.say(wire.RankResult(part=Measurements(resources=[had])))
        self.channel.say(wire.JobEnded(end=end, leftovers=leftovers, port_taken=port_taken))


def _hello(options: argparse.Namespace) -> wire.Hello:
    return wire.Hello(
        protocol=wire.PROTOCOL,
        version=ncclcheck.__version__,
        node=options.node,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        python=sys.executable,
        path=os.path.dirname(os.path.abspath(ncclcheck.__file__)),
    )


def _port_problem(where: str) -> str | None:
    host, _, port = where.rpartition(":")
    return endpoint.taken(host.strip("[]"), int(port))


def _leftover(node: str, stuck: process.Stuck) -> Leftover:
    return Leftover(
        node=node,
        pid=stuck.pid,
        state=stuck.state,
        wchan=stuck.wchan,
        devices=stuck.devices,
        command=stuck.command,
    )


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ncclcheck-agent")
    parser.add_argument("--node", type=int)
    parser.add_argument("--name", default=os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    parser.add_argument("--probe-seconds", type=float, required=True)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--directory", default=".")
    parser.add_argument("--sysroot", default="")
    parser.add_argument("--host-root", default="")
    options = parser.parse_args(argv)
    if options.node is None:
        options.node = _number_in_step(options.name)
    return options


def _number_in_step(name: str) -> int:
    """srun gives all tasks the same arguments: a node finds its place by its name, in every step the same."""
    try:
        number = nodelist.number_of(name, os.environ)
    except UsageError as error:
        sys.exit(f"ncclcheck: {name}: {error}")
    return int(os.environ.get("SLURM_PROCID", "0")) if number is None else number


def main(argv: list[str] | None = None) -> None:
    """Entry point of the agent's process."""
    process.adopt_orphans()
    try:
        Agent(_options(argv)).run()
    except (RuntimeError, OSError) as error:
        if not (lacking := tasks.exhausted(error)):
            raise
        os.write(2, f"ncclcheck: {lacking}\n".encode())
        os._exit(3)  # a thread of ours still reads stdin


if __name__ == "__main__":
    main()

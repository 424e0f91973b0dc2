"""What is looked at, in which order, within the time budget. No user code runs in the process that calls this."""

from __future__ import annotations

import importlib
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any

import msgspec
import psutil
import torch

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.dataloader.children import child, inside, surroundings
from ncclcheck.probes.dataloader.children.interpreter import Interpreter, early
from ncclcheck.probes.dataloader.factory import FactoryError, FactoryLoader, resolve_alone
from ncclcheck.probes.facts.data import DataReport, Sharding
from ncclcheck.probes.facts.data.made import FactoryFailure
from ncclcheck.probes.facts.data.made import Made as MadeFacts
from ncclcheck.probes.facts.data.report import Unseen
from ncclcheck.probes.job.context import DataPlan

Look = Callable[[FactoryLoader, DataPlan, float], Any]

_SHARES = {"content": 0.4, "streams": 0.5, "structure": 0.3, "resources": 0.5, "speed": 0.7}
_PARTS = {"content": "races", "streams": "randomness", "structure": "samples"}  # others stand in `rates`
_WORDS = {
    "content": "contents of the samples",
    "streams": "random numbers of workers and epochs",
    "structure": "shapes and batches",
    "resources": "memory and files that reading takes",
    "speed": "speed by number of workers",
}
_FOR_RANKS = 0.25  # of the budget; the emulated ranks call the factory anew
_LEAST_S = 0.3  # left of the budget, below which a look is not begun: its child has hardly started by then; chosen
_LITTLE = 0.25  # of the memory: who held less was ended for what others took; chosen
_SLACK_S = 5.0  # for children that are killed at the end of their time


class HostReport(msgspec.Struct, omit_defaults=True):
    """What the host process tells while it works. made: seconds of the factory, once it is over."""

    step: str = ""
    report: DataReport | None = None
    made: float = -1.0


def examine(plan: DataPlan, step: Callable[[str], None], emit: Callable[[DataReport], None]) -> None:
    """Look at the dataset, each aspect told as soon as it is known. A factory that crashes or hangs is a fact."""
    torch.set_num_threads(1)  # the threads of a live OpenMP pool do not survive a fork
    host = _HostProcess(plan, step, emit)
    with early(plan) as interpreter:
        try:
            ended = child.run(host.work, type(None), plan.factory_s, meanwhile=host.listen)
            host.listen()
            if not ended.ok:
                host.tell_end(ended)
        except ours.Defect as defect:
            host.listen()
            host.emit(host.broken("content" if host.made else "made", defect))
        host.close()
        if host.made and not host.failed:
            _ranks(host, interpreter)


class _HostProcess:
    """The process that imports the user's module and calls the factory, seen from both of its sides."""

    def __init__(self, plan: DataPlan, step: Callable[[str], None], emit: Callable[[DataReport], None]) -> None:
        self.plan, self.step, self.emit = plan, step, emit
        self.pid = 0
        self.made = self.failed = False
        self.factory_s = 0.0
        self.end = time.monotonic() + plan.factory_s
        self.ours, self.theirs = os.pipe()
        os.set_blocking(self.ours, False)
        self.heard = bytearray()

    def work(self) -> None:
        """In the host."""
        self.pid = os.getpid()
        os.close(self.ours)
        self.say(HostReport(step=f"calling the factory {self.plan.factory}"))
        facts, made = make(self.plan)
        self.say(HostReport(report=self.report(made=facts), made=facts.seconds))
        if made is None:
            return
        end = time.monotonic() + self.plan.budget_s * (1 - _FOR_RANKS)
        for aspect, share in _SHARES.items():
            self.say(HostReport(step=f"examining the {_WORDS[aspect]}"))
            self.say(HostReport(report=self.look(aspect, made, (end - time.monotonic()) * share)))

    def look(self, aspect: str, made: FactoryLoader, limit: float) -> DataReport:
        """One aspect, or why it was not seen. A defect of ours in one must not hide the others."""
        if limit < _LEAST_S:
            return self.report(unseen=[Unseen(aspect=aspect, why="the time budget was used up")])
        try:
            look: Look = importlib.import_module(
                f"ncclcheck.probes.dataloader.{_PARTS.get(aspect, 'rates')}.{aspect}"
            ).look
            return self.report(**{aspect: look(made, self.plan, limit)})
        except (OSError, MemoryError) as error:
            return self.report(unseen=[Unseen(aspect=aspect, why=f"{type(error).__name__}: {error}")])
        except (Exception, ours.Defect) as error:  # user code has children of its own
            return self.broken(aspect, error)

    def broken(self, aspect: str, error: BaseException) -> DataReport:
        """A defect of ours: what was looked at is unknown, whatever was seen of it before."""
        trace = ours.trace_of(error) or ours.shown(error)
        return self.report(unseen=[Unseen(aspect=aspect, why="internal error of ncclcheck", defect=trace)])

    def report(self, **aspects: Any) -> DataReport:
        """With this node's name and the factory's."""
        return DataReport(node=self.plan.node, factory=self.plan.factory, **aspects)

    def say(self, message: HostReport) -> None:
        """To the process that listens. What the user's code forked, and what came up to here, says nothing."""
        if os.getpid() != self.pid:
            os._exit(1)
        data = msgspec.json.encode(message) + b"\n"
        while data:
            data = data[os.write(self.theirs, data) :]

    def listen(self) -> float:
        """Pass on what the host has said; the seconds that it has left."""
        try:
            while chunk := os.read(self.ours, 1 << 16):
                self.heard += chunk
        except BlockingIOError:
            pass
        *lines, rest = self.heard.split(b"\n")
        self.heard = bytearray(rest)
        for line in lines:
            self.hear(msgspec.json.decode(line, type=HostReport))
        return self.end - time.monotonic()

    def hear(self, message: HostReport) -> None:
        """One message of the host."""
        if message.step:
            self.step(message.step)
        if message.made >= 0:
            self.made, self.factory_s = True, message.made
            self.end = time.monotonic() + self.plan.budget_s + _SLACK_S
        if message.report is not None:
            self.failed |= message.report.made is not None and message.report.made.failure is not None
            self.emit(message.report)

    def close(self) -> None:
        """Nothing more is heard."""
        os.close(self.ours)
        os.close(self.theirs)

    def tell_end(self, ended: child.ChildEnd[None]) -> None:
        """How the host ended, where it did not end well: within the factory, that is what the factory did."""
        if self.made:
            self.emit(self.report(unseen=[Unseen(aspect="content", why=f"the examined process {ended.how}")]))
            return
        self.failed = True
        held = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # of the largest child
        killed = held if ended.signal == signal.SIGKILL and held < _LITTLE * psutil.virtual_memory().total else 0
        failure = FactoryFailure(error=ended.how, place=ended.place, stacks=ended.stacks, killed=killed)
        self.emit(self.report(made=MadeFacts(failure=failure)))


def make(plan: DataPlan) -> tuple[MadeFacts, FactoryLoader | None]:
    """Import the module and call the factory, in this process."""
    before, begun = surroundings.read(), time.monotonic()
    try:
        made = resolve_alone(plan)
    except BaseException as error:  # SystemExit too: many training scripts end themselves
        return MadeFacts(failure=_failure(error), seconds=time.monotonic() - begun), None
    seconds = time.monotonic() - begun
    try:
        facts = surroundings.compare(before, surroundings.read(), made, seconds)
    except Exception as error:  # the factory is over: the user's objects are looked at, by us
        raise ours.Defect(ours.trace_of(error) or ours.shown(error)) from error
    made.handles = facts.handles
    return facts, made


def _failure(error: BaseException) -> FactoryFailure:
    """In the user's terms: neither our exception's name nor a line of ours."""
    if isinstance(error, FactoryError):
        return FactoryFailure(error=str(error), place=inside.users_place(error.__cause__))
    return FactoryFailure(error=inside.in_words(error), place=inside.users_place(error))


def _ranks(host: _HostProcess, interpreter: Interpreter | None) -> None:
    """Emulated ranks call the factory themselves: they are children of a process without user code."""
    look = importlib.import_module("ncclcheck.probes.dataloader.ranks.sharding").look
    host.step(f"emulating {host.plan.ranks} ranks")
    limit = host.plan.budget_s * _FOR_RANKS + 2 * host.factory_s
    try:
        ended = child.run(lambda: look(host.plan, limit, interpreter), Sharding, limit + _SLACK_S)
    except ours.Defect as defect:
        host.emit(host.broken("sharding", defect))
        return
    if ended.ok:
        cut = next((share for share in ended.value.shares if share.cut), None) if ended.value else None
        unseen = (
            [Unseen(aspect="sharding", why=f"rank {cut.rank} could not be emulated: {cut.cut}")] if cut else []
        )
        host.emit(host.report(sharding=ended.value, unseen=unseen))
    else:
        host.emit(host.report(unseen=[Unseen(aspect="sharding", why=ended.how)]))

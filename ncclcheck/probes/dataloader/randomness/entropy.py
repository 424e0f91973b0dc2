"""Why two equal processes read different samples: clocks and entropy, or threads of the dataset's own."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import msgspec

from ncclcheck.probes.dataloader.children import inside
from ncclcheck.probes.dataloader.randomness.oracle import Oracle
from ncclcheck.probes.dataloader.samples.read import glance
from ncclcheck.probes.dataloader.samples.read.glance import Pass
from ncclcheck.probes.dataloader.samples.read.reader import SampleReader

_SAMPLES = 4  # read while calls are watched, which slows them: chosen
_TRIES = 3  # that must all agree: chosen, threads agree by chance once in a while
_SOURCES = {
    "urandom": "os.urandom",
    "getrandom": "os.getrandom",
    "getpid": "os.getpid",
    "time": "time.time",
    "time_ns": "time.time_ns",
    "perf_counter": "time.perf_counter",
    "perf_counter_ns": "time.perf_counter_ns",
    "monotonic": "time.monotonic",
    "monotonic_ns": "time.monotonic_ns",
    "now": "datetime.now",
    "utcnow": "datetime.utcnow",
    "today": "date.today",
    "generate_time_safe": "uuid.uuid1",
    "SeedSequence": "numpy.random.SeedSequence()",
    "seed": "torch.seed()",
}
_OF_MODULES = ("posix", "time", "datetime", "_uuid", None)


class EntropyCalls(msgspec.Struct):
    """Calls that no seed controls, made below the user's code, and how many threads reading started."""

    calls: list[str]
    threads: int


def find(reader: SampleReader, indices: Sequence[int]) -> EntropyCalls:
    """Read a few samples and watch what is called."""
    ended = reader.in_child(lambda: _watch(reader, indices[:_SAMPLES]), EntropyCalls, 0.5)
    return ended.value if ended.ok and ended.value else EntropyCalls([], 0)


def _watch(reader: SampleReader, indices: Sequence[int]) -> EntropyCalls:
    order = glance.ReadingOrder(indices, reader.plan.seed, workers=reader.plan.workers, whole=reader.made.iterable)
    calls: dict[str, None] = {}
    started: list[object] = []

    def profile(frame: FrameType, event: str, function: Any) -> None:
        if event == "call" and frame.f_code is _START:
            started.append(frame)
        if event == "c_call" and (name := _name(function)) and _is_below_user(frame):
            calls.setdefault(name)

    threading.setprofile(profile)
    sys.setprofile(profile)
    glance.read(reader.made, order, reader.mark)
    sys.setprofile(None)
    return EntropyCalls(list(calls), len(started))


_START = threading.Thread.start.__code__


def _name(function: Any) -> str:
    owner = getattr(function, "__module__", None)
    return _SOURCES.get(getattr(function, "__name__", ""), "") if owner in _OF_MODULES else ""


def _is_below_user(frame: FrameType | None) -> bool:
    """Called by the user's code, directly or by a library: not by ours, nor by the start of a thread."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name == glance.__file__:
            return False
        if not inside.is_library(name):
            return True
        frame = frame.f_back
    return False


def settles_in_one_thread(reader: SampleReader, oracle: Oracle) -> list[str]:
    """Those of the unsettled leaves that agree in all tries once every pool of threads has one thread only."""
    order = replace(oracle.order, warm=None, indices=list(oracle.truth))
    tries = [_serial(reader, order) for _ in range(_TRIES)]
    if not all(tries):
        return []
    return [
        leaf
        for leaf in oracle.unsettled
        if all(_contents(passed, leaf) == _contents(tries[0], leaf) for passed in tries)
    ]


def _contents(samples: Pass, leaf: str) -> list[str]:
    return [value.digest for sample in samples.values() if (value := sample.leaves.get(leaf))]


def _serial(reader: SampleReader, order: glance.ReadingOrder) -> Pass:
    def read() -> list[Pass]:
        _limit_pools()
        return glance.read(reader.made, order, reader.mark)

    ended = reader.in_child(read, list[Pass], min(2.0, max(0.3, reader.left / 4)))
    return ended.value[0] if ended.ok and ended.value else {}


def _limit_pools() -> None:
    """In this process a pool has one thread, and a thread that is started is waited for."""
    make, start = concurrent.futures.ThreadPoolExecutor.__init__, threading.Thread.start

    def make_small(self: Any, max_workers: int | None = None, *args: Any, **kwargs: Any) -> None:  # noqa: ARG001
        make(self, 1, *args, **kwargs)

    def start_and_wait(self: threading.Thread) -> None:
        start(self)
        if not self.daemon and "ThreadPoolExecutor" not in self.name:
            self.join(1.0)

    concurrent.futures.ThreadPoolExecutor.__init__ = make_small  # type: ignore[method-assign]
    threading.Thread.start = start_and_wait  # type: ignore[method-assign]

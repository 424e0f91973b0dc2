"""One exchange between two ranks: latency, then each direction alone, timed where the data arrives.

The receiver is in charge of a direction. It asks for so many bytes and times until they are all there: a sender is
done once its bytes lie in a buffer. It begins small, so that a slow link is known before much is asked of it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from msgspec import Struct
from torch import Tensor

from ncclcheck.probes.facts import replace
from ncclcheck.probes.job.context import Context, PairPlan
from ncclcheck.probes.job.inject import seconds_a_byte
from ncclcheck.probes.machine.host.cores import Cores

T = TypeVar("T")

_PINGS = 30  # round trips: chosen, the median of 30 is steady on a busy host
_SMALLEST_BYTES = 2**16  # of a piece, to begin with: chosen, it takes 5 ms at 0.1 Gb/s
_GROWTH = 8  # times as large is the next piece: chosen, from 64 KiB to 64 MiB in four steps
_REPEATS = 8  # of the final size; their median counts: chosen, within _DIRECTION_S there are seldom more
_DIRECTION_S = 0.15  # for one direction of one pair, so that a round of many pairs stays below a second: chosen
_POLL_S = 20e-6  # between two questions: chosen, much less than a ping over TCP takes, and no busy loop
_SENT, _UNWRITTEN = 0x5A, 0  # what every byte of a message is, and of the buffer before it arrives: chosen


class ExchangeView(Struct, frozen=True, kw_only=True):
    """What one side saw: the rate at which the other's bytes came in, and in how large pieces.

    met: whether the other side came to it at all. changed: bytes that came in and were not as they were sent.
    waited: the share of the time in which threads here wanted a core and had none.
    """

    state: Literal["ok", "timed_out", "failed"] = "ok"
    reason: str = ""
    met: bool = True
    gb_s: float | None = None
    bytes: int = 0
    changed: int | None = None
    latency_us: float | None = None
    waited: float = 0.0


class Exchange:
    """One exchange with another rank, in a group of two: what goes wrong between the two stays between them."""

    def __init__(self, context: Context, plan: PairPlan, peer: int, name: str) -> None:
        self._context, self._plan, self._peer = context, plan, peer
        self._first = context.rank < peer
        self._slower = seconds_a_byte(context, peer)
        self._view, self._doing = ExchangeView(), "connecting"
        self._end = time.monotonic() + plan.limit_s
        every: Any = dist
        self._store = every.PrefixStore(name, context.store or every.distributed_c10d._get_default_store())
        self._group: Any = None
        self._word = torch.zeros(1, dtype=torch.int64, device=context.device)
        self._data = torch.full((plan.bytes,), _SENT, dtype=torch.uint8, device=context.device)

    def run(self) -> ExchangeView:
        """Measure, the lower rank first. Never raises for what the transport does, and never hangs."""
        begun, cores = time.monotonic(), Cores()
        try:
            bounded(self._measure, self._plan.limit_s + 1)
        except (RuntimeError, TimeoutError, AttributeError, TypeError) as error:
            self._view = self._trouble(error)
        if self._context.device.type == "cpu":  # what a GPU moves needs no core
            waited = cores.waited_s() / max(1e-3, time.monotonic() - begun)
            self._view = replace(self._view, waited=round(min(1.0, waited), 3))
        self._close()
        return self._view

    def _measure(self) -> None:
        if self._context.device.type == "cuda":
            torch.cuda.set_device(self._context.device)  # it holds for one thread only
        self._group = group_of_two(self._store, self._context, self._first, self._plan.limit_s)
        self._doing = "small messages"
        latency = self._pings()
        self._view = replace(self._view, latency_us=latency)
        for receives in (not self._first, self._first):
            if receives:
                self._receive()
            else:
                self._serve()

    def _pings(self) -> float:
        """Microseconds one way, the median; the first of them also makes the connection."""
        seconds = []
        for _ in range(_PINGS):
            begin = time.perf_counter()
            for sends in (self._first, not self._first):
                self._pass(self._word, sends=sends)
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds) / 2 * 1e6

    def _receive(self) -> None:
        """GB/s from the other side, and the size of the pieces that it was measured with."""
        self._doing = "waiting for data"
        self._view = replace(self._view, changed=0)
        end, size = time.monotonic() + _DIRECTION_S, min(_SMALLEST_BYTES, self._plan.bytes)
        seconds = [self._asked(size)]
        while len(seconds) < _REPEATS and (left := end - time.monotonic()) > min(seconds):
            if size < self._plan.bytes and _GROWTH * min(seconds) < left:  # one may have been delayed
                size, seconds = min(_GROWTH * size, self._plan.bytes), []
            seconds.append(self._asked(size))
        self._view = replace(self._view, gb_s=size / statistics.median(seconds) / 1e9, bytes=size)
        self._ask(0)
        self._data.fill_(_SENT)

    def _asked(self, size: int) -> float:
        data = self._data[:size].fill_(_UNWRITTEN)
        begin = time.perf_counter()
        self._ask(size)
        self._pass(data, sends=False)
        seconds = time.perf_counter() - begin
        changed = (self._view.changed or 0) + int((data != _SENT).sum().item())
        self._view = replace(self._view, changed=changed)
        return seconds

    def _ask(self, size: int) -> None:
        self._word.fill_(size)
        self._pass(self._word, sends=True)

    def _serve(self) -> None:
        """Send what the other side asks for, until it has enough."""
        self._doing = "sending data"
        while True:
            self._pass(self._word, sends=False)
            if not (size := int(self._word.item())):
                return
            self._pass(self._data[:size], sends=True)

    def _pass(self, tensor: Tensor, *, sends: bool) -> None:
        """Send or receive one tensor, to the end. Raises TimeoutError, or RuntimeError of the transport."""
        self._context.tick()
        if sends and self._slower:
            time.sleep(self._slower * tensor.nbytes)
        start = self._group.send if sends else self._group.recv
        work = start([tensor], int(self._first), 0)
        if tensor.device.type == "cuda":
            self._poll(work)
        else:
            work.wait(timedelta(seconds=max(0.01, self._end - time.monotonic())))

    def _poll(self, work: Any) -> None:
        """NCCL's own wait lets the host go on; what is asked here is whether the GPU has finished."""
        while not work.is_completed():
            if time.monotonic() > self._end:
                raise TimeoutError
            time.sleep(_POLL_S)
        work.wait()

    def _trouble(self, error: Exception) -> ExchangeView:
        late = isinstance(error, TimeoutError) or time.monotonic() > self._end - 0.1
        here, there = (self._context.node_of[rank] for rank in (self._context.rank, self._peer))
        doing = {
            "connecting": f"{here} got no connection with {there}",
            "small messages": f"small messages between {here} and {there} did not all arrive",
            "waiting for data": f"{here} waited for data of {there}",
            "sending data": f"{here} was to send data to {there}",
        }[self._doing]
        if late:
            return replace(self._view, state="timed_out", reason=f"{doing}, {self._plan.limit_s:g} s long")
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        return replace(self._view, state="failed", reason=f"{doing}: {message}"[:300])

    def _close(self) -> None:
        """NCCL may take its time to end what has failed, and is not waited for; gloo ends with its last user."""
        group, self._group = self._group, None
        self._store.delete_key(f"0/{int(not self._first)}")  # where gloo has told its address
        ways = ("shutdown", "_shutdown") if self._view.state == "ok" else ("abort", "_abort")
        end = next((way for name in ways if (way := getattr(group, name, None))), None)
        if self._context.device.type == "cuda" and end:
            threading.Thread(target=end, daemon=True).start()


def group_of_two(store: object, context: Context, first: bool, seconds: float) -> Any:
    """What dist.new_group makes, but of these two alone and in a store of a name that was never used before.

    new_group derives the name from the ranks: a second try would meet the keys of the first one in the store.
    NCCL's watchdog ends the process at the group's limit, which must therefore lie beyond ours.
    """
    every: Any = dist
    if context.device.type != "cuda":
        return every.ProcessGroupGloo(store, int(not first), 2, timeout=timedelta(seconds=seconds))
    options = every.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=max(60.0, context.deadline - time.monotonic()))
    return every.ProcessGroupNCCL(store, int(not first), 2, options)


def bounded(call: Callable[[], T], seconds: float) -> T:
    """Call in a thread, wait so long at most: NCCL connects without any limit of its own. Raises TimeoutError."""
    results: list[T] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            results.append(call())
        except Exception as error:  # it is raised again where it was waited for
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]

"""Measures the rows of the plan on the ranks of a running job: time, bandwidth, and a correct result or not."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from ncclcheck.probes.facts import Collective, Measurements, replace
from ncclcheck.probes.job.context import Context, Op, Row
from ncclcheck.probes.job.inject import corrupting, iterations
from ncclcheck.probes.job.operations import OPERATIONS, Build, PreparedOperation, Ranks, barrier
from ncclcheck.probes.job.peers.lateness import LateRanks
from ncclcheck.probes.job.support import find_form
from ncclcheck.probes.job.timing import RankPeers, TimeLimits, batch, measure, summary
from ncclcheck.probes.job.verify.contributions import undefined
from ncclcheck.probes.job.verify.exact import Data, Mismatch
from ncclcheck.probes.job.verify.soak import Proven, Soaker
from ncclcheck.probes.job.verify.wrong import as_fact

_PROBE_BYTES = 2**20  # below this, latency hides the bandwidth from which a larger size is estimated
_RESERVE = 0.05  # of the budget: what earlier rows take too much must not cost the last row its place


def first_collective(context: Context) -> float:
    """Seconds of the first tiny all_reduce and barrier, which set up the connections."""
    context.step("first all_reduce")
    begin = time.monotonic()
    dist.all_reduce(torch.ones(1, device=context.device))
    barrier(context.device)
    return time.monotonic() - begin


def run(context: Context) -> list[Collective]:
    """Measure every row of the plan; rank 0 emits the rows, each rank its own wrong results and lateness."""
    bench = _Bench(context)
    rows = context.plan.collectives.rows
    measured = [bench.row(row, rows_left=len(rows) - index) for index, row in enumerate(rows)]
    bench.tell_lateness()
    if context.plan.soak:
        bench.soak()
    return measured


class _Bench:
    """One run over all rows, with what is learnt from row to row: times, waits, wrong results."""

    def __init__(self, context: Context) -> None:
        self._context, self._plan = context, context.plan.collectives
        self._peers = RankPeers(context.rank, context.world_size, context.device)
        self._ranks = self._make_ranks()
        self._forms: dict[Op, Build | str] = {}
        self._passes: dict[Op, tuple[int, float]] = {}
        self._proven: list[Proven] = []
        self._tick = iterations(context)
        self._late = LateRanks(context)
        self._prepare_data()
        self._end = min(time.monotonic() + self._plan.budget_s, context.deadline)

    def row(self, row: Row, rows_left: int) -> Collective:
        """Measure one row, or say why not."""
        op, world = OPERATIONS[row.op], self._context.world_size
        item = {"elements": self._ranks.dtype.itemsize, "bytes": 1, "nothing": 0}[op.moves]
        count = max(1, row.bytes // item // op.pieces(world)) if item else 0
        blank = Collective(
            op=row.op,
            bytes=count * item * op.pieces(world),
            dtype={"elements": self._plan.dtype, "bytes": "object", "nothing": ""}[op.moves],
            nodes=self._context.nodes,
            ranks=world,
        )
        need = op.most_pieces(world) * count * item
        outcome = self._too_big(need) or self._measured(row.op, blank, count, rows_left)
        if isinstance(outcome, str):
            outcome = replace(blank, state="skipped", reason=outcome)
        if self._context.rank == 0:
            self._context.emit(Measurements(collectives=[outcome]))
        return outcome

    def tell_lateness(self) -> None:
        """Hand over how late this rank was, where there are others."""
        late = self._late.fact()
        if late is not None and self._context.world_size > 1:
            self._context.emit(Measurements(lateness=[late]))

    def soak(self) -> None:
        """Go on with the rows that could be measured, for as long as was asked for."""
        Soaker(self._context, self._ranks, self._peers, self._tick).run(self._proven)

    def _too_big(self, need: int) -> str:
        most = self._plan.memory
        return f"needs {_size(need)} on a rank, {_size(most)} may be used" if need > most else ""

    def _make_ranks(self) -> Ranks:
        context, plan = self._context, self._plan
        me, device = (context.rank, context.world_size), context.device
        dtype: torch.dtype = getattr(torch, plan.dtype)
        data = Data(dtype, plan.reduce_op, *me, device)
        raw = Data(torch.uint8, "sum", *me, torch.device("cpu"))
        return Ranks(*me, device, dtype, plan.reduce_op, data, raw)

    def _prepare_data(self) -> None:
        """Before the clock of the budget runs: the results for thousands of ranks take seconds."""
        self._context.step("test data")
        for op in {OPERATIONS[row.op] for row in self._plan.rows}:
            if op.moves == "bytes":
                self._ranks.raw.prepare_moved()
            elif op.moves == "elements" and not op.reduces:
                self._ranks.data.prepare_moved()
            elif op.reduces and not undefined(self._plan.reduce_op, self._ranks.dtype):
                self._ranks.data.prepare_reduction()
        self._peers.worst([0.0])

    def _left(self) -> float:
        """Seconds of the budget that are left, the same on all ranks."""
        return -self._peers.worst([time.monotonic() - self._end])[0]

    def _measured(self, name: Op, blank: Collective, count: int, rows_left: int) -> Collective | str:
        form = self._form(name)
        if isinstance(form, str):
            return form
        self._context.step(_title(name, blank.bytes))
        left = self._left()
        if left <= 0:
            return "the time budget was used up before it"
        expected = 2 * self._estimate(name, form, blank.bytes, count)
        if expected > self._left():
            return f"warm-up and one run would take about {expected:.2g} s, {left:.2g} s of the budget are left"
        work = self._build(form, count)
        reserve = _RESERVE * self._plan.budget_s
        box = max(0.0, left - reserve) / rows_left
        if isinstance(work, str):
            return work
        measured = self._timed(work, blank, name, left - box)
        self._proven.append(Proven(blank, form, count, self._passes[name][1]))
        return measured

    def _form(self, name: Op) -> Build | str:
        if name not in self._forms:
            self._context.step(f"{name}, first try")
            form = find_form(name, self._ranks, self._peers, self._context.backend)
            self._forms[name] = form if isinstance(form, str) else corrupting(self._context, name, form)
        return self._forms[name]

    def _estimate(self, name: Op, form: Build, size: int, count: int) -> float:
        """Seconds of one run at this size, from an earlier size of the same operation."""
        known = self._passes.get(name, (0, 0.0))
        if size > _PROBE_BYTES > known[0]:
            work = form(self._ranks, max(1, count * _PROBE_BYTES // size))
            known = _PROBE_BYTES, min(self._pass(work)[1] for _ in range(3))
        return known[1] * size / known[0] if known[0] >= _PROBE_BYTES else 0.0

    def _build(self, form: Build, count: int) -> PreparedOperation | str:
        """The buffers; a rank without memory for them must not leave the others waiting."""
        work: PreparedOperation | str = ""
        why = ""
        try:
            work = form(self._ranks, count)
        except (RuntimeError, MemoryError) as error:
            why = f"rank {self._context.rank} on {self._context.node} has no memory for it: {str(error)[:100]}"
        return self._peers.first_text(why) or work

    def _timed(self, work: PreparedOperation, blank: Collective, name: Op, left_after: float) -> Collective:
        seconds, whole, first_wrong = self._pass(work)
        box = self._left() - left_after - whole
        least, most = self._plan.least_iterations - 1, self._plan.most_iterations - 1
        before = self._context.memory.now()
        times = measure(work.call, TimeLimits(box, least, most, seconds), self._peers, self._tick, self._late)
        if blank.bytes <= _PROBE_BYTES:  # larger buffers are kept for later, which is no leak: the soak tells
            self._context.memory.grew(before, len(times))
        seconds, whole, last_wrong = self._pass(work)
        self._passes[name] = blank.bytes, whole
        iteration = 1 if first_wrong else len(times) + 2
        wrong = self._any_wrong(first_wrong or last_wrong, blank, iteration)
        return self._finished(blank, [*times, seconds], wrong)

    def _pass(self, work: PreparedOperation) -> tuple[float, float, Mismatch | None]:
        """One run on fresh data: its time, the time with filling and checking, and what was wrong here."""
        begin = time.monotonic()
        work.reset()
        own = batch(work.call, 1, self._context.device, self._tick)
        wrong = work.check()
        seconds, whole = self._peers.worst([*own.calls, time.monotonic() - begin])
        return seconds, whole, wrong

    def _any_wrong(self, wrong: Mismatch | None, row: Collective, iteration: int) -> bool:
        """Hand over this rank's wrong result, and hear whether any rank had one."""
        if wrong:
            fact = as_fact(row, wrong, self._ranks, self._context.node, iteration)
            self._context.emit(Measurements(wrong=[fact]))
        return self._peers.worst([1.0 if wrong else 0.0])[0] > 0

    def _finished(self, row: Collective, times: list[float], wrong: bool) -> Collective:
        row = replace(row, iterations=len(times), time_us=summary(times))
        return row if not row.bytes else self._with_bandwidth(row, statistics.median(times), wrong)

    def _with_bandwidth(self, row: Collective, median: float, wrong: bool) -> Collective:
        row = replace(row, correct=not wrong, state="fail" if wrong else "ok")
        if row.ranks == 1:
            return replace(row, reason="one rank: nothing crosses a link, so there is no bandwidth")
        algbw = row.bytes / median / 1e9
        factor = OPERATIONS[row.op].busbw_factor
        return replace(row, algbw_gb_s=algbw, busbw_gb_s=factor and algbw * factor(row.ranks))


def _title(op: str, size: int) -> str:
    return f"{op} {_size(size)}" if size else op


def _size(size: int) -> str:
    """Bytes as a person writes them."""
    power = min(3, max(0, (size.bit_length() - 1) // 10))
    return f"{size / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"

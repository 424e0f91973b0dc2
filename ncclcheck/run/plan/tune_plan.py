"""`tune`: which settings may matter here, at which sizes, how often they are tried and how long it takes. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Candidate, Node, at, replace, value_or
from ncclcheck.probes.job.context import CollectivePlan, JobPlan, Op, ReduceOp, Row
from ncclcheck.reports.subjects.nccl.variables import effective, nccl_version
from ncclcheck.run.plan import bench_plan, trial_plan
from ncclcheck.run.plan.bench_plan import BenchOptions, JobShape, Level
from ncclcheck.run.plan.option_table import CommandOption, Flag, made_of
from ncclcheck.run.plan.trial_plan import TriedSetting

FORM = "VAR=VALUE, where VAR begins with NCCL_, GLOO_ or TORCH_NCCL_, or is OMP_NUM_THREADS (VAR= takes it away)"
LOOKS: dict[Level, tuple[int, ...]] = {"quick": (4, 8), "standard": (4, 8, 12), "full": (6, 12, 24)}
MOST_ROWS = 6  # operations and sizes that are tuned; each makes the intervals of all wider; chosen
_MOST_TRIES = 24  # each is several jobs of its own, a minute or more: chosen
_OPS: tuple[Op, ...] = ("all_reduce",)
_SIZES = {"gloo": "64K,1M,16M", "nccl": "1M,64M,1G"}
_MEASURING_S: dict[Level, float] = {"quick": 0.8, "standard": 2.0, "full": 4.0}  # in each job
_JOB_S = 8.0  # torchrun, import and rendezvous of one job
_PER_FUNCTION = (2, 24)  # NCCL_ALGO and NCCL_PROTO take a list for each function from then on
_THREADS = "NVIDIA: one helper thread may not fill a fast TCP network"


def tries(given: Sequence[str]) -> tuple[TriedSetting, ...]:
    """Raises UsageError, also for a choice without a fall-back: NCCL fails where none of a list is possible."""
    settings = tuple(_setting(text) for text in given)
    if len(settings) > _MOST_TRIES:
        raise UsageError(f"--try: {len(settings)} settings; allowed are up to {_MOST_TRIES}")
    return settings


def _setting(given: str) -> TriedSetting:
    name, equals, value = given.partition("=")
    if name == "OMP_NUM_THREADS" and equals:
        if not (value.isdecimal() and 1 <= int(value) <= 1024):
            raise UsageError(f"--try {given[:100]}: allowed are 1 to 1024 threads")
        return TriedSetting(name, value)
    try:
        setting = trial_plan.setting(given)
    except UsageError:
        raise UsageError(f"--try: {given[:100]!r} is not understood; allowed is {FORM}") from None
    if setting.variable == "NCCL_ALGO" and setting.value and not _has_fallback(setting.value):
        raise UsageError(
            f"--try {given[:100]}: name ring too: where no algorithm of the list can be used, NCCL fails"
        )
    return setting


def _has_fallback(value: str) -> bool:
    """Each part names ring, or excludes others than ring."""
    lists = [part.rpartition(":")[2].lower() for part in value.split(";") if part]
    return all(("ring" in algorithms) != algorithms.startswith("^") for algorithms in lists)


@dataclass(frozen=True)
class TuneOptions(BenchOptions):
    """The options of `tune`. tries: settings of the user's own; rows: operations and sizes of the job."""

    level: Level = made_of(
        "standard",
        bench_plan.level,
        CommandOption(
            "--quick", f"up to {LOOKS['quick'][-1]} pairs of jobs a setting", Flag(), default=False, site=Flag()
        ),
        CommandOption(
            "--full", f"up to {LOOKS['full'][-1]} pairs of jobs a setting", Flag(), default=False, site=Flag()
        ),
    )
    inject: tuple[str, ...] = ()
    reduce_op: ReduceOp = "sum"
    min_busbw: dict[str, float] = dataclasses.field(default_factory=dict)
    soak: float | None = None
    tries: tuple[TriedSetting, ...] = made_of(
        (),
        tries,
        CommandOption(
            "--try",
            "try these settings instead of the usual ones",
            metavar="VAR=VALUE",
            multiple=True,
            variable=False,
            default=(),
        ),
    )
    files: tuple[str, ...] = made_of(
        (),
        tuple,
        CommandOption(
            "--job-files",
            "read operations and sizes from Flight Recorder dumps, NCCL's COLL lines or Inspector's files",
            metavar="FILE",
            multiple=True,
            variable=False,
            default=(),
        ),
    )
    rows: tuple[tuple[str, int], ...] = ()


def candidates(wanted: TuneOptions, shape: JobShape, nodes: list[Node], *, simulated: bool) -> list[Candidate]:
    """What may matter to this job on these nodes; never what is set already, nor a choice without a fall-back.

    The user's own settings come first; where there are any, only these. Raises UsageError for one that cannot
    matter, and where nothing is left.
    """
    for setting in wanted.tries:
        if setting.variable != "OMP_NUM_THREADS":
            trial_plan.refuse(setting, shape, nodes, simulated=simulated)
    own = [
        Candidate(variable=attempt.variable, value=attempt.value, why="given by --try") for attempt in wanted.tries
    ]
    pool = own or [*(_of_nccl(nodes) if shape.backend == "nccl" else _of_gloo(shape, nodes))]
    effects = [{name: effect.value for name, effect in effective(node).items()} for node in nodes]
    left = [
        candidate
        for candidate in pool
        if not all(values.get(candidate.variable) == candidate.value for values in effects)
    ]
    if not left:
        raise UsageError("nothing to tune: no setting is known that could matter to this job; name some: --try")
    return left


def _of_gloo(shape: JobShape, nodes: list[Node]) -> Iterator[Candidate]:
    """Threads sum up what came in; more than there are cores for each rank only take turns."""
    cores = min((value_or(at(node, "host.usable_cores"), 1.0) for node in nodes), default=1.0)
    for threads in (2, 4, 8):
        if threads * shape.ranks_per_node <= max(cores, 2):
            yield Candidate(variable="OMP_NUM_THREADS", value=str(threads), why="threads of a rank that add up")


def _of_nccl(nodes: list[Node]) -> Iterator[Candidate]:
    versions = [version for node in nodes if (version := nccl_version(node)) is not None]
    function = "allreduce:" if versions and min(versions)[:2] >= _PER_FUNCTION else ""
    yield Candidate(variable="NCCL_ALGO", value=f"{function}ring", why="rings alone: bandwidth before latency")
    if function:
        yield Candidate(
            variable="NCCL_ALGO", value="allreduce:tree,ring", why="no NVLS, no SHARP: trees and rings"
        )
    yield Candidate(variable="NCCL_PROTO", value="^LL128", why="LL128 can lose between nodes at large sizes")
    if len(nodes) < 2:
        yield Candidate(variable="NCCL_MIN_NCHANNELS", value="16", why="more channels, for more GPU cores")
    elif any(value_or(at(node, "rdma.hcas"), []) for node in nodes):
        yield Candidate(variable="NCCL_IB_QPS_PER_CONNECTION", value="4", why="more paths through an ECMP fabric")
        yield Candidate(variable="NCCL_IB_SPLIT_DATA_ON_QPS", value="1", why="each message over all queue pairs")
    else:
        yield Candidate(variable="NCCL_SOCKET_NTHREADS", value="4", why=_THREADS)
        yield Candidate(variable="NCCL_NSOCKS_PERTHREAD", value="4", why="one TCP flow may not fill the network")


def job(wanted: TuneOptions, shape: JobShape, nodes: list[Node], *, simulated: bool) -> JobPlan:
    """One of the short jobs. Raises UsageError."""
    sizes = wanted.sizes or bench_plan.sizes(_SIZES[shape.backend])
    short = dataclasses.replace(wanted, ops=wanted.ops or _OPS, sizes=sizes, time_budget=_share(wanted))
    measured: CollectivePlan = bench_plan.collectives(short, shape, nodes, simulated=simulated)
    rows = [Row(op=op, bytes=size) for op, size in wanted.rows if op in bench_plan.OPS]
    rows = rows or measured.rows
    if len(rows) > MOST_ROWS:
        raise UsageError(
            f"--ops and --sizes: {len(rows)} rows; allowed are up to {MOST_ROWS}: all must hold together"
        )
    return JobPlan(collectives=replace(measured, rows=rows))


def stated_seconds(wanted: TuneOptions, count: int) -> float:
    """How long so many candidates are said to take: half of them go on after each look; then the whole."""
    pairs, left, before = 0, count, 0
    for look in LOOKS[wanted.level]:
        pairs += left * (look - before)
        left, before = math.ceil(left / 2), look
    return 2 * (pairs + LOOKS[wanted.level][-1]) * (_JOB_S + _share(wanted))


def _share(wanted: TuneOptions) -> float:
    """Seconds of measuring in each job."""
    return wanted.time_budget or _MEASURING_S[wanted.level]


def default_deadline(wanted: TuneOptions) -> float:
    """Seconds from the program's start until the report, for as many candidates as there may be."""
    return max(120.0, 3 * stated_seconds(wanted, len(wanted.tries) or 6))

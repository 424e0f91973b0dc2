"""What to run, on which nodes, within which time: options and facts -> rows, ranks and limits. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Node, Unread, at, value_or, variables
from ncclcheck.probes.job.context import (
    CollectivePlan,
    Dtype,
    GroupPlan,
    JobPlan,
    Op,
    PairPlan,
    ReduceOp,
    Row,
    SoakPlan,
    SpeedPlan,
)
from ncclcheck.reports.scale.search import LEAST
from ncclcheck.run.plan import faults, starts
from ncclcheck.run.plan.option_table import (
    SECONDS,
    SELDOM,
    VERDICT,
    WHERE,
    CommandOption,
    Flag,
    NumberRange,
    Text,
    WordChoice,
    made_of,
    typed,
)
from ncclcheck.run.plan.starts import JobStart

OPS: tuple[Op, ...] = get_args(Op)
REDUCE_OPS: tuple[ReduceOp, ...] = get_args(ReduceOp)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
Level = Literal["quick", "standard", "full"]

WITH_BUSBW: tuple[Op, ...] = OPS[: OPS.index("barrier")]

_DEFAULT_OPS: tuple[Op, ...] = OPS[:-1]
_QUICK_OPS: tuple[Op, ...] = ("broadcast", "all_reduce", "all_gather", "barrier")
_SPEED_S: dict[Level, float] = {"quick": 0.5, "standard": 2.0, "full": 5.0}
_PAIRS_S: dict[Level, float] = {"quick": 5.0, "standard": 8.0, "full": 60.0}
# s within which a group connects and measures: gloo 0.1 to 0.5 s on hosts of the lab, at load 8 up to 2 s; NCCL's
# communicators take seconds.
_GROUP_S = {"gloo": 5.0, "nccl": 15.0}
_DIAGNOSTICS_S: dict[Level, float] = {"quick": 0.0, "standard": 30.0, "full": 60.0}
_DIAGNOSTICS_SINCE = (2, 31)  # the first NCCL with active and RAS diagnostics
MOST_RANKS = 1024  # on a node; a number beyond any machine's GPUs or cores is a slip of the fingers; chosen
_LARGEST = 2**40  # bytes of a message: more than any GPU holds; bounds the input
_STARTUP_S = 12.0  # s for torchrun, import of torch and forming the group, in the forecast only; chosen
_MEMORY_OF_A_RANK = 400 * 2**20  # bytes of host memory that are reckoned for a simulated rank; chosen


@dataclass(frozen=True)
class JobShape:
    """What the job looks like on this cluster; note says why a wish was not followed."""

    backend: str
    ranks_per_node: int
    note: str = ""


def ops(given: str) -> tuple[Op, ...]:
    """`all_reduce,barrier` -> operations. Raises UsageError."""
    wanted = tuple(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    for op in wanted or ("",):
        if op not in OPS:
            raise UsageError(f"--ops: {op!r} is no operation; allowed are {', '.join(OPS)}")
    return tuple(op for op in OPS if op in wanted)


def sizes(given: str) -> tuple[int, ...]:
    """`1K:256M:x4`, `1M:8M:+1M` or `1K,64M` -> bytes, ascending. Raises UsageError."""
    values = [_size(part) for part in given.split(",")] if ":" not in given else _range(given)
    return tuple(sorted(dict.fromkeys(values)))


def min_busbw(given: str) -> dict[str, float]:
    """`40` (of all_reduce) or `all_reduce=40,all_gather=30` -> GB/s by operation. Raises UsageError."""
    floors: dict[str, float] = {}
    for part in given.split(",") if given else ():
        op, equals, number = part.strip().rpartition("=")
        op = op.strip() if equals else "all_reduce"
        if op not in WITH_BUSBW:
            raise UsageError(f"--min-busbw: {op!r} has no bus bandwidth; allowed are {', '.join(WITH_BUSBW)}")
        if not re.fullmatch(r"\s*(\d{1,5}(\.\d{1,6})?|\.\d{1,6})", number) or not float(number):
            raise UsageError(
                f"--min-busbw: {part.strip()!r} is not understood; allowed are GB/s above 0 (40, which is of "
                "all_reduce) or OPERATION=GB/s, several with commas"
            )
        floors[op] = float(number)
    return floors


def _range(given: str) -> list[int]:
    parts = given.split(":")
    step = parts[2] if len(parts) == 3 else "x2"
    match = re.fullmatch(r"([x+])(\w+)", step)
    if len(parts) not in (2, 3) or match is None:
        raise _bad_size(given)
    low, high = _size(parts[0]), _size(parts[1])
    by = _size(match[2]) if match[1] == "+" else _factor(match[2], given)
    values: list[int] = []
    while low <= high:
        values.append(low)
        if len(values) > 100:
            raise UsageError(f"--sizes: {given!r} gives more than 100 sizes; take a larger step")
        low = low + by if match[1] == "+" else low * by
    if not values:
        raise UsageError(f"--sizes: {given!r} is empty, its first size is larger than its last")
    return values


def _factor(text: str, given: str) -> int:
    if not text.isdecimal() or len(text) > 6 or int(text) < 2:
        raise _bad_size(given)
    return int(text)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,13})([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise _bad_size(text)
    size = int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")
    if not 1 <= size <= _LARGEST:
        raise UsageError(f"--sizes: {text!r} is out of range; allowed are 1 to 1T bytes")
    return size


def _bad_size(text: str) -> UsageError:
    return UsageError(
        f"--sizes: {text!r} is no size; allowed are 64M, a list 1K,64M or a range 1K:256M:x4 (or :+1M)"
    )


def level(quick: bool, full: bool) -> Level:
    """Of --quick and --full. Raises UsageError."""
    if quick and full:
        raise UsageError("--quick and --full: give one of them, or none for the standard level")
    return "quick" if quick else "full" if full else "standard"


def injected(help: str, *, training: bool = False) -> Any:
    """The field of --inject. help: what faults it knows; training: those of a training."""
    option = CommandOption(
        "--inject",
        f"preview the report of a fault: {help}",
        group=SELDOM,
        metavar="FAULT",
        multiple=True,
        default=(),
    )
    return made_of((), partial(faults.read, training=training), option)


@dataclass(frozen=True)
class JobOptions:
    """What a user may say of any job. begin: how its ranks are started and find each other."""

    nproc_per_node: int | None = typed(
        None,
        "--nproc-per-node",
        "ranks per node; default: one per GPU, else by cores",
        NumberRange(1, MOST_RANKS, whole=True),
        group=WHERE,
        metavar="N",
        site=True,
    )
    begin: JobStart = made_of(
        JobStart,
        starts.read,
        CommandOption(
            "--start",
            "what starts the ranks of a node: torchrun, or torch.multiprocessing.spawn  "
            "[default: torchrun; spawn for tcp and file]",
            WordChoice(starts.STARTS),
            group=WHERE,
            site=WordChoice(starts.STARTS),
        ),
        CommandOption(
            "--init",
            "how ranks find each other, as init_method says in your script  [default: env]",
            WordChoice(starts.INITS),
            group=WHERE,
            site=WordChoice(starts.INITS),
        ),
        CommandOption(
            "--init-method",
            "the very place: tcp://HOST:PORT or file:///PATH; it is tried before the job",
            group=WHERE,
            metavar="URL",
        ),
    )
    backend: str = typed(
        "auto",
        "--backend",
        "backend; with nccl several simulated nodes may share a GPU",
        WordChoice(("auto", "nccl", "gloo")),
        group=WHERE,
        show_default=True,
        site=True,
    )
    inject: tuple[str, ...] = injected(faults.FORMS)


@dataclass(frozen=True)
class BenchOptions(JobOptions):
    """The options of `bench` itself. min_busbw: GB/s by operation, below which it fails."""

    inject: tuple[str, ...] = injected(f"{faults.FORMS}; {faults.NUMBERED}")
    ops: tuple[Op, ...] | None = made_of(
        None, ops, CommandOption("--ops", f"operations: {', '.join(OPS)}", metavar="LIST", site=Text())
    )
    sizes: tuple[int, ...] | None = made_of(
        None,
        sizes,
        CommandOption("--sizes", "bytes: a range 1K:256M:x4 or a list 1K,64M", metavar="SPEC", site=Text()),
    )
    reduce_op: ReduceOp = typed(
        "sum", "--reduce-op", "reduction", WordChoice(REDUCE_OPS), show_default=True, site=Text()
    )
    dtype: Dtype | None = typed(
        None, "--dtype", "element type  [default: float32]", WordChoice(DTYPES), site=Text()
    )
    time_budget: float | None = typed(
        None, "--time-budget", "seconds of measuring", NumberRange(0.1, 86400, "seconds"), metavar="S", site=True
    )
    min_busbw: dict[str, float] = made_of(
        dict,
        min_busbw,
        CommandOption(
            "--min-busbw",
            "fail below so many GB/s: 40 or all_reduce=40,all_gather=30",
            group=VERDICT,
            metavar="SPEC",
            default="",
            site=Text(),
        ),
    )
    level: Level = made_of(
        "standard",
        level,
        CommandOption("--quick", "a few operations, about 4 s of measuring", Flag(), default=False, site=Flag()),
        CommandOption(
            "--full",
            "all operations, more and larger sizes, about 90 s of measuring",
            Flag(),
            default=False,
            site=Flag(),
        ),
    )
    soak: float | None = typed(
        None, "--soak", "then repeat verified collectives for S seconds", SECONDS, metavar="S"
    )


def shape(wishes: JobOptions, nodes: list[Node], *, simulated: bool) -> JobShape:
    """Backend and ranks a node. Raises UsageError for what cannot fit."""
    gpus = [_gpus(node) for node in nodes]
    on_each = (min(gpus) // len(nodes) if simulated else min(gpus)) if gpus else 0
    if wishes.backend == "nccl" and simulated and 0 < min(gpus, default=0) < len(nodes):
        return _sharing(wishes, min(gpus), len(nodes))
    if wishes.backend == "nccl" and on_each == 0:
        raise UsageError(
            f"--backend nccl: not every node has a GPU of its own (usable GPUs: {gpus}); allowed: auto, gloo"
        )
    if wishes.backend in ("auto", "nccl") and on_each:
        ranks = wishes.nproc_per_node or on_each
        if ranks > on_each:
            has = f"{on_each} GPU{'s' * (on_each != 1)}"
            raise UsageError(f"--nproc-per-node: {ranks} ranks do not fit, each node has {has} for nccl")
        return JobShape("nccl", ranks)
    note = (
        "fewer GPUs than nodes: gloo on CPUs"
        if simulated and gpus and max(gpus) and wishes.backend == "auto"
        else ""
    )
    return JobShape("gloo", _cpu_ranks(wishes, nodes, simulated=simulated), note)


def _sharing(wishes: JobOptions, gpus: int, nodes: int) -> JobShape:
    """More simulated nodes than GPUs: one rank a node, and NCCL takes ranks of one GPU for two machines."""
    if (wishes.nproc_per_node or 1) > 1:
        raise UsageError(
            f"--nproc-per-node: {wishes.nproc_per_node} ranks do not fit; {nodes} nodes that share {gpus} "
            f"GPU{'s' * (gpus > 1)} have one rank each"
        )
    whose = "one GPU" if gpus == 1 else f"{gpus} GPUs"
    return JobShape("nccl", 1, f"{nodes} nodes share {whose}: the figures are of one card, not of a network")


def gpus_of(index: int, shape: JobShape, visible: Sequence[str]) -> list[str]:
    """The GPUs of a simulated node; its neighbours' ones where there are too few."""
    first = index * shape.ranks_per_node
    return [visible[number % len(visible)] for number in range(first, first + shape.ranks_per_node)]


def _gpus(node: Node) -> int:
    usable = at(node, "gpus.usable")
    given = variables(node).get("CUDA_VISIBLE_DEVICES")
    return 0 if isinstance(usable, Unread) or given in ("", "-1", "NoDevFiles") else int(usable)


def _cpu_ranks(wishes: JobOptions, nodes: list[Node], *, simulated: bool) -> int:
    sharing = len(nodes) if simulated else 1
    cores = min((value_or(at(node, "host.usable_cores"), 1.0) for node in nodes), default=1.0)
    most = max(1, _most_ranks(nodes) // sharing)
    if wishes.nproc_per_node is None:
        return max(1, min(most, 8, int(cores) // sharing))
    if wishes.nproc_per_node > most:
        raise UsageError(
            f"--nproc-per-node: {wishes.nproc_per_node} ranks a node do not fit here; allowed are 1 to {most} "
            "(eight a core, and 400 MiB of memory each)"
        )
    return wishes.nproc_per_node


def _most_ranks(nodes: list[Node]) -> int:
    cores = min((value_or(at(node, "host.usable_cores"), 1.0) for node in nodes), default=1.0)
    memory = min((value_or(at(node, "host.memory_available"), 2**40) for node in nodes), default=2**40)
    return min(max(8, int(8 * cores)), max(1, memory // _MEMORY_OF_A_RANK))


def job(bench: BenchOptions, shape: JobShape, nodes: list[Node], *, simulated: bool) -> JobPlan:
    """The parts of the job. Raises UsageError."""
    measured = collectives(bench, shape, nodes, simulated=simulated)
    names = [node.name for node in nodes]
    return JobPlan(
        diagnostics_s=_diagnostics(bench.level, shape, nodes),
        speed=SpeedPlan(budget_s=_SPEED_S[bench.level]),
        collectives=measured,
        soak=SoakPlan(seconds=bench.soak) if bench.soak else None,
        pairs=_pairs(bench.level) if len(nodes) > 1 else None,
        groups=GroupPlan(limit_s=_GROUP_S[shape.backend]) if grows(nodes, simulated=simulated) else None,
        injected=faults.injections(bench.inject, names, shape.ranks_per_node * len(nodes), measured.rows),
    )


def grows(nodes: list[Node], *, simulated: bool) -> bool:
    """Whether groups of nodes can show what pairs do not: simulated ones are one machine."""
    return not simulated and len(nodes) >= LEAST


def apart(level: Level, backend: str, seconds: float) -> JobPlan:
    """What is measured without a world, which could not be formed: pairs, then groups, within so many seconds."""
    groups = GroupPlan(always=True, limit_s=_GROUP_S[backend], budget_s=max(5.0, seconds - _PAIRS_S[level]))
    return JobPlan(apart=True, pairs=_pairs("quick" if level == "quick" else "standard"), groups=groups)


def _diagnostics(level: Level, shape: JobShape, nodes: list[Node]) -> float:
    """NCCL's own diagnostics need a library that has them, on every node."""
    versions = [value_or(at(node, "nccl.loaded.version"), "") for node in nodes]
    matches = [re.match(r"(\d+)\.(\d+)", version) for version in versions]
    able = all(match is not None and (int(match[1]), int(match[2])) >= _DIAGNOSTICS_SINCE for match in matches)
    return _DIAGNOSTICS_S[level] if able and shape.backend == "nccl" else 0.0


def _pairs(level: Level) -> PairPlan:
    return PairPlan(level="full" if level == "full" else "quick", budget_s=_PAIRS_S[level])


def collectives(bench: BenchOptions, shape: JobShape, nodes: list[Node], *, simulated: bool) -> CollectivePlan:
    """The rows to measure, small sizes first. Raises UsageError."""
    dtype = bench.dtype or ("int32" if bench.reduce_op in ("band", "bor", "bxor") else "float32")
    if bench.reduce_op in ("band", "bor", "bxor") and "int" not in dtype:
        raise UsageError(
            f"--reduce-op {bench.reduce_op}: needs a dtype of whole numbers, --dtype int8, uint8, int32 or int64"
        )
    if bench.reduce_op == "premul_sum" and "int" in dtype:
        raise UsageError(
            "--reduce-op premul_sum: multiplies by a factor, --dtype float32, float64, float16 or bfloat16"
        )
    wanted = bench.ops or {"quick": _QUICK_OPS, "standard": _DEFAULT_OPS, "full": OPS}[bench.level]
    given = bench.sizes or _default_sizes(bench.level, shape.backend)
    rows = [Row(op=op, bytes=size) for op in wanted for size in ((0,) if op == "barrier" else given)]
    rows.sort(key=lambda row: row.bytes)  # what is cheap is measured before the time is used up
    sharing = shape.ranks_per_node * (len(nodes) if simulated else 1)
    available = min((value_or(at(node, "host.memory_available"), 2**32) for node in nodes), default=2**32)
    memory = available // 2 // sharing if shape.backend == "gloo" else 2**36
    return CollectivePlan(
        rows=rows, dtype=dtype, reduce_op=bench.reduce_op, budget_s=budget(bench), memory=max(2**20, memory)
    )


def _default_sizes(level: Level, backend: str) -> tuple[int, ...]:
    """Latency, a middle size, and where bandwidth has levelled off."""
    largest = "64M" if backend == "gloo" else "1G"
    return sizes(
        {"quick": f"1K,1M,{largest}", "standard": f"1K,64K,1M,16M,{largest}", "full": f"1K:{largest}:x4"}[level]
    )


def budget(bench: BenchOptions) -> float:
    """Seconds of measuring."""
    return bench.time_budget or {"quick": 4.0, "standard": 20.0, "full": 90.0}[bench.level]


def stated_seconds(bench: BenchOptions) -> float:
    """How long `bench` says beforehand that it will take."""
    return _without_soak(bench) + (bench.soak or 0.0)


def _without_soak(bench: BenchOptions) -> float:
    return _STARTUP_S + _SPEED_S[bench.level] + budget(bench) + _PAIRS_S[bench.level]


def default_deadline(command: str, bench: BenchOptions | None = None) -> float:
    """Seconds from the program's start until the report, by design §4."""
    if bench is None or command == "env":
        return 30.0
    return max(120.0, 3 * _without_soak(bench)) + (bench.soak or 0.0)

"""`bench --with VAR=VALUE`: what is tried, how often, and within which time. Pure."""

from __future__ import annotations

import dataclasses
import difflib
import re
from dataclasses import dataclass

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Node
from ncclcheck.probes.job.context import JobPlan, Op
from ncclcheck.reports.subjects.nccl.variables import effective, reference
from ncclcheck.run.plan import bench_plan, faults
from ncclcheck.run.plan.bench_plan import BenchOptions, JobShape, Level

FORM = "VAR=VALUE, where VAR begins with NCCL_, GLOO_ or TORCH_NCCL_ (VAR= takes it away)"
PAIRS: dict[Level, int] = {"quick": 4, "standard": 6, "full": 10}
_OPS: tuple[Op, ...] = ("all_reduce", "all_gather")
_SIZES = {"gloo": "1K,1M,16M", "nccl": "1K,1M,1G"}
_MEASURING_S: dict[Level, float] = {"quick": 12.0, "standard": 24.0, "full": 90.0}
_JOB_S = 8.0  # torchrun, import and rendezvous of one job
_LONGEST = 1000  # characters of a value: no NCCL variable needs more; bounds the input


@dataclass(frozen=True)
class TriedSetting:
    """A variable and what it is to be; None takes it away, as NCCL reads an empty value."""

    variable: str
    value: str | None

    def __str__(self) -> str:
        return f"{self.variable}={self.value or ''}"


def setting(given: str) -> TriedSetting:
    """`NCCL_ALGO=Tree` or `NCCL_ALGO=`. Raises UsageError."""
    name, equals, value = given.partition("=")
    known = re.fullmatch(r"(NCCL|GLOO|TORCH_NCCL)_[A-Z0-9_]{1,80}", name)
    if not known or not equals:
        raise UsageError(f"--with: {given[:100]!r} is not understood; allowed is {FORM}")
    if len(value) > _LONGEST or not (value.isascii() and value.isprintable()):
        raise UsageError(
            f"--with: the value of {name} cannot be used; allowed are up to {_LONGEST} printable ASCII characters"
        )
    return TriedSetting(name, value or None)


def doubt(setting: TriedSetting) -> str:
    """What to say of a name that is on no list of ours; the names of NCCL are judged by the nodes' own library."""
    if setting.variable in reference() or setting.variable.startswith("NCCL_"):
        return ""
    near = difflib.get_close_matches(setting.variable, reference(), 1, 0.75)
    return f"--with: {setting.variable} is no name that we know" + (f"; did you mean {near[0]}?" if near else "")


def refuse(setting: TriedSetting, shape: JobShape, nodes: list[Node], *, simulated: bool) -> None:
    """Raises UsageError where the setting cannot make a difference to this job."""
    name, idle = setting.variable, "it cannot make a difference here"
    if shape.backend == "gloo" and not name.startswith("GLOO_"):
        raise UsageError(f"--with {setting}: {idle}: the job uses gloo, which does not read {name}")
    if shape.backend == "nccl" and name.startswith("GLOO_"):
        raise UsageError(
            f"--with {setting}: {idle}: the job uses nccl, which does not read {name}; or --backend gloo"
        )
    if shape.ranks_per_node * len(nodes) == 1:
        raise UsageError(f"--with {setting}: {idle}: one rank sends nothing; take --nproc-per-node 2 or --nodes 2")
    if simulated and name == "NCCL_HOSTID":
        raise UsageError(f"--with {setting}: {idle}: each simulated node has one of its own")
    values = [effective(node)[name].value if name in effective(node) else None for node in nodes]
    if all(value == setting.value for value in values):
        has = (
            f"{name} has that value already; {name}= tries the job without it"
            if setting.value
            else "it is not set"
        )
        raise UsageError(f"--with {setting}: {idle}: {has}")


def job(bench: BenchOptions, shape: JobShape, nodes: list[Node], *, simulated: bool) -> JobPlan:
    """One of the short jobs: a few rows, within its share of the measuring. Raises UsageError."""
    share = _budget(bench) / (2 * PAIRS[bench.level])
    sizes = bench.sizes or bench_plan.sizes(_SIZES[shape.backend])
    short = dataclasses.replace(bench, ops=bench.ops or _OPS, sizes=sizes, time_budget=share)
    measured = bench_plan.collectives(short, shape, nodes, simulated=simulated)
    ranks = shape.ranks_per_node * len(nodes)
    injected = faults.injections(bench.inject, [node.name for node in nodes], ranks, measured.rows)
    return JobPlan(collectives=measured, injected=injected)


def stated_seconds(bench: BenchOptions) -> float:
    """How long it is said beforehand to take."""
    return 2 * PAIRS[bench.level] * _JOB_S + _budget(bench)


def _budget(bench: BenchOptions) -> float:
    """Seconds of measuring in all jobs together."""
    return bench.time_budget or _MEASURING_S[bench.level]


def default_deadline(bench: BenchOptions) -> float:
    """Seconds from the program's start until the report, by design §4."""
    return max(120.0, 3 * stated_seconds(bench))

"""How `data` examines a dataset, within which time: options and facts -> plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ncclcheck.probes.facts import Node, Unread, at, replace, value_or
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.run.plan.bench_plan import MOST_RANKS
from ncclcheck.run.plan.option_table import SECONDS, WHERE, Json, NumberRange, typed

_STARTUP_S = 8.0  # s for import of torch and the children, in the forecast only; chosen
_WORKERS = 4  # workers where none are given: enough that races between them show; chosen


@dataclass(frozen=True)
class DataOptions:
    """The options of `data` itself. need: samples a second that one rank's GPU takes; 0: not said."""

    factory: str
    kwargs: dict[str, Any] = typed(dict, "--kwargs", "keyword arguments for the factory", Json(), metavar="JSON")
    time_budget: float = typed(
        30.0,
        "--time-budget",
        "seconds for reading and measuring, once the factory is done",
        SECONDS,
        metavar="S",
        show_default=True,
        site=True,
    )
    factory_limit: float = typed(
        300.0,
        "--factory-limit",
        "time limit of the factory in seconds",
        SECONDS,
        metavar="S",
        show_default=True,
        site=True,
    )
    workers: int | None = typed(
        None,
        "--workers",
        "processes that read concurrently  [default: by cores, at most 4]",
        NumberRange(1, 64, whole=True),
        metavar="N",
        site=True,
    )
    need: float = typed(
        0.0,
        "--need",
        "samples per second that one GPU needs",
        NumberRange(0, 1e9, "samples a second"),
        metavar="N",
        site=True,
    )
    nproc_per_node: int | None = typed(
        None,
        "--nproc-per-node",
        "ranks per node in your job; default: its GPUs",
        NumberRange(1, MOST_RANKS, whole=True),
        group=WHERE,
        metavar="N",
        site=True,
    )


def named(data: DataOptions, *, directory: str) -> DataPlan:
    """What the examiner does, as far as the command line alone says it: for two ranks on one node."""
    return DataPlan(
        factory=data.factory,
        kwargs=data.kwargs,
        directory=directory,
        budget_s=data.time_budget,
        factory_s=data.factory_limit,
        workers=data.workers or _WORKERS,
        need=data.need,
    )


def plan(data: DataOptions, nodes: Mapping[int, Node], index: int, *, directory: str) -> DataPlan:
    """What the examiner of one node does. Two ranks are emulated where there would be one."""
    node = nodes[index]
    ranks = data.nproc_per_node or _gpus(node)
    return replace(
        named(data, directory=directory),
        node=node.name,
        node_index=index,
        nodes=len(nodes),
        ranks=max(2, min(8, len(nodes) * ranks)),
        ranks_per_node=ranks,
        workers=data.workers or max(2, min(_WORKERS, int(value_or(at(node, "host.usable_cores"), 2.0)))),
    )


def _gpus(node: Node) -> int:
    usable = at(node, "gpus.usable")
    return 1 if isinstance(usable, Unread) else max(1, int(usable))


def stated_seconds(data: DataOptions) -> float:
    """How long `data` says beforehand that it will take; the factory's own time comes on top."""
    return _STARTUP_S + data.time_budget


def default_deadline(data: DataOptions) -> float:
    """Seconds from the program's start until the report, by design §4, with the factory's limit on top."""
    return max(120.0, 3 * stated_seconds(data)) + data.factory_limit

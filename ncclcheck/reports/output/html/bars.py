"""Memory by rank, and where the time of a training step goes, rank by rank."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from statistics import median

from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ncclcheck.probes.facts import Cluster, Policy, RankMemory
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output.html.picture import INK, SERIES, Figure, Table, axis, draw, named
from ncclcheck.reports.subjects.training import step_losses, step_times
from ncclcheck.reports.subjects.training.step_times import StepRow, Steps
from ncclcheck.reports.text.words.fold import size

# in one picture: chosen, of more than 64 bars the labels overlap; beyond that a bar is a block of ranks
_MOST_BARS = 64
_MOST_STEPS = 24  # ranks in the picture, the slowest: chosen, 24 rows are 8 inches high, one screen
_HATCHES = ("", "///", "", "...", "xx", "", "\\\\\\", "")
_MEMORY = ("rank", "node", "device", "counted by", "after init", "in steps", "peak", "of")
_PARTS: tuple[tuple[str, Callable[[StepRow], float]], ...] = (
    ("data", lambda row: row.full.phases.data),
    ("to device", lambda row: row.full.phases.to_device),
    ("forward", lambda row: row.full.phases.forward),
    ("backward", lambda row: max(0.0, row.full.phases.backward - row.wait - row.comm)),
    ("wait", lambda row: row.wait),
    ("communication", lambda row: row.comm),
    ("optimizer", lambda row: row.full.phases.optimizer),
)


def memory(document: Document) -> Figure | None:
    """None where no rank told its peak."""
    memories = document.measurements.memory.ranks
    ranks = sorted((rank for rank in memories if rank.peak is not None), key=lambda rank: rank.rank)
    if not ranks:
        return None
    per_bar = ceil(len(ranks) / _MOST_BARS)
    blocks = [ranks[start : start + per_bar] for start in range(0, len(ranks), per_bar)]
    worst = [max(block, key=_peak) for block in blocks]

    def paint(canvas: Canvas) -> None:
        axes = canvas.subplots()
        places = range(len(blocks))
        axes.bar(places, [_peak(rank) for rank in worst], color=SERIES[0], label="peak")
        medians = [median(rank.after_init or 0 for rank in block) for block in blocks]
        if any(medians):
            axes.scatter(places, medians, color=SERIES[1], marker="_", s=80, label="after init")
        if totals := {rank.total for rank in ranks if rank.total}:
            axes.axhline(min(totals), color=INK, linestyle="--", linewidth=1, label="of the GPU")
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: _label(blocks, at)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: size(at)))
        axis(axes, "rank", "memory")
        axes.legend(fontsize=8)

    rows = [_memory_row(rank) for rank in sorted(ranks, key=_peak, reverse=True)]
    svg = draw("memory", (8.4, 2.8), paint)
    return Figure("memory", "Memory by rank", _memory_told(ranks, per_bar), svg, Table(_MEMORY, rows))


def _peak(rank: RankMemory) -> int:
    return rank.peak or 0


def _label(blocks: list[list[RankMemory]], at: float) -> str:
    place = round(at)
    return str(blocks[place][0].rank) if 0 <= place < len(blocks) else ""


def _memory_row(rank: RankMemory) -> tuple[str, ...]:
    sizes = [
        "-" if value is None else size(value) for value in (rank.after_init, rank.in_steps, rank.peak, rank.total)
    ]
    return (str(rank.rank), rank.node, rank.device, rank.by, *sizes)


def _memory_told(ranks: list[RankMemory], per_bar: int) -> str:
    most, least = max(ranks, key=_peak), min(ranks, key=_peak)
    words = f"rank {most.rank} on {most.node} holds most, {size(_peak(most))} at its peak"
    if most is not least:
        words += f"; the median is {size(median(map(_peak, ranks)))}, the least {size(_peak(least))}"
    blocks = f"; a bar is the worst of {per_bar} ranks" if per_bar > 1 else ""
    return f"{words}{blocks}."


def steps(document: Document) -> Figure | None:
    """None where no steps were timed."""
    cluster = Cluster(command=document.command, measurements=document.measurements, policy=Policy())
    measured = step_times.steps(cluster)
    if measured is None:
        return None
    slowest = sorted(measured.rows, key=lambda row: -row.twin.own_us.p50)
    shown = sorted(slowest[:_MOST_STEPS], key=lambda row: row.fact.rank)
    svg = draw("steps", (8.4, 1.5 + 0.28 * len(shown)), lambda canvas: _stack(canvas, shown))
    headers = ("rank", "node", *(f"{name}, ms" for name, _ in _PARTS), "step, ms")
    table = Table(headers, [_step_row(row) for row in slowest])
    return Figure("steps", "Where the time of a step goes", _steps_told(cluster, measured, len(shown)), svg, table)


def _stack(canvas: Canvas, rows: list[StepRow]) -> None:
    axes = canvas.subplots()
    places, left = range(len(rows)), [0.0] * len(rows)
    for number, (name, part) in enumerate(_PARTS):
        widths = [part(row) / 1000 for row in rows]
        axes.barh(
            places, widths, left=left, color=SERIES[number], hatch=_HATCHES[number], edgecolor=INK,
            linewidth=0.3, label=name,
        )  # fmt: skip
        left = [start + width for start, width in zip(left, widths, strict=True)]
    steps_ms = [row.full.step_us.p50 / 1000 for row in rows]
    axes.scatter(steps_ms, places, color=INK, marker="|", s=80, label="whole step")
    axes.set_yticks(places, [f"{row.fact.rank} {named(row.fact.node)}" for row in rows])
    axes.invert_yaxis()
    axis(axes, "ms of the median step", "rank")
    canvas.legend(fontsize=8, ncols=8, loc="outside upper center")


def _step_row(row: StepRow) -> tuple[str, ...]:
    times = [*(part(row) for _, part in _PARTS), row.full.step_us.p50]
    return (str(row.fact.rank), row.fact.node, *(f"{us / 1000:.2f}" for us in times))


def _steps_told(cluster: Cluster, measured: Steps, shown: int) -> str:
    left = len(measured.rows) - shown
    more = f" The {shown} ranks whose own work takes longest are drawn, of {len(measured.rows)}." if left else ""
    return f"{step_losses.sentence(cluster, measured)}{more}"

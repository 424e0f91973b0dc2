"""Where the time of training steps went: one table of ranks, what should stand there, and one plain sentence."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from ncclcheck.probes.facts import Cluster, Measurements, Policy
from ncclcheck.probes.facts.training import Phases, Setup
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.training import step_losses, step_times
from ncclcheck.reports.subjects.training.step_times import StepRow, Steps
from ncclcheck.reports.text import measured as beside
from ncclcheck.reports.text.words.fold import duration, size
from ncclcheck.reports.text.words.wrapping import wrapped

# rows of ranks, the slowest; characters to which a node's name may be cut: chosen, for 80 columns
_MOST, _SHORTEST = 8, 4
_PARTS: tuple[tuple[str, Callable[[Phases], float]], ...] = (
    ("data", lambda parts: parts.data),
    ("to dev", lambda parts: parts.to_device),
    ("forward", lambda parts: parts.forward),
    ("backward", lambda parts: parts.backward),
)


def text(document: Document, width: int) -> str:
    """Empty where no steps were timed."""
    cluster = _cluster(document)
    measured = step_times.steps(cluster)
    if measured is None:
        return ""
    labelled = [
        ("training", _trained(cluster.measurements)),
        ("speed", _speed(measured)),
        ("memory", _memory(cluster.measurements)),
    ]
    lines = [line for label, words in labelled if words for line in _wrapped(words, width, f"  {label:<10} ")]
    if not cluster.measurements.collectives:
        lines += beside.lines(cluster.measurements, width)
    remarks = [_expected(cluster, measured), step_losses.sentence(cluster, measured)]
    sentences = [line for remark in remarks for line in _wrapped(remark, width, "  ", "    ")]
    return "\n".join([*lines, "", *_table(cluster, measured, width), "", *sentences])


def _cluster(document: Document) -> Cluster:
    """What the sentence looks at; the limits of the site only matter to rules."""
    return Cluster(command=document.command, measurements=document.measurements, policy=Policy())


def _wrapped(words: str, width: int, first: str, rest: str = " " * 13) -> list[str]:
    return wrapped(words, width, first=first, rest=rest)


def _trained(measurements: Measurements) -> str:
    setup = measurements.smoke.setup if measurements.smoke else None
    return "" if setup is None else _setup(setup)


def _setup(setup: Setup) -> str:
    accumulated = f" in {setup.accumulate} micro-batches" if setup.accumulate > 1 else ""
    data = "" if setup.data == setup.model else f" on {setup.data}"
    return (
        f"{setup.model}{data}, {setup.parameters:,} parameters, {setup.strategy}, {setup.precision}; "
        f"{setup.batch} samples a rank and step{accumulated}"
    )


def _speed(measured: Steps) -> str:
    """Samples beside steps: a slower step may only be a larger batch of all ranks."""
    rate, ranks, alone = measured.samples_a_second, len(measured.rows), measured.alone
    words = f"{1e6 / measured.step:.3g} steps/s of {measured.samples} samples: {rate:.4g} samples/s"
    if alone is None or ranks == 1:
        return f"{words}; no expectation, for no rank was timed alone"
    expected = measured.samples / alone * 1e6
    return f"{words}; {expected:.4g} are expected, {ranks} times as many as one rank reaches alone"


def _memory(measurements: Measurements) -> str:
    """Around the wrap and over the steps: the rank that holds most, and what DDP adds."""
    ranks = [rank for rank in measurements.memory.ranks if rank.after_wrap and rank.in_steps]
    if not ranks:
        return ""
    most = max(ranks, key=lambda rank: rank.in_steps or 0)
    side = measurements.smoke.side if measurements.smoke else None
    buckets = sum(side.communication.buckets) if side and side.communication else 0
    added = f", {size(buckets)} of which DDP's buckets may take" if buckets else ""
    before = f"{size(most.before_wrap)} before the wrap, " if most.before_wrap else ""
    return (
        f"rank {most.rank}: {before}{size(most.after_wrap or 0)} after it{added}; {size(most.in_steps or 0)} at "
        f"the peak of the steps, the median rank {size(median(rank.in_steps or 0 for rank in ranks))}"
    )


def _table(cluster: Cluster, measured: Steps, width: int) -> list[str]:
    """Milliseconds; of many ranks the slowest ones. Long names of nodes are cut where the table is too wide."""
    slowest = sorted(measured.rows, key=lambda row: -row.twin.own_us.p50)[:_MOST]
    rows = sorted(slowest, key=lambda row: row.fact.rank)
    longest = max(len(row.fact.node) for row in rows)
    lines = _lines(cluster, rows, longest)
    if (over := max(map(len, lines)) - width) > 0:
        lines = _lines(cluster, rows, max(_SHORTEST, longest - over))
    more = len(measured.rows) - len(rows)
    return [*lines, f"  and {more} ranks whose own work takes less"] if more else lines


def _lines(cluster: Cluster, rows: list[StepRow], longest: int) -> list[str]:
    from tabulate import tabulate  # noqa: PLC0415 - costs `env` 20 ms, which has no table

    saved = _saved(cluster.measurements)
    headers = ["rank", "node", *(name for name, _ in _PARTS), "wait", "comm", "optim", "step"]
    cells = [_cells(row, longest) for row in rows]
    if saved is not None:
        headers.append("save")
        cells = [[*line, _ms(saved) if row.fact.rank == 0 else "-"] for row, line in zip(rows, cells, strict=True)]
    aligned = ["right", "left", *["right"] * (len(headers) - 2)]
    body = tabulate([headers, *cells], tablefmt="plain", disable_numparse=True, colalign=aligned)
    return ["  " + line.rstrip() for line in body.splitlines()]


def _cells(row: StepRow, longest: int) -> list[str]:
    """Of the step with collectives; of its backward pass without waiting and communication."""
    parts = [part(row.full.phases) for _, part in _PARTS]
    parts[-1] = max(0.0, parts[-1] - row.wait - row.comm)
    rest = [row.wait, row.comm, row.full.phases.optimizer, row.full.step_us.p50]
    return [str(row.fact.rank), row.fact.node[:longest], *map(_ms, [*parts, *rest])]


def _ms(us: float) -> str:
    return f"{us / 1000:.1f}" if us < 1e6 else f"{us / 1000:.0f}"


def _saved(measurements: Measurements) -> float | None:
    """Microseconds in which rank 0 writes a checkpoint, and the others wait."""
    saves = measurements.smoke.saves if measurements.smoke else None
    return saves.reloaded.write_s * 1e6 if saves and saves.reloaded else None


def _expected(cluster: Cluster, measured: Steps) -> str:
    """What the columns should be."""
    communication = step_losses.communication(cluster)
    comm = "comm has no expectation on CPUs, where it takes the cores of backward"
    if measured.on_gpus:
        comm = "comm has none, for it was not measured alone"
        if communication:
            comm = f"comm about {duration(step_times.exposure(communication, measured))}"
    alone = f" ({duration(communication.alone_us.p50)} alone)" if communication else ""
    return (
        f"ms of the median step; expected: data and wait 0, {comm}{alone}; forward, backward and optim have no "
        "expectation but to be alike on all ranks. wait: for slower ranks; comm: what backward does not hide."
    )

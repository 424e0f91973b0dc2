"""A watched job over time: when each rank lived and how it ended, and what its nodes used meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter

from ncclcheck.probes.facts import Box, BoxProcess, BoxSample, Cluster
from ncclcheck.probes.facts.run.course import signal_name
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output.html.picture import SERIES, Figure, Table, axis, draw, named
from ncclcheck.reports.subjects.box import first, pace, words
from ncclcheck.reports.text.words.fold import duration, size

# rows of ranks, nodes with courses, events in the table: chosen for a picture of at most 14 inches and a page
# below 5 MB
_MOST_RANKS, _MOST_NODES, _MOST_ROWS = 64, 8, 200
_WELL, _BADLY = SERIES[0], SERIES[3]
_HEADERS = ("time, UTC", "after the start", "what")
_Panel = tuple[str, Callable[[BoxSample], float], Callable[[float], str]]
_PANELS: tuple[_Panel, ...] = (
    ("memory", lambda sample: sample.rss, size),
    ("cores", lambda sample: sample.cores, lambda at: f"{at:g}"),
    ("sent a second", lambda sample: sample.sent, size),
    ("slowest clock, MHz", lambda sample: min(sample.clocks, default=0), lambda at: f"{at:g}"),
)


def figure(document: Document) -> Figure | None:
    """None where no job was watched."""
    boxes = document.measurements.boxes
    if not boxes or not any(box.processes or box.samples for box in boxes):
        return None
    start = min(box.started for box in boxes)
    lines = sorted(
        ((box, principal) for box in boxes for principal in first.principals(box)),
        key=lambda row: (row[1].rank, row[0].host),
    )
    events = sorted(_events(document), key=lambda row: row[0])
    panels = [panel for panel in _PANELS if any(panel[1](sample) for box in boxes for sample in box.samples)]

    def paint(canvas: Canvas) -> None:
        shown = lines[:_MOST_RANKS]
        heights = [max(1.2, 0.22 * len(shown)), *(1.0 for _ in panels)]
        rows = canvas.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
        _lives(rows[0], shown, start)
        for axes, (label, value, form) in zip(rows[1:], panels, strict=True):
            _course(axes, boxes[:_MOST_NODES], start, value)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _, form=form: form(max(0.0, at))))
            axis(axes, "", label)
        for t, _, marked in events:
            for axes in rows if marked else ():
                axes.axvline(t - start, color=_BADLY, linewidth=1, linestyle="--")
        rows[-1].set_xlabel("after the start of COMMAND")
        rows[-1].xaxis.set_major_formatter(FuncFormatter(lambda at, _: duration(max(0.0, at) * 1e6)))

    tall = max(1.2, 0.22 * min(len(lines), _MOST_RANKS)) + 1.3 * len(panels) + 0.8
    table = Table(
        _HEADERS, [(words.clock(t), f"{t - start:+.1f} s", event) for t, event, _ in events[:_MOST_ROWS]]
    )
    return Figure(
        "timeline", "The job over time", _told(boxes, lines), draw("timeline", (8.4, tall), paint), table
    )


def _lives(axes: Axes, lines: Sequence[tuple[Box, BoxProcess]], start: float) -> None:
    """A bar a rank, from its start to its end."""
    for place, (box, process) in enumerate(lines):
        end = process.gone or box.ended or box.last
        bad = process.status not in (None, 0)
        axes.barh(place, end - process.born, left=process.born - start, height=0.6, color=_BADLY if bad else _WELL)
    axes.set_yticks(range(len(lines)), [_name(box, rank) for box, rank in lines], fontsize=7)
    axes.invert_yaxis()
    axis(axes, "", "")


def _name(box: Box, process: BoxProcess) -> str:
    return named(f"{process.rank if process.rank >= 0 else process.pid} on {box.host}")


def _course(axes: Axes, boxes: Sequence[Box], start: float, value: Callable[[BoxSample], float]) -> None:
    """A line a node."""
    for number, box in enumerate(boxes):
        times = [sample.t - start for sample in box.samples]
        values = [value(sample) for sample in box.samples]
        axes.plot(times, values, color=SERIES[number % len(SERIES)], linewidth=1, label=named(box.host))
    axes.set_ylim(bottom=0)
    if len(boxes) > 1:
        axes.legend(fontsize=7, loc="upper left")


def _events(document: Document) -> Iterator[tuple[float, str, bool]]:
    """When, what, and whether it is marked in the picture: the first failure, stalls, and where it became slow."""
    cluster = Cluster(command=document.command, job=document.job, measurements=document.measurements)
    end = first.end(cluster)
    if end.first is not None:
        yield end.first.t, f"first: {words.heading(end.first)}", True
    yield from ((failure.t, words.heading(failure), False) for failure in end.then)
    if (slow := pace.slow(cluster)) is not None:
        yield slow.t, f"{slow.box.host}: the job becomes slow", True
    for box in document.measurements.boxes:
        yield from (
            (stall.t - stall.silent, f"{box.host}: no sign of life from here on", True) for stall in box.stalls
        )
        yield from ((signal.t, f"{box.host}: {signal_name(signal.number)} came", False) for signal in box.signals)
        yield from ((row.t, f"{box.host}: {row.text}", False) for row in [*box.kernel, *box.network])
        yield from ((xid.t, f"{box.host}: Xid {xid.code} of GPU {xid.gpu}", False) for xid in box.xids)
        yield from (
            (peer.t, f"{box.host}: no answer from {', '.join(peer.by)}", False) for peer in box.peers if peer.by
        )


def _told(boxes: Sequence[Box], lines: Sequence[tuple[Box, BoxProcess]]) -> str:
    bad = sum(process.status not in (None, 0) for _, process in lines)
    more = f" The first {_MOST_RANKS} of {len(lines)} are drawn." if len(lines) > _MOST_RANKS else ""
    nodes = f" Courses of the first {_MOST_NODES} of {len(boxes)} nodes." if len(boxes) > _MOST_NODES else ""
    return (
        f"{len(lines)} processes on {len(boxes)} node{'s' * (len(boxes) != 1)}; {bad} ended badly, drawn in "
        f"another colour. Dashed lines: the first failure, a stall, a change of pace.{more}{nodes}"
    )

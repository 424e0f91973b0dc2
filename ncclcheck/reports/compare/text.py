"""A comparison as people read it: what differs, the rows, what changed on nodes; the last line is the decision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ncclcheck.reports.compare.changes import FactChange
from ncclcheck.reports.compare.result import ComparedEnd, ComparisonResult
from ncclcheck.reports.compare.rows import RowChange, RowSide
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.output.terminal import Style
from ncclcheck.reports.text.words.fold import duration, fold_names, many, size
from ncclcheck.reports.text.words.wrapping import wrapped

_HEADERS = ("operation", "size", "before", "after", "speed", "verdict")
_STATES = {"worse": State.FAIL, "better": State.OK, "changed": State.NOTE, "unseen": State.UNKNOWN}
_MOST_CHANGES = 20  # changes of one verdict that are listed: chosen, fits a screen of 24 lines; -v lists all


def text(result: ComparisonResult, style: Style) -> str:
    """The whole comparison."""
    blocks = [
        f"ncclcheck {result.version}   report --compare",
        "\n".join(_heads(result, style)),
        "\n".join(_rows(result, style)),
        "\n".join(_facts(result, style)),
        decision(result),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def short(result: ComparisonResult, style: Style) -> str:
    """What is worse, a line each, and the decision."""
    rows = [f"{_name(row)}: {_speed(row)} speed {row.reason}".rstrip() for row in result.rows_of("worse")]
    facts = [f"{_nodes(change)}{change}" for change in result.changes_of("worse")]
    silent = [f"{fold_names(result.silent)}: did not answer"] if result.silent else []
    lines = [style.paint(State.FAIL, "worse") + f"  {line}" for line in [*rows, *facts, *silent]]
    return "\n".join([*lines, decision(result)]) + "\n"


def decision(result: ComparisonResult) -> str:
    """One sentence; the exit code says the same."""
    rows, facts = len(result.rows_of("worse")), len(result.changes_of("worse")) + len(result.silent)
    if rows or facts:
        parts = [many(rows, "row")] * bool(rows) + [many(facts, "fact")] * bool(facts)
        return f"Worse: {' and '.join(parts)}."
    unsure = len(result.rows_of("inconclusive")) + len(result.rows_of("incomparable"))
    left = f" {many(unsure, 'row')} could not be judged." if unsure else ""
    return f"Nothing is worse.{left}"


def _heads(result: ComparisonResult, style: Style) -> Iterator[str]:
    for label, end in (("before", result.before), ("after", result.after)):
        yield from _lines(f"  {label:11}", _end(end), style.width)
    for kind in ("shape", "hardware", "software"):
        differences = [difference for difference in result.differences if difference.kind == kind]
        fields = [getattr(end.fingerprint, kind) for end in (result.before, result.after)]
        if not differences:
            yield f"  {kind:11}" + ("the same" if fields[0].keys() & fields[1].keys() else "not reported by both")
        for difference in differences:
            yield from _lines(f"  {kind:11}", str(difference), style.width)
    for label, names in (("new", result.new), ("gone", result.gone), ("silent", result.silent)):
        if names:
            yield from _lines(f"  {label:11}", fold_names(names), style.width)


def _end(end: ComparedEnd) -> str:
    shape = end.fingerprint.shape
    ranks = f", {shape['ranks']} ranks, {shape['backend']}" if shape["ranks"] != "0" else ""
    simulated = " SIMULATED" if shape["simulated"] == "yes" else ""
    return f"{end.file}: {end.command} of {end.started}, {fold_names(end.nodes)}{simulated}{ranks}"


def _lines(label: str, words: str, width: int) -> list[str]:
    return wrapped(
        words, width, first=label, rest=" " * len(label),
    )  # fmt: skip


def _rows(result: ComparisonResult, style: Style) -> Iterator[str]:
    """The table, and why rows could not be judged, each reason once."""
    if not result.rows:
        return
    from tabulate import tabulate  # noqa: PLC0415 - most commands have no such table

    body = tabulate(
        [_cells(row) for row in result.rows],
        headers=_HEADERS,
        tablefmt="plain",
        colalign=("left", "right", "right", "right", "right", "left"),
        disable_numparse=True,
    )
    yield from ("  " + line.rstrip() for line in body.splitlines())
    for reason, rows in _by_reason(result.rows).items():
        names = list(dict.fromkeys(row.op for row in rows))
        yield from _lines("  ", f"{rows[0].verdict} {', '.join(names)}: {reason}", style.width)
    yield from _lines(
        "  ",
        "before, after: busbw, else the time, of the median iteration. speed: after against before, as far as the "
        "95 % intervals of both medians let it be known.",
        style.width,
    )


def _by_reason(rows: Iterable[RowChange]) -> dict[str, list[RowChange]]:
    groups: dict[str, list[RowChange]] = {}
    for row in rows:
        if row.reason:
            groups.setdefault(row.reason, []).append(row)
    return groups


def _cells(row: RowChange) -> tuple[str, ...]:
    bytes_ = size(row.bytes) if row.bytes else "-"
    return (row.op, bytes_, _figure(row.before), _figure(row.after), _speed(row), row.verdict)


def _figure(side: RowSide | None) -> str:
    if side is None:
        return "-"
    return duration(side.p50_us) if side.busbw_gb_s is None else f"{side.busbw_gb_s:.3g} GB/s"


def _speed(row: RowChange) -> str:
    if row.speed is None:
        return "-"
    if row.speed_low is None or row.speed_high is None:
        return f"{_percent(row.speed)} %"
    return f"{_percent(row.speed_low)} to {_percent(row.speed_high)} %"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f}" if abs(ratio - 1) >= 0.005 else "0"


def _name(row: RowChange) -> str:
    return f"{row.op} {size(row.bytes)}" if row.bytes else row.op


def _facts(result: ComparisonResult, style: Style) -> Iterator[str]:
    """By verdict, the worst first; what could not be read in one of the two is counted unless asked for."""
    if not result.changes:
        yield "  facts      nothing that is compared changed on the nodes that both files hold"
    for verdict in ("worse", "changed", "better", "unseen"):
        changes = result.changes_of(verdict)
        most = len(changes) if style.verbose else 0 if verdict == "unseen" else _MOST_CHANGES
        for change in changes[:most]:
            first = style.paint(_STATES[verdict], f"{verdict:9}")
            lines = _lines(" " * 9, f"{_nodes(change)}{change}", style.width)
            yield from ["\n".join([first + lines[0][9:], *lines[1:]])]
        if len(changes) > most:
            more = len(changes) - most
            yield f"{verdict:9}{'and ' if most else ''}{more} {'more ' if most else ''}(-v shows all)"


def _nodes(change: FactChange) -> str:
    return f"{fold_names(change.nodes)}  "

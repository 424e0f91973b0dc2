"""What the job measured beside its collectives, a line a subject: the numbers behind the culprits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from ncclcheck.probes.facts import Measurements, Unread
from ncclcheck.reports.text.words.fold import duration, flops, fold_names, size
from ncclcheck.reports.text.words.wrapping import wrapped

_INDENT = 13  # columns: two, a label of ten, a space


def lines(measured: Measurements, width: int) -> list[str]:
    """A line or more for each subject that was measured, with its label, in `width` columns."""
    rows = (
        ("alone", _alone(measured)),
        ("pairs", _pairs(measured)),
        ("lateness", _lateness(measured)),
        ("transport", _transport(measured)),
        ("memory", _memory(measured)),
    )
    return [
        line
        for label, words in rows
        for line in wrapped(words, width, first=f"  {label:<10} ", rest=" " * _INDENT)
    ]


def _alone(measured: Measurements) -> str:
    """Speeds of ranks and nodes without a network, from the least to the most."""
    speeds, nodes = measured.rank_speeds, measured.node_speeds
    return "; ".join(
        filter(
            None,
            [
                _matmul([speed.matmul_gflop_s for speed in speeds]),
                _between("memory copy", [speed.memory_gb_s for speed in speeds], "GB/s"),
                _between("copy to the GPU", [speed.to_device_gb_s for speed in speeds], "GB/s"),
                _between("copy from the GPU", [speed.from_device_gb_s for speed in speeds], "GB/s"),
                _between("all_reduce within a node", [node.busbw_gb_s for node in nodes], "GB/s"),
            ],
        )
    )


def _matmul(gflops: Sequence[float | None]) -> str:
    known = [gflop for gflop in gflops if gflop is not None]
    scale, unit = flops(max(known, default=0.0))
    return _between("matrix product", [gflop / scale for gflop in known], f"{unit} a rank")


def _pairs(measured: Measurements) -> str:
    pairs = measured.pairs
    if not pairs:
        return ""
    rounds = len({pair.round for pair in pairs})
    bad = sum(pair.state != "ok" for pair in pairs)
    latencies = [pair.latency_us for pair in pairs if pair.latency_us is not None]
    speeds = [speed for pair in pairs for speed in (pair.a_to_b_gb_s, pair.b_to_a_gb_s)]
    words = [
        f"{len(pairs)} exchanges of two nodes in {rounds} round{'s' if rounds > 1 else ''}",
        f"{bad} did not succeed" if bad else "",
        _between("each way", speeds, "GB/s"),
        f"latency {_range([*map(duration, (min(latencies), max(latencies)))])}" if latencies else "",
    ]
    return "; ".join(filter(None, words))


def _lateness(measured: Measurements) -> str:
    """The latest rank; that it is no culprit is for the rules to say."""
    if len(measured.lateness) < 2:
        return ""
    latest = max(measured.lateness, key=lambda lateness: lateness.late_us.mean)
    usual = median(lateness.late_us.mean for lateness in measured.lateness)
    return (
        f"on average rank {latest.rank} on {latest.node} is the latest, by {duration(latest.late_us.mean)} an "
        f"iteration; the median rank by {duration(usual)}"
    )


def _transport(measured: Measurements) -> str:
    """Transports with their interfaces and HCAs, and how many ranks use each."""
    by_words: dict[str, set[int]] = {}
    for rank in measured.transport:
        over = {end.interface for end in rank.interfaces} | {device.name for device in rank.devices}
        kinds = (
            []
            if isinstance(rank.connections, Unread)
            else [connection.kind for connection in rank.connections if connection.count]
        )
        words = f"{', '.join(sorted({*kinds}))}" + (f" over {fold_names(sorted(over))}" if over else "")
        by_words.setdefault(words if kinds else "", set()).add(rank.rank)
    known = {words: ranks for words, ranks in by_words.items() if words}
    if len(by_words) == len(known) == 1:
        return next(iter(known))
    return "; ".join(f"{words} ({len(ranks)} rank{'s' * (len(ranks) > 1)})" for words, ranks in known.items())


def _memory(measured: Measurements) -> str:
    peaks = [rank.peak for rank in measured.memory.ranks if rank.peak is not None]
    return f"{_range([*map(size, (min(peaks), max(peaks)))])} a rank at the peak" if peaks else ""


def _between(what: str, values: Iterable[float | None], unit: str) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    middle = f" (median {median(known):.3g})" if len(known) > 2 else ""
    return f"{what} {_range([f'{known[0]:.3g}', f'{known[-1]:.3g}'])}{middle} {unit}"


def _range(ends: Sequence[str]) -> str:
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"

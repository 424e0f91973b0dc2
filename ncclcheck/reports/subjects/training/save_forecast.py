"""What a save of a large model would take, from the seconds that a small one took. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training.saves import ShardedSave
from ncclcheck.reports.judgement.findings import Finding, State, fail, note, warn

# Bytes a parameter: weights in 16 bits, as ZeRO-3 gathers them; and what a run with Adam in mixed precision needs
# to go on: 16-bit weights, 32-bit weights and two moments (2 + 4 + 4 + 4).
WEIGHTS = 2
STATE = 14  # see above

# Of what the whole is to what was measured: up to so many times, and the factor by which seconds may differ. Two
# saves of 60 MiB within two minutes on one disk gave forecasts of 571 and 1002 s for 130 GiB, 1.75 times apart.
_MARGINS = ((10.0, 1.3), (100.0, 1.75), (float("inf"), 3.0))
_MOST_TIMES = 100.0  # of what was measured: a forecast for more is never a failure, see the last margin


@dataclass(frozen=True)
class SaveForecast:
    """Seconds. gathered: rank 0 gathers and writes the weights; pieces: each rank writes its own share."""

    gathered: float
    pieces: float
    weights_bytes: float
    state_bytes: float
    measured_bytes: float


def margin(total: float, measured: float) -> float:
    """By how much the seconds may be wrong, up and down: the more, the less of the whole was measured."""
    times = total / measured
    return next((factor for most, factor in _MARGINS if times <= most), _MARGINS[-1][1])


def sure(total: float, measured: float) -> bool:
    """Whether enough was measured to call a forecast a failure."""
    return total <= _MOST_TIMES * measured


@dataclass(frozen=True)
class Within:
    """Whether so many seconds fit into a timeout, and the words for them with their error bar."""

    state: State
    words: str


SAY: dict[State, Callable[..., Finding]] = {State.FAIL: fail, State.WARN: warn, State.NOTE: note}


def within(cluster: Cluster, seconds: float, total: float, measured: float, limit: float) -> Within:
    """A failure only where enough was measured and the lower end of the forecast is beyond the timeout."""
    factor = margin(total, measured)
    low, high = seconds / factor, seconds * factor
    share = cluster.policy.thresholds.get("TRN016.share", 0.5)
    words = f"{seconds:.0f} s ({low:.0f} to {high:.0f}; {total / measured:.3g} times what was measured)"
    if low > limit and sure(total, measured):
        return Within(State.FAIL, words)
    if low > share * limit:
        return Within(State.WARN, words)
    return Within(State.NOTE if seconds > share * limit else State.OK, words)


def forecast(measured: ShardedSave) -> SaveForecast | None:
    """None where no model was named, or nothing was measured."""
    if not measured.parameters or not measured.bytes or measured.problems:
        return None
    weights, state = measured.parameters * WEIGHTS, measured.parameters * STATE
    return SaveForecast(
        gathered=weights / measured.bytes * (measured.gather_s + measured.write_s),
        pieces=state / measured.bytes * measured.shards_s,
        weights_bytes=weights,
        state_bytes=state,
        measured_bytes=float(measured.bytes),
    )

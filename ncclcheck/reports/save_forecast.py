"""What a save of a large model would take, from the seconds that a small one took. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ncclcheck.probes.facts.training.saves import ShardedSave

# Bytes a parameter: weights in 16 bits, as ZeRO-3 gathers them; and what a run with Adam in mixed precision needs
# to go on: 16-bit weights, 32-bit weights and two moments (2 + 4 + 4 + 4).
WEIGHTS = 2
STATE = 14


@dataclass(frozen=True)
class Forecast:
    """Seconds. gathered: rank 0 gathers and writes the weights; pieces: each rank writes its own share."""

    gathered: float
    pieces: float
    weights_bytes: float
    state_bytes: float


def forecast(measured: ShardedSave) -> Forecast | None:
    """None where no model was named, or nothing was measured."""
    if not measured.parameters or not measured.bytes or measured.problems:
        return None
    weights, state = measured.parameters * WEIGHTS, measured.parameters * STATE
    return Forecast(
        gathered=weights / measured.bytes * (measured.gather_s + measured.write_s),
        pieces=state / measured.bytes * measured.shards_s,
        weights_bytes=weights,
        state_bytes=state,
    )

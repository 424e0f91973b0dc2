"""What the rules over the Flight Recorder share: the dumps of a job, and who waits for whom in it."""

from __future__ import annotations

from ncclcheck.probes.facts import Cluster, Flight
from ncclcheck.reports.judgement.findings import Remedy, you
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.subjects.logs.flight.state import state
from ncclcheck.reports.subjects.logs.flight.waits import Waits, waits

# Entries of the buffer, not bytes. Older torches know the older names only; newer ones warn of those.
RECORD = (
    "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1   # torch < 2.8: TORCH_NCCL_TRACE_BUFFER_SIZE",
    "mkdir -p flight && export TORCH_FR_DUMP_TEMP_FILE=$PWD/flight/rank_"
    "   # torch < 2.9: TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
)


def flight_of(cluster: Cluster) -> Flight:
    """The dumps. Raises NothingToJudge where none were given."""
    logs = cluster.measurements.logs
    if logs is None or logs.flight is None:
        raise NothingToJudge("no dump of the Flight Recorder was read")
    return logs.flight


def waits_of(cluster: Cluster) -> Waits:
    """Who waits for whom. Raises NothingToJudge where no dump tells it."""
    flight = flight_of(cluster)
    if not flight.dumps:
        raise NothingToJudge("no dump of the Flight Recorder could be read")
    return waits(state(flight))


def recorded_whole(waits: Waits) -> list[Remedy]:
    """The same where something is missing; nothing where the dumps of all ranks were read."""
    missing = waits.state.missing or waits.state.flight.refused
    return [recorded_again()] if missing else []


def recorded_again() -> Remedy:
    """Have it recorded where all nodes can write, with the program's own lines."""
    return you("Let the next run leave whole dumps, where every node can write.", *RECORD)

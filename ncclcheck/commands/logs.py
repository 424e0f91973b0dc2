"""`ncclcheck logs`: files -> facts -> causes. Measures nothing, asks no node."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from ncclcheck.base.errors import UsageError
from ncclcheck.base.progress import Progress
from ncclcheck.probes.facts import Cluster, Job, Logs, Measurements
from ncclcheck.probes.logs import flight
from ncclcheck.probes.logs.files import sources
from ncclcheck.probes.logs.reading import LogReading
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options

_DEADLINE_S = 600.0  # chosen: gigabytes are read in it, and a CI job seldom has more patience
_HEAD = 4096  # bytes by which a dump is told from text: chosen, one block of a disk


def run(options: Options, given: Sequence[str]) -> int:
    """Read, judge, report; the exit code. Raises UsageError."""
    started, begun = finish.now(), time.monotonic()
    try:
        paths = sources.names(given)
    except sources.NotThere as error:
        raise UsageError(f"logs: {error}") from None
    logs = read(paths, begun + (options.deadline or _DEADLINE_S), Progress(quiet=options.quiet))
    cluster = Cluster(
        command="logs",
        job=Job(launcher="local", chosen_by="logs are read where they lie", nodes_asked=0),
        measurements=Measurements(logs=logs),
        policy=options.policy,
    )
    story = finish.Story(started=started, seconds=time.monotonic() - begun)
    return finish.deliver(finish.make(cluster, options, story), options)


def read(paths: Sequence[str], until: float, progress: Progress) -> Logs:
    """Text and Flight Recorder dumps, each by its own reader. until: by time.monotonic."""
    reading, dumps = LogReading(until=until, progress=progress.step), []
    # On a terminal alone, where it is wiped: in a file it would be one more line of an answer of one screen.
    progress.step(f"reading {len(paths)} files" if len(paths) > 1 else f"reading {paths[0]}")
    for source in sources.opened(paths, until):
        if source.file is None and not source.problem:
            reading.empty_folder(source.name)
        elif source.file is None:
            reading.problem(source.name, source.problem)
        elif source.name in paths and flight.is_dump(sources.head(source.file, _HEAD), source.name):
            dumps.append(source.name)
        else:
            reading.take(source.name, source.file)
    progress.clear()
    logs = reading.logs()
    return msgspec.structs.replace(logs, flight=flight.read(dumps)) if dumps else logs

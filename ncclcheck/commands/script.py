"""`ncclcheck script`: a training script -> facts -> findings. Imports and runs nothing of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Cluster, Job, Measurements
from ncclcheck.probes.script import reading
from ncclcheck.probes.script.sources import NotRead
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options


def run(options: Options, given: Sequence[str]) -> int:
    """Read, judge, report; the exit code. Raises UsageError."""
    started, begun = finish.now(), time.monotonic()
    files, arguments = _split(given)
    if not files:
        raise UsageError("script: no file was given; type: ncclcheck script TRAIN.py")
    try:
        script = reading.read(files, arguments)
    except NotRead as error:
        raise UsageError(f"script: {error}") from None
    cluster = Cluster(
        command="script",
        job=Job(launcher="local", chosen_by="a script is read where it lies", nodes_asked=0),
        measurements=Measurements(script=script),
        policy=options.policy,
    )
    story = finish.Story(started=started, seconds=time.monotonic() - begun)
    return finish.deliver(finish.make(cluster, options, story), options)


def _split(given: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The scripts, and their arguments: from the first one on that begins with a dash."""
    first = next((at for at, one in enumerate(given) if one.startswith("-")), len(given))
    return given[:first], given[first:]

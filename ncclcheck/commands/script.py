"""`ncclcheck script`: a training script -> facts -> findings. Imports and runs nothing of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Cluster, Job, Measurements
from ncclcheck.probes.script import reading
from ncclcheck.probes.script.sources import NotRead
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options


def nodes(asked: int | None, environ: Mapping[str, str]) -> int | None:
    """Of the job that the script is for: as asked, else of the Slurm allocation; None where it is unknown."""
    allocated = environ.get("SLURM_JOB_NUM_NODES", "")
    return asked or (int(allocated) if allocated.isdecimal() and int(allocated) else None)


def run(options: Options, given: Sequence[str], nodes: int | None = None) -> int:
    """Read, judge, report; the exit code. nodes: of the job, where known. Raises UsageError."""
    started, begun = finish.now(), time.monotonic()
    files, arguments = _split(given)
    if not files:
        raise UsageError("script: no file was given; type: ncclcheck script TRAIN.py")
    try:
        script = reading.read(files, arguments, nodes)
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
    first = next((at for at, word in enumerate(given) if word.startswith("-")), len(given))
    return given[:first], given[first:]

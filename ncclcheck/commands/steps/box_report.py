"""A box judged: as one page on stderr when a job ends, and by `ncclcheck report BOX` on any machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone

import msgspec

from ncclcheck.base.errors import UsageError
from ncclcheck.base.progress import Progress
from ncclcheck.commands import logs
from ncclcheck.probes.box.read import reading
from ncclcheck.probes.facts import Box, Cluster, Job, Measurements
from ncclcheck.probes.live import received
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.box import page as pages
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options

_LOGS_S = 20.0  # a box holds at most 16 MiB of output, and `logs` reads at least 3 MB/s


def document(paths: Sequence[str], options: Options) -> Document:
    """What several folders hold of one job; one that is given twice counts once. Raises UsageError."""
    begun = time.monotonic()
    try:
        read = (box for path in paths for box in reading.read(path))
        boxes = [*{os.path.realpath(box.folder): box for box in read}.values()]
    except reading.NoBox as error:
        raise UsageError(f"report: {error}") from None
    printed = [name for box in boxes for name in reading.logs_of(box.folder)]
    looks = [look for box in boxes for look in _look(box)]
    cluster = Cluster(
        command="watch",
        job=Job(launcher="local", chosen_by="boxes are read where they lie", nodes_asked=len(boxes)),
        measurements=Measurements(
            boxes=boxes,
            logs=logs.read(printed, begun + _LOGS_S, Progress(quiet=True)) if printed else None,
            live=[look.live for look in looks],
            ras=[ras for look in looks for ras in look.ras],
            records=received.records(piece for look in looks for piece in look.pieces),
        ),
        policy=options.policy,
    )
    started = datetime.fromtimestamp(min(box.started for box in boxes), timezone.utc).isoformat(timespec="seconds")
    story = finish.Story(
        started=started, seconds=max(0.0, *((box.ended or box.last) - box.started for box in boxes))
    )
    return finish.make(cluster, options, story)


def _look(box: Box) -> Iterator[received.Received]:
    text = reading.look_of(box.folder)
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        if text:
            yield received.host(text, box.host)


def run(paths: Sequence[str], options: Options) -> int:
    """`ncclcheck report BOX`; the exit code. Raises UsageError."""
    return finish.deliver(document(paths, options), options)


def page(made: Document, options: Options, box: str) -> None:
    """At most 25 lines on stderr."""
    text = pages.text(made, finish.style(options), box)
    with suppress(OSError, ValueError):
        sys.stderr.write(finish.plain(text))
        sys.stderr.flush()


def at_fault(made: Document, codes: tuple[str, ...]) -> dict[str, str]:
    """node -> why, of what failed by these checks."""
    verdicts = [verdict for verdict in made.verdicts if verdict.code.startswith(codes)]
    findings = [
        finding
        for verdict in verdicts
        for finding in verdict.findings
        if finding.state in (State.FAIL, State.WARN)
    ]
    return {finding.where.node: finding.what for finding in findings if finding.where.node}

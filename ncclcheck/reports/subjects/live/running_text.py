"""A look at running jobs as text: what was looked at, who does what, and the decision."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LiveProcess
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import RunningJob, jobs
from ncclcheck.reports.text.words.fold import fold_names, many
from ncclcheck.reports.text.words.wrapping import wrapped

# on the screen, and kinds of ranks of each: chosen, four jobs of five rows fill 24 lines
_MOST_JOBS, _MOST_ROWS = 4, 5


def size(document: Document) -> str:
    """How much was looked at."""
    live = document.measurements.live
    count = sum(len(job.ranks) for job in jobs(live))
    hosts = fold_names(live.host for live in live) or "no host"
    return f"{hosts}: {many(len(jobs(live)), 'job')}, {many(count, 'rank')}"


def text(document: Document, width: int) -> str:
    """Each job with what its ranks do; empty for other commands."""
    running = jobs(document.measurements.live)
    rows = [row for job in running[:_MOST_JOBS] for row in _job(job, width)]
    rows += [f"  and {len(running) - _MOST_JOBS} more jobs (JSON has all)"] if len(running) > _MOST_JOBS else []
    return "\n".join(rows)


def _job(job: RunningJob, width: int) -> Iterator[str]:
    by = f" by {job.ranks[0].launcher}" if job.ranks[0].launcher else ""
    yield from wrapped(f"{job.name}{by}: {len(job.ranks)} of {job.world} ranks seen", width, "  ", "    ")
    alike: dict[str, list[LiveProcess]] = {}
    for rank in job.ranks:
        alike.setdefault(words.alike(rank), []).append(rank)
    for does, ranks in [*alike.items()][:_MOST_ROWS]:
        yield from wrapped(f"{words.ranks(ranks)}: {does}", width, "    ", "      ")
    if len(alike) > _MOST_ROWS:
        yield f"    and {len(alike) - _MOST_ROWS} more kinds (JSON has all)"


def decision(document: Document) -> str:
    """One sentence; the exit code says the same."""
    failed = [(v.code, f) for v in document.verdicts for f in v.findings if f.state is State.FAIL]
    if failed:  # before what all do together, which rank it is
        code, finding = next((pair for pair in failed if pair[1].where.rank is not None), failed[0])
        return f"{code}: {finding.what}."
    if document.state == "incomplete":
        unknown = [
            f"{v.code}: {f.what}" for v in document.verdicts for f in v.findings if f.state is State.UNKNOWN
        ]
        return f"Not known: {unknown[0]}." if unknown else "Not known."
    notes = [f for v in document.verdicts if v.code.startswith("HNG") for f in v.findings if f.state is State.NOTE]
    return "Nobody is accused: see HNG008." if notes else "The jobs that were seen advance."

"""Who is to blame for a hang, by the Flight Recorder: ranks with the reason, the surest first."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ncclcheck.probes.facts import Flight
from ncclcheck.reports.judgement.findings import Culprit, Where
from ncclcheck.reports.subjects.logs.flight import words as text
from ncclcheck.reports.subjects.logs.flight.given_up import given_up
from ncclcheck.reports.subjects.logs.flight.hang import odd_in
from ncclcheck.reports.subjects.logs.flight.match import mismatches
from ncclcheck.reports.subjects.logs.flight.state import state
from ncclcheck.reports.subjects.logs.flight.waits import Waits, waits


def culprits(flight: Flight, pairing: Collection[int] = ()) -> list[Culprit]:
    """Each rank once, by its surest reason. pairing: ranks that may wait where nothing is recorded."""
    job = waits(state(flight))
    by_rank: dict[int, Culprit] = {}
    for rank, confidence, code, why in sorted(_suspects(job, pairing), key=lambda suspect: -suspect[1]):
        by_rank.setdefault(rank, _culprit(rank, confidence, code, why))
    return [*by_rank.values()]


def _culprit(rank: int, confidence: float, code: str, why: str) -> Culprit:
    where = [Where(rank=rank)]
    return Culprit(
        kind="rank", names=[f"rank {rank}"], where=where, confidence=confidence, explains=[code], why=why
    )


def _suspects(job: Waits, pairing: Collection[int]) -> Iterator[tuple[int, float, str, str]]:
    dumps = job.state
    for mismatch in mismatches(dumps):
        code = "LOG134" if mismatch.kind == "operation" else "LOG135"
        name = text.group(dumps.group(mismatch.group))
        yield from (
            (rank, 0.9, code, f"differs from the others at call {mismatch.seq} of {name}") for rank in mismatch.odd
        )
    for rank in job.causes:
        call = job.awaiting(rank)[0]
        awaited = f"{text.waiting(job.waiting(call))} for it in {text.call(dumps, call)}"
        if rank not in dumps.dumps:
            yield rank, 0.3 if job.proven else 0.5, "LOG131", f"left no dump, and {awaited}"
        elif rank not in dumps.stopped and rank not in pairing:
            yield rank, 0.9, "LOG132", f"did not enter, waits for nobody itself, and {awaited}"
    for rank, early in dumps.stopped.items():
        name = text.group(dumps.group(early.group))
        yield rank, 0.8, "LOG133", f"did not notice the end of {len(early.calls)} calls of {name}"
    for call in job.hanging:
        odd, how = odd_in(job, call)
        yield from ((rank, 0.6, "LOG136", f"{text.call(dumps, call)} hangs: {how}") for rank in odd)
    for lacked in given_up(job):
        if lacked.together:
            why = f"did not enter {text.call(dumps, lacked.call)}, which ended or failed on the others"
            yield from ((rank, 0.3, "LOG132", why) for rank in lacked.behind)
    yield from ((rank, 0.4, "LOG137", "waits in a circle") for rank in job.circle())

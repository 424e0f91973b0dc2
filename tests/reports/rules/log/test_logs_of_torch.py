"""What torch and NCCL themselves said in trouble is understood: tests/data/logs/torch."""

from __future__ import annotations

import re

import pytest

from tests.helpers.logs_of_torch import Recorded, diagnosed, dumped, recorded

_TWO_FULL_STOPS = re.compile(r"[^.]\.\.(?!\.)")


@pytest.mark.parametrize("job", recorded(), ids=lambda job: job.name)
def test_the_cause_stands_first(job: Recorded) -> None:
    causes = diagnosed([job.log], dumped(job)).causes
    if not job.named:
        assert {cause.confidence for cause in causes} <= {"possible"}  # what slows it down, but fails nothing
        return
    assert not [cause.what for cause in causes if _TWO_FULL_STOPS.search(cause.what)]
    first = causes[0]
    assert first.code in job.named, [(cause.code, cause.what) for cause in causes]
    assert first.where.rank in (None, job.truth.rank)


@pytest.mark.parametrize(
    "job", [job for job in recorded() if job.truth.kind == "leaves"], ids=lambda job: job.name
)
def test_who_leaves_is_named_with_rank_and_code(job: Recorded) -> None:
    first = diagnosed([job.log], dumped(job)).causes[0]
    assert first.where.rank == job.truth.rank
    assert f"rank {job.truth.rank} left with exit code 7" in first.what


def test_who_waits_for_the_other_half_of_its_first_send_is_not_accused() -> None:
    (job,) = (job for job in recorded() if job.name == "noreceive2")
    causes = diagnosed([job.log], dumped(job)).causes
    assert {(cause.where.rank, cause.confidence) for cause in causes} == {(None, "likely")}


@pytest.mark.parametrize("warnings", [0, 2], ids=["nobody", "both"])
def test_who_sends_nothing_or_met_its_peer_is(warnings: int) -> None:
    """The same hang where torch warned nobody of a first send, or both: then its two halves may have met."""
    (job,) = (job for job in recorded() if job.name == "noreceive2")
    lines = job.log.splitlines(keepends=True)
    (warning,) = (line for line in lines if b"unbatched P2P" in line)
    others = [line for line in lines if line is not warning]
    both = [warning, warning.replace(b"[rank0]", b"[rank1]")][:warnings]
    first = diagnosed([b"".join([*both, *others])], dumped(job)).causes[0]
    assert (first.code, first.where.rank, first.confidence) == ("LOG132", 0, "sure")


@pytest.mark.parametrize("job", [job for job in recorded() if len(job.dumps) > 1], ids=lambda job: job.name)
def test_the_dumps_alone_name_no_other_rank(job: Recorded) -> None:
    ranks = {cause.where.rank for cause in diagnosed([], dumped(job)).causes if cause.confidence == "sure"}
    assert ranks <= {None, job.truth.rank}

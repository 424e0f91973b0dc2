"""What torch and NCCL themselves said in trouble is understood: tests/data/logs/torch."""

from __future__ import annotations

import re

import pytest

from tests.helpers.logs_of_torch import Recorded, dumped, recorded, told

_TWO_FULL_STOPS = re.compile(r"[^.]\.\.(?!\.)")


@pytest.mark.parametrize("one", recorded(), ids=lambda one: one.name)
def test_the_cause_stands_first(one: Recorded) -> None:
    causes = told([one.log], dumped(one)).causes
    if not one.named:
        assert {cause.confidence for cause in causes} <= {"possible"}  # what slows it down, but fails nothing
        return
    assert not [cause.what for cause in causes if _TWO_FULL_STOPS.search(cause.what)]
    first = causes[0]
    assert first.code in one.named, [(cause.code, cause.what) for cause in causes]
    assert first.where.rank in (None, one.truth.rank)


@pytest.mark.parametrize(
    "one", [one for one in recorded() if one.truth.kind == "leaves"], ids=lambda one: one.name
)
def test_who_leaves_is_named_with_rank_and_code(one: Recorded) -> None:
    first = told([one.log], dumped(one)).causes[0]
    assert first.where.rank == one.truth.rank
    assert f"rank {one.truth.rank} left with exit code 7" in first.what


def test_who_waits_for_the_other_half_of_its_first_send_is_not_accused() -> None:
    (one,) = (one for one in recorded() if one.name == "noreceive2")
    causes = told([one.log], dumped(one)).causes
    assert {(cause.where.rank, cause.confidence) for cause in causes} == {(None, "likely")}


@pytest.mark.parametrize("said", [0, 2], ids=["nobody", "both"])
def test_who_sends_nothing_or_met_its_peer_is(said: int) -> None:
    """The same hang where torch warned nobody of a first send, or both: then its two halves may have met."""
    (one,) = (one for one in recorded() if one.name == "noreceive2")
    lines = one.log.splitlines(keepends=True)
    (warning,) = (line for line in lines if b"unbatched P2P" in line)
    others = [line for line in lines if line is not warning]
    both = [warning, warning.replace(b"[rank0]", b"[rank1]")][:said]
    first = told([b"".join([*both, *others])], dumped(one)).causes[0]
    assert (first.code, first.where.rank, first.confidence) == ("LOG132", 0, "sure")


@pytest.mark.parametrize("one", [one for one in recorded() if len(one.dumps) > 1], ids=lambda one: one.name)
def test_the_dumps_alone_name_no_other_rank(one: Recorded) -> None:
    ranks = {cause.where.rank for cause in told([], dumped(one)).causes if cause.confidence == "sure"}
    assert ranks <= {None, one.truth.rank}

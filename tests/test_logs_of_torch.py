"""What torch and NCCL themselves said in trouble is understood: tests/data/logs/torch."""

from __future__ import annotations

import pytest

from tests.logs_of_torch import Recorded, dumped, recorded, told

# What is not named yet, and why.
_EXIT = "a rank that leaves with an exit code of its own is quoted as what came first, without its rank"
_NOT_NAMED = {
    "leaves2": _EXIT,
    "leaves3": _EXIT,
    "noreceive2": "the sender waits for a communicator, which nothing records, and seems to have stayed away",
}


def _expected(one: Recorded) -> object:
    marks = [pytest.mark.xfail(reason=_NOT_NAMED[one.name], strict=True)] if one.name in _NOT_NAMED else []
    return pytest.param(one, id=one.name, marks=marks)


@pytest.mark.parametrize("one", [_expected(one) for one in recorded()])
def test_the_cause_stands_first(one: Recorded) -> None:
    causes = told([one.log], dumped(one)).causes
    if not one.named:
        assert {cause.confidence for cause in causes} <= {"possible"}  # what slows it down, but fails nothing
        return
    first = causes[0]
    assert first.code in one.named, [(cause.code, cause.what) for cause in causes]
    assert first.where.rank in (None, one.truth.rank)


@pytest.mark.parametrize("one", [_expected(one) for one in recorded() if len(one.dumps) > 1])
def test_the_dumps_alone_name_no_other_rank(one: Recorded) -> None:
    ranks = {cause.where.rank for cause in told([], dumped(one)).causes if cause.confidence == "sure"}
    assert ranks <= {None, one.truth.rank}

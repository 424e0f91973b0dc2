"""Random input from outside ends with an exit code: some in the gate, many at night (FUZZ_SECONDS, FUZZ_SEED)."""

from __future__ import annotations

import os
import time

import pytest

from tests.fuzz.run import feed

_FEW = {"lines": 1500, "results": 8, "logs": 25, "dumps": 40, "site-files": 400, "words": 120}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", _FEW)
def test_some_random_inputs(target: str) -> None:
    fed, broken = feed(target, seed=1, count=_FEW[target], seconds=3600)
    assert not broken
    assert fed == _FEW[target]


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", _FEW)
def test_many_random_inputs(target: str) -> None:
    """A new seed every night, which the failure names."""
    seconds = float(os.environ.get("FUZZ_SECONDS", "120"))
    seed = int(os.environ.get("FUZZ_SEED", str(int(time.time()) // 86400)))
    assert not feed(target, seed, 10**9, seconds).broken

"""Every job over hosts of the table: the page names the cause and the rank; of healthy ones nothing is said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import Lab
from tests.scenarios import watched_hosts
from tests.scenarios.watched_hosts import CASES, RUINS, SOUND, HostCase

_HERE = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Lab]:
    with watched_hosts.site("ssh") as lab:
        yield lab


@pytest.fixture(scope="module")
def cluster() -> Iterator[Lab]:
    with watched_hosts.site("sbatch") as lab:
        yield lab


def _cases(by: str, *, ruins: bool = False) -> list[object]:
    cases = [case for case in [*CASES, *SOUND] if case.by == by and (case.after in RUINS) == ruins]
    return [pytest.param(case, marks=_HERE, id=case.name) for case in cases]


def _holds(place: Lab, case: HostCase) -> None:
    seen = watched_hosts.watched(place, case)
    assert seen.right(case) == (True, True), seen.page or seen.said
    assert case.exit is None or case.exit in seen.codes


@pytest.mark.parametrize("case", _cases("ssh"))
def test_by_ssh(hosts: Lab, case: HostCase) -> None:
    _holds(hosts, case)


@pytest.mark.parametrize("case", _cases("sbatch"))
def test_by_slurm(cluster: Lab, case: HostCase) -> None:
    _holds(cluster, case)


@pytest.mark.parametrize("case", [*_cases("ssh", ruins=True), *_cases("sbatch", ruins=True)])
def test_a_host_that_is_lost(case: HostCase) -> None:
    with watched_hosts.site(case.by) as lab:
        _holds(lab, case)

"""NCCL's own library judges what we predict of it: generated cases, the same asked of both. Needs root and gcc."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential import compared
from tests.differential.asking import judge
from tests.lab.needs import need as need_lab
from tests.nccl import NEWEST, OLDEST, VERSIONS, need

FEW, HUNDREDS = 6, 300
SEED = 1
BEFORE_DEVICES_ARE_NAMED = ("2.23.4",)
KINDS = {
    "interfaces": compared.interfaces,
    "hcas": compared.hcas,
    "gids": compared.gids,
    "settings": compared.settings,
    "transports": compared.transports,
    "carriers": compared.carriers,
    "told_places": compared.told_places,
}
COMPILED = "2.28.9"  # from its sources (tests/nccl/from_source.py); it does not come to connections of cards
OF_CARRIERS = ("carriers", "told_places")
WITH_HCAS = ("hcas", "gids", "transports", *OF_CARRIERS)


def _judged(kind: str, version: str, cases: int, folder: Path) -> None:
    need_lab("gcc")
    need(version)
    if kind in WITH_HCAS and not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("the HCAs of a machine are shown by a libibverbs of ours, which needs Debian's libibverbs-dev")
    with judge(version, verbs=kind in WITH_HCAS) as library:
        number, different = compared.differences(library, KINDS[kind], SEED, cases, folder)
    differences = "\n".join(
        f"{difference.about}\n  ours {difference.ours}\n  NCCL {difference.theirs}"
        for difference in different[:10]
    )
    assert not different, f"{len(different)} of {number} differ from NCCL {version}:\n{differences}"


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("kind", ["interfaces", "hcas", "gids", "settings"])
def test_a_few_cases(kind: str, version: str, tmp_path: Path) -> None:
    _judged(kind, version, FEW, tmp_path)


@pytest.mark.parametrize("kind", ["transports", *OF_CARRIERS])
def test_two_jobs(kind: str, tmp_path: Path) -> None:
    _judged(kind, NEWEST, 2, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_hundreds_of_cases(kind: str, version: str, tmp_path: Path) -> None:
    if kind in OF_CARRIERS and version in BEFORE_DEVICES_ARE_NAMED:
        pytest.skip(f"the log of NCCL {version} does not name its network devices one by one")
    _judged(kind, version, HUNDREDS, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["interfaces", "settings", "hcas"])
def test_a_hundred_cases_of_a_compiled_version(kind: str, tmp_path: Path) -> None:
    _judged(kind, COMPILED, 100, tmp_path)

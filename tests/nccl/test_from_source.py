"""NCCL compiled from its free sources, a version whose wheel may not be run: RAS's JSON. Needs root and g++."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.probes.live.answers import ras_json, ras_text
from tests.lab import Lab
from tests.lab.needs import need as need_lab
from tests.nccl import Job, from_source, need
from tests.nccl.case import four
from tests.nccl.ras_states import WITH_JSON

_BUILD_S = 900


def test_sources_that_are_not_free_are_not_compiled(tmp_path: Path) -> None:
    (tmp_path / "LICENSE.txt").write_text("All rights reserved. You may not redistribute this software.\n")
    with pytest.raises(from_source.NotBuilt, match="neither BSD nor Apache"):
        from_source.build("2.28.9", tmp_path / "made", tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.mark.nightly
@pytest.mark.timeout(_BUILD_S)
@pytest.mark.parametrize("version", WITH_JSON)
def test_ranks_start_and_ras_answers_in_both_forms(version: str) -> None:
    need_lab("gcc")
    need(version)

    def ask(job: Job) -> None:
        for place in range(4):
            job.until(f"r{place}")
        job.ask("h1")
        job.ask("h1", json=True)

    steps = [f"init mark:r{place} sleep:20" for place in range(4)]
    ranks = [type(rank)(rank.host, rank.device, plan) for rank, plan in zip(four(), steps, strict=True)]
    with Lab(hosts=2, mgmt=False) as lab:
        ended = Job(lab, ranks, version=version, kernel="done").run(0, ask)
    text, json = (answer.text for answer in ended.ras)
    looks = [ras_text.read(text), ras_json.read(json)]
    assert [look.version for look in looks] == [version, version], ended.log
    assert [[(group.answered, group.ranks) for group in look.groups] for look in looks] == [[(4, 4)]] * 2

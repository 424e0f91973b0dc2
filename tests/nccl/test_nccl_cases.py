"""Jobs of NCCL's own library with their truth: what `logs` makes of them. Needs root and gcc."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.logs import read
from tests.lab import Lab
from tests.lab.needs import need as need_lab
from tests.nccl import NEWEST, OLDEST, need, wheels
from tests.nccl.__main__ import reading_of
from tests.nccl.cases import CASES
from tests.nccl.wider import widened

# Of each kind the ones that end within seconds; all of them: python -m tests.nccl run, and judge.
NIGHTLY = (
    *("sound_four", "sound_no_verbs", "sound_roce", "sound_split", "sound_exit", "sound_abort", "sound_finalize"),
    *("ifname_none", "no_route", "world_differs", "rank_twice", "same_gpu", "net_typo"),
    *("ecc", "oom_host", "fabric_not_ready", "shm_small"),
    *("retries", "pinned_memory", "queue_memory"),
    *("missing_rank", "dropped_second", "skipped", "stopped"),
)
# The same over three hosts, where the faulty one has not rank 0; seconds each.
WIDER = (
    *("sound_levels", "sound_lane", "sound_four"),
    *("net_typo", "same_gpu", "topo_version", "no_transport", "protocol_typo", "algo_collnet"),
    *("retries", "local_protection", "remote_access"),
)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", NIGHTLY)
def test_the_truth_of_a_case_is_read_in_its_log(name: str, version: str) -> None:
    need_lab("gcc")
    need(version)
    case = next(case for case in CASES if case.name == name)
    with Lab(hosts=2, mgmt=False) as lab:
        ended = case.run(lab, version)
    if case.kind == "told":
        assert {*ended.codes} != {0}, ended.log
    named, right = reading_of(ended.log.encode(), case.kind, case.truth)
    assert right, f"{case.done}: {named or 'nothing'}, not {sorted(case.truth)}\n{ended.log}"


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WIDER)
def test_the_truth_of_a_case_is_read_where_a_third_host_comes_first(name: str) -> None:
    need_lab("gcc")
    need(NEWEST)
    case = widened(next(case for case in CASES if case.name == name))
    with Lab(hosts=3, mgmt=False) as lab:
        ended = case.run(lab, NEWEST)
    if case.kind == "told":
        assert {*ended.codes} != {0}, ended.log
    log = ended.log.encode()
    named, right = reading_of(log, case.kind, case.truth)
    assert right, f"{case.done}: {named or 'nothing'}, not {sorted(case.truth)}\n{ended.log}"
    if case.culprit:
        assert read(log)[0][0].where.node == case.culprit, ended.log


def test_a_stripped_library_is_skipped_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_lab("gcc")
    kept = tmp_path / "nvidia-nccl-cu12-2.27.7"
    kept.mkdir()
    argv = ["gcc", "-shared", "-s", "-nostdlib", "-Wl,-soname,libnccl.so.2", "-x", "c", "/dev/null"]
    subprocess.run([*argv, "-o", str(kept / "libnccl.so.2")], check=True, timeout=60)
    monkeypatch.setenv("NCCLCHECK_TEST_WHEELS", str(tmp_path))
    wheels.tried.cache_clear()
    try:
        with pytest.raises(pytest.skip.Exception, match="is stripped"):
            need(NEWEST)
    finally:
        wheels.tried.cache_clear()

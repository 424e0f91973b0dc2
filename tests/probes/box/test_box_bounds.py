"""A box stays below 50 MB, whatever the job and NCCL print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclcheck.probes.box import bounds
from ncclcheck.probes.box.journal import EVENTS, SAMPLES, Journal
from ncclcheck.probes.box.read import reading
from ncclcheck.watch.copy import Copy
from tests.conftest import environment

_BOUND = 50_000_000
_WARNING = b"node1:12:34 [0] transport/net_ib.cc:1: NCCL WARN NET/IB : Got completion with error %08d\n"


def _used(box: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in box.rglob("*"))


@pytest.mark.parametrize("files", [1, 8])
def test_warnings_of_nccl_without_end(tmp_path: Path, files: int) -> None:
    written = [(tmp_path / f"nccl.node1.{pid}").open("wb", buffering=0) for pid in range(files)]
    for piece in range(20):
        for log in written:
            log.write(b"".join(_WARNING % (piece * 20_000 + n) for n in range(20_000 // files)))
        bounds.keep(str(tmp_path))
    used = _used(tmp_path)
    assert used <= 3 * bounds.NCCL
    assert used < sum(log.tell() for log in written)
    [first, *_] = kept = reading.logs_of(str(tmp_path))
    assert len(kept) == files
    assert Path(first).read_bytes().startswith(_WARNING % 0)
    assert Path(first).read_bytes().endswith(b"\n")
    with (tmp_path / "nccl.node1.0").open("rb") as file:
        file.seek(-len(_WARNING % 0), os.SEEK_END)
        assert file.read() == _WARNING % (19 * 20_000 + 20_000 // files - 1)


def test_a_few_warnings_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "nccl.node1.7").write_bytes(_WARNING % 1)
    bounds.keep(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["nccl.node1.7"]
    assert (tmp_path / "nccl.node1.7").read_bytes() == _WARNING % 1


def test_all_parts_at_their_largest_together(tmp_path: Path) -> None:
    copy = Copy(str(tmp_path))
    for _ in range(40):
        copy.add("out", b"x" * 99 + b"\n" + b"step 1\n" * 150_000)
    for path, most, turns in (("events", EVENTS, False), ("samples", SAMPLES, True), ("wrapper", EVENTS, False)):
        journal = Journal(str(tmp_path / path), most, turns=turns)
        for _ in range(2 * most // 10_000 + 2):
            journal.add({"what": "x" * 10_000})
    assert 30_000_000 < _used(tmp_path) + 2 * bounds.NCCL + bounds.LOOK < _BOUND


def test_a_job_that_prints_without_end(tmp_path: Path) -> None:
    script = "for n in range(60): print('y' * 1_000_000)"
    argv = [sys.executable, "-m", "ncclcheck", "watch", "--box", "box", "--", sys.executable, "-c", script]
    done = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, timeout=100, check=True)
    assert len(done.stdout) == 60_000_060
    assert _used(tmp_path / "box") < _BOUND

"""Dumps that torch itself wrote: of gloo, here and now, and of NCCL in recorded runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclcheck.probes.logs.flight import is_dump, read
from ncclcheck.reports.subjects.logs.flight.culprits import culprits
from tests.helpers.trees import RECORDED, needs_recorded

_GLOO = """
import os, sys, time, torch, torch.distributed as dist
from datetime import timedelta
import torch._C._distributed_c10d as c10d
rank, folder = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(folder + "/store", 3)
dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
dist.all_reduce(torch.ones(4))
pending = dist.all_reduce(torch.ones(8), async_op=True) if rank != 2 else None
store.set(f"entered{rank}", "1")
store.wait([f"entered{one}" for one in range(3)], timedelta(seconds=60))
time.sleep(0.2)
with open(f"{folder}/gloo_rank_{rank}", "wb") as file:
    file.write(c10d._dump_fr_trace())
with open(f"{folder}/gloo_rank_{rank}.json", "wb") as file:
    file.write(c10d._dump_fr_trace_json())
store.set(f"wrote{rank}", "1")
store.wait([f"wrote{one}" for one in range(3)], timedelta(seconds=60))
os._exit(0)
"""


def test_what_torch_itself_writes_of_gloo(tmp_path: Path) -> None:
    """Three processes, of which the last leaves out a call."""
    c10d = pytest.importorskip("torch._C._distributed_c10d")
    if not hasattr(c10d, "_dump_fr_trace"):
        pytest.skip("this torch records nothing of gloo")
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", _GLOO, str(rank), str(tmp_path)], env=env) for rank in range(3)
    ]
    assert [process.wait(120) for process in ranks] == [0, 0, 0]
    for end in ("", ".json"):
        flight = read([str(tmp_path / f"gloo_rank_{rank}{end}") for rank in range(3)])
        assert not flight.refused
        came = {dump.rank: (dump.counts[0].entered, dump.counts[0].ended) for dump in flight.dumps}
        assert came == {0: (2, 1), 1: (2, 1), 2: (1, 1)}
        assert [culprit.names for culprit in culprits(flight)] == [["rank 2"]]
        alone = read([str(tmp_path / f"gloo_rank_0{end}")])
        assert [group.ranks for group in alone.groups] == [[0, 1, 2]]
        assert [culprit.names for culprit in culprits(alone)] == [["rank 1"], ["rank 2"]]


@needs_recorded
@pytest.mark.parametrize("run", ["gpu_error_1st", "lock_gil_1st"])
def test_recorded_dumps_are_read_whole(run: str) -> None:
    paths = sorted(map(str, (RECORDED / "nvrx/flight_recorder" / run).glob("_dump_*")))
    assert all(is_dump(Path(path).read_bytes()[:4096], "x") for path in paths)
    flight = read(paths)
    assert [dump.rank for dump in flight.dumps] == list(range(16))
    assert not flight.refused
    assert {dump.told_by for dump in flight.dumps} == {"file name and content"}

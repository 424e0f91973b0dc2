"""Operations and sizes of a job, from its own files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ncclcheck.probes.logs import sizes
from ncclcheck.probes.logs.files import sources

LOG = """\
gpu1:10:10 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f recvbuff 0x7f count 1048576 datatype 7 op 0 root 0 comm 0x55 [nranks=8] stream 0x56
gpu1:10:10 [0] NCCL INFO AllReduce: opCount 1 sendbuff 0x7f recvbuff 0x7f count 1048576 datatype 9 op 0 root 0 comm 0x55 [nranks=8] stream 0x56
gpu1:10:10 [0] NCCL INFO AllGather: opCount 2 sendbuff 0x7f recvbuff 0x7f count 65536 datatype 7 op 0 root 0 comm 0x55 [nranks=8] stream 0x56
gpu1:10:10 [0] NCCL INFO 4194304 Bytes -> Algo 1 proto 2 time 86.0
{"coll":"ReduceScatter","coll_msg_size_bytes": 8388608, "coll_exec_time_us": 61}
AllReduce of something else
"""  # noqa: E501


def used(folder: Path, text: str) -> sizes.UsedSizes:
    path = folder / "train.log"
    path.write_text(text)
    return sizes.read([str(path)])


def test_lines_of_nccl_and_of_its_inspector(tmp_path: Path) -> None:
    counted = used(tmp_path, LOG)
    assert dict(counted.calls) == {
        ("all_reduce", 2**22): 1,
        ("all_reduce", 2**21): 1,
        ("reduce_scatter", 2**23): 1,
    }
    assert dict(counted.of_a_part) == {("all_gather", 2**18): 1}
    assert counted.forecasts[2**22].time_us == 86.0


def test_what_moved_most_comes_first_and_sizes_ascend(tmp_path: Path) -> None:
    assert used(tmp_path, LOG).heaviest(2, ranks=8) == [("all_reduce", 2**22), ("reduce_scatter", 2**23)]
    assert ("all_gather", 2**21) in used(tmp_path, LOG).heaviest(9, ranks=8)


def test_compressed_files_and_files_that_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(LOG.encode()))
    (tmp_path / "b.log").write_bytes(bytes(range(256)) * 9)
    assert sum(sizes.read([str(tmp_path / "a.log.gz"), str(tmp_path / "b.log")]).calls.values()) == 3


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(sources.NotThere):
        sizes.read([str(tmp_path / "none")])

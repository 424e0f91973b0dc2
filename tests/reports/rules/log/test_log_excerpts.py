"""Excerpts of a few lines that were called healthy, or another's fault: each with what they say."""

from __future__ import annotations

from ncclcheck.reports.judgement.findings import State
from tests.helpers.logs import judged, raised
from tests.reports.rules.log.test_log_verdict import document

_HEADER = (
    "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1048576 step: 1048576(bytes) warmup iters: 5 iters: 20\n#\n"
)
_DEVICE = "#   Rank  {}{} Pid   {} on fir{} device  0 [0x00] NVIDIA H100\n"
_ROW = "     1048576        262144     float     sum      -1    31.21   33.60   63.00      0\n"
_START = (
    "fir02:8{0}:84{0} [{0}] NCCL INFO ncclCommInitRank comm 0x55a{0} rank {0} nranks 16 commId 0x7a - Init START\n"
)
_SIZES = (
    "size mismatch for {}: copying a param with shape torch.Size([{}]) from checkpoint, the shape in current "
    "model is torch.Size([{}]).\n"
)


def test_ranks_with_other_numbers_of_steps_have_other_states() -> None:
    text = "AssertionError: Rank 3 has different values for step: 1200.0. Other ranks: 1100.0\n"
    for line in (text, text.partition(": ")[2]):
        finding = judged(line)["LOG085"].findings[0]
        assert (finding.state, finding.where.rank) == (State.FAIL, 3)
        assert "step is 1200.0 on rank 3 and 1100.0 on the others" in finding.what
        assert document(line).state == "fail"


def test_processes_of_nccl_tests_that_are_all_rank_0_have_no_mpi() -> None:
    for group in ("", " Group  0"):
        both = _DEVICE.format(0, group, 1320, "02") + _DEVICE.format(0, group, 2066, "03")
        assert "built without MPI" in judged(_HEADER * 2 + both)["LOG022"].findings[0].what


def test_the_header_of_nccl_tests_is_no_step() -> None:
    assert document(_HEADER + _DEVICE.format(0, "", 1320, "02")).state == "incomplete"


def test_one_run_of_nccl_tests_after_another_has_its_own_rank_0() -> None:
    first, other = (_HEADER + _DEVICE.format(0, "", pid, "02") + _ROW for pid in (1320, 1440))
    assert "LOG022" not in raised(first + other)
    assert "LOG022" not in raised(_HEADER + _DEVICE.format(0, "", 1320, "02") + other)
    assert "LOG022" not in raised(_HEADER + _DEVICE.format(0, "", 1, "02") + _DEVICE.format(1, "", 2, "03") + _ROW)


def test_starts_alone_are_an_excerpt() -> None:
    starts = "".join(map(_START.format, range(3)))
    assert judged(starts)["LOG002"].state is State.NOTE
    assert document(starts).state == "incomplete"
    line = "fir02:80:80 [0] NCCL INFO Bootstrap : Using eth0:10.0.3.4<0>\n"
    assert judged(line + starts)["LOG002"].state is State.FAIL


def test_a_weight_of_size_0_is_partitioned_and_of_no_other_model() -> None:
    for text in (
        _SIZES.format("visual.norm.weight", "1280", "0"),
        'ValueError: Trying to set a tensor of shape torch.Size([512, 64]) in "weight" (which has shape '
        "torch.Size([0])), this looks incorrect.\n",
    ):
        what = judged(text)["LOG129"].findings[0].what
        assert "ZeRO-3 has partitioned it" in what
        assert "another model" not in what
        causes = document(text).diagnosis
        assert causes
        assert causes.causes[0].confidence == "likely"


def test_an_empty_shard_is_not_of_another_model() -> None:
    text = _SIZES.format("weight", "0, 17", "1, 17")
    assert "an empty shard" in judged(text)["LOG129"].findings[0].what
    assert "another model" in judged(_SIZES.format("weight", "10, 17", "20, 17"))["LOG129"].findings[0].what

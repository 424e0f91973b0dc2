"""Lines that warn or frighten and end no job, and ends and progress in words that older programs have."""

from __future__ import annotations

import pytest

from ncclcheck.reports.subjects.logs.answer.story import diagnosis
from tests.helpers.logs import judged, parsed, raised

_ONE_TRY = (  # meta-pytorch/torchcomms#2358
    "[W506 00:43:56.240378877 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3, addr=[gpu-a17]:47466, "
    "remote=[gpu-a17]:29500): Connection reset by peer\n"
    "Exception raised from recvBytes at /w/torch/csrc/distributed/c10d/Utils.hpp:679 (most recent call first):\n"
    "frame #1: <unknown function> + 0x5ced701 (0x1468ae81e701 in /w/torch/lib/libtorch_cpu.so)\n"
)
_INFO = "elm4:4760:4837 [0] NCCL INFO "
_NO_VERBS = "elm4:4760:4826 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
_LOOKED = (  # pytorch/pytorch#68893
    f"{_NO_VERBS}{_INFO}Could not find real path of /sys/class/net/veth7/device\n{_INFO}include/net.h:19 -> 2\n"
)
_ROW = "     8     2     float     sum    40.17    0.00    0.00  1e-07    62.08    0.00    0.00  0e+00\n"


def test_a_warning_of_one_connection_to_the_store_is_no_failure() -> None:
    assert raised(_ONE_TRY) == {}
    assert judged(_ONE_TRY)["LOG007"].state.value == "unknown"
    assert raised(_ONE_TRY.replace("[W506", "[E506"))["LOG001"] == "fail"
    gone = 'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early)'
    assert "LOG001" in raised(f"[W506 00:43:56.240 ProcessGroupNCCL.cpp:1552] {gone}\n")


def test_what_nccl_looked_for_in_vain_and_went_on_without() -> None:
    assert "LOG001" not in raised(f"{_LOOKED}{_INFO}Channel 00 :    0   1\n")
    assert raised(_LOOKED)["LOG001"] == "fail"  # where nothing follows it is not known that it went on
    handed_on = f"{_LOOKED}{_INFO}init.cc:617 -> 2\n{_INFO}Channel 00 :    0   1\n"
    assert raised(handed_on)["LOG001"] == "fail"


@pytest.mark.parametrize("line", [
    "[W reducer.cpp:320] Warning: Grad strides do not match bucket view strides.",  # naver/croco#21
    "[W reducer.cpp:1303] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find",
    "[W1109 22:40:00.100 Module.cpp:160] symbolizing C++ stack trace for exception",
])  # fmt: skip
def test_a_warning_in_torchs_own_form_is_torchs(line: str) -> None:
    verdicts = judged(f"{line}\n")
    assert (verdicts["LOG008"].state.value, verdicts["LOG007"].state.value) == ("ok", "unknown")


@pytest.mark.parametrize("line", [
    '{"name": "torchelastic.worker.status.SUCCEEDED", "timestamp": 0}',  # pytorch/pytorch#60716
    "SUCCESS!",  # ROCm/rocm-systems#2805
    _ROW.rstrip(),  # microsoft/NPKit#19: an nccl-tests without a column for the root
])  # fmt: skip
def test_ends_and_progress(line: str) -> None:
    assert judged(f"torchrun train.py\n{line}\n")["LOG007"].state.value == "ok"


@pytest.mark.parametrize("line", ["           8             2     float     sum    40", "SUCCESS: 0 of 4"])
def test_a_row_that_has_no_result_yet_is_no_progress(line: str) -> None:
    assert judged(f"torchrun train.py\n{line}\n")["LOG007"].state.value == "unknown"


def test_a_start_that_all_ranks_came_to_misses_nobody() -> None:
    member = "initializing distributed: GLOBAL_RANK: 5, MEMBER: 6/6\n"
    assert "1 of 6" in judged(member)["LOG007"].findings[0].what
    joined = f"{member}All distributed processes registered. Starting with 6 processes\n"
    assert "1 of 6" not in judged(joined)["LOG007"].findings[0].what


def test_a_wrapped_time_out_comes_before_the_abort_that_follows() -> None:
    cut = (  # bghira/SimpleTuner#3099
        "[rank1]:[E ... ProcessGroupNCCL.cpp:689] [Rank 1] Watchdog caught collective operation timeout:\n"
        "WorkNCCL(SeqNum=34036, OpType=ALLGATHER, NumelIn=8, NumelOut=64, Timeout(ms)=5400000)\n"
        "ran for 5400073 milliseconds before timing out.\n"
        "  traceback : Signal 6 (SIGABRT) received by PID 4711\n"
    )
    states = raised(cut)
    assert ("LOG095" in states, "LOG093" in states) == (True, False)


def test_steps_skipped_at_the_lowest_loss_scale() -> None:
    line = "[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {0}, reducing to {0}\n"
    step = "  0%|   | {0}/24128 [00:40<2:40:10,  2.50it/s]"
    skipped = "".join(step.format(at) + line.format(1) for at in range(97, 101))  # huggingface/transformers#14531
    assert raised(skipped)["LOG127"] == "fail"
    assert "LOG127" not in raised(line.format(1) + "".join(step.format(at) + "\n" for at in range(97, 101)))
    assert "LOG127" not in raised(skipped.replace("scale: 1, reducing to 1", "scale: 65536, reducing to 65536"))


@pytest.mark.parametrize(("text", "code", "words"), [
    ("mm_iface failed to allocate receive FIFO\n[ucp] Caught signal 11 (Segmentation fault)\n",
     "LOG093", "failed to allocate"),  # NVIDIA/ai-cloud-validation#643
    (" Out of bounds values : 2 FAILED\n", "LOG179", "why is not"),  # NVIDIA/nccl-tests#37
    ("elm4:1:1 [2] misc/nvmlwrap.cc:187 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found\n",
     "LOG067", "another container"),  # NVIDIA/nccl#1529
])  # fmt: skip
def test_what_leaves_its_cause_open_says_so(text: str, code: str, words: str) -> None:
    verdicts = judged(text)
    assert words in verdicts[code].findings[0].what
    story = diagnosis(parsed(text), [*verdicts.values()])
    assert story is not None
    assert (story.causes[0].code, story.causes[0].confidence) == (code, "likely")

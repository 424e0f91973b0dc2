"""The line that explains a failure stands in its heading, and no explanation goes further than its lines."""

from __future__ import annotations

import pytest

from ncclcheck.reports.judgement.findings import Finding, State
from tests.helpers.logs import judged, parsed

_NCCL = (
    "Traceback (most recent call last):\n"
    '  File "/v/pynccl_wrapper.py", line 223, in NCCL_CHECK\n'
    "RuntimeError: NCCL error: internal error - please report this issue to the NCCL developers\n"
)
_CRASH = "*** SIGSEGV received at time=1720017831 on cpu 54 ***\nFatal Python error: Segmentation fault\n"
_ROCM = (
    "/pytorch/aten/src/ATen/native/hip/IndexKernel.hip:94: operator(): Device-side assertion "
    '`-sizes[i] <= index && "index out of bounds"\' failed.\n'
    ":0:rocdevice.cpp :2778: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation "
    "resulted in a hardware exception. code: 0x1016\n"
)
_SLICE = (
    "E0603 20:16:59.101464 27284 worker_pool.cpp:271] Worker: Process failed for slice (opcode: 1, source_addr: "
    "0x7f3790141680, length: 65536, dest_addr: 0x7ef6a4143a80, local_nic: mlx5_6, peer_nic: "
    "10.93.81.13:15348@mlx5_0, dest_rkey: 2116260, retry_cnt: 0): transport retry counter exceeded\n"
)
_FAMILY = (
    "vm-16:28471:28471 [0] NCCL INFO ncclCommInitRank comm 0x55eb rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 80 "
    "commId 0x2ef1 - Init {}\n"
)
_DIALLED = (
    "vm-16:28471:28499 [0] misc/socket.cc:537 NCCL WARN ncclSocketInit: connecting to address  with family 1 is "
    "neither AF_INET(2) nor AF_INET6(10)\n"
)


def _first(text: str, code: str) -> Finding:
    (finding, *_) = judged(text)[code].findings
    assert finding.state is State.FAIL
    return finding


def test_what_nccl_said_before_a_crash_stands_in_its_heading() -> None:
    assert "before it: RuntimeError: NCCL error: internal error" in _first(_NCCL + _CRASH, "LOG093").what
    assert "before it" not in _first(_CRASH, "LOG093").what


def test_a_shells_killed_after_a_crash_is_not_what_ended_it() -> None:
    assert "SIGSEGV" in _first(f"{_CRASH}Killed\n", "LOG093").what
    assert "SIGKILL" in _first("Killed\n", "LOG093").what


def test_rocms_assertion_is_named() -> None:
    assert "index out of bounds" in _first(_ROCM, "LOG091").what


def test_no_loader_is_accused_of_what_any_process_may_say() -> None:
    finding = _first("OSError: [Errno 12] Cannot allocate memory\n", "LOG103")
    assert "the host refused memory" in finding.what
    assert "loader" not in f"{finding.what} {finding.why} {finding.remedies}"


@pytest.mark.parametrize(("start", "missing"), [("START", True), ("START\n" + _FAMILY.format("COMPLETE"), False)])
def test_an_address_that_came_through_the_start_is_no_missing_interface(start: str, missing: bool) -> None:
    text = _FAMILY.format(start) + _DIALLED
    assert bool(judged(text)["LOG012"].findings) is missing


def test_words_that_say_why_are_not_cut_from_a_long_line() -> None:
    finding = _first(_SLICE + "Traceback (most recent call last):\n", "LOG001")
    assert finding.what.endswith("transport retry counter exceeded")
    assert "never acknowledged" in finding.why


def test_the_one_line_that_says_why_is_kept_among_many_others() -> None:
    others = "".join(f"E0603 20:16:5{n % 10}.1 27 common.h:151] Socket read failed: peer {n}\n" for n in range(40))
    kept = parsed(others + _SLICE + others)
    assert any("retry counter exceeded" in event.text for event in kept.events)


def test_a_log_that_was_quoted_is_read() -> None:
    (event,) = [event for event in parsed("> [rank2]: ValueError: no\n").events if event.sign == "python-error"]
    assert event.rank == 2


@pytest.mark.parametrize(
    ("text", "not_said"),
    [
        ("EOFError", "cut off"),
        ("RuntimeError: KV cache transfer to 10.0.0.1 failed", "too little of the GPU's memory"),
        ("RuntimeError: Failed due to an unknown reason from another rank", "setting"),
        ("RuntimeError: unexpected value in /root/.triton/cache/x.json", "several processes write"),
    ],
)
def test_a_class_of_exceptions_is_no_explanation(text: str, not_said: str) -> None:
    assert not_said not in _first(f'Traceback (most recent call last):\n  File "/w/t.py", line 1, in f\n{text}\n',
                                  "LOG004").why  # fmt: skip


_STACK = (
    "#2  0x00007fffdb54879a in ?? () from /lib/x86_64-linux-gnu/libcuda.so.1\n"
    "#3  0x00007fffdb52d030 in cuMemCreate () from /lib/x86_64-linux-gnu/libcuda.so.1\n"
    "#4  0x00007fffe18b7182 in ncclCuMemHostEnable () at misc/cudawrap.cc:92\n"
)


def test_a_debuggers_stack_is_told() -> None:
    what = judged(_STACK)["LOG007"].findings[0].what
    assert "stood in cuMemCreate() of libcuda.so.1, called by ncclCuMemHostEnable() of cudawrap.cc:92" in what


def test_where_an_error_was_noticed_is_told() -> None:
    line = "RuntimeError: CUDA error: an illegal memory access was encountered /w/csrc/custom_all_reduce.cuh:368\n"
    assert _first(line, "LOG091").what.endswith("(noticed at custom_all_reduce.cuh:368)")


def test_a_pair_of_two_fabrics_need_not_be_of_roce() -> None:
    card = "NCCL INFO NET/IB : Using [0]mlx5_0:1/{} [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.2.0.4<0>\n"
    error = "NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, vendor err 129\n"
    text = f"n2:1:1 [0] {card}n2:1:2 [0] transport/net_ib.cc:1296 {error}"
    assert judged(text.format("RoCE"))["LOG034"].findings
    assert not judged(text.format("IB"))["LOG034"].findings


def test_what_could_be_said_after_a_failure_takes_nothing_back() -> None:
    line = "Prefill transfer failed for request rank=0: Decode instance could be dead, 10.0.0.1:16043 failed"
    assert [event.sign for event in parsed(line + "\n").events] == ["ended-badly"]
    assert not parsed("if the node could be reached, it failed to say so\n").events


def test_an_exception_shares_its_heading_with_what_was_complained_of_before() -> None:
    raised = "\n".join(
        ("Prefill transfer failed for request 1", "Traceback (most recent call last):",
         '  File "/w/t.py", line 1, in f', "pydantic_core.ValidationError: 1 validation error for Choice\n")
    )  # fmt: skip
    assert "before it: Prefill transfer failed" in _first(raised, "LOG004").what

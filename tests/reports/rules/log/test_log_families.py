"""Families of lines whose members stand in public logs one at a time, without what usually comes beside them."""

from __future__ import annotations

import io
import random

import pytest

from ncclcheck.probes.facts import Logs
from ncclcheck.probes.logs import repeats
from ncclcheck.probes.logs.reading import LogReading
from tests.helpers.logs import judged, raised

_ASSERTED = (
    "/torch/aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectLargeIndex: block: [37,0,0], thread: [92,0,0] "
    "Assertion `srcIndex < srcSelectDimSize` failed.\n"
)
_GUESS = (
    "[rank1]:[W1109 22:40:00.100 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 1]  using GPU 1 to perform "
)
_GUESSED = _GUESS + "barrier as devices used by this process are currently unknown.\n"
_NOT_TOLD = "UserWarning: barrier(): using the device under current context. You can specify `device_id`.\n"
_STEPS = "".join(f"iteration {number} / 1000 | loss 2.1\n" for number in range(100, 150))
_CUT = (
    "[rank{0}]:[E1109 22:47:01.100 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=4, OpTy\npe=BROADCAST, Timeout(ms)=1800000) ran for 1800010 milliseconds\n"
)


def test_a_stall_of_horovod_without_its_heading() -> None:
    lines = "grads/HorovodAllreduce_{}_0 [missing ranks: {}]\n"
    (finding,) = judged(lines.format("a", "0, 1, 3") * 3 + lines.format("a", "0, 1"))["LOG176"].findings
    assert "ranks 0-1,3 did not hand in" in finding.what
    (finding,) = judged(lines.format("a", "0") + lines.format("b", "1"))["LOG176"].findings
    assert "wait for each other" in finding.what


def test_an_assertion_of_a_kernel_is_the_cause_where_cuda_has_not_reported_it_yet() -> None:
    (finding,) = judged("torchrun train.py\n" + _ASSERTED * 4)["LOG091"].findings
    assert "indexSelectLargeIndex failed (its assertion: srcIndex < srcSelectDimSize)" in finding.what


def test_a_server_that_drains_its_requests_was_stopped() -> None:
    served = '[2026-03-01 10:00:00] INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' * 20
    stopped = (
        "[2026-03-01 10:00:09] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
        "[2026-03-01 10:00:09] Subprocess detokenizer (pid=31) crashed with exit code -15. Triggering SIGQUIT\n"
    )
    head = "[2026-03-01 10:00:00] sglang is using nccl==2.27.3\n"
    assert "fail" not in raised(head + served + stopped).values()
    assert raised(head + stopped)["LOG006"] == "fail"


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ((_GUESSED,), "warn"),
        ((_GUESSED + _STEPS,), "note"),
        ((_GUESSED, _STEPS), "note"),  # the one of stderr, the other of stdout
        ((_GUESSED + "iteration 1 / 1000 | loss 2.1\n",), "note"),
        ((_STEPS + _GUESSED,), "warn"),
        ((_NOT_TOLD,), "note"),
        ((_NOT_TOLD + _CUT.format(1),), "warn"),
        ((_GUESSED + _STEPS + "RuntimeError: CUDA error: an illegal memory access was encountered\n",), "warn"),
    ],
)
def test_a_guess_that_came_true_is_only_worth_knowing(files: tuple[str, ...], state: str) -> None:
    assert judged(*files)["LOG087"].state.value == state


def test_watchdogs_whose_lines_were_cut_tell_the_number_and_who_is_not_there() -> None:
    cut = "".join(_CUT.format(rank).partition("\n")[0] + "\n" for rank in (1, 2, 3, 5, 6))
    (finding,) = judged(cut)["LOG095"].findings
    assert "ranks 1-3,5-6 gave up in collective 4" in finding.what
    assert "not in these files: ranks 0,4" in finding.what


def test_watchdogs_whose_lines_were_wrapped_are_read_whole() -> None:
    (finding,) = judged("".join(_CUT.format(rank) for rank in (1, 2, 3, 5, 6)))["LOG080"].findings
    assert "ranks 0,4 printed nothing" in finding.what
    assert "collective 4 (BROADCAST)" in finding.what


def test_each_node_with_a_rendezvous_id_of_its_own() -> None:
    own = "WARNING:torch.distributed.launcher.api:config has no run_id, generated a random run_id: 304504801270\n"
    timeout = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"
    assert "--rdzv-id" in judged(own + timeout)["LOG021"].findings[0].what
    assert "LOG021" not in raised("torchrun train.py\n" + own + _STEPS)


def test_who_is_waited_for_in_the_store_is_named() -> None:
    line = "[rank45]: torch.distributed.DistBackendError: [45] is setting up NCCL communicator and retrieving "
    line += (
        "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout"
    )
    (finding,) = judged(line + " after 1800000ms, keys: /default_pg/0//1//cuda//0\n")["LOG021"].findings
    assert finding.what.startswith("waited in vain for rank 0")


@pytest.mark.parametrize(
    "words",
    [
        "create_ep:512 NCCL WARN NET/OFI Couldn't open CQ. RC: -12, ERROR: Cannot allocate memory",
        "get_ep:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9b failed: Invalid argument",
        "process_err:1723 NCCL WARN NET/OFI Operation with NULL context completed with error",
    ],
)
def test_calls_of_the_libfabric_plugin_that_failed(words: str) -> None:
    assert raised(f"gpu-a17:4711:4790 [0] {words}\n")["LOG184"] == "fail"


def test_code_above_an_exception_is_not_what_is_quoted() -> None:
    code = '(Worker pid=236) ERROR 08-23 08:25:25 utils.py:226]     raise RuntimeError(f"NCCL error: {told}")\n'
    text = "(Worker pid=236) ERROR 08-23 08:25:25 utils.py:226] RuntimeError: NCCL error: unhandled system error\n"
    assert "raise RuntimeError" not in judged(code + text)["LOG001"].findings[0].what


def _read(data: bytes) -> Logs:
    reading = LogReading()
    reading.take("log", io.BytesIO(data))
    return reading.logs()


def test_lines_that_are_only_counted_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, lines = random.Random(3), []
    for number in range(3000):
        rank, second = chance.randrange(6), number // 60
        lines.append(
            f"[rank{rank}]:[E516 16:00:{second:02d}.{number:06d} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog "
            f"caught collective operation timeout: WorkNCCL(SeqNum={chance.randrange(999)}, OpType=ALLREDUCE, "
            f"NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600{chance.randrange(999):03d} milliseconds."
            if chance.random() < 0.9
            else chance.choice(("[rank2]: ValueError: bad sample", "step 12 loss 0.3", "RuntimeError: it broke"))
        )
    data = "\n".join(lines).encode()
    counted = _read(data)
    monkeypatch.setattr(repeats, "_MOST", 0)
    assert _read(data) == counted


_ASSERT = (
    ' stack.size() INTERNAL ASSERT FAILED at "../torch/csrc/autograd/profiler_python.cpp":964, please report a '
    "bug to PyTorch. Python replay stack is empty.\n"
)
_UNUSED = (
    "[2026-03-01 10:00:00,982] torch.distributed.run: [WARNING] master_addr is only used for static rdzv_backend "
    "and when rdzv_endpoint is not specified.\n"
)
_STORE_GONE = (
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
    "failed. See inner exception for details.\n"
)


def test_an_assertion_of_torch_that_a_program_printed_is_named() -> None:
    (finding,) = judged("torchrun train.py\n" + _ASSERT * 3)["LOG185"].findings
    assert "profiler_python.cpp:964: Python replay stack is empty" in finding.what
    assert "LOG185" not in raised("torchrun train.py\n" + _ASSERT + _STEPS)
    assert raised("torchrun train.py\n" + _STEPS + _ASSERT)["LOG185"] == "fail"


def test_a_rendezvous_that_breaks_after_the_ranks_have_met_says_nothing_of_its_address() -> None:
    assert raised(_UNUSED + _STORE_GONE)["LOG163"] == "fail"
    assert "LOG163" not in raised(_UNUSED + _STEPS + _STORE_GONE)
    assert "LOG163" not in raised(_UNUSED + _CUT.format(1) + _STORE_GONE)


def test_a_libnccl_that_vllm_cannot_load_is_named() -> None:
    line = (
        "(VllmWorker rank=3 pid=4711) ERROR 11-09 22:47:01 [pynccl_wrapper.py:229] Failed to load NCCL library "
        "from /opt/nccl/libnccl.so.2.21.5. It is expected if you are not running on NVIDIA/AMD GPUs.\n"
    )
    served = 'INFO:     127.0.0.1:1 - "GET /health/ HTTP/1.1" 200 OK\n' * 20
    (finding,) = judged(served + line)["LOG066"].findings
    assert finding.what == "vLLM cannot load libnccl from /opt/nccl/libnccl.so.2.21.5"
    assert raised(served + line)["LOG066"] == "fail"


def test_a_checkpoint_without_metadata_is_named() -> None:
    log = (
        "[rank7]: Traceback (most recent call last): (RANK 0)\n"
        '[rank7]:   File "/lib/python3.11/site-packages/torch/distributed/checkpoint/state_dict_loader.py", line 9'
        ", in local_step\n[rank7]:     assert metadata is not None\n"
    )
    assert raised(log)["LOG129"] == "fail"
    assert raised(log.replace("[rank7]", "2026-03-01 03:11:02,474 - Tuner - INFO - [rank7]"))["LOG129"] == "fail"

"""What is named: the GPU that hung, the call that failed, what C++ raised; and how sure that is."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.logs.answer.story import Cause, diagnosis
from tests.helpers.logs import judged, parsed, raised

_STEPS = "".join(f"iteration {number} / 1000 | loss 2.1\n" for number in range(100, 150))
_START = "gpu-a4:77:77 [0] /rccl/src/init.cc:125 NCCL WARN "
_RISKS = (
    f'{_START}Missing "amd_iommu=on" from kernel command line which can lead to system instablity or hang!\n',
    f'{_START}Missing "NCCL_SOMETHING=1" from environment which can lead to low RCCL performance!\n',
    f"{_START}The firmware of the network card is old, which may cause errors\n",
)


def first(text: str) -> Cause:
    """The likeliest cause."""
    logs = parsed(text)
    cluster = Cluster(command="logs", measurements=Measurements(logs=logs))
    story = diagnosis(logs, judge(cluster, [rule for rule in all_rules() if rule.code.startswith("LOG")]))
    assert story is not None
    return story.causes[0]


@pytest.mark.parametrize(
    "line",
    [
        "HW Exception by GPU node-3 (Agent handle: 0x55) reason :GPU Hang\n",
        "[812.5] amdgpu 0000:c1:00.0: amdgpu: ring comp_1.1.0 timeout, signaled seq=4, emitted seq=6\n",
        "HW Exception by GPU node-3 (Agent handle: 0x55) reason: ECC error\n",
    ],
)
def test_a_gpu_of_amd_that_hung_is_the_cause_and_the_abort_follows(line: str) -> None:
    cause = first(f"{_STEPS}{line}{line}Aborted (core dumped)\n")
    assert (cause.code, cause.confidence) == ("LOG067", "sure")
    assert ("ECC" if "ECC" in line else "hung") in cause.what
    assert "LOG093" not in raised(f"{_STEPS}{line}Aborted (core dumped)\n")


def test_what_an_exception_of_cpp_says_is_read_though_nccl_is_named_in_it() -> None:
    thrown = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  "
    cause = first(f"{thrown}NCCL Error 2: unhandled system error\n")
    assert "NCCL Error 2: unhandled system error" in cause.what
    assert cause.confidence == "likely"
    finding = judged(f"{thrown}NCCL Error 2: unhandled system error\n")["LOG093"].findings[0]
    commands = [line for remedy in finding.remedies for line in remedy.commands]
    assert "export NCCL_DEBUG=INFO" in commands
    assert first(f"{thrown}no such tokenizer\n").what.endswith("no such tokenizer")


def test_an_abort_that_says_nothing_of_why_is_not_sure() -> None:
    assert first("torchrun train.py\nAborted (core dumped)\n").confidence == "likely"


@pytest.mark.parametrize("risk", _RISKS)
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("gpu-a4:77:80 [1] src/transport/p2p.cc:220 NCCL WARN hipIpcGetMemHandle failed : invalid argument\n",
         "LOG061"),
        ("gpu-a4:77:80 [1] transport/p2p.cc:262 NCCL WARN cudaIpcOpenMemHandle failed: invalid device context\n",
         "LOG061"),
        ("gpu-a4:77:80 [1] transport/other.cc:9 NCCL WARN the thing gave out\n", "LOG001"),
    ],
)  # fmt: skip
def test_what_failed_comes_before_what_nccl_warns_of_at_its_start(risk: str, line: str, code: str) -> None:
    for text in (risk + line, line + risk):
        cause = first(text)
        assert cause.code == code
        assert not any(word in cause.what for word in ("Missing", "which may"))


def test_a_risk_alone_is_still_told() -> None:
    assert raised(_RISKS[2])["LOG001"] == State.FAIL.value


def test_ipc_that_was_refused_is_only_a_risk_where_the_job_trained_on() -> None:
    line = "gpu-a4:77:80 [1] src/transport/p2p.cc:220 NCCL WARN hipIpcGetMemHandle failed : invalid argument\n"
    assert raised(line + _STEPS)["LOG061"] == "warn"


def test_a_bus_error_asks_for_more_shared_memory() -> None:
    head = "ERROR:torch.distributed.elastic.multiprocessing.api:"
    text = f"{head}failed (exitcode: -7) local_rank: 2 (pid: 94) of binary: python\n"
    finding = judged(text)["LOG093"].findings[0]
    assert any("--shm-size" in line for remedy in finding.remedies for line in remedy.commands)


def test_a_kernel_that_nobody_names_leaves_the_cause_open() -> None:
    error = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    assert (first(error).code, first(error).confidence) == ("LOG091", "likely")
    named = "rope.cu:41: fused_rope_fwd: block: [0,0,0], thread: [4,0,0] Assertion `t >= 0` failed.\n"
    asserted = "RuntimeError: CUDA error: device-side assert triggered\n"
    assert first(f"torchrun train.py\n{named}{asserted}").confidence == "sure"


_FULL = "CUDA out of memory. Tried to allocate 12.25 GiB. GPU 0 has a total capacity of 79.25 GiB."


def test_all_ranks_that_ran_out_of_memory_are_counted_and_a_smaller_batch_is_named() -> None:
    text = "".join(
        f"[node{rank // 4}.example.org] Rank {rank}, Local Rank {rank % 4}, {_FULL}\n" for rank in range(8)
    )
    assert (
        first(f"torchrun train.py\n{text}").what
        == "the GPUs of 8 ranks were full when the program wanted 12.25 GiB"
    )
    findings = judged(text)["LOG063"].findings
    assert len(findings) == 1
    assert any("smaller batch" in remedy.text for remedy in findings[0].remedies)


def test_a_local_rank_is_not_the_rank_of_the_world() -> None:
    (finding,) = judged(f"torchrun train.py\nLocal Rank 2, {_FULL}\nlocal_rank 2: {_FULL}\n")["LOG063"].findings
    assert finding.where.rank is None


def test_an_engine_that_wakes_without_memory_is_the_cause_and_its_server_hands_it_on() -> None:
    full = "CUDA Error: out of memory at /build/cumem_allocator.cpp:139"
    text = (
        "(APIServer pid=11) INFO 06-02 13:31:44 [utils.py:344] vLLM API server version 0.22.0\n"
        "(EngineCore pid=12) Traceback (most recent call last):\n"
        '(EngineCore pid=12)   File "/v/site-packages/vllm/device_allocator/cumem.py", line 59, in f\n'
        f"(EngineCore pid=12) RuntimeError: {full}\n"
        "(APIServer pid=11) Traceback (most recent call last):\n"
        '(APIServer pid=11)   File "/v/site-packages/vllm/v1/engine/core_client.py", line 9, in g\n'
        f"(APIServer pid=11) Exception: Call to wake_up method failed: {full}\n"
    )
    cause = first(text)
    assert (cause.code, cause.what) == ("LOG063", "the GPU of 1 rank was full when the program wanted more")
    assert any("wakes" in remedy.text for remedy in judged(text)["LOG063"].findings[0].remedies)
    alone = "".join(line for line in text.splitlines(keepends=True) if "pid=11" in line)
    assert first(alone).code == "LOG063"
    assert raised(alone.replace("CUDA Error: out of memory", "it is gone"))["LOG001"] == "fail"

"""The line that says why is what is quoted: of logs of something else, of faults that nobody calls an end."""

from __future__ import annotations

import pytest

from ncclcheck.reports.subjects.logs.answer.story import diagnosis
from tests.helpers.logs import judged, parsed, raised

_BAR = "Running tokenizer on dataset:   9%|#9        | 280000/2969526 [29:55<4:48:08, 155.57 examples/s]"
_WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800328 milliseconds before timing "
    "out.\n"
)
_RETRIES = "[head:19546:0:19546] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15)\n"
_STEPS = "".join(f"step {step} loss 2.1 lr 3e-4\n" for step in range(20, 200, 10))


def test_what_stands_out_in_a_log_of_something_else_is_quoted_first() -> None:
    (finding,) = judged("ping failed on x4304: no reply from x4307 after 87s\n")["LOG008"].findings
    assert finding.what == "the log ends with: ping failed on x4304: no reply from x4307 after 87s"
    (finding,) = judged("GET / 200\n" * 9)["LOG008"].findings
    assert finding.what.startswith("no line of these 9 lines is NCCL's")


@pytest.mark.parametrize("text", [
    "[FATAL ERROR]: HIP failure: 'invalid device pointer'\n",
    "accelerator.prepare() error: DistributedDataParallel device_ids only work with single-device modules\n",
    "[2023-01-08 10:05:08,491 E 786 1987] gcs_rpc_client.h:532: Failed to connect to GCS within 60 seconds. See "
    "the log file gcs_server.out. https://docs.ray.io/en/master/ray-logging.html\n",
    _RETRIES,
])  # fmt: skip
def test_a_failure_of_a_library_of_the_job_is_one_though_no_line_is_nccls(text: str) -> None:
    assert raised(text)["LOG001"] == "fail"


def test_a_fault_that_the_job_went_on_after_is_none() -> None:
    assert raised(_RETRIES + _STEPS) == {}
    assert judged(_RETRIES + _STEPS)["LOG007"].state.value == "ok"
    assert "Transport retry count" in judged(_RETRIES)["LOG001"].findings[0].what


def test_a_line_that_only_explains_is_unknown_and_quoted() -> None:
    text = (
        "libfabric:16642:1701636928::cxi:core:cxip_cq_eq_progress():531<warn> n4: Event Queue overflow detected.\n"
    )
    (finding,) = judged(text)["LOG007"].findings
    assert (finding.state.value, "Event Queue overflow" in finding.what) == ("unknown", True)


def test_what_stands_behind_a_bar_is_a_line_of_its_own() -> None:
    assert (
        "preparing data (Running tokenizer on dataset: 9 %)" in judged(_BAR + _WATCHDOG)["LOG171"].findings[0].what
    )


def test_an_aborts_own_exception_comes_before_the_abort() -> None:
    text = (
        "terminate called after throwing an instance of 'gloo::IoException'\n"
        "  what():  [gloo/transport/tcp/pair.cc:724] connect [127.0.1.1]:3210: Connection refused\nAborted\n"
    )
    verdicts = judged(text)
    story = diagnosis(parsed(text), [*verdicts.values()])
    assert story is not None
    assert [cause.code for cause in story.causes][:2] == ["LOG023", "LOG093"]


def test_a_block_of_torchrun_whose_lines_ran_together_tells_the_signal() -> None:
    text = (
        "Root Cause (first observed failure):\nrank2 (local rank: 2)exitcode: -9 (pid: 36071)error file: <N/A>\n"
    )
    (finding,) = judged(text)["LOG093"].findings
    assert (finding.where.rank, "SIGKILL" in finding.what) == (2, True)


def test_a_store_that_gives_no_answer_is_named() -> None:
    text = (
        "[W228 18:45:15.741 socket.cpp:487] [c10d] waitForInput: socket SocketImpl(fd=11, addr=[gpu-a17]:38674, "
        "remote=[::ffff:10.0.3.17]:29500) timed out after 900000ms\nTraceback (most recent call last):\n"
    )
    assert (
        "waited 900 s in vain for an answer of the store at 10.0.3.17:29500"
        in judged(text)["LOG021"].findings[0].what
    )


def test_ranks_of_lightning_that_come_twice_while_others_never_do() -> None:
    line = "initializing ddp: GLOBAL_RANK: {}, MEMBER: {}/4\nLOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0,1]\n"
    start = "".join(line.format(rank, rank + 1) for rank in (0, 1))
    assert "ranks 0-1 of 4" in judged(start + start)["LOG022"].findings[0].what
    assert "LOG022" not in raised(start)
    doubled = "".join(2 * f"initializing ddp: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/4\n" for rank in (0, 1))
    assert "LOG022" not in raised(doubled)  # a logger with two handlers
    assert "announced twice" in judged(doubled)["LOG007"].findings[0].what
    cut = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    trainer.fit(model)\n'
    assert "ranks 2-3 never" in judged(doubled + cut)["LOG022"].findings[0].what
    fairseq = "| distributed init (rank {}): env://\nepoch 1\n"
    twice = "".join(fairseq.format(rank) for rank in (0, 1, 0, 1)) + "WORLD_SIZE=4\n"
    assert "LOG022" not in raised(twice)  # how many there should be is told nowhere


def test_ray_says_why_it_took_a_node_for_dead() -> None:
    text = (
        "(raylet, ip=10.0.3.18) [2022-09-15 09:58:43,756 C 3288 3288] (raylet) node_manager.cc:999: [Timeout] "
        "Exiting because this node manager has mistakenly been marked as dead by the GCS: GCS didn't receive "
        "heartbeats from this node for 30000 ms.\n"
    )
    assert "no heartbeat came for 30 s" in judged(text)["LOG109"].findings[0].what


def test_why_a_launchers_daemon_did_not_start_stands_above_it() -> None:
    box = "prterun was unable to reliably start one or more daemons.\n"
    text = "ssh_exchange_identification: Connection closed by remote host\n" + box
    assert "before it: ssh_exchange_identification: Connection closed" in judged(text)["LOG124"].findings[0].what


def test_a_long_line_is_cut_around_what_it_says() -> None:
    text = '{"text":"","meta_info":{"id":"c564d0c547f945aa987620f1","finish_reason":{"type":"abort","message":"'
    text += (
        'Decode transfer failed for request rank=0 with exception KVTransferError: could not get the room"}}}\n'
    )
    assert "Decode transfer failed for request" in judged(text)["LOG001"].findings[0].what


def test_a_reason_below_a_launchers_words_stands_beside_them() -> None:
    text = (
        "[n1:62000] pml_ucx.c:291  Error: Failed to create UCP worker\n"
        "[1635931846.182478] [n1:62000:0] ib_device.c:670  UCX  ERROR ibv_query_gid(dev=mlx5_an0 port=1 index=0) "
        "failed: Invalid argument\n"
    )
    assert "after it: [1635931846.182478]" in judged(text)["LOG124"].findings[0].what


@pytest.mark.parametrize(("text", "signal"), [
    ("[12-16 14:27:08] Rank 0 scheduler is dead.\n[12-16 14:27:10] Exit code: -9\n", "SIGKILL"),
    ("AlgorithmError: Exit Code: 139\n", "SIGSEGV"),
    ("pod train-0: container main exited with exit code 137\n", "SIGKILL"),
])  # fmt: skip
def test_an_exit_code_that_stands_for_a_signal(text: str, signal: str) -> None:
    assert signal in judged(text)["LOG093"].findings[0].what


def test_what_is_said_above_an_exit_is_told_with_it() -> None:
    text = (
        "RuntimeError: NCCL error in: ../c10d/NCCLUtils.hpp:82, invalid argument, NCCL version 2.4.8\n"
        "srun: error: node-0: tasks 2-7: Exited with exit code 1\n"
    )
    assert "before it: RuntimeError: NCCL error in" in judged(text)["LOG001"].findings[0].what


def test_an_assertion_whose_message_is_a_dump_tells_what_did_not_hold() -> None:
    text = (
        "\t[rank1]: Traceback (most recent call last):\n"
        '\t[rank1]:   File "/v/site-packages/deepspeed/partition_parameters.py", line 284, in free_param\n'
        "\t[rank1]:     assert not param.ds_active_sub_modules, param.ds_summary()\n"
        "\t[rank1]: AssertionError: {'id': 0, 'status': 'AVAILABLE', 'numel': 544997376}\n"
    )
    (finding,) = judged(text)["LOG004"].findings
    assert (finding.where.rank, "assert not param.ds_active_sub_modules" in finding.what) == (1, True)


def test_ranks_that_are_not_among_the_ready_ones() -> None:
    text = "Stalled ops: HorovodBroadcast_layer_0 [ready ranks: 5, 6, 3, 1, 4, 0]\n"
    assert judged(text)["LOG176"].findings[0].what.startswith("rank 2 did not hand in")


@pytest.mark.parametrize("text", [
    "2024-07-29 17:14:59.920189: E external/xla/xla/rendezvous.cc:38] This thread may be stuck. Expected 8 "
    "threads to join the rendezvous, but not all of them arrived on time.\n",
    "DEADLINE_EXCEEDED: Deadline Exceeded\nRPC: /tensorflow.CoordinationService/RegisterTask\n",
    "pytorchjob-example-master-0         0/2     CrashLoopBackOff   8          2m32s\n",
])  # fmt: skip
def test_errors_of_other_frameworks_are_errors(text: str) -> None:
    assert raised(text)["LOG001"] == "fail"


def test_what_tensorflow_registers_twice_is_none() -> None:
    text = (
        "2024-07-29 17:14:59.920189: E external/local_xla/xla/cuda/cuda_fft.cc:485] Unable to register "
        "cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been registered\n"
    )
    assert "LOG001" not in raised(text)


_OLD = "node-b:7:7 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\n"
_NEW = "node-a:7:7 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\n"
_HPCX = "node-b:7:7 [0] NCCL INFO Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so\n"
_CAME = "node-a:7:7 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 10 - Init COMPLETE\n"


def test_hosts_that_speak_as_two_releases_loaded_two() -> None:
    assert "node-b before 2.19" in judged(_NEW + _OLD)["LOG018"].findings[0].what
    assert "LOG018" not in raised(_NEW + _OLD + _CAME)
    assert "LOG018" not in raised(_NEW + _NEW.replace("node-a", "node-b"))


def test_a_plugin_on_one_host_alone_is_a_risk() -> None:
    (finding,) = judged(_NEW + _HPCX)["LOG016"].findings
    assert (finding.state.value, finding.where.node) == ("warn", "node-a")
    assert "LOG016" not in raised(_NEW + _HPCX + _CAME)


def test_an_interface_that_leads_nowhere_is_told_where_nothing_else_is() -> None:
    text = (
        "node-a:7:7 [0] NCCL INFO NET/Socket : Using [0]eno4:10.3.68.117<0> "
        "[1]vethe94aab9:fe80::a86b:69ff:fe67:e3fe%vethe94aab9<0>\nnode-a:7:7 [0] NCCL INFO Using network Socket\n"
    )
    assert "NCCL also sends over vethe94aab9, link-local" in judged(text)["LOG007"].findings[0].what
    assert "link-local" not in judged(text.replace("veth", "eth"))["LOG007"].findings[0].what


def test_open_mpi_dials_a_bridge() -> None:
    line = (
        "[n1][[38971,1],2][btl_tcp_endpoint.c:796:mca_btl_tcp_endpoint_complete_connect] connect() to {} failed: "
    )
    text = line.format("172.17.0.1") + "Connection refused (111)\n"
    assert (
        judged(text)["LOG010"].findings[0].what.startswith("Open MPI dials 172.17.0.1, an address of a host's own")
    )
    other = raised(line.format("10.0.3.18") + "Connection refused (111)\n")
    assert ("LOG010" in other, other["LOG001"]) == (False, "fail")


def test_what_ray_has_stands_beside_what_is_asked_for() -> None:
    text = " 0.0/34.0 CPU\n 0.0/1.0 GPU\n 0.0/1.0 TPU\n{'GPU': 1.0} * 2 (PACK): 1+ pending placement groups\n"
    assert judged(text)["LOG182"].findings[0].what.endswith("; all of it has 1 GPU, 1 TPU")


def test_the_line_with_a_known_fault_is_quoted() -> None:
    text = (
        "2019-07-25 09:33:34.093469: W tensorflow/core/gpu_device.cc:1597] Unable to enable peer access between "
        "device ordinals 0 and 9, status: Internal: failed to enable\npeer access from 0x7f76 to 0x7f77: "
        "CUDA_ERROR_TOO_MANY_PEERS: peer mapping resources exhausted\n"
    )
    assert "CUDA_ERROR_TOO_MANY_PEERS" in judged(text)["LOG001"].findings[0].what

"""Lines that were understood wrongly, or not at all: each with what they say."""

from __future__ import annotations

from tests.helpers.logs import judged, raised

SERVES = '[2026-03-01 06:32:54] INFO:     127.0.0.1:{} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
BODY = "E0528 06:32:54.24790{} 7350 tcp_transport.cpp:136] Session::{} failed. Error: {}, transferred_bytes: 0\n"
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 1 has a total capacity of 22.09 "
    "GiB of which 758.44 MiB is free. Process 2751070 has 21.35 GiB memory in use. Of the allocated memory {} GiB "
    "is allocated by PyTorch, and 85.19 MiB is reserved by PyTorch but unallocated.\n"
)
NEURON = "2025-Oct-01 23:48:34.002260 5162:5162 ERROR  {}             {}\n"
PIPE = (
    "Traceback (most recent call last):\n"
    '  File "/w/serve.py", line 45, in launch\n    data = readers[i].recv()\n'
    '  File "/usr/lib/python3/multiprocessing/connection.py", line 383, in _recv\n    raise EOFError\nEOFError\n'
)


def test_errors_of_another_kind_than_those_that_were_survived_are_a_failure() -> None:
    survived = "".join(BODY.format(at, "writeBody", "Bad address (value: 14)") for at in range(3))
    after = "".join(BODY.format(at, "readBody", "End of file (value: 2)") for at in range(3))
    finding = judged(SERVES.format(4100) + survived + SERVES.format(4101) + after)["LOG001"].findings[0]
    assert "Bad address" in finding.what
    assert "memory that the kernel cannot read" in finding.why


def test_a_program_is_no_other_process_under_its_number_on_the_host() -> None:
    assert "was full" in judged(FULL.format("20.90"))["LOG063"].findings[0].what
    assert "other processes hold" in judged(FULL.format("0.01"))["LOG063"].findings[0].what


def test_a_heading_has_the_words_and_not_what_stands_before_them() -> None:
    unsupported = NEURON.format("TDRV:translate_one", "Unsupported hardware operator code 214 found in neff.")
    upgrade = NEURON.format(
        "TDRV:translate_one", "Please make sure to upgrade to the latest aws-neuronx-runtime-lib."
    )
    finding = judged(unsupported + upgrade)["LOG001"].findings[0]
    assert finding.what.endswith("these lines say of why: Unsupported hardware operator code 214 found in neff.")
    assert "upgrade to the latest" in str(finding.remedies)


def test_advice_to_try_again_is_no_second_try() -> None:
    advised = NEURON.format(
        "TDRV:exec", "execution timeout, caused by DGE. Please disable it (DGE=0) and try again."
    )
    assert "DGE=0" in str(
        judged(NEURON.format("NRT:run", "Failure in run()") + advised)["LOG001"].findings[0].remedies
    )


def test_a_line_of_neuron_alone_is_understood() -> None:
    alone = NEURON.format("NRT:nrt_init", "Unable to determine Neuron Driver version. Please check its package.")
    assert raised(alone) == {"LOG001": "fail"}


def test_an_error_that_names_an_address_of_the_job_is_one() -> None:
    waited = (
        'ERROR - Timeout 300s waiting for workers ["http://0.0.0.0:31000"]. Please set --startup-timeout higher\n'
    )
    assert "Timeout 300s" in judged("[Router] sglang starts\n" + waited)["LOG001"].findings[0].what


def test_the_rank_that_the_report_of_a_desync_names_did_not_come() -> None:
    finding = judged(
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=4, "
        "NumelOut=4, Timeout(ms)=8000) ran for 8097 milliseconds before timing out.\n"
        "     [1] finished collective #2, but didn't join collective #3 (count from 1)\n"
    )["LOG080"].findings[0]
    assert finding.what.startswith("rank 1 did not come")


def test_a_pipe_that_ends_is_no_file_that_was_cut_off() -> None:
    assert "other end of this pipe" in judged(PIPE)["LOG004"].findings[0].why


def test_an_answer_that_pydantic_refuses_is_no_file_of_settings() -> None:
    refused = (
        'Traceback (most recent call last):\n  File "/w/serve.py", line 45, in answer\n    Choice(reason)\n'
        "pydantic_core.ValidationError: 1 validation error for {}\nreason\n  Input should be 'stop'\n"
    )
    assert "Settings, or an answer" not in judged(refused.format("Choice"))["LOG004"].findings[0].why
    assert "Settings, or an answer" in judged(refused.format("EngineArgs"))["LOG004"].findings[0].why


def test_a_connection_that_is_tried_again_is_no_limit_of_processes() -> None:
    """EAGAIN (11) of a socket, and of fork(2): only the second says that there may be no more processes."""
    accept = "Accept failed Resource temporarily unavailable\n"
    fork = "sh: fork: retry: Resource temporarily unavailable\n"
    reasons = [
        str(judged(2 * line + "srun: error: h1: task 0: Exited with exit code 1\n")) for line in (accept, fork)
    ]
    assert ["limit of processes and threads" in reason for reason in reasons] == [False, True]


def test_a_container_that_pyxis_cannot_start_is_no_image_that_cannot_be_pulled() -> None:
    (finding,) = judged("slurmstepd: error: pyxis: couldn't start container\n")["LOG181"].findings
    assert finding.what == "pyxis: couldn't start container"
    (finding,) = judged("slurmstepd: error: pyxis: couldn't import docker image\n")["LOG181"].findings
    assert finding.what == "the image could not be pulled"


def test_results_that_are_handed_up_show_no_flushed_requests() -> None:
    steps = ("misc/socket.cc:570 -> 2", "bootstrap.cc:275 -> 2", "init.cc:1493 -> 2")
    log = "".join(f"g1:7:8 [0] NCCL INFO {step}\n" for step in steps)
    (finding,) = judged(log)["LOG001"].findings
    assert "flushed" not in finding.what
    assert "the result that NCCL's functions handed up" in finding.what


def test_more_processes_than_the_world_has_wait_for_nobody() -> None:
    """The count of torch's store passed the world size (16 of 4), and never is it."""
    wait = (
        "INFO | torch.distributed.distributed_c10d | Waiting in store based barrier to initialize process group "
        "for rank: 0, key: store_based_barrier_key:1 (world_size=4, worker_count=16, timeout=0:30:00)\n"
    )
    (finding,) = judged(3 * wait)["LOG021"].findings
    assert finding.what == "16 processes came to a start of 4: more than the job has"


def test_a_plugin_that_the_loader_refuses_is_told_in_its_words() -> None:
    error = "libefa.so.1: cannot open shared object file: No such file or directory"
    log = (
        f"h1:7:7 [0] NCCL INFO NET/Plugin: /opt/dep.so: {error}\n"
        "h1:7:7 [0] plugin/net.cc:379 NCCL WARN Failed to initialize any NET plugin\n"
    )
    (finding,) = judged(log)["LOG030"].findings
    assert f"its plugin could not be loaded (/opt/dep.so: {error})" in finding.what


def test_what_keeps_nccl_from_an_interface_is_named() -> None:
    listening = "h1:7:7 [0] bootstrap.cc:108 NCCL WARN NET/Socket : No usable listening interface found\n"
    (finding,) = judged(listening)["LOG012"].findings
    assert finding.what.endswith("none is in the subnet of the address in NCCL_COMM_ID")
    family = "h1:7:7 [0] NCCL INFO NCCL_SOCKET_FAMILY set by environment to AF_INET6\n"
    none = "h1:7:7 [0] bootstrap.cc:115 NCCL WARN Bootstrap : no socket interface found\n"
    (finding,) = judged(family + none)["LOG012"].findings
    assert "NCCL_SOCKET_FAMILY=AF_INET6 allows addresses of that family alone" in finding.what


def test_a_limit_of_descriptors_is_no_permission() -> None:
    line = "failed to create shared memory file 0x7f46, error Too many open files (24)"
    (finding,) = judged(f"h2:7:8 [1] misc/shmutils.cc:73 NCCL WARN Error: {line}\n")["LOG051"].findings
    assert finding.what.startswith("the limit of open files (ulimit -n) is reached on h2")

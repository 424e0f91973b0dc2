"""What no rule knows is told by the line of the log that says most of why."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Logs
from tests.helpers.logs import judged, parsed, raised

DIED = (
    "ERROR 04-08 04:00:01 [core.py:390] EngineCore hit an exception: Traceback (most recent call last):\n"
    'ERROR 04-08 04:00:01 [core.py:390]   File "/v/lib/python3.12/site-packages/ray/dag.py", line 5, in read\n'
    "ERROR 04-08 04:00:01 [core.py:390] ray.exceptions.RayChannelTimeoutError: System error: The step is "
    "slow, increase RAY_CGRAPH_get_timeout which is 10 seconds.\n"
    "CRITICAL 04-08 04:00:02 [core_client.py:359] Got fatal signal from worker processes, shutting down.\n"
)
HEALTH = 'INFO:     10.0.0.5:50254 - "GET /health HTTP/1.1" 200 OK\n'
BOX = (
    f"{'-' * 74}\nIt appears as if there is not enough space for\n/tmp/openmpi-sessions/pool (the shared-memory\n"
    "backing file). It is likely that your MPI job will now abort.\n\n  Local host:  mpi012\n"
    f"  Space Available: 22097920 B\n{'-' * 74}\n"
)
CUT = (
    "Traceback (most recent call last):\n"
    '  File "/w/train.py", line 31, in main\n    hook.save(model)\n'
    '  File "/v/lib/python3.12/site-packages/engine/hooks.py", line 7, in save\n'
    "    assert isinstance(layer, Decoder)\n"
)
CONNECT = (
    "WARNING: Open MPI failed to TCP connect to a peer MPI process\n  Local host: gpu-a17\n  PID:        75387\n"
    "  Message:    connect() to 10.0.3.18:50000 failed\n  Error:      Connection refused (111)\n"
    "[gpu-a17:00000] *** An error occurred in Socket closed\n"
)
BAR = " 35%|####      | 738112/2081401 [30:01<57:14, 39.1MB/s]\n"
WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:485] [Rank 6] Watchdog caught collective operation timeout: WorkNCCL("
    "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for\n"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            DIED + HEALTH * 20,
            "increase RAY_CGRAPH_get_timeout",
        ),  # vllm-project/vllm#16259: its web server lives on
        (BOX, "not enough space for /tmp/openmpi-sessions/pool"),
        (
            CUT,
            "ends at engine/hooks.py:7 (save), called at /w/train.py:31 (main): assert isinstance(layer, Decoder)",
        ),
        ("[rank1]: NCCL WARN odd thing\nwrapper: exit code 3\n", "odd thing"),
        (CONNECT, "connect() to 10.0.3.18:50000 failed; Error: Connection refused (111)"),
        (
            "torchrun train.py\nfrob is not loaded\nwire.cpp:275: init failed for WIRE\nexit code 7\n",
            "frob is not loaded",
        ),
        (
            "torchrun train.py\n[W] frob is not loaded, using plain\nwire.cpp:275: init failed for WIRE\n",
            "init failed for",
        ),
    ],
)
def test_the_line_that_says_most_is_the_heading(text: str, words: str) -> None:
    finding = judged(text)["LOG001"].findings[0]
    assert words in finding.what
    assert finding.state.value == "fail"


def test_what_a_box_asks_for_is_the_fix() -> None:
    assert "another folder" in str(judged(BOX)["LOG001"].findings[0].remedies)


def test_a_box_of_another_program_is_none() -> None:
    box = f"{'-' * 74}\nNote: ops that are not installed are compiled\n{'-' * 74}\n"
    assert "mpi-box" not in {event.sign for event in parsed(box).events}


def test_a_line_of_no_launcher_is_told_and_not_judged() -> None:
    (finding,) = judged("/bin/bash: line 1: /usr/sbin/sshd: No such file or directory\n")["LOG008"].findings
    assert finding.state.value == "unknown"
    assert finding.what.startswith("the log ends with: /bin/bash: line 1: /usr/sbin/sshd: No such file")
    assert any("where all nodes see it" in remedy.text for remedy in finding.remedies)


def test_an_earlier_attempt_is_told_where_the_last_one_only_began() -> None:
    begins = "INFO 01-17 23:36:55 [api_server.py:1043] vLLM API server version 0.8.5\n"
    text = f"{begins}Traceback (most recent call last):\nRuntimeError: TPU initialization failed\n{begins}"
    text += "WARNING:root:libtpu.so and TPU device found. Cannot use None backend on TPU.\n"
    (finding,) = judged(text)["LOG007"].findings
    assert "an earlier attempt failed by: RuntimeError: TPU initialization failed" in finding.what


def test_a_bar_that_ran_as_long_as_the_time_out_worked_alone() -> None:
    finding = judged(BAR + WATCHDOG)["LOG171"].findings[0]
    assert "at 35 % after 30 minutes" in finding.what
    assert raised(BAR.replace("30:01", "40:01") + WATCHDOG).get("LOG171") is None
    assert raised(f"{BAR}step 1200 loss 1.80 lr 3e-4\n{WATCHDOG}").get("LOG171") is None


def test_a_reason_right_before_stands_with_what_was_seen() -> None:
    text = "bash: orted: command not found\nORTE was unable to reliably start one or more daemons.\n"
    assert "before it: bash: orted: command not found" in judged(text)["LOG124"].findings[0].what


def test_a_crash_is_told_with_its_innermost_function() -> None:
    text = "[n1:0471] *** Process received signal ***\n[n1:0471] Signal: Segmentation fault (11)\n"
    text += "[ 1] /usr/lib/libopen-pal.so.20(opal_hwloc_base_free_topology+0x76)[0x7f3042871ca6]\n"
    assert "in opal_hwloc_base_free_topology() of libopen-pal.so.20" in judged(text)["LOG093"].findings[0].what


def test_a_cut_traceback_is_none_where_its_exception_follows() -> None:
    logs: Logs = parsed(f"{CUT}AssertionError\n")
    assert "traceback-cut" not in {event.sign for event in logs.events}


def test_a_wrong_sum_over_all_ranks_is_of_the_gpus() -> None:
    text = 'Traceback (most recent call last):\n  File "/w/test.py", line 16, in <module>\n'
    text += '    assert value == world_size, f"Expected {world_size}"\nAssertionError: Expected 4, got 1.0\n'
    assert "NCCL_P2P_DISABLE=1" in str(judged(text)["LOG004"].findings[0].remedies)


def test_a_gpu_that_is_not_seen_is_no_fault_of_torch() -> None:
    text = 'ERROR RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "../c.cpp":49, please '
    text += "report a bug to PyTorch. device=1, num_gpus=1\n"
    assert "by a number that it does not see (1)" in judged(text)["LOG185"].findings[0].what


def test_an_exception_that_says_little_is_told_with_the_error_before_it() -> None:
    text = "E0529 23:22:59.553362 67580 rdma_context.cpp:203] Failed to register memory 0x7c: Bad address [14]\n"
    text += (
        'Traceback (most recent call last):\n  File "/w/b.py", line 3, in run\nValueError: Warmup did not end\n'
    )
    finding = judged(text)["LOG004"].findings[0]
    assert "before it: Failed to register memory" in finding.what
    assert "nvidia_peermem" in str(finding.remedies)


MCA = (
    f"{'-' * 74}\nTwo mutually-exclusive MCA variables were specified.  This can result\n"
    "in undefined behavior.\n\n  1st MCA variable: btl_tcp_if_include\n    Source of value: environment\n"
    f"  2nd MCA variable: btl_tcp_if_exclude\n{'-' * 74}\n"
)
NAME = (
    "[W socket.cpp:558] [c10d] The IPv6 network addresses of (head-0.head, 3389) cannot be retrieved "
    "(gai error: -2 - Name or service not known).\n"
)


@pytest.mark.parametrize(
    ("text", "heading", "why"),
    [
        ("mpi_lib.so: undefined symbol: cudaLaunch\n", "undefined symbol: cudaLaunch", "release of CUDA"),
        (
            "python: symbol lookup error: /opt/openmpi/mca_coll_x.so: undefined symbol: opal_x_check\n",
            "symbol lookup error",
            "another build of MPI",
        ),
        (MCA, "1st MCA variable: btl_tcp_if_include", "exclude each other"),
        (
            "nvidia fabric manager interface version 590.1 don't match with driver version 580.2.\n",
            "don't match with driver version",
            "different releases",
        ),
        (NAME, "addresses of (head-0.head, 3389) cannot be retrieved", "no address on this node"),
    ],
)
def test_what_a_program_or_library_cannot_do_is_the_failure_where_nothing_follows(
    text: str, heading: str, why: str
) -> None:
    (finding,) = judged(text)["LOG001"].findings
    assert finding.state.value == "fail"
    assert heading in finding.what
    assert why in finding.why
    assert judged(text)["LOG007"].state.value == "skipped"


@pytest.mark.parametrize("text", ["mpi_lib.so: undefined symbol: cudaLaunch\n", NAME, MCA])
def test_it_is_none_where_the_job_works_on(text: str) -> None:
    assert raised(text + "".join(f"iteration {step} / 1000 | loss 2.1\n" for step in range(100, 130))) == {}


def test_no_free_slot_is_mpirun_s_own() -> None:
    assert "LOG124" in raised("All nodes which are allocated for this job are already filled.\n")


def test_a_launcher_s_error_that_it_dealt_with_is_quoted_and_not_judged() -> None:
    (finding,) = judged("slurmstepd: error: Bind request gpu:1 is void. Taking the first one instead.\n")[
        "LOG007"
    ].findings
    assert "Bind request gpu:1 is void" in finding.what


def test_mlperf_s_lines_are_progress_and_success() -> None:
    line = ':::MLLOG {{"event_type": "INTERVAL_END", "key": "{}", "value": null, "metadata": {{{}}}}}\n'
    epochs = "".join(line.format("epoch_stop", f'"epoch_num": {number}') for number in range(1, 4))
    assert judged(epochs + line.format("run_stop", '"status": "success"'))["LOG007"].state.value == "ok"
    assert judged(line.format("run_stop", '"status": "aborted"'))["LOG007"].state.value != "ok"


def test_a_file_of_an_earlier_start_at_which_ranks_meet_is_named() -> None:
    beyond = (
        "Timed out initializing process group in store based barrier on rank: 0, for key: "
        "store_based_barrier_key:1 (world_size=2, worker_count=4, timeout=0:02:00)\n"
    )
    (finding,) = judged("File already exists: out/dist_init\n" + beyond)["LOG021"].findings
    assert "the file at which they meet, out/dist_init, is of an earlier start" in finding.what
    assert finding.remedies[0].commands == ["rm -- out/dist_init"]
    (finding,) = judged("| distributed init (rank 1): file:///ckpt/init, gpu 1\n" + beyond)["LOG021"].findings
    assert finding.remedies[0].commands == ["rm -- /ckpt/init"]
    (finding,) = judged(beyond)["LOG021"].findings
    assert "more than the job has" in finding.what


_MAIN = 'Traceback (most recent call last):\n  File "/w/train.py", line 40, in <module>\n    main()\n'


@pytest.mark.parametrize(
    ("code", "text", "heading", "why"),
    [
        (
            "LOG004",
            f"[rank3]: {_MAIN}ImportError: cannot import name 'helpers' from 'own.data' (./own/data.py)\n",
            "cannot import name 'helpers'",
            "was not built on this node",
        ),
        (
            "LOG004",
            f"torch\n{_MAIN}ValueError: in (shape=(3, 1, 1536)) and weight (shape=(6144,)) are not compatible\n",
            "shape=(6144,)",
            "one is sharded",
        ),
        (
            "LOG057",
            "Last error:\nDuplicate GPU detected : rank 5 and rank 0 b\n",
            "ranks 0 and 5 have one GPU",
            "",
        ),
        (
            "LOG022",
            "ValueError: Invalid rank 8, rank should be in the interval [0, 7]\n",
            "the sampler counts 8 ranks",
            "",
        ),
        (
            "LOG169",
            "srun: error: Task launch for StepId=12.0 failed on node n11: Unable to satisfy cpu bind request\n",
            "cpu bind request",
            "SLURM_CPU_BIND",
        ),
        (
            "LOG124",
            "[n1:7] Impossible to open the file /tmp/pmix-contact.txt in write mode\n"
            "[n1:7] PMIX ERROR: PMIX_ERR_FILE_OPEN_FAILURE in file ptl_tcp_component.c at line 547\n",
            "before it: [n1:7] Impossible to open the file /tmp/pmix-contact.txt",
            "",
        ),
    ],
)
def test_an_explanation_says_what_the_words_say(code: str, text: str, heading: str, why: str) -> None:
    finding = judged(text)[code].findings[0]
    assert heading in finding.what
    assert why in finding.why

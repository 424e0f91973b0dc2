"""The verdict: a dead job is never healthy, a healthy one never failed, and what is not understood is neither."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.text import closing
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.helpers.logs import judged, parsed


def document(*texts: str | bytes) -> Document:
    cluster = Cluster(command="logs", measurements=Measurements(logs=parsed(*texts)))
    story = finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0)
    return finish.make(cluster, Options(command="logs", only=("LOG",)), story)


_ME = "[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
_STARTED = "".join(
    f"gpu-a17:{700 + rank}:{900 + rank} [{rank}] NCCL INFO ncclCommInitRank comm 0x55a{rank} rank {rank} nranks 2 "
    f"cudaDev {rank} nvmlDev {rank} busId 1{rank}000 commId 0x7a - Init {state}\n"
    for state in ("START", "COMPLETE")
    for rank in range(2)
)
_STEPS = "".join(f"step {step} loss 2.1 lr 3e-4\n" for step in range(20, 200, 10))
_DEAD = {
    "torch's exception alone": _ME + "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n",
    "NCCL's result alone": "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.\n",
    "an internal error": "ncclInternalError: Internal check failed.\nLast error:\n",
    "last error without words": _ME + "internal error\nncclInternalError: Internal check failed.\nLast error:\n\n",
    "the words of nccl-tests": "gpu-a17: Test NCCL failure common.cu:1005 'unhandled system error / '\n",
    "an engine": "(APIServer pid=93) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
    "See stack trace (above) for the root cause.\n",
    "an engine's start": "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {}\n",
    "torchrun's block": "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-01_10:00:00\n"
    "  host      : gpu-a17\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 4711)\n  error_file: <N/A>\n",
    "half a block": "  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 4711)\n",
    "a traceback that is cut off": "NCCL version 2.21.5\nTraceback (most recent call last):\n  File \"/app/train.py\", "
    "line 11, in <module>\n    main()\n",
    "an exception before forty lines more": "Traceback (most recent call last):\nValueError: no such shard\n"
    + "".join(f"torch says something about module {name}\n" for name in range(40)),
    "a warning of NCCL without its head": "NCCL WARN Something that nobody knows\n",
    "a warning of NCCL behind a cut": "_ib.cc:840 NCCL WARN NET/IB : something new\n",
    "a known warning that stops": "elm4:311:340 [2] include/shm.h:51 NCCL WARN Error while creating shared memory segment "
    "nccl-shm-send-5c1f-0-1-2 (size 9637888)\n",
    "the watchdog's state": "[rank7]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 7] Timeout at NCCL work: 1, last enqueued "
    "NCCL work: 1, last completed NCCL work: 0.\n",
    "the heartbeat": "[rank0]:[F1109 22:47:02.100 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0 Rank 0] "
    "[PG ID 0 PG GUID 0 Rank 0] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL "
    "watchdog hang.\n",
    "DeepSpeed's launcher": "[2026-03-01 10:00:00,100] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] "
    "exits with return code = 1\n",
    "accelerate's launcher": "torch\nsubprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero "
    "exit status 1.\n",
    "mpirun": "mpirun noticed that process rank 3 with PID 4711 on node gpu-a17 exited on signal 11 (Segmentation fault)."
    "\n",
    "mpirun's second form": "mpirun detected that one or more processes exited with non-zero status, thus causing the job "
    "to be terminated.\n",
    "srun": "srun: error: gpu-a17: task 3: Exited with exit code 1\n",
    "Slurm, of something new": "slurmstepd: error: the moon is in the wrong quarter\n",
    "Ray": "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n",
    "Ray in a prefix": "(raylet, ip=10.0.3.4) A worker died or was killed while executing a task by an unexpected system "
    "error.\n",
    "an error behind Ray's prefix": "(WorkerDict pid=4711, ip=10.0.3.4) [rank3]: cannot go on: communicator failed\n",
    "an error behind mpirun's": "[1,2]<stderr>:NCCL failed in main.cu:12\n",
    "in colours": "\x1b[31m[rank3]: Error: could not build the group\x1b[0m\n",
    "behind a bar": "rank 0:  10%|#         | 12/120 [00:01<00:10]\r[rank3]: Fatal error in communicator\n",
    "a fatal error of C++": "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  boom\n",
    "Python's fatal error": "Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n",
    "gloo": "torch: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth9\n"
    "terminate called\n",
    "steps and then an error": _STEPS + "[rank1]: Error: lost\n",
    "a start, steps and an exit code": _STARTED + _STEPS + "worker 1 exited with code 1\n",
    "a start that failed": _STARTED.partition("COMPLETE")[0] + "COMPLETE\ngpu-a17:701:901 [1] init.cc:99 NCCL WARN new\n",
}  # fmt: skip


@pytest.mark.parametrize("text", _DEAD.values(), ids=_DEAD.keys())
def test_a_dead_job_is_never_healthy(text: str) -> None:
    report = document(text)
    assert (report.state, report.exit_code) == ("fail", 1), closing.decision(report)


_END = "Training completed successfully\n"
_SOUND = {
    "no libibverbs": "gpu-a17:700:700 [0] misc/ibvwrap.cc:61 NCCL WARN Failed to open libibverbs.so[.1]\n" + _STARTED,
    "a plugin that is not there": "gpu-a17:700:700 [0] NCCL INFO NET/Plugin: dlerror=libnccl-net.so: cannot open shared "
    "object file: No such file or directory No plugin found (libnccl-net.so), using internal implementation\n" + _STARTED,
    "a count that is nought": "rank 0: errors=0, 0 failed, failures: 0, 12 passed\n",
    "a test's result": "# nccl-tests\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 41.8\n",
    "a figure of the training": "rank 0: step 20 word error rate 0.12 validation error: 0.031 error 1.2e-3\n",
    "a figure without a step": "rank 0: mean squared error = 3, top-1 error: 12.5\n",
    "a result after MPI's complaint": "[1668691503.4] [node-a:1088443:0] ib_log.c:246  UCX  ERROR mlx5_0: "
    "ibv_create_cq() failed: Cannot allocate memory.\n\n# OSU MPI Broadcast Latency Test v5.8\n"
    "# Size       Avg Latency(us)\n1                       0.23\ntorch\n",
    "a setting": "TORCH_NCCL_ASYNC_ERROR_HANDLING=1\nTORCH_NCCL_BLOCKING_WAIT=0\nrank 0: on_error=continue\n",
    "a warning about what may be": "rank 0: UserWarning: this may fail if the error is large\n",
    "a second try": "[rank0]: download failed, retrying in 3 s\n",
    "a fall-back": "torch: loading flash_attn failed, falling back to sdpa\n",
    "an import that is not needed": "rank 0 INFO 11-09 22:47:01 [utils.py:12] Failed to import from vllm._C\n",
    "the hub's answer": "huggingface: HTTP Error 404 thrown while requesting HEAD https://huggingface.co/x; rank 0\n",
    "a handler": "torchrun: registering handlers for signal SIGTERM\n",
    "a line of code": "torch/utils.py:12: UserWarning: deprecated\n    raise RuntimeError('it failed')\n",
    "an exit code that is good": "rank 0 exited with exit code 0\n",
    "a path": "rank 0 writes to /var/log/job/errors.log and /opt/torch/errors/failed.py\n",
    "git": "fatal: not a git repository (or any of the parent directories): .git\n",
    "a metric's logger": "wandb: ERROR Unable to reach the server, rank 0\n",
    "a complaint before the start": "[rank0]: cuda_dnn.cc: cannot register: error 3 of the factory\n" + _STARTED,
    "a complaint before steps": "[rank0]: upload failed: 503\n" + _STEPS,
    "an exception that was caught": "Traceback (most recent call last):\nValueError: no such mirror, torch\n" + _STEPS,
    "an exception before the start": "Traceback (most recent call last):\nValueError: no such mirror, torch\n" + _STARTED,
    "a watchdog that is set": "torch: watchdog timeout set to 600 s; error handling is on\n",
    "glog's lesser levels": "[rank0]:[W1109 22:40:00.1 socket.cpp:1] [c10d] something has failed, it says\n",
}  # fmt: skip


@pytest.mark.parametrize("text", _SOUND.values(), ids=_SOUND.keys())
def test_a_sound_job_is_never_failed(text: str) -> None:
    report = document(text + _END)
    assert (report.state, report.exit_code) == ("ok", 0), closing.decision(report)


@pytest.mark.parametrize(
    "text",
    ["a\nb\nc\n", "GET / 200\nerror: the cat is away\n", "Nov 23 03:27:00 host cron[12]: job failed\n"],
)
def test_what_is_not_understood_is_not_healthy(text: str) -> None:
    report = document(text)
    assert report.exit_code == 3
    assert closing.decision(report).startswith(("Not understood: ", "Not judged: "))


@pytest.mark.parametrize(
    "before",
    ["", "gpu-a17:1:2 [0] ", "(WorkerDict pid=4711, ip=10.0.3.4) ", "[1,2]<stdout>:", "[pod/train-0/main] ", "3: ",
     "2026-03-01T10:00:00.123456789Z ", "\x1b[36m(pid=12)\x1b[0m ", "10%|#  | 1/9\r", "INFO 11-09 22:47:01 [x.py:1] "],
)  # fmt: skip
@pytest.mark.parametrize(
    "line",
    ["NCCL INFO Using network Socket", "NCCL version 2.21.5+cuda12.4", "[c10d] a client has connected",
     "[I1109 22:40:00.1 ProcessGroupNCCL.cpp:1] ProcessGroupNCCL initialized", "INFO:torch.distributed: ranks met"],
)  # fmt: skip
def test_a_line_of_nccl_or_torch_is_one_whatever_stands_before_it(before: str, line: str) -> None:
    report = document(f"{before}{line}\n")
    assert report.exit_code == 3
    assert "LOG007" in closing.decision(report)


_NUMPY = (
    "+ srun torchrun --nnodes 2 --nproc-per-node 4 train.py\n\nA module that was compiled using NumPy 1.x cannot be run in\n"
    'NumPy 2.1.2 as it may crash.\n\nTraceback (most recent call last):  File "/v/bin/torchrun", line 5, in <module>\n'
    '    from torch.distributed.run import main\n  File "/v/lib/python3.10/site-packages/torch/functional.py", line 7, '
    "in <module>\n    import torch.nn.functional as F\n"
)
_BLOCK = _DEAD["torchrun's block"]
_PROFILED = "".join(
    f"STAGE:2026-03-01 10:0{minute}:00 {pid}:{pid} ActivityProfilerController.cpp:318] Completed Stage: Collection\n"
    for minute in range(5)
    for pid in range(4711, 4715)
)
_GROUP_ENDED = (
    "[2026-03-01 10:09:00,578] torch.distributed.elastic.agent.server.api: [INFO] [default] worker group successfully "
    "finished. Waiting 300 seconds for other agents to finish.\n"
)
_CAUGHT = (
    "---first error\n[gpu-a17] Rank 4, Local Rank 0\n stack.size() INTERNAL ASSERT FAILED at "
    '"../torch/csrc/autograd/profiler_python.cpp":964, please report a bug to PyTorch. Python replay stack is empty.\n'
)
_ADVICE = (
    "  - If you are the owner of the model architecture code, please modify your model class such that it inherits from "
    "`GenerationMixin` (after `PreTrainedModel`, otherwise you'll get an exception).\n"
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (_NUMPY, 3),  # advice of an import, and nothing after it
        (_NUMPY + _PROFILED, 0),
        (_NUMPY + _STEPS, 0),
        (_NUMPY + _PROFILED + _BLOCK, 1),
        (_PROFILED + _NUMPY, 0),
        (_PROFILED + _CAUGHT, 1),
        (_PROFILED + _CAUGHT + _PROFILED, 1),  # of other ranks, it may be
        (_PROFILED + _CAUGHT + _GROUP_ENDED, 0),
        (_PROFILED + _CAUGHT + _GROUP_ENDED + _BLOCK, 1),  # the other node's group failed
        (_ADVICE + _STEPS, 0),
        (_STEPS + _ADVICE, 0),
        (_STEPS + _ADVICE + "RuntimeError: no `GenerationMixin`\n", 1),
        (_STEPS + "Error: if you see this, the shard is gone\n", 1),
    ],
)
def test_only_what_the_program_went_on_after_was_survived(text: str, code: int) -> None:
    report = document("NCCL version 2.21.5\n" + text)
    assert report.exit_code == code, closing.decision(report)


def test_a_start_of_lightning_that_stops_names_the_ranks_that_are_not_there() -> None:
    line = "initializing ddp: GLOBAL_RANK: {}, MEMBER: {}/8\n"
    half = "GPU available: True, used: True\n" + "".join(line.format(rank, rank + 1) for rank in (1, 2, 0, 3))
    report = document(half)
    assert report.exit_code == 3
    (finding,) = judged(half)["LOG007"].findings
    assert finding.what == "the start stops at 4 of 8 ranks; not in these files: ranks 4-7"
    assert document(half + "ValueError: no such shard\n").exit_code == 1
    assert document(half + _STEPS).exit_code == 0
    whole = half + "".join(line.format(rank, rank + 1) for rank in range(4, 8))
    assert "not in these files" not in judged(whole)["LOG007"].findings[0].what
    assert document(whole).exit_code == 3


def test_a_log_that_stops_is_not_healthy() -> None:
    report = document(_STARTED)
    assert report.exit_code == 3
    assert "does not show that the job ended or made progress" in closing.decision(report)


def test_a_job_that_still_runs_is_not_called_healthy_and_not_failed() -> None:
    report = document(_STARTED + _STEPS)
    assert (report.exit_code, closing.decision(report)[:18]) == (0, "No failure so far:")


def test_a_process_with_several_gpus_has_several_ranks() -> None:
    """nccl-tests -g 4, ncclCommInitAll: one process, a communicator of each GPU."""
    log = "".join(
        f"gpu-a17:700:{900 + rank} [{rank}] NCCL INFO ncclCommInitAll comm 0x55a{rank} rank {rank} nranks 4 "
        f"cudaDev {rank} nvmlDev {rank} busId 1{rank}000 commId 0x7a - Init {state}\n"
        for state in ("START", "COMPLETE")
        for rank in range(4)
    )
    facts = parsed(log + "gpu-a17:700:901 [1] NCCL INFO something\ngpu-a17:700:901 [1] init.cc:9 NCCL WARN new\n")
    assert facts.ranks == [0, 1, 2, 3]
    assert (facts.processes[0].rank, facts.processes[0].several) == (None, [0, 1, 2, 3])
    assert [event.rank for event in facts.events if event.sign == "nccl-warning"] == [None]
    report = document(log + "# Avg bus bandwidth    : 41.8\n")
    assert (report.exit_code, closing.decision(report)[:7]) == (0, "Healthy")
    assert "all heard of" in str(report.diagnosis)


def test_the_log_of_one_rank_accuses_nobody_else() -> None:
    waited = (
        "[rank0]:[E1109 22:46:25.933 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600012 milliseconds\n"
    )
    report = document(_STARTED.partition("gpu-a17:701")[0] + waited)
    assert report.exit_code == 1
    assert [
        cause for cause in (report.diagnosis.causes if report.diagnosis else []) if cause.where.rank == 1
    ] == []


def test_what_the_kernel_ended_is_the_cause_wherever_it_stands() -> None:
    boom = "[rank1]: RuntimeError: shape '[4, 8]' is invalid for input of size 31\n"
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.\n"
    for text in (boom + oom, oom + boom):
        assert closing.decision(document(text)).startswith("Cause: LOG093")


def _attempt(pid: int, *lines: str) -> str:
    head = (
        f"gpu-a17:{pid}:{pid + 1} [0] NCCL INFO ncclCommInitRank comm 0x55a0 rank 0 nranks 1 cudaDev 0 busId 10000"
    )
    return "".join(f"{head} commId 0x7a - Init {state}\n" for state in ("START", "COMPLETE")) + "".join(lines)


_BOOM = "[rank0]: RuntimeError: shape '[4, 8]' is invalid for input of size 31\n"
_FULL = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.19 GiB\n"


def test_of_several_attempts_the_last_one_is_judged() -> None:
    well = document(_attempt(700, _BOOM) + _attempt(800, _STEPS, _END))
    assert (well.exit_code, closing.decision(well)[:7]) == (0, "Healthy")
    assert [v.state.value for v in well.verdicts if v.code == "LOG009"] == ["note"]
    bad = document(_attempt(700, _BOOM) + _attempt(800, _STEPS, _FULL))
    assert closing.decision(bad).startswith("Cause: LOG063")
    assert "invalid for input" not in str(bad.diagnosis)


def test_an_attempt_that_said_nothing_does_not_hide_the_failure() -> None:
    anew = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
    assert document(_attempt(700, _BOOM) + anew).exit_code == 1


_NEW = "     1048576        262144     float     sum      -1    31.21   33.60   63.00 {:>6}    30.80   34.04   63.83 {:>6}\n"
_OLD = "     1048576        262144     float     sum    31.21   33.60   63.00  {}   30.80   34.04   63.83  {}\n"


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (_NEW.format("0", "0"), ""),
        (_NEW.format("0", "N/A"), ""),
        (_NEW.format("N/A", "0"), ""),
        (_NEW.format("7", "0"), "7 wrong values"),
        (_NEW.format("0", "12"), "12 wrong values"),
        (_NEW.format("N/A", "3"), "3 wrong values"),
        (_NEW.format("1.2e+06", "N/A"), "wrong values at 1048576 bytes"),
        (_OLD.format("0e+00", "0e+00"), ""),
        (_OLD.format("2e-07", "2e-07"), ""),
        (_OLD.format("1e+00", "N/A"), ""),  # of half, by rounding
        (_OLD.format("0e+00", "6e+08"), "wrong values at 1048576 bytes"),
        ("[1,0]<stdout>:" + _NEW.format("5", "0"), "5 wrong values"),
        ("# Out of bounds values : 0 OK\n", ""),
        ("# Out of bounds values : 4 FAILED\n", "4 values out of bounds"),
    ],
)
def test_wrong_values_of_nccl_tests_are_read_in_old_and_new_tables(row: str, wrong: str) -> None:
    verdict = judged(_NEW.format("0", "0") * 30 + row)["LOG179"]
    assert (verdict.state is State.FAIL) is bool(wrong)
    assert not wrong or wrong in verdict.findings[0].what

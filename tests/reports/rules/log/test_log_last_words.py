"""Logs whose last words decide: later attempts and steps, signals, caught exceptions, other processes."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, raised

_FRAMES = 'Traceback (most recent call last):\n  File "/w/train.py", line 40, in <module>\n    main()\n'
_SHORT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is "
    "free."
)
_FULL = f"{_FRAMES}torch.OutOfMemoryError: {_SHORT}\n"
_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
_UNREADABLE = '  File "/w/train.py", line 41\n    size = = 4\n           ^\nSyntaxError: invalid syntax\n'
_STEPS = "torchrun train.py\n" + "".join(f"iteration {step} / 1000 | loss 2.1\n" for step in range(100, 130))


@pytest.mark.parametrize("end", ["", _FAILED])
def test_a_program_that_cannot_be_read_is_a_new_attempt(end: str) -> None:
    verdicts = judged(f"torchrun train.py\n{_FULL}{end}{_UNREADABLE}{_UNREADABLE}{end}")
    assert verdicts["LOG063"].state.value == "ok"
    assert verdicts["LOG004"].findings[0].what.endswith("SyntaxError: invalid syntax at /w/train.py:41")
    assert "out of memory" in verdicts["LOG009"].findings[0].what


def test_what_is_imported_cannot_be_read_in_the_same_attempt() -> None:
    imported = _FRAMES + _UNREADABLE.replace("train.py", "model.py")
    assert judged(f"torchrun train.py\n{imported}")["LOG009"].state.value == "skipped"


def test_a_rank_whose_script_raises_once_more_is_of_a_new_attempt() -> None:
    def of_both(words: str) -> str:
        return "".join(f"[rank{rank}]: {line}\n" for rank in (0, 1) for line in (*_FRAMES.splitlines(), words))

    verdicts = judged("torchrun train.py\n" + of_both("KeyError: 'labels'") + of_both("ValueError: bad shard 7"))
    assert [finding.what.partition(" at ")[0] for finding in verdicts["LOG004"].findings] == [
        "ranks 0-1 raised ValueError: bad shard 7"
    ]


@pytest.mark.parametrize(("apart", "code"), [(3, "KeyError"), (200, "ValueError")])
def test_a_script_that_raises_much_later_is_a_new_attempt(apart: int, code: str) -> None:
    """Without a rank: near to each other two ranks may have raised."""
    text = (
        f"torch\n{_FRAMES}KeyError: 'labels'\n"
        + "loading a shard\n" * apart
        + f"{_FRAMES}ValueError: bad shard 7\n"
    )
    assert code in judged(text)["LOG004"].findings[0].what


def test_arguments_that_were_refused_before_the_program_ran() -> None:
    refused = "train.py: error: unrecognized arguments: --lrr 3\n"
    assert "LOG164" not in raised(f"torch\n{refused}{_FULL}")
    assert "LOG164" in raised(f"torch\n{_FULL}{refused}")


def test_a_later_step_of_a_script_has_nothing_to_take_up() -> None:
    later = "usage: export.py [-h] --ckpt CKPT\nexport.py: error: the following arguments are required: --ckpt\n"
    text = f"torchrun train.py\n{_FRAMES}AssertionError: no shards\n{_FAILED}train.py FAILED\n{later}"
    assert "LOG164" not in raised(text)
    assert "no shards" in judged(text)["LOG004"].findings[0].what


def test_a_port_that_did_not_matter() -> None:
    bind = "gpu-a17:4711:4800 [0] misc/socket.cc:400 NCCL WARN Call to bind failed: Address already in use\n"
    assert "LOG019" in raised(bind)
    assert "LOG019" not in raised(bind + _FULL)


_SUMMARY = """train.py FAILED
Root Cause (first observed failure):
  rank      : 1 (local_rank: 1)
  exitcode  : -2 (pid: 4711)
  traceback : Signal 2 (SIGINT) received by PID 4711
"""


@pytest.mark.parametrize("begin", ["torch\n", _STEPS])
def test_ctrl_c_that_only_the_summary_tells(begin: str) -> None:
    verdicts = judged(begin + _FAILED + _SUMMARY)
    assert "Ctrl-C" in verdicts["LOG006"].findings[0].what
    assert verdicts["LOG001"].state.value == "ok"


def test_ctrl_c_in_the_words_of_a_framework() -> None:
    aside = (
        "Exception in thread Thread-1 (_pin_memory_loop):\nTraceback (most recent call last):\n"
        '  File "/opt/torch/utils/data/_utils/pin_memory.py", line 53, in _pin_memory_loop\nEOFError\n'
    )
    verdicts = judged(
        f"{_STEPS}{aside}2026-03-01 10:00:00 - LOGS - Keyboard interruption. Exiting from training\n"
    )
    assert "Ctrl-C" in verdicts["LOG006"].findings[0].what
    assert verdicts["LOG004"].state.value == "ok"


_CAUGHT = f"{_FRAMES}ConnectionError: hub not reached\n"
_SOME = "step 2 loss 1.9\nstep 3 loss 1.8\n"


@pytest.mark.parametrize("words", ["retrying in 5 s (1/3)", "sample 12 is skipped", "falling back to the cache"])
def test_an_exception_that_was_dealt_with(words: str) -> None:
    assert raised(f"torch\nstep 1 loss 2.0\n{_CAUGHT}{words}\n{_SOME}") == {}
    assert "LOG004" in raised(f"torch\nstep 1 loss 2.0\n{_CAUGHT}{words}\n")
    assert "LOG004" in raised(f"torch\nstep 1 loss 2.0\n{_CAUGHT}{_SOME}")


def test_a_loader_that_ends_after_the_training() -> None:
    aside = (
        'Traceback (most recent call last):\n  File "/lib/multiprocessing/queues.py", line 239, in _feed\n'
        "BrokenPipeError: [Errno 32] Broken pipe\n"
    )
    assert raised(f"{_STEPS}Training finished\n{aside}") == {}
    assert raised(f"{_STEPS}{aside}")


def test_the_time_of_a_shell_is_an_end() -> None:
    text = "torch\nhello from rank 0\n\nreal\t0m4.120s\nuser\t0m3.1s\nsys\t0m0.4s\n"
    assert judged(text)["LOG007"].state.value == "ok"
    assert judged(text.partition("real")[0])["LOG007"].state.value == "unknown"
    assert raised(text.replace("hello", "Error: no"))["LOG001"] == "fail"


def test_memory_that_other_processes_hold() -> None:
    own = "Including non-PyTorch memory, this process has {own} GiB memory in use."
    named = f"{_FULL.strip()} Process 812 has 60.10 GiB memory in use. Process 813 has 4.10 GiB memory in use. "
    what = judged("torch\n" + named + own.format(own="7.80"))["LOG063"].findings[0].what
    assert "other processes hold" in what
    assert "60.10 GiB by process 812 and 4.1 GiB by 1 more" in what
    assert "was full" in judged("torch\n" + named + own.format(own="70.80"))["LOG063"].findings[0].what


_OLD = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB (GPU 0; 79.33 GiB total "
    "capacity; {own} GiB already allocated; 244.44 MiB free; {own} GiB reserved in total by PyTorch)\n"
)


def test_memory_that_nobody_is_named_for() -> None:
    assert "other processes hold" in judged("torch\n" + _OLD.format(own="27.16"))["LOG063"].findings[0].what
    assert "was full" in judged("torch\n" + _OLD.format(own="77.16"))["LOG063"].findings[0].what


def test_an_engine_is_given_less_of_its_gpu() -> None:
    server = "INFO 11-09 22:47:01 [api_server.py:1043] vLLM API server version 0.8.5\n"
    text = f"{server}torch.OutOfMemoryError: {_SHORT}\n"
    commands = [line for remedy in judged(text)["LOG063"].findings[0].remedies for line in remedy.commands]
    assert any("--gpu-memory-utilization" in line for line in commands)
    assert not any("NCCL_" in line for line in commands)


_CRASH = """torchrun train.py
Fatal Python error: Segmentation fault

Thread 0x00007f12 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f99 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/cv2/wrap.py", line 90 in resize
  File "/w/data.py", line 14 in load
"""


def test_a_crash_stands_where_python_saw_it() -> None:
    what = judged(_CRASH)["LOG093"].findings[0].what
    assert what.endswith("in cv2/wrap.py:90 (resize), called at /w/data.py:14 (load)")
    assert " in " not in judged(_CRASH.partition("Current")[0])["LOG093"].findings[0].what


_ILLEGAL = "[rank1]: RuntimeError: CUDA error: {words}\n"
_KERNELS = {
    "========= Invalid __global__ read of size 4 bytes\n=========     at fused_rope_fwd(float *, int)+0x1d0\n":
        "fused_rope_fwd",
    "/b/native/Indexing.cu:12: indexSelectLargeIndex: block: [1,0,0], thread: [3,0,0] Assertion `i < n` failed.\n":
        "indexSelectLargeIndex failed (its assertion: i < n)",
}  # fmt: skip


@pytest.mark.parametrize(("lines", "name"), _KERNELS.items())
def test_the_kernel_is_named(lines: str, name: str) -> None:
    error = _ILLEGAL.format(words="an illegal memory access was encountered")
    assert f"the kernel {name}" in judged(f"torchrun train.py\n{lines}{error}")["LOG091"].findings[0].what
    assert "a kernel failed" in judged(f"torchrun train.py\n{error}")["LOG091"].findings[0].what


def test_a_loss_that_is_not_finite_ends_the_program() -> None:
    left = "failed (exitcode: 1) local_rank: 0 (pid: 4711) of binary: /usr/bin/python3\n"
    text = f"{_STEPS}Loss is nan, stopping training\n"
    assert judged(text + left)["LOG092"].findings[0].what == "the loss was nan, and the program ended itself"
    assert judged(_STEPS + "loss is nan\n" + left)["LOG092"].state.value == "ok"
    error = judged(f"{_STEPS}RuntimeError: the loss is not finite at step 6\n")["LOG004"].findings[0]
    assert "ceased to be finite" in error.why


def test_a_process_of_ray_is_told_by_its_number() -> None:
    head = "(WorkerDict pid=1234, ip=10.0.3.18) "
    error = "".join(f"{head}{line}\n" for line in (*_FRAMES.splitlines(), "KeyError: 'advantages'"))
    assert judged(f"torch\n{error}")["LOG004"].findings[0].what.startswith("process 1234 raised")
    assert (
        judged(f"torch\n{head}[rank3]: iteration 120 / 1000 | loss 2.1\n{error}")["LOG004"].findings[0].where.rank
        == 3
    )


def test_a_process_of_spawn_is_its_rank() -> None:
    text = (
        f"torch\n-- Process 3 terminated with the following error:\n{_FRAMES}IndexError: list index out of range\n"
    )
    assert judged(text)["LOG004"].findings[0].where.rank == 3


def test_a_step_that_was_cancelled_ends_its_tasks() -> None:
    text = (
        f"{_STEPS}slurmstepd: error: *** STEP 2134.0 ON gpu-a17 CANCELLED AT 2026-03-01T10:00:00 ***\n"
        "srun: error: gpu-a17: task 0: Terminated\n"
    )
    assert "Slurm cancelled job 2134" in judged(text)["LOG006"].findings[0].what
    assert (
        judged(text.partition("slurmstepd")[0] + "srun: error: gpu-a17: task 0: Terminated\n")[
            "LOG001"
        ].state.value
        == "fail"
    )


def test_a_time_limit_after_the_work_was_done() -> None:
    late = "slurmstepd: error: *** JOB 8437 ON gpu-a17 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\n"
    assert judged(f"{_STEPS}{late}")["LOG006"].state.value == "fail"
    assert judged(f"{_STEPS}ENDING TIMING RUN AT 2026-03-01 10:00:00 AM\n{late}")["LOG006"].state.value == "note"


def test_an_engine_that_only_warns() -> None:
    line = "(APIServer pid=7) WARNING 11-09 22:47:01 [vllm.py:14] Auto-detection of the template failed.\n"
    assert raised(line) == {}
    assert raised(line.replace("WARNING", "ERROR"))


_STOPPED = """(APIServer pid=7) INFO 11-09 22:47:01 [launcher.py:100] [shutdown] API server: shutdown triggered
(EngineCore pid=9) INFO 11-09 22:47:01 [core.py:1214] [shutdown] EngineCore: trigger received signal=SIGTERM
(APIServer pid=7) INFO:     Application shutdown complete.
"""
_SERVED = "(APIServer pid=7) INFO:     Application startup complete.\n"


def test_a_server_that_was_shut_down_in_order() -> None:
    verdicts = judged(_SERVED + _STOPPED)
    assert verdicts["LOG006"].state.value == "note"
    assert "stopped from outside" in verdicts["LOG006"].findings[0].what
    assert "fail" not in {verdict.state.value for verdict in verdicts.values()}
    assert judged(_STOPPED)["LOG006"].state.value == "unknown"
    assert "LOG004" in raised(f"{_SERVED}{_FRAMES}KeyError: 'labels'\n{_STOPPED}")


_WORKER = "RuntimeError: DataLoader worker (pid 712) is killed by signal: {}. \n"
_ABORT = "terminate called without an active exception\n"
_AT_EXIT = (
    "Exception ignored in: <function Loader.__del__ at 0x7f3a>\n"
    'Traceback (most recent call last):\n  File "/lib/python3.11/site-packages/torch/utils/data/dataloader.py", '
    "line 1442, in _shutdown_workers\n"
)


@pytest.mark.parametrize(("before", "signal"), [(_ABORT, "Aborted"), ("", "Segmentation fault")])
def test_a_worker_that_crashed_as_its_loader_was_taken_down(before: str, signal: str) -> None:
    text = f"torch\n{before}{_AT_EXIT}{_WORKER.format(signal)}"
    verdicts = judged(text)
    assert verdicts["LOG104"].state.value == "note"
    assert verdicts["LOG007"].state.value == "unknown"
    assert raised(text) == {}
    assert judged(text + _SOME)["LOG007"].state.value == "unknown"  # what was in a buffer
    assert judged(text + _STEPS)["LOG007"].state.value == "ok"
    assert "LOG104" in raised(f"torch\n{_FRAMES}{_WORKER.format(signal)}")


def test_an_abort_that_is_not_the_workers() -> None:
    ended = _WORKER.format("Segmentation fault")
    assert "LOG001" in raised(f"torch\n{_ABORT}{_AT_EXIT}{ended}")
    assert "LOG001" in raised(f"torch\n{_ABORT}")


_NO_CUDA = (
    "gpu-a17:4711:4711 [0] misc/cudawrap.cc:179 NCCL WARN Failed to find CUDA library {}libcuda.so "
    "(NCCL_CUDA_PATH='') : libcuda.so: cannot open shared object file: No such file or directory\n"
)


@pytest.mark.parametrize("path", ["", "/opt/cuda/"])
def test_the_drivers_library_is_not_found(path: str) -> None:
    finding = judged(_NO_CUDA.format(path))["LOG065"].findings[0]
    assert finding.state.value == "fail"
    assert f"did not find {path}libcuda.so on gpu-a17" in finding.what
    commands = [line for remedy in finding.remedies for line in remedy.commands]
    assert "ldconfig -p | grep libcuda" in commands
    assert "export NCCL_CUDA_PATH=/usr/lib/wsl/lib/" in commands  # NCCL adds the name, and no slash


def test_a_cancelled_job_below_an_exception() -> None:
    cancelled = "slurmstepd: error: *** JOB 8437 ON gpu-a17 CANCELLED AT 2026-03-01T10:00:00 ***\n"
    after = "loading a shard\n" * 20 + _STEPS
    why = (
        judged(f"torchrun train.py\n{_FRAMES}OSError: no such model\n{after}{cancelled}")["LOG006"].findings[0].why
    )
    assert "OSError: no such model" in why
    assert "nothing" not in why.partition(";")[0]
    assert "nothing in this attempt failed before it" in judged(_STEPS + cancelled)["LOG006"].findings[0].why

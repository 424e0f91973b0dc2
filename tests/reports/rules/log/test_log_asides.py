"""Exceptions that end no process, jobs that were ended by a signal, and what parsers refuse."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, raised

_STEPS = "torchrun train.py\n" + "".join(f"iteration {step} / 1000 | loss 2.1\n" for step in range(100, 150))
_WELL = "{'train_runtime': 812.1, 'epoch': 3.0}\n"
_FRAMES = 'Traceback (most recent call last):\n  File "/w/hook.py", line 3, in __del__\n'
_NOT_TAKEN = ("Exception ignored in: <function Pool.__del__ at 0x7f>", "--- Logging error ---")


@pytest.mark.parametrize("head", _NOT_TAKEN)
def test_an_exception_that_nobody_takes_ends_nothing(head: str) -> None:
    text = f"{_STEPS}{head}\n{_FRAMES}AttributeError: 'NoneType' object has no attribute 'close'\n"
    assert raised(text) == {}
    assert "LOG004" in raised(text.replace(head, ""))


@pytest.mark.parametrize("words", ["BrokenPipeError: [Errno 32] Broken pipe", "KeyError: 'run'"])
def test_an_exception_in_a_thread_after_the_work_was_done(words: str) -> None:
    aside = f"Exception in thread Upload-3:\n{_FRAMES}{words}\n"
    assert raised(_STEPS + _WELL + aside) == {}
    assert raised(_STEPS + aside)
    assert raised(_STEPS + _WELL + aside.partition("\n")[2])


_ENDED = {
    "./run.sh: line 12: 12345 Terminated              python train.py": "SIGTERM",
    "Terminated": "SIGTERM",
    "Hangup": "SIGHUP",
    "[rank: 0] Received SIGTERM: 15": "SIGTERM",
    "Caught signal 15, exiting": "SIGTERM",
    "srun: forcing job termination": "SIGTERM",
    "Received SIGUSR1, saving": "SIGUSR1",
}


@pytest.mark.parametrize(("line", "signal"), _ENDED.items())
def test_a_job_that_a_signal_ended(line: str, signal: str) -> None:
    finding = judged(f"{_STEPS}{line}\n")["LOG006"].findings[0]
    assert (finding.state.value, signal in finding.what) == ("fail", True)
    assert judged(f"{_STEPS}{_WELL}{line}\n")["LOG006"].state.value == "note"
    assert "LOG006" not in raised(f"KeyError: 'labels'\n{line}\n")


@pytest.mark.parametrize("line", ["Detected KeyboardInterrupt, attempting graceful shutdown ...",
                                  "srun: sending Ctrl-C to StepId=4711.0"])  # fmt: skip
def test_a_job_that_its_user_stopped(line: str) -> None:
    finding = judged(f"{_STEPS}{line}\n")["LOG006"].findings[0]
    assert (finding.state.value, "Ctrl-C" in finding.what) == ("fail", True)


@pytest.mark.parametrize(
    "line", ["expected 3 shards, got 2", "received 15 requests", "a signal 15 dB above noise"]
)
def test_a_number_is_no_signal(line: str) -> None:
    assert judged(f"{_STEPS}{line}\n")["LOG006"].state.value != "fail"


def test_what_slurm_ends_on_demand_did_not_fail() -> None:
    text = f"{_STEPS}srun: forcing job termination\nsrun: error: gpu-a17: task 0: Killed\n"
    assert raised(text) == {"LOG006": "fail"}


_REFUSED = (
    "vllm serve: error: unrecognized arguments: --tensor-paralel-size 2",
    "Error: No such option: --batchsize",
    "ERROR: Could not consume arg: --lrr=1e-4",
    "FATAL Flags parsing error: Unknown command line flag 'lrr'",
    "Could not override 'trainer.gpus'.",
    "In 'train': Could not find 'data/imagenet'",
)


@pytest.mark.parametrize("line", _REFUSED)
def test_what_a_parser_refuses(line: str) -> None:
    text = f"torchrun\n{line}\nsrun: error: gpu-a17: tasks 0-3: Exited with exit code 2\n"
    assert raised(text)["LOG164"] == "fail"


def test_mpi_abort_is_the_end_and_not_the_cause() -> None:
    aborted = "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\n"
    assert "LOG124" not in raised(aborted)
    assert judged(aborted)["LOG004"].findings[0].where.rank == 3
    assert "grid" in judged("ValueError: grid too small\n" + aborted)["LOG004"].findings[0].what


def test_a_damaged_heap_is_named() -> None:
    text = "double free or corruption (!prev)\nfailed (exitcode: -6) local_rank: 0 (pid: 4711) of binary: python\n"
    assert "double free" in judged(text)["LOG093"].findings[0].what


_GROUP = """torchrun train
  + Exception Group Traceback (most recent call last):
  | ExceptionGroup: 1 sub-exception
    | Traceback (most recent call last):
    |   File "/w/run.py", line 5, in work
    | ValueError: bad shard 7
"""


def test_an_exception_within_a_group() -> None:
    what = judged(_GROUP)["LOG004"].findings[0].what
    assert what == "a process raised ValueError: bad shard 7 at /w/run.py:5 (work)"


def test_samples_that_failed_are_a_figure() -> None:
    assert raised(_STEPS + "Failed samples: 3\n") == {}


_SENT = (
    "ProcessExitedException: process 1 terminated with signal SIGTERM",
    "[ERROR] [launch.py:321:sigkill_handler] ['python', 'a.py'] exits with return code = -15",
    "Root Cause (first observed failure):\n  rank      : 0 (local_rank: 0)\n  exitcode  : -15 (pid: 4711)",
)


@pytest.mark.parametrize("line", _SENT)
def test_a_process_that_somebody_ended(line: str) -> None:
    finding = judged(f"{_STEPS}{line}\n")["LOG006"].findings[0]
    assert (finding.state.value, "SIGTERM" in finding.what) == ("fail", True)


def test_a_server_that_was_told_to_end() -> None:
    finding = judged("INFO vllm starts\nKeyboardInterrupt: terminated\n")["LOG006"].findings[0]
    assert "SIGINT or SIGTERM" in finding.what


_SO = "/opt/lib/sparse_ops.so: undefined symbol: _ZN5torch3jit17parseSchemaOrName"
_SOUND = (
    f"/opt/geo/typing.py:63: UserWarning: An issue occurred while importing 'sparse'. Stacktrace: {_SO}",
    "ERROR:2026-03-01 10:00:00,100:git root error: Cmd('git') failed due to: exit code(128)",
    "To add an exception for this directory, call:",
    "[NeMo W 2026-03-01 10:00:00 manager:893] Set more steps, so that saving will not error out.",
    "Failed to create '/prof/a.sqlite': File exists.",
)


@pytest.mark.parametrize("line", _SOUND)
def test_a_complaint_that_is_none(line: str) -> None:
    assert raised(f"torch\n{line}\n") == {}


def test_an_extension_that_does_not_load() -> None:
    assert raised(f"torch\nImportError: {_SO}\n")["LOG126"] == "fail"


def test_a_process_that_was_killed_below_a_bar() -> None:
    text = (
        "torchrun\nIt:  19%|#| 283/1529 [07:43<35:25,  1.71s/it]./t.sh: line 33: 13683 Killed   python3 main.py\n"
    )
    assert raised(text)["LOG093"] == "fail"

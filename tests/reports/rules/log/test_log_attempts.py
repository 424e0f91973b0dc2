"""Several jobs in one file: the last one is judged, and an earlier one is mentioned."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, raised

_STEPS = "".join(f"iteration {step} / 1000 | loss 2.1\n" for step in range(100, 108))
_WELL = "{'train_runtime': 812.1, 'epoch': 3.0}\n"
_ENDED = """failed (exitcode: 1) local_rank: 0 (pid: {pid}) of binary: /usr/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: {pid})
"""
_FIRST = "[rank0]: ModuleNotFoundError: No module named 'einops'\n" + _ENDED.format(pid=771)
_SECOND = "[rank0]: KeyError: 'train_path'\n" + _ENDED.format(pid=992)
_BY_HAND = "ada@gpu-a17:~/proj$ torchrun --nproc-per-node 2 train.py\n"
_BANNER = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"


@pytest.mark.parametrize("begin", [_BY_HAND, "+ torchrun train.py\n", _BANNER])
def test_the_last_attempt_is_judged(begin: str) -> None:
    verdicts = judged(_FIRST + begin + _SECOND)
    assert "train_path" in verdicts["LOG004"].findings[0].what
    assert len(verdicts["LOG004"].findings) == 1
    assert "einops" in verdicts["LOG009"].findings[0].what


@pytest.mark.parametrize("begin", [_BY_HAND, _BANNER, ""])
@pytest.mark.parametrize("end", ["", _WELL])
def test_a_job_that_works_after_another_one_failed(begin: str, end: str) -> None:
    verdicts = judged(_FIRST + begin + _STEPS + end)
    assert verdicts["LOG004"].state.value == "ok"
    assert verdicts["LOG009"].state.value == "note"


def test_steps_before_the_end_of_another_launcher_are_of_the_same_job() -> None:
    """One of two nodes: its steps were written when its process ended."""
    states = raised(_FIRST + _STEPS + "worker left\n" + _ENDED.format(pid=992))
    assert states["LOG004"] == "fail"


def test_the_next_step_of_a_script_is_no_new_attempt() -> None:
    text = "+ torchrun train.py\n" + _FIRST + "+ python eval.py --ckpt out\nloaded 12 samples\n"
    assert raised(text)["LOG004"] == "fail"


def test_an_exception_before_training_begins_is_of_the_same_job() -> None:
    """Rank 1 has raised, and rank 0 has not noticed."""
    text = "[rank1]: KeyError: 'labels'\n***** Running training *****\ntorchrun waits\n"
    assert raised(text)["LOG004"] == "fail"


def test_an_attempt_whose_arguments_were_refused() -> None:
    refused = "train.py: error: the following arguments are required: --output_dir\n"
    begin = "[2026-03-01 10:00:00,100] [INFO] [runner.py:555:main] cmd = python -m deepspeed.launcher.launch\n"
    states = raised(begin + refused + begin + "KeyError: 'labels'\n")
    assert "LOG164" not in states
    assert states["LOG004"] == "fail"
    assert (
        raised(begin + "KeyError: 'labels'\nexits with return code = -6\n" + begin + refused)["LOG164"] == "fail"
    )

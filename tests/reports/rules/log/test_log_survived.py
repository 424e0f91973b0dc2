"""What training jobs complain of and survive: with steps after it no failure; below it the real one is told."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from ncclcheck.reports.judgement.decision import outcome
from tests.helpers.logs import judged

_DATA = Path(__file__).resolve().parents[3] / "data/logs/survived"
_HEAD = "[rank0] Initialized process group: backend nccl, world size 2"
_STEPS = "\n".join(f"step {step} loss {2 - step / 100:.2f} lr 3e-4" for step in range(30, 50))
_RAISED = (
    'Traceback (most recent call last):\n  File "/opt/proj/train.py", line 120, in <module>\n    main()\n'
    "KeyError: 'input_ids'\n"
    "E0301 10:00:10.000000 771 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) "
    "local_rank: 1 (pid: 101) of binary: /usr/bin/python3\n"
)


def _parts(name: str) -> dict[str, str]:
    """`## name` and the lines below it."""
    parts = (part.partition("\n") for part in re.split(r"(?m)^## ", (_DATA / name).read_text())[1:])
    return {head.strip(): body.rstrip("\n") for head, _, body in parts}


_COMPLAINTS, _WORK = _parts("complaints.txt"), _parts("progress.txt")


def _outcome(*parts: str) -> str:
    return outcome(list(judged("\n".join((_HEAD, *parts)) + "\n").values()))


def test_there_are_enough() -> None:
    assert (len(_COMPLAINTS), len(_WORK)) >= (60, 25)


@pytest.mark.parametrize("name", _COMPLAINTS)
def test_a_complaint_with_steps_after_it_ended_nothing(name: str) -> None:
    assert _outcome(_COMPLAINTS[name], _STEPS) != "fail"


@pytest.mark.parametrize("name", _COMPLAINTS)
def test_a_job_that_raises_below_a_complaint_has_failed(name: str) -> None:
    assert _outcome(_COMPLAINTS[name], _STEPS, _RAISED) == "fail"


@pytest.mark.parametrize("name", _WORK)
def test_work_is_seen_in_the_words_of_many_programs(name: str) -> None:
    assert _outcome(_WORK[name]) == "ok"


_ONLY_SAID = (
    "hub-retry",
    "couldnt-reach",
    "lmod",
    "pip-uninstall",
    "reward-fail",
    "parse-error",
    "libpng",
    "gc-failed",
)


@pytest.mark.parametrize(
    ("name", "work"), [*product(_ONLY_SAID, ("hf", "verl", "imagenet", "fairseq", "mmengine"))]
)
def test_two_steps_are_enough_after_what_was_only_said(name: str, work: str) -> None:
    assert _outcome(_COMPLAINTS[name], _WORK[work]) == "ok"


def test_one_more_step_after_an_exception_may_be_another_ranks() -> None:
    raised = _RAISED.partition("E0301")[0]
    assert _outcome(_STEPS, raised, "step 50 loss 1.50 lr 3e-4") == "fail"

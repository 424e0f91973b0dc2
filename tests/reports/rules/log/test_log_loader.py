"""Rules about workers of data loaders: small logs -> codes."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, raised

MINE = {f"LOG{number}" for number in range(100, 110)}
KILLED = "RuntimeError: DataLoader worker (pid 5120) is killed by signal: "
FILE = "RuntimeError: unable to {0} </torch_5120_881>{1}"

NAMED = {
    "a bus error": (
        KILLED + "Bus error. It is possible that dataloader's workers are out of shared memory.",
        "LOG100",
    ),
    "a bus error of the worker": (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory "
        "(shm).",
        "LOG100",
    ),
    "no room": (FILE.format("write to file", ": No space left on device (28)"), "LOG100"),
    "no descriptors came": ("RuntimeError: received 0 items of ancdata", "LOG101"),
    "an object that cannot be opened": (
        FILE.format("open shared memory object", " in read-write mode: Too many open files (24)"),
        "LOG101",
    ),
    "too many files": ("OSError: [Errno 24] Too many open files: '/data/17.tar'", "LOG101"),
    "samples of two shapes": (
        "RuntimeError: stack expects each tensor to be equal size, but got [3, 8] at entry 0 and [1, 8] at "
        "entry 5",
        "LOG102",
    ),
    "lists of two lengths": ("RuntimeError: each element in list of batch should be of equal size", "LOG102"),
    "killed": (KILLED + "Killed. ", "LOG103"),
    "no memory to fork": ("OSError: [Errno 12] Cannot allocate memory", "LOG103"),
    "ended without a word": ("RuntimeError: DataLoader worker (pid(s) 5120, 5121) exited unexpectedly", "LOG103"),
    "crashed": (KILLED + "Segmentation fault. ", "LOG104"),
    "aborted": (KILLED + "Aborted. ", "LOG104"),
    "too late": ("RuntimeError: DataLoader timed out after 120 seconds", "LOG105"),
}

SILENT = {
    "ended by torchrun": KILLED + "Terminated. ",
    "advice of torch about workers": "UserWarning: This DataLoader will create 16 worker processes in total. Our "
    "suggested max number of worker in current system is 8, which is smaller than what this DataLoader is going "
    "to "
    "create.",
    "a file that may not be opened": FILE.format("open file", ": Permission denied (13)"),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_cause_is_named(name: str) -> None:
    text, code = NAMED[name]
    assert {rule: state for rule, state in raised(text).items() if rule in MINE} == {code: "fail"}


@pytest.mark.parametrize("name", SILENT)
def test_nothing_is_named(name: str) -> None:
    assert not set(raised(SILENT[name])) & MINE


def test_a_bus_error_and_its_shadow_are_one_finding() -> None:
    text = f"{KILLED}Bus error. \nRuntimeError: DataLoader worker (pid(s) 5120) exited unexpectedly\n"
    assert set(raised(text)) & MINE == {"LOG100"}


def test_the_rank_that_lost_a_worker_is_named() -> None:
    verdict = judged(f"[rank5]: {KILLED}Segmentation fault. ")["LOG104"]
    assert verdict.findings[0].where.rank == 5

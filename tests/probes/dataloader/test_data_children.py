"""User code in forked children: whatever it does, how it ended is told, and nothing of it is left."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from ncclcheck.probes.dataloader.children import child
from ncclcheck.probes.dataloader.children.child import ChildEnd, Gate


def _raise() -> int:
    raise TypeError("no such thing")


def _say() -> int:
    print("to nobody")
    os.write(1, b"by hand")
    return 4


@pytest.mark.parametrize(
    ("work", "how"),
    [
        (_raise, "TypeError: no such thing"),
        (lambda: sys.exit(3), "SystemExit: 3"),
        (lambda: os._exit(3), "ended itself with exit status 3"),
        (lambda: ctypes.string_at(0), "ended by SIGSEGV"),
        (lambda: os.kill(os.getpid(), 9), "ended by SIGKILL"),
        (lambda: time.sleep(60), "gave no answer in 0.5 s"),
        (lambda: 7, "ended well"),
    ],
)
def test_how_a_child_ends_is_told(work: Callable[[], int], how: str) -> None:
    ended = child.run(work, int, 0.5 if "0.5 s" in how else 20)
    assert ended.how == how
    assert ended.ok == (ended.value == 7)


def test_the_place_is_the_users_own_line() -> None:
    ended = child.run(_raise, int, 5.0)
    assert ended.place.startswith("test_data_children.py:")
    assert ended.place.endswith("in _raise")


def test_the_stacks_show_where_it_hangs_or_crashes() -> None:
    hung: ChildEnd[None] = child.run(lambda: time.sleep(60), type(None), 0.3)
    crashed = child.run(lambda: ctypes.string_at(0), bytes, 5.0)
    assert hung.timed_out
    assert hung.busy_s < 0.2
    assert "test_data_children.py" in hung.stacks
    assert "string_at" in crashed.stacks


def test_prints_of_user_code_are_not_on_our_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert child.run(_say, int, 5.0).value == 4
    out, err = capfd.readouterr()
    assert out == ""
    assert "to nobody" in err


def test_what_it_started_dies_with_it() -> None:
    def work() -> int:
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        return pid

    pid = child.run(work, int, 5.0).value or 0
    end = time.monotonic() + 2.0
    while _lives(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_children_begin_with_the_same_random_state() -> None:
    first, second = (child.run(random.random, float, 5.0).value for _ in range(2))
    assert first == second


def test_a_gate_opens_for_all_at_once_and_does_not_wait_for_the_dead() -> None:
    def late(gate: Gate) -> float:
        time.sleep(0.3)
        gate()
        return time.monotonic()

    def prompt(gate: Gate) -> float:
        gate()
        return time.monotonic()

    def dead(_gate: Gate) -> float:
        os._exit(1)

    a, b, c = child.run_all([late, prompt, dead], float, 5.0)
    assert a.value is not None
    assert b.value is not None
    assert abs(a.value - b.value) < 0.2
    assert c.exit == 1


def test_no_descriptor_is_left() -> None:
    before = set(os.listdir("/proc/self/fd"))
    child.run_all([lambda _: 1, lambda _: 2], int, 5.0)
    assert set(os.listdir("/proc/self/fd")) == before

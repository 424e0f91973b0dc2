"""Processes and threads of a user, and what is said where no more of them may be started."""

from __future__ import annotations

import errno
import os
import resource
import threading

import pytest

from ncclcheck.base.exits import Exit
from ncclcheck.cli import _defect
from ncclcheck.probes.machine.host import tasks


def test_own_threads_are_counted() -> None:
    before, over = tasks.of_user(os.getuid()), threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(300)]
    for thread in threads:
        thread.start()
    try:
        assert tasks.of_user(os.getuid()) > before + 200  # others of this user may end meanwhile
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "error",
    [RuntimeError("can't start new thread"), BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")],
)
def test_the_limit_is_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "resource.getrlimit", lambda limit: (12, 4096) if limit == resource.RLIMIT_NPROC else (-1, -1)
    )
    monkeypatch.setattr("os.getuid", lambda: 1234)
    monkeypatch.setattr(tasks, "of_user", lambda _: 12)
    assert _raised(error) == Exit.INCOMPLETE
    err = capsys.readouterr().err
    assert f"user {os.getuid()} has 12 on this host, and RLIMIT_NPROC (ulimit -u) allows 12" in err
    assert "raise it: ulimit -u 4096" in err


def test_root_is_not_bound_by_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "resource.getrlimit", lambda limit: (12, 4096) if limit == resource.RLIMIT_NPROC else (-1, -1)
    )
    monkeypatch.setattr("os.getuid", lambda: 0)
    monkeypatch.setattr("ncclcheck.probes.machine.host.cgroup.tasks", lambda _: 18)
    assert tasks.exhausted(RuntimeError("can't start new thread")).endswith("pids.max allows 18")


def test_a_thread_whose_stack_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_AS: (60 * 2**20, -1)}
    monkeypatch.setattr("resource.getrlimit", lambda limit: limits.get(limit, (-1, -1)))
    reason = tasks.exhausted(RuntimeError("can't start new thread"))
    assert reason == "no memory for a further thread: RLIMIT_AS (ulimit -v) allows 62914560 bytes"


def test_other_errors_keep_their_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert _raised(RuntimeError("something else")) == Exit.INCOMPLETE
    assert "internal error: RuntimeError: something else" in capsys.readouterr().err


def _raised(error: Exception) -> int:
    try:
        raise error
    except Exception as caught:
        return _defect(caught)

"""A saved result that comes through a pipe: read whole, and never waited for without a limit."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ncclcheck import saved
from ncclcheck.errors import UsageError
from ncclcheck.probes.facts import Policy


def test_a_pipe_that_nobody_writes_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    monkeypatch.setattr(saved, "_SILENCE_S", 0.2)
    with pytest.raises(UsageError, match=r"--from: .*pipe cannot be read: a pipe that brought nothing"):
        saved.load(str(pipe), "--from", Policy())


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    content = b"not a document" * 100_000
    writer = threading.Thread(target=lambda: pipe.write_bytes(content), daemon=True)
    writer.start()
    assert saved._content(str(pipe)) == content
    writer.join(5)

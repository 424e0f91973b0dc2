"""Saved results: of known commands only; through a pipe read whole, and never waited for without a limit."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Policy, replace
from ncclcheck.probes.machine import files
from ncclcheck.reports.judgement.jsondoc import encode
from ncclcheck.results import saved
from tests.helpers import stories


def test_a_pipe_that_nobody_writes_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    monkeypatch.setattr(files, "_SILENCE_S", 0.2)
    with pytest.raises(UsageError, match=r"--from: .*pipe cannot be read: a pipe that brought nothing"):
        saved.load(str(pipe), "--from", Policy())


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    content = b"not a document" * 100_000
    writer = threading.Thread(target=lambda: pipe.write_bytes(content), daemon=True)
    writer.start()
    assert files.content(str(pipe), 2**22) == content
    writer.join(5)


def test_a_command_that_there_is_not_is_refused(tmp_path: Path) -> None:
    document = stories.document("healthy")
    (file := tmp_path / "saved.json").write_bytes(encode(replace(document, command="format_disks")))
    with pytest.raises(UsageError, match=r"command: 'format_disks' is none .*; allowed are .*bench.*env"):
        saved.load(str(file), "--from", Policy())

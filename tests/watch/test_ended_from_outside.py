"""SIGKILL soon after SIGTERM, as schedulers do: no page is printed, and the box says who ended the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import environment

_JOB = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("got SIGTERM", flush=True))
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    time.sleep(0.05)
"""


def _watchers(box: Path) -> list[int]:
    """The watcher is in a session of its own; Slurm's cgroup holds it all the same."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            if b"probes.box.watcher" in line and os.fsencode(box) in line:
                pids.append(int(folder.name))
    return pids


@pytest.mark.parametrize("killed", ["the wrapper", "its process group", "everything"])
def test_sigkill_soon_after_sigterm(tmp_path: Path, killed: str) -> None:
    box = tmp_path / "box"
    argv = [sys.executable, "-m", "ncclcheck", "watch", "--box", str(box), "--", sys.executable, "-c", _JOB]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(), start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == b"got SIGTERM\n"
        _written(box)
        if killed == "everything":
            for pid in _watchers(box):
                os.kill(pid, signal.SIGKILL)
        (os.kill if killed == "the wrapper" else os.killpg)(process.pid, signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    argv = [sys.executable, "-m", "ncclcheck", "report", str(box), "--json", str(tmp_path / "told.json")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=environment())
    assert done.returncode == 1, done.stderr
    failed = [
        verdict
        for verdict in json.loads((tmp_path / "told.json").read_text())["verdicts"]
        if verdict["state"] == "fail"
    ]
    assert [verdict["code"] for verdict in failed] == ["BOX007"]
    text = json.dumps(failed)
    assert "the job was sent SIGTERM" in text
    assert f"(pid {os.getpid()})" in text
    assert "nothing had failed before" in text


def _written(box: Path) -> None:
    """The wrapper has written the signal down; KillWait is at least a second."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if any('"signal"' in path.read_text() for path in box.glob("*/wrapper.jsonl")):
            return
        time.sleep(0.05)

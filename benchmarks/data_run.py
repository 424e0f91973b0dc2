"""One run of `ncclcheck data` on a case, in a process and a folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.datasets import Case

_ROOT = Path(__file__).resolve().parent.parent
_SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Outcome:
    """The state of each verdict, and why there are none."""

    seconds: float
    states: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def run(case: Case, limit: float) -> Outcome:
    """Verdicts of one case; a tool that is not done in time is ended and has none."""
    # A folder in memory where there is one: there the order of a listing is the order of writing.
    place = _SHM if _SHM.is_dir() and not case.shm_mb else None
    with (
        tempfile.TemporaryDirectory(prefix="ncclcheck-data-") as results,
        tempfile.TemporaryDirectory(prefix="samples-", dir=place, ignore_cleanup_errors=True) as scratch,
    ):
        return _run(case, limit, Path(results) / "saved.json", scratch)


def _run(case: Case, limit: float, saved: Path, scratch: str) -> Outcome:
    begun = time.perf_counter()
    child = subprocess.Popen(
        _command(case, saved),
        cwd=_ROOT,
        env={**os.environ, "DATASETS_SCRATCH": scratch},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    output = _ended(child, limit)
    seconds = round(time.perf_counter() - begun, 1)
    if not saved.exists():
        return Outcome(seconds, problem=f"no result, exit {child.returncode}: {' '.join(output.split())[-90:]}")
    return Outcome(seconds, _states(json.loads(saved.read_text())))


def _command(case: Case, saved: Path) -> list[str]:
    tool = [sys.executable, "-m", "ncclcheck", "data", case.factory, "--save", str(saved), *case.options]
    if case.shm_mb:
        mounted = f'mount -t tmpfs -o size={case.shm_mb}m tmpfs {_SHM} && exec "$@"'
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, "sh", *tool]
    if case.open_files:
        return ["sh", "-c", f'ulimit -n {case.open_files} && exec "$@"', "sh", *tool]
    return tool


def _ended(child: subprocess.Popen[bytes], limit: float) -> str:
    """What it said on stderr. First asked to end, so that it takes its own children along."""
    for patience, number in ((limit, signal.SIGINT), (10, signal.SIGKILL)):
        try:
            return child.communicate(timeout=patience)[1].decode(errors="backslashreplace")
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
    child.wait(10)
    return f"not done after {limit:.0f} s"


def _states(document: dict[str, Any]) -> dict[str, str]:
    return {
        verdict["code"]: verdict["state"]
        for verdict in document["verdicts"]
        if verdict["code"].startswith(("DAT", "RUN"))
    }

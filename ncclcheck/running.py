"""What an agent runs on its node, one at a time: torchrun with its ranks, or the examiner of a dataset."""

from __future__ import annotations

import re
import subprocess
from typing import Protocol

from ncclcheck import wire
from ncclcheck.probes import process
from ncclcheck.probes.facts import Measurements, RankState

_FAILED = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s+exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)")


class Running(Protocol):
    """A child process that speaks for itself and for the ranks that it starts."""

    child: subprocess.Popen[bytes]
    scratch: str  # a folder on the user's own disk that must not outlive the run; empty: none

    @property
    def log(self) -> str:
        """Where it prints."""

    @property
    def all_done(self) -> bool:
        """All that was to be told is told, however it ends."""

    def note(self, record: wire.Rank | wire.Step) -> None:
        """Keep what a rank said of itself."""

    def looked_at(self) -> list[RankState]:
        """Every rank with its process state and the seconds since it last made progress."""

    def exits(self) -> dict[int, int]:
        """Exit statuses of ranks by pid, as far as known."""

    def proof(self) -> Measurements:
        """What the agent itself saw of the run; asked at its end."""


def explain_end(log: str) -> str:
    """What torchrun's log says of its end: the rank that it names, the last exception, else the last lines."""
    text = process.tail(log, 65536)
    errors = [
        line.strip() for line in text.splitlines() if re.match(r"\s*(\w+\.)*\w*(Error|Exception)\b.*:", line)
    ]
    if told := [line for line in errors if not line.endswith("ChildFailedError:")]:
        return told[-1][:2000]
    if failures := _FAILED.findall(text):
        rank, status, pid = failures[-1]
        return f"rank {rank} (pid {pid}) ended with exit status {status} before it could speak"
    return "\n".join(text.splitlines()[-5:])[:2000]

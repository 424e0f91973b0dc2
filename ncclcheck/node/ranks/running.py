"""What an agent runs on its node, one at a time: torchrun with its ranks, or the examiner of a dataset."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Protocol

from ncclcheck.base import wire
from ncclcheck.probes.facts import Measurements, RankState
from ncclcheck.probes.facts.run.course import signal_name
from ncclcheck.probes.machine import process
from ncclcheck.reports.subjects.failures import last_words

_FAILED = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s+exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)")
# Torchrun prints it as soon as it sees the end, and its table seconds later.
_SEEN = re.compile(r"failed \(exitcode: (-?\d{1,3})\) local_rank: (\d{1,5}) \(pid: (\d{1,9})\)")
# The words of some stand in the lines below it.
_EXCEPTION = re.compile(
    r"^\s*(?:\w+\.)*\w*(?:Error|Exception)\b(?:.*:[ \t]*\S.*|.*:[ \t]*(?:\n.+){0,3})$", re.MULTILINE
)


class RunningChild(Protocol):
    """A child process that speaks for itself and for the ranks that it starts."""

    child: subprocess.Popen[bytes]
    scratch: str  # a folder on the user's own disk that must not outlive the run; empty: none

    @property
    def log(self) -> str:
        """The path of the file with its stdout and stderr."""

    @property
    def all_done(self) -> bool:
        """Whether all results have come, so that its exit status no longer matters."""

    def note(self, record: wire.RankReport | wire.StepNotice) -> None:
        """Keep what a rank said of itself."""

    def looked_at(self) -> list[RankState]:
        """Every rank with its process state and the seconds since it last made progress."""

    def exits(self) -> dict[int, int]:
        """Exit statuses of ranks by pid, as far as known."""

    def proof(self) -> Measurements:
        """What the agent itself saw of the run; asked at its end."""


def _joined(lines: str) -> str:
    return " ".join(line.strip() for line in lines.splitlines() if line.strip())


def explain_end(log: str) -> str:
    """What a log says of its end: words that are known, the last exception, the rank that torchrun names, else
    the last lines that say what happened."""
    if not os.path.isdir(folder := os.path.dirname(log)):
        return f"ncclcheck: {folder} was removed while the job ran"
    text = process.tail(log, 65536)
    if known := last_words.meaning(text):
        return known.line[:2000]
    errors = [_joined(match[0]) for match in _EXCEPTION.finditer(text)]
    if causes := [line for line in errors if not line.endswith("ChildFailedError:")]:
        return causes[-1][:2000]
    if failures := _FAILED.findall(text):
        rank, status, pid = failures[-1]
        return f"rank {rank} (pid {pid}) ended with exit status {status} before it could speak"
    if seen := _SEEN.search(text):
        how = (
            f"was killed by {signal_name(-int(seen[1]))}" if seen[1].startswith("-") else f"exit status {seen[1]}"
        )
        return f"its rank with local rank {seen[2]} (pid {seen[3]}) {how} before it could speak"
    if ended := last_words.by_shell(text):
        return ended.line[:2000]
    return "\n".join(last_words.telling(text))[:2000]

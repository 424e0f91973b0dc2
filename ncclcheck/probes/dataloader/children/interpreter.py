"""A fresh Python with another PYTHONHASHSEED, for one emulated rank. torch is slow to import: start it early."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ncclcheck.probes.dataloader.views import EmulatedRank, RankView
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.probes.machine.process import die_with_parent, kill_tree, start

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from ncclcheck.probes.dataloader.children import interpreter; interpreter.main()"
)
_POLL_S = 0.01  # between two looks for its answer: chosen, next to nothing beside the import of torch
_REAP_S = 1.0  # until what was killed must be gone: chosen


@dataclass
class Interpreter:
    """It has imported torch, and none of the user's code, and waits on its stdin."""

    running: subprocess.Popen[bytes]

    @classmethod
    def start(cls) -> Interpreter:
        """Where the user has set PYTHONHASHSEED, all ranks of the job have that one, and so has this."""
        env = {**os.environ}
        if not env.get("PYTHONHASHSEED", "").isdecimal():
            env["PYTHONHASHSEED"] = str(random.SystemRandom().randrange(1, 2**32))
        argv = [sys.executable, "-c", _START, json.dumps(sys.path)]
        return cls(start(argv, env=env, control=True, out=2, err=2))

    def view(self, asked: EmulatedRank) -> RankView:
        """Be this rank. Once only; it may be asked by a child of the process that started it."""
        answer = _answer(asked)
        assert self.running.stdin is not None
        os.write(self.running.stdin.fileno(), msgspec.json.encode(asked) + b"\n")
        while not os.path.exists(answer):
            if not _is_running(self.running.pid) and not os.path.exists(answer):  # it may just have answered
                return RankView(rank=asked.rank, cut="its interpreter ended without an answer")
            time.sleep(_POLL_S)
        with open(answer, "rb") as file:
            return msgspec.json.decode(file.read(), type=RankView)

    def close(self) -> None:
        """End it and what it started."""
        kill_tree(self.running.pid, _REAP_S)


@contextlib.contextmanager
def early(plan: DataPlan) -> Iterator[Interpreter | None]:
    """One that imports torch meanwhile, and has ended afterwards; None where there are no ranks to compare."""
    interpreter = Interpreter.start() if plan.ranks > 1 else None
    try:
        yield interpreter
    finally:
        if interpreter is not None:
            interpreter.close()


def main() -> None:
    """In the interpreter: one line asks, a file answers. Nothing is cleaned up: the user's threads may hang."""
    die_with_parent()
    from ncclcheck.probes.dataloader.ranks.rank_view import view  # noqa: PLC0415 - it imports torch

    if line := sys.stdin.buffer.readline():
        asked = msgspec.json.decode(line, type=EmulatedRank)
        answer = _answer(asked)
        with open(f"{answer}.part", "wb") as file:
            file.write(msgspec.json.encode(view(asked)))
        os.replace(f"{answer}.part", answer)
    sys.stdout.flush()
    os._exit(0)


def _answer(asked: EmulatedRank) -> str:
    return os.path.join(asked.folder, f"{asked.rank}-answer")


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False

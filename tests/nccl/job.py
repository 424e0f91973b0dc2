"""A job: ranks on hosts of the lab, each with its environment and its plan of steps; and what became of them."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.lab import PYTHON, Lab
from tests.nccl import ras, sysfs
from tests.nccl.build import libraries
from tests.nccl.wheels import NEWEST, libnccl

PROGRAM = Path(__file__).with_name("rank.py")
# What ring.c can walk. Only where kernels run: elsewhere a log shall not speak of settings that nobody made.
WALKED = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_P2P_LL_THRESHOLD": "0"}
_OF_OURS = re.compile(r"(?:NCCL_ALGO set by environment to Ring|NCCL_PROTO set by environment to Simple|"
                      r"NCCL_P2P_LL_THRESHOLD set by environment to 0)\.?$")  # fmt: skip
COLLECTIVES = ("all_", "reduce", "broadcast", "send", "receive")
_jobs = itertools.count()


@dataclass(frozen=True)
class Rank:
    """One rank of a job: where it runs, what it does, what is set for it alone.

    `steps` are words of rank.py, OPERATION[:ARGUMENT]. `number` and `size` are what it takes itself for (else its
    place, and how many there are); `version` is its own NCCL; `absent`: it is never started.
    """

    host: str
    device: int = 0
    steps: str = "init destroy"
    env: Mapping[str, str] = field(default_factory=dict)
    number: int | None = None
    size: int | None = None
    version: str | None = None
    absent: bool = False


@dataclass(frozen=True)
class RankEnded:
    """What one rank left. `code`: exit code, negative for a signal, None where it had to be killed by us."""

    host: str
    log: str
    code: int | None
    seconds: float
    said: list[dict[str, object]]

    def step(self, name: str) -> dict[str, object] | None:
        """What it said of the last step of this name; None: it did not end it."""
        return next((line for line in reversed(self.said) if str(line["step"]).partition(":")[0] == name), None)


@dataclass(frozen=True)
class Ended:
    """What a job left: each rank, all lines in the order in which they came, and RAS's answers."""

    ranks: list[RankEnded]
    log: str
    ras: list[ras.Answer]

    @property
    def codes(self) -> list[int | None]:
        """The exit codes."""
        return [rank.code for rank in self.ranks]


class Job:
    """Ranks of a communicator. `kernel`: run, hang or done (native/fake.h).

    `cards`: FAKEVERBS_CARDS of a host. Where none are given libibverbs finds none; with None it cannot be loaded.
    """

    def __init__(
        self,
        lab: Lab,
        ranks: Sequence[Rank],
        *,
        version: str = NEWEST,
        env: Mapping[str, str] | None = None,
        kernel: str = "run",
        cards: Mapping[str, str | None] | None = None,
    ) -> None:
        self.lab = lab
        self.ranks = ranks
        self.version = version
        self.env = dict(env or {})
        self.kernel = kernel
        self.cards = dict(cards or {})
        self.folder = Path(tempfile.mkdtemp(prefix=f"nccl{next(_jobs)}-", dir=lab.folder))
        self.running: list[_Running] = []
        self.answers: list[ras.Answer] = []
        self.lines: list[str] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Job:
        for host, cards in self.cards.items():
            if cards:
                sysfs.plant(self.lab[host], cards)
        for place, rank in enumerate(self.ranks):
            if not rank.absent:
                self._start(place, rank)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for rank in self.running:
            rank.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, seconds: float, during: Callable[[Job], None] | None = None) -> Ended:
        """Start all, do `during` beside them, wait for the last up to so many seconds, and end what is left."""
        with self:
            end = time.monotonic() + seconds
            if during:
                during(self)
            for rank in self.running:
                rank.wait(end - time.monotonic())
            for rank in self.running:  # first all of them: nobody shall complain of another's end
                rank.strike()
            for rank in self.running:
                rank.kill()
            ranks = [rank.ended(self.folder) for rank in self.running]
            return Ended(ranks, "".join(self.lines), self.answers)

    def until(self, mark: str, seconds: float = 30) -> None:
        """Wait until a rank has done `mark:NAME`. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while not (self.folder / f"mark.{mark}").exists():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"no rank came to mark:{mark} within {seconds:g} s: {''.join(self.lines)[-2000:]}"
                )
            time.sleep(0.02)

    def mark(self, name: str) -> None:
        """Let ranks go on that wait for this mark."""
        (self.folder / f"mark.{name}").touch()

    def ask(self, host: str, verbose: bool = True, seconds: float = 30, json: bool = False) -> ras.Answer:
        """Ask RAS on a host; kept for what `run` returns."""
        answer = ras.ask(self.lab[host], verbose=verbose, json=json, seconds=seconds)
        self.answers.append(answer)
        return answer

    def signal(self, place: int, number: int) -> None:
        """Send a rank a signal."""
        os.kill(self.running[place].pid(), number)

    def environment(self, place: int, rank: Rank) -> dict[str, str]:
        """All that is set for a rank."""
        native = libraries()
        env = {
            "RANK_NAME": str(place),
            "FAKECUDA_KERNEL": self.kernel,
            "FAKECUDA_SAYS": str(self.folder / f"fake.{place}"),
            "NCCL_DEBUG": "INFO",
        }
        cards = self.cards.get(rank.host, "")
        env["LD_LIBRARY_PATH"] = str(native / ("no_verbs" if cards is None else "verbs"))
        if cards:
            env |= {"FAKEVERBS_FILE": str(self.folder / "verbs"), "FAKEVERBS_CARDS": cards}
        return {**env, **(WALKED if self._walks(rank) else {}), **self.env, **rank.env}

    def _start(self, place: int, rank: Rank) -> None:
        number = place if rank.number is None else rank.number
        size = len(self.ranks) if rank.size is None else rank.size
        argv = [
            *PYTHON, "-S", str(PROGRAM), str(libraries() / "libnvidia-ml.so.1"),
            str(libnccl(rank.version or self.version)), str(self.folder),
            str(number), str(size), str(rank.device), *rank.steps.split(),
        ]  # fmt: skip
        process = self.lab[rank.host].start(argv, env=self.environment(place, rank))
        self.running.append(_Running(place, rank, process, self._came, self._walks(rank)))

    def _walks(self, rank: Rank) -> bool:
        return self.kernel == "run" and any(step.startswith(COLLECTIVES) for step in rank.steps.split())

    def _came(self, line: str) -> None:
        with self._lock:
            self.lines.append(line)


class _Running:
    """A rank's process, and the thread that reads what it prints."""

    def __init__(
        self, place: int, rank: Rank, process: subprocess.Popen[str], came: Callable[[str], None], walks: bool
    ) -> None:
        self.place, self.rank, self.process, self.walks = place, rank, process, walks
        self.began = time.monotonic()
        self.seconds = 0.0
        self.killed = False
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(came,), daemon=True)
        self._reader.start()

    def _read(self, came: Callable[[str], None]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if _OF_OURS.search(line) and self.walks:
                continue  # what was set for ring.c alone is none of the job's settings
            self.lines.append(line)
            came(line)

    def pid(self) -> int:
        """Of the rank itself: nsenter and env have become it."""
        return self.process.pid

    def wait(self, seconds: float) -> None:
        """Up to so many seconds."""
        try:
            self.process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            return
        self.seconds = self.seconds or time.monotonic() - self.began

    def strike(self) -> None:
        """SIGSTOP, unless it has ended; `kill` is to follow."""
        if self.process.poll() is None:
            self.killed = True
            os.killpg(self.process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """End it if it has not ended."""
        if self.process.poll() is None:
            self.killed = True
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        self.seconds = self.seconds or time.monotonic() - self.began
        self._reader.join(10)

    def ended(self, folder: Path) -> RankEnded:
        """What it left."""
        path = folder / f"said.{self.place}"
        lines = path.read_text().splitlines() if path.exists() else []
        code = None if self.killed else self.process.returncode
        return RankEnded(
            self.rank.host, "".join(self.lines), code, self.seconds, [json.loads(line) for line in lines]
        )

"""Asking a library: the requests, the answers, and the client of the process that holds it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec import Struct

from ncclcheck.probes.facts import Node
from tests.conftest import OURS, ROOT
from tests.nccl import libnccl, libraries

SOURCES = Path(__file__).resolve().parent
Version = tuple[int, int, int]
_ASK = (sys.executable, "-m", "tests.differential.holder")
_FOREIGN = ("NCCL_", "FAKECUDA_", "FAKEVERBS_")


class RankRequest(Struct, frozen=True, kw_only=True):
    """One rank of a communicator. alone: it makes an identity of its own, for rank 0 never starts."""

    env: dict[str, str] = {}
    rank: int = 0
    ranks: int = 1
    device: int = 0
    alone: bool = False


class Request(Struct, frozen=True, kw_only=True):
    """A world and the ranks in it.

    links: lines of ip(8). sys: the folder that is /sys. mounts: what is bound where. enough: words after which a
    rank may be ended.
    """

    ranks: list[RankRequest]
    links: list[str] = []
    sys: str = ""
    mounts: list[tuple[str, str]] = []
    enough: list[str] = []
    seconds: float = 10.0


class RankAnswer(Struct, frozen=True, kw_only=True):
    """What a rank printed, and NCCL's result; None where it was ended before."""

    log: str
    result: int | None


class Answer(Struct, frozen=True, kw_only=True):
    """What our own probes read in the world, and what the ranks said.

    broken: why there was no world. cut: the time was over before all had said enough.
    """

    node: Node | None = None
    ranks: list[RankAnswer] = []
    broken: str = ""
    cut: bool = False


class Judge:
    """A version of the library that answers."""

    def __init__(self, nccl: str, cuda: str, folders: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        env = {**clean, "LD_LIBRARY_PATH": folders, "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*_ASK, cuda, nccl], stdin=pipe, stdout=pipe, text=True, env=env)
        self.version: Version = msgspec.json.decode(self._line(), type=Version)

    def ask(self, request: Request) -> Answer:
        """The answer to one request. Raises RuntimeError where the world could not be made."""
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(request).decode() + "\n")
        self.process.stdin.flush()
        answer = msgspec.json.decode(self._line(), type=Answer)
        if answer.broken:
            raise RuntimeError(answer.broken)
        return answer

    def ask_whole(self, request: Request) -> Answer:
        """The same; where the clock cut it, as on a busy machine, it is asked once more with thrice the time."""
        answer = self.ask(request)
        return self.ask(msgspec.structs.replace(request, seconds=3 * request.seconds)) if answer.cut else answer

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def judge(version: str, *, verbs: bool = False) -> Iterator[Judge]:
    """The library of one version. verbs: with a libibverbs that shows the HCAs of its /sys, else with none."""
    built = libraries()
    folders = f"{built}:{_verbs() if verbs else built / 'no_verbs'}"
    with Judge(str(libnccl(version)), str(built / "libnvidia-ml.so.1"), folders) as asked:
        yield asked


@cache
def _verbs() -> Path:
    """The folder with our libibverbs, for this session."""
    folder = OURS / "differential-verbs"
    folder.mkdir()
    script = f"-Wl,--version-script={SOURCES / 'verbs.map'}"
    argv = ["gcc", "-O1", "-fPIC", "-shared", script, "-Wl,-soname,libibverbs.so.1", str(SOURCES / "verbs.c")]
    subprocess.run([*argv, "-o", str(folder / "libibverbs.so.1")], check=True, timeout=120)
    (folder / "libibverbs.so").symlink_to("libibverbs.so.1")
    return folder

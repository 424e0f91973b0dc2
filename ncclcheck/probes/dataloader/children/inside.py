"""The child's side of `child`: it dies with its parent, prints to stderr, goes first when memory is short."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from multiprocessing import util
from typing import Any, NoReturn

import msgspec
import psutil

import ncclcheck
from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import cgroup
from ncclcheck.probes.machine.process import die_with_parent

READY = b"\x00"
STACKS = signal.SIGUSR1

_MOST_TEXT = 600  # characters of an exception: chosen, its first lines; torch's longest have thousands
_PACKAGE = os.path.dirname(ncclcheck.__file__)
_OURS = (f'File "{_PACKAGE}/', 'File "<frozen')


class ChildAnswer(msgspec.Struct):
    """What a child says at its end. defect: the traceback where an exception of ours ended it."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    place: str = ""
    defect: str = ""


def be_child(parent: int, pipe: int, stacks: int, not_ours: Iterable[int], bounded: bool) -> None:
    """What must hold before user code runs. stdout belongs to the tool, so prints go to stderr."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    os.setpgid(0, 0)
    for number in not_ours:
        os.close(number)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    _be_first_to_go()
    if bounded:
        _bound_memory()
    os.set_inheritable(pipe, False)
    util._run_after_forkers()  # type: ignore[attr-defined]  # as a worker of multiprocessing does: its proxies connect anew
    faulthandler.enable(stacks)
    faulthandler.register(STACKS, stacks, all_threads=True)


def answer(work: Callable[[Callable[[], None]], Any], pipe: int, closed: int) -> NoReturn:
    """Do the work, write the answer, end without any clean-up: the parent's is not ours to do."""
    reply, pid = ChildAnswer(), os.getpid()

    def gate() -> None:
        os.write(pipe, READY)
        os.read(closed, 1)

    try:
        reply.value = msgspec.Raw(msgspec.json.encode(work(gate)))
    except BaseException as error:  # SystemExit of user code too
        defect = ours.trace_of(error)
        reply = ChildAnswer(defect=defect) if defect else ChildAnswer(error=in_words(error), place=place_of(error))
    if os.getpid() != pid:
        os._exit(1)  # a process that the user's code forked came out of it by this way; it has nothing to answer
    with contextlib.suppress(BaseException):
        _write(pipe, msgspec.json.encode(reply) + b"\n")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def in_words(error: BaseException) -> str:
    """`TypeError: its text`, shortened. A class whose __str__ raises is named alone.

    For exceptions of the user's code: one of ours is raised on, as a Defect.
    """
    ours.pass_on(error)
    try:
        text = str(error).strip()
    except Exception:
        text = ""
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:_MOST_TEXT]


def place_of(error: BaseException) -> str:
    """The last frame of the user's own code, or the last of all: `file.py:12 in __getitem__`."""
    frames = traceback.extract_tb(error.__traceback__)
    return users_place(error) or (_frame(frames[-1]) if frames else "")


def users_place(error: BaseException | None) -> str:
    """The last frame of the user's own code, or the line that Python cannot read; empty where there is none."""
    if error is None:
        return ""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.basename(error.filename)}:{error.lineno}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
    return _frame(own[-1]) if own else ""


def without_ours(stacks: str) -> str:
    """What faulthandler wrote, less the frames of this tool and of Python's start."""
    return "\n".join(line for line in stacks.splitlines() if not line.lstrip().startswith(_OURS))


def _frame(frame: traceback.FrameSummary) -> str:
    return f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}"


def is_library(filename: str) -> bool:
    """Whether this is code of Python, of installed packages, or of this tool."""
    return not ours.is_users(filename)


def _be_first_to_go() -> None:
    """No core files; and when memory runs out, the kernel takes this process before the user's others."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


def _bound_memory() -> None:
    """A child that eats memory without end gets a MemoryError of its own."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = _own_data() + _free()
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))


def _own_data() -> int:
    """Bytes of private writable memory: what RLIMIT_DATA counts. Source: proc_pid_statm(5), the field data."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[5]) * resource.getpagesize()


def _free() -> int:
    """What a child may take: a quarter of the memory available to this machine or control group, or 4 GiB."""
    limit = _group_limit()
    available = psutil.virtual_memory().available
    available = available if limit is None else min(available, limit)
    return int(min(0.9 * available, max(4 * 2**30, available / 4)))


@cache
def _group_limit() -> int | None:
    return cgroup.memory(Machine())

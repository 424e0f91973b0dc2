"""What NVML says of every GPU, and what this machine knows of the processes on them.

Recorded name: `nvml`, a JSON Nvml.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ncclcheck.probes.facts import NOT_RECORDED, Gpu, GpuProcess, Unread, replace
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.gpu.signs import numa_node

T = TypeVar("T")

# of each call in its child; chosen, without persistence mode the driver first wakes all GPUs, which takes seconds
LONGEST_ANSWER_S = 12.0
_LIBRARY_MISSING, _NO_PERMISSION = 12, 4  # NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_NO_PERMISSION. Source: nvml.h
_WORDS = {18: "Driver/library version mismatch"}  # the words that nvidia-smi has made known
# Run with -I -S.
_START = "import sys; sys.path += sys.argv[1:3]; from ncclcheck.probes.machine.nvml import child; child.main()"
_HOST_PIDS = "pid:[4026531836]"  # the number of the first namespace of every kernel, PROC_PID_INIT_INO
_FOREIGN = Unread("denied", "the pid is the host's: this container numbers its own processes")


class Nvml(Struct, frozen=True, kw_only=True):
    """NVML's answers. error, code: why it could not be used. hung: the call that did not come back."""

    error: str = ""
    code: int = 0
    hung: str = ""
    driver: str | Unread = NOT_RECORDED
    user: str | Unread = NOT_RECORDED
    cards: list[Gpu] = []


def ask_nvml(machine: Machine) -> Nvml | Unread:
    """Ask in a child process. An Unread where there is no NVML, where it hangs, and where its answer is none."""
    nvml = machine.ask("nvml", Nvml, lambda: _ask(machine))
    if isinstance(nvml, Unread):
        return nvml
    if nvml.hung:
        return Unread("timed_out", f"{nvml.hung} of NVML gave no answer in {LONGEST_ANSWER_S:g} s")
    if nvml.code == _LIBRARY_MISSING:
        return Unread("no_tool", "libnvidia-ml.so.1 cannot be loaded")
    if nvml.code == _NO_PERMISSION:
        return Unread("denied", f"NVML: {nvml.error}")
    return replace(
        nvml, error=_WORDS.get(nvml.code, nvml.error), cards=[_complete(machine, card) for card in nvml.cards]
    )


def _ask(machine: Machine) -> Nvml | Unread:
    pynvml = importlib.util.find_spec("pynvml")
    if pynvml is None or pynvml.origin is None:
        return Unread("no_tool", "pynvml (nvidia-ml-py) is not installed")
    package = pynvml.submodule_search_locations is not None
    folders = [str(Path(__file__).parents[4]), str(Path(pynvml.origin).parents[1 if package else 0])]
    argv = [sys.executable, "-I", "-S", "-c", _START, *folders, f"{LONGEST_ANSWER_S:g}"]
    answer = machine.run(argv, LONGEST_ANSWER_S + 2)
    if isinstance(answer, Unread):
        return answer
    try:
        nvml = msgspec.json.decode(answer.out, type=Nvml)
    except msgspec.MsgspecError as error:
        reason = answer.err[-200:].strip() or str(error)
        return Unread("broken", f"asking NVML ended with status {answer.status}: {reason}")
    return replace(nvml, user=_user_name(os.geteuid()), cards=[_with_processes(card) for card in nvml.cards])


def _complete(machine: Machine, card: Gpu) -> Gpu:
    """The NUMA node of a healthy GPU; of one that NVML cannot use, why all the rest is not known."""
    if not isinstance(card.pci, Unread) and card.numa == NOT_RECORDED:
        card = replace(card, numa=numa_node(machine, card.pci))
    if card.trouble in ("", NOT_RECORDED):
        return card
    reason = card.trouble.why if isinstance(card.trouble, Unread) else card.trouble
    missing = Unread("absent", f"{card.name}: {reason}")
    return replace(
        card, **{name: missing for name in Gpu.__struct_fields__ if getattr(card, name) == NOT_RECORDED}
    )


def _with_processes(card: Gpu) -> Gpu:
    if isinstance(card.processes, Unread):
        return card
    ours = _or_unread(lambda: os.readlink("/proc/self/ns/pid"))
    named = [_process(process) if ours == _HOST_PIDS else _foreign(process) for process in card.processes]
    return replace(card, processes=named)


def _foreign(process: GpuProcess) -> GpuProcess:
    return replace(process, name=_FOREIGN, user=_FOREIGN, state=_FOREIGN)


def _process(process: GpuProcess) -> GpuProcess:
    folder = f"/proc/{process.pid}"
    if not _exists(process.pid):
        gone = Unread("absent", "there is no such process any more")
        return replace(process, name=gone, user=gone, state="gone")
    return replace(
        process,
        name=_or_unread(lambda: Path(f"{folder}/comm").read_text(errors="backslashreplace").strip()),
        user=_or_unread(lambda: _user_name(os.stat(folder).st_uid)),
        state=_or_unread(lambda: Path(f"{folder}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]),
    )


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # it is there, and another user's
    return True


def _or_unread(read: Callable[[], T]) -> T | Unread:
    try:
        return read()
    except (OSError, IndexError) as error:
        return Unread("denied", f"this process may not be seen: {error}")


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return f"uid {uid}"

"""Starts ranks of tests/jobs/hang_training.py on one host, as torchrun's agent does, with one import of torch.

A line of stdin is a JSON object: env, argv and the file of the log of one rank, answered with its pid; or "end",
which ends all of them. Ranks are forked before they are needed, so that one that hangs is older than one that
starts; with "young" it is forked then. What /proc/PID/environ shows of a process is that part of its own memory:
a forked rank writes its variables there, over the room that the agent was given for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp
import torch.nn.parallel  # noqa: F401

_SPARE = 14  # ranks forked ahead: those of a minute, at two for each job


def _become(rank: dict[str, Any]) -> None:
    """This process has the variables and the log of its own."""
    os.environ.clear()
    os.environ.update(rank["env"])
    begin, end = (int(number) for number in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    shown = b"".join(f"{name}={value}\0".encode() for name, value in rank["env"].items())
    if len(shown) > end - begin:
        raise ValueError(f"{len(shown)} bytes of variables; there is room for {end - begin}")
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)
    log = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(3, 128)


def _spare() -> tuple[int, int]:
    """A process that waits for what it is to be: its pid, and the pipe on which it is told so."""
    heard, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(heard)
        return pid, tell
    os.setpgid(0, 0)  # no session of its own: the kernel ignores Ctrl-Z where nobody could continue it
    os.close(tell)  # and the agent's end closes the others' with this process
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with os.fdopen(heard) as line:
        rank = json.loads(line.readline() or "null")
    if rank is None:
        os._exit(0)
    _become(rank)
    sys.argv = rank["argv"]
    runpy.run_path(rank["argv"][0], run_name="__main__")
    sys.exit()


def main() -> None:
    """A rank for each line; they end with the agent."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    spare = [_spare() for _ in range(_SPARE)]
    begun: list[int] = []
    print("ready", flush=True)
    for line in sys.stdin:
        given = json.loads(line)
        if given == "end":
            for pid in begun:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            begun = []
        else:
            pid, tell = _spare() if given.get("young") else spare.pop(0)
            os.write(tell, line.encode())
            os.close(tell)
            begun.append(pid)
            spare += [_spare() for _ in range(_SPARE - len(spare))]
            print(pid, flush=True)
    for pid in [*begun, *(pid for pid, _ in spare)]:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()

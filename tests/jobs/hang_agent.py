"""Starts ranks of tests/jobs/hang_training.py on one host, as torchrun's agent does, with one import of torch.

A line of stdin is a JSON object: env, argv and the file of the log of one rank. What /proc/PID/environ shows of a
process is that part of its own memory: a forked rank writes its variables there, over the room that the agent
was given for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp
import torch.nn.parallel  # noqa: F401

ROOM = 4096  # bytes of the variable ROOM, which the agent is started with


def _become(rank: dict[str, Any]) -> None:
    """This process has the variables, the log and the session of its own."""
    os.setsid()
    os.environ.clear()
    os.environ.update(rank["env"])
    begin, end = (int(one) for one in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    shown = b"".join(f"{name}={value}\0".encode() for name, value in rank["env"].items())
    if len(shown) > end - begin:
        raise ValueError(f"{len(shown)} bytes of variables; there is room for {end - begin}")
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)
    log = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(3, 64)


def main() -> None:
    """A rank for each line; they end with the agent."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        rank = json.loads(line)
        if os.fork() == 0:
            _become(rank)
            sys.argv = rank["argv"]
            runpy.run_path(rank["argv"][0], run_name="__main__")
            sys.exit()
    os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    main()

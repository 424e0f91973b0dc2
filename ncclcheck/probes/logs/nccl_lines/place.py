"""Where NCCL writes the log of our own job, and reading it again: the user's own settings are kept."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from ncclcheck.probes.facts import Transport, Unread
from ncclcheck.probes.logs.files.lines import read
from ncclcheck.probes.logs.nccl_lines.records import Log
from ncclcheck.probes.logs.nccl_lines.transports import transport, unseen
from ncclcheck.probes.machine import files

_TELLING = ("INFO", "TRACE")
_SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET"  # what is said once; COLL would write a line for each operation
_MOST = 8 * 2**20  # of the log of one rank


@dataclass(frozen=True)
class DebugFile:
    """pattern: NCCL_DEBUG_FILE as NCCL will see it; empty: it prints to torchrun's log. problem: no log at all."""

    added: Mapping[str, str]
    pattern: str
    problem: str = ""


def choose(env: Mapping[str, str], folder: str) -> DebugFile:
    """What to add to the environment of the job. A lower NCCL_DEBUG is raised where only our own file grows.

    Where the user has NCCL_DEBUG_FILE, nothing is added: how much is written there is theirs to say. folder: where
    the ranks run.
    """
    level, file, here = env.get("NCCL_DEBUG", ""), env.get("NCCL_DEBUG_FILE", ""), folder.replace("%", "%%")
    if file:
        set_ = f"NCCL_DEBUG_FILE is set, and NCCL_DEBUG is {level or 'not set'}"
        return DebugFile(
            {},
            os.path.join(here, file),
            "" if level.upper() in _TELLING else f"{set_}: NCCL writes no transports there",
        )
    added = {"NCCL_DEBUG_FILE": f"{here}/nccl.%p.log"}
    if level.upper() not in _TELLING:
        added["NCCL_DEBUG"] = "INFO"
    if "NCCL_DEBUG_SUBSYS" not in env:
        added["NCCL_DEBUG_SUBSYS"] = _SUBSYSTEMS
    return DebugFile(added, added["NCCL_DEBUG_FILE"])


def expand(pattern: str, pid: int, host: str) -> str:
    """NCCL_DEBUG_FILE as NCCL writes it out: %h the short host name, %p the pid, %% a percent sign."""
    known = {"h": host.partition(".")[0], "p": str(pid), "%": "%"}
    parts = pattern.split("%")
    text, rest = parts[0], parts[1:]
    while rest:
        part = rest.pop(0)
        if part:
            text += known.get(part[0], f"%{part[0]}") + part[1:]
        elif rest:
            text += "%" + rest.pop(0)
    return text


def transports(
    place: DebugFile, pids: Mapping[int, int], node: str, printed: str, local: Collection[int]
) -> list[Transport]:
    """How each rank was connected. pids: rank -> pid. printed: the file that the ranks print to.

    NCCL prints there, without a word, where it cannot open NCCL_DEBUG_FILE.
    """
    if place.problem:
        why = Unread("recorded", place.problem)
        return [unseen(rank, node, why) for rank in sorted(pids)]
    host = socket.gethostname()
    return [_one(place, rank, pid, node, host, printed, local) for rank, pid in sorted(pids.items())]


def _one(
    place: DebugFile, rank: int, pid: int, node: str, host: str, printed: str, local: Collection[int]
) -> Transport:
    path = expand(place.pattern, pid, host)
    why = Unread("absent", "")
    for candidate in (path, printed):
        log = _open(candidate)
        if isinstance(log, Unread):
            why = log if candidate == path else why
            continue
        seen = _read(log, pid, rank, node, local)
        if not isinstance(seen.connections, Unread):
            return seen
        why = why if why.why else seen.connections
    return unseen(rank, node, why)


def _read(log: BinaryIO, pid: int, rank: int, node: str, local: Collection[int]) -> Transport:
    try:
        with log as file:
            return transport(Log().take(read(file, _MOST)), pid, rank, node, local)
    except OSError as error:
        return unseen(rank, node, Unread("broken", f"NCCL's log: {error}"))


def _open(path: str) -> BinaryIO | Unread:
    """A regular file only: a pipe could wait for ever."""
    if not path:
        return Unread("absent", "NCCL writes to no file")
    try:
        if not os.path.isfile(path):
            return Unread("absent", f"NCCL wrote no log to {path}")
        return open(files.opened(path), "rb")
    except PermissionError:
        return Unread("denied", f"{path} may not be read by this user")
    except (OSError, ValueError) as error:
        return Unread("broken", f"{path}: {error}")

"""What a rank itself has written or tells: Flight Recorder's files, NCCL's log file, torch's worker server.

A part of the streamed probe: standard library only, Python 3.6. Paths come from the environment of a process,
which may be anybody's: only what that process's own user owns is read, and no link is followed at the end of a
path.
"""

import base64
import os
import re
import socket
import stat
import time
import zlib
from typing import Any, Dict, List, Optional, Tuple

from ncclcheck.probes.live.machine.proc import Proc, number, status

Raw = Dict[str, Any]

# Of these the first that is set. Torch renamed them in 2.9.
PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
SERVER = "TORCH_WORKER_SERVER_SOCKET"
BOX = "NCCLCHECK_BOX"  # of `ncclcheck watch`, whose ranks serve at BOX/server/PID
LOG = "NCCL_DEBUG_FILE"
NAMES = (
    *PREFIXES,
    *("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    *(SERVER, BOX, LOG, "NCCL_DEBUG", "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE", "NCCL_HOSTID", "XDG_CACHE_HOME", "HOME"),
)
_DEFAULTS = ("/tmp/nccl_trace_rank_", "/tmp/comm_lib_trace_rank_")  # before and from torch 2.8 or so
_MOST_BYTES = 8 * 2**20  # of one dump; a full ring of 2000 calls with stacks has a few MB
_MOST_IN_ALL = 48 * 2**20  # bytes of dumps of a host: chosen, six of the largest; what comes back goes over ssh
_LOG_TAIL = 256 * 1024  # bytes of the end of each log: chosen, some thousand lines, the last of NCCL among them
_SERVER_S = 3.0  # for one rank's answer, as a thread of it needs Python's lock: chosen
_SERVERS_S = 8.0  # for all of a job: those of ranks that hold Python's lock do not answer
_HANDLERS = ("dump_nccl_trace_json", "fr_trace_json")


def environment(proc: Proc, pid: int) -> Dict[str, str]:
    """The variables of a process that say where it writes and listens."""
    lines = proc.text(str(pid), "environ").split("\0")
    variables = dict(line.partition("=")[::2] for line in lines)
    return {name: variables[name] for name in NAMES if name in variables}


def owner(proc: Proc, pid: int) -> int:
    """The user under whom a process opens files; -1: it has ended."""
    uids = status(proc, str(pid)).get("Uid", "").split()
    return int(uids[3]) if len(uids) == 4 else -1


def beside(proc: Proc, pid: int, path: str) -> str:
    """A path as a process sees it, from its own root and folder."""
    if not os.path.isabs(path):
        path = os.path.join(proc.link(str(pid), "cwd"), path)
    return os.path.join(proc.root, str(pid), "root", os.path.normpath(path).lstrip("/"))


def opened(path: str, uid: int, flags: int, kind: Any) -> Optional[int]:
    """A file of this kind that this user owns; None otherwise. Never waits for a pipe or a device."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    inode = os.fstat(descriptor)
    if kind(inode.st_mode) and inode.st_uid == uid:
        return descriptor
    os.close(descriptor)
    return None


class Taken:
    """What is handed over: each piece with whose it is, and how much there was."""

    def __init__(self) -> None:
        self.pieces: List[Raw] = []
        self.left = _MOST_IN_ALL
        self.skipped: List[str] = []

    def add(self, process: Raw, source: str, name: str, data: bytes, age_s: float, whole: int) -> None:
        """Keep a piece, or say that there was no room."""
        if len(data) > self.left:
            self.skipped.append(f"{name}: {len(data)} bytes, and no room is left")
            return
        self.left -= len(data)
        self.pieces.append(
            {
                "job": process["job"],
                "scope": process["scope"],
                "rank": process["rank"],
                "pid": process["pid"],
                "source": source,
                "name": name,
                "age_s": round(age_s, 1),
                "bytes": whole,
                "at_ns": int((time.time() - age_s) * 1e9),
                "data": base64.b64encode(zlib.compress(data, 1)).decode("ascii"),
            }
        )


def files(proc: Proc, ranks: List[Raw], taken: Taken) -> None:
    """Dumps and logs that ranks have written since they were started."""
    for rank in ranks:
        uid = owner(proc, rank["pid"])
        for name in dump_names(rank):
            _file(proc, rank, uid, "file", name, taken)
        if rank["env"].get(LOG):
            _file(proc, rank, uid, "log", log_name(rank, rank["env"][LOG]), taken)


def dump_names(raw: Raw) -> List[str]:
    """Where its Flight Recorder writes: as it is told, else where torch does by itself."""
    start = next((raw["env"][name] for name in PREFIXES if raw["env"].get(name)), "")
    if start:
        return [start + str(raw["rank"])]
    cache = raw["env"].get("XDG_CACHE_HOME") or raw["env"].get("HOME", "") + "/.cache"
    names = [prefix + str(raw["rank"]) for prefix in _DEFAULTS]
    return names + [os.path.join(cache, "torch", kind + str(raw["rank"])) for kind in
                    ("nccl_trace_rank_", "comm_lib_trace_rank_")]  # fmt: skip


def log_name(raw: Raw, pattern: str) -> str:
    """NCCL's %h and %p."""
    return pattern.replace("%h", raw.get("host", "")).replace("%p", str(raw["pid"]))


def _file(proc: Proc, raw: Raw, uid: int, source: str, name: str, taken: Taken) -> None:
    descriptor = opened(beside(proc, raw["pid"], name), uid, os.O_RDONLY, stat.S_ISREG)
    if descriptor is None:
        return
    with os.fdopen(descriptor, "rb") as file:
        inode = os.fstat(descriptor)
        age = max(0.0, time.time() - inode.st_mtime)
        if age > raw["age_s"] + 1.0 or not inode.st_size:
            return  # of an earlier job
        if source == "log":
            file.seek(max(0, inode.st_size - _LOG_TAIL))
            data = file.read(_LOG_TAIL)
        elif inode.st_size > _MOST_BYTES:
            taken.skipped.append(f"{name}: {inode.st_size} bytes, more than {_MOST_BYTES}")
            return
        else:
            data = file.read(_MOST_BYTES)
    taken.add(raw, source, name, data, age, inode.st_size)


def servers(proc: Proc, ranks: List[Raw], taken: Taken) -> None:
    """Flight Recorder's record by torch's worker server, where a rank has one on a socket of its own file."""
    end = time.time() + _SERVERS_S
    for rank in ranks:
        box = rank["env"].get(BOX, "")
        path = rank["env"].get(SERVER, "") or (f"{box}/server/{rank.get('inside', rank['pid'])}" if box else "")
        place = beside(proc, rank["pid"], path) if path else ""
        if place and time.time() > end:
            why = "rank {}: its worker server was not asked, since others did not answer"
            taken.skipped.append(why.format(rank["rank"]))
            continue
        try:
            inode = os.stat(place) if place else None
        except (OSError, ValueError):
            continue
        if inode is None or not stat.S_ISSOCK(inode.st_mode) or inode.st_uid != owner(proc, rank["pid"]):
            continue
        begun = time.time()
        for handler in _HANDLERS:
            body = ask_server(place, handler) if time.time() < begun + _SERVER_S else b""
            if b'"entries"' in body:
                taken.add(rank, "server", f"{handler} of {path}", body, 0.0, len(body))
                break


def ask_server(place: str, handler: str) -> bytes:
    """The answer to one POST; empty where none comes in time, or it is an error."""
    end, answer = time.time() + _SERVER_S, b""
    descriptor = os.open(os.path.dirname(place), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(_SERVER_S)
            link.connect(f"/proc/self/fd/{descriptor}/{os.path.basename(place)}")  # 107 bytes at most
            line = "POST /handler/{} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            link.sendall(line.format(handler).encode())
            while len(answer) <= _MOST_BYTES and time.time() < end:
                more = link.recv(2**16)
                if not more:
                    break
                answer += more
                if complete(answer):
                    break
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return body_of(answer)


def complete(answer: bytes) -> bool:
    """Whether all that Content-Length promises has come."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d{1,9})", head)
    return bool(length and len(body) >= int(length.group(1)))


def body_of(answer: bytes) -> bytes:
    """What follows the head of an answer that is no error; chunks are joined."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not re.match(rb"HTTP/1\.[01] 200", head):
        return b""
    if b"chunked" not in head.lower():
        return body
    joined = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        if not re.match(rb"[0-9a-fA-F]{1,7}$", size) or not int(size, 16):
            break
        joined, body = joined + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return joined


def handles(proc: Proc, pid: int, signal: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    caught = status(proc, str(pid)).get("SigCgt", "0")
    return bool(int(caught, 16) >> (signal - 1) & 1) if re.match(r"[0-9a-f]+$", caught) else False


def pids_inside(proc: Proc, pid: int) -> Tuple[int, int]:
    """Its number here, and in its own namespace."""
    inside = status(proc, str(pid)).get("NSpid", "").split()
    return pid, number(inside[-1]) if inside else pid

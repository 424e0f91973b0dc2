"""file:///PATH, tried beside the very file: each node makes a file there, looks for the others', and locks.

torch's FileStore appends to one file under flock(2) and never empties it, so that what an earlier run left there
is read as if this run had written it. A child does all that touches the folder: a dead file server holds whoever
asks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from contextlib import suppress
from queue import Empty, SimpleQueue

import msgspec

from ncclcheck.probes.facts import FileInit, InitSeen, Unread, replace
from ncclcheck.probes.machine import process
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import mounts

# What it prints: first what stands at PATH and what making and locking a file beside it gave; then, for a line of
# names, which are there, and whether the first of them could be locked though its node has locked it.
_CHILD = r"""import fcntl, itertools, json, os, pwd, signal, stat, sys, time
path, name, seconds, holds = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4] == "1"
folder = os.path.dirname(path)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
signal.signal(signal.SIGALRM, lambda *_: sys.exit())
signal.alarm(60)
def tell(**said):
    print(json.dumps(said), flush=True)
def stood():
    try:
        told = os.lstat(path)
    except FileNotFoundError:
        return {}
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"))
    kind = next((word for is_kind, word in kinds if is_kind(told.st_mode)), "other")
    try:
        owner = pwd.getpwuid(told.st_uid).pw_name
    except KeyError:
        owner = str(told.st_uid)
    return {"kind": kind, "bytes": told.st_size, "age_s": round(max(0.0, time.time() - told.st_mtime), 1),
            "owner": owner}
def there(one):
    try:
        return bool(os.lstat(os.path.join(folder, one)))
    except FileNotFoundError:
        return False
def look(names):
    end = time.monotonic() + seconds
    seen = {one for one in names if there(one)}
    while len(seen) < len(names) and time.monotonic() < end:
        time.sleep(seconds / 5)
        with os.scandir(folder) as listed:
            seen.update(names.intersection(one.name for one in itertools.islice(listed, 100000)))
    return sorted(seen)
def locks_too(one):
    try:
        file = os.open(os.path.join(folder, one), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(file)
mine, file = "", -1
try:
    found = stood()
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = os.open(os.path.join(folder, name), flags, 0o666)
        mine = os.path.join(folder, name)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not holds:
                fcntl.flock(file, fcntl.LOCK_UN)
            tell(**found)
        except OSError as error:
            tell(unlocked=error.strerror, **found)
    except OSError as error:
        tell(problem=error.strerror, **found)
except OSError as error:
    tell(problem=error.strerror)
try:
    for line in sys.stdin:
        names = line.split()
        try:
            seen = look(set(names))
            tell(seen=seen, lock_is_local=not holds and names[0] in seen and locks_too(names[0]))
        except OSError as error:
            tell(problem=error.strerror)
finally:
    if mine:
        os.unlink(mine)"""
_ANSWER_S = 5.0  # s for each answer of the file system; as long as the mark in the working directory has


class _TrialFile(msgspec.Struct):
    problem: str = ""
    kind: str = ""
    bytes: int | None = None
    age_s: float | None = None
    owner: str = ""
    unlocked: str = ""
    seen: list[str] | None = None
    lock_is_local: bool = False


class FileTrial:
    """A file of this node beside PATH, from its making until `close`."""

    def __init__(self, path: str, token: str, *, node: str, hosts: bool, seconds: float) -> None:
        self._token, self._said = token, SimpleQueue[_TrialFile]()
        self._child: subprocess.Popen[bytes] | None = None
        mount = mounts.under(mounts.mounts(Machine()), os.path.dirname(path))
        init = FileInit(path=path)
        if not isinstance(mount, Unread):
            init = replace(init, filesystem=mount.kind, options=mount.options)
        self._seen = InitSeen(node=node, file=init)
        argv = [sys.executable, "-I", "-S", "-c", _CHILD, path, self._name(node), str(seconds / 2), "01"[hosts]]
        try:
            self._child = process.start(argv, control=True, err=subprocess.DEVNULL)
        except OSError as error:
            self._tell(problem=f"no child process could be started: {error.strerror or error}")
            return
        self._said = process.records(self._child, _TrialFile, "init file")

    def _name(self, node: str) -> str:
        """By the run and the node's number or name, whatever stands in it."""
        return f".ncclcheck-{self._token}-{node.encode().hex()[:80]}"

    def _tell(self, **changes: object) -> None:
        assert self._seen.file is not None
        self._seen = replace(self._seen, file=replace(self._seen.file, **changes))

    def _next(self) -> _TrialFile:
        if self._child is None:
            return _TrialFile(problem=self._seen.file.problem if self._seen.file else "")
        try:
            return self._said.get(timeout=_ANSWER_S)
        except Empty:
            return _TrialFile(problem=f"the file system gave no answer within {_ANSWER_S:g} s")

    def opened(self) -> InitSeen:
        """What stands at PATH, and whether a file beside it can be made and locked."""
        reply = self._next()
        self._tell(
            problem=reply.problem,
            kind=reply.kind,
            bytes=reply.bytes,
            age_s=reply.age_s,
            owner=reply.owner,
            unlocked=reply.unlocked,
        )
        return self._seen

    def looked(self, nodes: Collection[str]) -> InitSeen:
        """Whose files are there. nodes: that of rank 0 first."""
        names = {self._name(node): node for node in nodes}
        if self._child is None or self._child.stdin is None or (self._seen.file and self._seen.file.problem):
            return self._seen
        with suppress(OSError, ValueError):
            self._child.stdin.write(" ".join(names).encode() + b"\n")
            self._child.stdin.flush()
        reply = self._next()
        if reply.seen is None:
            self._tell(problem=reply.problem or "the folder could not be read")
        else:
            self._tell(
                sees=[node for name, node in names.items() if name in reply.seen],
                missing=[node for name, node in names.items() if name not in reply.seen],
                lock_is_local=reply.lock_is_local,
            )
        return self._seen

    def close(self) -> None:
        """Have the file removed; a child that waits for its file server is not waited for."""
        if self._child is not None:
            with suppress(OSError, ValueError, subprocess.TimeoutExpired):
                if self._child.stdin is not None:
                    self._child.stdin.close()
                self._child.wait(0.5)

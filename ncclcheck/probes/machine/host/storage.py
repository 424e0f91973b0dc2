"""Where the job's directories live, how much room they have, and whether files there can be locked.

Recorded names: `working_directory`, `environment`, `home`, `rooms` (Room by path), `flock` and `fcntl`.
The locks are tried on a small file in the working directory, which is removed again.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from ncclcheck.probes.facts import Lock, Place, Room, Storage, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import mounts
from ncclcheck.probes.machine.host.host import within

_SECONDS = 4.0  # a busy file server answers within it, a dead one is not waited for: chosen
_Name = Literal["working directory", "temporary directory", "cache", "torch cache", "model cache", "CUDA cache"]
_OUTCOMES: dict[str, Literal["ok", "ignored", "unsupported"]] = {
    "ok": "ok",
    "ignored": "ignored",
    "unsupported": "unsupported",
}
_DELETED = " (deleted)"  # how the kernel marks it in /proc/PID/cwd
_TRY = """import errno, fcntl, os, sys
path, kind = sys.argv[1:]
take = fcntl.flock if kind == "flock" else fcntl.lockf
mine = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
try:
    take(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other = os.fork()
    if other == 0:
        try:
            take(os.open(path, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os._exit(0)
        os._exit(9)
    print("ignored" if os.waitpid(other, 0)[1] else "ok")
except OSError as error:
    print("unsupported", errno.errorcode.get(error.errno, error.errno), error.strerror)
finally:
    os.unlink(path)"""


def probe(machine: Machine) -> Storage:
    """The places of the job, and the locks."""
    env = machine.ask("environment", dict[str, str], lambda: dict(os.environ))
    here = machine.ask("working_directory", str, _working_directory)
    if isinstance(env, Unread) or isinstance(here, Unread):
        unread = env if isinstance(env, Unread) else here
        assert isinstance(unread, Unread)
        return Storage(places=unread, flock=unread, fcntl=unread)
    gone = here.removesuffix(_DELETED) if here.endswith(_DELETED) and not machine.exists(here) else ""
    places = _places(machine, list(_named(env, "" if gone else here, _home(machine, env))))
    if gone:
        unread = Unread("absent", f"the working directory was deleted: {gone}")
        return Storage(places=places, flock=unread, fcntl=unread, deleted=gone)
    with ThreadPoolExecutor(2) as both:
        flock, fcntl = both.map(lambda kind: _lock(machine, kind, places[0]), ("flock", "fcntl"))
    return Storage(places=places, flock=flock, fcntl=fcntl, deleted="")


def _working_directory() -> str:
    """Of a directory that was deleted the kernel still tells the name, with a mark. Source: proc_pid_cwd(5)."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.readlink("/proc/self/cwd")


def _home(machine: Machine, env: Mapping[str, str]) -> str:
    asked = machine.ask("home", str, lambda: env.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    return "" if isinstance(asked, Unread) else asked


def _named(env: Mapping[str, str], here: str, home: str) -> Iterator[tuple[_Name, str, str]]:
    """Name, path, and who names it. Caches without a variable of their own are where `cache` is."""
    if here:
        yield "working directory", here, "the working directory"
    temporary = next((name for name in ("TMPDIR", "TEMP", "TMP") if env.get(name)), "")
    yield "temporary directory", env.get(temporary, "/tmp"), temporary or "default"
    if os.path.normpath(env.get(temporary, "/tmp")) != "/tmp":  # what does not ask for TMPDIR takes it
        yield "temporary directory", "/tmp", "default"
    if env.get("XDG_CACHE_HOME") or home:
        origin = "XDG_CACHE_HOME" if env.get("XDG_CACHE_HOME") else "HOME"
        yield "cache", env.get("XDG_CACHE_HOME") or f"{home}/.cache", origin
    variables: tuple[tuple[_Name, str], ...] = (
        ("torch cache", "TORCH_HOME"),
        ("model cache", "HF_HOME"),
        ("CUDA cache", "CUDA_CACHE_PATH"),
    )
    yield from ((name, env[variable], variable) for name, variable in variables if env.get(variable))


def _places(machine: Machine, named: Sequence[tuple[_Name, str, str]]) -> list[Place]:
    mounted = mounts.mounts(machine)
    rooms = machine.ask("rooms", dict[str, Room | Unread], lambda: _rooms([path for _, path, _ in named]))
    places: list[Place] = []
    for name, path, variable in named:
        room = (
            rooms
            if isinstance(rooms, Unread)
            else rooms.get(path, Unread("recorded", f"{path} was not looked at"))
        )
        real = path if isinstance(room, Unread) else room.path
        places.append(Place(name=name, path=path, told_by=variable, mount=mounts.under(mounted, real), room=room))
    return places


def _rooms(paths: Sequence[str]) -> dict[str, Room | Unread]:
    """A directory on a dead file server is not waited for, and holds up no other."""
    different = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(len(different)) as pool:
        rooms = pool.map(lambda path: within(_SECONDS, f"statvfs({path})", lambda: _room(path)), different)
        return dict(zip(different, rooms, strict=True))


def _room(path: str) -> Room:
    nearest = os.path.realpath(path)
    while not os.path.isdir(nearest) and nearest != "/":
        nearest = os.path.dirname(nearest)
    status = os.statvfs(nearest)
    return Room(
        path=nearest,
        size=status.f_blocks * status.f_frsize,
        free=status.f_bavail * status.f_frsize,
        inodes=status.f_files,
        inodes_free=status.f_favail,
        writable=os.access(nearest, os.W_OK | os.X_OK),
    )


def _lock(machine: Machine, kind: str, place: Place) -> Lock | Unread:
    return machine.ask(kind, Lock, lambda: _try(machine, kind, place.room))


def _try(machine: Machine, kind: str, room: Room | Unread) -> Lock | Unread:
    """The answer of a child, which alone waits where a lock never returns."""
    if isinstance(room, Unread):
        return room
    if not room.writable:
        return Unread("absent", f"no file can be made in {room.path}, so that no lock was tried")
    path = f"{room.path}/.ncclcheck-{kind}-{uuid.uuid4().hex}"
    output = machine.run([sys.executable, "-I", "-S", "-c", _TRY, path, kind], _SECONDS)
    if isinstance(output, Unread):
        _remove(path)
        hangs = Lock(outcome="hangs", detail=f"no answer in {_SECONDS:g} s")
        return hangs if output.kind == "timed_out" else output
    outcome, _, detail = output.out.strip().partition(" ")
    if outcome in _OUTCOMES:
        return Lock(outcome=_OUTCOMES[outcome], detail=detail)
    message = (output.err.strip().splitlines() or ["no answer"])[-1]
    return Unread("denied", f"{kind} in {room.path}: {message[:200]}")


def _remove(path: str) -> None:
    """The child may have been killed before it could; on a dead file server nobody waits for it."""

    def remove() -> None:
        with contextlib.suppress(OSError):
            os.unlink(path)

    within(1.0, f"unlink({path})", remove)

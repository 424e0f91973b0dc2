"""The private folder of an agent's run: socket, progress file, torchrun's log, all that is written meanwhile.

Other users may write where it lies, so it is only made where they cannot rename it, and only emptied through the
descriptor of a folder that is surely ours: no link is followed, and no pipe is waited for.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from ncclcheck.probes.machine import files

_PREFIX = "ncclcheck-"
_REMOVE_S = 3.0  # a local disk removes some files at once; one that does not answer is left behind: chosen
_ROOM = 256 * 1024  # bytes that must fit: a run writes its progress file and torchrun's first lines: chosen
_LOCK = "lock"
_held: dict[str, int] = {}  # run folder -> its locked file
_LONGEST = 70  # a Unix socket's path may have 107 bytes
_MOST_NAMES = 100_000  # that are looked at in a folder of all users
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def create() -> str:
    """A folder of mode 0700 in the first place with room: TMPDIR, /tmp, /dev/shm, /run/user.

    Where others may rename it none is made, but for want of any other place: in a pod /tmp is a volume that all
    may write to, and nobody else is there. Raises OSError that names every place that was tried.
    """
    tried: list[str] = []
    for parent in [*filter(_is_safe, _candidates())] or _candidates():
        try:
            folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        except OSError as error:
            tried.append(f"{parent}: {error.strerror}")
            continue
        if (problem := _no_room(folder)) is None:
            _hold(folder)
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        tried.append(f"{parent}: {problem}")
    raise OSError("no place for a small private folder; tried " + "; ".join(tried))


def _is_safe(parent: str) -> bool:
    with suppress(OSError):
        return not files.others_may_replace(parent)
    return False


def below(folder: str) -> str:
    """A new folder inside, for one job of the run. Raises OSError."""
    return tempfile.mkdtemp(prefix="job", dir=folder)


def remove(folder: str) -> None:
    """Remove a run folder."""
    _remove(folder)
    if (lock := _held.pop(folder, None)) is not None:
        os.close(lock)


def remove_scratch(folder: str) -> None:
    """Remove what a run left on the user's own disk; a file system that does not answer keeps nobody."""
    if os.path.basename(folder).startswith(_PREFIX):
        _within(_REMOVE_S, lambda: _remove(folder))


def sweep() -> None:
    """Remove the folders of this user's runs that were killed: those whose lock nobody holds any more."""
    _within(_REMOVE_S, _sweep)


def _within(seconds: float, act: Callable[[], None]) -> None:
    acting = threading.Thread(target=act, daemon=True)
    acting.start()
    acting.join(seconds)


def _sweep() -> None:
    for parent in _candidates():
        with suppress(OSError), os.scandir(parent) as entries:
            for entry in islice(entries, _MOST_NAMES):
                if entry.name.startswith(_PREFIX):
                    _remove_abandoned(entry.path)


def _remove_abandoned(path: str) -> None:
    with suppress(OSError), _opened(path) as folder:
        if _is_ours(folder):
            with _unlocked(folder):
                _empty(folder)
                os.rmdir(path)


def _remove(path: str) -> None:
    """What we made a while ago: where nobody can have exchanged it, its owner and mode are the file server's."""
    with suppress(OSError), _opened(path) as folder:
        if _is_ours(folder) or not files.others_may_write(os.stat(os.path.dirname(path))):
            _empty(folder)
            os.rmdir(path)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """The descriptor of a folder. Raises OSError for a link."""
    folder = os.open(path, _FOLDER)
    try:
        yield folder
    finally:
        os.close(folder)


def _is_ours(folder: int) -> bool:
    """Whether an open folder belongs to this user and is closed to all others."""
    status = os.fstat(folder)
    return status.st_uid == os.geteuid() and status.st_mode & 0o777 == 0o700


@contextmanager
def _unlocked(folder: int) -> Iterator[None]:
    """While inside, the lock is ours. Raises OSError where somebody holds it, or it is no file."""
    lock = files.opened(_LOCK, os.O_RDONLY | os.O_NOFOLLOW, folder=folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _empty(folder: int) -> None:
    """Remove all that is in an open folder, wherever it may have been moved."""
    for _, folders, names, here in os.fwalk(".", topdown=False, onerror=None, dir_fd=folder):
        for name in names:
            with suppress(OSError):
                os.unlink(name, dir_fd=here)
        for name in folders:
            with suppress(OSError):
                os.rmdir(name, dir_fd=here)
            with suppress(OSError):  # a link to a folder
                os.unlink(name, dir_fd=here)


def _hold(folder: str) -> None:
    """Lock the folder until this process ends or it is removed, whatever PID namespace a sweeper lives in."""
    _held[folder] = os.open(f"{folder}/{_LOCK}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(_held[folder], fcntl.LOCK_EX)


def _candidates() -> Iterator[str]:
    names = (os.environ.get("TMPDIR"), "/tmp", "/dev/shm", f"/run/user/{os.getuid()}")
    for name in dict.fromkeys(names):
        if name and os.path.isabs(name) and len(os.fsencode(name)) <= _LONGEST:
            yield name


def _no_room(folder: str) -> str | None:
    try:
        probe = Path(folder, "room")
        probe.write_bytes(b"\0" * _ROOM)
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return None

"""The private folder of an agent's run: socket, progress file, torchrun's log."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

_PREFIX = "ncclcheck-"
_REMOVE_S = 3.0
_ROOM = 256 * 1024
_LOCK = "lock"
_held: list[IO[bytes]] = []
_LONGEST = 70  # a Unix socket's path may have 107 bytes


def create() -> str:
    """A folder of mode 0700 in the first place with room: TMPDIR, /tmp, /dev/shm, /run/user.

    Raises OSError that names every place that was tried.
    """
    tried: list[str] = []
    for parent in _candidates():
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


def below(folder: str) -> str:
    """A new folder inside, for one job of the run. Raises OSError."""
    return tempfile.mkdtemp(prefix="job", dir=folder)


def remove(folder: str) -> None:
    """Remove a run folder."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_scratch(folder: str) -> None:
    """Remove what a run left on the user's own disk; a file system that does not answer keeps nobody."""
    if os.path.basename(folder).startswith(_PREFIX):
        remover = threading.Thread(target=remove, args=(folder,), daemon=True)
        remover.start()
        remover.join(_REMOVE_S)


def sweep() -> None:
    """Remove the folders of this user's runs that were killed: those whose lock nobody holds any more."""
    for parent in _candidates():
        for folder in Path(parent).glob(f"{_PREFIX}*"):
            with suppress(OSError):
                if folder.stat().st_uid == os.getuid() and _abandoned(folder / _LOCK):
                    shutil.rmtree(folder, ignore_errors=True)


def _abandoned(lock: Path) -> bool:
    with open(lock, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def _hold(folder: str) -> None:
    """Lock the folder until this process ends, whatever PID namespace a sweeper lives in."""
    _held.append(open(f"{folder}/{_LOCK}", "wb"))  # noqa: SIM115 - open for the life of the process
    fcntl.flock(_held[-1], fcntl.LOCK_EX)


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

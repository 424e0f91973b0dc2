"""The private folder of an agent's run: socket, progress file, torchrun's log."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PREFIX = "ncclcheck-"
_ROOM = 256 * 1024
_LONGEST = 70  # a Unix socket's path may have 107 bytes


def create() -> str:
    """A folder of mode 0700 in the first place with room: the temporary directory, /dev/shm, /run/user, home.

    Raises OSError that names every place that was tried.
    """
    tried: list[str] = []
    for parent in _candidates():
        try:
            folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent)
        except OSError as error:
            tried.append(f"{parent}: {error.strerror}")
            continue
        if (problem := _no_room(folder)) is None:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        tried.append(f"{parent}: {problem}")
    raise OSError("no place for a small private folder; tried " + "; ".join(tried))


def remove(folder: str) -> None:
    """Remove a run folder."""
    shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove the run folders that killed agents of this user left behind on this machine."""
    for parent in _candidates():
        for stale in Path(parent).glob(f"{_PREFIX}*-*"):
            owner = stale.name.removeprefix(_PREFIX).split("-")[0]
            with suppress(OSError):
                if owner.isdecimal() and not Path("/proc", owner).exists() and stale.stat().st_uid == os.getuid():
                    shutil.rmtree(stale, ignore_errors=True)


def _candidates() -> Iterator[str]:
    names = (os.environ.get("TMPDIR"), "/tmp", "/dev/shm", f"/run/user/{os.getuid()}", os.path.expanduser("~"))
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

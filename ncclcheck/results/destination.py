"""How an output file gets to its place: never through what somebody else has put in the way.

In a folder where others may write no link is followed, and what is there already is written only where the kernel
with fs.protected_symlinks, protected_regular and protected_fifos would allow it, whatever they are set to.
A file that is replaced keeps its owner, group and mode; where they cannot be kept it is written in place.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import stat
from collections.abc import Iterable
from contextlib import suppress

from ncclcheck.probes.machine.files import described, trusted_owner
from ncclcheck.results.walk import OpenName, walk

_PATIENCE_S = 5.0  # without progress of a pipe's reader: chosen
_WRITE = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def check(path: str) -> None:
    """Whether `write` could do it now; leaves nothing behind. Raises OSError."""
    with walk(path) as place:
        file, beside = _opened(place)
        os.close(file)
        if beside:
            os.unlink(beside, dir_fd=place.folder)


def write(path: str, data: bytes | Iterable[bytes]) -> None:
    """Whole or not at all, but for what has to be written in place. data: all, or pieces of it. Raises OSError."""
    with walk(path) as place:
        file, beside = _opened(place)
        try:
            _write_all(file, [data] if isinstance(data, bytes) else data, anew=not place.descriptor)
            if beside:
                os.replace(beside, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        except BaseException:
            if beside:
                with suppress(OSError):
                    os.unlink(beside, dir_fd=place.folder)
            raise


def _opened(place: OpenName) -> tuple[int, str]:
    """A descriptor to write to, and the name that it has until it is whole; none: it is written in place."""
    if place.descriptor:
        return os.open(place.descriptor, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC), ""
    if place.status is None:
        return _beside(place, 0o666)
    _refuse(place.status, place)
    there = os.open(place.name, _WRITE, dir_fd=place.folder)
    try:
        if not os.path.samestat(os.fstat(there), place.status):
            raise OSError(errno.ESTALE, "it was exchanged for something else meanwhile")
        if new := _alike(there, place):
            os.close(there)
            return new
    except BaseException:
        os.close(there)
        raise
    return there, ""


def _refuse(status: os.stat_result, place: OpenName) -> None:
    """Raises OSError for what is not to be written."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if not place.shared:
        return
    sticky = os.fstat(place.folder).st_mode & stat.S_ISVTX
    if not trusted_owner(status.st_uid) and (sticky or not stat.S_ISREG(status.st_mode)):
        raise PermissionError(errno.EACCES, f"it is somebody else's ({described(status)}), where others may write")
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise PermissionError(errno.EACCES, "it has a second name (a hard link), where others may write")


def _beside(place: OpenName, mode: int) -> tuple[int, str]:
    """A new file under a name that nobody can foresee."""
    name = f".ncclcheck-{secrets.token_hex(8)}.part"
    return os.open(name, _WRITE | os.O_CREAT | os.O_EXCL, mode, dir_fd=place.folder), name


def _alike(there: int, place: OpenName) -> tuple[int, str] | None:
    """A new file with owner, group and mode of the one that is there; None where they cannot be kept."""
    before = os.fstat(there)
    if not stat.S_ISREG(before.st_mode) or _has_acl(there):
        return None
    try:
        new, name = _beside(place, 0o600)
    except PermissionError:
        return None
    try:
        made = os.fstat(new)
        if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
            os.fchown(new, before.st_uid, before.st_gid)
        os.fchmod(new, before.st_mode & 0o777)
    except OSError:
        os.close(new)
        os.unlink(name, dir_fd=place.folder)
        return None
    return new, name


def _has_acl(file: int) -> bool:
    with suppress(OSError):  # not every file system has attributes
        return "system.posix_acl_access" in os.listxattr(file)
    return False


def _write_all(file: int, pieces: Iterable[bytes], *, anew: bool) -> None:
    """And close it. A pipe or a device may stop taking: five seconds without progress are enough."""
    with open(file, "wb", buffering=0):
        if anew and stat.S_ISREG(os.fstat(file).st_mode):
            os.ftruncate(file, 0)
        room = select.poll()
        room.register(file, select.POLLOUT)
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                if not room.poll(_PATIENCE_S * 1000):
                    raise TimeoutError(errno.ETIMEDOUT, "nobody reads it")
                rest = rest[os.write(file, rest) :]

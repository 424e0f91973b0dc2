"""Files that somebody else may have placed: who may change them, and opening them without a wait."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import select
import stat

_SILENCE_S = 10.0  # that a pipe may bring nothing: a shell's own pipe brings something at once


def trusted_owner(uid: int) -> bool:
    """Ourselves, root, and whoever owns "/": in a user namespace root has another number."""
    return uid in (os.geteuid(), 0, os.stat("/").st_uid)


def others_may_write(status: os.stat_result) -> bool:
    """Whether anybody but us and root may change a file, or put one into a folder (its sticky bit aside)."""
    if not trusted_owner(status.st_uid) or status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _private_group(status.st_gid, status.st_uid)


def _private_group(gid: int, owner: int) -> bool:
    """A group of the owner alone, by its name and members: with umask 002 what users make is writable by it."""
    try:
        name, group = pwd.getpwuid(owner).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}


def others_may_replace(folder: str) -> str:
    """The folder on the way to this one in which others may rename ours; empty where there is none.

    In a folder with the sticky bit only the owner of a file, of the folder, and root may. Raises OSError.
    """
    here = os.path.realpath(folder)
    while True:
        status = os.stat(here)
        sticky = status.st_mode & stat.S_ISVTX and trusted_owner(status.st_uid)
        if others_may_write(status) and not sticky:
            return here
        if here == "/":
            return ""
        here = os.path.dirname(here)


def described(status: os.stat_result) -> str:
    """Owner and mode in words: `owner nobody, mode 0666`."""
    try:
        name = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        name = str(status.st_uid)
    return f"owner {name}, mode {stat.S_IMODE(status.st_mode):04o}"


def opened(path: str, flags: int = os.O_RDONLY, *, folder: int | None = None) -> int:
    """A regular file's descriptor; a pipe would be waited for. Raises OSError."""
    file = _open(path, flags, folder)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "it is not a regular file")


def content(path: str, most: int) -> bytes:
    """Of a regular file, or of a pipe as the shell makes one, as long as it brings something. Raises OSError."""
    file = _open(path, os.O_RDONLY, None)
    try:
        kind = os.fstat(file).st_mode
        if stat.S_ISFIFO(kind):
            return _piped(file, most)
        if stat.S_ISREG(kind):
            return bounded(file, most)
        raise OSError(errno.EINVAL, "it is a directory" if stat.S_ISDIR(kind) else "it is a device")
    finally:
        os.close(file)


def bounded(file: int, most: int) -> bytes:
    """All that a regular file holds. Raises OSError for one that holds more than `most` bytes."""
    _limit(os.fstat(file).st_size, most)
    data = bytearray()
    while piece := os.read(file, 1 << 24):
        data += piece
        _limit(len(data), most)
    return bytes(data)


def _open(path: str, flags: int, folder: int | None) -> int:
    try:
        return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except ValueError as error:  # a zero byte
        raise OSError(errno.EINVAL, str(error)) from None


def _piped(pipe: int, most: int) -> bytes:
    data, brought = bytearray(), select.poll()
    brought.register(pipe, select.POLLIN)
    while True:
        if not brought.poll(_SILENCE_S * 1000):
            raise OSError(errno.ETIMEDOUT, f"a pipe that brought nothing for {_SILENCE_S:.0f} s")
        if not (part := os.read(pipe, 1 << 20)):
            return bytes(data)
        data += part
        _limit(len(data), most)


def _limit(size: int, most: int) -> None:
    if size > most:
        limit = f"{most >> 30} GiB" if most >= 2**30 else f"{most >> 20} MiB"
        raise OSError(errno.EFBIG, f"it is larger than {limit}")

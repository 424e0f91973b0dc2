"""A path, walked folder by folder, each by its own descriptor: nothing can be exchanged meanwhile.

Links are followed only where nobody but us and root may have made them.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ncclcheck.probes.machine.files import others_may_write

_MOST_LINKS = 40  # as in the kernel. Source: path_resolution(7)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|\d+)/fd/\d+")


@dataclass(frozen=True)
class OpenName:
    """A name in an open folder. status: what is there, never a link; None: nothing yet.

    shared: others may write in the folder. descriptor: a path that stands for an open descriptor.
    """

    folder: int
    name: str = ""
    status: os.stat_result | None = None
    shared: bool = False
    descriptor: str = ""


@contextmanager
def walk(path: str) -> Iterator[OpenName]:
    """Walk the path, following the links that only we or root can have made. Raises OSError."""
    if "\0" in path:
        raise OSError(errno.EINVAL, "it has a zero byte")
    if not path:
        raise FileNotFoundError(errno.ENOENT, "it is empty")
    folder, links = _folder("/" if path.startswith("/") else "."), 0
    rest = _parts(path)
    try:
        if _DESCRIPTOR.fullmatch(path):
            yield OpenName(folder, descriptor=path)
            return
        while rest and not path.endswith("/"):
            name = rest.pop()
            status = _told(name, folder)
            if status is not None and stat.S_ISLNK(status.st_mode):
                link, links = _target(name, folder), links + 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if not rest and _DESCRIPTOR.fullmatch(link):
                    yield OpenName(folder, descriptor=link)
                    return
                if link.startswith("/"):
                    folder = _moved(folder, "/")
                rest += _parts(link)
            elif rest:
                folder = _moved(folder, name)
            else:
                yield OpenName(folder, name, status, others_may_write(os.fstat(folder)))
                return
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    finally:
        os.close(folder)


def _parts(path: str) -> list[str]:
    """The names on the way, the last one first."""
    return [part for part in path.split("/") if part not in ("", ".")][::-1]


def _folder(name: str, at: int | None = None) -> int:
    """Opened to be read where it may be: that makes an automounter act."""
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except PermissionError:
        return os.open(name, _FOLDER | os.O_PATH, dir_fd=at)


def _moved(folder: int, name: str) -> int:
    below = _folder(name, folder)
    os.close(folder)
    return below


def _told(name: str, folder: int) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    return None


def _target(name: str, folder: int) -> str:
    if others_may_write(os.fstat(folder)):
        raise PermissionError(errno.EACCES, f"{name} is a link, where others may write; give the path it leads to")
    return os.readlink(name, dir_fd=folder)

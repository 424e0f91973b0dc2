"""What others write into a box, NCCL's files: kept within a bound while they grow."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from ncclcheck.probes.box.journal import NEW
from ncclcheck.probes.box.read.folders import listed

# Bytes of all NCCL's files of a node, as much again for their beginnings. A judgement: warnings fill a screen, or
# come without end; with the 36 MiB of our own, and 4 for a look at a stall, a box stays below 50 MB.
NCCL = 4 * 2**20
LOOK = 4 * 2**20  # bytes that are kept of a look at a stall, see above
_LEAST = 64 * 2**10  # of one file, however many there are
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE. Source: linux/falloc.h


def keep(box: str) -> None:
    """Of a file that has grown too large the beginning is copied, and the disk gets back all but the end."""
    names = [name for name in listed(box) if name.startswith("nccl.") and not name.endswith(".head")]
    most = max(_LEAST, NCCL // max(1, len(names)))
    for name in names:
        with suppress(OSError):
            _keep(os.path.join(box, name), most)


def _keep(path: str, most: int) -> None:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        inode = os.fstat(file)
        if inode.st_blocks * 512 <= most:
            return
        with suppress(FileExistsError):
            head = os.open(f"{path}.head", NEW, 0o600)
            try:
                data = os.pread(file, most, 0)
                os.write(head, data[: data.rfind(b"\n") + 1] or data)
            finally:
                os.close(head)
        end = ctypes.c_long(inode.st_size - most // 2)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(file, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_long(0), end):
            os.ftruncate(file, 0)  # NFS before 4.2: its writer goes on where it was, behind a hole
    finally:
        os.close(file)

"""What this process holds now: open descriptors, private memory, threads."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
from dataclasses import dataclass, field
from functools import cache

_LINES = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class HeldResources:
    """descriptors: number -> what it is open on. anonymous: private memory that belongs to no file, shared with
    the parent or not; own: of it what no other process has.
    """

    anonymous: int = 0
    own: int = 0
    descriptors: dict[int, str] = field(default_factory=dict)


def now() -> HeldResources:
    """After what nobody refers to has been given back. Raises OSError where the kernel does not tell."""
    gc.collect()
    _trim()
    with open("/proc/self/smaps_rollup", encoding="ascii", errors="replace") as file:
        sizes = {name: int(count) * 1024 for name, count in _LINES.findall(file.read())}
    own = sizes["Private_Dirty"] - sizes.get("Pss_Shmem", 0)
    return HeldResources(sizes["Anonymous"], own, descriptors())


def descriptors() -> dict[int, str]:
    """Those that are open, without the one that lists them."""
    targets: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            targets[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return targets


def threads() -> int:
    """Those of this process, of native libraries too."""
    return len(os.listdir("/proc/self/task"))


def _trim() -> None:
    """What the C library keeps of freed buffers goes up and down, and would hide a leak or look like one."""
    if trim := getattr(_libc(), "malloc_trim", None):  # glibc alone has it
        trim(0)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)

"""Mounted file systems: whether disks were made read-only, and whether network file systems answer.

A mount whose server is gone holds up whoever touches it, in a wait that only SIGKILL ends. So a child touches
them, each in a thread of its own, tells what came back and is killed. What autofs would mount is not touched.
"""

from __future__ import annotations

import errno
import os
import sys

from ncclcheck.probes.facts import FileSystemAnswer, Mount, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import mounts

_SECONDS = 4.0  # a sound server answers in milliseconds; a Lustre target that fails over needs tens of seconds
# of disks, and of network file systems: chosen; hosts of containers have hundreds that are the same few
_MOST_MOUNTS = 32
_DISKS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})
_TOUCH = """import os, sys, threading
def touch(number, path):
    try:
        os.stat(path)
        said = 0
    except OSError as error:
        said = error.errno
    os.write(1, b"%d %d\\n" % (number, said))
threads = [threading.Thread(target=touch, args=one, daemon=True) for one in enumerate(sys.argv[2:])]
[thread.start() for thread in threads]
[thread.join(float(sys.argv[1])) for thread in threads]
os._exit(0)"""


def disks(machine: Machine) -> list[Mount] | Unread:
    """File systems of local disks, each device once: the mount that was meant for writing, if there is one."""
    mounted = mounts.mounts(machine)
    if isinstance(mounted, Unread):
        return mounted
    ours: dict[str, Mount] = {}
    for mount in sorted(mounted, key=lambda mount: mount.options[0] != "rw"):
        if mount.kind in _DISKS:
            ours.setdefault(mount.source, mount)
    return list(ours.values())[:_MOST_MOUNTS]


def answers(machine: Machine) -> list[FileSystemAnswer] | Unread:
    """What each network file system said to stat(2)."""
    mounted = mounts.mounts(machine)
    if isinstance(mounted, Unread):
        return mounted
    remote = list({(mount.kind, mount.source): mount for mount in mounted if mount.network}.values())
    return machine.ask("answers", list[FileSystemAnswer], lambda: _ask(machine, remote[:_MOST_MOUNTS]))


def _ask(machine: Machine, remote: list[Mount]) -> list[FileSystemAnswer] | Unread:
    if not remote:
        return []
    points = [machine.path(mount.point) for mount in remote]
    output = machine.run([sys.executable, "-I", "-S", "-c", _TOUCH, f"{_SECONDS:g}", *points], _SECONDS + 1)
    if isinstance(output, Unread) and output.kind != "timed_out":
        return output
    text = "" if isinstance(output, Unread) else output.out
    codes = {int(number): int(code) for number, _, code in (line.partition(" ") for line in text.splitlines())}
    return [_answer(mount, codes.get(number)) for number, mount in enumerate(remote)]


def _answer(mount: Mount, code: int | None) -> FileSystemAnswer:
    """To be refused is an answer too."""
    refused = code in (0, errno.EACCES, errno.EPERM)
    error = "" if code is None or refused else f"{errno.errorcode.get(code, code)}: {os.strerror(code)}"
    return FileSystemAnswer(name=mount.point, kind=mount.kind, source=mount.source, error=error, late=code is None)

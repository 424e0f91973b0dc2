"""Mounted file systems: Machine -> the mount under a path. Source: /proc/self/mountinfo, proc_pid_mountinfo(5)."""

from __future__ import annotations

import posixpath
import re

from ncclcheck.probes.facts import Mount, Unread
from ncclcheck.probes.machine.access import Machine

_NETWORK = re.compile(
    r"nfs4?|lustre|gpfs|beegfs(_.*)?|ceph|cifs|smb3|smbfs|9p|virtiofs|afs|wekafs|panfs|pvfs2|glusterfs|ocfs2|gfs2"
    r"|fuse\.(?!fuse-overlayfs|fuseblk|lxcfs|squashfuse).*"
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def mounts(machine: Machine) -> list[Mount] | Unread:
    """All mounts of this process, in the order of the kernel."""
    text = machine.read("/proc/self/mountinfo")
    if isinstance(text, Unread):
        return text
    mounted = [mount for line in text.splitlines() if (mount := _parse(line))]
    return mounted or Unread("broken", "/proc/self/mountinfo holds no mount")


def under(mounted: list[Mount] | Unread, path: str) -> Mount | Unread:
    """The mount that holds a path: the one with the longest mount point, the last of several."""
    if isinstance(mounted, Unread):
        return mounted
    above = [mount for mount in mounted if _holds(mount.point, path)]
    longest = max((len(mount.point) for mount in above), default=0)
    last = [mount for mount in above if len(mount.point) == longest]
    return last[-1] if last else Unread("absent", f"no mount holds {path}")


def _holds(point: str, path: str) -> bool:
    return point in ("/", path) or path.startswith(point.rstrip("/") + "/")


def _parse(line: str) -> Mount | None:
    """`36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=continue`."""
    before, dash, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not dash or len(left) < 6 or len(right) < 2 or not left[4].startswith("/"):
        return None
    options = dict.fromkeys([*left[5].split(","), *(right[2].split(",") if len(right) > 2 else [])])
    kind = right[0]
    return Mount(
        point=posixpath.normpath(_plain(left[4])),
        kind=kind,
        source=_plain(right[1]),
        options=list(options),
        network=bool(_NETWORK.fullmatch(kind)),
    )


def _plain(text: str) -> str:
    """Blanks stand there as \\040."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)

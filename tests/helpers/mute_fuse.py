"""A FUSE file system that begins and then answers nothing: `mute_fuse.py FOLDER`, as root; it ends with its stdin.

As a parallel file system whose server hangs: who opens a file there waits. Its messages are those of Linux,
include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_INIT = 26


def main() -> None:
    """Mount, say "ready", answer the kernel's first message, and no other."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"mute", sys.argv[1].encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    request = os.read(device, 2**17)
    _, operation, unique = struct.unpack_from("=IIQ", request)
    if operation != _INIT:
        raise ValueError(f"the kernel begins with {operation}")
    major, minor, ahead = struct.unpack_from("=III", request, 40)
    body = struct.pack("=IIIIHHIIHH32x", major, min(minor, 31), ahead, 0, 16, 12, 2**16, 1, 16, 0)
    os.write(device, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""Credentials of munge (munge(1), unmunge(1)): in a Slurm cluster every node can make and open them.

A credential that is restricted to our own user id can be opened by our own processes only, on any node that has
the cluster's key, and it tells by whose process it was made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache

_SECONDS = 3.0  # s for munge or unmunge; chosen
_CREDENTIAL = re.compile(r"MUNGE:[A-Za-z0-9+/=:]{1,8192}")
_UID = re.compile(rb"^UID:.*\((\d+)\)$", re.MULTILINE)


@cache
def works() -> bool:
    """Whether munge is here and its daemon makes credentials."""
    try:
        return bool(encode(b"ncclcheck"))
    except OSError:
        return False


def encode(payload: bytes) -> str:
    """A credential that only processes of our own user id can open. Raises OSError."""
    output = _run("munge", f"--restrict-uid={os.geteuid()}", given=payload.hex().encode())
    credential = output.decode(errors="replace").strip()
    if not _CREDENTIAL.fullmatch(credential):
        raise OSError("munge made no credential")
    return credential


def decode(credential: str) -> bytes:
    """What one of our own processes, on any node, put into a credential. Raises OSError, ValueError."""
    if not _CREDENTIAL.fullmatch(credential):
        raise ValueError("not a credential of munge")
    output = _run("unmunge", given=credential.encode())
    head, _, payload = output.partition(b"\n\n")
    match = _UID.search(head)
    if match is None or int(match[1]) != os.geteuid():
        raise ValueError("a credential of another user")
    return bytes.fromhex(payload.decode("ascii").strip())


def _run(program: str, *options: str, given: bytes) -> bytes:
    """What the program prints; the secret goes by its stdin, for command lines can be read by everybody."""
    from ncclcheck.probes.machine import process  # noqa: PLC0415 - every command would load psutil

    path = shutil.which(program)
    if path is None:
        raise FileNotFoundError(2, "No such file or directory", program)
    child = process.start([path, *options], control=True, err=subprocess.DEVNULL)
    try:
        output, _ = child.communicate(given, _SECONDS)
    except subprocess.TimeoutExpired:
        process.kill_tree(child.pid)
        raise TimeoutError(110, f"{program} did not answer in {_SECONDS:g} s") from None
    if child.returncode:
        raise OSError(f"{program} ended with {child.returncode}")
    return output

"""What the lab needs of the machine, and the skip that says what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from typing import NoReturn

import pytest

PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
    "munged": "munge",
    "srun": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "slurmctld": "slurm-wlm",
    "gcc": "gcc",
    "sshfs": "sshfs",
}

_TRY = """
ip netns add "$1"
trap 'ip netns delete "$1"' EXIT
nsenter --net="/run/netns/$1" unshare --mount --uts mount -t sysfs sysfs /sys
"""


def command(name: str) -> str | None:
    """The full path of a program, also of one that only root has on the PATH."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def need(*commands: str) -> None:
    """Skip the running test unless this machine can be a lab and has these programs."""
    absent = sorted({PACKAGES[name] for name in ("ip", "nsenter", *commands) if not command(name)})
    if absent:
        _refuse(f"the lab needs Debian's {' '.join(absent)}")
    if os.geteuid() != 0:
        _refuse("the lab needs root")
    if why := _no_namespaces():
        _refuse(f"the lab needs network namespaces: {why}")


def _refuse(why: str) -> NoReturn:
    """Skip; where the gate has set LAB_REQUIRED, fail: a gate that skips its proof proves nothing."""
    if os.environ.get("LAB_REQUIRED"):
        pytest.fail(f"LAB_REQUIRED is set, but {why}", pytrace=False)
    pytest.skip(why)


@lru_cache(maxsize=1)
def _no_namespaces() -> str:
    """Why no namespace can be made here; empty where it can."""
    done = subprocess.run(
        ["sh", "-euc", _TRY, "sh", f"nclabtry-{os.getpid()}"],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    return done.stderr.strip() if done.returncode else ""

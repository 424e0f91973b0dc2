"""The channels of IMEX, through which GPUs of several machines share memory over NVLink.

Recorded name: `imex`, a list of the channels and of how opening each one went.
"""

from __future__ import annotations

import os

from ncclcheck.probes.facts import DeviceFile, Unread
from ncclcheck.probes.machine.access import Machine

FOLDER = "/dev/nvidia-caps-imex-channels"
_MOST = 16  # a job has one; the driver can make 2048 of them


def channels(machine: Machine) -> list[DeviceFile] | Unread:
    """The first of them, and whether this process can open each one; none at all is an empty list."""
    return machine.ask("imex", list[DeviceFile], lambda: _channels(machine))


def _channels(machine: Machine) -> list[DeviceFile] | Unread:
    names = machine.names(FOLDER)
    if isinstance(names, Unread):
        return [] if names.kind == "absent" else names
    return [_try(machine.path(f"{FOLDER}/{name}"), name) for name in names[:_MOST]]


def _try(path: str, name: str) -> DeviceFile:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return DeviceFile(name=name, error=error.strerror or str(error))
    return DeviceFile(name=name)

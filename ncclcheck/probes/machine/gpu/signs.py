"""Signs of NVIDIA GPUs that need no driver: PCI functions, device files, a driver library."""

from __future__ import annotations

import os
import re

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine.access import Machine

LIBRARY = "libcuda.so.1"
_PCI = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers; an NVSwitch is a bridge, 0x0680
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/run/opengl-driver/lib",
)


def pci_functions(machine: Machine) -> list[str] | Unread:
    """PCI addresses of NVIDIA's display and 3D controllers."""
    names = machine.names(_PCI)
    return names if isinstance(names, Unread) else [name for name in names if _is_gpu(machine, f"{_PCI}/{name}")]


def _is_gpu(machine: Machine, folder: str) -> bool:
    if machine.line(f"{folder}/vendor") != _NVIDIA:
        return False
    kind = machine.line(f"{folder}/class")
    return isinstance(kind, str) and kind.startswith(_DISPLAY)


def device_files(machine: Machine) -> list[str] | Unread:
    """Names of /dev/nvidiaN."""
    names = machine.names("/dev")
    if isinstance(names, Unread):
        return names
    return sorted(
        (name for name in names if re.fullmatch(r"nvidia\d+", name, re.ASCII)), key=lambda n: (len(n), n)
    )


def shows(fact: list[str] | Unread) -> bool:
    """Whether there is a GPU, or may be one that could not be seen."""
    return fact.kind != "absent" if isinstance(fact, Unread) else bool(fact)


def library_found(machine: Machine) -> bool:
    """Whether libcuda stands where loaders look for it."""
    folders = [*_FOLDERS, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return any(machine.exists(f"{folder}/{LIBRARY}") for folder in folders if folder.startswith("/"))


def numa_node(machine: Machine, pci: str) -> int | Unread:
    """The NUMA node of a PCI function; -1 in sysfs means that the machine does not say."""
    node = machine.number(f"{_PCI}/{pci}/numa_node")
    return Unread("absent", f"{_PCI}/{pci}/numa_node says -1: none") if node == -1 else node

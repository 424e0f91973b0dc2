"""Signs of NVIDIA GPUs, and what CUDA's driver library says of them.

Recorded name: `cuda`, a JSON Cuda. The library is asked in a child process with a time limit: a sick driver
can hang or crash whoever calls it.
"""

from __future__ import annotations

import os
import re
import sys

import msgspec
from msgspec import Struct

from ncclcheck.probes.facts import Gpus, Unread
from ncclcheck.probes.machine import Machine

_PCI = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers; an NVSwitch is a bridge, 0x0680
_LONGEST_ANSWER = 10.0
_LIBRARY = "libcuda.so.1"
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
_ASK = f"""
import ctypes, json, sys
try:
    cuda = ctypes.CDLL("{_LIBRARY}")
except OSError as error:
    print(json.dumps({{"missing": str(error)}}))
    sys.exit()
number, count, name = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_char_p()
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
if code:
    cuda.cuGetErrorName(code, ctypes.byref(name))
cuda.cuDriverGetVersion(ctypes.byref(number))
error = (name.value or b"unknown error").decode(errors="replace") + f" ({{code}})" if code else ""
print(json.dumps({{"error": error, "devices": count.value, "driver": number.value}}))
"""


class Cuda(Struct, frozen=True, kw_only=True):
    """The library's answers. missing: why it could not be loaded. driver: 12080 is CUDA 12.8."""

    missing: str = ""
    error: str = ""
    devices: int = 0
    driver: int = 0


def probe(machine: Machine) -> Gpus:
    """PCI functions, device files, and how many GPUs CUDA would give to this process."""
    pci, devices = _pci(machine), _devices(machine)
    if machine.recorded and isinstance(pci, Unread) and isinstance(devices, Unread):
        unseen = Unread("recorded", "neither PCI devices nor /dev are in this recording")
        return Gpus(pci=unseen, devices=unseen, usable=unseen, cuda_error=unseen, driver_cuda=unseen)
    if not _shows(pci) and not _shows(devices) and not _library_found(machine):
        none = Unread("absent", "no NVIDIA device on this machine")
        return Gpus(pci=none, devices=none, usable=none, cuda_error=none, driver_cuda=none)
    cuda = machine.ask("cuda", Cuda, lambda: _ask(machine))
    if isinstance(cuda, Cuda) and cuda.missing:
        cuda = Unread("no_tool", f"{_LIBRARY} cannot be loaded: {cuda.missing}")
    if isinstance(cuda, Unread):
        return Gpus(pci=pci, devices=devices, usable=cuda, cuda_error=cuda, driver_cuda=cuda)
    version = f"{cuda.driver // 1000}.{cuda.driver % 1000 // 10}"
    return Gpus(
        pci=pci,
        devices=devices,
        usable=cuda.devices,
        cuda_error=cuda.error,
        driver_cuda=version if cuda.driver > 0 else Unread("broken", "cuDriverGetVersion gave no version"),
    )


def _shows(fact: list[str] | Unread) -> bool:
    """Whether there is a GPU, or may be one that could not be seen."""
    return fact.kind != "absent" if isinstance(fact, Unread) else bool(fact)


def _pci(machine: Machine) -> list[str] | Unread:
    names = machine.names(_PCI)
    return names if isinstance(names, Unread) else [name for name in names if _is_gpu(machine, f"{_PCI}/{name}")]


def _is_gpu(machine: Machine, folder: str) -> bool:
    if machine.line(f"{folder}/vendor") != _NVIDIA:
        return False
    kind = machine.line(f"{folder}/class")
    return isinstance(kind, str) and kind.startswith(_DISPLAY)


def _devices(machine: Machine) -> list[str] | Unread:
    names = machine.names("/dev")
    if isinstance(names, Unread):
        return names
    return sorted(
        (name for name in names if re.fullmatch(r"nvidia\d+", name, re.ASCII)), key=lambda n: (len(n), n)
    )


def _library_found(machine: Machine) -> bool:
    folders = [*_FOLDERS, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return any(machine.exists(f"{folder}/{_LIBRARY}") for folder in folders if folder.startswith("/"))


def _ask(machine: Machine) -> Cuda | Unread:
    answer = machine.run([sys.executable, "-I", "-S", "-c", _ASK], _LONGEST_ANSWER)
    if isinstance(answer, Unread):
        return answer
    try:
        return msgspec.json.decode(answer.out, type=Cuda)
    except msgspec.MsgspecError:
        return Unread(
            "broken", f"asking {_LIBRARY} ended with status {answer.status}: {answer.err[-200:].strip()}"
        )

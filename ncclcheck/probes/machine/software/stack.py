"""Versions of Python, torch and the driver, read from files: torch is never imported for them."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from contextlib import suppress

import ncclcheck
from ncclcheck.probes.facts import Hiding, Stack, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import modules, starting

_NUMPY = re.compile(r"numpy-(\d[\w.!+]{0,62}?)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_ALWAYS_LOADED = (
    *("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so"),
    *("libc10.so", "libc10_cuda.so"),
)
_VERSION = re.compile(r"^__version__\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]+)['\"]", re.MULTILINE)
_CUDA = re.compile(r"^cuda\s*(?::[^=\n]*)?=\s*(?:['\"]([^'\"\n]+)['\"]|None)", re.MULTILINE)
_DRIVER = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s")


def probe(machine: Machine) -> Stack:
    """Read what is installed."""
    folder = torch_folder(machine)
    version_file = folder if isinstance(folder, Unread) else machine.read(f"{folder}/version.py")
    return Stack(
        python=machine.ask("python", str, platform.python_version),
        executable=machine.ask("executable", str, lambda: sys.executable),
        ncclcheck=ncclcheck.__version__,
        torch=_torch(version_file),
        torch_path=folder,
        torch_cuda=_cuda(version_file),
        torch_libraries=machine.ask("torch_libraries", int, lambda: _libraries(folder)),
        driver=_driver(machine),
        numpy=machine.ask("numpy", str, _numpy),
        preloaded=_preloaded(machine),
        not_there=machine.ask("not_there", list[str], _not_there),
        customised=machine.ask("customised", list[str], modules.customised),
        hiding=machine.ask("hiding", list[Hiding], modules.hiding),
        python_start_s=starting.waited(machine),
    )


def _numpy() -> str | Unread:
    """By the name of its metadata: 0.3 ms; importlib.metadata took 80 ms the first time, at a load of 5."""
    spec = importlib.util.find_spec("numpy")
    if spec is None or not spec.origin:
        return Unread("absent", "numpy is not installed in this Python")
    folder = os.path.dirname(os.path.dirname(spec.origin))
    versions: list[str] = []
    with suppress(OSError):  # it is within a zip file
        versions = [named[1] for name in os.listdir(folder) if (named := _NUMPY.fullmatch(name))]
    return versions[0] if len(versions) == 1 else Unread("no_tool", f"no single metadata of numpy in {folder}")


def _preloaded(machine: Machine) -> str | Unread:
    """ld.so(8): a list with blanks or colons between its entries, for every process of the machine."""
    text = machine.read("/etc/ld.so.preload")
    return text if isinstance(text, Unread) else " ".join(text.replace(":", " ").split())


def _not_there() -> list[str]:
    """Paths alone: the loader looks for a name without a slash in many places."""
    named = re.split("[ :]+", os.environ.get("LD_PRELOAD", "")) + os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return sorted(
        {path for path in named if path.startswith("/") and "$" not in path and not os.path.exists(path)}
    )


def torch_folder(machine: Machine) -> str | Unread:
    """The directory of the torch that `import torch` would load here."""
    return machine.ask("torch_path", str, _find_torch)


def _find_torch() -> str | Unread:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return Unread("absent", "torch is not installed in this Python")
    return os.path.dirname(spec.origin)


def _libraries(folder: str | Unread) -> int | Unread:
    """What `import torch` maps whatever it is used for; CUDA's own libraries may be loaded later, or never."""
    if isinstance(folder, Unread):
        return folder
    paths = [f"{folder}/lib/{name}" for name in _ALWAYS_LOADED]
    return sum(os.path.getsize(path) for path in paths if os.path.exists(path))


def _torch(version_file: str | Unread) -> str | Unread:
    if isinstance(version_file, Unread):
        return version_file
    match = _VERSION.search(version_file)
    return match[1] if match else Unread("broken", "torch/version.py names no __version__")


def _cuda(version_file: str | Unread) -> str | Unread:
    if isinstance(version_file, Unread):
        return version_file
    match = _CUDA.search(version_file)
    if match is None:
        return Unread("broken", "torch/version.py does not say for which CUDA torch was built")
    return match[1] or Unread("absent", "torch was built without CUDA")


def _driver(machine: Machine) -> str | Unread:
    text = machine.read("/proc/driver/nvidia/version")
    if isinstance(text, Unread):
        return Unread("absent", "the NVIDIA driver is not loaded") if text.kind == "absent" else text
    match = _DRIVER.search(text)
    return match[1] if match else Unread("broken", "/proc/driver/nvidia/version names no driver version")

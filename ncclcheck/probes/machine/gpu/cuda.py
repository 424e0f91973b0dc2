"""What CUDA's driver library would give to this process; asked in a child, for a sick driver can hang or crash.

Recorded name: `cuda`, a JSON Cuda.
"""

from __future__ import annotations

import sys

import msgspec
from msgspec import Struct

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.gpu.signs import LIBRARY

# in its child: chosen, without persistence mode the driver first wakes all GPUs, which takes seconds
LONGEST_ANSWER_S = 10.0
_ASK = f"""
import ctypes, json, sys
try:
    cuda = ctypes.CDLL("{LIBRARY}")
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

    @property
    def version(self) -> str | Unread:
        """The CUDA version that the driver is for."""
        if self.driver <= 0:
            return Unread("broken", "cuDriverGetVersion gave no version")
        return f"{self.driver // 1000}.{self.driver % 1000 // 10}"


def ask_cuda(machine: Machine) -> Cuda | Unread:
    """Ask, and tell a library that is not there from one that does not answer."""
    cuda = machine.ask("cuda", Cuda, lambda: _ask(machine))
    if isinstance(cuda, Cuda) and cuda.missing:
        return Unread("no_tool", f"{LIBRARY} cannot be loaded: {cuda.missing}")
    return cuda


def _ask(machine: Machine) -> Cuda | Unread:
    answer = machine.run([sys.executable, "-I", "-S", "-c", _ASK], LONGEST_ANSWER_S)
    if isinstance(answer, Unread):
        return answer
    try:
        return msgspec.json.decode(answer.out, type=Cuda)
    except msgspec.MsgspecError:
        return Unread("broken", f"asking {LIBRARY} ended with status {answer.status}: {answer.err[-200:].strip()}")

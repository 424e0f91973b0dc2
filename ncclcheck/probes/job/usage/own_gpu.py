"""What this very process holds on GPUs, asked without making a context on any of them.

libcuda knows on which visible devices the process has a context; NVML how many bytes that costs, where it sees
the process under the same pid. torch's own questions (mem_get_info, memory_stats) can open a context on the
device they ask for (Lightning-AI/pytorch-lightning#18845), so other devices are never asked through torch.
"""

from __future__ import annotations

import ctypes
import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ncclcheck.probes.facts import Elsewhere
from ncclcheck.probes.machine.gpu.signs import LIBRARY

_LONGEST_ANSWER_S = 3.0  # healthy drivers answer within milliseconds; a rank must not be held up: chosen
T = TypeVar("T")


class OwnGpus:
    """This process on the GPUs that it may see. A library that hangs is asked once and then no more."""

    def __init__(self) -> None:
        self._cuda: Any = None
        self._nvml: Any = None
        self._hangs = False
        with suppress(OSError):
            self._cuda = ctypes.CDLL(LIBRARY)

    def elsewhere(self, own: int) -> list[Elsewhere] | None:
        """Contexts on devices that are not the rank's own; None where libcuda does not say."""
        devices = self._limited(self._contexts)
        if devices is None:
            return None
        return [Elsewhere(device=f"cuda:{n}", bytes=self.used(n)) for n in devices if n != own]

    def used(self, device: int) -> int | None:
        """Bytes of this process on a device, by NVML; None where NVML does not say."""
        return self._limited(lambda: self._bytes(device))

    def total(self, device: int) -> int | None:
        """Bytes that a device has; of a MIG slice its own."""
        return self._limited(lambda: self._total(device))

    def _limited(self, ask: Callable[[], T]) -> T | None:
        """The answer, in a thread: a sick driver must not keep the rank."""
        answers: list[T] = []

        def run() -> None:
            with suppress(Exception):  # whatever the libraries raise, it is only not known
                answers.append(ask())

        if self._hangs or self._cuda is None:
            return None
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(_LONGEST_ANSWER_S)
        self._hangs = thread.is_alive()
        return answers[0] if answers else None

    def _contexts(self) -> list[int] | None:
        """The visible devices on which this process has a context."""
        count = ctypes.c_int(0)
        if self._cuda.cuInit(0) or self._cuda.cuDeviceGetCount(ctypes.byref(count)):
            return None
        return [device for device in range(count.value) if self._active(device)]

    def _active(self, device: int) -> bool:
        flags, active = ctypes.c_uint(0), ctypes.c_int(0)
        code = self._cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        return not code and active.value != 0

    def _total(self, device: int) -> int | None:
        total = ctypes.c_size_t(0)
        return None if self._cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) else total.value

    def _bytes(self, device: int) -> int | None:
        nvml = self._library()
        handle = nvml.nvmlDeviceGetHandleByUUID(self._uuid(device))
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        sizes: list[int | None] = [p.usedGpuMemory for p in running if p.pid == os.getpid()]
        known = [count for count in sizes if count is not None]
        return sum(known) if sizes and len(known) == len(sizes) else None

    def _library(self) -> Any:
        if self._nvml is None:
            import pynvml  # noqa: PLC0415 - ranks on CPUs need none of it

            pynvml.nvmlInit()
            self._nvml = pynvml
        return self._nvml

    def _uuid(self, device: int) -> str:
        raw = (ctypes.c_ubyte * 16)()
        self._cuda.cuDeviceGetUuid(ctypes.byref(raw), device)
        return f"GPU-{uuid.UUID(bytes=bytes(raw))}"

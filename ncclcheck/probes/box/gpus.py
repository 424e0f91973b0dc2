"""The GPUs of a node while a job runs, by NVML in a child that may hang with its driver: JSON once a second."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from ncclcheck.probes.live.machine.gpus import LiveNvml

_EVERY_S = 1.0  # NVML's utilisation is an average over up to a second (nvml.h): more often tells nothing new
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9  # Source: linux/prctl.h, signal(7)
_TEMPERATURE_OF_GPU = 0  # NVML_TEMPERATURE_GPU. Source: nvml.h
_MOST_PENDING = 2**20  # bytes of a line that has not come to its end
Raw = dict[str, Any]


class GpuWatch:
    """What the child said since it was last asked; nothing where there is no NVML."""

    def __init__(self) -> None:
        self._pending = b""
        self._child: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            ctypes.CDLL("libnvidia-ml.so.1")  # loaded only: what begins it may hang
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert self._child.stdout is not None
            os.set_blocking(self._child.stdout.fileno(), False)

    def new(self) -> list[Raw]:
        """Its lines, without waiting."""
        if self._child is None or self._child.stdout is None:
            return []
        with suppress(OSError):
            self._pending += os.read(self._child.stdout.fileno(), _MOST_PENDING)
        *lines, self._pending = self._pending.split(b"\n")
        self._pending = self._pending[:_MOST_PENDING]
        samples = []
        for line in lines:
            with suppress(ValueError):
                samples.append(json.loads(line))
        return samples

    def end(self) -> None:
        """The child is not waited for: its driver may hold it."""
        if self._child is not None:
            self._child.kill()


def _sample(nvml: LiveNvml, gpu: ctypes.c_void_p | None) -> list[int | None]:
    """Busy percent, milliwatts, MHz, degrees, why the clock is not the highest: as NVML has its bits."""
    if gpu is None:
        return []
    sample = nvml.sample(gpu)
    reasons = ctypes.c_ulonglong()
    asked = next(
        (
            call
            for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
            if (call := getattr(nvml.library, name, None)) is not None
        ),
        None,
    )
    why = reasons.value if asked is not None and asked(gpu, ctypes.byref(reasons)) == 0 else None
    degrees = nvml.number("nvmlDeviceGetTemperature", gpu, _TEMPERATURE_OF_GPU)
    return [sample["busy"], sample["power_mw"], sample["clock_mhz"], degrees, why]


def main() -> None:
    """Until the watcher is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    try:
        nvml = LiveNvml()
    except (OSError, AttributeError):
        return
    events = nvml.watch()
    while True:
        sample: Raw = {"gpus": [_sample(nvml, gpu) for gpu in nvml.handles], "xids": nvml.xids(events)}
        sample["pids"] = [nvml.pids(gpu) if gpu else [] for gpu in nvml.handles]
        print(json.dumps(sample), flush=True)
        time.sleep(_EVERY_S)


if __name__ == "__main__":
    main()

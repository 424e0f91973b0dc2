"""What a rank holds in memory while the job runs: before and after init, at the peak, and how it grows."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from ncclcheck.probes.facts import Elsewhere, RankMemory, replace
from ncclcheck.probes.job.usage.own_gpu import OwnGpus

if TYPE_CHECKING:
    import torch

Moment = Literal["before_init", "after_init", "before_wrap", "after_wrap", "end"]


class MemoryWatch:
    """The memory of this rank. Made before torch's process group; `report` at the end says what was seen."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._gpus = OwnGpus() if device.type == "cuda" else None
        self._seen = RankMemory(rank=0, node="", device=str(device), by="rss")
        self._most = 0
        self._earlier = 0  # the peak before the counter was set back
        self._strays: dict[str, Moment] = {}

    def mark(self, moment: Moment) -> None:
        """Note what the process and its GPU hold at this moment."""
        used = self._held()
        self._most = max(self._most, used or 0)
        self._seen = replace(self._seen, **{moment: used})
        for stray in self._elsewhere() or ():
            self._strays.setdefault(stray.device, moment)

    def begin_steps(self) -> None:
        """Begin to count the peak of the steps, in bytes."""
        self._earlier = max(self._earlier, self._peak())
        if self._gpus is None:
            with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
                file.write("5")  # proc(5): VmHWM begins anew
        elif (cuda := _cuda()) is not None:
            cuda.reset_peak_memory_stats(self._device)

    def end_steps(self) -> None:
        """Up to here. On GPUs this is what torch has reserved; the rest does not change from step to step."""
        self._seen = replace(self._seen, in_steps=self._peak())

    def now(self) -> int:
        """Bytes in use now: on the host, and by torch's own count on its GPU. Cheap enough for every row."""
        _give_back()
        cuda = None if self._gpus is None else _cuda()
        allocated = 0 if cuda is None else int(cuda.memory_allocated(self._device))
        return (_status("VmRSS") or 0) + allocated

    def grew(self, before: int, iterations: int) -> None:
        """So many iterations alike were run since `now` gave `before`."""
        self.count(self.now() - before, iterations)

    def count(self, grown: int, iterations: int) -> None:
        """So many iterations made it grow by so many bytes."""
        seen = self._seen
        self._seen = replace(seen, grown=seen.grown + grown, iterations=seen.iterations + iterations)

    def report(self, rank: int, node: str) -> RankMemory:
        """Bytes that this rank held at each moment, its peaks, and its growth per iteration."""
        self.mark("end")
        mine = replace(self._seen, rank=rank, node=node)
        peak = max(self._earlier, self._peak())
        return replace(mine, peak=peak or None) if self._gpus is None else self._of_gpu(mine, self._gpus, peak)

    def _held(self) -> int | None:
        return _status("VmRSS") if self._gpus is None else self._gpus.used(self._device.index or 0)

    def _elsewhere(self) -> list[Elsewhere] | None:
        return None if self._gpus is None else self._gpus.elsewhere(self._device.index or 0)

    def _peak(self) -> int:
        """Bytes of the peak since the counter was last set back."""
        return (_status("VmHWM") or 0) if self._gpus is None else _reserved(self._device, "peak")

    def _of_gpu(self, mine: RankMemory, gpus: OwnGpus, peak: int) -> RankMemory:
        """The rank has a context by now, so torch may be asked for its own device."""
        reserved = _reserved(self._device, "current")
        if mine.end is None:
            mine = replace(mine, by="allocator", end=reserved, peak=peak)
        else:  # NVML counts the context and NCCL's buffers too, which are there at the allocator's peak as well
            mine = replace(mine, by="nvml", peak=max(self._most, mine.end - reserved + peak))
        strays = self._elsewhere()
        return replace(
            mine,
            total=gpus.total(self._device.index or 0),
            retries=_stat(self._device, "num_alloc_retries"),
            elsewhere=strays and [replace(stray, since=self._strays.get(stray.device, "end")) for stray in strays],
        )


def _cuda() -> Any:
    """torch.cuda where it is in use: asking it otherwise could make a context."""
    import torch  # noqa: PLC0415

    cuda: Any = torch.cuda
    return cuda if cuda.is_initialized() else None


def _stat(device: torch.device, name: str) -> int:
    cuda = _cuda()
    return 0 if cuda is None else int(cuda.memory_stats(device).get(name, 0))


def _reserved(device: torch.device, which: str) -> int:
    return _stat(device, f"reserved_bytes.all.{which}")


def _give_back() -> None:
    """What the C library keeps of freed buffers goes up and down, which would hide a leak or look like one."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)


def _status(name: str) -> int | None:
    """Bytes from /proc/self/status."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        match = re.search(rf"^{name}:\s+(\d+) kB", file.read(), re.MULTILINE)
    return int(match[1]) * 1024 if match else None

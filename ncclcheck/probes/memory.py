"""What a rank holds in memory while the job runs: before and after init, at the peak, and how it grows."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Literal

from ncclcheck.probes.facts import RankMemory, replace
from ncclcheck.probes.own_gpu import OwnGpus

if TYPE_CHECKING:
    import torch

Moment = Literal["before_init", "after_init", "end"]


class Watch:
    """The memory of this rank. Made before torch's process group; `report` at the end says what was seen."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._gpus = OwnGpus() if device.type == "cuda" else None
        self._seen = RankMemory(rank=0, node="", device=str(device), by="rss")
        self._most = 0

    def mark(self, moment: Moment) -> None:
        """Look now."""
        held = self._held()
        self._most = max(self._most, held or 0)
        self._seen = replace(self._seen, **{moment: held})

    def now(self) -> int:
        """Bytes in use now: on the host, and by torch's own count on its GPU. Cheap enough for every row."""
        import torch  # noqa: PLC0415

        _give_back()
        allocated = 0 if self._gpus is None else int(torch.cuda.memory_allocated(self._device))
        return (_status("VmRSS") or 0) + allocated

    def grew(self, before: int, iterations: int) -> None:
        """So many iterations alike were run since `now` gave `before`."""
        self.count(self.now() - before, iterations)

    def count(self, grown: int, iterations: int) -> None:
        """So many iterations made it grow by so many bytes."""
        seen = self._seen
        self._seen = replace(seen, grown=seen.grown + grown, iterations=seen.iterations + iterations)

    def report(self, rank: int, node: str) -> RankMemory:
        """All that was seen of this rank."""
        self.mark("end")
        mine = replace(self._seen, rank=rank, node=node)
        return replace(mine, peak=_status("VmHWM")) if self._gpus is None else self._of_gpu(mine, self._gpus)

    def _held(self) -> int | None:
        return _status("VmRSS") if self._gpus is None else self._gpus.held(self._device.index or 0)

    def _of_gpu(self, mine: RankMemory, gpus: OwnGpus) -> RankMemory:
        """The rank has a context by now, so torch may be asked for its own device."""
        import torch  # noqa: PLC0415

        stats = torch.cuda.memory_stats(self._device)
        reserved, peak = (int(stats.get(f"reserved_bytes.all.{name}", 0)) for name in ("current", "peak"))
        if mine.end is None:
            mine = replace(mine, by="allocator", end=reserved, peak=peak)
        else:  # NVML counts the context and NCCL's buffers too, which are there at the allocator's peak as well
            mine = replace(mine, by="nvml", peak=max(self._most, mine.end - reserved + peak))
        return replace(
            mine,
            total=int(torch.cuda.get_device_properties(self._device).total_memory),
            retries=int(stats.get("num_alloc_retries", 0)),
            elsewhere=gpus.elsewhere(self._device.index or 0),
        )


def _give_back() -> None:
    """What the C library keeps of freed buffers goes up and down, which would hide a leak or look like one."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)


def _status(name: str) -> int | None:
    """Bytes from /proc/self/status."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        found = re.search(rf"^{name}:\s+(\d+) kB", file.read(), re.MULTILINE)
    return int(found[1]) * 1024 if found else None

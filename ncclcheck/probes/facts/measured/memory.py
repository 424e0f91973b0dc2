"""What memory the ranks of the job held, and where."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Count, Whole


class Elsewhere(Struct, frozen=True, kw_only=True):
    """A context that a rank has on a GPU which is not its own. bytes: null where NVML may not tell.

    since: the first look that found it; empty in older files.
    """

    device: str
    bytes: Whole | None = None
    since: Literal["", "before_init", "after_init", "before_wrap", "after_wrap", "end"] = ""


class RankMemory(Struct, frozen=True, kw_only=True):
    """Whole that one rank held; null where nobody could tell.

    by: rss, the resident memory of a rank on CPUs (/proc/self/status); nvml, what NVML counts for the process on
    the rank's own GPU, context and NCCL's buffers included; allocator, what torch alone has reserved there, where
    NVML does not know the process (another pid namespace). total: of the rank's GPU.
    before_wrap, after_wrap: around the wrap of the model that is trained; in_steps: the peak over its steps.
    grown: how much more was held after `iterations` alike than before them. retries: times that the allocator
    had to give back its cache before memory was found (torch.cuda.memory_stats, num_alloc_retries).
    elsewhere: null where libcuda gave no answer.
    """

    rank: Count
    node: str
    device: str
    by: Literal["rss", "nvml", "allocator"]
    before_init: Whole | None = None
    after_init: Whole | None = None
    before_wrap: Whole | None = None
    after_wrap: Whole | None = None
    in_steps: Whole | None = None
    peak: Whole | None = None
    end: Whole | None = None
    total: Whole | None = None
    grown: int = 0
    iterations: Whole = 0
    retries: Whole = 0
    elsewhere: list[Elsewhere] | None = None


class JobMemory(Struct, frozen=True, kw_only=True):
    """The memory of all ranks."""

    ranks: list[RankMemory] = field(default_factory=list)

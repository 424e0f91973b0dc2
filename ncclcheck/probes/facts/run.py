"""What happened while the tool ran."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.bounds import Count, Pid


class RankState(Struct, frozen=True, kw_only=True):
    """The last that was seen of one rank.

    proc_state: the letter of /proc/PID/stat, or "gone". exit: the exit status, negative for a signal.
    phase: start (no world yet), world (joined), done (all parts finished). ticks: iterations that were begun since
    the last step; ranks in the same collective have begun as many.
    """

    rank: Count
    node: str
    local_rank: Count = 0
    pid: Pid | None = None
    phase: Literal["start", "world", "done"] = "start"
    last_step: str = ""
    since_s: float = 0.0
    ticks: int = 0
    proc_state: str = ""
    exit: int | None = None
    error: str = ""
    first: bool = False


class Silence(Struct, frozen=True, kw_only=True):
    """A node that did not answer: what it did last, and what its process said."""

    node: str
    last_step: str
    since_s: float
    detail: str = ""


class JobEnd(Struct, frozen=True, kw_only=True):
    """How the torchrun of one node ended. detail: the last lines that it printed."""

    node: str
    exit: int | None
    detail: str = ""


class Leftover(Struct, frozen=True, kw_only=True):
    """A process that SIGKILL did not end: state D, which only the device behind `wchan` can end."""

    node: str
    pid: int
    state: str
    wchan: str
    devices: str = ""
    command: str


class Run(Struct, frozen=True, kw_only=True):
    """What happened while the tool ran."""

    ranks: list[RankState] = field(default_factory=list)
    silent: list[Silence] = field(default_factory=list)
    ends: list[JobEnd] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)
    started_job: bool = False
    stopped_by: Literal[
        "", "deadline", "signal", "dead rank", "stopped rank", "silent node", "early end", "refused"
    ] = ""

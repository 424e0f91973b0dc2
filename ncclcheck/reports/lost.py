"""Ranks that keep all others waiting: stopped, dead, or behind in a step that all go through together."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ncclcheck.probes.facts import JobEnd, RankState, Run

STUCK_S = 5.0
MOST_TOLD = 16
# Steps in which all ranks begin the same iterations together: a row of the table, and the soak.
_TOGETHER = re.compile(r"barrier|\w+ [0-9.]+ ([KMG]i)?B|soak, .*")
# Of torch's stores and rendezvous, and of the kernel: the other side did not come, or is gone.
_IN_VAIN = re.compile(
    r"time[d-]? ?out|Rendezvous(Timeout|Connection|Closed)Error|Broken pipe|No route to host"
    r"|[Cc]onnection (reset|closed|refused|was closed|timed out)|[Ff]ailed to (recv|send)",
)
_SIGNALS = {-9: "SIGKILL", -11: "SIGSEGV", -6: "SIGABRT", -7: "SIGBUS", -15: "SIGTERM"}


def late(run: Run) -> list[RankState]:
    """Ranks that did not finish, in the phase that comes first."""
    return [r for r in run.ranks if r.phase == "start"] or [r for r in run.ranks if r.phase == "world"]


def killed(run: Run) -> list[JobEnd]:
    """A torchrun that a signal ended takes its ranks along: it is to blame, not they."""
    return [end for end in run.ends if end.exit is not None and end.exit < 0]


def ending(end: JobEnd) -> str:
    """How a torchrun went that brought no world about."""
    if end.exit is not None and end.exit < 0:
        return f"torchrun itself was ended by {signal_name(end.exit)}, and its ranks with it"
    began = "the job could not start" if end.exit is None else "torchrun ended before its ranks had joined"
    return f"{began}: {last_line(end.detail)}"


def ended(ranks: Sequence[RankState]) -> list[RankState]:
    """Stopped ranks; else those that a signal ended (SIGTERM is torchrun's own)."""
    stopped = [rank for rank in ranks if rank.proc_state in ("T", "t")]
    signalled = [r for r in ranks if not r.error and r.exit is not None and r.exit < 0 and r.exit != -15]
    return (stopped or signalled)[:MOST_TOLD]


def by_defect(ranks: Sequence[RankState]) -> bool:
    """Whether a defect of ncclcheck ended the job: no rank that died without a word came before it."""
    return any(rank.defect for rank in ranks) and not any(rank.first and not rank.error for rank in ranks)


def gave_up(end: JobEnd) -> bool:
    """Its words say that it waited for others in vain, or that they left: whoever speaks so is not to blame."""
    return end.exit is not None and end.exit > 0 and bool(_IN_VAIN.search(last_line(end.detail)))


def behind(ranks: Sequence[RankState]) -> list[RankState]:
    """Ranks that live and have begun fewer iterations of the same step than most others, while nothing moves."""
    step = ranks[0].last_step if ranks else ""
    if any(rank.last_step != step or rank.since_s < STUCK_S for rank in ranks) or not _TOGETHER.fullmatch(step):
        return []
    most = max(rank.ticks for rank in ranks)
    found = [rank for rank in ranks if rank.ticks < most]
    return found if 2 * len(found) <= len(ranks) else []


def how(rank: RankState) -> str:
    """How a rank was lost."""
    who = f"pid {rank.pid}"
    if rank.proc_state in ("T", "t"):
        return f"{who} is stopped (state {rank.proc_state})"
    if rank.error:
        return f"{who} raised {last_line(rank.error)}"
    if rank.exit is not None and rank.exit < 0:
        return f"{who} was ended by {signal_name(rank.exit)}"
    return f"{who} is dead" + ("" if rank.exit is None else f", exit status {rank.exit}")


def lag(rank: RankState) -> str:
    """How a rank that lives keeps the others waiting."""
    return (
        f"pid {rank.pid} lives and has begun fewer iterations than the others, {where(rank)}: it did not come, or "
        "it still waits for data that the network lost"
    )


def where(rank: RankState) -> str:
    """What it was doing."""
    return f"before it had joined, in {rank.last_step!r}" if rank.phase == "start" else f"in {rank.last_step!r}"


def signal_name(status: int) -> str:
    """`SIGKILL` for an exit status of -9."""
    return _SIGNALS.get(status, f"signal {-status}")


def last_line(text: str) -> str:
    """What an exception ends with."""
    return text.strip().splitlines()[-1][:300] if text.strip() else "nothing"

"""Ranks that may wait for the other side of their first send or receive.

NCCL makes a communicator for the two first, which ends when both have come, and torch records the call after that:
the rank that waits there looks like one that stays away.
"""

from __future__ import annotations

from collections.abc import Iterable

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import Remedy, you
from ncclcheck.reports.text.words.fold import fold_ranks

WHY_PAIRING = (
    "NCCL makes a communicator for the two first; who waits there for its peer looks like one that stays away."
)
_OPS = ("send", "recv")


@derived
def pairing(logs: Logs) -> dict[int, LogEvent]:
    """Rank -> torch's warning of its first send or receive, where none is recorded and some rank never called one.

    Both sides warn once: where all have, each may have met its peer.
    """
    began = {
        event.rank: event for event in logs.events if event.sign == "first-pairing" and event.rank is not None
    }
    dumps = logs.flight.dumps if logs.flight else []
    met = {dump.rank for dump in dumps if any(call.op in _OPS for call in dump.calls)}
    if {*logs.ranks} <= began.keys():
        return {}
    return {rank: line for rank, line in began.items() if rank not in met}


def confirm_pairing(began: Iterable[LogEvent]) -> Remedy:
    """Look at both sides."""
    ranks = fold_ranks([event.rank for event in began if event.rank is not None])
    return you(
        f"Confirm: see whether {ranks} stands in send or recv, and whether its peer calls the other half of it.",
        "py-spy dump --pid PID",
    )

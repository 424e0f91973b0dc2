"""Ranks that were started so that they cannot meet: one that is not there, twice there, or told something else."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from ncclcheck.probes.facts import Box, BoxProcess
from ncclcheck.reports.subjects.box.failure import BoxFailure
from ncclcheck.reports.text.words.fold import fold_ranks

_JOINED = re.compile(r"(\d+)/(\d+) clients joined")
_MEETING = re.compile(r"init_process_group|rendezvous|_store_based_barrier|_create_c10d_store|_create_tcp_store")
# Seconds before the first failure: who had ended before is of an earlier job of the same COMMAND, or left before
# the others' timeout, which is told otherwise.
_EARLIER_S = 5.0


def not_met(boxes: Sequence[Box], failures: Sequence[BoxFailure]) -> BoxFailure | None:
    """Where all that fails or stalls does so while ranks meet: who cannot have come, and why."""
    meeting = [failure for failure in failures if _meets(failure)]
    if not meeting or [failure for failure in failures if failure.raised is not None and not _meets(failure)]:
        return None
    at = min(meeting, key=lambda failure: failure.t)
    ranks = [
        (box, process)
        for box in boxes
        for process in box.processes
        if process.role == "rank" and (process.gone is None or process.gone > at.t - _EARLIER_S)
    ]
    why, whose = _why(ranks)
    if not why:
        counts = [_JOINED.search(failure.raised.message) for failure in meeting if failure.raised is not None]
        joined = next((count for count in counts if count is not None), None)
        late = {process.rank for _, process in ranks} - {failure.rank for failure in meeting}
        if len(late) == 1 and len(ranks) > 1:
            return None  # it was there, and elsewhere: that is told of it
        if joined is None or int(joined[1]) >= int(joined[2]):
            return None
        why = f"{int(joined[2]) - int(joined[1])} of {joined[2]} processes did not come to where ranks meet"
        whose = None
    box, process = whose or (at.box, None)
    return BoxFailure(at.t, "unmet", box, process, detail=why)


def _meets(failure: BoxFailure) -> bool:
    """Whether it was in init_process_group, or at the store before that."""
    if failure.raised is not None:
        return bool(_MEETING.search("\n".join(failure.raised.frames))) and failure.of_others
    if failure.kind != "stalled":
        return False
    stacks = [process.stack for process in failure.box.processes if process.role == "rank" and process.stack]
    return bool(stacks) and all(_MEETING.search("\n".join(stack)) for stack in stacks)


def _why(ranks: Sequence[tuple[Box, BoxProcess]]) -> tuple[str, tuple[Box, BoxProcess] | None]:
    """In words, and the process that is odd; both empty where nothing is."""
    for name, values in (
        ("WORLD_SIZE", {process.pid: str(process.world) for _, process in ranks if process.world}),
        ("MASTER_ADDR:MASTER_PORT", {process.pid: process.meets for _, process in ranks if process.meets}),
    ):
        usual = next((value for value, _ in Counter(values.values()).most_common(1)), "")
        odd = [(box, process) for box, process in ranks if values.get(process.pid, usual) != usual]
        if odd:
            value = values[odd[0][1].pid]
            return f"{_named(odd)} was told {name} {value}, and the others {usual}", odd[0]
    twice = [rank for rank, count in Counter(process.rank for _, process in ranks).items() if count > 1]
    alive_at_once = [pair for pair in ranks if pair[1].rank in twice]
    if twice and _together([process for _, process in alive_at_once if process.rank == twice[0]]):
        pids = ", ".join(str(process.pid) for _, process in alive_at_once if process.rank == twice[0])
        return f"rank {twice[0]} was started twice (pids {pids})", alive_at_once[0]
    world = max((process.world for _, process in ranks), default=0)
    away = sorted({*range(world)} - {process.rank for _, process in ranks})
    if away and len(away) < world:
        hosts = ", ".join(sorted({box.host for box, _ in ranks})[:4])
        come = "did not come: no process of it was" if len(away) == 1 else "did not come: no process of them was"
        return f"{fold_ranks(away)} of {world} {come} seen on {hosts}", None
    return "", None


def _named(odd: Sequence[tuple[Box, BoxProcess]]) -> str:
    return fold_ranks(sorted({process.rank for _, process in odd}))


def _together(same: Sequence[BoxProcess]) -> bool:
    """Whether they lived at one time; a rank that was started again did not."""
    last = sorted(same, key=lambda process: process.born)
    return any(a.gone is None or a.gone > b.born for a, b in itertools.pairwise(last))

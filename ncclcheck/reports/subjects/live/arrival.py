"""Which rank has not entered the call in which the others wait, by when each last sent something.

Who enters a collective of gloo tells its neighbours so. The rank that did not come has sent nothing since the call
before, and was sent something since. Seen with jobs of 3 and 4 ranks: 20 to 30 ms between their steps' ends. Not
so with NCCL, whose proxies send ahead, and whose RAS keeps its own connections alive: of four ranks of NCCL 2.27.7
that hung, this named one that had come.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ncclcheck.probes.facts import LiveProcess

# Seconds. The kernel counts in ticks of 1 to 10 ms (CONFIG_HZ): ranks that had entered the same call were up to
# 4 ms apart, which is one tick of the machines where it was measured.
MARGIN_S = 0.012


def not_arrived(ranks: Sequence[LiveProcess]) -> LiveProcess | None:
    """The rank that sent before all others last did, and was sent something since; None where none is plain."""
    if any("nccl" in rank.libraries for rank in ranks):
        return None
    later = lags(ranks)
    timed = [rank for rank in ranks if rank.connections and rank.host in later]
    if len(timed) < len(ranks) or len(ranks) < 2:
        return None
    sent = sorted(((_sent(process) - later[process.host], process.rank) for process in timed), reverse=True)
    [late] = [process for process in timed if process.rank == sent[0][1]][:1]
    plain = sent[0][0] - sent[1][0] >= MARGIN_S
    asked = _sent(late) - min(link.received_s for link in late.connections) >= MARGIN_S
    return late if plain and asked else None


def waiting_for(late: LiveProcess, ranks: Sequence[LiveProcess]) -> list[int]:
    """The ranks that have sent it something since it last sent: they wait for it themselves."""
    of = {link.near: rank.rank for rank in ranks for link in rank.connections}
    if not late.connections or any("nccl" in rank.libraries for rank in ranks):
        return []
    since = _sent(late) - MARGIN_S
    return sorted({of[link.far] for link in late.connections if link.received_s < since and link.far in of})


def lags(ranks: Sequence[LiveProcess]) -> dict[str, float]:
    """Host -> seconds by which it was looked at later than the first host.

    What one end of a connection last sent the other last received: the ages differ by the time between looks.
    Hosts without a connection to those that are known are left out.
    """
    ends = {(link.near, link.far): (rank.host, link) for rank in ranks for link in rank.connections}
    between: dict[tuple[str, str], list[float]] = {}
    for (near, far), (host, link) in ends.items():
        other = ends.get((far, near))
        if other is not None and other[0] != host:
            between.setdefault((host, other[0]), []).append(other[1].received_s - link.sent_s)
    known = {ranks[0].host: 0.0} if ranks else {}
    grew = True
    while grew:
        grew = False
        for (here, there), gaps in between.items():
            if here in known and there not in known:
                known[there] = known[here] + median(gaps)
                grew = True
    return known


def _sent(process: LiveProcess) -> float:
    return min(link.sent_s for link in process.connections)

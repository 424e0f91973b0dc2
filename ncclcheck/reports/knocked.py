"""What the other nodes found where they tried to connect to a node that fell silent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts import Cluster, Knock, Silence
from ncclcheck.reports.findings import Evidence, Finding, Where, admin, fail, seen
from ncclcheck.reports.fold import fold_names

_MOST_WAYS = 4


def sides(silence: Silence) -> tuple[list[str], list[str]]:
    """The nodes that had an answer from its host, and those that had none."""
    reach = [one.by for one in silence.knocks if one.answered]
    return reach, [one.by for one in silence.knocks if not one.answered]


def words(silence: Silence, silent: Sequence[Silence]) -> str:
    """What follows from it for the cause. silent: all nodes that were tried."""
    reach, miss = sides(silence)
    if not miss:
        return (
            f"its address still answers {fold_names(reach)}: what runs there hangs or was stopped, "
            "or another machine has taken the address"
        )
    if len(miss) == 1 and not reach:
        return _to_one(miss[0], [one.node for one in silent if not any(each.answered for each in one.knocks)])
    if not reach:
        return f"no answer from its host to {fold_names(miss)}: the host or its link is away"
    ways = ", ".join(f"{one} - {silence.node}" for one in miss[:_MOST_WAYS])
    ways += ", ..." if len(miss) > _MOST_WAYS else ""
    return (
        f"{fold_names(reach)} {'reaches' if len(reach) == 1 else 'reach'} {silence.node}, "
        f"{fold_names(miss)} {'does' if len(miss) == 1 else 'do'} not: the way {ways}"
    )


def _to_one(witness: str, lost: Sequence[str]) -> str:
    """One node alone tried: what it does not reach may be away, or it itself."""
    if len(lost) > 1:
        return f"{witness} reaches none of {fold_names(lost)}: most likely its own link is away"
    return f"no answer from its host to {witness}: the host, its link or that of {witness} is away"


def tried(one: Knock) -> Evidence:
    """One try."""
    return seen("TCP connect after the job", f"{one.by} to {one.of} ({one.address}): {one.detail}")


def findings(cluster: Cluster) -> Iterator[Finding]:
    """Ways that closed during the job while its host answers others: NET006 names both ends."""
    for silence in cluster.run.silent:
        reach, _ = sides(silence)
        for one in (one for one in silence.knocks if reach and not one.answered):
            yield fail(
                Where(node=one.by, peer=silence.node),
                f"{one.by} gets no answer from {silence.node} ({one.address}) any more, and {fold_names(reach)} "
                f"still does: the way {one.by} - {silence.node} was lost during the run",
                why="A job waits on such a way without a word, until a time-out.",
                owner="site",
                evidence=[tried(each) for each in silence.knocks],
                fix=[
                    admin(
                        "Look at filters, routes and neighbour entries of both ends, and at the switch.",
                        f"ip route get {one.address}",
                        f"ip neigh show {one.address}",
                        "nft list ruleset",
                    )
                ],
            )

"""What the other nodes found where they tried to connect to a node that fell silent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from ncclcheck.probes.facts import Cluster, Knock, Silence
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, Where, admin, fail, seen, you
from ncclcheck.reports.text.words.fold import fold_names

_MOST_WAYS = 4  # named in one sentence, then dots: chosen


def sides(silence: Silence) -> tuple[list[str], list[str]]:
    """The nodes that had an answer from its host, and those that had none."""
    reach = [knock.by for knock in silence.knocks if knock.answered]
    return reach, [knock.by for knock in silence.knocks if not knock.answered]


def words(silence: Silence, silent: Sequence[Silence]) -> str:
    """What follows from it for the cause. silent: all nodes that were tried."""
    reach, miss = sides(silence)
    if filtered := _filtered(silence):
        return filtered
    if not miss:
        return (
            f"its address still answers {fold_names(reach)}: what runs there hangs or was stopped, "
            "or another machine has taken the address"
        )
    if len(miss) == 1 and not reach:
        return _to_one(
            miss[0], [silence.node for silence in silent if not any(each.answered for each in silence.knocks)]
        )
    if not reach:
        return f"no answer from its host to {fold_names(miss)}: the host or its link is away"
    ways = ", ".join(f"{node} - {silence.node}" for node in miss[:_MOST_WAYS])
    ways += ", ..." if len(miss) > _MOST_WAYS else ""
    return (
        f"{fold_names(reach)} {'reaches' if len(reach) == 1 else 'reach'} {silence.node}, "
        f"{fold_names(miss)} {'does' if len(miss) == 1 else 'do'} not: the way {ways}"
    )


def _filtered(silence: Silence) -> str:
    """A host that lives while its ports are silent: a link without carrier, or a dead host, answers nothing."""
    own = [knock.by for knock in silence.knocks if knock.kept in ("filter", "route")]
    if own and len(own) == len(silence.knocks):
        return f"{fold_names(own)} itself does not send to it any more: a rule or filter that came during the run"
    shut = [knock for knock in silence.knocks if knock.alive and not knock.answered]
    if not shut or any(knock.answered for knock in silence.knocks):
        return ""
    return (
        f"its host and link are alive (its {shut[0].alive} answers {fold_names(knock.by for knock in shut)}), and "
        "new connections to the job's ports are dropped: a packet filter that came during the run"
    )


def fix(silence: Silence) -> list[Remedy]:
    """What to look at, and to do, where a filter is the cause or the whole host is away."""
    reach, miss = sides(silence)
    if not _filtered(silence):
        return _of_a_dead_host(silence.node) if len(miss) > 1 and not reach else []
    return [
        admin(
            f"See what loaded the packet filter of {silence.node} anew (firewalld, ufw, docker), and let "
            "the job's network pass.",
            "nft list ruleset",
            "journalctl -b -u firewalld -u nftables -u ufw -u docker | tail -30",
        )
    ]


def _of_a_dead_host(node: str) -> list[Remedy]:
    return [
        admin(
            "Look at its power and its console (BMC), start it if it is off, and then at its link.",
            "ipmitool -H BMC chassis power status",
            "ipmitool -H BMC sol activate",
        ),
        you("Start the job again without it meanwhile.", f"#SBATCH --exclude={quote(node)}"),
    ]


def _to_one(witness: str, lost: Sequence[str]) -> str:
    """One node alone tried: what it does not reach may be away, or it itself."""
    if len(lost) > 1:
        return f"{witness} reaches none of {fold_names(lost)}: most likely its own link is away"
    return f"no answer from its host to {witness}: the host, its link or that of {witness} is away"


def tried(knock: Knock) -> Evidence:
    """One try."""
    also = f"; its {knock.alive} answers" if knock.alive else ""
    return seen("TCP connect after the job", f"{knock.by} to {knock.of} ({knock.address}): {knock.detail}{also}")


def findings(cluster: Cluster) -> Iterator[Finding]:
    """Ways that closed during the job while its host answers others: NET006 names both ends."""
    for silence in cluster.run.silent:
        reach, _ = sides(silence)
        for knock in (knock for knock in silence.knocks if reach and not knock.answered):
            yield fail(
                Where(node=knock.by, peer=silence.node),
                f"{knock.by} gets no answer from {silence.node} ({knock.address}) any more, and "
                f"{fold_names(reach)} still does: the way {knock.by} - {silence.node} was lost during the run",
                why="A job waits on such a path silently until a timeout.",
                owner="site",
                evidence=[tried(each) for each in silence.knocks],
                fix=[
                    admin(
                        "Look at filters, routes and neighbour entries of both ends, and at the switch.",
                        f"ip route get {knock.address}",
                        f"ip neigh show {knock.address}",
                        "nft list ruleset",
                    )
                ],
            )

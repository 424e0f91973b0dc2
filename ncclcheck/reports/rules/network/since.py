"""NET021: the network after the job, beside what it was before it."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, fail, fine, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.links import since
from ncclcheck.reports.subjects.links.losses import LostPackets
from ncclcheck.reports.subjects.links.reached import after_the_job, closed, reached
from ncclcheck.reports.subjects.links.since import SlowerThanBefore


@rule(
    "NET021",
    "the network carries after the job what it carried before it",
    worst=State.FAIL,
    over="measurements.reach_after",
    at_least=2,
    between_machines=True,
    commands=("bench", "smoke"),
)
def as_before(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The bursts and small packets between nodes, measured once more after a job that failed, or that was slow,
    stalled or lost packets.

    ## Why it matters
    A link that falls back to a hundredth of its rate in the middle of a job, or begins to lose packets, was sound
    when it was tried. The job becomes slow or ends with a time-out that names whoever waited, and not the link.

    ## Seen as
    slow, hangs

    ## How we know
    The same bursts of 0.2 s as NET008's. A failure where the best one of a node became eight times slower than
    before the job and than those of the other nodes now (thirty times where a machine had no core to spare), and
    below 2 Gb/s; of two nodes, where one or both directions did. A warning where a node loses more packets than
    NET009 allows, and did not before. Nothing is measured again after a job in which all iterations were quick,
    whose exchanges were within a twentieth of the bursts, and in which no packets were lost.

    ## Fix
    - **admin** `ethtool eth0` for the speed now, `dmesg -T` for what happened; cable, transceiver, switch port;
      limits (tc) that were set meanwhile.
    - **you** leave the named node out until then.

    ## Source
    ethtool(8), tc(8), tcp(7).
    """
    reach = reached(after_the_job(cluster))
    if reach is None or reached(cluster) is None:
        raise NothingToJudge("the ways were not tried once more after the job")
    shut = {node for pair in closed(cluster) for node in pair}  # NET006 says why nothing passes
    slow = [change for change in since.slower(cluster) if change.node not in shut]
    yield from (_slower(change, reach.interface(change.node) or "eth0") for change in slow)
    lossy = [lost for lost in since.lossy(cluster) if not lost.nodes & (shut | {each.node for each in slow})]
    yield from (_lossy(lost, reach.interface(lost.node) or "eth0") for lost in lossy)
    if not slow and not lossy and not shut:
        yield fine(
            Where(), f"{len(reach.seen)} ways between {len(reach.of_node)} nodes carry what they did before"
        )


def _slower(change: SlowerThanBefore, device: str) -> Finding:
    others = f", the other nodes {change.others:.2g} now" if change.others is not None else ""
    if change.peer:
        ways = "both ways" if len(change.ways) > 1 else f"from {change.node} to {change.peer}"
        what = f"between {change.node} and {change.peer}, {ways},"
    else:
        what = f"{device} {' and '.join(change.ways)}"
    return fail(
        Where(node=change.node, device=device, peer=change.peer or None),
        f"{what} at most {change.after:.2g} Gb/s after the job, {change.before:.2g} before it{others}: it became "
        "slow while the job ran",
        why="The slowest link sets the pace of all nodes.",
        owner="node" if not change.peer else "site",
        evidence=[
            seen("bursts over TCP, counted at the receiver", f"{change.before:.3g}, then {change.after:.3g} Gb/s")
        ],
        fix=_fix(change.node, device),
    )


def _lossy(lost: LostPackets, device: str) -> Finding:
    place = f"from {lost.node} to {lost.peer}" if lost.peer else f"{lost.way} {lost.node}"
    return warn(
        Where(node=lost.node, device=device, peer=lost.peer or None),
        f"{lost.loss} packets {place} are lost after the job, and were not before it",
        why="TCP waits at least 200 ms for what it lost at the end of a message; every collective waits with it.",
        owner="node",
        evidence=[
            seen("losses", "; ".join(f"{a} to {b}: {loss}" for (a, b), loss in [*lost.by_pair.items()][:4]))
        ],
        fix=_fix(lost.node, device),
    )


def _fix(node: str, device: str) -> list[Remedy]:
    name = quote(device)
    return [
        admin(
            "See at which speed it is now and what happened to it: cable, transceiver, switch port, or a limit.",
            f"ethtool {name} | grep -E 'Speed|Duplex|Link detected'   # on {node}",
            f"tc -s qdisc show dev {name}; dmesg -T | grep -i {name} | tail   # on {node}",
        ),
        you("Leave the node out until it is repaired.", f"#SBATCH --exclude={quote(node)}"),
    ]

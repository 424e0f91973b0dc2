"""Rule about the round trips between nodes."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Unread
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, fine, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.failures import held_up
from ncclcheck.reports.subjects.failures.limits import shaping
from ncclcheck.reports.subjects.links.delays import Delayed, delayed
from ncclcheck.reports.subjects.links.reached import Reached, required

_MOST = 8  # findings; more far nodes are another site


@rule(
    "NET018",
    "round trips between nodes are as short as within one data centre",
    worst=State.FAIL,
    at_least=2,
    between_machines=True,
)
def latency(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How long a small message to each other node and back takes.

    ## Why it matters
    Every collective takes several round trips one after the other, and a TCP stream carries no more than its
    window in each of them. A node in another room behind a VPN, in another region, or whose traffic takes a detour
    by a firewall appliance, makes the whole job many times slower, though its link is fast and loses nothing.

    ## Seen as
    slow

    ## How we know
    Seven exchanges over an open TCP connection to each peer, of which the fastest counts, so that a busy host does
    not show. A warning from 5 ms (`NET018.ms`) on, and ten times the median of the faster half of all pairs, where
    there are others; a failure where bursts to or from that node were slower than those of others (NET008), or
    between two nodes. Where a machine had no core to spare (more than three threads that could run for each), only
    what takes about as long for all of a node's pairs, or ten times as long. Not where the node's link is full of
    others' traffic (counted in the second before the bursts), by its reported speed or by round trips that vary: a
    queue is a slow link (NET008).

    ## Fix
    - **admin** see where its packets go: `tracepath -n ADDRESS`; take a detour, a tunnel or netem away.
    - **you** leave the node out, or take nodes of one site.

    ## Source
    tcp(7); RFC 7323, section 1.1 (bandwidth times delay); tracepath(8), tc-netem(8).
    """
    reached = required(cluster)
    if all(isinstance(peer.rtt_us, Unread) for peer in reached.seen.values()):
        raise NothingToJudge("no round trip was timed")
    long = delayed(cluster)
    yield from (_long(cluster, reached, delay) for delay in long[:_MOST])
    if not long:
        worst = max(peer.rtt_us for peer in reached.seen.values() if not isinstance(peer.rtt_us, Unread))
        yield fine(Where(), f"the fastest round trips of all pairs take {worst / 1000:.2g} ms at most")


def _long(cluster: Cluster, reached: Reached, delay: Delayed) -> Finding:
    a, b = next((pair for pair in sorted(delay.pairs) if pair[0] == delay.node), min(delay.pairs))
    slowness = held_up.slowness(cluster)
    felt = (
        delay.others_ms is None
        or any(each.node in (delay.node or a, b) for each in slowness.nodes)
        or slowness.pairs
    )
    beside = f", between other nodes {delay.others_ms:.2g} ms (median)" if delay.others_ms is not None else ""
    who = (
        f"{delay.node} is far away: a round trip to or from each other node"
        if delay.node
        else (f"{a} and {b} are far from each other: a round trip between them")
    )
    address, name = reached.seen[a, b].address, reached.interface(a) or "eth0"
    node = next((each for each in cluster.nodes if each.name == a), None)
    return (fail if felt else warn)(
        Where(node=delay.node, device=name) if delay.node else Where(node=a, peer=b),
        f"{who} takes {delay.ms:.3g} ms at best{beside}: latency, not a slow or lossy link",
        why="A TCP stream carries one window a round trip, and every collective takes several of them in a row.",
        owner="node" if delay.node else "site",
        evidence=[
            seen(
                "fastest of 7 exchanges",
                "; ".join(
                    f"{x} to {y}: {rtt / 1000:.3g} ms"
                    for x, y in sorted(delay.pairs)[:4]
                    if not isinstance(rtt := reached.seen[x, y].rtt_us, Unread)
                ),
            ),
        ],
        fix=[
            admin(
                "See where its packets go and what stands there: another site, a tunnel, a firewall appliance, a "
                "delay that tc makes.",
                f"tracepath -n {address}; ping -c 5 -i 0.2 {address}   # on {a}",
                f"tc qdisc show dev {quote(name)}   # on {a}",
            ),
            *shaping.lifted(name, node),
            you("Leave it out, or take nodes of one site.", f"#SBATCH --exclude={quote(delay.node or b)}"),
        ],
    )

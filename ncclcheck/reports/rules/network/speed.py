"""Rule about the speed of links, as interfaces report it and as a short burst shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, Unread
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    not_read,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.failures import held_up
from ncclcheck.reports.subjects.failures.limits import shaping
from ncclcheck.reports.subjects.failures.limits.shaping import ShapingCause
from ncclcheck.reports.subjects.links import flows, small_segments
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.flows import SlowBursts
from ncclcheck.reports.subjects.links.reached import Pair, reached
from ncclcheck.reports.subjects.nccl import lan, led_astray
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements, group
from ncclcheck.reports.text.words.fold import fold_names

_ONE_STREAM_GBIT = 10.0  # Gb/s that one TCP stream is expected to reach on a faster interface; chosen
# Of what the others carry. A stream that is held up by a slow link carries its buckets, some 100 KB, at the least;
# one that a filter has ended carried 0 of 19 Gb/s.
_NOTHING = 1e-4
_WHY = "The slowest link sets the pace of all nodes."


@rule(
    "NET008",
    "link speeds agree between nodes, as reported and in a short burst",
    worst=State.FAIL,
    needs=("network.interfaces",),
    at_least=2,
    ground=("NET016", "NET018"),
    between_machines=True,
)
def link_speed(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The speed that the chosen interface of each node reports, and what a short burst over TCP carried.

    ## Why it matters
    A ring is as fast as its slowest link. A cable or a port that fell back from 100 to 10 or 25 Gb/s, a bond
    that lost a member, or a filter that limits what one node sends makes every node of the job slow, and no
    error is written anywhere.

    ## Seen as
    slow

    ## How we know
    /sys/class/net/NAME/speed, the odd one out by majority; virtual interfaces report a speed that means nothing
    and are left out. Bursts of 0.2 s to up to three peers, counted at the receiver; the best one counts. A
    warning below half the median of the other nodes (NET008.of_peers_percent), or with two nodes below half of
    the other direction; never from 2 Gb/s on (NET008.enough_gbit), for there the CPU may set the pace. A
    failure where the node itself limits it to about that rate (tbf, netem, htb, a policer, a rule of its packet
    filter with a rate, a rule that stops a part of an open connection's packets, or thousands of rules before open
    connections pass), where others sent over the same interface in the second before, at least half as much as the
    burst carried, and also below 10 % of the reported speed (NET008.of_reported_percent; 10 Gb/s is taken for
    faster ones). Where connections open and then carry next to nothing, no cable is accused. Nodes whose TCP
    buffers explain it are left to NET016, far ones to NET018. The time
    that a burst waited for a core is taken out, and where more than three threads could run for each core of a
    machine, only what is eight times slower than that is a finding, all else a note. Where segments are less than
    half of what the MTU allows, a clamp of TCP's MSS is named. Where packets are lost or cut
    short, NET009 and NET007 speak. `bench` measures what links carry.

    ## Fix
    - **admin** `ethtool eth0` shows what both ends offer; look at cable, transceiver and switch port;
      `cat /proc/net/bonding/bond0` for a bond; `tc -s qdisc show dev eth0` for a limit.
    - **you** leave the node out until then.

    ## Source
    NVIDIA/nccl#209 (what a 32 Gb/s line carries); ethtool(8), tc(8); the kernel's bonding page.
    """
    speeds = [(link, link.interface.speed_mbit) for link in lan.links(cluster)]
    values = {link.node: f"{mbit / 1000:g} Gb/s" for link, mbit in speeds if not isinstance(mbit, Unread)}
    hidden = [(link, fact) for link, fact in speeds if isinstance(fact, Unread) and fact.kind != "absent"]
    measured = list(_bursts(cluster, {node for node, _ in group(values).odd}))
    if len(values) < 2 and not hidden and not measured:
        raise NothingToJudge("it is known of the interface to be used on fewer than two nodes")
    yield from (_unseen(link, fact) for link, fact in hidden)
    if len(values) > 1:
        odd = {node for node, _ in group(values).odd}
        yield from _reported(values, next((link.interface.name for link, _ in speeds if link.node in odd), "eth0"))
    yield from measured


def _unseen(link: lan.LanPlace, fact: Unread) -> Finding:
    where = Where(node=link.node, device=link.interface.name)
    return not_read(where, "speed", fact, f"the speed of {link.interface.name} could not be read")


def _reported(values: Mapping[str, str], device: str) -> Iterator[Finding]:
    return disagreements(
        values,
        "the speed of the chosen interface",
        "/sys/class/net/NAME/speed",
        level=warn,
        why=_WHY,
        owner="node",
        fix=_fix(device, "NODE"),
    )


def _fix(interface: str, node: str, facts: Node | None = None) -> list[Remedy]:
    return [
        admin(
            "Look at cable, transceiver and switch port, at the members of a bond, and at limits.",
            f"ethtool {quote(interface)} | grep -E 'Speed|Duplex|Link detected'",
            *([f"cat /proc/net/bonding/{quote(interface)}"] if interface.startswith("bond") else []),
            f"tc -s qdisc show dev {quote(interface)}",
        ),
        *shaping.lifted(interface, facts),
        you("Leave the slow node out until it is repaired.", f"#SBATCH --exclude={quote(node)}"),
    ]


def _bursts(cluster: Cluster, odd: set[str]) -> Iterator[Finding]:
    """What the bursts say of nodes that are not already odd by what they report."""
    slowness, limits = held_up.slowness(cluster), cluster.policy.thresholds
    rates = slowness.rates
    if not rates:
        return
    links = {link.node: link for link in lan.links(cluster)}
    least = {
        node: min(flows.reported_gbit(link.interface.speed_mbit), _ONE_STREAM_GBIT)
        * limits.get("NET008.of_reported_percent", 10.0) / 100
        for node, link in links.items()
    }  # fmt: skip
    clamped = small_segments.clamped(reach) if (reach := reached(cluster)) else None
    if clamped and reach:
        yield small_segments.finding(reach, clamped, {node.name: node for node in cluster.nodes})
    astray = led_astray.astray_nodes(cluster)  # NET003 says why they are on another network
    slow, pairs = [node for node in slowness.nodes if node.node not in {*odd, *astray}], slowness.pairs
    if clamped:
        slow = [node for node in slow if node.node != clamped.node]
        pairs = frozenset(pair for pair in pairs if pair not in clamped.pairs)
    nodes = {node.name: node for node in cluster.nodes}
    for slow_node in slow:
        limit = shaping.limit(
            cluster, nodes[slow_node.node], links.get(slow_node.node), slow_node.best, sends=slow_node.sends
        )
        if limit is None and (
            back := [other for other in slow if other.node == slow_node.node and other is not slow_node]
        ):
            limit = _both_ways(cluster, links.get(slow_node.node), back[0])
        found_slow = _slow_node(
            slow_node,
            nodes[slow_node.node],
            links.get(slow_node.node),
            least.get(slow_node.node, 0.0),
            explained=limit is not None,
        )
        yield _limited(found_slow, found_slow.where, limit) if limit else found_slow
    for pair in sorted(pairs):
        found_slow = _slow_way(pair, rates, links, max(least.get(node, 0.0) for node in pair))
        yield _explained(cluster, found_slow, pair, rates[pair], links)
    named = {slow.node for slow in slow} | {node for pair in pairs for node in pair} | odd
    best = _best(rates)
    if feeble := {n: rate for n, rate in best.items() if rate < least.get(n, 0.0) and n not in named}:
        yield _feeble(feeble, links)
    if doubtful := sorted({*slowness.doubtful} - named):
        yield _doubtful(doubtful, best)
    if not (slow or pairs or feeble or odd or doubtful):
        low, high = min(best.values()), max(best.values())
        yield fine(Where(), f"bursts of single streams carried {low:.3g} to {high:.3g} Gb/s")


def _doubtful(nodes: list[str], best: Mapping[str, float]) -> Finding:
    """A burst needs a core at either end, and waits in queues of the kernel's own threads beside."""
    low, high = min(best.values()), max(best.values())
    return note(
        Where(node=nodes[0] if len(nodes) == 1 else None),
        f"not judged, for the machines had no core to spare: bursts to or from {fold_names(nodes)} were slower "
        f"than others ({low:.2g} to {high:.2g} Gb/s)",
        why="Without a core a link shows no more than what the machine gives it.",
        fix=[you("Run again when the machines are quiet.", "ncclcheck env")],
    )


def _both_ways(cluster: Cluster, link: lan.LanPlace | None, back: SlowBursts) -> ShapingCause | None:
    """Other traffic that fills one direction slows the other too: its acknowledgements wait in the same queue."""
    return shaping.filled(cluster, link, back.best, sends=back.sends) if link else None


def _best(rates: Mapping[Pair, float]) -> dict[str, float]:
    """The best rate of every sender."""
    best: dict[str, float] = {}
    for (sender, _), rate in rates.items():
        best[sender] = max(best.get(sender, 0.0), rate)
    return best


def _slow_node(
    slow: SlowBursts, node: Node, link: lan.LanPlace | None, least: float, *, explained: bool
) -> Finding:
    verb = "sends" if slow.sends else "receives"
    name = link.interface.name if link else "eth0"
    reported = flows.reported_gbit(link.interface.speed_mbit) if link else 0.0
    says = f"; it reports {reported:g} Gb/s" if reported else ""
    if slow.best < _NOTHING * slow.others and not explained:
        return _stands_still(slow, node, name, link)
    before = "behind" if slow.sends else "before"
    where = f"; nothing on {slow.node} limits it (tc), so what does is {before} it: its cable, or its switch port"
    level = fail if slow.best < least else warn
    return level(
        Where(node=slow.node, device=name),
        f"{name} {verb} at most {slow.best:.2g} Gb/s, the other nodes {slow.others:.2g} (median){says}"
        + where * (not explained and shaping.has_no_limit(node, name)),
        why=_WHY,
        owner="node",
        evidence=[
            seen("bursts over TCP, counted at the receiver", f"{slow.best:.3g} against {slow.others:.3g} Gb/s")
        ],
        fix=_fix(name, slow.node, node),
    )


def _stands_still(slow: SlowBursts, node: Node, name: str, link: lan.LanPlace | None) -> Finding:
    """Connections open and small packets pass, and a stream dies: no cable and no queue does that."""
    way = "from" if slow.sends else "to"
    side: firewall.Side = "output" if slow.sends else "input"
    chains = firewall.harmful(node, side)
    own = f": {node.name}'s own packet filter can do that ({firewall.shown(chains[0])})" if chains else ""
    let_pass = firewall.let_pass(chains, side, str(link.network)) if chains and link else None
    return warn(
        Where(node=slow.node, device=name),
        f"connections {way} {slow.node} open, and then carry next to nothing ({slow.best:.2g} Gb/s, the others "
        f"{slow.others:.2g}), while small packets pass" + (own or ": a filter that counts bytes or packets"),
        why="The first large message of a job stops there, and all ranks wait.",
        owner="node",
        evidence=[
            seen("bursts over TCP, counted at the receiver", f"{slow.best:.3g} against {slow.others:.3g} Gb/s"),
            *(firewall.on_node(node.name, chain) for chain in chains[:2]),
        ],
        fix=[
            let_pass
            or admin(
                "Look for a quota, a limit or an inspection of connections, here and on the path.",
                "nft list ruleset | grep -iE 'quota|limit|ct bytes|connbytes'",
                f"tc -s qdisc show dev {quote(name)}",
            ),
            you("Leave the slow node out until it is repaired.", f"#SBATCH --exclude={quote(slow.node)}"),
        ],
    )


def _explained(
    cluster: Cluster, finding: Finding, pair: Pair, rate: float, links: Mapping[str, lan.LanPlace]
) -> Finding:
    """Of two nodes: what the one that sends, or the one that receives, does itself."""
    nodes = {node.name: node for node in cluster.nodes}
    for end, other in (pair, pair[::-1]):
        link = links.get(end)
        if limit := shaping.limit(cluster, nodes[end], link, rate, sends=end == pair[0]):
            name = link.interface.name if link else None
            return _limited(finding, Where(node=end, peer=other, device=name), limit)
    return finding


def _limited(finding: Finding, where: Where, limit: ShapingCause) -> Finding:
    """The same, once the cause is known: no cable, no switch."""
    return fail(
        where,
        f"{where.node} itself {limit.words}: {finding.what}",
        why=finding.why,
        owner="node",
        evidence=[limit.evidence, *finding.evidence],
        fix=[limit.fix, *(remedy for remedy in finding.remedies if remedy.who == "you")],
    )


def _slow_way(pair: Pair, rates: Mapping[Pair, float], links: Mapping[str, lan.LanPlace], least: float) -> Finding:
    """Of two nodes: what one sends passes slower than what comes back; its sender is the likelier one."""
    a, b = pair
    name = links[a].interface.name if a in links else "eth0"
    there, back = rates[a, b], rates[b, a]
    level = fail if there < least else warn
    return level(
        Where(node=a, peer=b, device=name),
        f"{a} to {b} carries at most {there:.2g} Gb/s, the way back {back:.2g}: "
        f"what {a} sends is held up there, or what {b} receives",
        why=_WHY,
        owner="node",
        evidence=[seen("bursts over TCP, counted at the receiver", f"{there:.3g} and {back:.3g} Gb/s")],
        fix=_fix(name, a),
    )


def _feeble(best: Mapping[str, float], links: Mapping[str, lan.LanPlace]) -> Finding:
    node = min(best, key=lambda host: best[host])
    name = links[node].interface.name
    reported = flows.reported_gbit(links[node].interface.speed_mbit)
    share = f"{100 * best[node] / reported:.2g} % of the {reported:g} that {name} reports"
    return warn(
        Where(node=node, device=name) if len(best) == 1 else Where(),
        f"bursts of {fold_names(best)} carry at most {best[node]:.2g} Gb/s, {share}",
        why="Something on the path carries far less than the interfaces could.",
        owner="site",
        evidence=[
            seen("bursts over TCP", f"{rate:.3g} Gb/s from {host}") for host, rate in list(best.items())[:4]
        ],
        fix=_fix(name, node),
    )

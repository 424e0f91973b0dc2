"""BEN004: nodes and links among their peers, from exchanges two by two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, at, value_or
from ncclcheck.reports.culprit import (
    between_real_machines,
    lack_cores,
    seen_once,
    slowness_at,
    through_network,
    unproven_of_two,
    without_cores,
    wrong_of_two,
)
from ncclcheck.reports.culprit.pairs.blame import FEW
from ncclcheck.reports.culprit.pairs.samples import OneWay
from ncclcheck.reports.culprit.pairs.two import SlowerDirection
from ncclcheck.reports.culprit.words import of_two
from ncclcheck.reports.judgement.findings import (
    Culprit,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.failures.held_up import held_up
from ncclcheck.reports.subjects.failures.limits import shaping
from ncclcheck.reports.subjects.nccl import lan

_MOST_TOLD = 8  # slow pairs that are named; chosen
_NO_ACCIDENT = math.log(10)


@rule(
    "BEN004", "no node or link is slower than its peers", worst=State.FAIL, over="measurements.pairs",
    ground=("NET003", "NET009"), commands=("bench",),
)  # fmt: skip
def no_node_or_link_is_slower(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Nodes exchange data pair by pair, many pairs at once, each direction timed separately at its receiver.

    ## Why it matters
    A collective is as slow as its slowest link: one NIC at half its rate makes ten thousand GPUs wait, and the
    table of collectives does not say which one it is.

    ## Seen as
    slow

    ## How we know
    A path is as fast as its slowest part, so a slow part slows all paths through it, and one fast path acquits
    its parts. The fewest nodes, NICs, rails, links and switches that explain all slow paths are named, each only
    after so many repeats that an accident is out of the question. Healthy is what the faster paths carry. A
    warning below 88 % of that (BEN004.percent: a fault that takes 20 % stays visible in noise of a few percent),
    a failure below 50 % (BEN004.fail_percent) or where nothing arrives. Where
    most exchanges or ranks lacked cores, only who is thirty times slower is named, and others are a note. Two
    nodes: only what differs between
    their two directions can be seen, and not on whose side; one below half of the other is measured six times, and
    its best counts, below a fifth where the ranks lack cores. What was slow in its only measurement is a
    note, and a warning below a tenth of healthy. Where packets are lost on a slow path that was measured
    twice, NET009 is the cause, and the pair says nothing more of its nodes. When all are slow alike
    nobody is named here. Groups of nodes that carry ten times as much within as between them, each of two nodes or
    more, are named as groups, with what lies between. Each node is measured a few times; a slow link between two
    good nodes is found by `--full` alone.

    ## Fix
    - **you** leave the named node out (`--exclude` of sbatch) and run again: the finding must be gone.
    - **admin** NIC: cable, port counters (`mlxlink`, `ethtool -S`), PCIe width. Link: switch port and route of
      the two. Fabric: uplinks of the named group; where it is oversubscribed by design, lower BEN004.percent.

    ## Source
    NVIDIA/nccl#349 and nccl#325 (find the slow node by halves and pairs);
    NVIDIA/nccl-tests#376; awslabs/awsome-distributed-ai#664 (N/2 pairs at once).
    """
    between_real_machines(cluster, but_for="slow-link")
    founds = through_network(cluster)
    nodes = {name for pair in cluster.measurements.pairs for name in (pair.a, pair.b)}
    if unproven := unproven_of_two(cluster):
        yield _not_judged(unproven, short_of_cores=lack_cores(cluster))
    elif len(nodes) < FEW and not founds:
        raise NothingToJudge("two nodes have no peers: add a third one to compare with")
    least = slowness_at(cluster.policy.thresholds.get("BEN004.fail_percent", 50.0))
    for suspect in founds:
        if suspect.slowness is None:
            yield _of_two(cluster, suspect.culprit)
        else:
            follows = suspect.follows or _known_cause(cluster, suspect.culprit)
            yield _finding(cluster, suspect.culprit, bad=suspect.slowness >= least, follows=follows)
    named = {each.node for blame in founds for each in blame.culprit.where}
    yield from (
        _by_want_of_cores(culprit) for culprit in without_cores(cluster) if culprit.where[0].node not in named
    )
    crowded = lack_cores(cluster)
    yield from (_once(way, short_of_cores=crowded) for way in seen_once(cluster)[:_MOST_TOLD])


_WHY = {
    "fabric": "Every collective that crosses this part of the fabric is as slow as it.",
    "link": "Whatever ring or tree takes this link is as slow as it.",
}
_NODE = "Every collective in which this node takes part is as slow as it."


def _finding(cluster: Cluster, culprit: Culprit, *, bad: bool, follows: str) -> Finding:
    make = fail if bad else warn
    return make(
        Where() if culprit.kind == "fabric" else culprit.where[0],
        culprit.why,
        why=_WHY.get(culprit.kind, _NODE),
        owner="site" if culprit.kind in ("fabric", "link") else "node",
        evidence=[seen("exchanges two by two", f"confidence {culprit.confidence:.2f}")],
        fix=[you(f"Fix {follows} first: this follows from it.", f"ncclcheck explain {follows}")]
        if follows
        else _fix(cluster, culprit),
    )


def _known_cause(cluster: Cluster, culprit: Culprit) -> str:
    """The rule that saw on this very node, before the job, what holds it up."""
    places = {where.node for where in culprit.where}
    return next((delay.code for delay in held_up(cluster) if {delay.node} == places), "")


def _fix(cluster: Cluster, culprit: Culprit) -> list[Remedy]:
    if culprit.kind == "link":
        first, last = culprit.names[0], culprit.names[-1]
        return [
            admin(
                f"Look at what {first} sends by, at the route to {last}, and at the switch ports between.",
                *_of_interface(cluster, first),
            ),
            *_lifted(cluster, first),
        ]
    if culprit.kind == "fabric":
        return [admin("Look at the uplinks and switches of the named part: width, errors, oversubscription.")]
    node = culprit.where[0].node or ""
    return [
        you("Leave the node out and run again.", f"sbatch --exclude={quote(node)} JOB"),
        admin("Look at its NIC, cable and port.", *_of_interface(cluster, node)),
        *_lifted(cluster, node),
    ]


def _of_interface(cluster: Cluster, node: str) -> list[str]:
    """What its counters and its HCAs say."""
    facts = next((host for host in cluster.nodes if host.name == node), None)
    name = _interface(cluster, node)
    hcas = value_or(at(facts, "rdma.devices"), []) if facts else []
    return [
        *([f"ethtool -S {quote(name)} | grep -iE 'err|drop|pause'   # on {node}"] if name else []),
        *(f"mlxlink -d {quote(hca.name)} -c   # on {node}" for hca in hcas[:1]),
    ]


def _lifted(cluster: Cluster, node: str) -> list[Remedy]:
    name = _interface(cluster, node)
    facts = next((host for host in cluster.nodes if host.name == node), None)
    return shaping.lifted(name, facts) if name else []


def _interface(cluster: Cluster, node: str) -> str:
    """The interface over which its ranks meet, where its interfaces were read."""
    return next((link.interface.name for link in lan.read_links(cluster) if link.node == node), "")


def _once(way: OneWay, *, short_of_cores: bool) -> Finding:
    """Slow in its only measurement: an accident, unless it is far slower than accidents are."""
    make = warn if way.is_dead or (way.slowness >= _NO_ACCIDENT and not short_of_cores) else note
    how = "carried nothing" if way.is_dead else f"reached {100 * math.exp(-way.slowness):.2g} % of a healthy way"
    return make(
        Where(node=way.source, peer=way.target),
        f"{how} in its only measurement: time was over before it could be repeated",
        why="Once may be an accident; if it stays so, every collective over this link is as slow.",
        owner="site",
        evidence=[seen("one exchange of the two", how)],
        fix=[you("Measure all pairs, and repeat those that are slow.", "ncclcheck bench --full")],
    )


def _by_want_of_cores(culprit: Culprit) -> Finding:
    """All its exchanges were slow, and no more so than those of healthy hosts without a core to spare."""
    return note(
        culprit.where[0],
        f"not judged, for the ranks wait for cores: {culprit.why}",
        why="An exchange needs a core at either end: without them it shows what the machine gives, not the link.",
        fix=[you("Run again when the machines are quiet, or give the job cores of its own.")],
    )


def _not_judged(slower: SlowerDirection, *, short_of_cores: bool) -> Finding:
    """Slow between two nodes, and not proven."""
    why = "the ranks wait for cores" if short_of_cores else f"it was measured {slower.way.times} times only"
    return note(
        Where(node=slower.way.source, peer=slower.way.target),
        f"not judged, for {why}: {of_two(slower)}",
        why="What else a machine does for a moment hits one direction alone: it proves nothing.",
        owner="site",
        evidence=[
            seen("exchanges between the two", f"{slower.way.times} rounds, the best {100 * slower.share:.0f} %")
        ],
        fix=[you("Run again when the machines are quiet.", "ncclcheck bench --full")],
    )


def _of_two(cluster: Cluster, culprit: Culprit) -> Finding:
    return warn(
        culprit.where[0],
        culprit.why,
        why="One of the two nodes, or the path between them, is faulty.",
        owner="site",
        evidence=[seen("exchanges between the two", wrong_of_two(cluster))],
        fix=[
            you("Run it with a third node, preferably a known good one: that shows which of them is faulty."),
            admin(
                f"Look at what {culprit.names[0]} sends by.", *_of_interface(cluster, culprit.where[0].node or "")
            ),
            *_lifted(cluster, culprit.where[0].node or ""),
        ],
    )

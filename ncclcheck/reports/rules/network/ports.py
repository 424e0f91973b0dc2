"""Rule about connections between nodes: who reaches whom on the ports that the job needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import (
    Finding,
    State,
    Where,
    fail,
    fine,
    seen,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.addresses import to_itself, translated
from ncclcheck.reports.subjects.addresses.names import by_name
from ncclcheck.reports.subjects.failures import lost
from ncclcheck.reports.subjects.links import flapping, no_doors
from ncclcheck.reports.subjects.links.filters import kept, knocked, port_range, trunk, volleys
from ncclcheck.reports.subjects.links.paths import neighbours, own_way, two_cards, unheard
from ncclcheck.reports.subjects.links.reached import (
    BadNode,
    Pair,
    after_the_job,
    blame,
    closed,
    groups,
    reached,
)
from ncclcheck.reports.subjects.links.tries import Tries
from ncclcheck.reports.text.words.fold import fold_names

_WHY = "The ranks cannot connect to each other: torchrun, gloo and NCCL only wait, for half an hour by default."
_MOST_PAIRS = 8  # pairs that are named; chosen
_OWN_FILTER = "of the two only {} has a packet filter of its own that can stop it or lead it elsewhere"


@rule(
    "NET006",
    "every node reaches every other on the job's ports, in both directions",
    worst=State.FAIL,
    needs=("network.interfaces",),
    at_least=2,
    ground=("NCC007", "NET001", "NET002", "NET003", "NET010"),
    between_machines=True,
    gates_job="by any failure",
)
def ports(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether a TCP connection to a random high port passes, from each node to each other one (in a large cluster
    to at least log2 N others), over the interface that the job would use.

    ## Why it matters
    Only the port of the rendezvous is fixed; NCCL, gloo and torchrun take random high ports for all else. Where
    a firewall drops them, ssh and ping work, and the job waits without a word until a time-out.

    ## Seen as
    hangs, does not start, setting without effect

    ## How we know
    Each node opens a random port of `net.ipv4.ip_local_port_range`, and each tries those of the others several
    times within 2.5 s. A node that can open no TCP port fails by itself, and so does one with an LD_PRELOAD of
    its own by which every connection is refused, also to itself. A node that reaches nobody and that nobody
    reaches is named once, before its pairs. A to B failing while B to A works is a filter: most often on what
    comes in to B, else on what leaves A. Packets of UDP that pass meanwhile show that cable, address and route
    are well. Nodes that NET001 to NET003 or NET010 explain are left out. Where the kernel's neighbour entry
    (ARP) of a peer that is not reached has another MAC address than the peer, a permanent entry or another
    machine with that address is the cause. A node that itself keeps back what it sends is named and nobody else:
    its kernel refuses a route to a UDP socket, by which nothing is sent (ip-rule(8), a route of type prohibit,
    blackhole or unreachable), or says of a connection that what it sent again never left (TCP_INFO). For a peer
    that is not reached the kernel is asked for its route (`ip route get`): an interface without carrier, a
    bridge's port, a tunnel, another interface's address as the sender, and a gateway or one of several next hops
    that answers no ARP are the cause. Each node also connects to its own address, as its ranks do. A node that
    nobody reaches and that has two cards in one subnet drops what comes in (rp_filter). Where the packet filter
    may be read, which only root may, the chain is named that can stop it, and a rule before it is the fix. Where
    nodes fall into two groups in each of which all passes, and between which a part of the connections is lost,
    a member of the trunk between them is the cause. Where some of the connections opened at once have no answer,
    they are tried once more from the same ports, the last one first: if each fares as before, its ports decide,
    so that it is a dead member of a trunk or of equal routes, and no limit, loss or host. A node whose interface
    counts next to no bytes while the others send to it is deaf, and no filter of its own has a part in it: where
    it finds no MAC address on its wire, its link is dead in one direction or its switch port does not forward;
    where it finds them, the switch sends its frames elsewhere. Two nodes that reach all others and not each
    other, without an answer to ARP, are kept apart by the switch (private VLAN, port isolation). A peer tells
    from which address it was called: another one than ours is NAT on the path, a warning within one subnet; an
    address of another interface of ours is a rule or route that leads there, a failure where bursts were slow
    so too. Where gloo would announce another address, the first of a node's own name and often one of IPv6, the
    others knock there too: no answer is a failure, though the first address passes. Then up to 8 connections are
    opened at once: it is a warning where more than 10 % of those to a node, and at least 3, have no answer
    within 0.8 s, or are refused, although packets pass: a limit on new ones, and a failure where the ranks of the
    job then waited for each other in vain. After a job that failed or hung it is tried once
    more: what passed before the job and fails after it was lost in between. A node that falls silent in a job is
    tried by up to 64 others, on a port that was open before it: a refusal is an answer. Where some have one and
    some have none, the path between is a failure.

    Up to 33 nodes also listen on a port in each eighth of that range, and try those of each other twice: where
    nobody reaches one, while others of the same node answer, a part of its range is closed, which a job meets by
    chance.

    ## Fix
    - **you** try it by hand as shown, and leave the node out until it is repaired.
    - **admin** let the nodes of a job connect to each other on all ports from 1024 to 65535: nftables, firewalld,
      ufw, the cloud's security group; or bring up the link.

    ## Source
    NVIDIA/nccl#352, NVIDIA/nccl-tests#162; ip(7) (ip_local_port_range), connect(2), nft(8).
    """
    unopened = [*no_doors.findings(cluster)]
    yield from unopened
    if unopened and reached(cluster) is None:
        return
    tries = Tries.of(cluster)
    gone = list(knocked.findings(cluster))
    yield from gone
    yield from tries.unasked()
    misled = neighbours.misled(cluster, tries.reached, tries.bad)
    yield from neighbours.findings(misled, tries.links)
    tries = tries.without({misled.pair for misled in misled})
    half = own_way.half_lost(tries.reached)
    by_own_way = [*own_way.findings(cluster, tries.reached, half | {p for p in tries.bad if not tries.down(p[0])})]
    yield from (finding for finding, _ in by_own_way)
    tries = tries.without({pair for _, pairs in by_own_way for pair in pairs})
    itself = [*to_itself.findings(cluster, tries.links)]
    yield from itself
    by_library = {*tries.hosts} & {*to_itself.preloaded(cluster)}
    tries = tries.without({pair for pair in tries.bad if pair[0] in by_library})
    at_source = kept.kept(cluster, tries.reached, tries.bad)
    yield from kept.findings(tries.reached, at_source, tries.links)
    tries = tries.without({pair for keeper in at_source for pair in keeper.pairs})
    across = trunk.trunk(tries.reached)
    split = across.pairs if across else frozenset()
    yield from trunk.findings(tries.reached, across) if across else ()
    kept_back = {pair for keeper in at_source for pair in keeper.pairs}
    if hashed := trunk.by_ports(tries.reached, {*split, *half, *kept_back}):
        yield from trunk.findings_by_ports(tries.reached, hashed)
        split = split | hashed.pairs
    tries = tries.without({*split})
    parts = [] if split else port_range.shut_ports(tries.reached, half)
    counted = {part.node for part in parts if port_range.is_counted(part, tries.hosts[part.node])}
    of_range = [part for part in parts if part.node not in counted]  # of the others the volleys say it
    yield from port_range.findings(tries.reached, of_range, tries.hosts, tries.links)
    tries = tries.without({pair for part in parts for pair in part.pairs})
    explained = [*by_own_way, *itself, *at_source, *split, *parts]
    yield from by_name.findings(cluster, tries.reached, tries.links)
    shut = closed(cluster)
    for run in tries.apart():
        yield from (
            finding
            for finding in _judged(run)
            if finding.state is not State.OK or not (shut or unopened or gone or misled or explained)
        )
    yield from translated.findings(cluster, tries.reached, tries.links)
    networks = {node: str(link.network) for node, link in tries.links.items()}
    yield from volleys.findings(
        own_way.without_volleys(tries.reached, {*half, *split}),
        cluster.policy.thresholds.get("NET009.loss_percent", 1.0),
        networks,
        tries.hosts,
        in_vain=lost.none_to_blame(cluster),
    )
    if shut:
        yield from _closed(cluster, shut)


def _closed(cluster: Cluster, shut: set[Pair]) -> Iterator[Finding]:
    """Connections that passed before the job and failed after it; a node that is to blame for them says why."""
    after = after_the_job(cluster)
    tries = replace(Tries.of(after), bad=shut)
    for finding in _after(after, tries):
        before = seen("before the job", "all of these connections passed")
        what = f"{finding.what}. It passed before the job, and failed after it"
        verdict = fail(
            finding.where,
            what,
            why=finding.why,
            owner=finding.owner,
            evidence=[before, *finding.evidence],
            fix=finding.remedies,
        )
        yield flapping.explained(cluster, verdict)


def _after(after: Cluster, tries: Tries) -> Iterator[Finding]:
    """What its own kernel or filter explains, then the rest."""
    by_own_way = [*own_way.findings(after, tries.reached, {p for p in tries.bad if not tries.down(p[0])})]
    yield from (finding for finding, _ in by_own_way)
    tries = tries.without({pair for _, pairs in by_own_way for pair in pairs})
    at_source = kept.kept(after, tries.reached, tries.bad)
    yield from kept.findings(tries.reached, at_source, tries.links)
    tries = tries.without({pair for keeper in at_source for pair in keeper.pairs})
    for run in tries.apart():
        yield from _judged(run) if run.bad else ()


def _judged(tries: Tries) -> Iterator[Finding]:
    together = groups(tries.nodes, tries.judged - tries.bad)
    yield from _apart(tries, together)
    group = {node: number for number, nodes in enumerate(together) for node in nodes}
    culprits, pairs = blame({p for p in tries.bad if group[p[0]] == group[p[1]]}, tries.judged)
    yield from (_one_way(tries, culprit) for culprit in culprits)
    yield from _pairs(tries, pairs)
    if not tries.bad:
        what = (
            f"all {len(tries.nodes)} nodes reach each other: {len(tries.judged)} connections on random high ports"
        )
        yield fine(Where(), what)


def _apart(tries: Tries, together: list[list[str]]) -> Iterator[Finding]:
    """Groups that do not reach each other at all: the smaller ones are cut off."""
    if len(together) < 2:
        return
    first, second = together[0], together[1]
    between = sorted(tries.bad)
    if len(tries.nodes) == 2:
        yield _either(tries, between)
    elif len(first) == len(second):
        nobody = len(first) == 1
        shown = "; ".join(fold_names(nodes) for nodes in together[:4]) + ("; ..." if len(together) > 4 else "")
        what = "no node reaches any other" if nobody else f"groups of nodes do not reach each other: {shown}"
        yield _failed(tries, Where(), between, second[0], what)
    else:
        yield from (_cut_off(tries, group, first) for group in together[1:])


def _either(tries: Tries, pairs: list[Pair]) -> Finding:
    """Two nodes, either way: neither is blamed, unless its interface is down."""
    a, b = tries.nodes
    if stopper := tries.stopper((a, b)):
        where = Where(node=stopper, device=tries.reached.interface(stopper) or None)
        what = f"{a} and {b} cannot connect to each other, in either direction: {_OWN_FILTER.format(stopper)}"
        return _failed(tries, where, pairs, stopper, what)
    down = [(node, state) for node in tries.nodes if (state := tries.down(node))]
    what = f"{a} and {b} cannot connect to each other, in either direction: "
    if len(down) == 1:
        node, state = down[0]
        where = Where(node=node, peer=b if node == a else a, device=tries.reached.interface(node) or None)
        return _failed(tries, where, pairs, node, f"{what}on {node} {state}")
    why = f"on {a} {down[0][1]}, on {b} {down[1][1]}" if down else tries.reason(pairs)
    return fail(
        Where(),
        f"{what}{why}",
        why=_WHY,
        owner="site",
        evidence=tries.evidence(pairs),
        fix=tries.fix(pairs, b, a),
    )


def _cut_off(tries: Tries, group: list[str], main: list[str]) -> Finding:
    node = group[0]
    pairs = sorted(pair for pair in tries.bad if (pair[0] in group) != (pair[1] in group))
    where = Where(node=node, device=tries.reached.interface(node) or None)
    if len(group) == 1:
        others = {other for pair in pairs for other in pair} - {node}
        down = tries.down(node)
        why = f"its {down}" if down else tries.reason(pairs)
        what = f"{node} is cut off from all {len(others)} others, in both directions: {why}"
    else:
        what = f"{fold_names(group)} reach each other, but none of the other {len(main)} nodes"
    return _failed(tries, where, pairs, node, what)


def _one_way(tries: Tries, culprit: BadNode) -> Finding:
    node, pairs = culprit.node, sorted(culprit.pairs)
    where = Where(node=node, device=tries.reached.interface(node) or None)
    others = sorted({other for pair in pairs for other in pair} - {node})
    why = tries.reason(pairs)
    if culprit.way == "out":
        return _failed(
            tries, where, pairs, node,
            f"{node} cannot connect to any of {len(others)} other nodes, though they connect to it: "
            f"outgoing connections from {node} do not pass; {why}",
        )  # fmt: skip
    what = f"none of {len(others)} other nodes can connect to {node}, though it connects to them: "
    refused = any(tries.reached.connects[pair].outcome in ("refused", "stranger") for pair in pairs)
    link = tries.links.get(node)
    if link and not refused and (twin := two_cards.twin(tries.hosts[node], link)):
        back = tries.reached.seen.get(pairs[0][::-1])
        peer = back.address if back else ""
        return two_cards.dropped(where, link, twin, what, _WHY, tried=tries.evidence(pairs), peer=peer)
    return _failed(tries, where, pairs, node, f"{what}incoming connections to {node} do not pass; {why}")


def _pairs(tries: Tries, pairs: list[Pair]) -> Iterator[Finding]:
    """What no single node explains, a few by name."""
    stopped = {pair: stopper for pair in pairs if (stopper := tries.stopper(pair))}
    for pair, stopper in stopped.items():
        if pair[::-1] not in stopped or pair < pair[::-1]:
            yield _stopped(tries, [direction for direction in (pair, pair[::-1]) if direction in stopped], stopper)
    pairs = [pair for pair in pairs if pair not in stopped]
    if apart := unheard.kept_apart(tries.reached, pairs, tries.judged - tries.bad):
        yield unheard.apart_finding(tries.reached, apart, tries.evidence(sorted(apart)), _WHY)
        pairs = [pair for pair in pairs if pair not in apart]
    for a, b in pairs[:_MOST_PAIRS]:
        back = tries.reached.connects.get((b, a))
        works = f", though {b} connects to {a}" if back and back.outcome == "ok" else ""
        more = len(pairs) - _MOST_PAIRS
        rest = f"; and {more} more pairs" if more > 0 and (a, b) == pairs[_MOST_PAIRS - 1] else ""
        likely = f": look first at what comes in to {b}, then at what leaves {a}" if works else ""
        yield _failed(
            tries, Where(node=b, peer=a, device=tries.reached.interface(b) or None), [(a, b)], b,
            f"{a} cannot connect to {b}{works}{likely}; {tries.reason([(a, b)])}{rest}",
        )  # fmt: skip


def _stopped(tries: Tries, pairs: list[Pair], node: str) -> Finding:
    a, b = pairs[0]
    text = f"{a} and {b} cannot connect to each other" if len(pairs) == 2 else f"{a} cannot connect to {b}"
    where = Where(node=node, device=tries.reached.interface(node) or None)
    return _failed(tries, where, pairs, node, f"{text}: {_OWN_FILTER.format(node)}; {tries.reason(pairs)}")


def _failed(tries: Tries, where: Where, pairs: list[Pair], node: str, what: str) -> Finding:
    return fail(
        where, what, why=_WHY, owner="site", evidence=tries.evidence(pairs), fix=tries.fix(pairs, node)
    )  # fmt: skip

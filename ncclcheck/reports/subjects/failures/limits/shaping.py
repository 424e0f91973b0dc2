"""Why a node that was measured to be slow sends or takes in no more: its own limits, and who else fills its link.

Asked only of a node that is known to be slow: a limit that nobody feels, or a busy link that is fast, is no fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Cluster, Filter, Node, Shaper, Unread, at, value_or
from ncclcheck.reports.judgement.findings import Evidence, Remedy, admin, seen, you
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.nccl import lan

# A limit is the cause where the burst is not much slower than it: its bucket lets the first bytes pass at full
# speed. Bursts through a tbf of 50 and 200 Mbit/s were 2 and 5 times as fast as its rate.
_ABOUT = 2.0
# What others send, as a share of what our best burst had left of the link. Reasoned, not measured: with half as
# much as we had, they take a third of it.
_OTHERS = 0.5
_LEAST_OTHERS = 0.05  # Gb/s; our own small packets of that second are under a thousandth of it

# Rules that a packet is compared with. 60,000 made a node a hundredth as fast in the lab; at that cost 2,000 add
# tens of microseconds a packet. Asked only of a node that is slow.
_MANY_RULES = 2000


@dataclass(frozen=True)
class ShapingCause:
    """A cause, as the words after the node's name."""

    words: str
    evidence: Evidence
    fix: Remedy


def limit(
    cluster: Cluster, node: Node, link: lan.LanPlace | None, gbit: float, *, sends: bool
) -> ShapingCause | None:
    """What on the node itself keeps what its interface sends, or takes in, to about this rate."""
    if link is None:
        return None
    own = _shaped(node, link, gbit, sends=sends) or _filtered(node, sends=sends) or compared(node)
    own = own or _in_part(node, link, sends=sends)
    return own or filled(cluster, link, gbit, sends=sends)


def _shaped(node: Node, link: lan.LanPlace, gbit: float, *, sends: bool) -> ShapingCause | None:
    shapers: list[Shaper] = value_or(at(node, "network.shapers"), [])
    for shaper in shapers:
        rate = shaper.bytes_per_s * 8 / 1e9
        about = 0 < rate <= _ABOUT * gbit or (shaper.kind == "netem" and not rate)
        if (
            shaper.interface == link.interface.name
            and about
            and (shaper.root if sends else True)
            and _is_of(shaper, sends)
        ):
            return _traffic_control(shaper)
    return None


def _is_of(shaper: Shaper, sends: bool) -> bool:
    return shaper.way == ("out" if sends else "in")


def _traffic_control(shaper: Shaper) -> ShapingCause:
    device, does = quote(shaper.interface), "sends" if shaper.way == "out" else "takes in"
    rate = f" to {shaper.bytes_per_s * 8 / 1e6:.4g} Mbit/s" if shaper.bytes_per_s else ""
    place = "root" if shaper.way == "out" else "ingress"
    kind = "filter" if shaper.way == "in" else "qdisc"
    also = " with its classes" if shaper.kind in ("htb", "hfsc") else ""
    return ShapingCause(
        f"limits what its {shaper.interface} {does}{rate} (tc, {shaper.kind})",
        seen(f"tc {kind} show dev {shaper.interface}{' ingress' * (shaper.way == 'in')}", f"{shaper.kind}{rate}"),
        admin(
            f"Take the limit{also} away, here and where it is set up.",
            f"tc qdisc del dev {device} {place}" if shaper.way == "out" else f"tc filter del dev {device} {place}",
        ),
    )


def _filtered(node: Node, *, sends: bool) -> ShapingCause | None:
    """A rule of its packet filter that drops what is above a rate."""
    chains: list[Filter] = [
        candidate for candidate in firewall.harmful(node, "output" if sends else "input") if candidate.slows
    ]
    if not chains:
        return None
    chain = chains[0]
    place = f"{chain.family} {quote(chain.table)} {quote(chain.chain)}"
    awk = r"awk '/limit rate over .*drop.*# handle/{print $NF}'"
    return ShapingCause(
        f"drops what it {'sends' if sends else 'takes in'} above a rate ({chain.slows}: its own packet filter)",
        seen("nft list ruleset", f"chain {place} (hook {chain.hook}): {chain.slows}"),
        admin(
            "Take that rule away, here and in the file that it is loaded from.",
            f"for h in $(nft -a list chain {place} | {awk}); do nft delete rule {place} handle $h; done",
        ),
    )


def _in_part(node: Node, link: lan.LanPlace, *, sends: bool) -> ShapingCause | None:
    """A rule that stops packets by their number, size or chance: a connection opens, and carries little."""
    side: firewall.Side = "output" if sends else "input"
    if not (chains := firewall.partial(node, side)):
        return None
    partial = firewall.Partial(node.name, side, chains)
    return ShapingCause(partial.words, partial.evidence[0], partial.fix(str(link.network)))


def compared(node: Node) -> ShapingCause | None:
    """A packet filter that compares each packet with thousands of rules; one way slows both (acknowledgements)."""
    chains = [
        chain for side in firewall.SIDES for chain in firewall.harmful(node, side) if chain.passed >= _MANY_RULES
    ]
    if not chains:
        return None
    most = max(chains, key=lambda chain: chain.passed)
    place = f"{most.family} {quote(most.table)} {quote(most.chain)}"
    return ShapingCause(
        f"compares each packet with at least {most.passed:,} rules of its packet filter, one by one (nft table "
        f"{most.family} {most.table})",
        seen(
            "nft list ruleset",
            f"chain {place} (hook {most.hook}): {most.passed:,} rules before open connections pass",
        ),
        admin(
            "Let open connections pass before these rules, and put the addresses into one set (a rule `ip saddr "
            "@banned drop`), here and where the rules are made (fail2ban: an action with a set).",
            f"nft insert rule {place} ct state established,related accept   # on {node.name}",
        ),
    )


def of_others(cluster: Cluster, node: str, *, sends: bool) -> float:
    """Gb/s that its interface carried in the second before the bursts, which was not ours; 0 where not counted."""
    reach = next((probe for probe in cluster.measurements.reach if probe.node == node), None)
    beside = reach.beside if reach else None
    if beside is None or isinstance(beside, Unread) or not beside.seconds:
        return 0.0
    return (beside.bytes_out if sends else beside.bytes_in) * 8 / beside.seconds / 1e9


def filled(cluster: Cluster, link: lan.LanPlace, gbit: float, *, sends: bool) -> ShapingCause | None:
    """Others send over the same interface, at least half as much as our bursts had left of it."""
    others = of_others(cluster, link.node, sends=sends)
    if others < max(_LEAST_OTHERS, _OTHERS * gbit):
        return None
    name, does = link.interface.name, "sends" if sends else "takes in"
    counted = "tx_bytes" if sends else "rx_bytes"
    return ShapingCause(
        f"{does} {others:.2g} Gb/s over {name} for others than this job",
        seen(f"{counted} of {name} in the second before the bursts", f"{others:.3g} Gb/s"),
        you(
            "See whose connections they are (bytes_sent, bytes_received), and let them end, or give the job "
            "another network or another time.",
            "ss -tnpi state established",
        ),
    )


def has_no_limit(node: Node | None, interface: str) -> bool:
    """Whether its own traffic control was read, and shapes nothing of this interface."""
    shapers = at(node, "network.shapers") if node else Unread("absent", "no such node")
    return not isinstance(shapers, Unread) and all(shaper.interface != interface for shaper in shapers)


def lifted(interface: str, node: Node | None = None) -> list[Remedy]:
    """Where none was seen. netem is for tests alone, tbf limits the whole interface; no other is touched."""
    if has_no_limit(node, interface):
        return []
    device = quote(interface)
    return [
        admin(
            "If netem or tbf stands there, a leftover of a test or a limit that nobody needs, take it away.",
            f"tc qdisc show dev {device} root | grep -E 'netem|tbf' && tc qdisc del dev {device} root",
        )
    ]

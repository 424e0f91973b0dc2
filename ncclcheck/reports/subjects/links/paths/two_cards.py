"""Two cards of a node in one subnet: answers leave by one of them, and what comes in by the other is dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts import Interface, Node, Unread
from ncclcheck.reports.judgement.findings import Evidence, Finding, Where, admin, fail, seen
from ncclcheck.reports.subjects.nccl import lan


def twin(host: Node, link: lan.LanPlace) -> str:
    """Another interface of a node in the subnet of the chosen one."""
    for interface in lan.interfaces(host):
        near = lan.is_usable(interface) and any(net == link.network for _, net in lan.global_networks(interface))
        if near and interface.name.partition(":")[0] != link.interface.name.partition(":")[0]:
            return interface.name
    return ""


_FILTERS = {
    0: "0: what comes in is accepted, whatever the return route",
    1: "1, strict: what comes in by it from an address whose route leaves by another interface is dropped",
    2: "2, loose: what comes in is let in where any route leads back",
}


def filtering(node: str, interface: Interface) -> Iterator[Evidence]:
    """How the kernel filters what comes in by an interface, where it was read."""
    if not isinstance(interface.rp_filter, Unread) and interface.rp_filter in _FILTERS:
        yield seen(f"rp_filter of {interface.name} on {node}", _FILTERS[interface.rp_filter])


def dropped(
    where: Where, link: lan.LanPlace, other: str, what: str, why: str, *, tried: Sequence[Evidence], peer: str
) -> Finding:
    """Strict reverse-path filtering drops what comes in by the chosen one. peer: an address that called it."""
    chosen, on = link.interface.name, f"# on {where.node}"
    is_strict = link.interface.rp_filter == 1
    strict = "(rp_filter is 1) drops" if is_strict else "(rp_filter=1), where set, drops"
    return fail(
        where,
        f"{what}its {chosen} and {other} are both in {link.network}, what it sends leaves by one of them, and "
        f"strict reverse-path filtering {strict} what comes in by the other, ARP included",
        why=why,
        owner="node",
        evidence=[
            seen("getifaddrs", f"{chosen} {link.address}; {other} in {link.network} too"),
            *filtering(where.node or "", link.interface),
            *tried,
        ],
        fix=[
            admin(
                "See which values hold (1 is strict; the larger one of all and the interface counts) and where it "
                "sends to. Loose filtering lets it in, here and in sysctl.d; undo: the value from before.",
                f"sysctl net.ipv4.conf.all.rp_filter net.ipv4.conf.{chosen}.rp_filter   {on}",
                f"ip route get {peer}   {on}" if peer else f"ip route   {on}",
                f"sysctl -w net.ipv4.conf.all.rp_filter=2   {on}",
            ),
            admin(f"Or give {other} a subnet of its own.", f"ip -br addr   {on}"),
        ],
    )

"""Nodes whose chosen interfaces have one MAC address on one wire, as clones of one machine or image have."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, seen
from ncclcheck.reports.subjects.links.reached import Reached, reached
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names

# Each of these has a MAC of its own. An ipvlan, which counts as a macvlan here, has that of its card; an ipoib has
# none; bridges and tunnels of one make have the same one everywhere, and lead nowhere.
_KINDS = {"physical", "bond", "vlan", "veth"}
_NONE = {"00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"}
_LENGTH = 17  # characters of the MAC of an Ethernet card


def findings(cluster: Cluster) -> Iterator[Finding]:
    """One for every node of several that have one MAC in one subnet, unless they reach each other all the same."""
    holders: dict[tuple[lan.IPNetwork, str], list[lan.LanPlace]] = {}
    for link in lan.links(cluster):
        mac = link.interface.mac
        if link.interface.kind in _KINDS and isinstance(mac, str) and len(mac) == _LENGTH and mac not in _NONE:
            holders.setdefault((link.network, mac), []).append(link)
    reach = reached(cluster)
    for (_, mac), links in holders.items():
        distinct = len({link.address for link in links}) == len(links)  # else one machine, given twice
        for link in links if distinct else ():
            others = [other for other in links if other is not link and not _pass(reach, link, other)]
            if others:
                yield _same(mac, link, others)


def _pass(reach: Reached | None, link: lan.LanPlace, other: lan.LanPlace) -> bool:
    """Frames between two cards of one MAC are dropped by both and by the switch: a router is between them."""
    return reach is not None and True in (
        reach.passes(link.node, [other.node]),
        reach.passes(other.node, [link.node]),
    )


def _same(mac: str, link: lan.LanPlace, others: list[lan.LanPlace]) -> Finding:
    name = link.interface.name
    return fail(
        Where(node=link.node, device=name, peer=others[0].node),
        f"{name} of {link.node} has the MAC address {mac}, and so has "
        f"{fold_names(other.node for other in others)} in the same subnet",
        why="The switch sends what is for one of them to the other, by turns: connections hang or break.",
        owner="site",
        evidence=[
            seen(f"{link.node} /sys/class/net/{link.interface.name}/address", mac) for link in [link, *others[:3]]
        ],
        fix=[
            admin(
                "Give all but one a MAC of their own, also in the settings of the virtual machine or bond.",
                f"ip link set dev {quote(name)} address {_own(link)}",
            )
        ],
    )


def _own(link: lan.LanPlace) -> str:
    """A locally administered MAC that no other address of the subnet gives."""
    last = int(ipaddress.ip_address(link.address)) & 0xFFFFFFFF
    return ":".join(f"{byte:02x}" for byte in b"\x02\x00" + last.to_bytes(4, "big"))

"""What lets the nodes of a job through a host's own firewall, whichever tool keeps the rules there."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network

from ncclcheck.reports.findings import Remedy, admin

HIGH = (1024, 65535)
_FIND = "nft list ruleset | grep -nE 'table|chain|hook|drop|reject|limit'"


def let_in(text: str, networks: Sequence[str], on: str, ports: tuple[int, int] = HIGH) -> Remedy:
    """First what shows the rule, then a line for each tool: one of them is right, the others change nothing."""
    return admin(
        f"{text} Only the line of the tool that keeps the rules there has an effect, until they are loaded again: "
        "then put the same into its own file.",
        f"{_FIND}   # on {on}",
        *(f"{line}   # {tool}, on {on}" for tool, line in _lines(list(dict.fromkeys(networks)), ports)),
    )


def _lines(networks: list[str], ports: tuple[int, int]) -> list[tuple[str, str]]:
    """Between these networks, both ways: new connections come in at one end and leave the other."""
    first, last = ports
    six = any(ip_network(one, strict=False).version == 6 for one in networks)
    ip, tables = ("ip6", "ip6tables") if six else ("ip", "iptables")
    among, span = ",".join(networks), f"{first}" if first == last else f"{first}-{last}"
    either = f"{{ {', '.join(networks)} }}" if len(networks) > 1 else among
    colon = span.replace("-", ":")
    chains = "awk '/^table/{t=$2\" \"$3} /chain/{c=$2} /filter hook (prerouting|input|output)/{print t,c}'"
    insert = f"nft insert rule $c {ip} saddr {either} {ip} daddr {either} tcp dport {span} accept"
    return [
        ("nftables", f"nft list chains | {chains} | grep -v '[A-Z]' | while read c; do {insert}; done"),
        (
            "iptables",
            f"for c in INPUT OUTPUT; do {tables} -I $c -s {among} -d {among} -p tcp --dport {colon} -j ACCEPT; "
            "done",
        ),
        ("firewalld", "; ".join(f"firewall-cmd --zone=trusted --add-source={one}" for one in networks)),
        ("ufw", "; ".join(f"ufw prepend allow proto tcp from {one} to any port {colon}" for one in networks)),
    ]

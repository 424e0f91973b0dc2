"""The lines that open a host's firewall: for each tool the right words, and for nftables in every table it has."""

from __future__ import annotations

import subprocess

from ncclcheck.reports.subjects.links.filters.firewall import let_in

_CHAINS = """\
table ip filter {
\tchain INPUT {
\t\ttype filter hook input priority filter; policy drop;
\t}
}
table inet site {
\tchain input {
\t\ttype filter hook input priority filter; policy drop;
\t}
\tchain nat {
\t\ttype nat hook prerouting priority dstnat; policy accept;
\t}
\tchain early {
\t\ttype filter hook prerouting priority raw; policy accept;
\t}
}
"""


def _typed(line: str) -> str:
    """What a line of the fix gives nft to do, on a host with these chains."""
    nft = f'nft() {{ if [ "$1" = list ]; then printf %s {_CHAINS!r}; else echo "$@"; fi; }}\n'
    nft = nft.replace(repr(_CHAINS), "'" + _CHAINS + "'")
    return subprocess.run(
        ["bash", "-c", nft + line], capture_output=True, text=True, check=True, timeout=10
    ).stdout


def test_nftables_accepts_first_in_every_filter_chain_that_is_not_of_iptables() -> None:
    line = let_in("Open it.", ["10.1.0.0/24"], "b").commands[1]
    rule = "ip saddr 10.1.0.0/24 ip daddr 10.1.0.0/24 tcp dport 1024-65535 accept"
    assert _typed(line).splitlines() == [f"insert rule inet site {chain} {rule}" for chain in ("input", "early")]


def test_two_subnets_reach_each_other_both_ways() -> None:
    nft, iptables, firewalld, ufw = let_in(
        "Open it.", ["10.1.0.0/24", "10.2.0.0/24"], "b", (29500, 29500)
    ).commands[1:]
    assert "ip saddr { 10.1.0.0/24, 10.2.0.0/24 } ip daddr { 10.1.0.0/24, 10.2.0.0/24 } tcp dport 29500" in nft
    assert "-s 10.1.0.0/24,10.2.0.0/24 -d 10.1.0.0/24,10.2.0.0/24 -p tcp --dport 29500" in iptables
    assert firewalld.count("--add-source=") == ufw.count("ufw prepend") == 2
    assert all(line.endswith("on b") for line in (nft, iptables, firewalld, ufw))


def test_ipv6_has_words_of_its_own() -> None:
    nft, iptables, *_ = let_in("Open it.", ["2001:db8::/64"], "b").commands[1:]
    assert "ip6 saddr 2001:db8::/64" in nft
    assert "ip6tables -I" in iptables

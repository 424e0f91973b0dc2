"""Scenarios of what one host's own packet filter or name service does to its job."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.lab import Host, faults
from tests.scenarios.scenario import Expect, Scenario, both

_STATES = """nft -f - <<'END'
table inet aging { chain take { type filter hook input priority 0; policy accept
iifname eth0 ct state established accept
iifname eth0 ct state new tcp flags & (syn|ack) == syn accept
iifname eth0 meta l4proto tcp drop
}
}
END
sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=3 net.netfilter.nf_conntrack_tcp_loose=0
"""


def _forgets(host: Host) -> AbstractContextManager[None]:
    """Whoever says nothing for 3 s is a stranger."""
    usual = "net.netfilter.nf_conntrack_tcp_timeout_established=432000 net.netfilter.nf_conntrack_tcp_loose=1"
    return faults.set_up(host, _STATES, f"nft delete table inet aging; sysctl -w {usual}")


def _asks_a_mute_server(host: Host, server: Host) -> AbstractContextManager[None]:
    """It asks a name server that drops the question, and /etc/hosts only then."""
    mute = faults.set_up(
        server,
        "nft add table inet mute; nft add chain inet mute c '{ type filter hook input priority 0; }'; "
        "nft add rule inet mute c udp dport 53 drop",
        "nft delete table inet mute",
    )
    asks = faults.set_up(
        host,
        "cp -L /etc/resolv.conf /run/resolv; cp /etc/nsswitch.conf /run/nsswitch; rm /etc/resolv.conf; "
        f"echo 'nameserver {server.address}' >/etc/resolv.conf; "
        "sed -i 's/^hosts:.*/hosts: dns files/' /etc/nsswitch.conf",
        "cp /run/resolv /etc/resolv.conf; cp /run/nsswitch /etc/nsswitch.conf",
    )
    return both(mute, asks)


OF_FILTERS = (
    Scenario(
        name="a filter that forgets idle connections",
        fault=lambda s: _forgets(s["h2"]),
        expect=(Expect(code="NET020", node="h2", words="idle for 3 s", remedy="timeout_established=432000"),),
        cure="admin",
    ),
    Scenario(
        name="iptables-legacy refuses high ports",
        fault=lambda s: faults.set_up(
            s["h3"],
            "iptables-legacy -A INPUT -i eth0 -p tcp --syn --dport 1024:65535 -j REJECT",
            "iptables-legacy -F INPUT",
        ),
        expect=(
            Expect(code="NET006", node="h3", words="iptables-legacy filter INPUT", remedy="iptables-legacy -t"),
        ),
        cure="admin",
    ),
    Scenario(
        name="a mute name server before /etc/hosts",
        fault=lambda s: _asks_a_mute_server(s["h2"], s["h3"]),
        expect=(Expect(code="HST005", node="h2", words="before /etc/hosts", remedy="nsswitch.conf"),),
        also=("NET013",),
        cure="admin",
        seconds=30.0,
    ),
)

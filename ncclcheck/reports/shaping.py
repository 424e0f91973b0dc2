"""Traffic control that was left on an interface: what slows, delays or drops on purpose."""

from __future__ import annotations

from shlex import quote

from ncclcheck.probes.facts import Node, Shaper, at, value_or
from ncclcheck.reports import lan
from ncclcheck.reports.findings import Remedy, admin

# A limit is the cause where the burst is not much slower than it: its bucket lets the first bytes pass at full
# speed. Bursts through a tbf of 50 and 200 Mbit/s were 2 and 5 times as fast as its rate.
_ABOUT = 2.0


def limit(node: Node, link: lan.Link | None, gbit: float) -> Shaper | None:
    """What on the node itself limits what its interface sends to about this rate."""
    shapers: list[Shaper] = value_or(at(node, "network.shapers"), [])
    for one in shapers:
        rate = one.bytes_per_s * 8 / 1e9
        if link and one.root and one.interface == link.interface.name and 0 < rate <= _ABOUT * gbit:
            return one
    return None


def taken_away(shaper: Shaper) -> Remedy:
    """Of a limit that is known."""
    return admin(
        "Take the limit away, here and where it is set up.", f"tc qdisc del dev {quote(shaper.interface)} root"
    )


def lifted(interface: str) -> Remedy:
    """Where none was seen. netem is for tests alone, tbf limits the whole interface; no other is touched."""
    device = quote(interface)
    return admin(
        "If netem or tbf stands there, a leftover of a test or a limit that nobody needs, take it away.",
        f"tc qdisc show dev {device} root | grep -E 'netem|tbf' && tc qdisc del dev {device} root",
    )

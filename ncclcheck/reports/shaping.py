"""Traffic control that was left on an interface: what slows, delays or drops on purpose."""

from __future__ import annotations

from shlex import quote

from ncclcheck.reports.findings import Remedy, admin


def lifted(interface: str) -> Remedy:
    """netem is for tests alone, tbf limits the whole interface; other disciplines are left as they are."""
    device = quote(interface)
    return admin(
        "If netem or tbf stands there, a leftover of a test or a limit that nobody needs, take it away.",
        f"tc qdisc show dev {device} root | grep -E 'netem|tbf' && tc qdisc del dev {device} root",
    )

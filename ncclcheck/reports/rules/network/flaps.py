"""NET019: links that carry the job did not come and go."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, Unread, at, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fine, note, seen, unknown, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import carrying, lan
from ncclcheck.reports.text.words.fold import many

# Times down since boot that are still no flapping: a driver that is loaded, a bond that is made and a netplan
# apply take a link down once each, a reboot of the switch twice. Chosen.
_DOWNS = 6
_A_DAY = 2.0  # times down a day, since boot; below it is maintenance. Chosen
_ALIKE = 3.0  # times the median of the same link on other nodes: what all share is the switch's. Chosen

_CALM = "no link of the job has been flapping"


@rule("NET019", "the links of the job have not been flapping", worst=State.WARN, needs=("network.interfaces",))
def flaps(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How often a link that carries the job's traffic has lost its carrier since boot: NCCL's interfaces for TCP, the
    interfaces of the RoCE ports that it would use, and members of their bonds.

    ## Why it matters
    A link that is up now may have been down ten times since yesterday. Each time connections over RoCE end with
    status 12 when the retries are used up, and sockets wait for seconds; between two flaps all tests pass.

    ## Seen as
    dies

    ## How we know
    carrier_down_count in /sys/class/net, which every user may read, and the time since boot. More than 6 times
    down, and more than twice a day, is a warning where the same link of other nodes went down less than a third as
    often; where it did so on all nodes, or only one node was asked, it is a note: the switch may have been
    restarted. A node that counted more and does not give its uptime is unknown. BEN018 watches the same during the
    job, RDM007 counts the same of InfiniBand ports.

    ## Fix
    - **admin** on the named node: the kernel log shows the times of `Link down`; then cable, transceiver
      (`ethtool -m eth0`) and the switch port.
    - **you** leave the node out until then.

    ## Source
    The kernel's ABI documentation, sysfs-class-net (carrier_down_count); Azure/azurehpc-health-checks
    (azure_ib_link_flapping), oracle-quickstart/oci-hpc (rdma_link_flapping.py).
    """
    downs = {node.name: counts for node in cluster.nodes if (counts := _counted(node))}
    if not downs:
        raise NothingToJudge("no interface of the job reports how often it lost its link")
    days = {node.name: _days(node) for node in cluster.nodes}
    for name, counts in downs.items():
        since = days[name]
        many_times = {link: n for link, n in counts.items() if n > _DOWNS}
        if isinstance(since, Unread):
            yield _since_when(name, many_times, since) if many_times else fine(Where(node=name), _CALM)
            continue
        flapping = {link: n for link, n in many_times.items() if n / since > _A_DAY}
        for link, count in flapping.items():
            others = [theirs[link] for other, theirs in downs.items() if other != name and link in theirs]
            yield _said(name, link, count, since, others)
        if not flapping:
            yield fine(Where(node=name), _CALM)


def _counted(node: Node) -> dict[str, int]:
    """The links that carry the job, and how often each went down; only those that say so."""
    listed = {interface.name: interface for interface in lan.interfaces(node)}
    names = {*lan.choice_of_nccl(node).names}
    for port in carrying.choice(node).used if not isinstance(at(node, "rdma.devices"), Unread) else ():
        names |= {gid.netdev for gid in value_or(port.port.gids, []) if isinstance(gid.netdev, str)}
    for name in [*names]:
        names |= {*(value_or(listed[name].members, []) if name in listed else [])}
    return {
        name: downs for name in sorted(names) if name in listed and isinstance(downs := listed[name].downs, int)
    }


def _days(node: Node) -> float | Unread:
    """Since boot, at least one."""
    seconds: float | Unread = at(node, "host.uptime_s")
    return seconds if isinstance(seconds, Unread) else max(1.0, seconds / 86400)


def _since_when(node: str, counts: dict[str, int], uptime: Unread) -> Finding:
    text = ", ".join(f"{link} {count} times" for link, count in counts.items())
    return unknown(
        Where(node=node),
        f"{text} without a link, in a time that is not known",
        why="As many are nothing in a year, and a broken cable in a day.",
        evidence=[seen("/proc/uptime", uptime.why)],
    )


def _said(node: str, link: str, count: int, days: float, others: list[int]) -> Finding:
    alone = bool(others) and count > _ALIKE * statistics.median(others)
    elsewhere = f", {statistics.median(others):g} on other nodes" if others else ""
    return (warn if alone else note)(
        Where(node=node, device=link),
        f"{link} lost its link {count} times in {many(round(days), 'day')}{elsewhere}",
        why="Each time connections break or wait for seconds, and between two flaps all tests pass.",
        owner="node" if alone else "site",
        evidence=[seen(f"/sys/class/net/{link}/carrier_down_count", count)],
        fix=[
            admin("Look for the times, and at cable, transceiver and switch port.",
                  f"dmesg -T | grep -E '{link}.*[Ll]ink'", f"ethtool -m {quote(link)}"),
            you("Leave the node out until then.", f"sbatch --exclude={quote(node)} JOB"),
        ],
    )  # fmt: skip

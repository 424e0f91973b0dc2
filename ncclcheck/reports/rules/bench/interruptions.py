"""BEN018: what held up the job for seconds and went by: a link, a host, or the network between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ncclcheck.probes.facts import (
    Cluster,
    Collective,
    Interruptions,
    Moved,
    Node,
    Resources,
    Traffic,
    Unread,
    value_or,
)
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    State,
    Where,
    admin,
    fail,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.links import in_job
from ncclcheck.reports.subjects.links.reached import closed
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import size

_SHARE = 0.1  # of what a node moved: a link with less did not carry the job (ssh on mgmt0 moves 1 % of it)
_STEP_S = 1.0  # s by which a clock must jump before it is worth a finding; chosen
_ENOUGH = 6  # iterations from which the median of a row says what is usual


@rule("BEN018", "no link, host or network stalled during the job", worst=State.FAIL,
      over="measurements.interruptions", commands=("bench", "smoke"))  # fmt: skip
def nothing_stood_still(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    While the job ran, no interface or HCA port that carried it lost its link, no host stood still, and no
    iteration of a collective took seconds longer than the others of its row.

    ## Why it matters
    A link that drops for three seconds, or a virtual machine that is paused for eight, leaves no trace in medians:
    the table looks sound. In training all ranks wait meanwhile, RDMA connections break, and a watchdog of a few
    minutes ends the job when the next outage is longer.

    ## Seen as
    dies

    ## How we know
    The kernel counts how often a link went down (carrier_down_count; link_downed of an HCA port). A thread of
    the agent that only sleeps comes late where the host is stopped; what it waited for a core meanwhile
    (schedstat) is not counted. The longest iteration of each row is compared with its median, or where it has
    few against the next smaller size. FAIL: a link of the job went down. warn: a member of a bond went down; a
    host stood still for BEN018.paused_s (1 s) and more; an iteration took BEN018.longest_s (2 s) and 20 times
    the usual more, and no rank waited for a core; the wall clock was set by a second and more, compared with
    one that nobody sets. note: all else of the kind. What an outage costs between two iterations is not timed.
    The job's TCP connections are looked at five times a second (sock_diag(7)): one that repeats what nobody
    acknowledges has lost its path, whatever the cores do, for acknowledging is the kernel's work. What is sent
    again needlessly, as a busy host does, the other side reports (DSACK), and it is not counted. A warning names
    the node that all silent pairs have in common, or two nodes; and who loses more than 2 %
    (NET009.retransmits_percent) and lost less before the job.

    ## Fix
    - **admin** a link: `dmesg -T | grep -i link` on the named node; cable, transceiver, switch port and its log.
    - **admin** a host: live migration and snapshots of virtual machines, `dmesg -T`, swapping, SMI, a job system
      that suspends jobs.
    - **you** leave the named node out until then.

    ## Source
    The kernel's ABI documentation, sysfs-class-net (carrier_down_count); proc(5), /proc/PID/schedstat;
    sock_diag(7), tcp(7), RFC 2883;
    arXiv:2407.21783, section 3.3.4 (causes of interruptions in training).
    """
    hosts = cluster.measurements.interruptions
    if not hosts:
        raise NothingToJudge("no node watched for interruptions")
    limits = cluster.policy.thresholds
    longest = _longest(cluster.measurements.collectives)
    stood = longest if longest is not None and longest.excess_s >= 1.0 else None
    findings = [
        *_links(cluster, stood),
        *_hosts(hosts, stood, limits.get("BEN018.paused_s", 1.0)),
        *_clocks(cluster.measurements.resources),
    ]
    told_already = {finding.where.node or "" for finding in findings} | {
        node for p in closed(cluster) for node in p
    }
    told_already |= {silence.node for silence in cluster.run.silent}
    findings += in_job.findings(cluster, told_already, f": {stood}" if stood else "")
    yield from findings
    if stood is not None and not any(finding.state in (State.FAIL, State.WARN) for finding in findings):
        yield _unexplained(cluster, stood, limits.get("BEN018.longest_s", 2.0))


@dataclass(frozen=True)
class _Longest:
    """An iteration and what is usual for it, seconds."""

    row: Collective
    seconds: float
    usual_s: float

    @property
    def excess_s(self) -> float:
        """How much longer it took."""
        return self.seconds - self.usual_s

    def __str__(self) -> str:
        row = f"{self.row.op} {size(self.row.bytes)}" if self.row.bytes else self.row.op
        return f"an iteration of {row} took {self.seconds:.2f} s, {self.usual_s * 1e3:.3g} ms are usual"


def _longest(rows: list[Collective]) -> _Longest | None:
    """The iteration that stood out most, of all rows of which it is known what is usual."""
    peaks: list[_Longest] = []
    for row in rows:
        if row.time_us is not None and (usual := _usual_us(row, rows)) is not None:
            peaks.append(_Longest(row, row.time_us.max / 1e6, usual / 1e6))
    return max(peaks, key=lambda peak: peak.excess_s, default=None)


def _usual_us(row: Collective, rows: list[Collective]) -> float | None:
    """Its median; where it has few iterations no more than the next smaller size would take, piece by piece."""
    if row.time_us is not None and row.iterations >= _ENOUGH:
        return row.time_us.p50
    smaller = [
        collective
        for collective in rows
        if collective.op == row.op
        and 0 < collective.bytes < row.bytes
        and collective.iterations >= _ENOUGH
        and collective.time_us
    ]
    nearest = max(smaller, key=lambda collective: collective.bytes, default=None)
    return nearest.time_us.p50 * row.bytes / nearest.bytes if nearest and nearest.time_us else None


def _links(cluster: Cluster, stood: _Longest | None) -> Iterator[Finding]:
    traffic = {traffic.node: traffic for traffic in cluster.measurements.traffic}
    members = {node.name: _members(node) for node in cluster.nodes}
    chosen = {link.node: link.interface.name for link in lan.links(cluster)}
    for interruption in cluster.measurements.interruptions:
        carried = _carried(traffic.get(interruption.node)) | {chosen.get(interruption.node, "")}
        for link in interruption.links:
            where = Where(node=interruption.node, device=link.name)
            times = "once" if link.downs == 1 else f"{link.downs} times"
            what = f"{link.name} lost its link {times} while the job ran"
            evidence = [
                seen(_source(link.name), f"rose by {link.downs} in {interruption.seconds:.0f} s"),
                *_retransmits(interruption),
            ]
            if link.name not in carried:
                yield note(where, f"{what}, which did not use it", evidence=evidence)
                continue
            level = warn if link.name in members.get(interruption.node, ()) else fail
            yield level(
                where,
                what if stood is None else f"{what}: {stood}",
                why="All ranks wait while it is down; RDMA connections break, and the next outage may be longer.",
                owner="node",
                evidence=evidence,
                fix=[
                    admin("Look at its cable, transceiver and switch port.", "dmesg -T | grep -i 'link'",
                          f"ip -s -s link show {link.name.partition(':')[0]}"),
                    you("Leave the node out until then.", f"#SBATCH --exclude={interruption.node}"),
                ],
            )  # fmt: skip


def _members(node: Node) -> set[str]:
    """Interfaces behind which others of their bond carry on."""
    return {
        name
        for interface in lan.interfaces(node)
        if interface.kind == "bond"
        for name in value_or(interface.members, [])
    }


def _source(name: str) -> str:
    if ":" in name:
        device, _, port = name.partition(":")
        return f"/sys/class/infiniband/{device}/ports/{port}/counters/link_downed"
    return f"/sys/class/net/{name}/carrier_down_count"


def _carried(traffic: Traffic | None) -> set[str]:
    """The interfaces and ports over which this node moved what counts."""
    lists = [traffic.interfaces, traffic.hcas] if traffic else []
    moved: list[Moved] = [moved for listed in lists if not isinstance(listed, Unread) for moved in listed]
    least = _SHARE * sum(_bytes(moved) for moved in moved if moved.name != "lo")
    return {moved.name for moved in moved if moved.name != "lo" and _bytes(moved) >= max(1.0, least)}


def _bytes(moved: Moved) -> int:
    return moved.sent + moved.received


def _retransmits(interruptions: Interruptions) -> list[Evidence]:
    if not interruptions.retransmits:
        return []
    return [
        seen(
            f"/proc/net/snmp on {interruptions.node}",
            f"{interruptions.retransmits} of {interruptions.segments} TCP segments sent again",
        )
    ]


def _hosts(hosts: list[Interruptions], stood: _Longest | None, least: float) -> Iterator[Finding]:
    effect = f": {stood}" if stood else ""
    for host in hosts:
        if host.paused_s is not None and host.paused_s >= least:
            yield warn(
                Where(node=host.node),
                f"the host stood still for {host.paused_s:.1f} s while the job ran{effect}",
                why="Nothing ran on it meanwhile, and all ranks of the job waited for it.",
                owner="node",
                evidence=[
                    seen("a thread that was due", f"{host.paused_s:.1f} s late, and it waited for no core"),
                    seen("longest silence, as the launcher heard it", f"{host.silent_s:.1f} s"),
                ],
                fix=[
                    admin("See whether the machine was paused, moved or suspended, or swapped.",
                          "dmesg -T | tail -50", "vmstat 1 5"),
                    you("Leave the node out if it comes again.", f"#SBATCH --exclude={host.node}"),
                ],
            )  # fmt: skip


def _clocks(measured: list[Resources]) -> Iterator[Finding]:
    """A clock that is slewed moves by 0.5 ms a second at most: so much in one job is a step."""
    for resources in measured:
        if abs(resources.clock_step_s) < _STEP_S:
            continue
        way = "ahead" if resources.clock_step_s > 0 else "back"
        yield warn(
            Where(node=resources.node),
            f"its wall clock was set {way} by {abs(resources.clock_step_s):.1f} s while the job ran",
            why="torchrun's heartbeats carry the time of day: a step of 15 s makes it take a node for dead; "
            "munge's credentials expire.",
            owner="node",
            evidence=[
                seen("time(2) less clock_gettime(CLOCK_BOOTTIME)", f"moved by {resources.clock_step_s:+.3f} s")
            ],
            fix=[
                admin("Let one daemon alone keep the clock, and slew it.", "chronyc tracking", "timedatectl"),
                you("Leave the node out until its clock is steady.", f"#SBATCH --exclude={resources.node}"),
            ],
        )


def _unexplained(cluster: Cluster, stood: _Longest, least: float) -> Finding:
    """Nothing that was counted on any host explains it."""
    waited = max(
        (_waited(lateness.runqueue_s, lateness.stalled_s) for lateness in cluster.measurements.lateness),
        default=0.0,
    )
    starved = max(
        (interruption.starved_s or 0.0 for interruption in cluster.measurements.interruptions), default=0.0
    )
    evidence = [
        seen("longest iteration", f"{stood.seconds:.2f} s, usual {stood.usual_s * 1e3:.3g} ms"),
        seen("longest wait of any rank for a core, in sum", f"{waited:.1f} s"),
        *(item for interruption in cluster.measurements.interruptions for item in _retransmits(interruption)),
    ]
    lonely = _alone_silent(cluster.measurements.interruptions, stood.excess_s)
    where = Where(node=lonely.node if lonely else None)
    if lonely:
        evidence.append(seen(f"longest silence of {lonely.node}", f"{lonely.silent_s:.1f} s"))
    busy = max(waited, starved) >= stood.excess_s / 2
    if busy or stood.excess_s < least or stood.seconds < 20 * stood.usual_s:
        because = ": ranks waited for cores meanwhile" if busy else ""
        return note(where, f"{stood}{because}", why="It may come again, and longer.", evidence=evidence)
    return warn(
        where,
        f"{stood}; no host stood still, no link was lost, and no rank waited for a core: the network lost packets",
        why="All ranks wait meanwhile; a longer outage ends the job with a time-out that names no cause.",
        owner="site",
        evidence=evidence,
        fix=[
            admin("Look at the logs and counters of the switches for that time."),
            you("See whether it comes again.", "ncclcheck bench --soak 60"),
        ],
    )


def _waited(runqueue_s: float | None, stalled_s: float) -> float:
    return max(runqueue_s or 0.0, stalled_s)


def _alone_silent(hosts: list[Interruptions], least: float) -> Interruptions | None:
    """The one node of which the launcher heard nothing for as long, while it heard the others."""
    if len(hosts) < 2:
        return None
    second, first = sorted(hosts, key=lambda interruptions: interruptions.silent_s)[-2:]
    return first if first.silent_s >= max(2.0, least / 2, 2 * second.silent_s) else None

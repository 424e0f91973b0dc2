"""BEN040: what the ports of the job counted of losses, pauses and congestion while it ran."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule

# Events in one job, from which on a port is called bad where the others have few; of a link or a card that is well
# they are 0 in minutes. BEN040.NAME in the site file.
_LOSSES = {
    "packet_seq_err": 100.0,
    "local_ack_timeout_err": 10.0,
    "rnr_nak_retry_err": 100.0,
    "implied_nak_seq_err": 100.0,
    "roce_adp_retrans": 100.0,
    "rx_icrc_encapsulated": 10.0,
    "port_xmit_discards": 1000.0,
    "port_rcv_errors": 10.0,
    "symbol_error": 10.0,
    "link_error_recovery": 1.0,
    "rx_discards_phy": 1000.0,
    "tx_discards_phy": 1000.0,
    "rx_crc_errors_phy": 10.0,
}
_CONGESTION = {
    "np_ecn_marked_roce_packets": "packets that a switch marked (ECN)",
    "np_cnp_sent": "congestion notices sent (CNP)",
    "rp_cnp_handled": "congestion notices obeyed (CNP)",
    "out_of_sequence": "packets out of sequence, which adaptive routing makes too",
    "rx_out_of_buffer": "packets without a receive buffer",
    "retrans_timeout_events": "time-outs of EFA",
}
_PAUSED = re.compile(r"(rx|tx)_prio[0-7]_pause_duration")  # microseconds
_TIMES_PEERS = 10.0  # times the usual count of the peers; chosen
# Of the job's time, the share for which a port told its switch to stop. A host that takes what it is sent never
# does; one that is behind by a hundredth of the time slows every sender to it by as much, and those behind them.
_PAUSING_PERCENT = 1.0
_HELD_PERCENT = 10.0  # % of the time that a port was paused by its switch; chosen


@dataclass(frozen=True)
class _PortCount:
    """A port or interface, and what it counted in how many seconds."""

    node: str
    name: str
    counters: Mapping[str, int]
    seconds: float

    def paused(self, way: str) -> float:
        """Percent of the time; of several priorities the worst."""
        pauses = [
            value
            for name, value in self.counters.items()
            if (match := _PAUSED.fullmatch(name)) and match[1] == way
        ]
        return min(100.0, max(pauses, default=0) / 1e4 / self.seconds) if self.seconds else 0.0


@rule("BEN040", "no port dropped packets or sent pause frames during the job", worst=State.WARN,
      over="measurements.traffic", commands=("bench", "smoke"))  # fmt: skip
def ports_of_the_job(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    By how much the counters of each RDMA port and network card rose while the job ran: packets lost, repeated or
    out of sequence, pauses (PFC) that were received and sent, marks of congestion (ECN) and notices of it (CNP).

    ## Why it matters
    Counters since the boot show last month's cable. Those of the job show what it ran into: one lost packet
    makes RoCE repeat all that followed; a host that cannot take what it is sent pauses its switch port, and with
    it everybody who sends through that switch (a pause storm).

    ## How we know
    Counters before torchrun was started and after it ended: counters and hw_counters of /sys/class/infiniband, and
    ethtool's statistics of the card (pauses: those of mlx5). A warning for a port that counted more than a few
    (BEN040.NAME in the site file: packet_seq_err, rnr_nak_retry_err, implied_nak_seq_err and roce_adp_retrans 100,
    local_ack_timeout_err 10, discards 1000, errors of the wire 10) and ten times as many as the median of all
    ports (BEN040.times_peers); and for one that paused its switch for 1 % of the time (BEN040.pausing_percent)
    while others did not. What all ports have is the fabric's habit and a note, so are ECN, CNP, packets out of
    sequence, and being paused for 10 % of the time; pauses without one notice of congestion show that ECN is not
    set up.

    ## Fix
    - **admin** lost packets: cable, transceiver and switch port of the named one; PFC and ECN for the class of
      this traffic on NIC and switch (`mlnx_qos -i NETDEV`). A host that pauses: its PCIe link, IOMMU, memory and
      MaxReadReq, as on a node that does not.
    - **you** give NCCL the class that the site made lossless: `NCCL_IB_TC`.

    ## Source
    NVIDIA, Understanding mlx5 Linux counters, and mlx5 ethtool counters; Guo et al., RDMA over Commodity Ethernet
    at Scale (SIGCOMM 2016: slow receivers, pause storms); NVIDIA/nccl#378; NVIDIA/nccl#2383.
    """
    ports = _ports(cluster)
    if not ports:
        raise NothingToJudge("no port counts losses or pauses")
    bad = [*_lossy(cluster, ports), *_pausing(cluster, ports)]
    yield from bad
    named = {(finding.where.node, finding.where.device) for finding in bad}
    yield from _habits([port for port in ports if (port.node, port.name) not in named])


def _ports(cluster: Cluster) -> list[_PortCount]:
    listed: list[_PortCount] = []
    for traffic in cluster.measurements.traffic:
        risen = {port.name: port.counters for port in traffic.risen}
        listed += [
            _PortCount(traffic.node, name, risen.get(name, {}), traffic.seconds) for name in traffic.counted
        ]
    return listed


def _usual(ports: list[_PortCount], value: Callable[[_PortCount], float]) -> float:
    """The median of all; with fewer than three there is none."""
    return median(map(value, ports)) if len(ports) > 2 else 0.0


def _lossy(cluster: Cluster, ports: list[_PortCount]) -> Iterator[Finding]:
    bounds = {name: _bound(cluster, ports, name, least) for name, least in _LOSSES.items()}
    for port in ports:
        if high := {
            name: port.counters[name] for name, most in bounds.items() if port.counters.get(name, 0) >= most
        }:
            yield warn(
                Where(node=port.node, device=port.name),
                "counted during the job: " + ", ".join(f"{name} {value}" for name, value in high.items()),
                why="What is lost is sent again, with all that followed it, and every rank waits for that.",
                owner="node",
                evidence=[seen(_source(port.name), f"{name} rose by {value}") for name, value in high.items()],
                fix=_look(port),
            )


def _bound(cluster: Cluster, ports: list[_PortCount], name: str, least: float) -> float:
    limits = cluster.policy.thresholds
    usual = _usual(ports, lambda port: port.counters.get(name, 0))
    return max(limits.get(f"BEN040.{name}", least), limits.get("BEN040.times_peers", _TIMES_PEERS) * usual)


def _pausing(cluster: Cluster, ports: list[_PortCount]) -> Iterator[Finding]:
    limits = cluster.policy.thresholds
    least = limits.get("BEN040.pausing_percent", _PAUSING_PERCENT)
    usual = limits.get("BEN040.times_peers", _TIMES_PEERS) * _usual(ports, lambda port: port.paused("tx"))
    for port in ports:
        if (share := port.paused("tx")) >= max(least, usual):
            yield warn(
                Where(node=port.node, device=port.name),
                f"told its switch to stop for {share:.0f} % of the job: the host does not take what it is sent",
                why="Everybody who sends through that switch port waits as long, other nodes among them.",
                owner="node",
                evidence=[
                    seen(f"ethtool -S {port.name}", f"{name} rose by {value} us")
                    for name, value in port.counters.items()
                    if name.startswith("tx_") and _PAUSED.fullmatch(name)
                ],
                fix=[
                    admin("Compare PCIe link, IOMMU and memory of its card with a node that does not pause.",
                          f"ethtool -S {port.name} | grep pause", "lspci -vv | grep -e LnkSta: -e MaxReadReq"),
                    you("Leave the node out until then.", f"#SBATCH --exclude={port.node}"),
                ],
            )  # fmt: skip


def _habits(ports: list[_PortCount]) -> Iterator[Finding]:
    """One note of what rose on the others."""
    counted = ((name, _CONGESTION.get(name, "")) for name in (*_CONGESTION, *_LOSSES))
    lines = [line for name, words in counted if (line := _sum(ports, name, words))]
    worst = max(ports, key=lambda port: port.paused("rx"), default=None)
    if worst is not None and (share := worst.paused("rx")) >= _HELD_PERCENT:
        lines.append(f"{worst.node} {worst.name} was paused for {share:.0f} % of the time")
        if not any(name in port.counters for port in ports for name in ("np_cnp_sent", "rp_cnp_handled")):
            lines.append("no notice of congestion (CNP) was sent: ECN is not set up")
    if lines:
        yield note(
            Where(), f"ports counted during the job: {lines[0]}" + (" and more" if len(lines) > 1 else ""),
            why="Congestion that is controlled costs little; packets that are lost, or long pauses, cost time.",
            owner="site", evidence=[seen("counters before and after the job", line) for line in lines],
        )  # fmt: skip


def _sum(ports: list[_PortCount], name: str, words: str) -> str:
    counts = {f"{port.node} {port.name}": port.counters[name] for port in ports if name in port.counters}
    if not counts:
        return ""
    most = max(counts, key=counts.__getitem__)
    text = f"{name} {sum(counts.values())} on {len(counts)} ports, most on {most}"
    return f"{text} ({words})" if words else text


def _source(name: str) -> str:
    if ":" in name:
        device, _, port = name.partition(":")
        return f"/sys/class/infiniband/{device}/ports/{port}"
    return f"ethtool -S {name}"


def _look(port: _PortCount) -> list[Remedy]:
    hca = port.name.partition(":")[0]
    look = [f"mlxlink -d {hca} -m -c"] if ":" in port.name else [f"ethtool -S {port.name} | grep -e phy -e pause"]
    return [admin("Look at cable, transceiver and switch port, and at flow control for this traffic.", *look)]

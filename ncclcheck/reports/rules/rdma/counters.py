"""RDM007, RDM008: error counters of the ports that NCCL would use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from ncclcheck.probes.facts import Cluster, Unread
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, not_read, seen, warn
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import carrying
from ncclcheck.reports.subjects.nccl.hca import UsedPort

_LINK_ERRORS = {
    "symbol_error": 1000.0,
    "link_downed": 10.0,
    "link_error_recovery": 10.0,
    "local_link_integrity_errors": 10.0,
    "port_rcv_errors": 1000.0,
}
_LOSSES = {
    "packet_seq_err": 1000.0,
    "local_ack_timeout_err": 100.0,
    "rnr_nak_retry_err": 1000.0,
    "implied_nak_seq_err": 1000.0,
    "roce_adp_retrans": 1000.0,
    "rx_icrc_encapsulated": 10.0,
    "port_xmit_discards": 10000.0,
}
_TIMES_PEERS = 10.0  # times the usual count of the peers; chosen
Counted = list[tuple[str, UsedPort, Mapping[str, int]]]


def _counted(cluster: Cluster) -> tuple[Counted, list[Finding]]:
    """The counters of each port that is used, and findings for those that could not be read."""
    counted: Counted = []
    unread: list[Finding] = []
    for node, taken in carrying.choosing(cluster):
        for port in taken.used:
            counters = port.port.counters
            if not isinstance(counters, Unread):
                counted.append((node.name, port, {counter.name: counter.value for counter in counters}))
            elif counters.kind != "absent":
                unread.append(_no_counters(node.name, port, counters))
    if not counted and not unread:
        raise NothingToJudge("no port with error counters")
    return counted, unread


def _no_counters(node: str, port: UsedPort, fact: Unread) -> Finding:
    where = Where(node=node, device=port.name)
    return not_read(where, "counters", fact, "its error counters could not be read")


@rule("RDM007", "physical link errors are negligible", worst=State.WARN, needs=("rdma.devices",))
def link_errors(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The counters of a port that show a bad cable or transceiver: bits that were wrong on the wire, links that
    retrained, links that went down.

    ## Why it matters
    A flapping link ends the job with `Got async event : port error` or status 12 after hours of good work; one
    with bit errors sends again and is the slowest of all. NVIDIA's advice is to repair it before NCCL is tuned.

    ## Seen as
    slow, dies

    ## How we know
    /sys/class/infiniband/HCA/ports/N/counters, which count since the driver was loaded, so that old errors count
    too; some stop at 255 or 65535. A warning from these on (RDM007.NAME in the site file): symbol_error 1000,
    link_downed 10, link_error_recovery 10, local_link_integrity_errors 10, port_rcv_errors 1000.

    ## Fix
    - **admin** `mlxlink -d HCA -m -c` for the bit error rate, clean or replace cable and transceiver, move it to
      another switch port; `perfquery -R` clears the counters of InfiniBand, so that the next run shows what is
      new; on RoCE compare with an earlier run.

    ## Source
    NCCL user guide, Troubleshooting, Networking; NVIDIA, Understanding mlx5 Linux counters; perfquery(8).
    """
    counted, unread = _counted(cluster)
    yield from unread
    for node, port, counters in counted:
        limits = {
            name: cluster.policy.thresholds.get(f"RDM007.{name}", most) for name, most in _LINK_ERRORS.items()
        }
        if high := {name: counters[name] for name, most in limits.items() if counters.get(name, 0) >= most}:
            yield _errors(node, port, high, "The link is bad or was: it may fail the job, or slow it down.")


@rule("RDM008", "packet loss and retransmits are negligible", worst=State.WARN, needs=("rdma.devices",))
def losses(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The counters of an HCA that show packets that were lost, came out of order or were not acknowledged.

    ## Why it matters
    RDMA expects a network that loses nothing: one lost packet makes the sender repeat all that followed it, and
    a lost acknowledgement costs a time-out. Loss on RoCE comes from switches without flow control for the class
    of this traffic, from a wrong traffic class, and from congestion.

    ## Seen as
    hangs

    ## How we know
    hw_counters and counters of each port, since the driver was loaded. A warning where one is above its bound
    (RDM008.NAME in the site file: packet_seq_err, rnr_nak_retry_err, implied_nak_seq_err and roce_adp_retrans
    1000, local_ack_timeout_err 100, rx_icrc_encapsulated 10, port_xmit_discards 10000) and, with three ports or
    more, above 10 times the median of all ports (RDM008.times_peers): what all have is the fabric's habit.
    out_of_sequence is not judged, for adaptive routing makes it rise on sound fabrics.

    ## Fix
    - **admin** look at PFC and ECN on NIC and switch (`ethtool -S NETDEV | grep -i -e pause -e discard`,
      `mlnx_qos -i NETDEV`), at the switch port's drops, at cable and transceiver.
    - **you** give NCCL the traffic class that the site made lossless: `NCCL_IB_TC`.

    ## Source
    NVIDIA, Understanding mlx5 Linux counters; NCCL user guide, Troubleshooting, Networking; NVIDIA/nccl#378,
    NVIDIA/nccl#2383.
    """
    counted, unread = _counted(cluster)
    yield from unread
    times = cluster.policy.thresholds.get("RDM008.times_peers", _TIMES_PEERS)
    bounds = {name: _bound(cluster, name, most, counted, times) for name, most in _LOSSES.items()}
    for node, port, counters in counted:
        if high := {name: counters[name] for name, most in bounds.items() if counters.get(name, 0) > most}:
            yield _errors(node, port, high, "What is lost is sent again, with all that followed it.")


def _bound(cluster: Cluster, name: str, most: float, counted: Counted, times: float) -> float:
    seen_everywhere = [counters[name] for _, _, counters in counted if name in counters]
    usual = median(seen_everywhere) if len(seen_everywhere) > 2 else 0
    return max(cluster.policy.thresholds.get(f"RDM008.{name}", most), usual * times)


def _errors(node: str, port: UsedPort, high: Mapping[str, int], why: str) -> Finding:
    return warn(
        Where(node=node, device=port.name),
        ", ".join(f"{name} {value}" for name, value in high.items()) + " since its driver was loaded",
        why=why,
        owner="node",
        evidence=[
            seen(f"/sys/class/infiniband/{port.hca.name}/ports/{port.port.name}", f"{name} {value}")
            for name, value in high.items()
        ],
        fix=[admin("Look at cable, transceiver and both ports, and again after a job.", *_look(port))],
    )


def _look(port: UsedPort) -> list[str]:
    """perfquery, which clears the counters, speaks InfiniBand alone."""
    clear = f"perfquery -R -C {port.hca.name} -P {port.port.name}"
    return [f"mlxlink -d {port.hca.name} -m -c", *([] if port.is_roce else [clear])]

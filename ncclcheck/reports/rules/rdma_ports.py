"""RDM005 to RDM008: the state of the ports that NCCL would use, and their error counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from ncclcheck.probes.facts import Cluster, Unread, value_or
from ncclcheck.reports import wiring
from ncclcheck.reports.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    note,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.fold import fold_names
from ncclcheck.reports.hca import HcaChoice, UsedPort, parse_hca
from ncclcheck.reports.rule import NothingToJudge, rule
from ncclcheck.reports.variables import values

_HALF_UP = ("INIT", "ARMED")
_FEWER = "NCCL leaves a port out that is not ACTIVE: the job goes on over fewer links, or stops."


@rule("RDM005", "the ports that NCCL would use are up", worst=State.FAIL, needs=("rdma.devices",))
def ports_up(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Each port that NCCL would take is ACTIVE. A port that is down is FAIL where NCCL_IB_HCA names it or where the
    same port is up on other nodes; a warning where an equal card of this node is up; else a note, for cards with
    a spare port are common.

    ## Why it matters
    NCCL leaves such a port out and says nothing. The node then has fewer links than the others, and the whole
    job goes at its pace; with as many rails as GPUs it may also fail while it connects.

    ## How we know
    /sys/class/infiniband/HCA/ports/N/state and phys_state. Polling: no partner answers at the other end of the
    cable. Disabled: switched off by software. INIT and ARMED on InfiniBand are told by RDM006.

    ## Fix
    - **admin** `ibstat`, `ibdev2netdev`; reseat or replace cable and transceiver, look at the switch port;
      `ip link set NETDEV up` for RoCE, `ibportstate` or a reboot for a disabled InfiniBand port.
    - **you** leave the node out until then.

    ## Source
    NCCL user guide, Troubleshooting, Networking; ibstat(8), ibportstate(8).
    """
    found = list(wiring.choosing(cluster))
    up = {(node.name, one.hca.name, one.port.name) for node, taken in found for one in taken.used}
    if not any(wiring.wanted(taken) for _, taken in found):
        raise NothingToJudge("no port of an HCA that NCCL could use")
    for node, taken in found:
        yield from (_unseen(node.name, one) for one in taken.unseen)
        down = [one for one in taken.inactive if one.is_roce or one.port.state not in _HALF_UP]
        exact = _named_exactly(values(node).get("NCCL_IB_HCA", ""))
        for one in down:
            others = {n for n, hca, port in up if (hca, port) == (one.hca.name, one.port.name)}
            yield _down(node.name, one, others, _alike_up(one, taken), one.hca.name in exact)
        if not down and taken.used:
            yield fine(Where(node=node.name), f"{len(taken.used)} ports are ACTIVE: {fold_names(taken.names)}")


def _named_exactly(value: str) -> set[str]:
    pattern = parse_hca(value)
    return set() if pattern.exclude else {entry.name for entry in pattern.entries}


def _alike_up(one: UsedPort, taken: HcaChoice) -> bool:
    """Whether an equal card of this node is up, on the port of the same number."""
    board = one.hca.board if isinstance(one.hca.board, str) else one.hca.model
    alike = [other for other in taken.used if board in (other.hca.board, other.hca.model)]
    return isinstance(board, str) and any(other.port.name == one.port.name for other in alike)


def _unseen(node: str, one: UsedPort) -> Finding:
    why = one.port.state.why if isinstance(one.port.state, Unread) else ""
    return unknown(
        Where(node=node, device=one.name),
        f"the state of {one.name} could not be read: {why}",
        why="What was not seen is neither well nor broken.",
        evidence=[seen("state", why)],
    )


def _down(node: str, one: UsedPort, others: set[str], alike: bool, named: bool) -> Finding:
    physical = value_or(one.port.physical, "unknown")
    where, what = Where(node=node, device=one.name), f"its port is {one.port.state}, physically {physical}"
    evidence = [
        seen(f"/sys/class/infiniband/{one.hca.name}/ports/{one.port.name}", f"{one.port.state}, {physical}")
    ]
    if named:
        evidence.append(seen("NCCL_IB_HCA", f"names {one.hca.name}"))
    if others:
        evidence.append(seen("the same port", f"ACTIVE on {fold_names(sorted(others))}"))
    if not (named or others or alike):
        return note(where, what, why="Nothing says that it should be up.", owner="node", evidence=evidence)
    level = fail if named or others else warn
    return level(where, what, why=_FEWER, owner="node", evidence=evidence, fix=_mend_port(node, one))


def _mend_port(node: str, one: UsedPort) -> list[Remedy]:
    return [
        admin(
            "Look at the port, its cable and the switch port at the other end.",
            f"ibstat {one.hca.name} {one.port.name}",
            f"dmesg | grep -i {one.hca.name.rpartition('_')[0] or one.hca.name}",
        ),
        you("Leave the node out until it is repaired.", f"#SBATCH --exclude={node}"),
    ]


@rule(
    "RDM006",
    "InfiniBand ports were set up by a subnet manager",
    worst=State.FAIL,
    needs=("rdma.devices",),
)
def subnet_manager(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No InfiniBand port waits for its subnet manager (state INIT or ARMED), and each ACTIVE one has an address (LID)
    and knows its manager.

    ## Why it matters
    The cable is well and the light is on, yet nothing can be sent: without a subnet manager there are no
    addresses and no routes. NCCL leaves the port out and uses TCP. It is the usual end of a new or rebooted
    fabric, and of one whose only manager ran on a node that was drained.

    ## How we know
    state, lid and sm_lid in /sys/class/infiniband/HCA/ports/N. Ethernet has none of this.

    ## Fix
    - **admin** start one: `systemctl start opensmd` on one node, or the switch's own; `sminfo` shows which one
      rules, `ibdiagnet` what it left out.

    ## Source
    NCCL user guide, Troubleshooting, Networking; opensm(8), sminfo(8), ibstat(8).
    """
    found = [
        (node.name, one)
        for node, taken in wiring.choosing(cluster)
        for one in wiring.wanted(taken)
        if one.port.link_layer == "InfiniBand"
    ]
    if not found:
        raise NothingToJudge("no InfiniBand port that NCCL would use")
    for node, one in found:
        state, lid, manager = one.port.state, one.port.lid, one.port.sm_lid
        if state in _HALF_UP:
            yield _no_manager(node, one, f"its port waits in {state}: no subnet manager has set it up")
        elif state == "ACTIVE" and 0 in (lid, manager):
            lacks = "no address (LID 0)" if lid == 0 else "no subnet manager (SM LID 0)"
            yield _no_manager(node, one, f"its port is ACTIVE and has {lacks}")


def _no_manager(node: str, one: UsedPort, what: str) -> Finding:
    return fail(
        Where(node=node, device=one.name),
        what,
        why="NCCL cannot use the port, and goes on over fewer links or over TCP.",
        owner="site",
        evidence=[
            seen("state", one.port.state),
            seen("lid, sm_lid", f"{_lid(one.port.lid)}, {_lid(one.port.sm_lid)}"),
        ],
        fix=[
            admin(
                "Start a subnet manager in that fabric, or find out where it is.",
                "sminfo",
                "systemctl start opensmd",
            )
        ],
    )


def _lid(fact: int | Unread) -> str:
    return "unread" if isinstance(fact, Unread) else str(fact)


_LINK_ERRORS = {
    "symbol_error": 1000.0,
    "link_downed": 10.0,
    "link_error_recovery": 10.0,
    "local_link_integrity_errors": 10.0,
    "excessive_buffer_overrun_errors": 10.0,
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
_TIMES_PEERS = 10.0
Counted = list[tuple[str, UsedPort, Mapping[str, int]]]


def _counted(cluster: Cluster) -> tuple[Counted, list[Finding]]:
    """The counters of each port that is used, and findings for those that could not be read."""
    counted: Counted = []
    unread: list[Finding] = []
    for node, taken in wiring.choosing(cluster):
        for one in taken.used:
            counters = one.port.counters
            if not isinstance(counters, Unread):
                counted.append((node.name, one, {counter.name: counter.value for counter in counters}))
            elif counters.kind != "absent":
                unread.append(_no_counters(node.name, one, counters))
    if not counted and not unread:
        raise NothingToJudge("no port with error counters")
    return counted, unread


def _no_counters(node: str, one: UsedPort, fact: Unread) -> Finding:
    return unknown(
        Where(node=node, device=one.name),
        f"its error counters could not be read: {fact.why}",
        why="What was not seen is neither well nor broken.",
        evidence=[seen("counters", f"{fact.kind}: {fact.why}")],
    )


@rule("RDM007", "links have no more than a trace of physical errors", worst=State.WARN, needs=("rdma.devices",))
def link_errors(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The counters of a port that tell of a bad cable or transceiver: bits that were wrong on the wire, links that
    retrained, links that went down.

    ## Why it matters
    A flapping link ends the job with `Got async event : port error` or status 12 after hours of good work; one
    with bit errors sends again and is the slowest of all. NVIDIA's advice is to mend it before NCCL is tuned.

    ## How we know
    /sys/class/infiniband/HCA/ports/N/counters, which count since the driver was loaded, so that old errors count
    too; some stop at 255 or 65535. A warning from these on (RDM007.NAME in the site file): symbol_error 1000,
    link_downed 10, link_error_recovery 10, local_link_integrity_errors 10, excessive_buffer_overrun_errors 10,
    port_rcv_errors 1000.

    ## Fix
    - **admin** `mlxlink -d HCA -m -c` for the bit error rate, clean or replace cable and transceiver, move it to
      another switch port; `perfquery -R` clears the counters, so that the next run shows what is new.

    ## Source
    NCCL user guide, Troubleshooting, Networking; NVIDIA, Understanding mlx5 Linux counters; perfquery(8).
    """
    counted, unread = _counted(cluster)
    yield from unread
    for node, one, counters in counted:
        limits = {
            name: cluster.policy.thresholds.get(f"RDM007.{name}", most) for name, most in _LINK_ERRORS.items()
        }
        if high := {name: counters[name] for name, most in limits.items() if counters.get(name, 0) >= most}:
            yield _errors(node, one, high, "The link is bad or was: it may fail the job, or slow it down.")


@rule("RDM008", "few packets were lost or sent again", worst=State.WARN, needs=("rdma.devices",))
def losses(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The counters of an HCA that tell of packets that were lost, came out of order or were not acknowledged.

    ## Why it matters
    RDMA expects a network that loses nothing: one lost packet makes the sender repeat all that followed it, and
    a lost acknowledgement costs a time-out. Loss on RoCE comes from switches without flow control for the class
    of this traffic, from a wrong traffic class, and from congestion.

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
    NVIDIA, Understanding mlx5 Linux counters; NCCL user guide, Troubleshooting, Networking; NVIDIA/nccl#2383.
    """
    counted, unread = _counted(cluster)
    yield from unread
    times = cluster.policy.thresholds.get("RDM008.times_peers", _TIMES_PEERS)
    bounds = {name: _bound(cluster, name, most, counted, times) for name, most in _LOSSES.items()}
    for node, one, counters in counted:
        if high := {name: counters[name] for name, most in bounds.items() if counters.get(name, 0) > most}:
            yield _errors(node, one, high, "What is lost is sent again, with all that followed it.")


def _bound(cluster: Cluster, name: str, most: float, counted: Counted, times: float) -> float:
    seen_everywhere = [counters[name] for _, _, counters in counted if name in counters]
    usual = median(seen_everywhere) if len(seen_everywhere) > 2 else 0
    return max(cluster.policy.thresholds.get(f"RDM008.{name}", most), usual * times)


def _errors(node: str, one: UsedPort, high: Mapping[str, int], why: str) -> Finding:
    return warn(
        Where(node=node, device=one.name),
        ", ".join(f"{name} {value}" for name, value in high.items()) + " since its driver was loaded",
        why=why,
        owner="node",
        evidence=[
            seen(f"/sys/class/infiniband/{one.hca.name}/ports/{one.port.name}", f"{name} {value}")
            for name, value in high.items()
        ],
        fix=[
            admin(
                "Look at cable, transceiver and both ports; clear the counters and look again after a job.",
                f"mlxlink -d {one.hca.name} -m -c",
                f"perfquery -R -C {one.hca.name} -P {one.port.name}",
            )
        ],
    )

"""BEN012, BEN013: every rail carries its share, and the job took the interface that was predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Unread, at
from ncclcheck.reports.judgement.findings import Finding, State, admin, fine, seen, unknown, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.output.settings_forms import quoted
from ncclcheck.reports.subjects.job.used import UsedRanks, by_nccl, several_nodes, used
from ncclcheck.reports.subjects.nccl import lan, wiring
from ncclcheck.reports.text.words.fold import fold_names, size


@rule(
    "BEN012",
    "every rail carries its share of the traffic",
    worst=State.WARN,
    over="measurements.traffic",
    commands=("bench",),
    between_machines=True,
)
def idle_rails(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    HCA ports that NCCL listed for use, and that carried almost nothing while others carried the job's data.

    ## Why it matters
    A rail that idles is bandwidth that is paid for and not there: two of eight cards idle are a quarter less.
    Every card is up, no counter shows an error, and no log complains.

    ## Seen as
    slow

    ## How we know
    port_xmit_data and port_rcv_data of every port before and after the job. Idle is less than 1 %
    (`BEN012.percent`) of the busiest port, once that has moved 64 MiB (`BEN012.mib`). Judged where a node runs at
    least as many ranks as it has rails: fewer ranks leave cards idle by right.

    ## Fix
    - **you** take the affected card out of NCCL_IB_HCA to see whether anything changes, then look at how
      NCCL maps GPUs to cards: `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH`.
    - **admin** look at the PCIe topology that virtual machines show (NCCL_TOPO_FILE), and at the port.

    ## Source
    pytorch/pytorch#106190 (two of eight NICs idle); NCCL user guide, NCCL_IB_HCA, NCCL_CROSS_NIC.
    """
    several_nodes(cluster)
    judged = [(node, _rails(node)) for node in by_nccl(cluster)]
    full = [(node, rails) for node, rails in judged if 1 < len(rails) <= len(node.ranks)]
    if not full:
        raise NothingToJudge("no node has several rails with counters, and a rank for each")
    limits = cluster.policy.thresholds
    share, least = limits.get("BEN012.percent", 1.0) / 100, limits.get("BEN012.mib", 64.0) * 2**20
    for use, rails in full:
        most = max(rails.values())
        idle = [name for name, moved in rails.items() if moved < share * most]
        if most < least:
            continue
        if idle:
            yield _idle(use, idle, rails)
        else:
            yield fine(use.where, f"{len(rails)} rails moved {size(min(rails.values()))} to {size(most)} each")


def _rails(use: UsedRanks) -> dict[str, int]:
    """Bytes of each port that NCCL listed, or would list."""
    listed = {name for rank in use.ranks for device in rank.devices for name in device.name.split("+")}
    moved = use.moved("hcas")
    if not listed:
        listed = {f"{port.hca.name}:{port.port.name}" for port in wiring.choice(use.node).used}
    return {name: moved[name].sent + moved[name].received for name in sorted(listed) if name in moved}


def _idle(use: UsedRanks, idle: list[str], rails: dict[str, int]) -> Finding:
    traffic = ", ".join(f"{name} {size(moved)}" for name, moved in rails.items())
    return warn(
        use.where,
        f"{len(idle)} of {len(rails)} rails idled: {fold_names(name.removesuffix(':1') for name in idle)}",
        why="Their bandwidth is not used; the others carry it all.",
        owner="node",
        evidence=[seen("port_xmit_data and port_rcv_data during the job", traffic)],
        fix=[
            you("See to which card NCCL maps each GPU.", "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH"),
            admin("Compare the PCIe topology with the machine's manual.", "nvidia-smi topo -m"),
        ],
    )


@rule(
    "BEN013",
    "the job used the predicted interface",
    worst=State.WARN,
    over="measurements.transport",
    commands=("bench",),
    ground=("NET003",),
    between_machines=True,
)
def as_predicted(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The interface over which the ranks met and, with TCP, talked, against the one that the rules of NCCL and gloo
    give for this node. With gloo also the bytes that went over each interface.

    ## Why it matters
    All checks of the network (subnet, MTU, speed, reach) look at the predicted interface. If the job took another
    one, they spoke of the wrong one. It is also how a slow management network is found out: with one wrong
    GLOO_SOCKET_IFNAME a job took 24 s for what takes 258 ms.

    ## Seen as
    slow

    ## How we know
    NCCL's log (`Bootstrap: Using`); for gloo the local addresses of the sockets that its ranks hold, and
    /proc/net/dev before and after. Bytes over another interface count where that one moved 64 MiB
    (`BEN013.mib`) and the chosen one less than 1 % of it, as when two cards share a subnet.

    ## Fix
    - **you** name the interface: `export NCCL_SOCKET_IFNAME==eth0 GLOO_SOCKET_IFNAME=eth0`.
    - **admin** give each card a subnet of its own; see NET011.

    ## Source
    pytorch/gloo#367; NCCL user guide, NCCL_SOCKET_IFNAME; ip-sysctl, arp_filter and rp_filter.
    """
    several_nodes(cluster)
    usual = _usual(cluster)
    for use in used(cluster):
        if isinstance(at(use.node, "network.interfaces"), Unread):
            yield _not_predicted(use)
            continue
        predicted, reason = _predicted(use)
        yield from _compared(cluster, use, _taken(use), predicted, reason, usual)


def _predicted(use: UsedRanks) -> tuple[list[str], str]:
    """The interfaces that the rules of NCCL or gloo give for this node, and why."""
    gloo = use.ranks[0].source == "sockets"
    choice = lan.choice_of_gloo(use.node) if gloo else lan.choice_of_nccl(use.node)
    if gloo and choice.names:
        return list(choice.names), choice.reason
    return ([choice.bootstrap.name] if choice.bootstrap else []), choice.reason


def _usual(cluster: Cluster) -> str:
    """The interface that is predicted on more than half of the nodes; empty where there is none."""
    readable = [use for use in used(cluster) if not isinstance(at(use.node, "network.interfaces"), Unread)]
    counts = Counter(names[0] for names, _ in map(_predicted, readable) if names)
    return next((name for name, nodes in counts.items() if 2 * nodes > len(readable)), "")


def _taken(use: UsedRanks) -> list[str]:
    """The interfaces over which ranks met (NCCL) or held connections to others (gloo)."""
    if use.ranks[0].source == "sockets":
        return list(dict.fromkeys(endpoint.interface for endpoint in use.interfaces if endpoint.interface))
    return [use.bootstrap.interface] if use.bootstrap else []


def _compared(
    cluster: Cluster, use: UsedRanks, taken: list[str], predicted: list[str], reason: str, usual: str
) -> Iterator[Finding]:
    if not taken or not predicted:
        return
    if other := [name for name in taken if name not in predicted]:
        yield _other(use, other, predicted, reason, usual)
    elif by_way_of := _moved_elsewhere(cluster, use, taken):
        yield _elsewhere(use, taken, by_way_of)
    else:
        yield fine(use.where, f"{', '.join(taken)}, as predicted: {reason}")


def _not_predicted(use: UsedRanks) -> Finding:
    why = at(use.node, "network.interfaces").why
    return unknown(
        use.where,
        f"its interfaces could not be read, so nothing was predicted: {why}",
        why="Whether the job took the interface that it should take is not known.",
        evidence=[seen("network.interfaces", why)],
    )


def _other(use: UsedRanks, other: list[str], predicted: list[str], reason: str, usual: str) -> Finding:
    """usual: what most nodes take; where this node alone would take another, that is not the one to name."""
    names = ", ".join(predicted)
    alone = bool(usual) and usual not in predicted
    best = usual if alone else predicted[0]
    source = "NCCL's log" if use.ranks[0].source == "log" else "open sockets of the ranks"
    return warn(
        use.where,
        f"the job used {', '.join(other)}, predicted was {names}",
        why="The checks of the network looked at another interface than the job took.",
        owner="job",
        evidence=[
            seen(source, ", ".join(other)),
            seen("predicted", f"{names}: {reason}"),
            *([seen("predicted on most nodes", usual)] if alone else []),
        ],
        fix=[
            you(
                "Name the interface that is meant.",
                f"export NCCL_SOCKET_IFNAME={quoted(f'={best}')} GLOO_SOCKET_IFNAME={quote(best)}",
            ),
        ],
    )


def _moved_elsewhere(cluster: Cluster, use: UsedRanks, taken: list[str]) -> str:
    """The interface that carried the data of the chosen one; empty where the counters agree, or say too little."""
    if use.ranks[0].source == "log":
        return ""
    moved = {name: m.sent + m.received for name, m in use.moved("interfaces").items() if name != "lo"}
    own = max((moved.get(name, 0) for name in taken), default=0)
    busiest = max(moved, key=lambda name: moved[name], default="")
    least = cluster.policy.thresholds.get("BEN013.mib", 64.0) * 2**20
    return busiest if busiest and moved[busiest] >= least and own < 0.01 * moved[busiest] else ""


def _elsewhere(use: UsedRanks, taken: list[str], by_way_of: str) -> Finding:
    moved = use.moved("interfaces")
    traffic = ", ".join(f"{name} {size(m.sent + m.received)}" for name, m in moved.items())
    return warn(
        use.where,
        f"the sockets are on {', '.join(taken)}, but the bytes went over {by_way_of}",
        why="The kernel sends over another card than the address belongs to: the directions may differ in speed.",
        owner="node",
        evidence=[seen("/proc/net/dev during the job", traffic)],
        fix=[
            admin(
                "Give each card a subnet of its own, or routes by source address.", "ip rule", "ip route get PEER"
            )
        ],
    )

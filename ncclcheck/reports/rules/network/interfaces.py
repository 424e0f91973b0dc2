"""Rules about the interfaces of one node: which one the job would take, and whether it is a good one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from shlex import quote

from ncclcheck.probes.facts import Cluster, Interface, Node, value_or
from ncclcheck.reports.judgement.findings import (
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
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.output.settings_forms import quoted
from ncclcheck.reports.subjects.nccl import carrying, lan, variables, wiring
from ncclcheck.reports.subjects.nccl.choice import InterfaceChoice
from ncclcheck.reports.text.words.fold import fold_names

_NEEDS = ("network.interfaces",)


@rule(
    "NET001",
    "the interface that NCCL would use is up and has an address",
    worst=State.FAIL,
    needs=_NEEDS,
    ground=("NCC007",),
    gates_job="by any failure",
)
def chosen_interface(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The interface over which the ranks of a node would meet (NCCL's bootstrap), by NCCL's own rules for the
    version that is installed.

    ## Why it matters
    NCCL needs TCP over one interface even where all data goes over InfiniBand. If NCCL_SOCKET_IFNAME matches
    nothing there is no fall-back: it stops with `Bootstrap : no socket interface found`.

    ## How we know
    The list of getifaddrs(3), NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY and NCCL_COMM_ID from the environment and
    nccl.conf. Without a setting NCCL takes names that start with ib, then all but docker and lo (from 2.28.3 on
    also but virbr), then docker, lo, virbr. From 2.28.3 on an interface must be running; before, one that is
    down but has an address was taken as well. A node on which a setting names no interface is reported by
    NCC007.

    ## Fix
    - **you** `unset NCCL_SOCKET_IFNAME`, or give it the name that `ip -br addr` shows on this very node; names
      that differ between nodes can be listed together.
    - **admin** bring the interface up and give it an address.

    ## Source
    NCCL user guide, environment variables, NCCL_SOCKET_IFNAME; NVIDIA/nccl#1837; getifaddrs(3).
    """
    for node in cluster.nodes:
        choice = lan.choice_of_nccl(node)
        link = lan.link(node, choice)
        if choice.bootstrap is None and not choice.problem:
            yield _unresolved(node)
        elif choice.bootstrap is None:
            yield _no_interface(node, choice.problem)
        elif link and not _ready(link.interface):
            yield _not_ready(node, link)
        else:
            also = f", data also over {', '.join(choice.names[1:])}" if len(choice.names) > 1 else ""
            name, address = choice.bootstrap.name, choice.bootstrap.address
            where = Where(node=node.name, device=name)
            yield fine(where, f"NCCL would use {name} ({address}){also}", seen("chosen because", choice.reason))


def _unresolved(node: Node) -> Finding:
    setting = variables.effective(node)["NCCL_COMM_ID"]
    return unknown(
        Where(node=node.name),
        f"NCCL_COMM_ID={setting.value} names no address, so which interface NCCL would use is not known",
        why="NCCL resolves the name in init and takes the interface whose subnet holds its address.",
        owner="job",
        evidence=[seen(setting.source, setting.value)],
        fix=[you("Remove it; torch hands the id over by itself.", "unset NCCL_COMM_ID")],
    )


def _ready(interface: Interface) -> bool:
    return value_or(interface.up, True) and value_or(interface.running, True)


def _no_interface(node: Node, problem: str) -> Finding:
    setting = variables.effective(node).get("NCCL_SOCKET_IFNAME")
    return fail(
        Where(node=node.name),
        f"NCCL finds no interface: {problem}",
        why="Without one NCCL stops in init with 'no socket interface found'.",
        owner="job" if setting else "node",
        evidence=[seen("interfaces", _listed(node)), *([seen(setting.source, setting.value)] if setting else [])],
        fix=[
            *(
                [you("Let NCCL choose, or name an interface of this node.", "unset NCCL_SOCKET_IFNAME")]
                if setting
                else []
            ),
            admin("Bring an interface up and give it an address.", "ip -br addr", *_brought_up(node)),
        ],
    )


def _brought_up(node: Node) -> list[str]:
    """Cards that have an address and are down; where none has one, those that are down at all."""
    down = [
        interface
        for interface in lan.interfaces(node)
        if lan.is_real(interface, lan.interfaces(node)) and interface.up is False
    ]
    ready = [interface for interface in down if lan.global_networks(interface)] or down
    return [f"ip link set dev {quote(interface.name)} up   # on {node.name}" for interface in ready[:2]]


def _running(node: Node) -> list[Remedy]:
    """The interfaces that the job could use meanwhile."""
    listed = lan.interfaces(node)
    names = [interface.name for interface in listed if lan.is_usable(interface) and lan.is_real(interface, listed)]
    if not names:
        return []
    return [
        you(
            f"Name an interface that is running: {' or '.join(names)}.",
            f"export NCCL_SOCKET_IFNAME={quoted(f'={names[0]}')}",
            f"export GLOO_SOCKET_IFNAME={quote(names[0])}",
        )
    ]


def _listed(node: Node) -> str:
    """Every interface with its state and addresses, as `ip -br addr` shows them."""
    lines = []
    for interface in lan.interfaces(node):
        addresses = " ".join(f"{a.address}/{a.prefix}" for a in value_or(interface.addresses, []))
        lines.append(
            f"{interface.name} ({'up' if _ready(interface) else 'down'}{' ' + addresses if addresses else ''})"
        )
    return ", ".join(lines) or "none"


def _not_ready(node: Node, link: lan.LanPlace) -> Finding:
    name = link.interface.name
    return fail(
        Where(node=node.name, device=name),
        f"NCCL would use {name} ({link.address}), which is {'not running' if link.interface.up else 'down'}",
        why="This NCCL does not look at the state of an interface: the ranks will not reach this node.",
        owner="node",
        evidence=[seen("interface flags", f"up {link.interface.up}, running {link.interface.running}")],
        fix=[
            *_running(node),
            admin(
                "Bring it up; if it has no carrier then, look at cable and switch port.",
                f"ip link set dev {quote(name)} up",
                f"ethtool {quote(name)}",
            ),
        ],
    )


@rule(
    "NET002",
    "NCCL's interface is no loopback, bridge or virtual one while a better one exists",
    worst=State.FAIL,
    needs=_NEEDS,
)
def better_interface(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether NCCL, or gloo where GLOO_SOCKET_IFNAME is set, would use an interface that leads nowhere although
    the node has one that leads out.

    ## Why it matters
    docker0, br-*, virbr0 and cni0 have the same address on every machine: a rank that is told 172.17.0.1
    connects to itself and gets `Connection refused`, or waits for ever. lo is a leftover of single-node
    tutorials. NCCL's own exclusions know only docker, lo and virbr.

    ## Seen as
    hangs, does not start

    ## How we know
    The kind of each interface from sysfs, not its name. eth0 of a pod is a veth and right where Kubernetes gave it
    the default route, though the pod has secondary networks beside it, or where there is no better one; a bridge
    with a network card in it is right. The interface over which ranks meet is a failure with several nodes; one
    that NCCL would use for data beside a good one is a warning.

    ## Fix
    - **you** name the good interface: `export NCCL_SOCKET_IFNAME="=eth0"` (with `=` exactly this name), and
      `export GLOO_SOCKET_IFNAME=eth0` (gloo knows neither `=` nor `^`).

    ## Source
    NVIDIA/nccl#697, NVIDIA/nccl#286, horovod/horovod#310; NCCL user guide, NCCL_SOCKET_IFNAME.
    """
    for node in cluster.nodes:
        yield from _worse(cluster, node, "NCCL", lan.choice_of_nccl(node))
        if "GLOO_SOCKET_IFNAME" in variables.values(node):
            yield from _worse(cluster, node, "gloo", lan.choice_of_gloo(node))


def _worse(cluster: Cluster, node: Node, who: str, choice: InterfaceChoice) -> Iterator[Finding]:
    bootstrap = choice.bootstrap.name if choice.bootstrap else ""
    taken = {bootstrap, *choice.names}
    kinds = {i.name: value_or(i.kind, "virtual") for i in lan.interfaces(node) if i.name in taken}
    good = {i.name for i in lan.interfaces(node) if i.name in taken and lan.leads_out(node, i)}
    bad = [name for name in choice.names if name in kinds and name not in good]
    if not bad and (bootstrap not in kinds or bootstrap in good):
        return
    better = [i.name for i in lan.interfaces(node) if lan.is_real(i, lan.interfaces(node)) and lan.is_usable(i)]
    if not better:
        return
    if bootstrap in kinds and bootstrap not in good:
        level = _level(cluster, kinds[bootstrap])
        yield level(
            Where(node=node.name, device=bootstrap),
            f"{who} would use {bootstrap} ({kinds[bootstrap]}), although there is {' and '.join(better)}",
            why="Other nodes cannot reach it: its address exists on every machine, or only inside this one.",
            owner="job",
            evidence=[seen("chosen because", choice.reason)],
            fix=_name_it(better),
        )
    elif bad and not (who == "NCCL" and _rdma_carries(node)):
        level = warn if _several(cluster) else note
        yield level(
            Where(node=node.name),
            f"{who} would also send data over {', '.join(bad)}",
            why="Without RDMA NCCL spreads its data over all interfaces that it takes, also over those that lead "
            "nowhere.",
            owner="job",
            evidence=[seen("chosen because", choice.reason)],
            fix=_name_it(better),
        )


def _level(cluster: Cluster, kind: str) -> Callable[..., Finding]:
    if _several(cluster):
        return fail
    return note if kind == "loopback" else warn


def _several(cluster: Cluster) -> bool:
    """Whether the job needs a way from one machine to another."""
    return max(cluster.job.nodes_asked, len(cluster.nodes)) > 1 and not cluster.job.simulated


def _name_it(better: list[str]) -> list[Remedy]:
    return [
        you(
            "Name the interface that leads to the other nodes, on all of them.",
            f"export NCCL_SOCKET_IFNAME={quoted(f'={better[0]}')}",
            f"export GLOO_SOCKET_IFNAME={quote(better[0])}",
        )
    ]


@rule("NET011", "no node has two interfaces in one subnet", worst=State.WARN, needs=_NEEDS)
def shared_subnet(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Interfaces of one node with addresses in the same subnet; all that share it are one finding.

    ## Why it matters
    The kernel sends to that subnet through one of them only, and answers ARP for both on either. NCCL does not
    tie a connection to the interface it has chosen: data leaves by the other card, at half the speed, or the
    peer drops it because it came in by the wrong interface.

    ## Seen as
    slow

    ## How we know
    Addresses and prefixes of all interfaces that are up, without loopback and link-local ones. It is a warning
    where NCCL would use one of them for data, else a note: where RDMA or EFA carries the data, sockets only meet
    over them, and rails of InfiniBand in one subnet are usual, as are the interfaces of EFA and of Slingshot. On
    a node alone it is a note: nothing is sent to another machine.

    ## Fix
    - **admin** a subnet for each card; or rules for routing by source address with
      `net.ipv4.conf.all.arp_ignore=1`, `arp_announce=2` and `rp_filter=2`.
    - **you** until then name one of them in NCCL_SOCKET_IFNAME.

    ## Source
    NVIDIA/nccl#1580, NVIDIA/nccl#1581; ip-rule(8); the kernel's ip-sysctl page.
    """
    groups: dict[tuple[tuple[str, int], ...], list[list[_Named]]] = {}
    for node in cluster.nodes:
        networks = [
            (i.name, n) for i in lan.interfaces(node) if lan.is_usable(i) for _, n in lan.global_networks(i)
        ]
        key = tuple((name, id(network)) for name, network in networks)  # of nodes alike they are the same objects
        if key not in groups:
            groups[key] = _sharing(networks) if _overlap(networks) else []
        if not groups[key]:
            continue
        used, meant = {*lan.choice_of_nccl(node).names}, lan.meant(cluster, node)
        for group in groups[key]:
            names = [name for name, _ in group]
            where, what = Where(node=node.name, device=names[0]), f"{_cards(group)} share a subnet"
            evidence = [seen("getifaddrs", ", ".join(f"{name} {network}" for name, network in group))]
            if _is_usual(node, names):
                yield note(
                    where, what, why="Data does not go over their sockets.", owner="node", evidence=evidence
                )
                continue
            level = warn if used & {*names} and _several(cluster) else note
            yield level(
                where,
                what,
                why="The kernel sends through one of them, whichever NCCL has chosen.",
                owner="node",
                evidence=evidence,
                fix=[
                    you(
                        "Name the one that the job uses.",
                        f"export NCCL_SOCKET_IFNAME={quoted(f'={meant or names[0]}')}",
                    ),
                    admin(
                        "Give each card a subnet of its own, or rules for routing by source address (ip-rule(8)). "
                        "Until then let each answer for its own address; it touches all interfaces of the host.",
                        "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2   # undo: 0",
                    ),
                ],
            )


_RAILS = ("ena", "cxi")  # drivers of EFA's interfaces and of Slingshot's


def _is_usual(node: Node, names: list[str]) -> bool:
    """Whether data does not go over these sockets: RDMA carries it, or they are rails of a fabric."""
    cards = [interface for interface in lan.interfaces(node) if interface.name in names]
    rails = all(card.kind == "ipoib" or value_or(card.driver, "").startswith(_RAILS) for card in cards)
    return rails or _rdma_carries(node)


def _rdma_carries(node: Node) -> bool:
    """Whether sockets only meet, over the first interface, and data goes over RDMA or EFA."""
    return bool(carrying.choice(node).used or wiring.efa(node))


_Named = tuple[str, lan.IPNetwork]


def _overlap(networks: list[_Named]) -> bool:
    """Whether any two have an address in common: in order, one begins before another ends."""
    spans = sorted((n.version, int(n.network_address), int(n.broadcast_address)) for _, n in networks)
    return any(span[0] == other[0] and other[1] <= span[2] for span, other in pairwise(spans))


def _sharing(networks: list[_Named]) -> list[list[_Named]]:
    """Those of several cards that lie in one subnet, together: eight rails are one group and not 28 pairs."""
    groups: list[list[_Named]] = []
    for name, network in networks:
        alike = [group for group in groups if any(_share(network, other) for _, other in group)]
        groups = [group for group in groups if group not in alike]
        groups.append([*(named for group in alike for named in group), (name, network)])
    return [group for group in groups if len({_device(name) for name, _ in group}) > 1]


def _cards(group: list[_Named]) -> str:
    """`eth0 (10.1.0.0/24) and eth1 (10.1.0.0/24)`, `ib[0-7] (10.4.0.0/16)`."""
    if len(group) == 2:
        return " and ".join(f"{name} ({network})" for name, network in group)
    networks = dict.fromkeys(str(network) for _, network in group)
    return f"{fold_names(name for name, _ in group)} ({', '.join(networks)})"


def _device(name: str) -> str:
    return name.partition(":")[0]


def _share(network: lan.IPNetwork, other: lan.IPNetwork) -> bool:
    """A /32 or /128 is a single address, no subnet."""
    single = network.prefixlen == network.max_prefixlen or other.prefixlen == other.max_prefixlen
    return network.version == other.version and not single and network.overlaps(other)


@rule(
    "NET012",
    "the loopback interface is up and has 127.0.0.1",
    worst=State.FAIL,
    needs=_NEEDS,
    gates_job="by any failure",
)
def loopback(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether `lo` is up and has its address.

    ## Why it matters
    Everything that a machine sends to itself passes `lo`, also what goes to the address of eth0. Without it two
    ranks of one node do not reach each other over TCP, torchrun does not reach the store on its own node, and
    NCCL's RAS has nowhere to listen. A network namespace that was just made has it down.

    ## How we know
    The interface of kind loopback in getifaddrs(3) and its flags.

    ## Fix
    - **admin** `ip link set dev lo up`; the kernel then gives it 127.0.0.1 by itself. Where it is up without it:
      `ip addr add 127.0.0.1/8 dev lo`.

    ## Source
    ip-link(8), network_namespaces(7); NCCL user guide, RAS (localhost:28028).
    """
    for node in cluster.nodes:
        interfaces = [i for i in lan.interfaces(node) if i.kind == "loopback" or i.name == "lo"]
        if any(value_or(i.up, True) and _has_localhost(i) for i in interfaces):
            continue
        bare = any(value_or(i.up, True) for i in interfaces)
        state = "it has no 127.0.0.1" if bare else "it is down"
        yield fail(
            Where(node=node.name, device="lo"),
            f"loopback does not work: {state if interfaces else 'there is none'}",
            why="Ranks of one node cannot connect to each other, and torchrun not to its own store.",
            owner="node",
            evidence=[seen("interfaces", _listed(node))],
            fix=[
                admin("Give it its address.", "ip addr add 127.0.0.1/8 dev lo", "ip addr show dev lo")
                if bare
                else admin("Bring it up.", "ip link set dev lo up", "ip addr show dev lo")
            ],
        )


def _has_localhost(interface: Interface) -> bool:
    return any(address.address == "127.0.0.1" for address in value_or(interface.addresses, []))

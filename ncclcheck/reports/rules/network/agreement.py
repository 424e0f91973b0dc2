"""Rules about what nodes must agree on: MTU, names and addresses."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts import Cluster, Interface, Node, Resolution, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    not_read,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.addresses import captured, claimed, same_mac, twice
from ncclcheck.reports.subjects.addresses.names import hosts_file
from ncclcheck.reports.subjects.failures.entering import dialled
from ncclcheck.reports.subjects.links import flapping
from ncclcheck.reports.subjects.links.reached import reached
from ncclcheck.reports.subjects.nccl import lan, variables, wiring
from ncclcheck.reports.subjects.nccl.choice import Chosen, gloo_choice
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements, group
from ncclcheck.reports.text.words.fold import fold_names

_NEEDS = ("network.interfaces",)
_LEAST_ALIKE = (
    2  # other nodes whose names agree, before the odd one is called wrong; with two nodes neither is odd
)
_OF_PLUGINS = ("NCCL_FASTRAK_IFNAME", "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME")  # rails of GPUDirect-TCPXO and -TCPX


@rule(
    "NET004",
    "the MTU is the same across the job's network",
    worst=State.WARN,
    needs=_NEEDS,
    at_least=2,
    between_machines=True,
)
def mtu(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The MTU of the interface that each node would use, and of each one that NCCL's sockets, GPUDirect-TCPXO
    (NCCL_FASTRAK_IFNAME) or GPUDirect-TCPX (NCCL_GPUDIRECTTCPX_SOCKET_IFNAME) would use beside it.

    ## Why it matters
    Small packets pass, large ones of the node with the larger MTU are dropped somewhere on the path: the first
    small collective works and the first large one hangs. RoCE takes its own MTU from it; NCCL 2.20 and later
    hang or stop with `local access violation work queue error` where it differs.

    ## Seen as
    hangs, dies

    ## How we know
    getifaddrs(3) on every node; the odd one out by majority. Where every node's full-size packets were seen to
    arrive at the others it is a note. What the switches between them allow is NET007's matter.

    ## Fix
    - **admin** the same MTU on every node and every switch port between them: `ip link set dev eth0 mtu 9000`,
      and in the network configuration, so that it stays.

    ## Source
    NVIDIA/nccl#1524, NVIDIA/nccl#1957; ip-link(8).
    """
    links = [link for link in lan.links(cluster) if not lan.is_loopback(link.address)]
    values = {link.node: mtu for link in links if not isinstance(mtu := link.interface.mtu, Unread)}
    unseen = [_unseen(link, "MTU", mtu) for link in links if isinstance(mtu := link.interface.mtu, Unread)]
    yield from unseen
    if len(values) < 2:
        return _too_few(unseen)
    yield from _beside(cluster, {link.interface.name for link in links})
    names = sorted({link.interface.name for link in links})
    grouping = group(values)
    usual, odd = grouping.groups[0][0], {node for node, _ in grouping.odd}
    device = next((link.interface.name for link in links if link.node in odd), names[0])
    arrive = _full_size_arrives(cluster)
    yield from disagreements(
        values,
        f"the MTU of {' and '.join(names)}",
        "MTU of the chosen interface" + (", and full-size packets arrive in all pairs" if arrive else ""),
        level=note if arrive else warn,
        why="Large packets get lost between nodes of different MTU: small messages work, large ones hang.",
        owner="node",
        fix=[
            admin(
                f"Set the same MTU on all nodes and switch ports, and keep it in the network configuration. All "
                f"traffic of {device} is touched.",
                f"ip link set dev {shlex.quote(device)} mtu {usual}",
            ),
            you(
                "See what really passes.",
                f"ping -c 3 -M do -s {max(0, usual - 28)} {links[0].address}   # from the others",
            ),
        ],
    )


def _beside(cluster: Cluster, chosen: set[str]) -> Iterator[Finding]:
    """Rails by their name: those whose MTU is not that of most nodes. What arrives over them was not measured."""
    rails: dict[str, dict[str, int]] = {}
    for node in cluster.nodes:
        env = variables.values(node)
        names = {name for rails in _OF_PLUGINS for name in env.get(rails, "").split(",")}
        if not wiring.choice(node).used:  # else sockets only meet, over the first of them
            names |= {*lan.choice_of_nccl(node).names}
        for interface in lan.interfaces(node):
            if interface.name in names - chosen and not isinstance(interface.mtu, Unread):
                rails.setdefault(interface.name, {})[node.name] = interface.mtu
    for name, mtus in rails.items():
        if not group(mtus).agree:
            usual = group(mtus).majority or max(mtus.values())
            yield from disagreements(
                mtus,
                f"the MTU of {name}",
                "MTU",
                level=warn,
                why="Large packets get lost between nodes of different MTU: small messages work, large ones hang.",
                owner="node",
                fix=[
                    admin(
                        f"Set the same MTU on all nodes, and keep it in the network configuration. All traffic of "
                        f"{name} is touched.",
                        f"ip link set dev {shlex.quote(name)} mtu {usual}",
                    )
                ],
            )


def _full_size_arrives(cluster: Cluster) -> bool:
    """Whether each node was measured against others and all its largest packets came through."""
    reach = reached(cluster)
    if reach is None or set(reach.of_node) != {node.name for node in cluster.nodes}:
        return False
    sizes = [peer.path_mtu for peer in reach.seen.values()]
    return all(not isinstance(size, Unread) and size.arrived >= size.sent for size in sizes)


def _too_few(unseen: list[Finding]) -> None:
    if not unseen:
        raise NothingToJudge("it is known of the interface to be used on fewer than two nodes")


def _unseen(link: lan.LanPlace, thing: str, fact: Unread) -> Finding:
    where = Where(node=link.node, device=link.interface.name)
    return not_read(where, thing, fact, f"the {thing} of {link.interface.name} could not be read")


@rule(
    "NET005",
    "each node's hostname resolves to an address on the job's network, not loopback",
    worst=State.FAIL,
    needs=("network.interfaces", "host.own_name"),
    at_least=2,
    ground=("HST005", "NET003", "NET010"),
    between_machines=True,
    gates_job="by any failure",
)
def name_and_network(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The address that a node's own name has on that node.

    ## Why it matters
    gloo takes the address of its own host name and announces it to the others. Debian and Ubuntu write
    `127.0.1.1 NAME` into /etc/hosts: every rank then advertises loopback, and the others get
    `connect [127.0.1.1]: Connection refused` or wait. torchrun hands out the name of its first node as
    MASTER_ADDR. NCCL itself does not use the name.

    ## Seen as
    does not start

    ## How we know
    getaddrinfo(3) of the own name, asked on the node, compared with the interface that the job would use. A
    failure where gloo uses the name and it leads to loopback, to a bridge that leads nowhere, or to an address
    that another node would announce as well; a warning where GLOO_SOCKET_IFNAME is set, where the job runs on
    NCCL, or where the name has an address that no other node shares a network with. Another network than NCCL's
    is well, as that of management beside rails: gloo and torchrun meet there. A node in a subnet of its own
    (NET003), or with the name or address of another one (NET010), is not asked: there a wrong name is a
    consequence. Where gloo goes by names and those of at least two other nodes all lead to one network, in
    which this node has an address too, a name that leads elsewhere is a warning.

    ## Fix
    - **you** `export GLOO_SOCKET_IFNAME=eth0` (its exact name) on every node.
    - **admin** the node's real address before its name in /etc/hosts, and the name on no other line.

    ## Source
    pytorch/gloo#223, pytorch/pytorch#15592, aws-samples/aws-do-eks#69; hosts(5), getaddrinfo(3).
    """
    names = _LookedUpNames(cluster)
    down = flapping.stand_ins(cluster, lan.links(cluster))
    for node in cluster.nodes:
        link = lan.link(node, lan.choice_of_job(cluster, node))
        if link is None:
            continue
        taken = _by_name(node)
        used = set(lan.choice_of_nccl(node).names) | {link.interface.name}
        if taken and _gloo_goes_by_name(cluster, node) and (usual := names.usual(node, taken)):
            yield _odd_name(node, taken, usual)
            continue
        if taken and (taken.name in used or _is_shared(names, node, taken)) and not lan.is_loopback(taken.address):
            continue
        if taken and down.get(node.name) == taken.name:
            continue  # the name is right, and NET003 names the link
        if taken and not _leads_nowhere(node, taken) and _is_inside(node, link.interface):
            continue  # the name is right, and NET010 names the interface
        yield flapping.explained(cluster, _wrong_name(cluster, node, link, taken, names))


class _LookedUpNames:
    """What the names of all nodes lead to, looked up once: every node is compared with all others."""

    def __init__(self, cluster: Cluster) -> None:
        taken = [chosen.address for node in cluster.nodes if (chosen := _by_name(node))]
        self.advertised = Counter(taken)
        self.hosts = Counter(host for node in cluster.nodes if isinstance(host := at(node, "host.hostname"), str))
        self.addresses = lan.SortedAddresses(taken)
        own = {node.name: network for node in cluster.nodes if (network := _network_of_name(node))}
        self._networks = Counter(own.values())
        self._own = own

    def usual(self, node: Node, taken: Chosen) -> lan.IPNetwork | None:
        """The network to which the names of all others lead and this node's does not, though it is in it too."""
        others = self._networks - Counter([self._own[node.name]] if node.name in self._own else [])
        if lan.is_loopback(taken.address) or len(others) != 1 or sum(others.values()) < _LEAST_ALIKE:
            return None
        (network,) = others
        addresses = [each for interface in lan.interfaces(node) for each in lan.global_networks(interface)]
        away = not any(address.address == taken.address and each == network for address, each in addresses)
        return network if away and any(each == network for _, each in addresses) else None


def _network_of_name(node: Node) -> lan.IPNetwork | None:
    """The network of the address that gloo takes by the node's own name."""
    taken = _by_name(node)
    addresses = [each for interface in lan.interfaces(node) for each in lan.global_networks(interface)]
    return next((network for address, network in addresses if taken and address.address == taken.address), None)


def _odd_name(node: Node, taken: Chosen, usual: lan.IPNetwork) -> Finding:
    """gloo and torchrun then go to this node by another network than between all others."""
    own = known(known(node.host).own_name)
    device, address = next(
        (interface.name, address.address)
        for interface in lan.interfaces(node)
        for address, network in lan.global_networks(interface)
        if network == usual
    )
    return warn(
        Where(node=node.name, device=taken.name),
        f"the node's own name {own.name} leads to {taken.address} ({taken.name}), the names of all other nodes to "
        f"{usual}, where this node has {address} ({device})",
        why="gloo and torchrun go to this node by another network than to the others, often a slow one.",
        owner="node",
        evidence=[
            seen(f"getaddrinfo({own.name})", ", ".join(own.addresses)),
            seen("getifaddrs", f"{taken.name} {taken.address}; {device} {address}"),
        ],
        fix=[
            you("Tell gloo the interface.", f"export GLOO_SOCKET_IFNAME={shlex.quote(device)}"),
            admin(
                "Give the name its address in that network in /etc/hosts. This touches every program on this node "
                "that asks for the name, Slurm and NFS too.",
                "cp -p /etc/hosts /etc/hosts.before   # undo: cp -p /etc/hosts.before /etc/hosts",
                hosts_file.named(own.name, address, [*own.addresses, "127.0.1.1"]),
            ),
        ],
    )


def _is_shared(names: _LookedUpNames, node: Node, taken: Chosen) -> bool:
    """Whether it is on the default route, or in one subnet with the address of another node's name."""
    interface = next((candidate for candidate in lan.interfaces(node) if candidate.name == taken.name), None)
    if interface is None or not lan.leads_out(node, interface) or not lan.is_routable(taken.address):
        return False
    networks = [network for address, network in lan.global_networks(interface) if address.address == taken.address]
    in_one = any(names.addresses.within(network) > 1 for network in networks)  # its own address is one of them
    return names.advertised[taken.address] == 1 and (in_one or _has_default(node, interface))


def _has_default(node: Node, interface: Interface) -> bool:
    return not isinstance(at(node, "network.routes"), Unread) and interface.name in lan.by_default(node)


def _address_of_machine(node: Node, link: lan.LanPlace) -> str:
    """What its name should be: its address on the default route, not a rail's, which NCCL may have chosen."""
    ways_out = [
        interface
        for interface in lan.interfaces(node)
        if _has_default(node, interface) and lan.leads_out(node, interface)
    ]
    of_version = [
        address.address
        for interface in ways_out
        for address, network in lan.global_networks(interface)
        if network.version == link.network.version
    ]
    return of_version[0] if of_version else link.address


def _by_name(node: Node) -> Chosen | None:
    """What gloo takes by the node's own name."""
    return gloo_choice(lan.interfaces(node), {}, known(known(node.host).own_name)).bootstrap


def _wrong_name(
    cluster: Cluster, node: Node, link: lan.LanPlace, taken: Chosen | None, names: _LookedUpNames
) -> Finding:
    own = known(known(node.host).own_name)
    address = taken.address if taken else "127.0.0.1"
    nowhere = _leads_nowhere(node, taken) or names.advertised[address] > 1
    level = fail if nowhere and _gloo_goes_by_name(cluster, node) else warn
    resolves = f"resolves to {', '.join(own.addresses)}" if own.addresses else "does not resolve"
    others = names.advertised[address] - 1
    also = f", and so would {others} other node{'s' * (others > 1)}" if others > 0 else ""
    on = f" ({taken.name})" if taken else ""
    return level(
        Where(node=node.name),
        f"the node's own name {own.name} {resolves}; gloo would advertise {address}{on}{also}",
        why="Other nodes cannot connect to this address." if nowhere else "That is another network than NCCL's.",
        owner="node",
        evidence=[
            seen(f"getaddrinfo({own.name})", ", ".join(own.addresses) or "no address"),
            seen("chosen interface", f"{link.interface.name} {link.address}"),
        ],
        fix=[
            you("Tell gloo the interface.", f"export GLOO_SOCKET_IFNAME={shlex.quote(link.interface.name)}"),
            _name_its_address(names, node, link, own),
        ],
    )


def _leads_nowhere(node: Node, taken: Chosen | None) -> bool:
    """Loopback, or a bridge without a card in it on a node that has a card: its address ends in the machine."""
    if taken is None or lan.is_loopback(taken.address):
        return True
    listed = lan.interfaces(node)
    return any(
        interface.name == taken.name and interface.kind == "bridge" and not lan.is_real(interface, listed)
        for interface in listed
    )


def _is_inside(node: Node, interface: Interface) -> bool:
    """A bridge that no card is part of."""
    return interface.kind == "bridge" and not lan.is_real(interface, lan.interfaces(node))


def _name_its_address(names: _LookedUpNames, node: Node, link: lan.LanPlace, own: Resolution) -> Remedy:
    """The line for /etc/hosts, unless the name is not this node's alone: then it needs a name of its own."""
    if own.name.partition(".")[0] in hosts_file.LOOPBACK_NAMES:
        return _own_name(node, own.name, "this one belongs to every machine's loopback")
    if names.hosts[own.name] > (at(node, "host.hostname") == own.name):
        return _own_name(node, own.name)
    return admin(
        "Give the name its real address in /etc/hosts, and take it from the wrong one. This touches every program "
        "on this node that asks for the name, Slurm and NFS too.",
        "getent ahosts $(hostname)",
        *hosts_file.asked(node),
        "cp -p /etc/hosts /etc/hosts.before   # undo: cp -p /etc/hosts.before /etc/hosts",
        hosts_file.named(own.name, _address_of_machine(node, link), [*own.addresses, "127.0.1.1"]),
    )


def _own_name(node: Node, taken: str, why: str = "another has it") -> Remedy:
    """The name by which the launcher knows it, if that is another one."""
    word = node.name.partition("#")[0]
    if word == taken or not re.fullmatch(r"[A-Za-z0-9-]+", word):
        return admin(f"Give this machine a name of its own; {why}.", "hostnamectl set-hostname NAME")
    return admin(
        f"Give this machine a name of its own; {why}. The job calls it {word}.",
        f"hostnamectl set-hostname {word} || hostname {word}   # on {node.name}",
    )


def _gloo_goes_by_name(cluster: Cluster, node: Node) -> bool:
    if cluster.job.backend == "nccl" or "GLOO_SOCKET_IFNAME" in variables.values(node):
        return False
    gpus = value_or(at(node, "gpus.usable"), 0)
    return cluster.job.backend == "gloo" or gpus == 0


@rule(
    "NET010",
    "addresses and hostnames are unique",
    worst=State.FAIL,
    needs=("network.interfaces", "host.hostname", "host.boot_id"),
    at_least=2,
    between_machines=True,
    gates_job="by any failure",
)
def unique(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether two nodes have the same address, the same MAC address, or the same host name.

    ## Why it matters
    NCCL takes two ranks for neighbours on one machine when host name and boot id are equal, tries shared memory
    between them and hangs or fails with `Duplicate GPU detected`. Of two machines with one address the second
    gets what was meant for the first: `Connection refused`, or the wrong rank.

    ## Seen as
    hangs, does not start, wrong results

    ## How we know
    Addresses of network cards, bonds and VLANs, without those of bridges, tunnels and loopback (docker0 has
    172.17.0.1 everywhere). A failure for the interface that the job would use, else a warning. An interface of
    any kind that is up with the address by which another node would meet the others is a failure. So is one MAC
    address on the chosen interfaces of two nodes of one subnet that do not reach each other. Host names from
    /proc/sys/kernel/hostname; with an equal boot id as well it is a failure. Where ssh entered one machine under
    two names, `ssh -G` shows whether its settings (HostName) or the name service led there. As root each node also
    asks the wire for its own address (the probe of RFC 5227, from which nobody learns anything): an answer by a
    card that is not its own is a failure, also while the others' tables still hold the right one. One machine that
    answers for several nodes is a proxy, and no finding.

    ## Fix
    - **you** give every machine once in the host list; `export NCCL_HOSTID=` something different a container.
    - **admin** another name or address for one of them; cloned images often share both.

    ## Source
    NVIDIA/nccl#187, NVIDIA/nccl#375; NCCL user guide, NCCL_HOSTID; hostname(7), random(4) (boot_id); RFC
    5227, section 2.1.1; arping(8).
    """
    yield from _same_names(cluster)
    alike = [*_same_addresses(cluster)]
    yield from alike
    yield from same_mac.findings(cluster)
    pairs = {(finding.where.node, finding.where.peer) for finding in alike}
    named = {name for pair in pairs for name in pair}
    yield from (finding for finding in claimed.findings(cluster) if finding.where.node not in named)
    yield from (
        finding
        for finding in captured.findings(cluster)
        if not {(finding.where.node, finding.where.peer), (finding.where.peer, finding.where.node)} & pairs
    )


def _same_names(cluster: Cluster) -> Iterator[Finding]:
    nodes: dict[str, list[Node]] = {}
    for node in cluster.nodes:
        nodes.setdefault(known(known(node.host).hostname), []).append(node)
    for name, same in nodes.items():
        if len(same) < 2:
            continue
        if finding := dialled.same_machine(cluster, same, name) if _one_machine(same) else None:
            yield finding
            continue
        one_machine = len({known(known(node.host).boot_id) for node in same}) < len(same)
        level = fail if one_machine else warn
        yield level(
            Where(node=same[0].name, peer=same[1].name),
            f"{len(same)} nodes have the host name {name!r}" + (" and the same boot id" if one_machine else ""),
            why="NCCL takes them for one machine." if one_machine else "Whoever looks for one finds the other.",
            owner="site",
            evidence=[seen("/proc/sys/kernel/hostname", f"{name} on {fold_names(n.name for n in same)}")],
            fix=[
                you("If it is one machine, give it once. If they are containers, give each a NCCL_HOSTID.",
                    "export NCCL_HOSTID=$(cat /proc/sys/kernel/random/uuid)   # one a container"),
                *([] if _one_machine(same) else [_own_name(same[1], name)]),
            ],
        )  # fmt: skip


def _one_machine(same: Sequence[Node]) -> bool:
    """No name helps there: they are one, or containers of one."""
    return len({(at(node, "host.hostname"), at(node, "host.boot_id")) for node in same}) == 1


def _same_addresses(cluster: Cluster) -> Iterator[Finding]:
    owners: dict[str, list[tuple[str, str]]] = {}
    for node in cluster.nodes:
        chosen = {lan.choice_of_job(cluster, node).bootstrap}
        for interface in lan.interfaces(node):
            if _counts(interface, lan.interfaces(node), {chosen.name for chosen in chosen if chosen}):
                for assigned, _ in lan.global_networks(interface):
                    owners.setdefault(assigned.address, []).append((node.name, interface.name))
    chosen_addresses = {link.address for link in lan.links(cluster)}
    for address, holders in owners.items():
        named = {node for node, _ in holders}
        if len(named) < 2:
            continue
        if cluster.run.dialled and _one_machine([node for node in cluster.nodes if node.name in named]):
            continue  # by ssh one machine was entered twice: its address is its own
        level = fail if address in chosen_addresses else warn
        yield level(
            Where(node=holders[0][0], device=holders[0][1], peer=holders[1][0]),
            f"{address} is on {len(holders)} nodes{_by_setting(cluster, holders)}",
            why="What is sent to one of them arrives at another.",
            owner="site",
            evidence=[seen("getifaddrs", ", ".join(f"{node} {name}" for node, name in holders[:8]))],
            fix=twice.fix(cluster, address, holders),
        )


def _by_setting(cluster: Cluster, holders: Sequence[tuple[str, str]]) -> str:
    """A bridge that each host has for itself takes part only because a setting names it."""
    node = next(node for node in cluster.nodes if node.name == holders[0][0])
    listed = lan.interfaces(node)
    interface = next(each for each in listed if each.name == holders[0][1])
    if interface.kind != "bridge" or lan.is_real(interface, listed):
        return ""
    env = variables.values(node)
    settings = [
        name for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if interface.name in env.get(name, "")
    ]
    by = f", and {settings[0]}={env[settings[0]]} sends the job there" if settings else ""
    return f": {interface.name} is a bridge that every host has for itself and that leads nowhere{by}"


def _counts(interface: Interface, others: Sequence[Interface], chosen: set[str]) -> bool:
    return interface.name in chosen or (interface.kind != "bridge" and lan.is_real(interface, others))

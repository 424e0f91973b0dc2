"""Which interface, which family: facts of the site; and what NCCL's own TCP transport may gain."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Interface, Node, Unread, at, known, value_or
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.recommend.advice import Proposal, SettingRule, without
from ncclcheck.reports.recommend.site import SetVariable, Site
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.subjects.nccl.choice import InterfaceChoice, gloo_choice, nccl_choice, parse_pattern
from ncclcheck.reports.subjects.nccl.variables import nccl_version, values

_NCCL, _GLOO = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"
_WRONG_WAY = ("NCC007", "NET001", "NET002", "NET003", "NET014")
# a single TCP stream fills 10 Gb/s and seldom more than 25: chosen; the measurement that is advised decides
_FAST_MBIT = 25_000
_SOCKETS = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")

_Networks = dict[lan.IPNetwork, dict[str, Interface]]


def _choice(node: Node, variable: str, changes: dict[str, str | None]) -> InterfaceChoice:
    """What would be taken with some variables set, or taken away (None)."""
    if not changes and variable == _NCCL:
        return lan.choice_of_nccl(node)
    env = {name: value for name, value in {**values(node), **changes}.items() if value is not None}
    if variable == _GLOO:
        own_name = at(node, "host.own_name")
        return gloo_choice(lan.interfaces(node), env, own_name if _GLOO in env else known(own_name))
    return nccl_choice(lan.interfaces(node), env, nccl_version(node))


def _networks(site: Site) -> list[tuple[lan.IPNetwork, dict[str, Interface]]]:
    """Subnets in which every node has an interface that leads out and is up, the fastest first."""
    return _common(site.cluster)


@derived
def _common(cluster: Cluster) -> list[tuple[lan.IPNetwork, dict[str, Interface]]]:
    by_network: _Networks = {}
    for node in cluster.nodes:
        for interface in _leading_out(node):
            for _, network in lan.global_networks(interface):
                if network.prefixlen < network.max_prefixlen:
                    by_network.setdefault(network, {}).setdefault(node.name, interface)
    common = [(network, on) for network, on in by_network.items() if len(on) == len(cluster.nodes)]
    return sorted(common, key=lambda pair: -_slowest(pair[1]))


def _slowest(on: dict[str, Interface]) -> int:
    """Mbit/s of the slowest card; 0 where one reports none."""
    return min(value_or(card.speed_mbit, 0) for card in on.values())


def _leading_out(node: Node) -> list[Interface]:
    """The real interfaces that are up; those of a pod, which has no real ones, where it has none."""
    listed = [interface for interface in lan.interfaces(node) if lan.is_usable(interface)]
    return [interface for interface in listed if lan.is_real(interface, lan.interfaces(node))] or [
        interface for interface in listed if interface.kind in ("veth", "virtual")
    ]


def _meets(site: Site, variable: str, changes: dict[str, str | None], on: dict[str, Interface]) -> bool:
    """Whether the nodes would then meet in this network, and send data only where all others can be reached."""
    common = [cards for _, cards in _networks(site)]
    for node in site.nodes:
        names = _choice(node, variable, changes).names
        if names[:1] != (on[node.name].name,) or not {*names} <= {cards[node.name].name for cards in common}:
            return False
    return True


def reachable(site: Site) -> Iterator[Proposal]:
    """S1: the interface that would be used leads nowhere, and another one is in one subnet on all nodes."""
    for variable in (_NCCL, _GLOO) if site.several else ():
        problem = _wrong_way(site, variable) + site.evidence_of(
            *["NET005"] * (variable == _GLOO and site.uses_gloo)
        )
        networks = _networks(site)
        met = [on for _, on in networks if _meets(site, variable, {}, on)]
        for network, on in networks if problem else ():
            if met and _slowest(on) <= _slowest(met[0]):  # they meet already, and nothing faster is left
                break
            if site.is_set(variable) and _meets(site, variable, {variable: None}, on):
                why = f"Without it every node uses its interface in {network}; with it the nodes do not meet."
                yield Proposal(variable, None, why, [*site.values_of(variable), *problem], "unset")
                break
            value = _named(variable, on)
            used = site.uses_gloo == (variable == _GLOO)
            if used and not _is_slower(site, variable, on) and _meets(site, variable, {variable: value}, on):
                names = value.removeprefix("=").replace(",", " or ")
                why = f"{names} is in {network} on all {len(site.nodes)} nodes; the choice goes by names alone."
                yield Proposal(variable, value, why, [*problem, *_addresses(on)])
                break


def _wrong_way(site: Site, variable: str) -> list[str]:
    """What says that the interface taken now is the wrong one; an address twice counts on that one alone."""
    taken = {(node.name, name) for node in site.nodes for name in _choice(node, variable, {}).names}
    twice = any((finding.where.node, finding.where.device) in taken for finding in site.findings("NET010"))
    return site.evidence_of(*_WRONG_WAY, *["NET010"] * twice)


def _named(variable: str, on: dict[str, Interface]) -> str:
    names = ",".join(sorted({card.name for card in on.values()}))
    return names if variable == _GLOO else f"={names}"


def _is_slower(site: Site, variable: str, on: dict[str, Interface]) -> bool:
    """Whether it is slower than what most nodes use now: then the odd node has a fault, and this is no way out."""
    speeds: list[int] = []
    for node in site.nodes:
        listed, names = lan.interfaces(node), _choice(node, variable, {}).names[:1]
        speeds += [value_or(i.speed_mbit, 0) for i in listed if i.name in names and lan.is_real(i, listed)]
    return len(speeds) * 2 > len(site.nodes) and _slowest(on) < max(speeds)


def _addresses(on: dict[str, Interface]) -> list[str]:
    addresses = [
        f"{node}: {card.name} {address.address}/{address.prefix}"
        for node, card in on.items()
        for address, _ in lan.global_networks(card)[:1]
    ]
    return addresses if len(addresses) <= 4 else [*addresses[:3], f"and {len(addresses) - 3} more nodes"]


def needless_name(site: Site) -> Iterator[Proposal]:
    """S2: NCCL takes the same interfaces without it, on every node."""
    if not site.is_set(_NCCL) or _wrong_way(site, _NCCL):
        return
    for node in site.nodes:
        now, alone = _choice(node, _NCCL, {}), _choice(node, _NCCL, {_NCCL: None})
        if now.problem or (now.used, now.bootstrap) != (alone.used, alone.bootstrap):
            return
    why = "NCCL chooses the same interfaces without it, on every node; a name fails on nodes with others."
    yield Proposal(_NCCL, None, why, site.values_of(_NCCL))


def _leads_nowhere(setting: SetVariable) -> bool:
    node = setting.on.node
    kinds = {
        interface.name: "out" if lan.leads_out(node, interface) else interface.kind
        for interface in lan.interfaces(node)
    }
    taken = {kinds.get(name, "loopback") for name in _choice(node, setting.name, {}).names}
    return bool(taken) and taken <= {"loopback", "bridge", "veth"} and _has_better(node)


def _has_better(node: Node) -> bool:
    listed = lan.interfaces(node)
    return any(lan.is_real(interface, listed) for interface in _leading_out(node))


def master_of_a_slave(site: Site) -> Iterator[Proposal]:
    """S4: NCCL_SOCKET_IFNAME names a member of a bond, which has no address of its own."""
    masters: set[str] = set()
    for node in site.nodes:
        tokens = parse_pattern(values(node).get(_NCCL, "")).tokens
        bonds = [interface for interface in lan.interfaces(node) if interface.kind == "bond"]
        masters |= {bond.name for bond in bonds if {*tokens} & {*value_or(bond.members, [])}}
    if not masters:
        return
    value = "=" + ",".join(sorted(masters))
    for changed in (None, value):
        taken = [_choice(node, _NCCL, {_NCCL: changed}).names for node in site.nodes]
        if all(names and {*names} <= masters for names in taken) and (changed is None or site.uses_nccl):
            why = f"It names a member of {' and '.join(sorted(masters))}; members of a bond have no address."
            yield Proposal(_NCCL, changed, why, site.values_of(_NCCL), "set" if changed else "unset")
            return


def other_family(site: Site) -> Iterator[Proposal]:
    """S5: no network is common to all nodes by IPv4, and one is by IPv6."""
    problem = site.evidence_of("NET003", "NET014", "NET006")
    if not site.several or not problem or site.is_set("NCCL_SOCKET_FAMILY"):
        return
    networks = _networks(site)
    if any(network.version == 4 for network, _ in networks):
        return
    for network, on in networks:
        if _meets(site, _NCCL, {"NCCL_SOCKET_FAMILY": "AF_INET6"}, on) and not _is_used(site, network):
            why = f"All nodes are in {network}, and in no IPv4 subnet together; NCCL takes IPv4 first."
            yield Proposal("NCCL_SOCKET_FAMILY", "AF_INET6", why, [*problem, *_addresses(on)])
            return


def _is_used(site: Site, network: lan.IPNetwork) -> bool:
    links = [lan.link(node, lan.choice_of_nccl(node)) for node in site.nodes]
    return all(link is not None and link.network == network for link in links)


def _rdma_is_used(site: Site) -> bool:
    return bool(site.networks()) and "Socket" not in site.networks()


def _cards(site: Site) -> list[Interface]:
    """The interface that NCCL meets over on each node; none where one has none."""
    links = [lan.link(node, lan.choice_of_nccl(node)) for node in site.nodes]
    return [link.interface for link in links if link] if all(links) else []


def _runs_over_tcp(site: Site) -> bool:
    """By NCCL's own word; without a log, where no HCA is there and no plugin that may know another network."""
    if site.networks():
        return site.several and site.networks() == {"Socket"}
    plugins = [path for path in site.plugins() if "net" in path.rpartition("/")[2]]
    return site.several and site.has_no_hca() and not plugins


def more_sockets(site: Site) -> Iterator[Proposal]:
    """T1: NCCL over TCP on fast cards, one socket a connection."""
    cards = _cards(site)
    drivers = {value_or(card.driver, "") for card in cards}
    if not _runs_over_tcp(site) or site.is_set(*_SOCKETS) or drivers & {"ena", "gve"}:  # NCCL knows these two
        return
    speeds = [card.speed_mbit for card in cards]
    fast = [speed for speed in speeds if not isinstance(speed, Unread) and speed >= _FAST_MBIT]
    if cards and len(fast) == len(speeds):
        why = "NCCL opens one socket a connection, and one TCP stream seldom fills a card this fast."
        evidence = [f"{cards[0].name} at {min(fast) / 1000:g} Gb/s on all {len(cards)} nodes", "no RDMA is used"]
        yield Proposal(_SOCKETS[0], "4", why, evidence)


def falls_at_large_sizes(site: Site) -> Iterator[Proposal]:
    """T4: all_reduce over TCP gets slower from 32 MiB on, and the sockets are pinned."""
    rows = [
        (row.bytes, row.busbw_gb_s)
        for row in site.cluster.measurements.collectives
        if row.op == "all_reduce" and row.busbw_gb_s is not None
    ]
    large = [busbw for size, busbw in rows if size >= 32 << 20]
    small = [busbw for size, busbw in rows if size < 32 << 20]
    if not _runs_over_tcp(site) or not large or not small or max(large) >= 0.7 * max(small):
        return
    seen = f"all_reduce: busbw {max(small):.2f} GB/s below 32 MiB, {max(large):.2f} GB/s from there on"
    for name in _SOCKETS:
        if evidence := site.values_of(name):
            yield Proposal(name, None, "Large messages are slower than small ones with it.", [*evidence, seen])


def all_cards(site: Site) -> Iterator[Proposal]:
    """T6: one of several equal cards is named, and NCCL's TCP transport could use all of them."""
    if not _runs_over_tcp(site) or not site.is_set(_NCCL):
        return
    used = {name for node in site.nodes for name in lan.choice_of_nccl(node).names}
    networks = _networks(site)
    names = sorted({card.name for _, on in networks for card in on.values()})
    speeds = {str(card.speed_mbit) for _, on in networks for card in on.values()}
    if len(networks) > 1 and len(speeds) == 1 and used < {*names} and len(used) == 1:
        why = f"{', '.join(names)} are equally fast and in a subnet each on all nodes; NCCL spreads its channels."
        yield Proposal(
            _NCCL, "=" + ",".join(names), why, [*site.values_of(_NCCL), *(str(net) for net, _ in networks)]
        )


def _has_no_hca(site: Site) -> bool:
    return site.has_no_hca() and not site.plugins()


def _several(site: Site) -> bool:
    return site.several


_RDMA_ONLY: tuple[str, ...] = (
    "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_SPLIT_DATA_ON_QPS",
    "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_NET_GDR_LEVEL",
)  # fmt: skip
_ENV = "NCCL user guide, Environment Variables"


def _is(name: str) -> str:
    return f"{_ENV}, {name}"


RULES = (
    SettingRule(
        rule="S1", title="the interface that leads to all nodes, where the chosen one does not", action="set",
        find=reachable, anywhere=True, source=f"NVIDIA/nccl#913, NVIDIA/nccl#697; {_is(_NCCL)}",
        gain="the job starts, or runs over the network that was meant",
        risk="a node that joins later under other names needs its own name in the list",
    ),
    SettingRule(
        rule="S4", title="the bond instead of one of its members", action="set", find=master_of_a_slave,
        anywhere=True,
        source=f"kernel documentation, bonding; {_is(_NCCL)}", gain="NCCL finds an interface",
    ),
    SettingRule(
        rule="S3", title="no loopback, bridge or veth as the network between nodes", action="unset", harmful=True,
        find=without(_NCCL, _GLOO, only=_several, when=_leads_nowhere,
                     why="It leads to this machine alone; the node has an interface that leads out."),
        source="NVIDIA/nccl#913; horovod/horovod#310", gain="the nodes find each other",
    ),
    SettingRule(
        rule="S2", title="no interface by name where NCCL takes the same one by itself", action="unset",
        of_machine=True,
        find=needless_name, source=_is(_NCCL), gain="none now; one cause less of failures on other nodes",
        risk="on a node with a second network NCCL may choose that one",
        disagree="Clouds whose interfaces are all named alike set eth0; NVIDIA leaves the choice to NCCL.",
    ),
    SettingRule(
        rule="S5", title="IPv6 where the nodes have no IPv4 network in common", action="set", find=other_family,
        source=_is("NCCL_SOCKET_FAMILY"), gain="the nodes find each other",
        risk="RoCE needs NCCL_IB_ADDR_FAMILY=AF_INET6 too",
    ),
    SettingRule(
        rule="T2", title="no settings of TCP sockets where NCCL uses another network", action="unset",
        find=without(*_SOCKETS, only=_rdma_is_used, why="NCCL's log says that it does not use TCP for data."),
        source="AWS, EFA cheat sheet (awsome-distributed-training)", gain="none: it had no effect",
    ),
    SettingRule(
        rule="P21", title="no settings of RDMA on nodes without RDMA", action="unset", of_machine=True,
        find=without(*_RDMA_ONLY, only=_has_no_hca, why="No node has an RDMA device: nothing reads it."),
        source=_ENV, gain="none: it had no effect",
    ),
    SettingRule(
        rule="T6", title="all of several equal cards over TCP, where one is named", action="try", find=all_cards,
        source=_is(_NCCL), gain="more than one card carries data",
        risk="ranks still meet over the first one alone; what the others reach was not measured",
    ),
    SettingRule(
        rule="T4", title="no pinned sockets where large messages are slow over TCP", action="try",
        find=falls_at_large_sizes, source="NVIDIA/nccl#450", gain="large messages as fast as small ones",
    ),
    SettingRule(
        rule="T1", title="more sockets a connection over TCP on fast cards", action="try", find=more_sockets,
        source=f"{_is('NCCL_SOCKET_NTHREADS')}; NVIDIA/nccl-tests#83", gain="TCP closer to the rate of the card",
        risk="more threads on the host",
        disagree="NVIDIA's text has 4 and 4 at 100 Gb/s; in NVIDIA/nccl#450 every increase lost, in #209 "
        "4 threads with 1 socket each were best.",
    ),
)  # fmt: skip

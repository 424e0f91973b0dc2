"""InfiniBand and RoCE: addresses, classes and partitions of the site, and what may be worth a measurement."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import Node, Unread, value_or
from ncclcheck.reports.recommend.advice import Proposal, SettingRule, number
from ncclcheck.reports.recommend.site import Site
from ncclcheck.reports.subjects.nccl import carrying, lan, profiles, wiring
from ncclcheck.reports.subjects.nccl.hca import UsedPort, address_of, automatic_gid, is_routable, roce_version
from ncclcheck.reports.subjects.nccl.variables import values

_GID, _TC, _PKEY, _QPS = "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_PKEY", "NCCL_IB_QPS_PER_CONNECTION"
_ADAPTIVE = "NCCL_IB_ADAPTIVE_ROUTING"
_ENV = "NCCL user guide"
_FULL_MEMBER = 0x8000  # the top bit of a P_Key. Source: InfiniBand Architecture Specification, Partition Keys
_FAST_GBIT = 100.0  # below it one flow seldom fills a queue of the switch


def roce(site: Site) -> list[tuple[Node, UsedPort]]:
    """The ports, where all that NCCL would use are RoCE."""
    ports = site.ports()
    return ports if all(port.is_roce for _, port in ports) else []


def infiniband(site: Site) -> list[tuple[Node, UsedPort]]:
    """The ports, where all that NCCL would use are InfiniBand."""
    ports = site.ports()
    return [] if any(port.is_roce for _, port in ports) else ports


def needless_gid(site: Site) -> Iterator[Proposal]:
    """R1: NCCL would take that very entry by itself on every port: take it out; else keep it, and say so."""
    ports = roce(site)
    tables = [device.port.gids for _, device in ports]
    if not ports or not site.is_set(_GID) or any(isinstance(table, Unread) for table in tables):
        return
    same, notes = True, []
    for node, port in ports:
        asked, table = wiring.gid(node, port), value_or(port.port.gids, [])
        env = {name: value for name, value in values(node).items() if name != _GID}
        automatic = automatic_gid(table, env)
        notes.append(f"{node.name} {port.name}: NCCL would take GID {automatic}")
        same = same and asked is not None and automatic == asked.index
    evidence = [*site.values_of(_GID), *notes[:3]]
    if same:
        why = "NCCL finds the same address by itself on every port; an index moves with a reboot."
        yield Proposal(_GID, None, why, evidence)
    elif not site.evidence_of("RDM014"):
        why = "NCCL would take another address by itself on some port; whether that one works was not tried."
        yield Proposal(_GID, site.value(_GID), why, evidence, "keep")
    else:
        yield Proposal(
            _GID,
            None,
            "The entry that it names is not one that is routed.",
            [*evidence, *site.evidence_of("RDM014")],
        )


def gid_of_old_nccl(site: Site) -> Iterator[Proposal]:
    """R2: before 2.21 NCCL takes index 0, and a routed RoCE v2 address stands at one index on all ports."""
    ports = roce(site)
    if not ports or site.is_set(_GID) or not (problem := site.evidence_of("RDM013")):
        return
    sets = []
    for _, port in ports:
        good = [g for g in value_or(port.port.gids, []) if roce_version(g) == 2 and is_routable(g)]
        mapped = [g for g in good if address_of(g).version == 4]
        sets.append({g.index for g in mapped or good})
    if common := set.intersection(*sets):
        why = (
            f"A routed RoCE v2 address stands at index {min(common)} on all {len(ports)} ports; this NCCL takes 0."
        )
        yield Proposal(_GID, str(min(common)), why, problem)


def traffic_class(site: Site) -> Iterator[Proposal]:
    """R3: the driver of some ports sets a traffic class, that of others does not."""
    classes: dict[str, int] = {}
    carried = {(node.name, device.name) for node in site.nodes for device in carrying.choice(node).used}
    for node, port in roce(site):
        if (node.name, port.name) not in carried:
            continue  # a card for storage or management, whose class is its own
        text = port.port.traffic_class
        if isinstance(text, Unread) and text.kind != "absent":
            return
        match = re.search(r"tclass\s*=\s*(\d{1,3})", value_or(text, ""), re.ASCII)
        classes[f"{node.name} {port.name}"] = int(match[1]) if match else 0
    set_to = {value for value in classes.values() if value}
    if len(set_to) == 1 and 0 in classes.values() and not site.is_set(_TC):
        value = str(set_to.pop())
        lacking = [place for place, traffic in classes.items() if not traffic]
        why = f"Other ports of the site send RoCE in class {value}, which the switches keep lossless."
        yield Proposal(
            _TC, value, why, [f"no traffic class on {', '.join(lacking[:4])}", *site.evidence_of("RDM016")]
        )


def some_class(site: Site) -> Iterator[Proposal]:
    """R3: fast RoCE between nodes, and no traffic class anywhere."""
    ports = roce(site)
    fast = ports and all(value_or(port.port.rate_gbit, 0.0) >= _FAST_GBIT for _, port in ports)
    absent = all(
        isinstance(port.port.traffic_class, Unread) and port.port.traffic_class.kind == "absent"
        for _, port in ports
    )
    if site.several and fast and absent and not any(_TC in profiles.asked(node) for node in site.nodes):
        why = "No class is set, and RoCE is lossless only in that of the site: ask for it; 106 is the usual one."
        yield Proposal(_TC, "106", why, [f"no traffic class on {len(ports)} RoCE ports"])


def partition(site: Site) -> Iterator[Proposal]:
    """R19: index 0 of the partition table is not the tenant's; one other index is, on all ports."""
    ports = infiniband(site)
    tables = [port.port.pkeys for _, port in ports]
    if not ports or site.is_set(_PKEY) or any(isinstance(table, Unread) for table in tables):
        return
    listed = [value_or(table, []) for table in tables]
    if all(table[:1] and table[0] & _FULL_MEMBER for table in listed):
        return
    full = [{i for i, key in enumerate(table) if key & _FULL_MEMBER} for table in listed]
    keys = [{table[i] for i in indices} for table, indices in zip(listed, full, strict=True)]
    if (common := set.intersection(*full)) and len(common) == 1 and len(set.union(*keys)) == 1:
        index = common.pop()
        why = f"Entry 0 of the partition table is no full member; entry {index} is one on all ports."
        yield Proposal(
            _PKEY, str(index), why, site.evidence_of("RDM021") or [f"pkeys of {ports[0][0].name}: {listed[0]}"]
        )


def queue_pairs_over_a_bond(site: Site) -> Iterator[Proposal]:
    """R9: a RoCE bond, whose hash puts one connection on one of its cables."""
    problem = site.evidence_of("RDM023")
    if roce(site) and site.several and problem and not site.is_set(_QPS):
        yield Proposal(_QPS, "4", "A bond sends one queue pair over one of its cables.", problem)


def queue_pairs_over_routers(site: Site) -> Iterator[Proposal]:
    """R5: RoCE between subnets: every queue pair takes one of several ways."""
    ports = roce(site)
    if not ports or not site.several or site.is_set(_QPS):
        return
    rails: dict[str, set[str]] = {}
    for node, port in ports:
        card = next((c for c in lan.interfaces(node) if c.name == _netdev(node, port)), None)
        for _, network in lan.global_networks(card) if card else []:
            if network.version == 4:
                rails.setdefault(port.name, set()).add(str(network))
    routed = {name: nets for name, nets in rails.items() if len(nets) > 1}
    if routed:
        name, nets = next(iter(routed.items()))
        why = "RoCE crosses routers here: one queue pair is one path, two or four spread the load."
        yield Proposal(_QPS, "4", why, [f"{name}: {', '.join(sorted(nets)[:4])}"])


def _netdev(node: Node, port: UsedPort) -> str:
    taken = wiring.gid(node, port)
    return value_or(taken.gid.netdev, "") if taken and taken.gid else ""


def gpudirect_below_one_root(site: Site) -> Iterator[Proposal]:
    """R24: GPUs and HCAs hang on one host bridge, and NCCL's log has no GPUDirect."""
    kinds = {kind for kind in site.kinds("inter") if kind.startswith("NET/IB")}
    if not kinds or any("GDRDMA" in kind for kind in kinds) or site.is_set("NCCL_NET_GDR_LEVEL"):
        return
    nearest = {_nearest(node) for node in site.nodes}
    if nearest == {"PHB"} and not site.evidence_of("RDM022"):
        why = "GPU and HCA are below one host bridge, which is farther than NCCL goes by itself for GPUDirect."
        evidence = [f"NCCL's log: {', '.join(sorted(kinds))}", "nearest HCA of the GPUs: PHB"]
        yield Proposal("NCCL_NET_GDR_LEVEL", "PHB", why, evidence)


def _nearest(node: Node) -> str | None:
    cards, gpus = wiring.functions(node, "nic"), wiring.functions(node, "gpu")
    return wiring.nearest([wiring.distance(gpu, card) for gpu in gpus for card in cards])


def sharp(site: Site) -> Iterator[Proposal]:
    """R30: InfiniBand, and the plugin for SHARP is there."""
    plugin = [path for path in site.plugins() if "sharp" in path.lower()]
    if infiniband(site) and site.several and plugin and not site.is_set("NCCL_COLLNET_ENABLE"):
        why = "The plugin for SHARP is installed; where the switches run it they add up themselves."
        yield Proposal("NCCL_COLLNET_ENABLE", "1", why, plugin[:2])


def service_level(site: Site) -> Iterator[Proposal]:
    """R18: Azure's machines with GB300, whose fabric has adaptive routing in service level 1."""
    products = site.products()
    models = " ".join(site.models())
    if "Microsoft" in products and "GB300" in models and infiniband(site) and not site.is_set("NCCL_IB_SL"):
        why = "Azure's fabric for GB300 has adaptive routing in service level 1 only."
        yield Proposal("NCCL_IB_SL", "1", why, [products, f"GPU {models}"])


def service_level_of_adaptive_routing(site: Site) -> Iterator[Proposal]:
    """R18: adaptive routing is asked for by its variable, and not in the service level that has it."""
    asked = site.values_of(_ADAPTIVE, number(1))
    if infiniband(site) and site.several and asked and not site.is_set("NCCL_IB_SL"):
        why = (
            "Adaptive routing works in the service levels only that the subnet manager has it on for: ask for it."
        )
        yield Proposal("NCCL_IB_SL", "1", why, asked)


RULES = (
    SettingRule(
        rule="R1", title="the address of RoCE is left to NCCL 2.21 and later", action="unset",
        of_machine=True, find=needless_gid,
        since=(2, 21, 0), source=f"{_ENV}, Troubleshooting, RoCE; NCCL_IB_GID_INDEX",
        gain="none now; the job survives a table that changes",
        disagree="NVIDIA: should not be set from 2.21 on. OCI's tables, GCP's A4 images and ClusterMAX set 3.",
    ),
    SettingRule(
        rule="R2", title="the index of the routed address, before NCCL 2.21", action="set", find=gid_of_old_nccl,
        until=(2, 20, 5), source=f"{_ENV}, NCCL_IB_GID_INDEX", gain="RDMA connects",
        risk="the index moves with a reboot or in a container: look again at the start of each job",
    ),
    SettingRule(
        rule="R3", title="the site's traffic class, where only some nodes have it", action="set",
        find=traffic_class,
        source=f"{_ENV}, NCCL_IB_TC; NVIDIA/nccl#2383", gain="no packets dropped under load",
        risk="flow control for this class was not seen: mlnx_qos shows it",
    ),
    SettingRule(
        rule="R3", title="a traffic class for RoCE, where no node has one", action="try", find=some_class,
        source=f"{_ENV}, NCCL_IB_TC, and Troubleshooting, RoCE; NVIDIA/nccl#2383",
        gain="no packets dropped under load",
        risk="where the switches give this class no queue of its own it gains nothing; with NCCL 2.22.3 and later "
        "NCCL_IB_FIFO_TC is for control messages",
    ),
    SettingRule(
        rule="R19", title="the index of the tenant's partition", action="set", find=partition,
        source="NVIDIA/nccl src/transport/net_ib; NVIDIA/nccl#1323", gain="InfiniBand connects",
    ),
    SettingRule(
        rule="R9", title="more queue pairs over a bond", action="try", find=queue_pairs_over_a_bond,
        since=(2, 10, 0),
        source="NVIDIA/nccl#1015, NVIDIA/nccl-tests#191", gain="both cables of the bond carry data",
        risk="more memory; two HCAs without a bond are better",
    ),
    SettingRule(
        rule="R5", title="more queue pairs on RoCE between subnets", action="try", find=queue_pairs_over_routers,
        since=(2, 10, 0), source=f"{_ENV}, {_QPS}; NVIDIA/nccl#1015", gain="no two flows on one cable",
        risk="more memory for queue pairs on large clusters",
        disagree="NVIDIA's default is 1 (more is 'often necessary' on RoCE); Azure, GCP and OCI's A100 use 4.",
    ),
    SettingRule(
        rule="R24", title="GPUDirect below one host bridge", action="try", find=gpudirect_below_one_root,
        source=f"{_ENV}, NCCL_NET_GDR_LEVEL; Isambard-AI documentation", gain="no copy through the host's memory",
        risk="ACS or the IOMMU may interfere: results have to be checked, which bench does",
        disagree="Isambard-AI sets PHB, GCP keeps to PIX.",
    ),
    SettingRule(
        rule="R30", title="SHARP for all_reduce, where its plugin is installed", action="try", find=sharp,
        source="CoreWeave, nccl-tests manifests; NVIDIA SHARP documentation",
        gain="all_reduce above the rate of the link",
        risk="shared switches may refuse it: the job may fail in init",
    ),
    SettingRule(
        rule="R18", title="the service level of Azure's GB300", action="try", find=service_level,
        source="Azure, performance notes for GB300", gain="adaptive routing",
        risk="a wrong service level has no path",
    ),
    SettingRule(
        rule="R18", title="a service level with adaptive routing, where it is asked for", action="try",
        find=service_level_of_adaptive_routing, since=(2, 16, 0), source=f"{_ENV}, {_ADAPTIVE} and NCCL_IB_SL",
        gain="adaptive routing, where it was off",
        risk="a wrong service level has no path; where the subnet manager has it on for all of them, as OpenSM "
        "does by itself, nothing is gained",
        disagree="Azure names 1 for GB300; other sites name none.",
    ),
)  # fmt: skip

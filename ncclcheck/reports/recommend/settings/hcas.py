"""Which HCAs carry the data: facts of the site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts import Node, value_or
from ncclcheck.reports.recommend.advice import Proposal, SettingRule
from ncclcheck.reports.recommend.site import Site
from ncclcheck.reports.subjects.nccl import carrying, data_cards, wiring
from ncclcheck.reports.subjects.nccl.hca import UsedPort, is_routable, parse_hca, roce_version
from ncclcheck.reports.subjects.nccl.variables import values

_HCA = "NCCL_IB_HCA"
_ENV = "NCCL user guide, NCCL_IB_HCA"
# Virtual functions of ConnectX-4 to 6, and of ConnectX-7 and later (15b3:101e). Source: pci.ids
_VIRTUAL_MODELS = ("MT4116", "MT4118", "MT4120", "MT4122", "MT4124", "MT4126")


def _shown(node: Node, ports: list[UsedPort]) -> str:
    rates = (f"{port.name} {value_or(port.port.rate_gbit, 0.0):g} Gb/s {port.port.link_layer}" for port in ports)
    return f"{node.name}: {', '.join(rates)}"


def cards_of_data(site: Site) -> Iterator[Proposal]:
    """S6, S8: NCCL would send data over slow cards, or cards of another link layer, beside those meant for it."""
    value = data_cards.list_for(site.nodes)
    used = {node.name: [*carrying.choice(node).used] for node in site.nodes}
    mixed = [node for node in site.nodes if len(data_cards.fastest(used[node.name])) < len(used[node.name])]
    if value and mixed:
        why = "These cards are as near to the GPUs as those of the data network, and hold back all."
        yield Proposal(_HCA, value, why, [_shown(node, used[node.name]) for node in mixed[:4]])


def of_another_machine(site: Site) -> Iterator[Proposal]:
    """S6, S9: the list names HCAs that are not here, and all that are here go together."""
    if not site.is_set(_HCA) or not (problem := site.evidence_of("RDM009")):
        return
    for node in site.nodes:
        choice = site.hcas(node)
        every = [*choice.used, *choice.unwanted]
        if (
            not every
            or len(data_cards.fastest(every)) != len(every)
            or data_cards.taken_with(node, None) == data_cards.taken_with(node, values(node).get(_HCA))
        ):
            return
    why = "It excludes HCAs that are ACTIVE and alike; without it NCCL uses all of them."
    yield Proposal(_HCA, None, why, [*site.values_of(_HCA), *problem], "unset")


def prefix_of_others(site: Site) -> Iterator[Proposal]:
    """S7: a name is the beginning of other names (mlx5_1 of mlx5_10), and takes those too."""
    value = site.value(_HCA)
    if value is None:
        return
    pattern = parse_hca(value)
    if pattern.exact or not pattern.entries:
        return
    strict = ("^=" if pattern.exclude else "=") + value.removeprefix("^")
    more = []
    for node in site.nodes:
        present = {name.partition(":")[0] for name in data_cards.taken_with(node, None)}
        if not {entry.name for entry in pattern.entries} <= present:
            return
        if extra := data_cards.taken_with(node, value) ^ data_cards.taken_with(node, strict):
            more.append(f"{node.name}: it also means {', '.join(sorted(extra))}")
    if more:
        why = "A name in the list is the beginning of other names, which it means as well; with = it means itself."
        yield Proposal(_HCA, strict, why, [*site.values_of(_HCA), *more[:3]])


def virtual_functions(site: Site) -> Iterator[Proposal]:
    """S9: an exact list, on nodes whose HCAs are virtual functions and numbered differently."""
    value = site.value(_HCA)
    if value is None or not parse_hca(value).exact or parse_hca(value).exclude:
        return
    every: list[set[str]] = []
    for node in site.nodes:
        choice = site.hcas(node)
        here = [*choice.used, *choice.unwanted]
        if not here or not all(_is_virtual_function(node, port) for port in here):
            return
        every.append({port.hca.name for port in here})
    if len({frozenset(taken) for taken in every}) > 1:
        why = "The HCAs are virtual functions, numbered differently on each node; NCCL uses all by itself."
        yield Proposal(_HCA, None, why, site.values_of(_HCA), "unset")


def _is_virtual_function(node: Node, port: UsedPort) -> bool:
    """By sysfs on a host and in a pod; in a virtual machine, which shows no physical one, by its model."""
    virtual = {function.name for function in wiring.functions(node) if function.virtual_function}
    return value_or(port.hca.pci, "") in virtual or value_or(port.hca.model, "") in _VIRTUAL_MODELS


def both_functions(site: Site) -> Iterator[Proposal]:
    """R10: one of two ports of the same card is used, the other is ACTIVE and not wanted."""
    extra: set[str] = set()
    used: set[str] = set()
    for node in site.nodes if site.is_set(_HCA) else ():
        choice = site.hcas(node)
        cards = {value_or(port.hca.pci, "").rpartition(".")[0] for port in choice.used} - {""}
        used |= {port.name for port in choice.used}
        of_card = [port for port in choice.unwanted if value_or(port.hca.pci, "").rpartition(".")[0] in cards]
        if not all(_carries_alike(port, choice.used) for port in of_card):
            return
        extra |= {port.name for port in of_card}
    if extra:
        why = f"{', '.join(sorted(extra))} belongs to the same card and is ACTIVE; NCCL merges both into one."
        value = "=" + ",".join(sorted(used | extra))
        yield Proposal(_HCA, value, why, site.values_of(_HCA))


def _carries_alike(port: UsedPort, used: Sequence[UsedPort]) -> bool:
    """Whether it has the rate and the link layer of the ports used, and on RoCE an address that is routed."""
    alike = {(other.port.link_layer, other.port.rate_gbit) for other in used}
    routed = any(is_routable(gid) and roce_version(gid) == 2 for gid in value_or(port.port.gids, []))
    return alike == {(port.port.link_layer, port.port.rate_gbit)} and (routed or not port.is_roce)


RULES = (
    SettingRule(
        rule="S8", title="the HCAs of the data network, where others are ACTIVE beside them", action="set",
        find=cards_of_data, source=f"{_ENV}; NVIDIA/nccl#1401; OCI, recommended NCCL parameters by shape",
        gain="the slowest card does not hold back the others",
        risk="a wrong list halves the bandwidth: count the names against the rails of a node",
    ),
    SettingRule(
        rule="S9", title="no list by name on virtual functions", action="unset",
        of_machine=True, find=virtual_functions,
        source="OCI, recommended NCCL parameters by shape", gain="every node uses RDMA",
        risk="functions that are not for data are used too",
    ),
    SettingRule(
        rule="S6", title="no list of HCAs of another machine", action="unset",
        of_machine=True, find=of_another_machine,
        source=_ENV, gain="RDMA instead of TCP, or all rails instead of some", harmful=True,
    ),
    SettingRule(
        rule="S7", title="names of HCAs that mean no others", action="set", find=prefix_of_others, source=_ENV,
        gain="no card beside the ones named is used",
    ),
    SettingRule(
        rule="R10", title="both functions of a card with two", action="try", find=both_functions, since=(2, 7, 0),
        source="NVIDIA/dgx-spark-playbooks, threads on both functions of one card",
        gain="98 to 161 Gb/s were reported for a pair of DGX Spark",
        risk="the other port may be meant for storage: see to what it is cabled",
    ),
)  # fmt: skip

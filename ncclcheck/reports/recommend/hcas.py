"""Which HCAs carry the data: facts of the site."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Node, Unread, value_or
from ncclcheck.reports import wiring
from ncclcheck.reports.hca import UsedPort, hca_choice, parse_hca
from ncclcheck.reports.recommend.advice import Found, SettingRule
from ncclcheck.reports.recommend.site import Site
from ncclcheck.reports.variables import nccl_version, values

_HCA = "NCCL_IB_HCA"
_ENV = "NCCL user guide, NCCL_IB_HCA"


def _taken(node: Node, value: str | None) -> set[str]:
    """The ports that NCCL would use with this value."""
    env = {name: text for name, text in {**values(node), _HCA: value}.items() if text is not None}
    devices = wiring.choice(node)
    all_ports = [one.hca for one in (*devices.used, *devices.inactive, *devices.unseen, *devices.unwanted)]
    found = hca_choice([*{one.name: one for one in all_ports}.values()], env, nccl_version(node))
    return {_port(one) for one in found.used}


def _port(one: UsedPort) -> str:
    return f"{one.hca.name}:{one.port.name}"


def _data_ports(ports: list[UsedPort]) -> list[UsedPort]:
    """The fastest ports of the link layer that carries most; none where a rate or a link layer is not known."""
    rates = [one.port.rate_gbit for one in ports]
    if any(isinstance(rate, Unread) for rate in rates) or any(
        isinstance(one.port.link_layer, Unread) for one in ports
    ):
        return []
    total: dict[str, float] = {}
    for one in ports:
        layer = str(one.port.link_layer)
        total[layer] = total.get(layer, 0.0) + value_or(one.port.rate_gbit, 0.0)
    of_layer = [one for one in ports if one.port.link_layer == max(total, key=total.__getitem__)]
    most = max(value_or(one.port.rate_gbit, 0.0) for one in of_layer)
    return [one for one in of_layer if one.port.rate_gbit == most]


def _shown(node: Node, ports: list[UsedPort]) -> str:
    told = (f"{one.name} {value_or(one.port.rate_gbit, 0.0):g} Gb/s {one.port.link_layer}" for one in ports)
    return f"{node.name}: {', '.join(told)}"


def _is_meant(data: list[UsedPort], others: list[UsedPort]) -> bool:
    """Whether the others are cards of another kind, and not the same kind with a bad cable."""
    kinds = {one.hca.board if isinstance(one.hca.board, str) else one.hca.model for one in data}
    layers = {str(one.port.link_layer) for one in data}
    return all(
        str(one.port.link_layer) not in layers
        or (one.hca.board if isinstance(one.hca.board, str) else one.hca.model) not in kinds
        for one in others
    )


def data_cards(site: Site) -> Iterator[Found]:
    """S6, S8: NCCL would use slow cards, or cards of another link layer, beside those of the data network."""
    wanted: dict[str, set[str]] = {}
    names: set[str] = set()
    evidence = []
    for node in site.nodes:
        used = [*site.hcas(node).used]
        data = _data_ports(used) if used else []
        if not data or not _is_meant(data, [one for one in used if one not in data]):
            return
        wanted[node.name] = {_port(one) for one in data}
        names |= {one.name for one in data}
        if len(data) < len(used):
            evidence.append(_shown(node, used))
    value = "=" + ",".join(sorted(names))
    if evidence and all(_taken(node, value) == wanted[node.name] for node in site.nodes):
        why = "NCCL uses every port that is ACTIVE; a slow one, or one of another link layer, holds back all."
        yield Found(_HCA, value, why, evidence[:4])


def of_another_machine(site: Site) -> Iterator[Found]:
    """S6, S9: the list names HCAs that are not here, and all that are here go together."""
    if not site.is_set(_HCA) or not (problem := site.told("RDM009")):
        return
    for node in site.nodes:
        choice = site.hcas(node)
        every = [*choice.used, *choice.unwanted]
        if (
            not every
            or len(_data_ports(every)) != len(every)
            or _taken(node, None) == _taken(node, values(node).get(_HCA))
        ):
            return
    why = "It leaves out HCAs that are ACTIVE and alike; without it NCCL uses all of them."
    yield Found(_HCA, None, why, [*site.held(_HCA), *problem], "unset")


def prefix_of_others(site: Site) -> Iterator[Found]:
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
        present = {one.partition(":")[0] for one in _taken(node, None)}
        if not {entry.name for entry in pattern.entries} <= present:
            return
        more += [f"{node.name}: it also means {', '.join(sorted(extra))}"
                 for extra in [_taken(node, value) ^ _taken(node, strict)] if extra]  # fmt: skip
    if more:
        why = "A name in the list is the beginning of other names, which it means as well; with = it means itself."
        yield Found(_HCA, strict, why, [*site.held(_HCA), *more[:3]])


def virtual_functions(site: Site) -> Iterator[Found]:
    """S9: an exact list, on nodes whose HCAs are virtual functions and numbered differently."""
    value = site.value(_HCA)
    if value is None or not parse_hca(value).exact or parse_hca(value).exclude:
        return
    every: list[set[str]] = []
    for node in site.nodes:
        virtual = {one.name for one in wiring.functions(node) if one.virtual_function}
        choice = site.hcas(node)
        here = [*choice.used, *choice.unwanted]
        if not here or not all(value_or(one.hca.pci, "") in virtual for one in here):
            return
        every.append({one.hca.name for one in here})
    if len({frozenset(one) for one in every}) > 1:
        why = "The HCAs are virtual functions, numbered differently on each node; NCCL uses all by itself."
        yield Found(_HCA, None, why, site.held(_HCA), "unset")


def both_functions(site: Site) -> Iterator[Found]:
    """R10: one of two ports of the same card is used, the other is ACTIVE and not wanted."""
    extra: set[str] = set()
    used: set[str] = set()
    for node in site.nodes if site.is_set(_HCA) else ():
        choice = site.hcas(node)
        cards = {value_or(one.hca.pci, "").rpartition(".")[0] for one in choice.used} - {""}
        used |= {one.name for one in choice.used}
        extra |= {one.name for one in choice.unwanted if value_or(one.hca.pci, "").rpartition(".")[0] in cards}
    if extra:
        why = f"{', '.join(sorted(extra))} belongs to the same card and is ACTIVE; NCCL merges both into one."
        value = "=" + ",".join(sorted(used | extra))
        yield Found(_HCA, value, why, site.held(_HCA))


RULES = (
    SettingRule(
        rule="S8", title="the HCAs of the data network, where others are ACTIVE beside them", action="set",
        find=data_cards, source=f"{_ENV}; NVIDIA/nccl#1401; OCI, recommended NCCL parameters by shape",
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
    ),
)  # fmt: skip

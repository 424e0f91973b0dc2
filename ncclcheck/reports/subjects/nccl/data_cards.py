"""The list of HCAs that a site means for data, where NCCL by itself would send data over others too."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import Node, Unread, value_or
from ncclcheck.reports.subjects.nccl import carrying, wiring
from ncclcheck.reports.subjects.nccl.hca import UsedPort, hca_choice
from ncclcheck.reports.subjects.nccl.variables import nccl_version, values

HCA = "NCCL_IB_HCA"


def list_for(nodes: Sequence[Node]) -> str | None:
    """The value that leaves the data cards on every node and no others; None where that is no fact of the site."""
    wanted: dict[str, set[str]] = {}
    names: set[str] = set()
    for node in nodes:
        used = [*carrying.choice(node).used]
        data = fastest(used)
        if (
            not data
            or not _is_one_kind(node, data)
            or not is_meant(data, [port for port in used if port not in data])
        ):
            return None
        wanted[node.name] = {full_name(port) for port in data}
        names |= {port.name for port in data}
    value = "=" + ",".join(sorted(names))
    return value if all(taken_with(node, value) == wanted[node.name] for node in nodes) else None


def fastest(ports: Sequence[UsedPort]) -> list[UsedPort]:
    """The fastest ports of the link layer that carries most; none where a rate or a link layer is not known."""
    rates = [used.port.rate_gbit for used in ports]
    if any(isinstance(rate, Unread) for rate in rates) or any(
        isinstance(used.port.link_layer, Unread) for used in ports
    ):
        return []
    total: dict[str, float] = {}
    for port in ports:
        layer = str(port.port.link_layer)
        total[layer] = total.get(layer, 0.0) + value_or(port.port.rate_gbit, 0.0)
    of_layer = [used for used in ports if used.port.link_layer == max(total, key=total.__getitem__)]
    most = max((value_or(used.port.rate_gbit, 0.0) for used in of_layer), default=0.0)
    return [used for used in of_layer if used.port.rate_gbit == most]


def is_meant(data: Sequence[UsedPort], others: Sequence[UsedPort]) -> bool:
    """Whether the others are cards of another kind, and not the same kind with a bad cable."""
    kinds = {carrying.kind(port) for port in data}
    layers = {str(port.port.link_layer) for port in data}
    return all(str(port.port.link_layer) not in layers or carrying.kind(port) not in kinds for port in others)


def _is_one_kind(node: Node, data: Sequence[UsedPort]) -> bool:
    """Cards of two kinds, or more of them than GPUs, may be of two networks: which is for data is not known."""
    gpus = len(wiring.functions(node, "gpu"))
    return len({carrying.kind(port) for port in data}) == 1 and (not gpus or len(data) <= gpus)


def taken_with(node: Node, value: str | None) -> set[str]:
    """The ports that NCCL would list with this value of NCCL_IB_HCA."""
    env = {name: text for name, text in {**values(node), HCA: value}.items() if text is not None}
    taken = wiring.choice(node)
    all_ports = [port.hca for port in (*taken.used, *taken.inactive, *taken.unseen, *taken.unwanted)]
    choice = hca_choice([*{all_port.name: all_port for all_port in all_ports}.values()], env, nccl_version(node))
    return {full_name(port) for port in choice.used}


def full_name(port: UsedPort) -> str:
    """With the port, whether it has others or not."""
    return f"{port.hca.name}:{port.port.name}"

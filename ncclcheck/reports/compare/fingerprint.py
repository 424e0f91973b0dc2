"""What two results must share before their figures may be compared: hardware and shape. And their software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct

from ncclcheck.probes.facts import Cluster, Gpu, Hca, Interface, Node, Unread, at, value_or

Kind = Literal["hardware", "software", "shape"]


class Fingerprint(Struct, frozen=True, kw_only=True):
    """By field what nodes have, and how many nodes have it. A field that one node did not tell is left out."""

    hardware: dict[str, dict[str, int]]
    software: dict[str, dict[str, int]]
    shape: dict[str, str]


class FieldDifference(Struct, frozen=True, kw_only=True):
    """One field in which two fingerprints differ, in words."""

    kind: Kind
    field: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.field}: {self.before} -> {self.after}"


def fingerprint(cluster: Cluster) -> Fingerprint:
    """Of all nodes that answered; names do not count, for the next job may get other nodes of the same kind."""
    return Fingerprint(
        hardware=_counted(cluster, _HARDWARE),
        software=_counted(cluster, _SOFTWARE),
        shape={
            "nodes": str(len(cluster.nodes)),
            "ranks": str(cluster.job.ranks),
            "backend": cluster.job.backend or "none",
            "simulated": "yes" if cluster.job.simulated else "no",
        },
    )


def differences(before: Fingerprint, after: Fingerprint) -> list[FieldDifference]:
    """Every field that both know and that differs."""
    changes = [
        FieldDifference(kind="shape", field=name, before=value, after=after.shape[name])
        for name, value in before.shape.items()
        if name in after.shape and after.shape[name] != value
    ]
    sides: tuple[tuple[Kind, dict[str, dict[str, int]], dict[str, dict[str, int]]], ...] = (
        ("hardware", before.hardware, after.hardware),
        ("software", before.software, after.software),
    )
    for kind, old, new in sides:
        for name in old.keys() & new.keys():
            if _kinds(old[name]) != _kinds(new[name]):
                words = _words(old[name]), _words(new[name])
                changes.append(FieldDifference(kind=kind, field=name, before=words[0], after=words[1]))
    return sorted(changes, key=lambda difference: (difference.kind, difference.field))


def _kinds(counted: Mapping[str, int]) -> Mapping[str, float]:
    """The share of nodes that has each: how many nodes there are is the shape's business."""
    nodes = sum(counted.values())
    return {what: round(number / nodes, 6) for what, number in counted.items()}


def _words(counted: Mapping[str, int]) -> str:
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{what} ({number} nodes)" for what, number in sorted(counted.items()))


def _counted(cluster: Cluster, fields: Mapping[str, Callable[[Node], str | None]]) -> dict[str, dict[str, int]]:
    columns = {name: [read(node) for node in cluster.nodes] for name, read in fields.items()}
    return {
        name: dict(sorted(Counter(value for value in values if value is not None).items()))
        for name, values in columns.items()
        if values and None not in values
    }


def _fact(path: str) -> Callable[[Node], str | None]:
    """One fact in words; "none" where there is no such thing, None where it was not seen."""

    def read(node: Node) -> str | None:
        value = at(node, path)
        return _missing(value) if type(value) is Unread else f"{value:g}" if type(value) is float else str(value)

    return read


def _missing(fact: Unread) -> str | None:
    return "none" if fact.kind == "absent" else None


def _gpus(node: Node) -> str | None:
    cards = at(node, "gpus.cards")
    if type(cards) is Unread:
        return _missing(cards)
    others: list[Gpu] = value_or(at(node, "gpus.others"), [])
    return _number_of(value_or(card.model, "GPU that reports no model") for card in [*cards, *others])


def _hcas(node: Node) -> str | None:
    devices = at(node, "rdma.devices")
    if type(devices) is Unread:
        return _missing(devices)
    return _number_of(_hca(device) for device in devices)


def _hca(device: Hca) -> str:
    model = value_or(device.model, "HCA")
    if type(device.ports) is Unread:
        return model
    rates = [value_or(port.rate_gbit, 0.0) for port in device.ports if port.state == "ACTIVE"]
    return model + (f" at {sum(rates):g} Gb/s" if rates else " without an active port")


def _cards(node: Node) -> str | None:
    interfaces = at(node, "network.interfaces")
    if type(interfaces) is Unread:
        return _missing(interfaces)
    return _number_of(
        _card(interface) for interface in interfaces if interface.kind == "physical" and interface.running is True
    )


def _card(interface: Interface) -> str:
    speed = "" if type(interface.speed_mbit) is Unread else f" at {interface.speed_mbit / 1000:g} Gb/s"
    return value_or(interface.driver, "card") + speed


def _number_of(things: object) -> str:
    counted = Counter(things)  # type: ignore[call-overload]
    return ", ".join(f"{number} x {what}" for what, number in sorted(counted.items())) or "none"


_HARDWARE = {"GPUs": _gpus, "HCAs": _hcas, "network cards": _cards, "cores": _fact("host.cores")}
_SOFTWARE = {
    "NCCL": _fact("nccl.loaded.version"),
    "torch": _fact("stack.torch"),
    "CUDA of torch": _fact("stack.torch_cuda"),
    "driver": _fact("stack.driver"),
    "ncclcheck": _fact("stack.ncclcheck"),
}

"""The switch at the other end of each RDMA port's cable, as far as somebody here knows it.

Ethernet: what systemd-networkd keeps of LLDP, which everybody may read, else what lldpd tells. InfiniBand: two
questions to the next switch by smpquery, where this user may send them. Recorded names: `lldpctl` and `smpquery`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from ncclcheck.probes.facts import Hca, Leaf, Port, Unread, value_or
from ncclcheck.probes.machine.access import Machine

_CLASS = "/sys/class/infiniband"
_NETWORKD = "/run/systemd/netif/lldp"
_SOCKETS = ("/run/lldpd.socket", "/var/run/lldpd.socket")
# lldpctl answers from memory, smpquery in a round trip; a cable without an answer must not hold up: chosen
_LONGEST_S = 2.0
_MOST_BYTES = 65536  # of networkd's LLDP file: 40 neighbours with the longest frame; a port has one
_HEADER = 14  # of an Ethernet frame
_CHASSIS, _PORT, _PORT_TEXT, _NAME = 1, 2, 4, 5  # types of TLVs. Source: IEEE 802.1AB, 8.4
_MAC = {_CHASSIS: 4, _PORT: 3}  # the subtypes of an ID that mean a MAC address. Source: IEEE 802.1AB, 8.5
_AT_ONCE = 8  # questions: chosen, as many as a node has HCAs
_FIELD = re.compile(r"^([A-Z]\w+(?: \w+)?):\.*(.*)$", re.MULTILINE | re.ASCII)


def leaves(machine: Machine, devices: list[Hca] | Unread) -> list[Leaf] | Unread:
    """One for each active port of which it is known; why not, where none is."""
    if isinstance(devices, Unread):
        return devices
    active = [(hca, port) for hca in devices for port in value_or(hca.ports, []) if port.state == "ACTIVE"]
    ethernet = [(hca, port) for hca, port in active if port.link_layer == "Ethernet"]
    infiniband = [(hca, port) for hca, port in active if port.link_layer == "InfiniBand"]
    if not ethernet and not infiniband:
        return Unread("absent", "no active port of InfiniBand or RoCE")
    parts: list[list[Leaf] | Unread] = []
    if ethernet:
        parts.append(_by_lldp(machine, ethernet))
    if infiniband:
        parts.append(_by_smp(machine, infiniband))
    leafs = [leaf for part in parts if not isinstance(part, Unread) for leaf in part]
    return leafs or next(part for part in parts if isinstance(part, Unread))


def _by_lldp(machine: Machine, ports: list[tuple[Hca, Port]]) -> list[Leaf] | Unread:
    interfaces = {name: f"{hca.name}:{port.name}" for hca, port in ports for name in _interfaces(machine, hca)}
    leafs = {name: leaf for name, port in interfaces.items() if (leaf := _of_networkd(machine, name, port))}
    if len(leafs) < len(interfaces):
        leafs = {**_of_lldpd(machine, interfaces), **leafs}
    return list(leafs.values()) or Unread("absent", "nobody here listens to LLDP, or no switch speaks it")


def _interfaces(machine: Machine, hca: Hca) -> list[str]:
    names = machine.names(f"{_CLASS}/{hca.name}/device/net")
    return [] if isinstance(names, Unread) else names


def _of_networkd(machine: Machine, interface: str, port: str) -> Leaf | None:
    """The frames that its file holds, each behind its length in eight bytes; the last one counts."""
    index = machine.number(f"/sys/class/net/{interface}/ifindex")
    data = b"" if isinstance(index, Unread) else machine.read_bytes(f"{_NETWORKD}/{index}", _MOST_BYTES)
    leaf: Leaf | None = None
    while not isinstance(data, Unread) and len(data) > 8:
        size = int.from_bytes(data[:8], "little")
        leaf = _leaf(dict(_fields(data[8 + _HEADER : 8 + size])), port) or leaf
        data = data[8 + size :] if 0 < size <= len(data) else b""
    return leaf


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each field: seven bits of type and nine of length before it."""
    while len(data) >= 2:
        head = int.from_bytes(data[:2], "big")
        kind, size = head >> 9, head & 0x1FF
        if kind == 0:
            return
        yield kind, data[2 : 2 + size]
        data = data[2 + size :]


def _leaf(fields: Mapping[int, bytes], port: str) -> Leaf | None:
    if _CHASSIS not in fields or _PORT not in fields:
        return None
    chassis = _id(fields[_CHASSIS], _CHASSIS)
    switch = fields.get(_NAME, b"").decode(errors="backslashreplace").strip("\0 ") or chassis
    at = _id(fields[_PORT], _PORT)
    text = fields.get(_PORT_TEXT, b"").decode(errors="backslashreplace").strip("\0 ")
    return Leaf(name=port, switch=switch[:80], identity=chassis[:80], port=(text or at)[:80], told_by="LLDP")


def _id(value: bytes, kind: int) -> str:
    if value[:1] == bytes([_MAC[kind]]):
        return value[1:].hex(":")
    return value[1:].decode(errors="backslashreplace").strip("\0 ")


def _of_lldpd(machine: Machine, interfaces: Mapping[str, str]) -> dict[str, Leaf]:
    text = machine.ask("lldpctl", str, lambda: _lldpctl(machine))
    if isinstance(text, Unread):
        return {}
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    leafs: dict[str, Leaf] = {}
    for interface, port in interfaces.items():
        at = {key.rpartition(f"lldp.{interface}.")[2]: value for key, value in values.items()
              if key.startswith(f"lldp.{interface}.")}  # fmt: skip
        chassis = at.get("chassis.mac") or at.get("chassis.local") or at.get("chassis.name", "")
        where = at.get("port.descr") or at.get("port.ifname") or at.get("port.local") or at.get("port.mac", "")
        if chassis:
            leafs[interface] = Leaf(
                name=port, switch=at.get("chassis.name", chassis)[:80], identity=chassis[:80], port=where[:80],
                told_by="LLDP",
            )  # fmt: skip
    return leafs


def _lldpctl(machine: Machine) -> str | Unread:
    """Only where lldpd runs: its socket is root's and its group's."""
    if not any(os.access(path, os.W_OK) for path in _SOCKETS):
        return Unread("denied", "lldpd does not run here, or does not answer this user")
    output = machine.run(["lldpctl", "-f", "keyvalue"], _LONGEST_S)
    return output if isinstance(output, Unread) else output.out


def _by_smp(machine: Machine, ports: list[tuple[Hca, Port]]) -> list[Leaf] | Unread:
    answers = machine.ask("smpquery", dict[str, str], lambda: _smpquery(machine, ports))
    if isinstance(answers, Unread):
        return answers
    leafs = [leaf for hca, port in ports if (leaf := _switch(f"{hca.name}:{port.name}", answers))]
    return leafs or Unread("absent", "no switch answered smpquery")


def _smpquery(machine: Machine, ports: list[tuple[Hca, Port]]) -> dict[str, str] | Unread:
    files = machine.names("/dev/infiniband")
    mads = [] if isinstance(files, Unread) else [name for name in files if name.startswith("umad")]
    if not any(os.access(f"/dev/infiniband/{name}", os.R_OK | os.W_OK) for name in mads):
        return Unread("denied", "only root asks InfiniBand switches, through /dev/infiniband/umad*")
    asked = [(hca, port, what) for hca, port in ports for what in ("nodeinfo", "nodedesc")]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda query: _query(machine, *query), asked))
    refused = next((answer for answer in answers if isinstance(answer, Unread)), None)
    if refused is not None and all(isinstance(answer, Unread) for answer in answers):
        return refused
    return {
        f"{hca.name}:{port.name} {what}": answer
        for (hca, port, what), answer in zip(asked, answers, strict=True)
        if not isinstance(answer, Unread)
    }


def _query(machine: Machine, hca: Hca, port: Port, what: str) -> str | Unread:
    """One packet out of this port to whatever is at the end of the cable (direct route 0,PORT)."""
    argv = ["smpquery", "-C", hca.name, "-P", port.name, "-D", what, f"0,{port.name}"]
    output = machine.run(argv, _LONGEST_S)
    return output if isinstance(output, Unread) else output.out


def _switch(port: str, answers: Mapping[str, str]) -> Leaf | None:
    """None where it is no switch, as between two hosts with one cable."""
    info = dict(_FIELD.findall(answers.get(f"{port} nodeinfo", "")))
    if info.get("NodeType") != "Switch" or not info.get("Guid"):
        return None
    text = dict(_FIELD.findall(answers.get(f"{port} nodedesc", ""))).get("Node Description", "")
    return Leaf(
        name=port, switch=text[:80] or info["Guid"], identity=info["Guid"], port=info.get("LocalPort", ""),
        told_by="smpquery",
    )  # fmt: skip

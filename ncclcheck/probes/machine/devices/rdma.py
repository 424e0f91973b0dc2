"""RDMA devices (InfiniBand, RoCE, EFA) as sysfs shows them, and whether this user could open them.

Recorded names: `uverbs`, a JSON list of DeviceFile; `environment`, for LD_LIBRARY_PATH.
"""

from __future__ import annotations

import os
import re

from ncclcheck.probes.facts import Counter, DeviceFile, Gid, Hca, Port, Rdma, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.devices import leaves, pci, rdma_libraries

_CLASS = "/sys/class/infiniband"
_VERBS = "/sys/class/infiniband_verbs"
_FILES = "/dev/infiniband"
_PEERS = (
    "/sys/module/nvidia_peermem",
    "/sys/module/nv_peer_mem",
    "/sys/kernel/mm/memory_peers/nv_mem",
    "/sys/kernel/mm/memory_peers/nv_mem_nc",
    "/sys/module/efa_nv_peermem",
)
_COUNTERS = (
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_errors",
    "port_xmit_discards",
)
_HW_COUNTERS = (
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "roce_adp_retrans",
    "rx_icrc_encapsulated",
)
_NO_GID = re.compile(r"[0:]*")
_GID = re.compile(r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}")
# entries without a GID: chosen; drivers fill a table from its beginning, removed addresses leave gaps
_LONGEST_GAP = 32
# of a table of up to 128: chosen, subnet managers fill it from its beginning and sites have few partitions
_MOST_PKEYS = 8


def probe(machine: Machine) -> Rdma:
    """All devices with their ports, and what a program needs to use them."""
    names = machine.names(_CLASS)
    if names == [] or (isinstance(names, Unread) and names.kind == "absent"):
        none = Unread("absent", "no RDMA device on this machine")
        return Rdma(hcas=none, devices=none, device_files=none, opened=none, libibverbs=none,
                    providers=none, peer_modules=none, open_driver=none, leaves=none)  # fmt: skip
    files = _device_files(machine)
    libibverbs, providers = rdma_libraries.find(machine)
    verbs = _verbs(machine)
    devices = names if isinstance(names, Unread) else [_hca(machine, name, verbs) for name in names]
    return Rdma(
        hcas=names,
        devices=devices,
        device_files=files,
        opened=files
        if isinstance(files, Unread)
        else machine.ask("uverbs", list[DeviceFile], lambda: _open(files)),
        libibverbs=libibverbs,
        providers=providers,
        peer_modules=_peer_modules(machine),
        open_driver=_open_driver(machine),
        leaves=leaves.leaves(machine, devices),
    )


def _device_files(machine: Machine) -> list[str] | Unread:
    """An empty list where /dev is there and has no such folder: that is what a container without them shows."""
    names = machine.names(_FILES)
    if not isinstance(names, Unread) or names.kind != "absent":
        return names
    if isinstance(machine.names("/dev"), Unread):
        return Unread("recorded", "there is no /dev in this recording")
    return []


def _open(files: list[str]) -> list[DeviceFile]:
    """Opening tells more than the mode: a container's device rules refuse it in spite of rw for all."""
    return [_try(name) for name in files if name.startswith("uverbs")]


def _try(name: str) -> DeviceFile:
    try:
        os.close(os.open(f"{_FILES}/{name}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return DeviceFile(name=name, error=error.strerror or str(error))
    return DeviceFile(name=name)


def _verbs(machine: Machine) -> dict[str, str] | Unread:
    """Device file of each HCA."""
    names = machine.names(_VERBS)
    if isinstance(names, Unread):
        return names
    doors = {name: machine.line(f"{_VERBS}/{name}/ibdev") for name in names if name.startswith("uverbs")}
    return {hca: name for name, hca in doors.items() if not isinstance(hca, Unread)}


def _hca(machine: Machine, name: str, verbs: dict[str, str] | Unread) -> Hca:
    folder = f"{_CLASS}/{name}"
    no_file = Unread("absent", f"no device file belongs to {name}")
    return Hca(
        name=name,
        model=machine.line(f"{folder}/hca_type"),
        board=machine.line(f"{folder}/board_id"),
        firmware=machine.line(f"{folder}/fw_ver"),
        node_guid=machine.line(f"{folder}/node_guid"),
        driver=_driver(machine, folder),
        pci=_pci(machine, name),
        uverbs=verbs if isinstance(verbs, Unread) else verbs.get(name, no_file),
        ports=_ports(machine, folder),
    )


def _driver(machine: Machine, folder: str) -> str | Unread:
    target = machine.link(f"{folder}/device/driver")
    if isinstance(target, Unread):
        return Unread("absent", target.why) if target.kind == "broken" else target
    return target.rsplit("/", 1)[-1]


def _pci(machine: Machine, name: str) -> str | Unread:
    """The class entry is a link into the PCI tree; a software device hangs elsewhere."""
    for path in (f"{_CLASS}/{name}", f"{_CLASS}/{name}/device"):
        target = machine.link(path)
        if not isinstance(target, Unread) and (bridges := pci.path_of(target)):
            return bridges[-1]
    return Unread("absent", f"{name} hangs at no PCI function")


def _ports(machine: Machine, folder: str) -> list[Port] | Unread:
    names = machine.names(f"{folder}/ports")
    if isinstance(names, Unread):
        return names
    numbers = sorted((name for name in names if name.isdecimal()), key=lambda name: (len(name), name))
    return [_port(machine, folder, number) for number in numbers]


def _port(machine: Machine, folder: str, number: str) -> Port:
    port = f"{folder}/ports/{number}"
    return Port(
        name=number,
        state=_word(machine, f"{port}/state"),
        physical=_word(machine, f"{port}/phys_state"),
        rate_gbit=_rate(machine, f"{port}/rate"),
        link_layer=machine.line(f"{port}/link_layer"),
        lid=_hexadecimal(machine, f"{port}/lid"),
        sm_lid=_hexadecimal(machine, f"{port}/sm_lid"),
        gids=_gids(machine, port),
        pkeys=_pkeys(machine, port),
        counters=_counters(machine, port),
        traffic_class=_optional(machine, f"{folder}/tc/{number}/traffic_class"),
    )


def _word(machine: Machine, path: str) -> str | Unread:
    """ "4: ACTIVE" as ACTIVE."""
    text = machine.line(path)
    if isinstance(text, Unread):
        return text
    match = re.fullmatch(r"\d+: (\w+)( \w+)?", text)
    return text.partition(": ")[2] if match else Unread("broken", f"{path} holds {text[:40]!r}")


def _rate(machine: Machine, path: str) -> float | Unread:
    """ "400 Gb/sec (4X NDR)" as 400."""
    text = machine.line(path)
    if isinstance(text, Unread):
        return text
    match = re.match(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec", text, re.ASCII)
    return float(match[1]) if match else Unread("broken", f"{path} holds {text[:40]!r}")


def _hexadecimal(machine: Machine, path: str) -> int | Unread:
    text = machine.line(path)
    if isinstance(text, Unread):
        return text
    match = re.fullmatch(r"0x([0-9a-fA-F]{1,8})", text)
    return int(match[1], 16) if match else Unread("broken", f"{path} holds {text[:40]!r}")


def _optional(machine: Machine, path: str) -> str | Unread:
    """An attribute that only some drivers have, and whose reading some refuse."""
    text = machine.line(path)
    if isinstance(text, Unread) and text.kind == "broken":
        return Unread("absent", text.why)
    return Unread("absent", f"{path} is empty") if text == "" else text


def _gids(machine: Machine, port: str) -> list[Gid] | Unread:
    """The used entries. A table has up to 256, nearly all empty: a long gap is taken for the end."""
    names = machine.names(f"{port}/gids")
    if isinstance(names, Unread):
        return names
    gids: list[Gid] = []
    last = -1
    for index in sorted(int(name) for name in names if name.isdecimal() and len(name) < 6):
        text = machine.line(f"{port}/gids/{index}")
        if isinstance(text, str) and _GID.fullmatch(text) and not _NO_GID.fullmatch(text):
            gids.append(_gid(machine, port, index, text))
            last = index
        elif index > last + _LONGEST_GAP:
            break
    return gids


def _gid(machine: Machine, port: str, index: int, text: str) -> Gid:
    return Gid(
        index=index,
        gid=text,
        type=_optional(machine, f"{port}/gid_attrs/types/{index}"),
        netdev=_optional(machine, f"{port}/gid_attrs/ndevs/{index}"),
    )


def _pkeys(machine: Machine, port: str) -> list[int] | Unread:
    keys: list[int] = []
    for index in range(_MOST_PKEYS):
        key = _hexadecimal(machine, f"{port}/pkeys/{index}")
        if isinstance(key, Unread):
            return key if index == 0 else keys
        keys.append(key)
    return keys


def _counters(machine: Machine, port: str) -> list[Counter] | Unread:
    """Those that mean something. Which there are depends on driver and firmware; text for a number is none."""
    paths = [(name, f"{port}/counters/{name}") for name in _COUNTERS]
    paths += [(name, f"{port}/hw_counters/{name}") for name in _HW_COUNTERS]
    read = {name: machine.number(path) for name, path in paths}
    counters = [Counter(name=name, value=value) for name, value in read.items() if not isinstance(value, Unread)]
    denied = next((fact for fact in read.values() if isinstance(fact, Unread) and fact.kind == "denied"), None)
    return counters or denied or Unread("absent", "this port has no counters")


def _peer_modules(machine: Machine) -> list[str] | Unread:
    modules = machine.names("/sys/module")
    if isinstance(modules, Unread):
        return modules
    return [path.removeprefix("/sys/module/") for path in _PEERS if machine.exists(path)]


def _open_driver(machine: Machine) -> bool | Unread:
    text = machine.line("/proc/driver/nvidia/version")
    return text if isinstance(text, Unread) else "Open Kernel Module" in text

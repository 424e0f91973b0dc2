"""Machines as sysfs shows them: GPUs and HCAs in a PCIe tree, ports, GIDs; NCCL and our probes read one tree."""

from __future__ import annotations

import os
import random
from pathlib import Path
from xml.etree import ElementTree

from msgspec import Struct
from msgspec.structs import replace

_STATES = {"ACTIVE": "4: ACTIVE", "DOWN": "1: DOWN", "INIT": "2: INIT", "ARMED": "3: ARMED"}
_WIDE, _GEN5, _GEN4 = "16", "32.0 GT/s PCIe", "16.0 GT/s PCIe"


class PortOf(Struct, frozen=True, kw_only=True):
    """A port. gids: index, address in full, type."""

    state: str = "ACTIVE"
    layer: str = "InfiniBand"
    rate: int = 400
    gids: list[tuple[str, str]] = []


class CardOf(Struct, frozen=True, kw_only=True):
    """An HCA at a PCI function; functions of one slot are one card."""

    name: str
    ports: list[PortOf]
    function: int = 0
    speed: str = _GEN5


class Slot(Struct, frozen=True, kw_only=True):
    """What hangs below one port of a switch, or of the socket itself: a GPU, or the HCAs of one card."""

    socket: int = 0
    switch: int | None = None
    gpu: bool = False
    cards: list[CardOf] = []


class MachineOf(Struct, frozen=True, kw_only=True):
    """A machine. nvlinks: of each GPU to an NVSwitch. peers: whether GPUs reach each other over PCIe."""

    slots: list[Slot]
    sockets: int = 2
    nvlinks: int = 18
    peers: bool = True
    peermem: bool = True

    def buses(self) -> list[str]:
        """The PCI address of every GPU, in order."""
        return [f"{_address(number)}" for number, slot in enumerate(self.slots) if slot.gpu]

    def variables(self) -> dict[str, str]:
        """What tells our CUDA runtime of it."""
        buses = self.buses()
        return {
            "FAKECUDA_BUS": ",".join(buses),
            "FAKECUDA_DEVICES": str(len(buses)),
            "FAKECUDA_P2P": "1" if self.peers else "0",
            "FAKECUDA_NVLINKS": str(self.nvlinks),
            "FAKECUDA_GDR": "1",
        }


def _address(slot: int, function: int = 0) -> str:
    return f"0000:{slot + 0x40:02x}:00.{function}"


def write(machine: MachineOf, sys: Path) -> None:
    """The files of /sys; what NCCL and the probes do not read is left out."""
    for folder in ("class/infiniband", "class/pci_bus", "bus/pci/devices", "devices/system/cpu", "real", "module"):
        (sys / folder).mkdir(parents=True)
    (sys / "class/net").symlink_to("../real/class/net")
    if machine.peermem:
        _files(sys / "module/nvidia_peermem", version="1.0")
    for socket in range(machine.sockets):
        mask = "00000000,00000001" if socket == 0 else "00000000,00000002"
        _files(sys / f"devices/system/node/node{socket}", cpumap=mask, cpulist=str(socket), distance="10 20")
    for number, slot in enumerate(machine.slots):
        _slot(machine, sys, number, slot)


def as_virtual(machine: MachineOf) -> MachineOf:
    """The same cards as a virtual machine shows them: one socket, nothing nearer to one than to another."""
    return replace(machine, slots=[replace(slot, socket=0, switch=None) for slot in machine.slots], sockets=1)


def topology_file(machine: MachineOf) -> str:
    """What a provider gives to NCCL for such a virtual machine: processors, switches, GPUs and cards."""
    system = ElementTree.Element("system", version="1")
    for socket in range(machine.sockets):
        processor = {"affinity": "00000003", "arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6"}
        above = ElementTree.SubElement(system, "cpu", {"numaid": str(socket), **processor, "modelid": "143"})
        switches: dict[int, ElementTree.Element] = {}
        for number, slot in enumerate(machine.slots):
            if slot.socket != socket:
                continue
            place = above
            if slot.switch is not None:
                if slot.switch not in switches:
                    switches[slot.switch] = _function_of(
                        above, f"ffff:{0x40 * socket + slot.switch:02x}:01.0", "0x060400", _GEN5
                    )
                place = switches[slot.switch]
            if slot.gpu:
                _function_of(place, _address(number), "0x030200", _GEN5)
            for card in slot.cards:
                _function_of(place, _address(number, card.function), "0x020700", card.speed)
    return ElementTree.tostring(system, encoding="unicode")


def _function_of(above: ElementTree.Element, address: str, kind: str, speed: str) -> ElementTree.Element:
    attributes = {"busid": address, "class": kind, "link_speed": speed, "link_width": _WIDE}
    return ElementTree.SubElement(above, "pci", attributes)


def _slot(machine: MachineOf, sys: Path, number: int, slot: Slot) -> None:
    parent = _bridge(sys, number, slot)
    numa = str(slot.socket) if machine.sockets > 1 else "0"
    if slot.gpu:
        _function(sys, parent, _address(number), numa, "0x030200", "0x10de", "0x2330", _GEN5)
    for card in slot.cards:
        address = _address(number, card.function)
        folder = _function(sys, parent, address, numa, "0x020700", "0x15b3", "0x1021", card.speed)
        _hca(sys, folder, card, number)


def _bridge(sys: Path, number: int, slot: Slot) -> Path:
    """The port above a slot: of the socket, or of a switch below it. Bus numbers are spread so that none meet."""
    root = f"{slot.socket * 0x80:02x}"
    numa = str(slot.socket)
    top = sys / f"devices/pci0000:{root}"
    if slot.switch is None:
        return _function(
            sys,
            top,
            f"0000:{root}:{number // 8 + 1:02x}.{number % 8}",
            numa,
            "0x060400",
            "0x8086",
            "0x352a",
            _GEN5,
        )
    entry = f"0000:{root}:{slot.switch + 16:02x}.0"
    upstream = f"0000:{slot.switch * 2 + 1 + slot.socket * 0x80:02x}:00.0"
    downstream = f"0000:{slot.switch * 2 + 2 + slot.socket * 0x80:02x}:{number:02x}.0"
    path = top
    for address, device in ((entry, "0x352a"), (upstream, "0xc030"), (downstream, "0xc030")):
        path = _function(
            sys, path, address, numa, "0x060400", "0x8086" if device == "0x352a" else "0x1000", device, _GEN5
        )
    return path


def _function(
    sys: Path, parent: Path, address: str, numa: str, kind: str, vendor: str, device: str, speed: str
) -> Path:
    folder = parent / address
    if not folder.exists():
        names = {
            "class": kind,
            "vendor": vendor,
            "device": device,
            "subsystem_vendor": vendor,
            "subsystem_device": device,
        }
        _files(folder, **names, max_link_speed=speed, max_link_width=_WIDE, current_link_speed=speed,
               current_link_width=_WIDE, numa_node=numa)  # fmt: skip
        (folder / "subsystem").symlink_to(os.path.relpath(sys / "bus/pci", folder))
        _link(sys / "bus/pci/devices" / address, folder)
        bus = parent / "pci_bus" / address.rpartition(":")[0]
        if not bus.exists():
            bus.mkdir(parents=True)
            _link(sys / "class/pci_bus" / bus.name, bus)
    return folder


def _hca(sys: Path, device: Path, card: CardOf, slot: int) -> None:
    folder = device / "infiniband" / card.name
    guid = f"b83f:d203:00a1:{slot * 16 + card.function:04x}"
    image = f"b83f:d203:00a1:{slot * 16:04x}"
    _files(
        folder, node_guid=guid, sys_image_guid=image, hca_type="MT4129", fw_ver="28.39.1002", board_id="MT_0838"
    )
    (folder / "device").symlink_to("../..")
    _link(sys / "class/infiniband" / card.name, folder)
    for number, port in enumerate(card.ports, 1):
        place = folder / f"ports/{number}"
        physical = "5: LinkUp" if port.state == "ACTIVE" else "3: Disabled"
        rate = f"{port.rate} Gb/sec (4X)"
        _files(place, state=_STATES[port.state], phys_state=physical, rate=rate, link_layer=port.layer, lid="0x1",
               sm_lid="0x1")  # fmt: skip
        for index, (address, kind) in enumerate(port.gids):
            _files(place / "gids", **{str(index): address})
            if kind:
                _files(place / "gid_attrs/types", **{str(index): kind})


def _files(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def _link(path: Path, target: Path) -> None:
    path.symlink_to(os.path.relpath(target, path.parent))


def hca_case(rng: random.Random) -> tuple[MachineOf, dict[str, str]]:
    """A small machine with any HCAs, and what the user set about them."""
    slots = [
        Slot(gpu=True, socket=number % 2, switch=rng.choice((None, number)))
        for number in range(rng.choice((1, 2)))
    ]
    names = iter(_hca_names(rng))
    for _ in range(rng.choice((0, 1, 1, 2, 3, 4, 6, 12))):
        functions = rng.choice((1, 1, 1, 2))
        cards = [CardOf(name=next(names), ports=_ports(rng), function=function) for function in range(functions)]
        slots.append(Slot(cards=cards, socket=rng.randint(0, 1), switch=rng.choice((None, 0, 1))))
    return MachineOf(slots=slots, peermem=rng.random() < 0.5), _hca_settings(rng, slots)


def _hca_names(rng: random.Random) -> list[str]:
    common = [f"mlx5_{number}" for number in range(24)]
    other = [
        "mlx5_bond_0",
        "mlx5_bond_1",
        "mlx5_ib0",
        "mlx5_ib1",
        "rocep65s0",
        "rocep66s0f1",
        "ibp12s0",
        "bnxt_re0",
        "irdma0",
        "mlx4_0",
    ]
    return (
        rng.sample(common, 16) + rng.sample(other, 8)
        if rng.random() < 0.3
        else common
        if rng.random() < 0.6
        else other + common
    )


def _ports(rng: random.Random) -> list[PortOf]:
    return [_port(rng) for _ in range(rng.choice((1, 1, 1, 1, 2)))]


def _port(rng: random.Random) -> PortOf:
    layer = (
        rng.choice(("InfiniBand", "InfiniBand", "Ethernet", "Ethernet", "Unknown"))
        if rng.random() < 0.9
        else "Ethernet"
    )
    state = rng.choice(("ACTIVE",) * 6 + ("DOWN", "INIT", "ARMED"))
    return PortOf(state=state, layer=layer, rate=rng.choice((400, 400, 200, 100, 25)), gids=_gids(rng, layer))


def _gids(rng: random.Random, layer: str) -> list[tuple[str, str]]:
    if layer != "Ethernet":
        return [(f"fe80:0000:0000:0000:b83f:d203:00a1:{rng.randint(1, 9999):04x}", "IB/RoCE v1")]
    gids: list[tuple[str, str]] = []
    addresses = [f"fe80:0000:0000:0000:b83f:d2ff:fea1:{rng.randint(1, 9999):04x}"]
    for _ in range(rng.randint(0, 2)):
        addresses.append(f"0000:0000:0000:0000:0000:ffff:0a{rng.randint(1, 3):02x}:{rng.randint(1, 65535):04x}")
    for _ in range(rng.choice((0, 0, 1))):
        addresses.append(f"fd00:0000:0000:000{rng.randint(1, 3)}:0000:0000:0000:{rng.randint(1, 9999):04x}")
    if rng.random() < 0.3:
        rng.shuffle(addresses)
    for address in addresses:
        kinds = rng.choice(
            (("IB/RoCE v1", "RoCE v2"),) * 4 + (("RoCE v2",), ("IB/RoCE v1",), ("RoCE v2", "IB/RoCE v1"))
        )
        gids += [(address, kind) for kind in kinds]
    if rng.random() < 0.2:
        gids.insert(rng.randint(0, len(gids)), ("0000:0000:0000:0000:0000:0000:0000:0000", ""))
    return gids


def _hca_settings(rng: random.Random, slots: list[Slot]) -> dict[str, str]:
    settings = {}
    names = [card.name for slot in slots for card in slot.cards] or ["mlx5_0"]
    if rng.random() < 0.6:
        settings["NCCL_IB_HCA"] = _hca_list(rng, names)
    if rng.random() < 0.1:
        settings["NCCL_IB_DISABLE"] = rng.choice(("0", "1", "true", "no", "", " 1", "2", "-1"))
    if rng.random() < 0.25:
        settings["NCCL_IB_GID_INDEX"] = rng.choice(("0", "1", "3", "3", "-1", "-2", "99", "0x1", "x", ""))
    if rng.random() < 0.2:
        settings["NCCL_IB_ADDR_FAMILY"] = rng.choice(("AF_INET", "AF_INET6", "AF_INET6", "af_inet6", "AF_INET6 "))
    if rng.random() < 0.15:
        settings["NCCL_IB_ROCE_VERSION_NUM"] = rng.choice(("1", "2", "3", "v2", "0"))
    if rng.random() < 0.15:
        settings["NCCL_IB_ADDR_RANGE"] = rng.choice(
            (
                "10.1.0.0/16",
                "10.0.0.0/8",
                "::/0",
                "fd00::/16",
                "fd00:0:0:1::/64",
                "10.2.0.0",
                "192.168.0.0/16",
                "x",
                "10.1.0.0/33",
                "10.1.0.0/0",
            )
        )
    return settings


def _hca_list(rng: random.Random, names: list[str]) -> str:
    tokens = []
    for _ in range(rng.choice((1, 1, 2, 3, 4, 40))):
        name = rng.choice(names)
        tokens.append(
            rng.choice(
                (
                    name,
                    name,
                    name,
                    f"{name}:1",
                    f"{name}:2",
                    f"{name}:0",
                    f"{name}:",
                    f"{name}:x",
                    "mlx5",
                    "mlx5_1",
                    name[:-1],
                    f" {name}",
                    f"{name} ",
                    f"^{name}",
                    f"={name}",
                    name.upper(),
                    "",
                    f"{name}:1:0",
                    f"{name}::0:0",
                    f"{name}:-1",
                    f"{name}: 1",
                    f":{name}",
                )
            )
        )
    return rng.choice(("", "", "=", "=", "^", "^=", "=^", "==")) + ",".join(tokens)


class Connected(Struct, frozen=True, kw_only=True):
    """A job over so many hosts, each alike, and the settings that decide how its ranks are connected."""

    hosts: int
    env: dict[str, str]

    def kinds(self, machine: MachineOf) -> set[tuple[str, str]]:
        """The transports within a node and between nodes."""
        within = "P2P" if machine.peers and "NCCL_P2P_DISABLE" not in self.env else "SHM"
        within = "NET" if within == "SHM" and "NCCL_SHM_DISABLE" in self.env else within
        kinds = {("intra", within)} if len(machine.buses()) > 1 else set()
        return kinds | ({("inter", "NET")} if self.hosts > 1 else set())

    def network(self, machine: MachineOf) -> str:
        """What NCCL chooses."""
        has_cards = any(slot.cards for slot in machine.slots)
        return (
            "IB"
            if has_cards and "NCCL_IB_DISABLE" not in self.env and self.env.get("NCCL_NET") != "Socket"
            else "Socket"
        )


def connected_case(rng: random.Random) -> tuple[MachineOf, Connected]:
    """Up to four ranks on one host or two, with NVLink between them or no way of their own, cards or none."""
    hosts, each = rng.choice(((1, 2), (1, 3), (2, 1), (2, 2), (2, 2)))
    gpus = [Slot(gpu=True, socket=number % 2, switch=number) for number in range(each)]
    ofs = [PortOf(gids=[("fe80:0000:0000:0000:b83f:d203:00a1:0001", "")])]
    cards = [
        Slot(cards=[CardOf(name=f"mlx5_{n}", ports=ofs)], socket=n % 2, switch=n)
        for n in range(rng.choice((0, 1, 2)))
    ]
    peers = rng.random() < 0.6
    machine = MachineOf(slots=[*gpus, *cards], nvlinks=18 if peers else 0, peers=peers)
    env = {}
    for name, chance in (("NCCL_P2P_DISABLE", 0.3), ("NCCL_SHM_DISABLE", 0.3), ("NCCL_IB_DISABLE", 0.2)):
        if rng.random() < chance:
            env[name] = "1"
    if rng.random() < 0.2:
        env["NCCL_NET"] = "Socket"
    if rng.random() < 0.3:
        env["NCCL_CUMEM_ENABLE"] = rng.choice(("0", "1"))
    return machine, Connected(hosts=hosts, env=env)


def roce_case(rng: random.Random) -> tuple[MachineOf, dict[str, str]]:
    """A GPU and a RoCE card with any GIDs, and what the user set about them."""
    port = PortOf(layer="Ethernet", gids=_gids(rng, "Ethernet"))
    card = Slot(cards=[CardOf(name="mlx5_0", ports=[port])], switch=0)
    settings = _hca_settings(rng, [card])
    kept = {name: value for name, value in settings.items() if name not in ("NCCL_IB_HCA", "NCCL_IB_DISABLE")}
    return MachineOf(slots=[Slot(gpu=True, switch=0), card]), kept

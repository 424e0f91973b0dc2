"""What a host's /sys says of GPUs and cards that are not there: their place on PCI, and the cards' tables of GIDs."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.lab import Host

GPUS = 8
# A /sys/class of the host's own that we can write to: what is there already stays, by bind mounts.
_TAKE_OVER = """
for one in /sys/class/*; do
    name="$1/$(basename "$one")"
    mkdir -p "$name"
    mount --bind "$one" "$name"
done
mkdir -p "$1/infiniband" "$1/pci_bus" "$1/pci_bus.made"
mount --rbind "$1" /sys/class
mount --bind "$1/pci_bus.made" /sys/class/pci_bus
"""


def plant(host: Host, cards: str) -> None:
    """Let a host's /sys show these cards (FAKEVERBS_CARDS) and eight GPUs, each beside the card of its number."""
    classes, devices = host.folder / "class", host.folder / "devices"
    if not classes.exists():
        host.check(["sh", "-euc", _TAKE_OVER, "sh", str(classes)])
    shutil.rmtree(devices, ignore_errors=True)
    for folder in (classes / "infiniband", classes / "pci_bus.made"):
        _empty(folder)
    for number in range(GPUS):
        gpu = _device(devices, number, 0, "0x10de", "0x2330", "0x030200")
        bus = gpu.parent / "pci_bus" / f"0000:{_bus(number):02x}"
        bus.mkdir(parents=True)
        (classes / "pci_bus.made" / bus.name).symlink_to(bus)
    for number, words in enumerate(one.split() for one in cards.split(";") if one.strip()):
        _card(classes / "infiniband" / words[0], number, dict(word.split("=", 1) for word in words[1:]), devices)


def _card(folder: Path, number: int, settings: dict[str, str], devices: Path) -> None:
    folder.mkdir()
    (folder / "device").symlink_to(_device(devices, number, 1, "0x15b3", "0x1021", "0x020700"))
    ethernet = settings.get("link") == "ethernet"
    gids = settings.get("gids", "fe80::1").split("|")
    for kind, text in (("types", "RoCE v2" if ethernet else "IB/RoCE v1"), ("ndevs", "eth0" if ethernet else "")):
        table = folder / "ports/1/gid_attrs" / kind
        table.mkdir(parents=True)
        for index, _ in enumerate(gids):
            (table / str(index)).write_text(f"{text}\n")


def _device(devices: Path, number: int, function: int, vendor: str, kind: str, category: str) -> Path:
    """A PCI device behind root port `number`: function 0 is the GPU's bus, 1 the card's."""
    bus = _bus(number) + function
    place = devices / f"pci0000:00/0000:00:{number + 1:02x}.0/0000:{bus:02x}:00.0"
    place.mkdir(parents=True, exist_ok=True)
    said = {
        "vendor": vendor, "device": kind, "class": category, "subsystem_vendor": vendor, "subsystem_device": kind,
        "numa_node": "0", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
        "current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "local_cpus": "3",
    }  # fmt: skip
    for one in (place, place.parent):
        for name, text in said.items():
            (one / name).write_text(f"{text}\n")
    return place


def _bus(number: int) -> int:
    return (number + 1) * 16


def _empty(folder: Path) -> None:
    for one in folder.iterdir():
        if one.is_symlink():
            one.unlink()
        else:
            shutil.rmtree(one)

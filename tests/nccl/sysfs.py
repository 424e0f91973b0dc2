"""What a host shows in /sys of GPUs and cards that are not there: their places on PCI, and tables of GIDs."""

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
        _device(host, number, 0, "0x10de", "0x2330", "0x030200")
    for number, words in enumerate(card.split() for card in cards.split(";") if card.strip()):
        _card(classes / "infiniband" / words[0], number, dict(word.split("=", 1) for word in words[1:]), host)


def _card(folder: Path, number: int, settings: dict[str, str], host: Host) -> None:
    folder.mkdir()
    (folder / "device").symlink_to(_device(host, number, 1, "0x15b3", "0x1021", "0x020700"))
    ethernet = settings.get("link") == "ethernet"
    gids = settings.get("gids", "fe80::1").split("|")
    for kind, text in (("types", "RoCE v2" if ethernet else "IB/RoCE v1"), ("ndevs", "eth0" if ethernet else "")):
        table = folder / "ports/1/gid_attrs" / kind
        table.mkdir(parents=True)
        for index, _ in enumerate(gids):
            (table / str(index)).write_text(f"{text}\n")


def _device(host: Host, number: int, port: int, vendor: str, kind: str, category: str) -> Path:
    """A device at a PCI switch of its own for each number: the GPU at port 0, the card at port 1."""
    first = (number + 1) * 16  # the GPU's bus, as devices.c counts
    switch = host.folder / f"devices/pci0000:00/0000:00:{number + 1:02x}.0/0000:{first - 2:02x}:00.0"
    place = switch / f"0000:{first - 1:02x}:{port:02x}.0/0000:{first + port:02x}:00.0"
    place.mkdir(parents=True)
    for path in (place, switch):
        bus = path.parent / "pci_bus" / path.name.rpartition(":")[0]
        if not bus.exists():
            bus.mkdir(parents=True)
            (host.folder / "class/pci_bus.made" / bus.name).symlink_to(bus)
    attributes = {
        "vendor": vendor, "device": kind, "class": category, "subsystem_vendor": vendor, "subsystem_device": kind,
        "numa_node": "0", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
        "current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "local_cpus": "3",
    }  # fmt: skip
    for path in (place, place.parent, switch, switch.parent):
        for name, text in attributes.items():
            (path / name).write_text(f"{text}\n")
        if not (path / "subsystem").is_symlink():
            (path / "subsystem").symlink_to("/sys/bus/pci")
        if path != place:
            (path / "class").write_text("0x060400\n")  # a bridge
    return place


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)

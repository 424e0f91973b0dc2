"""One PCI function by its folder in /sys/bus/pci/devices: where it hangs in the tree, its link, its registers.

A user without CAP_SYS_ADMIN sees 64 bytes of the configuration space, so ACS and relaxed ordering are `denied`.
"""

from __future__ import annotations

import re
import struct

from ncclcheck.probes.facts import Errors, PciDevice, PcieLink, Unread
from ncclcheck.probes.machine.access import Machine

FOLDER = "/sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s")
_NO_LINK = (0, 63, 255)  # what registers without a link read as
# of the configuration space: its header, which everybody may read (Linux, drivers/pci/pci-sysfs.c)
_PUBLIC_BYTES = 64
_EXPRESS, _EXTENDED_ACS = 0x10, 0x000D  # PCI_CAP_ID_EXP, PCI_EXT_CAP_ID_ACS. Source: linux/pci_regs.h
_ACS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")


def device(machine: Machine, name: str, kind: str) -> PciDevice:
    """What is known of one function; kind is gpu, nic or bridge."""
    folder = f"{FOLDER}/{name}"
    root, path = _place(machine, name)
    config = _config(machine, folder)
    return PciDevice(
        name=name,
        kind=kind,
        root=root,
        path=path,
        numa_node=machine.number(f"{folder}/numa_node"),
        link=link(machine, folder),
        iommu=_iommu(machine, folder),
        acs=acs(config) if kind == "bridge" else Unread("absent", "it is no bridge"),
        iommu_group=_group(machine, folder),
        relaxed_ordering=relaxed_ordering(config),
        max_read=max_read(config),
        extended_tags=extended_tags(config),
        errors=_errors(machine, folder),
        virtual_function=machine.exists(f"{folder}/physfn"),
    )


def path_of(target: str) -> list[str]:
    """The addresses in the target of a sysfs link, the root first."""
    return [part for part in target.split("/") if ADDRESS.fullmatch(part)]


def _place(machine: Machine, name: str) -> tuple[str | Unread, list[str] | Unread]:
    target = machine.link(f"{FOLDER}/{name}")
    if isinstance(target, Unread):
        kind = "recorded" if machine.recorded else target.kind
        unseen = Unread(kind, f"the place of {name} in the PCI tree: {target.why}")
        return unseen, unseen
    root = next((part for part in target.split("/") if _ROOT.fullmatch(part)), None)
    return root or Unread("absent", f"{name} hangs below no host bridge"), path_of(target)[:-1]


def link(machine: Machine, folder: str) -> PcieLink | Unread:
    """Speed and width now and at most."""
    read = {
        name: machine.line(f"{folder}/{name}")
        for name in ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
    }
    if unread := next((fact for fact in read.values() if isinstance(fact, Unread)), None):
        return unread
    speeds = [_SPEED.match(str(read[name])) for name in ("current_link_speed", "max_link_speed")]
    widths = [_lanes(str(read[name])) for name in ("current_link_width", "max_link_width")]
    if None in speeds or any(width in _NO_LINK for width in widths):
        return Unread("absent", f"{folder.rsplit('/', 1)[1]} reports no speed or width of its link")
    now, most = (float(speed[1]) for speed in speeds if speed)
    return PcieLink(gts=now, width=widths[0], most_gts=most, most_width=widths[1])


def _lanes(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def _iommu(machine: Machine, folder: str) -> str | Unread:
    group = machine.link(f"{folder}/iommu_group")
    if isinstance(group, Unread):
        return group
    return machine.line(f"/sys/kernel/iommu_groups/{group.rsplit('/', 1)[-1]}/type")


def _group(machine: Machine, folder: str) -> int | Unread:
    target = machine.link(f"{folder}/iommu_group")
    if isinstance(target, Unread):
        return target
    number = target.rsplit("/", 1)[-1]
    return (
        int(number)
        if number.isdecimal() and len(number) < 9
        else Unread("broken", f"its group is {number[:40]!r}")
    )


def _errors(machine: Machine, folder: str) -> Errors | Unread:
    """The totals of AER, which the kernel keeps since 4.19."""
    totals: list[int] = []
    for name in ("correctable", "nonfatal", "fatal"):
        text = machine.read(f"{folder}/aer_dev_{name}")
        if isinstance(text, Unread):
            return text
        match = re.search(r"^TOTAL_ERR_\w+ (\d{1,18})$", text, re.MULTILINE | re.ASCII)
        if match is None:
            return Unread("absent", f"{folder}/aer_dev_{name} holds no total")
        totals.append(int(match[1]))
    return Errors(correctable=totals[0], nonfatal=totals[1], fatal=totals[2])


def _config(machine: Machine, folder: str) -> bytes | Unread:
    config = machine.read_bytes(f"{folder}/config", 4096)
    if isinstance(config, Unread) and machine.recorded:
        return Unread("recorded", f"{folder}/config: {config.why}")
    if isinstance(config, bytes) and len(config) <= _PUBLIC_BYTES:
        return Unread("denied", f"only root reads more than {_PUBLIC_BYTES} bytes of {folder}/config")
    return config


def acs(config: bytes | Unread) -> list[str] | Unread:
    """The ACS controls that are on, by lspci's names. Source: PCIe base specification, 7.7.11."""
    if isinstance(config, Unread):
        return config
    offset, seen = 0x100, set()
    while 0x100 <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        header, _, control = struct.unpack_from("<IHH", config, offset)
        if header & 0xFFFF == _EXTENDED_ACS:
            return [name for bit, name in enumerate(_ACS) if control >> bit & 1]
        offset = header >> 20
    return Unread("absent", "this bridge has no ACS")


def relaxed_ordering(config: bytes | Unread) -> bool | Unread:
    """Whether the device may ask for relaxed ordering. Source: PCIe base specification, 7.5.3.4."""
    control = _device_control(config)
    return control if isinstance(control, Unread) else bool(control & 0x10)


def max_read(config: bytes | Unread) -> int | Unread:
    """The most bytes that one read request asks for: 128 to 4096; the same register."""
    control = _device_control(config)
    return control if isinstance(control, Unread) else 128 << min(control >> 12 & 7, 5)


def extended_tags(config: bytes | Unread) -> bool | Unread:
    """Whether tags of eight bits are on; the same register."""
    control = _device_control(config)
    return control if isinstance(control, Unread) else bool(control & 0x100)


def _device_control(config: bytes | Unread) -> int | Unread:
    if isinstance(config, Unread):
        return config
    offset, seen = config[0x34] & 0xFC, set()
    while 0x40 <= offset <= len(config) - 10 and offset not in seen:
        seen.add(offset)
        if config[offset] == _EXPRESS:
            return int.from_bytes(config[offset + 8 : offset + 10], "little")
        offset = config[offset + 1] & 0xFC
    return Unread("absent", "this function has no PCI Express capability")

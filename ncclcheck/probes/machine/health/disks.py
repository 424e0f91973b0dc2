"""NVMe controllers on PCIe: state, model and link, by /sys/class/nvme."""

from __future__ import annotations

import re

from ncclcheck.probes.facts import Nvme, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.devices import pci

_CLASS = "/sys/class/nvme"
_NAME = re.compile(r"nvme\d{1,4}", re.ASCII)


def nvmes(machine: Machine) -> list[Nvme] | Unread:
    """Those of this machine; controllers that are reached over a network are others' disks."""
    names = machine.names(_CLASS)
    if isinstance(names, Unread):
        return names
    return [_nvme(machine, name) for name in names if _NAME.fullmatch(name) and _is_local(machine, name)]


def _is_local(machine: Machine, name: str) -> bool:
    """Kernels before 4.5 did not say: there were none over a network."""
    return machine.line(f"{_CLASS}/{name}/transport") in ("pcie", "apple-nvme") or not machine.exists(
        f"{_CLASS}/{name}/transport"
    )


def _nvme(machine: Machine, name: str) -> Nvme:
    address = machine.line(f"{_CLASS}/{name}/address")
    known = isinstance(address, str) and pci.ADDRESS.fullmatch(address)
    return Nvme(
        name=name,
        state=machine.line(f"{_CLASS}/{name}/state"),
        model=machine.line(f"{_CLASS}/{name}/model"),
        link=pci.link(machine, f"{pci.FOLDER}/{address}")
        if known
        else Unread("absent", "no PCI address is reported"),
    )

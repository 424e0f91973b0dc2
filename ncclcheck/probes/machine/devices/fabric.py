"""The PCIe tree above GPUs and network cards, NUMA nodes, what this process is bound to, kernel settings.

All of it stands in files that every user may read, but for the registers of pci.py.
"""

from __future__ import annotations

import re

from ncclcheck.probes.facts import Bound, Fabric, Governor, HugePages, NumaNode, PciDevice, Unread
from ncclcheck.probes.facts.guard.secrets import is_secret, masked
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.devices import pci

_NODES = "/sys/devices/system/node"
_POLICIES = "/sys/devices/system/cpu/cpufreq"
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
_NETWORK = "0x02"
_TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"
# of a kernel's command line (COMMAND_LINE_SIZE is 2048 on x86 and arm64), and of cpuinfo: its first CPU
_MOST_BYTES = 4096
_CLOUDS = ("OracleCloud.com", "7783-7084-3265-9085-8269-3286-77", "Amazon EC2")


def probe(machine: Machine) -> Fabric:
    """Everything between the cards of this node."""
    return Fabric(
        pci=_pci(machine),
        iommus=_iommus(machine),
        command_line=_command_line(machine),
        numa=_numa(machine),
        bound=_bound(machine),
        huge_pages=_huge_pages(machine),
        governor=_governor(machine),
        numa_balancing=machine.number("/proc/sys/kernel/numa_balancing"),
        hypervisor=_hypervisor(machine),
        product=_product(machine),
        asset_tag=_asset_tag(machine),
        topology_file=machine.exists(_TOPOLOGY),
    )


def _pci(machine: Machine) -> list[PciDevice] | Unread:
    names = machine.names(pci.FOLDER)
    if isinstance(names, Unread):
        return names
    kinds = {name: _kind(machine, name) for name in names if pci.ADDRESS.fullmatch(name)}
    cards = [pci.device(machine, name, kind) for name, kind in kinds.items() if kind]
    above = {name for card in cards if not isinstance(card.path, Unread) for name in card.path}
    return cards + [pci.device(machine, name, "bridge") for name in sorted(above)]


def _kind(machine: Machine, name: str) -> str:
    folder = f"{pci.FOLDER}/{name}"
    if machine.exists(f"{folder}/infiniband"):
        return "nic"
    of_class = machine.line(f"{folder}/class")
    if isinstance(of_class, Unread):
        return ""
    if of_class.startswith(_DISPLAY):
        return "gpu" if machine.line(f"{folder}/vendor") == _NVIDIA else ""
    network = of_class.startswith(_NETWORK) and not machine.exists(f"{folder}/physfn")
    return "nic" if network else ""


def _iommus(machine: Machine) -> list[str] | Unread:
    names = machine.names("/sys/class/iommu")
    none = isinstance(names, Unread) and names.kind == "absent" and machine.exists("/sys/class")
    return [] if none and not machine.recorded else names


def _command_line(machine: Machine) -> str | Unread:
    """Without what may be a secret: some installers hand passwords over in it."""
    text = machine.line("/proc/cmdline")
    if isinstance(text, Unread):
        return text
    return " ".join(word for word in masked(text)[:_MOST_BYTES].split() if not is_secret(word.partition("=")[0]))


def _numa(machine: Machine) -> list[NumaNode] | Unread:
    names = machine.names(_NODES)
    if isinstance(names, Unread):
        return names
    numbers = sorted(int(name[4:]) for name in names if re.fullmatch(r"node\d{1,5}", name, re.ASCII))
    if not numbers:
        return Unread("absent", "this kernel knows no NUMA nodes")
    return [_numa_node(machine, number) for number in numbers]


def _numa_node(machine: Machine, number: int) -> NumaNode:
    folder = f"{_NODES}/node{number}"
    distances = machine.line(f"{folder}/distance")
    if not isinstance(distances, Unread) and not re.fullmatch(r"[0-9 ]+", distances):
        distances = Unread("broken", f"{folder}/distance holds {distances[:40]!r}")
    return NumaNode(
        name=str(number),
        cpus=machine.line(f"{folder}/cpulist"),
        memory=_memory(machine, folder),
        distances=distances
        if isinstance(distances, Unread)
        else [int(distance[:9]) for distance in distances.split()],
    )


def _memory(machine: Machine, folder: str) -> int | Unread:
    text = machine.read(f"{folder}/meminfo")
    if isinstance(text, Unread):
        return text
    match = re.search(r"MemTotal:\s+(\d{1,15}) kB", text, re.ASCII)
    return int(match[1]) * 1024 if match else Unread("broken", f"{folder}/meminfo has no MemTotal")


def _bound(machine: Machine) -> Bound | Unread:
    text = machine.read("/proc/self/status")
    if isinstance(text, Unread):
        return text
    lists = dict(re.findall(r"^(Cpus|Mems)_allowed_list:\s*([0-9,-]+)$", text, re.MULTILINE))
    if len(lists) < 2:
        return Unread("absent", "/proc/self/status does not say which CPUs and NUMA nodes are allowed")
    return Bound(cpus=lists["Cpus"], mems=lists["Mems"])


def _huge_pages(machine: Machine) -> HugePages | Unread:
    text = machine.read("/proc/meminfo")
    if isinstance(text, Unread):
        return text
    pages = dict(re.findall(r"^(HugePages_Total|HugePages_Free|Hugepagesize):\s+(\d{1,12})", text, re.MULTILINE))
    if len(pages) < 3:
        return Unread("absent", "this kernel has no huge pages")
    numbers = {name: int(value) for name, value in pages.items()}
    return HugePages(
        total=numbers["HugePages_Total"],
        free=numbers["HugePages_Free"],
        size=numbers["Hugepagesize"] * 1024,
        transparent=_transparent(machine),
    )


def _transparent(machine: Machine) -> str | Unread:
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    text = machine.line(path)
    if isinstance(text, Unread):
        return text
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else Unread("broken", f"{path} holds {text[:40]!r}")


def _governor(machine: Machine) -> Governor | Unread:
    policies = machine.names(_POLICIES)
    if isinstance(policies, Unread):
        return policies
    folders = [f"{_POLICIES}/{name}" for name in policies if name.startswith("policy")]
    read = [machine.line(f"{folder}/scaling_governor") for folder in folders]
    names = {fact for fact in read if not isinstance(fact, Unread)}
    if not names:
        return next(
            (fact for fact in read if isinstance(fact, Unread)), Unread("absent", "no clock is scaled here")
        )
    return Governor(
        names=sorted(names),
        driver=machine.line(f"{folders[0]}/scaling_driver"),
        preference=machine.line(f"{folders[0]}/energy_performance_preference"),
    )


def _hypervisor(machine: Machine) -> bool | Unread:
    """The CPU's own flag, on x86; other CPUs have none."""
    text = machine.read("/proc/cpuinfo", _MOST_BYTES)
    if isinstance(text, Unread):
        return text
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    if flags is None:
        return Unread("absent", "this kind of CPU does not say whether it is virtual")
    return "hypervisor" in flags[1].split()


def _product(machine: Machine) -> str | Unread:
    name = machine.line("/sys/class/dmi/id/product_name")
    if isinstance(name, Unread):
        return name
    vendor = machine.line("/sys/class/dmi/id/sys_vendor")
    return name if isinstance(vendor, Unread) else f"{vendor} {name}"[:200]


def _asset_tag(machine: Machine) -> str | Unread:
    """Oracle's cloud, Azure and AWS write a fixed text here; elsewhere it is the owner's number of a machine."""
    text = machine.line("/sys/class/dmi/id/chassis_asset_tag")
    if isinstance(text, Unread) or text in _CLOUDS:
        return text
    return ""

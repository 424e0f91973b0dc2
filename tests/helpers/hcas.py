"""HCAs and the PCIe tree of a sound node, for tests: two sockets, a switch each, two GPUs and two HCAs on each."""

from __future__ import annotations

from typing import Any

from ncclcheck.probes.facts import (
    Bound,
    Counter,
    DeviceFile,
    Fabric,
    Gid,
    Governor,
    Gpus,
    Hca,
    Host,
    HugePages,
    Library,
    Nccl,
    Node,
    NumaNode,
    PciDevice,
    PcieLink,
    Port,
    Rdma,
    Unread,
    replace,
)
from tests.helpers.clusters import ABSENT, LO, nic, node

PREFIX = "fe80:0000:0000:0000"
GUIDS = [f"b83f:d203:00a1:{number:04x}" for number in range(64)]
NICS = ["0000:1a:00.0", "0000:1b:00.0", "0000:9a:00.0", "0000:9b:00.0"]
GPUS = ["0000:18:00.0", "0000:19:00.0", "0000:98:00.0", "0000:99:00.0"]
ROOTS = [("pci0000:15", ["0000:15:01.0", "0000:16:00.0"]), ("pci0000:95", ["0000:95:01.0", "0000:96:00.0"])]
FULL = PcieLink(gts=32.0, width=16, most_gts=32.0, most_width=16)


def gid(index: int, address: str = "", kind: str = "RoCE v2", netdev: str = "eth0") -> Gid:
    """An entry; address as IPv4, else link-local."""
    if not address:
        return Gid(index=index, gid="fe80:0000:0000:0000:b83f:d2ff:fea1:0001", type=kind, netdev=netdev)
    a, b, c, d = (int(part) for part in address.split("."))
    mapped = f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"
    return Gid(index=index, gid=mapped, type=kind, netdev=netdev)


def table(address: str, netdev: str = "eth0") -> list[Gid]:
    """What mlx5 shows for an interface with one IPv4 address."""
    return [
        gid(0, kind="IB/RoCE v1", netdev=netdev),
        gid(1, netdev=netdev),
        gid(2, address, "IB/RoCE v1", netdev),
        gid(3, address, netdev=netdev),
    ]


def port(**changes: Any) -> Port:
    """An ACTIVE InfiniBand port at 400 Gb/s."""
    given: dict[str, Any] = {
        "name": "1", "state": "ACTIVE", "physical": "LinkUp", "rate_gbit": 400.0, "link_layer": "InfiniBand",
        "lid": 27, "sm_lid": 1, "gids": [Gid(index=0, gid=f"{PREFIX}:{GUIDS[0]}", type="IB/RoCE v1")],
        "pkeys": [0xFFFF, 0, 0, 0, 0, 0, 0, 0], "counters": [Counter(name="link_downed", value=0)],
        "traffic_class": ABSENT,
    }  # fmt: skip
    return Port(**{**given, **changes})


def roce(address: str = "10.1.0.17", netdev: str = "eth0", **changes: Any) -> Port:
    """An ACTIVE RoCE port at 400 Gb/s."""
    given = {"link_layer": "Ethernet", "lid": 0, "sm_lid": 0, "gids": table(address, netdev)}
    return port(**{**given, **changes})


def hca(number: int = 0, *ports: Port, **changes: Any) -> Hca:
    """A ConnectX-7 on the PCI address of its number."""
    given: dict[str, Any] = {
        "name": f"mlx5_{number}", "model": "MT4129", "board": "MT_0000000838", "firmware": "28.41.1000",
        "node_guid": GUIDS[number], "driver": "mlx5_core", "pci": NICS[number % 4], "uverbs": f"uverbs{number}",
        "ports": list(ports) or [port()],
    }  # fmt: skip
    return Hca(**{**given, **changes})


def rdma(*hcas: Hca, **changes: Any) -> Rdma:
    """Everything that a program needs is there."""
    files = [str(device.uverbs) for device in hcas]
    given: dict[str, Any] = {
        "hcas": [device.name for device in hcas], "devices": list(hcas), "device_files": [*files, "rdma_cm"],
        "opened": [DeviceFile(name=name) for name in files],
        "libibverbs": "/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "providers": ["mlx5"],
        "peer_modules": ["nvidia_peermem"], "open_driver": False,
    }  # fmt: skip
    return Rdma(**{**given, **changes})


def above(name: str) -> list[str]:
    """The bridges above a card or bridge: port, switch, and for a card its own port of the switch."""
    chain = ROOTS[int(name > "0000:80")][1]
    if name in chain:
        return chain[: chain.index(name)]
    own = f"0000:{'97' if name > '0000:80' else '17'}:0{name[6]}.0"
    return chain if name.startswith(own[:8]) else [*chain, own]


def function(name: str, kind: str) -> PciDevice:
    """A card below the switch of its socket, or a bridge above one."""
    socket = int(name > "0000:80")
    return PciDevice(
        name=name,
        kind=kind,
        root=ROOTS[socket][0],
        path=above(name),
        numa_node=socket,
        link=FULL,
        iommu="identity",
        acs=[] if kind == "bridge" else ABSENT,
        relaxed_ordering=True,
        errors=ABSENT,
    )


def tree(changes: dict[str, dict[str, Any]] | None = None) -> list[PciDevice]:
    """The cards and the bridges above them; changes by address."""
    cards = [function(name, "gpu") for name in GPUS] + [function(name, "nic") for name in NICS]
    bridges = [
        function(name, "bridge") for name in sorted({bridge for card in cards for bridge in above(card.name)})
    ]
    return [replace(device, **(changes or {}).get(device.name, {})) for device in [*cards, *bridges]]


def fabric(cards: list[PciDevice] | None = None, **changes: Any) -> Fabric:
    """A bare-metal node with two sockets of 48 cores."""
    given: dict[str, Any] = {
        "pci": tree() if cards is None else cards, "iommus": ["dmar0"],
        "command_line": "BOOT_IMAGE=/boot/vmlinuz ro iommu=pt",
        "numa": [
            NumaNode(name="0", cpus="0-47", memory=2**39, distances=[10, 21]),
            NumaNode(name="1", cpus="48-95", memory=2**39, distances=[21, 10]),
        ],
        "bound": Bound(cpus="0-95", mems="0-1"),
        "huge_pages": HugePages(total=0, free=0, size=2**21, transparent="madvise"),
        "governor": Governor(names=["performance"], driver="intel_pstate", preference="performance"),
        "numa_balancing": 0, "hypervisor": False, "product": "Supermicro SYS-821GE-TNHR", "topology_file": False,
    }  # fmt: skip
    return Fabric(**{**given, **changes})


def gpu_node(
    name: str,
    devices: Rdma | Unread,
    *,
    version: str = "2.27.3",
    address: str = "10.1.0.17/24",
    mtu: int = 9000,
    env: dict[str, str] | None = None,
    **facts: Any,
) -> Node:
    """A node with GPUs, one interface and these HCAs."""
    given: dict[str, Any] = {
        "gpus": Gpus(pci=GPUS, devices=[f"nvidia{i}" for i in range(4)], usable=4),
        "nccl": Nccl(loaded=Library(path="libnccl.so.2", origin="pip package", version=version), plugins=[],
                     conf_files=[], stray_lines=[], others=[]),
        "rdma": devices, "fabric": fabric(), "host": Host(kernel="5.15.0-105", cores=96, boot_id=name),
    }  # fmt: skip
    return node(name, LO, nic("eth0", address, mtu=mtu), env=env, **{**given, **facts})

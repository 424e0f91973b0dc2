"""Where NCCL's topology file places cards: sysfs's paths are made of it, and what is no topology is unread."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.probes.facts import PciDevice, PcieLink, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.software.nccl_topology import topology

TWO = """<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0001:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="0"/></pci>
      <pci busid="0101:00:00.0" class="0x020700"/>
    </pci>
  </cpu>
  <cpu numaid="1"><pci busid="0002:00:00.0" class="0x030200"/></cpu>
</system>"""


def _read(tmp_path: Path, text: str) -> list[PciDevice] | Unread:
    file = tmp_path / "topo.xml"
    file.write_text(text)
    return topology(Machine(), {"NCCL_TOPO_FILE": str(file)})


def test_cards_below_one_switch_share_its_port(tmp_path: Path) -> None:
    devices = _read(tmp_path, TWO)
    assert isinstance(devices, list)
    near, card, far = sorted(devices, key=lambda device: (device.root == "cpu1", device.kind))
    assert (near.name, near.kind, near.root, near.numa_node) == ("0001:00:00.0", "gpu", "cpu0", 0)
    assert near.path == ["ffff:ff:01.0", "ffff:ff:01.0>0001:00:00.0"]
    assert near.link == PcieLink(gts=32.0, width=16, most_gts=32.0, most_width=16)
    assert (card.name, card.kind, card.path) == (
        "0101:00:00.0",
        "nic",
        ["ffff:ff:01.0", "ffff:ff:01.0>0101:00:00.0"],
    )
    assert isinstance(card.link, Unread)
    assert (far.name, far.root, far.path) == ("0002:00:00.0", "cpu1", [])


def test_a_switch_below_a_switch_is_farther(tmp_path: Path) -> None:
    inner = '<pci busid="0000:03:00.0" class="0x060400"><pci busid="0000:04:00.0" class="0x020000"/></pci>'
    outer = f'<pci busid="0000:01:00.0" class="0x060400">{inner}<pci busid="0000:02:00.0" class="0x030200"/></pci>'
    devices = _read(tmp_path, f'<system version="1"><cpu numaid="0">{outer}</cpu></system>')
    assert isinstance(devices, list)
    above = "0000:01:00.0"
    assert {device.name: device.path for device in devices} == {
        "0000:04:00.0": [above, f"{above}>0000:03:00.0", "0000:03:00.0", "0000:03:00.0>0000:04:00.0"],
        "0000:02:00.0": [above, f"{above}>0000:02:00.0"],
    }


def test_a_tree_without_end_stays_small(tmp_path: Path) -> None:
    bridge, deep = '<pci busid="0000:01:00.0" class="0x060400">', 2000
    text = f"{bridge * deep}<pci busid='0000:02:00.0' class='0x020000'/>{'</pci>' * deep}"
    devices = _read(tmp_path, f'<system version="1"><cpu numaid="0">{text}</cpu></system>')
    assert isinstance(devices, list)
    assert isinstance(devices[0].path, list)
    assert len(devices[0].path) < 100


def test_without_a_file_nothing_is_said(tmp_path: Path) -> None:
    assert topology(Machine(), {"NCCL_TOPO_FILE": str(tmp_path / "none.xml")}) == []
    assert topology(Machine(str(tmp_path)), {}) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no XML", "syntax error"),
        (TWO.removesuffix("</system>"), "no element found"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><system version="1"/>', "declares a type of document"),
    ],
)
def test_what_is_no_topology_is_unread(tmp_path: Path, text: str, why: str) -> None:
    devices = _read(tmp_path, text)
    assert isinstance(devices, Unread)
    assert (devices.kind, why in devices.why) == ("broken", True)

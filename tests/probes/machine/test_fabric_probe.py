"""The fabric probe over written trees: the PCIe tree, its registers, NUMA nodes, settings of the kernel."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import (
    Bound,
    Cluster,
    Errors,
    Fabric,
    Governor,
    HugePages,
    Node,
    NumaNode,
    PcieLink,
    Unread,
    unread_in,
)
from ncclcheck.probes.machine.devices import fabric, pci
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.trees import tree

DEVICES = "/sys/bus/pci/devices"
ROOT = "/sys/devices/pci0000:15/0000:15:01.0"
GPU = f"{ROOT}/0000:18:00.0"
CPU = "/sys/devices/system/cpu/cpufreq/policy0"
AER = "RxErr 3\nTOTAL_ERR_{} {}\n"


def config(acs: int = 0x1D, relaxed: bool = True, size: int = 4096) -> bytes:
    """A configuration space with an Express capability at 0x60 and ACS at 0x148, behind another one."""
    data = bytearray(size)
    data[0x34] = 0x60
    data[0x60:0x62] = bytes([0x10, 0])
    data[0x68] = 0x10 if relaxed else 0
    if size > 256:
        struct.pack_into("<I", data, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
        struct.pack_into("<IHH", data, 0x148, 0x000D | 1 << 16, 0x5F, acs)
    return bytes(data)


NODE: dict[str, str | bytes] = {
    f"{DEVICES}/0000:18:00.0": f"-> ../../../..{GPU}",
    f"{DEVICES}/0000:15:01.0": f"-> ../../../..{ROOT}",
    f"{DEVICES}/0000:00:1f.0/class": "0x060100\n",
    f"{GPU}/class": "0x030200\n",
    f"{GPU}/vendor": "0x10de\n",
    f"{GPU}/numa_node": "0\n",
    f"{GPU}/current_link_speed": "8.0 GT/s PCIe\n",
    f"{GPU}/max_link_speed": "32.0 GT/s PCIe\n",
    f"{GPU}/current_link_width": "16\n",
    f"{GPU}/max_link_width": "16\n",
    f"{GPU}/iommu_group": "-> ../../../../kernel/iommu_groups/7",
    f"{GPU}/config": config(),
    f"{GPU}/aer_dev_correctable": AER.format("COR", 12),
    f"{GPU}/aer_dev_nonfatal": AER.format("NONFATAL", 0),
    f"{GPU}/aer_dev_fatal": AER.format("FATAL", 1),
    f"{ROOT}/class": "0x060400\n",
    f"{ROOT}/numa_node": "0\n",
    f"{ROOT}/config": config(),
    "/sys/kernel/iommu_groups/7/type": "DMA-FQ\n",
    "/sys/class/iommu/dmar0/uevent": "",
    "/sys/class/dmi/id/product_name": "SYS-821GE-TNHR\n",
    "/sys/class/dmi/id/sys_vendor": "Supermicro\n",
    "/sys/devices/system/node/node0/cpulist": "0-47\n",
    "/sys/devices/system/node/node0/distance": "10 21\n",
    "/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       527951040 kB\nNode 0 MemFree: 1 kB\n",
    "/sys/devices/system/node/possible": "0\n",
    f"{CPU}/scaling_governor": "powersave\n",
    f"{CPU}/scaling_driver": "intel_pstate\n",
    f"{CPU}/energy_performance_preference": "balance_performance\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/proc/meminfo": "MemTotal: 9 kB\nHugePages_Total:   16\nHugePages_Free:    4\nHugepagesize:    2048 kB\n",
    "/proc/cmdline": "BOOT_IMAGE=/vmlinuz ro iommu=pt ks.password=hunter2 API_TOKEN=x\n",
    "/proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu vme sse2\n",
    "/proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-47\nMems_allowed_list:\t0\n",
    "/proc/sys/kernel/numa_balancing": "1\n",
}


def test_a_node(tmp_path: Path) -> None:
    facts = fabric.probe(tree(tmp_path, NODE))
    assert (facts.iommus, facts.command_line) == (["dmar0"], "BOOT_IMAGE=/vmlinuz ro iommu=pt")
    assert facts.numa == [NumaNode(name="0", cpus="0-47", memory=527951040 * 1024, distances=[10, 21])]
    assert facts.bound == Bound(cpus="0-47", mems="0")
    assert facts.huge_pages == HugePages(total=16, free=4, size=2**21, transparent="madvise")
    assert facts.governor == Governor(names=["powersave"], driver="intel_pstate", preference="balance_performance")
    assert (facts.numa_balancing, facts.hypervisor, facts.product) == (1, False, "Supermicro SYS-821GE-TNHR")


def test_the_pci_tree(tmp_path: Path) -> None:
    gpu, bridge = fabric.probe(tree(tmp_path, NODE)).pci  # type: ignore[misc]
    assert (gpu.name, gpu.kind, gpu.root, gpu.path) == ("0000:18:00.0", "gpu", "pci0000:15", ["0000:15:01.0"])
    assert gpu.link == PcieLink(gts=8.0, width=16, most_gts=32.0, most_width=16)
    assert (gpu.iommu, gpu.numa_node, gpu.relaxed_ordering) == ("DMA-FQ", 0, True)
    assert gpu.errors == Errors(correctable=12, nonfatal=0, fatal=1)
    assert (bridge.name, bridge.kind, bridge.path) == ("0000:15:01.0", "bridge", [])
    assert bridge.acs == ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"]
    assert isinstance(bridge.link, Unread)


def test_a_user_sees_64_bytes(tmp_path: Path) -> None:
    bridge = fabric.probe(tree(tmp_path, {**NODE, f"{ROOT}/config": config()[:64]})).pci[1]  # type: ignore[index]
    assert isinstance(bridge.acs, Unread)
    assert bridge.acs.kind == "denied"


@pytest.mark.parametrize(
    ("speed", "width"), [("Unknown", "16"), ("8.0 GT/s", "0"), ("8.0 GT/s", "255"), ("8.0 GT/s", "\xb2"), ("", "")]
)
def test_registers_that_tell_no_link(tmp_path: Path, speed: str, width: str) -> None:
    files = {**NODE, f"{GPU}/current_link_speed": speed, f"{GPU}/current_link_width": width}
    link = fabric.probe(tree(tmp_path, files)).pci[0].link  # type: ignore[index]
    assert isinstance(link, Unread)
    assert link.kind == "absent"


@pytest.mark.parametrize(
    ("data", "acs"), [(config(0), []), (config(0x44), ["ReqRedir", "DirectTrans"]), (config(size=256), None)]
)
def test_acs(data: bytes, acs: list[str] | None) -> None:
    flags = pci.acs(data)
    assert (None if isinstance(flags, Unread) else flags) == acs


@given(st.binary(min_size=65, max_size=4096))
def test_any_registers(data: bytes) -> None:
    """A list of capabilities may be a circle, or lead out of the space."""
    assert isinstance(pci.acs(data), (list, Unread))
    assert isinstance(pci.relaxed_ordering(data), (bool, Unread))


def test_a_machine_without_anything(tmp_path: Path) -> None:
    facts = fabric.probe(tree(tmp_path, {}))
    assert {fact.kind for _, fact in unread_in(facts)} == {"absent"}


def test_a_virtual_machine(tmp_path: Path) -> None:
    assert fabric.probe(tree(tmp_path, {"/proc/cpuinfo": "flags : fpu hypervisor\n"})).hypervisor is True


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(NODE)), st.binary(max_size=80), st.sets(st.sampled_from(sorted(NODE)), max_size=8))
def test_nothing_makes_it_raise(path: str, content: bytes, missing: set[str]) -> None:
    files = {name: text for name, text in NODE.items() if name not in missing}
    with tempfile.TemporaryDirectory() as folder:
        facts = fabric.probe(tree(Path(folder), {**files, path: content}))
    assert isinstance(facts, Fabric)
    rules = [rule for rule in all_rules() if rule.code[:3] == "FAB"]
    verdicts = judge(Cluster(nodes=[Node(name="a", fabric=facts), Node(name="b", fabric=facts)]), rules)
    assert not [f for v in verdicts for f in v.findings if f.owner == "tool"]


@pytest.mark.parametrize(("written", "tag"), [("OracleCloud.com", "OracleCloud.com"), ("ACME-0042", "")])
def test_an_asset_tag_is_told_where_it_names_a_cloud_and_is_nobodys_number(
    tmp_path: Path, written: str, tag: str
) -> None:
    machine = tree(tmp_path, {"/sys/class/dmi/id/chassis_asset_tag": f"{written}\n"})
    assert fabric.probe(machine).asset_tag == tag

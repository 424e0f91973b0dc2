"""The health probe and the leaf switches on written trees, and what touches a live mount or process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import (
    Commit,
    FileSystemAnswer,
    Hca,
    KernelEvent,
    Leaf,
    MemoryModule,
    Mount,
    Nvme,
    PcieLink,
    Port,
    Pressure,
    Swap,
    Unread,
)
from ncclcheck.probes.machine import health
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.devices import leaves, pci
from ncclcheck.probes.machine.health import errors, mounted, waiting
from tests.helpers.trees import tree

EDAC = "/sys/devices/system/edac/mc"
DISK = "/sys/bus/pci/devices/0000:5b:00.0"
MOUNTS = """\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
31 27 254:0 /var/lib /pods/1 ro,relatime - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
32 27 254:9 / /local rw,relatime - ext4 /dev/nvme1n1 ro,errors=remount-ro
33 27 0:51 / /data rw,relatime - nfs4 10.7.0.9:/data rw,vers=4.2
34 27 0:51 / /pods/2/data rw,relatime - nfs4 10.7.0.9:/data rw,vers=4.2
35 27 0:52 / /home rw,relatime - autofs systemd-1 rw,fd=29
36 27 0:53 / /snap/core/1 ro,nodev - squashfs /dev/loop0 ro
"""
NODE: dict[str, str | bytes] = {
    f"{EDAC}/mc0/dimm0/dimm_ce_count": "4711\n",
    f"{EDAC}/mc0/dimm0/dimm_ue_count": "2\n",
    f"{EDAC}/mc0/dimm0/dimm_label": "CPU_SrcID#0_MC#0_Chan#0_DIMM#0\n",
    f"{EDAC}/mc0/ce_count": "4711\n",
    f"{EDAC}/mc0/ue_count": "2\n",
    f"{EDAC}/mc1/ce_count": "0\n",
    f"{EDAC}/mc1/ue_count": "0\n",
    f"{EDAC}/power/async": "disabled\n",
    "/proc/meminfo": "SwapTotal:  8192 kB\nSwapFree: 6144 kB\nCommitLimit: 500 kB\nCommitted_AS: 80 kB\n",
    "/proc/sys/vm/overcommit_memory": "2\n",
    "/proc/pressure/memory": "some avg10=1.00 avg60=2.00 avg300=3.25 total=9\n"
    "full avg10=0.00 avg60=0.50 avg300=1.75 total=4\n",
    "/proc/self/mountinfo": MOUNTS,
    "/proc/uptime": "7200.00 1.0\n",
    "/sys/class/nvme/nvme0/state": "live\n",
    "/sys/class/nvme/nvme0/model": "SAMSUNG MZQL23T8HCLS-00A07  \n",
    "/sys/class/nvme/nvme0/transport": "pcie\n",
    "/sys/class/nvme/nvme0/address": "0000:5b:00.0\n",
    "/sys/class/nvme/nvme1/state": "connecting\n",
    "/sys/class/nvme/nvme1/transport": "tcp\n",
    f"{DISK}/current_link_speed": "16.0 GT/s PCIe\n",
    f"{DISK}/max_link_speed": "16.0 GT/s PCIe\n",
    f"{DISK}/current_link_width": "4\n",
    f"{DISK}/max_link_width": "4\n",
}


def test_a_written_machine(tmp_path: Path) -> None:
    facts = health.probe(tree(tmp_path, NODE, kernel_log=[], waiting=[], answers=[]))
    assert facts.memory_errors == [
        MemoryModule(name="mc0/dimm0", corrected=4711, uncorrected=2, label="CPU_SrcID#0_MC#0_Chan#0_DIMM#0"),
        MemoryModule(name="mc1", corrected=0, uncorrected=0),
    ]
    assert facts.swap == Swap(total=8 * 2**20, used=2 * 2**20)
    assert facts.pressure == Pressure(some=3.25, full=1.75)
    assert facts.commit == Commit(mode=2, limit=500 * 1024, used=80 * 1024)
    link = PcieLink(gts=16.0, width=4, most_gts=16.0, most_width=4)
    assert facts.nvmes == [Nvme(name="nvme0", state="live", model="SAMSUNG MZQL23T8HCLS-00A07", link=link)]
    assert (facts.kernel, facts.waiting, facts.answers) == ([], [], [])


def test_each_disk_once_and_the_options_of_the_mount_first(tmp_path: Path) -> None:
    mounts = mounted.disks(tree(tmp_path, NODE))
    assert mounts == [
        Mount(point="/", kind="ext4", source="/dev/nvme0n1p2", options=["rw", "relatime", "errors=remount-ro"]),
        Mount(point="/local", kind="ext4", source="/dev/nvme1n1",
              options=["rw", "relatime", "ro", "errors=remount-ro"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("mce: [Hardware Error]: CPU 12: Machine Check Exception: Uncorrected, software restartable", True),
        ("{1}[Hardware Error]: event severity: recoverable", True),
        ("EDAC MC3: 1 UE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#0", True),
        ("Memory failure: 0x5a9c1f4: recovery action for dirty LRU page: Recovered", True),
        ("{2}[Hardware Error]: event severity: corrected", False),
        ("mce: [Hardware Error]: Machine check events logged", False),
        ("EDAC MC0: 1 CE memory read error on DIMM_A1", False),
        ("EDAC i10nm: No hbm memory", False),
    ],
)
def test_what_counts_as_uncorrected(tmp_path: Path, line: str, name: bool) -> None:
    events = errors.kernel(tree(tmp_path, NODE, kernel_log=[f"[ 3600.000000] {line}"]))
    assert not isinstance(events, Unread)
    assert [(event.name, event.hours) for event in events] == (
        [("uncorrected hardware error", 1.0)] if name else []
    )


def test_other_words_of_the_kernel(tmp_path: Path) -> None:
    lines = [
        "[ 3600.0] INFO: task python:81231 blocked for more than 120 seconds.",
        "[ 7200.0] INFO: task python:81231 blocked for more than 241 seconds.",
        "[ 10.5] EXT4-fs (nvme1n1): Remounting filesystem read-only",
        "[ 11.5] XFS (nvme2n1): Filesystem has been shut down due to log error (0x2).",
        "[ 12.5] I/O error, dev nvme1n1, sector 2048 op 0x1:(WRITE)",
        "[ 13.5] overlayfs: upper fs is read-only",
    ]
    events = errors.kernel(tree(tmp_path, NODE, kernel_log=lines))
    assert not isinstance(events, Unread)
    assert {event.name: event.times for event in events} == {
        "hung task": 2, "file system given up": 2, "disk error": 1,
    }  # fmt: skip
    assert events[0] == KernelEvent(
        name="hung task", times=2, line="task python:81231 blocked for more than 241 seconds.", hours=0.0
    )


def test_a_machine_without_any_of_it(tmp_path: Path) -> None:
    facts = health.probe(tree(tmp_path, {"/proc/meminfo": "MemTotal: 1 kB\n"}))
    kinds = {
        name: fact.kind for name in facts.__struct_fields__ if isinstance(fact := getattr(facts, name), Unread)
    }
    assert {name for name, kind in kinds.items() if kind == "recorded"} == {"kernel", "waiting"}
    assert set(kinds.values()) == {"recorded", "absent"}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(NODE)), st.binary(max_size=200))
def test_any_bytes_are_survived(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = tree(Path(folder), {**NODE, name: data}, kernel_log=["\0"], waiting=[], answers=[])
        health.probe(machine)


def test_mounts_are_touched_by_a_child_that_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that answers, one that is gone, one of which stat never comes back."""
    text = "".join(
        f"3{number} 27 0:5{number} / {tmp_path}/{name} rw - nfs4 filer:/{name} rw\n"
        for number, name in enumerate(("here", "gone", "late"))
    )
    (tmp_path / "here").mkdir()
    slow = mounted._TOUCH.replace(
        "os.stat(path)", "os.stat(path) if 'late' not in path else threading.Event().wait()"
    )
    monkeypatch.setattr(mounted, "_TOUCH", slow)
    monkeypatch.setattr(mounted, "_SECONDS", 1.0)
    monkeypatch.setattr(Machine, "read", lambda *_: text)
    begun = time.monotonic()
    answers = mounted.answers(Machine())
    assert time.monotonic() - begun < 8
    assert answers == [
        FileSystemAnswer(name=f"{tmp_path}/here", kind="nfs4", source="filer:/here"),
        FileSystemAnswer(name=f"{tmp_path}/gone", kind="nfs4", source="filer:/gone",
               error="ENOENT: No such file or directory"),
        FileSystemAnswer(name=f"{tmp_path}/late", kind="nfs4", source="filer:/late", late=True),
    ]  # fmt: skip


_VFORK = "import ctypes; ctypes.CDLL(None).syscall({number}); import time; time.sleep(60)"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of vfork(2)")
def test_a_process_that_stays_in_state_d_is_found() -> None:
    """The parent of vfork waits in state D until its child has ended or called exec."""
    parent = subprocess.Popen([sys.executable, "-c", _VFORK.format(number=58)])
    try:
        until = time.monotonic() + 30
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")  # before, it may wait for a disk
        while time.monotonic() < until and not (children.read_text() and waiting._switches(str(parent.pid))):
            time.sleep(0.05)
        waitings = waiting.processes(Machine())
        assert not isinstance(waitings, Unread)
        mine = [process for process in waitings if process.pid == parent.pid]
        assert [process.name for process in mine] == [Path(sys.executable).resolve().name[:15]] or len(mine) == 1
        assert mine[0].seconds >= 2.0
    finally:
        for child in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split():
            os.kill(int(child), 9)
        parent.kill()
        parent.wait(10)


def _frame(chassis: bytes, port: bytes, name: bytes = b"", text: bytes = b"") -> bytes:
    fields = [(1, b"\x04" + chassis), (2, b"\x05" + port), (3, b"\0\x78"), (4, text), (5, name)]
    body = b"".join(((kind << 9) | len(value)).to_bytes(2, "big") + value for kind, value in fields if value)
    frame = bytes.fromhex("0180c200000e020000000001 88cc") + body + b"\0\0"
    return len(frame).to_bytes(8, "little") + frame


def _hca(name: str, layer: str, state: str = "ACTIVE") -> Hca:
    return Hca(name=name, ports=[Port(name="1", state=state, link_layer=layer)])


_ROCE: dict[str, str | bytes] = {
    "/sys/class/infiniband/mlx5_0/device/net/ens1/x": "",
    "/sys/class/infiniband/mlx5_1/device/net/ens2/x": "",
    "/sys/class/net/ens1/ifindex": "7\n",
    "/sys/class/net/ens2/ifindex": "8\n",
}


def test_the_switch_that_networkd_heard(tmp_path: Path) -> None:
    mac = bytes.fromhex("7439891c70a0")
    files = {**_ROCE, "/run/systemd/netif/lldp/7": _frame(mac, b"swp17", b"leaf-01\0", b"Ethernet17")}
    leafs = leaves.leaves(tree(tmp_path, files), [_hca("mlx5_0", "Ethernet"), _hca("mlx5_1", "Ethernet")])
    assert leafs == [
        Leaf(name="mlx5_0:1", switch="leaf-01", identity="74:39:89:1c:70:a0", port="Ethernet17", told_by="LLDP")
    ]


def test_the_switch_that_lldpd_heard(tmp_path: Path) -> None:
    answer = "\n".join([
        "lldp.ens2.via=LLDP", "lldp.ens2.chassis.mac=aa:bb:cc:dd:ee:ff", "lldp.ens2.chassis.name=leaf-02",
        "lldp.ens2.port.ifname=swp3", "lldp.eno1.chassis.mac=00:00:00:00:00:01",
    ])  # fmt: skip
    leafs = leaves.leaves(tree(tmp_path, _ROCE, lldpctl=answer), [_hca("mlx5_1", "Ethernet")])
    assert leafs == [
        Leaf(name="mlx5_1:1", switch="leaf-02", identity="aa:bb:cc:dd:ee:ff", port="swp3", told_by="LLDP")
    ]


_INFO = """# Node info: DR path slid 65535; dlid 65535; 0,1
BaseVers:........................1
NodeType:........................{kind}
NumPorts:........................41
SystemGuid:......................0xe09d730300b1a2c0
Guid:............................0xe09d730300b1a2c0
LocalPort:.......................17
"""


@pytest.mark.parametrize(("kind", "count"), [("Switch", 1), ("Channel Adapter", 0)])
def test_the_switch_that_answers_smpquery(tmp_path: Path, kind: str, count: int) -> None:
    answers = {
        "mlx5_0:1 nodeinfo": _INFO.format(kind=kind),
        "mlx5_0:1 nodedesc": "Node Description:....................MF0;leaf-01:MQM9700/U1\n",
    }
    leafs = leaves.leaves(tree(tmp_path, {}, smpquery=answers), [_hca("mlx5_0", "InfiniBand")])
    leaf = Leaf(
        name="mlx5_0:1", switch="MF0;leaf-01:MQM9700/U1", identity="0xe09d730300b1a2c0", port="17",
        told_by="smpquery",
    )  # fmt: skip
    assert leafs == ([leaf] if count else Unread("absent", "no switch answered smpquery"))


def test_ports_that_are_down_are_not_asked(tmp_path: Path) -> None:
    leafs = leaves.leaves(tree(tmp_path, {}), [_hca("mlx5_0", "InfiniBand", "DOWN")])
    assert leafs == Unread("absent", "no active port of InfiniBand or RoCE")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_any_frames_are_survived(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = {**_ROCE, "/run/systemd/netif/lldp/7": data}
        leaves.leaves(tree(Path(folder), files), [_hca("mlx5_0", "Ethernet")])


@pytest.mark.parametrize(
    ("control", "size", "tags"),
    [(0x5110, 4096, True), (0x2810, 512, False), (0x2910, 512, True), (0x0, 128, False)],
)  # fmt: skip
def test_how_much_a_card_reads_at_a_time(control: int, size: int, tags: bool) -> None:
    config = bytearray(256)
    config[0x34], config[0x60] = 0x60, 0x10
    config[0x68:0x6A] = control.to_bytes(2, "little")
    assert (pci.max_read(bytes(config)), pci.extended_tags(bytes(config))) == (size, tags)

"""The host and RDMA probes on recorded machines, and on this one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Host, Limits, Resolution, Space, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.devices import rdma
from ncclcheck.probes.machine.host import host
from tests.helpers.trees import RECORDED, needs_recorded, tree

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 524288               files
Max locked memory         unlimited            unlimited            bytes
"""
FILES = {
    "/proc/sys/kernel/hostname": "gpu-a17\n",
    "/proc/sys/kernel/osrelease": "5.15.0-1064\n",
    "/proc/sys/kernel/random/boot_id": "7c9e\n",
    "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n',
    "/sys/devices/system/cpu/online": "0-127,160-255\n",
    "/proc/self/status": "Name:\tpython\nCapEff:\t0000000000004000\nCpus_allowed_list:\t0-15\n",
    "/proc/self/uid_map": "         0          0 4294967295\n",
    "/proc/self/limits": LIMITS,
    "/proc/self/cgroup": "0::/slurm/job_7\n",
    "/sys/fs/cgroup/cpu.max": "max 100000\n",
    "/sys/fs/cgroup/slurm/cpu.max": "800000 100000\n",
    "/sys/fs/cgroup/slurm/job_7/memory.max": "68719476736\n",
    "/sys/fs/cgroup/slurm/memory.max": "max\n",
    "/proc/meminfo": "MemTotal:       2113409024 kB\nMemAvailable:   2000000000 kB\n",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "/proc/uptime": "86412.71 5012.03\n",
}
ASKED = {
    "shm": {"type": "space", "size": 2**40, "free": 2**39, "path": "/dev/shm"},
    "tmp": {"type": "space", "size": 2**30, "free": 2**20, "path": "/scratch"},
    "own_name": {"type": "resolution", "name": "gpu-a17", "addresses": ["127.0.1.1"]},
}


def test_a_healthy_machine(tmp_path: Path) -> None:
    assert host.probe(tree(tmp_path, FILES, **ASKED)) == Host(
        hostname="gpu-a17",
        system="Ubuntu 22.04.5 LTS",
        kernel="5.15.0-1064",
        boot_id="7c9e",
        cores=224,
        usable_cores=8.0,
        quota_path="/sys/fs/cgroup/slurm/cpu.max",
        memory=2113409024 * 1024,
        memory_limit=2**36,
        memory_available=2000000000 * 1024,
        memlock=Limits(soft=-1, hard=-1),
        ipc_lock=True,
        nofile=Limits(soft=1024, hard=524288),
        shm=Space(size=2**40, free=2**39, path="/dev/shm"),
        tmp=Space(size=2**30, free=2**20, path="/scratch"),
        clocksource="tsc",
        own_name=Resolution(name="gpu-a17", addresses=["127.0.1.1"]),
        own_sources=Unread("absent", "its own name has an address"),
        uptime_s=86412.71,
    )


def test_a_machine_of_which_nothing_was_recorded(tmp_path: Path) -> None:
    facts = host.probe(tree(tmp_path, {}))
    kinds = {name: getattr(facts, name).kind for name in facts.__struct_fields__}
    recorded = {name for name, kind in kinds.items() if kind == "recorded"}
    assert recorded == {"shm", "tmp", "own_name"}
    assert set(kinds.values()) == {"recorded", "absent"}


@pytest.mark.parametrize(
    ("files", "cores", "limit"),
    [
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5, None),
        ({"/proc/self/cgroup": "0::/../../x\n", "/sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5, None),
        (
            {
                "/proc/self/cgroup": "4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
            },
            4.0,
            2**30,
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/\n3:cpu:/\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            16.0,
            None,
        ),
    ],
)
def test_control_groups(tmp_path: Path, files: dict[str, str], cores: float, limit: int | None) -> None:
    status = {"/proc/self/status": "Cpus_allowed_list:\t0-15\n"}
    facts = host.probe(tree(tmp_path, {**status, **files}))
    assert facts.usable_cores == cores
    assert facts.memory_limit == (limit or Unread("absent", "no control group limits memory"))


@pytest.mark.parametrize(
    ("mask", "ids", "locks"),
    [
        ("0000000000004000", "0 0 4294967295", True),
        ("0000003fffffffff", "0 1000 1", False),
        ("0", "0 0 4294967295", False),
    ],
)
def test_the_right_to_lock_memory_counts_outside_of_user_namespaces(
    tmp_path: Path, mask: str, ids: str, locks: bool
) -> None:
    files = {"/proc/self/status": f"CapEff:\t{mask}\n", "/proc/self/uid_map": ids}
    assert host.probe(tree(tmp_path, files)).ipc_lock is locks


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FILES)), st.binary(max_size=60))
def test_no_content_of_a_file_makes_it_raise(path: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert isinstance(host.probe(tree(Path(folder), {**FILES, path: content}, **ASKED)), Host)


def test_this_machine() -> None:
    facts = host.probe(Machine())
    assert isinstance(facts.usable_cores, float)
    assert facts.usable_cores > 0
    assert isinstance(facts.tmp, Space)
    assert isinstance(facts.own_name, (Resolution, Unread))


def test_rdma_devices(tmp_path: Path) -> None:
    machine = tree(tmp_path, {"/sys/class/infiniband/mlx5_1/node_type": "1: CA\n"})
    assert rdma.probe(machine).hcas == ["mlx5_1"]
    (tmp_path / "sys/class/infiniband/mlx5_1/node_type").unlink()
    (tmp_path / "sys/class/infiniband/mlx5_1").rmdir()
    assert rdma.probe(machine).hcas == Unread("absent", "no RDMA device on this machine")


@needs_recorded
def test_rdma_devices_of_a_real_h100_node(tmp_path: Path) -> None:
    real = RECORDED / "gpud/components/accelerator/nvidia/infiniband/class/testdata/sys-class-infiniband-h100.0"
    for name in real.iterdir():
        (tmp_path / "sys/class/infiniband" / name.name).mkdir(parents=True)
    hcas = rdma.probe(Machine(str(tmp_path), recorded=True)).hcas
    assert isinstance(hcas, list)
    assert len(hcas) == 9

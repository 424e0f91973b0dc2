"""The container, storage and system probes on recorded machines, and on this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import (
    ConfFile,
    ConfLine,
    Container,
    Lock,
    Mount,
    PortRange,
    Room,
    Storage,
    System,
    Unread,
    at,
    value_or,
)
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import container, mounts, storage, system
from ncclcheck.probes.machine.software import nccl_installed
from tests.conftest import Command, Ran, environment
from tests.helpers.trees import tree

MOUNTS = """22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
30 22 0:44 / /home rw,relatime - nfs4 filer:/export/home rw,vers=4.2
31 22 0:45 / /tmp rw,nosuid,noexec - tmpfs tmpfs rw,size=1g
32 22 0:46 / /dev/shm rw - tmpfs shm rw,size=65536k
33 22 0:47 / /mnt/my\\040data rw - fuse.s3fs s3fs rw
34 22 0:48 / /overlay rw - fuse.fuse-overlayfs o rw
a line that nobody understands
"""
TCP = """  sl  local_address rem_address   st
   0: 00000000:3A99 00000000:0000 0A
   1: 00000000:3A9E 00000000:0000 0A
   2: 0100007F:1F90 00000000:0000 01
"""
STATUS = "Name:\tpython\nUid:\t1007\t1007\t1007\t1007\nCapEff:\t0000000000804000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
POD = {
    "/proc/self/mountinfo": MOUNTS,
    "/proc/self/status": STATUS,
    "/proc/self/cgroup": "0::/kubepods.slice/pod7/cri-containerd-9\n",
    "/proc/net/tcp": TCP,
    "/sys/class/net/lo/ifindex": "1\n",
    "/sys/class/net/lo/iflink": "1\n",
    "/sys/class/net/eth0/ifindex": "3\n",
    "/sys/class/net/eth0/iflink": "17\n",
    "/dev/nvidia0": "",
    "/dev/nvidiactl": "",
    "/dev/infiniband/uverbs0": "",
}
OWN = {"net": "net:[4026532812]", "ipc": "ipc:[4026532810]", "pid": "pid:[4026532814]",
       "user": "user:[4026531837]", "uts": "uts:[4026532809]"}  # fmt: skip
SHM = {"type": "shared_memory", "mode": "1777", "writable": True}


def test_a_pod(tmp_path: Path) -> None:
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    machine = tree(tmp_path, POD, environment=env, shm_access=SHM, namespaces=OWN)
    facts = container.probe(machine)
    assert isinstance(facts.runtimes, list)
    assert [(sign.name, sign.source) for sign in facts.runtimes] == [
        ("kubernetes", "KUBERNETES_SERVICE_HOST"), ("kubernetes", "/proc/self/cgroup"),
    ]  # fmt: skip
    assert isinstance(facts.namespaces, list)
    assert {namespace.name: namespace.host for namespace in facts.namespaces} == {
        "net": False, "ipc": False, "pid": False, "user": True, "uts": False,
    }  # fmt: skip
    assert (facts.capabilities, facts.seccomp, facts.no_new_privileges) == (
        ["IPC_LOCK", "SYS_NICE"],
        "filter",
        True,
    )
    assert (facts.gpu_files, facts.rdma_files, facts.meshes) == (["nvidia0", "nvidiactl"], ["uverbs0"], ["istio"])
    assert isinstance(facts.shm_mount, Mount)
    assert "size=65536k" in facts.shm_mount.options


@pytest.mark.parametrize(
    ("files", "env", "name"),
    [
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/run/.containerenv": ""}, {}, "podman"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ({}, {"container": "systemd-nspawn"}, "nspawn"),
        ({"/proc/self/cgroup": "0::/system.slice/docker-77aa.scope\n"}, {}, "docker"),
        ({"/proc/self/cgroup": "4:memory:/libpod_parent/libpod-1\n"}, {}, "podman"),
        ({"/proc/self/cgroup": "0::/lxc/box\n"}, {}, "lxc"),
        ({"/proc/self/mountinfo": "9 1 0:7 /enroot/a / rw - overlay enroot rw\n"}, {}, "enroot"),
        ({"/proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7\n"}, {}, None),
    ],
)
def test_runtimes(files: dict[str, str], env: dict[str, str], name: str | None, tmp_path: Path) -> None:
    runtimes = container.probe(tree(tmp_path, {"/etc/hostname": "a", **files}, environment=env)).runtimes
    assert isinstance(runtimes, list)
    assert [sign.name for sign in runtimes] == ([name] if name else [])


MACHINE_PIDS = "pid:[4026531836]"


@pytest.mark.parametrize(
    ("links", "cards", "host"),
    [
        ({"net": "net:[4026531833]"}, {}, True),
        ({"net": "net:[4026531840]", "first_net": "net:[4026531840]", "pid": MACHINE_PIDS}, {}, True),
        ({"net": "net:[4026532000]", "first_net": "net:[4026531840]", "pid": MACHINE_PIDS}, {}, False),
        ({"net": "net:[4026532000]", "first_net": "net:[4026532000]", "pid": "pid:[4026532001]"}, {}, "denied"),
        ({"net": "net:[4026531840]"}, {"docker0": "4"}, True),
        ({"net": "net:[4026531840]"}, {"eth0": "4"}, "denied"),
        ({"net": "net:[4026531840]"}, {"eth0": "17"}, False),
        ({"net": "nonsense"}, {}, "broken"),
        ({}, {}, "recorded"),
    ],
)
def test_the_network_is_the_machines_or_not_or_not_known(
    links: dict[str, str], cards: dict[str, str], host: bool | str, tmp_path: Path
) -> None:
    """cards: name and peer; the own number of each is 4."""
    files = {f"/sys/class/net/{name}/iflink": peer for name, peer in cards.items()}
    files |= {f"/sys/class/net/{name}/ifindex": "4" for name in cards}
    namespaces = container.probe(tree(tmp_path, files, environment={}, namespaces=links)).namespaces
    assert isinstance(namespaces, list)
    shared = namespaces[0].host
    assert (shared.kind if isinstance(shared, Unread) else shared) == host


def test_the_own_namespaces_are_read() -> None:
    namespaces = container.probe(Machine()).namespaces
    assert isinstance(namespaces, list)
    assert [namespace.name for namespace in namespaces if isinstance(namespace.host, bool)][-4:] == [
        "ipc",
        "pid",
        "user",
        "uts",
    ]


@pytest.mark.parametrize(
    ("path", "source", "network"),
    [
        ("/home/kim/run", "filer:/export/home", True),
        ("/homework", "/dev/nvme0n1p2", False),
        ("/tmp", "tmpfs", False),
        ("/mnt/my data/x", "s3fs", True),
        ("/overlay/x", "o", False),
    ],
)
def test_mounts(path: str, source: str, network: bool, tmp_path: Path) -> None:
    mount = mounts.under(mounts.mounts(tree(tmp_path, POD)), path)
    assert isinstance(mount, Mount)
    assert (mount.source, mount.network) == (source, network)


ROOM = {"type": "room", "path": "/home/kim", "size": 9, "free": 5, "inodes": 0, "inodes_free": 0, "writable": True}


def test_recorded_storage(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "environment": {"TMPDIR": "/scratch/tmp", "HF_HOME": "/models"},
        "working_directory": "/home/kim/run",
        "home": "/home/kim",
        "rooms": {"/home/kim/run": {**ROOM, "path": "/home/kim/run"}, "/home/kim/.cache": ROOM},
        "flock": {"type": "lock", "outcome": "unsupported", "detail": "ENOSYS Function not implemented"},
        "fcntl": {"type": "lock", "outcome": "ok"},
    }
    facts = storage.probe(tree(tmp_path, POD, **asked))
    assert isinstance(facts.places, list)
    assert [(place.name, place.path, place.told_by) for place in facts.places] == [
        ("working directory", "/home/kim/run", "the working directory"),
        ("temporary directory", "/scratch/tmp", "TMPDIR"),
        ("temporary directory", "/tmp", "default"),
        ("cache", "/home/kim/.cache", "HOME"),
        ("model cache", "/models", "HF_HOME"),
    ]
    assert isinstance(facts.places[0].mount, Mount)
    assert facts.places[0].mount.kind == "nfs4"
    assert isinstance(facts.places[4].room, Unread)
    assert isinstance(facts.flock, Lock)
    assert facts.flock.outcome == "unsupported"


def test_storage_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not/there"))
    facts = storage.probe(Machine())
    assert isinstance(facts.places, list)
    here, cache = (place for place in facts.places if place.name in ("working directory", "cache"))
    assert isinstance(here.room, Room)
    assert isinstance(cache.room, Room)
    assert (here.room.path, cache.room.path, here.room.writable) == (str(tmp_path), str(tmp_path), True)
    assert (facts.flock, facts.fcntl) == (Lock(outcome="ok"), Lock(outcome="ok"))
    assert list(tmp_path.iterdir()) == []


def test_the_working_directory_is_the_users(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('a module of the user')")
    places = at(ncclcheck("env", "--launch", "local", "-o", "json").document.nodes[0].facts, "storage.places")
    assert places[0].path == str(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_lock_is_tried_where_nothing_may_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o500)
    facts = storage.probe(Machine())
    tmp_path.chmod(0o700)
    assert isinstance(facts.flock, Unread)
    assert facts.flock.kind == "absent"


def test_a_lock_that_never_returns_is_said_to_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child stands still before it answers, as one does on a dead lock service."""
    monkeypatch.setattr(storage, "_TRY", f"import time; open({str(tmp_path / 'left')!r}, 'w'); time.sleep(60)")
    monkeypatch.setattr(storage, "_SECONDS", 0.3)
    monkeypatch.chdir(tmp_path)
    facts = storage.probe(Machine())
    assert isinstance(facts.flock, Lock)
    assert facts.flock.outcome == "hangs"


def test_an_unsupported_lock_is_named_by_its_error(tmp_path: Path) -> None:
    """The child's own program, with a kernel that knows no flock."""
    broken = storage._TRY.replace("fcntl.flock if", "refuse if").replace(
        "path, kind", "def refuse(*_):\n    raise OSError(errno.ENOSYS, 'Function not implemented')\npath, kind", 1
    )
    argv = [sys.executable, "-c", broken, str(tmp_path / "x"), "flock"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "unsupported ENOSYS Function not implemented"
    assert not (tmp_path / "x").exists()


def test_system(tmp_path: Path) -> None:
    files = {
        "/proc/self/status": STATUS,
        "/proc/self/limits": "Max stack size            unlimited  unlimited  bytes\n"
        "Max processes             4096       513046     processes\n"
        "Max address space         2560000000 unlimited  bytes\n"
        "Max data size             1048576    unlimited  bytes\n"
        "Max cpu time              600        unlimited  seconds\n"
        "Max file size             unlimited  unlimited  bytes\n",
        "/proc/self/cgroup": "0::/a/b\n",
        "/sys/fs/cgroup/a/pids.max": "2048\n",
        "/sys/fs/cgroup/a/b/pids.max": "max\n",
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "/proc/sys/net/ipv4/ip_local_reserved_ports": "29500,32760-32769,60999\n",
        "/proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "/proc/sys/net/ipv4/tcp_wmem": "4096 16384\n",
        "/proc/sys/net/core/somaxconn": "4096\n",
        "/etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\nRemoveIPC=no\n",
        "/etc/systemd/logind.conf.d/x.conf": "[Login]\nRemoveIPC = yes\n",
        "/proc/cpuinfo": "processor : 0\nvendor_id : AuthenticAMD\nmodel name : AMD EPYC 9654\n\nprocessor : 1\n",
    }
    assert system.probe(tree(tmp_path, files, tasks_used=31)) == System(
        uid=1007, stack=-1, processes=4096, tasks=2048, address_space=2_560_000_000, file_size=-1, tasks_used=31,
        data=1_048_576, cpu_seconds=600,
        ports=PortRange(first=32768, last=60999, reserved=3), remove_ipc=True, tcp_rmem=6291456, somaxconn=4096,
        tcp_wmem=Unread("broken", "/proc/sys/net/ipv4/tcp_wmem holds '4096 16384', not three numbers"),
        cpu="AuthenticAMD AMD EPYC 9654",
    )  # fmt: skip


def test_files_around_nccl(tmp_path: Path) -> None:
    plugin = tmp_path / "libnccl-net.so"
    plugin.write_bytes(b"plugin")
    files = nccl_installed.plugin_files(Machine(), [str(plugin)])
    assert isinstance(files, list)
    assert str(files[0].sha256).startswith("5e689e2b0167")
    env = {"NCCL_TOPO_FILE": str(plugin), "NCCL_DEBUG_FILE": f"{tmp_path}/none/nccl.%h"}
    conf = [ConfFile(path="/etc/nccl.conf", lines=[ConfLine(line=1, name="NCCL_GRAPH_FILE", value="~/g.xml")])]
    named = nccl_installed.named_files(Machine(), env, conf)
    assert isinstance(named, list)
    assert {file.name: file.fits for file in named} == {
        "NCCL_TOPO_FILE": True, "NCCL_GRAPH_FILE": False, "NCCL_DEBUG_FILE": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "folder", "product"),
    [
        ("HPC-X v2.20\nucx-39c8f9b  1.17.0\n", "nccl_rdma_sharp_plugin/lib", "HPC-X v2.20"),
        ("HPC-X v2.24.1\n", "ncclnet_plugin/lib", "HPC-X v2.24.1"),
        ("HPC-X v2.20\n", "ucx/lib", ""),
        ("something else\n", "nccl_rdma_sharp_plugin/lib", ""),
        (None, "nccl_rdma_sharp_plugin/lib", ""),
    ],
)
def test_the_version_of_hpcx_stands_beside_its_plugins(
    tmp_path: Path, first: str | None, folder: str, product: str
) -> None:
    plugin = tmp_path / "hpcx" / folder / "libnccl-net.so"
    plugin.parent.mkdir(parents=True)
    plugin.write_bytes(b"plugin")
    if first is not None:
        (tmp_path / "hpcx/VERSION").write_text(first)
    files = nccl_installed.plugin_files(Machine(), [str(plugin)])
    assert isinstance(files, list)
    assert value_or(files[0].product, "") == product


def test_packages_that_bring_a_libnccl(tmp_path: Path) -> None:
    for name in ("nvidia_nccl_cu11-2.20.5", "nvidia_nccl_cu12-2.27.3", "torch-2.8.0+cu128", "torchvision-0.23.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    metadata = tmp_path / "torch-2.8.0+cu128.dist-info/METADATA"
    metadata.write_text("Name: torch\nRequires-Dist: nvidia-nccl-cu12==2.27.3; platform_system == 'Linux'\n")
    torch = str(tmp_path / "torch")
    wheels = nccl_installed.wheels(Machine(), torch)
    assert isinstance(wheels, list)
    assert [(wheel.name, wheel.version) for wheel in wheels] == [
        ("nvidia-nccl-cu11", "2.20.5"), ("nvidia-nccl-cu12", "2.27.3"),
    ]  # fmt: skip
    assert nccl_installed.wanted(Machine(), torch) == "2.27.3"


NAMES = sorted({*POD, "/proc/self/limits", "/proc/cpuinfo", "/etc/systemd/logind.conf", "/proc/net/tcp6",
                "/proc/sys/net/ipv4/ip_local_port_range", "/sys/fs/cgroup/pids.max"})  # fmt: skip
WORDS = st.sampled_from(
    [b"", b"max", b"0 0", b"net:[x]", b"Seccomp:\t9\nUid:\nCapEff: q", b"36 35 - ", b"\xff\xfe\n"]
)


@settings(max_examples=60, deadline=None)
@given(files=st.dictionaries(st.sampled_from(NAMES), WORDS | st.binary(max_size=200), max_size=8))
def test_no_file_breaks_a_probe(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    machine = tree(tmp_path_factory.mktemp("any"), files)
    assert isinstance(container.probe(machine), Container)
    assert isinstance(storage.probe(machine), Storage)
    assert isinstance(system.probe(machine), System)


def test_a_working_directory_that_was_deleted_is_seen(tmp_path: Path) -> None:
    """The command stands in it, as a shell does whose directory a clean-up took away."""
    away = "import os, runpy, shutil, sys\nshutil.rmtree(os.getcwd())\nsys.argv[0] = 'ncclcheck'\n"
    start = tmp_path / "start.py"
    start.write_text(f"{away}runpy.run_module('ncclcheck', run_name='__main__')\n")
    gone = tmp_path / "run7"
    gone.mkdir()
    done = subprocess.run(
        [sys.executable, str(start), "env", "-o", "json"],
        cwd=gone, env=environment(), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    ran = Ran(done)
    assert ran.code == 1, ran.err
    (finding,) = next(verdict for verdict in ran.document.verdicts if verdict.code == "STO007").findings
    assert finding.what == f"the working directory {gone} was deleted"


def test_a_directory_whose_name_says_deleted_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "old (deleted)"
    named.mkdir()
    monkeypatch.chdir(named)
    assert storage.probe(Machine("/")).deleted == ""

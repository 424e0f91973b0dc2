"""Rules about containers, storage, limits and ports: each raised, not raised, and with its fact unread."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Container,
    Gpus,
    Host,
    Interface,
    Job,
    Library,
    Lock,
    Marks,
    Measurements,
    Mount,
    Namespace,
    Nccl,
    Node,
    NodeReach,
    Place,
    PortRange,
    Room,
    RuntimeSign,
    SharedMemory,
    Space,
    Stack,
    Storage,
    System,
    Unread,
    replace,
)
from ncclcheck.reports.judgement.findings import Finding
from tests.helpers.clusters import DENIED, LO, nic, node, states_of, verdict

NFS = Mount(point="/home", kind="nfs4", source="filer:/home", options=["rw"], network=True)
DISK = Mount(point="/", kind="ext4", source="/dev/sda1", options=["rw"])
NOEXEC = Mount(point="/tmp", kind="tmpfs", source="tmpfs", options=["rw", "noexec"])
GIB = 2**30
OK = Lock(outcome="ok")
TMP = Host(tmp=Space(size=GIB, free=GIB, path="/tmp"))
NO_TMP = Host(tmp=Unread("absent", "there is no /x"))


def boxed(
    name: str = "a", *cards: Interface, runtime: Any = "docker", net: bool | Unread = False, **facts: Any
) -> Node:
    """A container; facts of Container by their names."""
    signs = [RuntimeSign(name=runtime, source="/.dockerenv")] if runtime else []
    given = {"runtimes": signs, "namespaces": [Namespace(name="net", host=net)], **facts}
    return node(name, LO, *cards, container=Container(**given))


def bridged(last: int, **facts: Any) -> Node:
    return boxed(f"box{last}", nic("eth0", f"172.17.0.{last}/16", kind="veth"), **facts)


def on_one_machine(last: int) -> Node:
    return replace(bridged(last), host=Host(hostname=f"box{last}", boot_id="one"))


def working_box(**facts: Any) -> Node:
    return replace(boxed(**facts), gpus=Gpus(usable=1))


def gpu_box(version: str | Unread = "2.26.2", env: dict[str, str] | None = None, **facts: Any) -> Node:
    made = boxed("a", **{"capabilities": [], **facts})
    nccl = Nccl(loaded=Library(path="/x", origin="pip package", version=version))
    return node("a", env=env, nccl=nccl, gpus=Gpus(usable=2), container=made.container)


def on_machine(name: str, boot: str | Unread, env: dict[str, str] | None = None, gpus: int = 4) -> Node:
    return node(name, env=env, host=Host(hostname=name, boot_id=boot), gpus=Gpus(usable=gpus))


def shm(*, writable: bool) -> SharedMemory:
    return SharedMemory(mode="755", writable=writable)


CONTAINERS: list[tuple[str, str, list[Node], str]] = [
    ("CON001", "two bridges", [bridged(2), bridged(3)], "fail"),
    ("CON001", "namespace not seen", [bridged(2, net=DENIED), bridged(3, net=DENIED)], "fail"),
    ("CON001", "the machine's network", [bridged(2, net=True), bridged(3, net=True)], "ok"),
    (
        "CON001",
        "a machine's own bridge",
        [boxed(n, nic("docker0", "172.17.0.1/16", kind="bridge")) for n in "ab"],
        "ok",
    ),
    ("CON001", "one machine", [on_one_machine(2), on_one_machine(3)], "skipped"),
    (
        "CON001",
        "macvlan on the network itself",
        [boxed(n, nic("eth0", f"172.16.4.{i}/24", kind="macvlan")) for i, n in enumerate("ab", 2)],
        "ok",
    ),
    ("CON001", "pods", [bridged(2, runtime="kubernetes"), bridged(3, runtime="kubernetes")], "ok"),
    ("CON001", "an overlay", [boxed(n, nic("eth0", f"10.0.1.{i}/24")) for i, n in enumerate("ab", 2)], "ok"),
    ("CON001", "no container", [bridged(2, runtime=None), bridged(3, runtime=None)], "skipped"),
    ("CON001", "unread", [boxed("a", runtimes=DENIED), boxed("b", runtimes=DENIED)], "unknown"),
    ("CON002", "all", [boxed(gpu_files=["nvidia0", "nvidiactl", "nvidia-uvm"])], "ok"),
    ("CON002", "single device", [boxed(gpu_files=["nvidia0"])], "fail"),
    ("CON002", "CUDA makes them itself", [working_box(gpu_files=["nvidia0"])], "ok"),
    ("CON002", "no GPU", [boxed(gpu_files=["nvidia-caps"])], "skipped"),
    ("CON002", "unread", [boxed(gpu_files=DENIED)], "unknown"),
    ("CON003", "two pods", [on_machine("a", "m"), on_machine("b", "m")], "warn"),
    ("CON003", "two machines", [on_machine("a", "m"), on_machine("b", "n")], "ok"),
    ("CON003", "no GPUs", [on_machine("a", "m", gpus=0), on_machine("b", "m", gpus=0)], "ok"),
    ("CON003", "told", [on_machine(n, "m", {"NCCL_HOSTID": "m"}) for n in "ab"], "ok"),
    ("CON003", "unread", [on_machine("a", "m"), on_machine("b", "m"), on_machine("c", DENIED)], "warn"),
    ("CON003", "all unread", [on_machine("a", DENIED), on_machine("b", DENIED)], "unknown"),
    ("CON004", "confined", [gpu_box()], "warn"),
    ("CON004", "allowed", [gpu_box(capabilities=["SYS_NICE"])], "ok"),
    ("CON004", "left out", [gpu_box(env={"NCCL_CUMEM_HOST_ENABLE": "0"})], "ok"),
    ("CON004", "mended", [gpu_box("2.26.5")], "ok"),
    ("CON004", "no container", [gpu_box(runtime=None)], "ok"),
    ("CON004", "unread", [gpu_box(DENIED)], "unknown"),
    ("CON005", "istio", [boxed(meshes=["istio"])], "warn"),
    ("CON005", "none", [boxed(meshes=[])], "ok"),
    ("CON005", "unread", [boxed(meshes=DENIED)], "unknown"),
    ("CON006", "closed", [boxed(shm=shm(writable=False))], "fail"),
    ("CON006", "open", [boxed(shm=shm(writable=True))], "ok"),
    ("CON006", "unread", [boxed(shm=DENIED)], "unknown"),
]


def room(free: int = 64 * GIB, inodes: int = 0, inodes_free: int = 0, *, writable: bool = True) -> Room:
    return Room(path="/r", size=99 * GIB, free=free, inodes=inodes, inodes_free=inodes_free, writable=writable)


def stored(
    name: str = "a",
    place: Any = "working directory",
    mount: Mount | Unread = NFS,
    capacity: Room | Unread | None = None,
    locks: tuple[Lock | Unread, Lock | Unread] = (OK, OK),
) -> Node:
    places = [
        Place(name=place, path="/r", told_by="HOME", mount=mount, room=room() if capacity is None else capacity)
    ]
    return node(name, storage=Storage(places=places, flock=locks[0], fcntl=locks[1]))


def homeless(path: str) -> Node:
    """A cache of a user who may not write there; what exists of its path is /r, else /."""
    there = replace(room(writable=False), path="/r" if path.startswith("/r/") else "/")
    places = [Place(name="cache", path=path, told_by="HOME", mount=DISK, room=there)]
    return node("a", storage=Storage(places=places, flock=OK, fcntl=OK))


def deleted(path: str = "/home/kim/run7", name: str = "a") -> Node:
    here = [Place(name="working directory", path="/r", told_by="HOME", mount=NFS, room=room())]
    return node(name, storage=Storage(places=[] if path else here, flock=OK, fcntl=OK, deleted=path))


UNREAD_PLACES = node("a", storage=Storage(places=DENIED, flock=DENIED, fcntl=DENIED))


def temporary(inodes_free: int) -> Node:
    return replace(
        stored(place="temporary directory", capacity=room(inodes=300, inodes_free=inodes_free)), host=TMP
    )


STORAGE: list[tuple[str, str, list[Node], str]] = [
    ("STO001", "room", [stored()], "ok"),
    ("STO001", "deleted", [deleted()], "skipped"),
    ("STO007", "there", [deleted(""), deleted("", "b")], "ok"),
    ("STO007", "deleted", [deleted("", "a"), deleted("/home/kim/run7", "b")], "fail"),
    ("STO007", "in an older file", [stored()], "skipped"),
    ("STO001", "little", [stored(capacity=room(GIB // 2))], "warn"),
    ("STO001", "full", [stored(capacity=room(0))], "fail"),
    ("STO001", "few inodes", [stored(capacity=room(inodes=9999, inodes_free=500))], "warn"),
    ("STO001", "no inode", [stored(capacity=room(inodes=9999))], "fail"),
    ("STO001", "not writable", [stored(capacity=room(writable=False))], "note"),
    ("STO001", "silent server", [stored(capacity=Unread("timed_out", "4 s"))], "unknown"),
    ("STO001", "unread", [UNREAD_PLACES], "unknown"),
    ("STO002", "shared", [stored("a"), stored("b")], "ok"),
    ("STO002", "missing on one", [stored("a"), stored("b"), stored("c", mount=DISK)], "warn"),
    ("STO002", "draw", [stored("a"), stored("b", mount=DISK)], "warn"),
    ("STO002", "local", [stored("a", mount=DISK), stored("b", mount=DISK)], "note"),
    ("STO002", "one mount unread", [stored("a"), stored("b"), stored("c", mount=DENIED)], "unknown"),
    ("STO002", "unread", [UNREAD_PLACES, UNREAD_PLACES], "unknown"),
    ("STO003", "locks", [stored()], "ok"),
    ("STO003", "hangs", [stored(locks=(OK, Lock(outcome="hangs")))], "fail"),
    ("STO003", "unsupported", [stored(locks=(Lock(outcome="unsupported", detail="ENOSYS"), OK))], "warn"),
    ("STO003", "ignored", [stored(locks=(Lock(outcome="ignored"), OK))], "warn"),
    ("STO003", "unread", [stored(locks=(OK, DENIED))], "unknown"),
    ("STO003", "not tried", [stored(locks=(Unread("absent", "may not be written"), OK))], "skipped"),
    ("STO004", "writable", [stored(place="cache")], "ok"),
    ("STO004", "closed", [stored(place="model cache", capacity=room(writable=False))], "warn"),
    ("STO004", "full", [stored(place="cache", capacity=room(GIB // 64))], "warn"),
    ("STO004", "no inode", [stored(place="cache", capacity=room(inodes=9999))], "warn"),
    ("HST004", "no inode", [temporary(0)], "fail"),
    ("HST004", "some inodes", [temporary(9)], "ok"),
    ("STO004", "no home", [homeless("/nonexistent/.cache")], "note"),
    ("STO004", "no home in a container", [homeless("//.cache")], "note"),
    ("STO004", "a home that is read-only", [homeless("/r/.cache")], "warn"),
    ("STO004", "unread", [UNREAD_PLACES], "unknown"),
    ("STO004", "no file in TMPDIR", [stored(place="temporary directory", capacity=room(writable=False))], "warn"),
    ("STO004", "TMPDIR is not there", [replace(stored(place="temporary directory"), host=NO_TMP)], "warn"),
    ("STO005", "noexec", [stored(place="temporary directory", mount=NOEXEC)], "warn"),
    ("STO005", "exec", [stored(place="temporary directory", mount=DISK)], "ok"),
    ("STO005", "unread", [UNREAD_PLACES], "unknown"),
]


def node_of(system: System, env: dict[str, str] | None = None, version: str = "2.21.5", **facts: Any) -> Node:
    nccl = Nccl(loaded=Library(path="/x", origin="pip package", version=version))
    return node("a", env=env, system=system, nccl=nccl, **facts)


EIGHT = Gpus(usable=8)
PORTS = PortRange(first=32768, last=60999)
STUBS = "/usr/local/cuda/lib64/stubs:/usr/local/cuda/lib64"
PIDS = Unread("absent", "no limit")
LIMITS: list[tuple[str, str, list[Node], str]] = [
    ("HST010", "unlimited", [node_of(System(stack=-1))], "warn"),
    ("HST010", "limited", [node_of(System(stack=8 * 2**20))], "ok"),
    ("HST010", "newer", [node_of(System(stack=-1), version="2.28.3")], "ok"),
    ("HST010", "unread", [node_of(System(stack=DENIED))], "unknown"),
    ("HST011", "few", [node_of(System(uid=1000, processes=1024, tasks=PIDS), gpus=EIGHT)], "warn"),
    ("HST011", "root is not bound", [node_of(System(uid=0, processes=1024, tasks=PIDS), gpus=EIGHT)], "ok"),
    ("HST011", "control group", [node_of(System(uid=0, processes=-1, tasks=1024), gpus=EIGHT)], "warn"),
    ("HST011", "one rank", [node_of(System(uid=1000, processes=1024, tasks=PIDS))], "ok"),
    ("HST011", "told", [node_of(System(uid=1, processes=1024, tasks=PIDS), {"LOCAL_WORLD_SIZE": "4"})], "warn"),
    ("HST011", "unread", [node_of(System(uid=1000, processes=DENIED))], "unknown"),
    ("HST011", "too few to start", [node_of(System(uid=1000, processes=45, tasks=PIDS, tasks_used=40))], "fail"),
    ("HST011", "enough to start", [node_of(System(uid=1000, processes=45, tasks=PIDS, tasks_used=30))], "warn"),
    ("HST011", "group too small", [node_of(System(uid=0, processes=45, tasks=9))], "fail"),
    ("HST014", "unlimited", [node_of(System(address_space=-1), gpus=EIGHT)], "ok"),
    ("HST014", "torch does not fit", [node_of(System(address_space=600 * 2**20))], "fail"),
    ("HST014", "torch for CUDA does not fit",
     [node_of(System(address_space=2_560_000_000), stack=Stack(torch_libraries=3 * GIB))], "fail"),
    ("HST014", "torch fits", [node_of(System(address_space=2_560_000_000))], "warn"),
    ("HST014", "comfortable", [node_of(System(address_space=8 * GIB))], "ok"),
    ("HST014", "CUDA", [node_of(System(address_space=64 * GIB), gpus=EIGHT)], "warn"),
    ("HST014", "little data", [node_of(System(address_space=-1, data=200 * 2**20))], "warn"),
    ("HST014", "data enough", [node_of(System(address_space=-1, data=8 * GIB))], "ok"),
    ("HST014", "unread", [node_of(System(address_space=DENIED))], "unknown"),
    ("HST017", "unlimited", [node_of(System(cpu_seconds=-1))], "ok"),
    ("HST017", "an hour", [node_of(System(cpu_seconds=3600))], "warn"),
    ("HST017", "a week", [node_of(System(cpu_seconds=7 * 24 * 3600))], "note"),
    ("HST017", "unread", [node_of(System(cpu_seconds=DENIED))], "unknown"),
    ("HST015", "unlimited", [node_of(System(file_size=-1))], "ok"),
    ("HST015", "small", [node_of(System(file_size=GIB))], "warn"),
    ("HST015", "large", [node_of(System(file_size=100 * GIB))], "note"),
    ("NET016", "usual", [node_of(System(tcp_rmem=6291456, tcp_wmem=4194304))], "ok"),
    ("NET016", "tiny", [node_of(System(tcp_rmem=4608, tcp_wmem=4194304))], "warn"),
    ("NET016", "unread", [node_of(System(tcp_rmem=DENIED, tcp_wmem=4194304))], "unknown"),
    ("HST016", "usual", [node_of(System(ports=PortRange(first=32768, last=60999)))], "ok"),
    ("HST016", "few", [node_of(System(ports=PortRange(first=50000, last=50499)))], "warn"),
    ("HST016", "one", [node_of(System(ports=PortRange(first=50000, last=50000)))], "fail"),
    ("HST016", "one reserved", [node_of(System(ports=PortRange(first=32768, last=60999, reserved=1)))], "ok"),
    ("HST016", "all reserved", [node_of(System(ports=PortRange(first=32768, last=60999, reserved=28232)))],
     "fail"),
    ("HST016", "unread", [node_of(System(ports=DENIED))], "unknown"),
    ("HST015", "unread", [node_of(System(file_size=DENIED))], "unknown"),
    ("HST012", "removes", [node_of(System(uid=1000, remove_ipc=True))], "warn"),
    ("HST012", "keeps", [node_of(System(uid=1000, remove_ipc=False))], "ok"),
    ("HST012", "root", [node_of(System(uid=0, remove_ipc=True))], "skipped"),
    ("HST012", "not said", [node_of(System(uid=1000, remove_ipc=Unread("absent", "not said")))], "skipped"),
    ("HST012", "unread", [node_of(System(uid=1000, remove_ipc=DENIED))], "unknown"),
    ("HST013", "stub", [node_of(System(), {"LD_LIBRARY_PATH": STUBS})], "warn"),
    ("HST013", "driver", [node_of(System(), {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"})], "ok"),
    ("NET015", "given away", [node_of(System(ports=PORTS), {"MASTER_PORT": "45000"})], "warn"),
    ("NET015", "below", [node_of(System(ports=PORTS), {"MASTER_PORT": "29500"})], "ok"),
    ("NET015", "torchrun's", [node_of(System(ports=PORTS), {"MASTER_PORT": "45000", "TORCHELASTIC_RUN_ID": "7"})],
     "skipped"),
    ("NET015", "Ray Train's", [node_of(System(ports=PORTS), {"MASTER_PORT": "45000", "RANK": "0",
     "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"})], "skipped"),
    ("NET015", "unread", [node_of(System(ports=DENIED), {"MASTER_PORT": "45000"})], "unknown"),
]  # fmt: skip
CASES = [*CONTAINERS, *STORAGE, *LIMITS]


@pytest.mark.parametrize(("code", "case", "nodes", "state"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_rule(code: str, case: str, nodes: list[Node], state: str) -> None:
    judgement = verdict(code, *nodes)
    words = " / ".join(finding.what for finding in judgement.findings)
    assert judgement.state.value == state, f"{case}: {words}"
    assert "could not be judged" not in words


FE80 = nic("eth1", "fe80::1/64")


@pytest.mark.parametrize(
    ("second", "env", "state"),
    [
        ([FE80], {}, "warn"),
        ([nic("eth1", "10.2.0.2/24", "fe80::1/64")], {}, "ok"),
        ([FE80], {"NCCL_SOCKET_IFNAME": "=eth0"}, "ok"),
        ([FE80], {"NCCL_SOCKET_FAMILY": "AF_INET"}, "ok"),
    ],
)
def test_link_local(second: list[Interface], env: dict[str, str], state: str) -> None:
    nodes = [node(f"a{i}", LO, nic("eth0", f"10.1.0.{i}/24"), *second, env=env) for i in (1, 2)]
    assert verdict("NET014", *nodes).state.value == state


def test_link_local_of_interfaces_that_were_not_read() -> None:
    assert verdict("NET014", *[node(n, network=DENIED) for n in "ab"]).state.value == "unknown"


def test_variables_that_were_not_read() -> None:
    assert verdict("HST013", node("a", job=DENIED), job=Job(nodes_asked=1)).state.value == "unknown"


def test_the_odd_node_of_a_missing_mount_is_named() -> None:
    judgement = verdict("STO002", stored("a"), stored("b"), stored("c", mount=DISK))
    assert [(finding.where.node, finding.owner) for finding in judgement.findings] == [("c", "node")]
    assert "2 of 3 nodes have filer:/home (nfs4)" in judgement.findings[0].what


def marks(seen_by: dict[str, str | Unread], path: str = "/r") -> Measurements:
    """seen_by: node -> the letters of the nodes whose file it saw; all other files are missing."""
    made = [name for name, seen in seen_by.items() if isinstance(seen, str)]
    reach = []
    for name, seen in seen_by.items():
        files: Marks | Unread
        if isinstance(seen, Unread):
            files = seen
        else:
            missing = [other for other in made if other != name and other not in seen]
            files = Marks(path=path, written_s=0.001, seen=list(seen), missing=missing)
        reach.append(NodeReach(node=name, interface="eth0", address="10.1.0.1", mtu=1500, marks=files))
    return Measurements(reach=reach)


def on(mounts: dict[str, Mount | Unread], **facts: Any) -> list[Node]:
    return [replace(stored(name, mount=mount), **facts) for name, mount in mounts.items()]


POD = Container(runtimes=[RuntimeSign(name="kubernetes", source="/var/run/secrets/kubernetes.io")])
OTHER_NFS = replace(NFS, source="filer2:/home")
PRIVATE: dict[str, str | Unread] = {"a": "", "b": "", "c": ""}
ONE_OUT: dict[str, str | Unread] = {"a": "b", "b": "a", "c": ""}
NO_RIGHT = Marks(path="/r", written_s=DENIED)


@pytest.mark.parametrize(
    ("nodes", "seen_by", "state", "names"),
    [
        (on({"a": NFS, "b": NFS}), {"a": "b", "b": "a"}, "ok", {None}),
        (on({"a": NFS, "b": OTHER_NFS}), {"a": "b", "b": "a"}, "ok", {None}),  # two names of one server
        (on({"a": NFS, "b": NFS, "c": DISK}), ONE_OUT, "fail", {"c"}),
        (on({"a": NFS, "b": NFS, "c": OTHER_NFS}), ONE_OUT, "warn", {"c"}),
        (on({"a": NFS, "b": NFS, "c": DENIED}), ONE_OUT, "warn", {"c"}),
        (on({"a": DISK, "b": DISK, "c": DISK}), ONE_OUT, "warn", {"c"}),
        (on({"a": DISK, "b": NFS}), {"a": "", "b": ""}, "fail", {"a"}),
        (on({"a": DISK, "b": DISK, "c": DISK}), PRIVATE, "warn", {None}),
        (on({"a": DISK, "b": DISK, "c": DISK}, container=POD), PRIVATE, "note", {None}),
        (on({"a": NFS, "b": NFS, "c": DISK}, container=POD), PRIVATE, "warn", {None}),
        (on(dict.fromkeys("abcd", NFS)), {"a": "b", "b": "a", "c": "d", "d": "c"}, "warn", {None}),
        (on({"a": NFS, "b": NFS}), {"a": "b", "b": ""}, "note", {None, "b"}),
        (on({"a": NFS, "b": NFS, "c": NFS}), {"a": "b", "b": "a", "c": DENIED}, "unknown", {"c", None}),
        (on({"a": NFS, "b": NFS}), {"a": DENIED, "b": DENIED}, "unknown", {"a", "b"}),
        (on({"a": NFS, "b": NFS}), {}, "skipped", set()),
    ],
)
def test_one_directory(
    nodes: list[Node], seen_by: dict[str, str | Unread], state: str, names: set[str | None]
) -> None:
    judgement = verdict("STO006", *nodes, measurements=marks(seen_by))
    assert judgement.state.value == state, judgement
    assert {finding.where.node for finding in judgement.findings} == names


def test_a_directory_that_may_not_be_written_is_no_fault() -> None:
    reach = [replace(reach, marks=NO_RIGHT) for reach in marks(PRIVATE).reach]
    nodes = on({"a": NFS, "b": NFS, "c": DISK})
    judgement = verdict("STO006", *nodes, measurements=Measurements(reach=reach))
    assert states_of(judgement) == [("unknown", "a"), ("unknown", "b"), ("unknown", "c")]
    assert verdict("STO002", *nodes, measurements=Measurements(reach=reach)).state.value == "warn"


def test_who_may_not_write_still_sees_the_files_of_others() -> None:
    reach = marks({"a": "", "b": "a"}).reach
    reach[0] = replace(reach[0], marks=NO_RIGHT)
    judgement = verdict("STO006", *on({"a": NFS, "b": NFS}), measurements=Measurements(reach=reach))
    assert states_of(judgement) == [("ok", None)]


def _at(paths: dict[str, str], **facts: Any) -> list[Finding]:
    """Nodes of their own local disks, with these working directories."""
    reach = [replace(reach, marks=replace(reach.marks, path=paths[reach.node]))
             for reach in marks(dict.fromkeys(paths, "")).reach]  # fmt: skip
    nodes = on(dict.fromkeys(paths, DISK), **facts)
    return verdict("STO006", *nodes, measurements=Measurements(reach=reach)).findings


def test_containers_are_no_reason_where_the_paths_differ() -> None:
    (finding,) = _at({"a": "/home/kim/run7", "b": "/home/kim"}, container=POD)
    assert finding.state.value == "warn"
    assert finding.what == "the command was started in different directories: /home/kim/run7 on a; /home/kim on b"
    assert finding.remedies[0].commands == ["cd /home/kim/run7"]
    (same,) = _at({"a": "/workspace", "b": "/workspace"}, container=POD)
    assert (same.state.value, same.what.endswith("as part of its container")) == ("note", True)
    (bare,) = _at({"a": "/workspace", "b": "/workspace"})
    assert (bare.state.value, "container" in bare.what) == ("warn", False)


def test_a_deleted_directory_is_not_looked_for() -> None:
    gone = Unread("absent", "the working directory was deleted")
    reach = [replace(reach, marks=gone) for reach in marks({"a": ""}).reach]
    judgement = verdict("STO006", *on({"a": DISK, "b": DISK}), measurements=Measurements(reach=reach))
    assert (judgement.state.value, judgement.reason) == ("skipped", "its ground failed: STO007")


def test_who_may_not_write_is_told_so() -> None:
    refused = Unread("denied", "no file can be made in /r: Permission denied")
    reach = [replace(reach, marks=replace(NO_RIGHT, written_s=refused)) for reach in marks(PRIVATE).reach]
    judgement = verdict("STO006", *on({"a": NFS, "b": NFS, "c": NFS}), measurements=Measurements(reach=reach))
    assert judgement.findings[0].remedies[0].who == "you"
    assert "your user may write" in judgement.findings[0].remedies[0].text


def test_what_files_prove_is_not_said_twice() -> None:
    """Mounts are only judged where nodes did not look for each other's files."""
    nodes = on({"a": NFS, "b": NFS, "c": DISK})
    assert verdict("STO002", *nodes, measurements=marks(ONE_OUT)).state.value == "skipped"
    some: dict[str, str | Unread] = {"a": "b", "b": "a", "c": DENIED}
    assert verdict("STO002", *nodes, measurements=marks(some)).state.value == "warn"


def test_the_other_path_is_named() -> None:
    """ssh and srun start in / where the working directory does not exist."""
    measured = marks(ONE_OUT).reach
    home = [replace(reach, marks=replace(reach.marks, path="/home/kim/run7")) for reach in measured[:2]]
    root = replace(measured[2], marks=replace(measured[2].marks, path="/"))
    nodes = on({"a": NFS, "b": NFS, "c": DISK})
    judgement = verdict("STO006", *nodes, measurements=Measurements(reach=[*home, root]))
    assert "working directory / on a local file system" in judgement.findings[0].what
    assert "(/home/kim/run7 there)" in judgement.findings[0].what


def test_a_read_only_tmp_is_not_a_small_one_and_its_fix_names_another_folder() -> None:
    free = 100 * 2**20
    mount = Mount(point="/tmp", kind="tmpfs", source="tmpfs", options=["ro", "relatime"])
    there = replace(room(free, writable=False), path="/tmp")
    place = Place(name="temporary directory", path="/tmp", told_by="TMPDIR", mount=mount, room=there)
    storage = Storage(places=[place], flock=OK, fcntl=OK)
    machine = node("a", host=Host(tmp=Space(size=free, free=free, path="/tmp")), storage=storage)
    assert verdict("HST004", machine).state.value == "ok"
    (finding,) = verdict("STO004", machine).findings
    commands = [line for fix in finding.remedies for line in fix.commands]
    assert "is mounted read-only" in finding.what
    assert commands == ["mkdir -p $HOME/tmp && export TMPDIR=$HOME/tmp", "mount -o remount,rw /tmp"]


@pytest.mark.parametrize(
    ("mode", "says", "fix"),
    [
        ("1777", "is mounted read-only", "mount -o remount,rw /dev/shm"),
        ("0755", "(mode 0755)", "chmod 1777 /dev/shm"),
    ],
)
def test_what_forbids_writing_to_shared_memory(mode: str, says: str, fix: str) -> None:
    (finding,) = verdict("CON006", boxed(shm=replace(shm(writable=False), mode=mode))).findings
    assert says in finding.what
    assert fix in [line for remedy in finding.remedies for line in remedy.commands]

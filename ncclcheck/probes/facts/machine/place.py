"""Where a job runs: its container, its file systems, and what the kernel was told. Only data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread


class RuntimeSign(Struct, frozen=True, kw_only=True):
    """A container runtime, and what shows that it started this process."""

    name: Literal["docker", "podman", "containerd", "cri-o", "kubernetes", "enroot", "apptainer", "lxc", "nspawn"]
    source: str


class Namespace(Struct, frozen=True, kw_only=True):
    """One kind of namespace of this process. host: whether it is the machine's own one; how: what shows it."""

    name: Literal["net", "ipc", "pid", "user", "uts"]
    host: bool | Unread = NOT_RECORDED
    how: str = ""


class Mount(Struct, frozen=True, kw_only=True, tag="mount"):
    """A line of /proc/self/mountinfo. source: the device or, of a network file system, server:/path."""

    point: str
    kind: str
    source: str
    options: list[str]
    network: bool = False


class SharedMemory(Struct, frozen=True, kw_only=True, tag="shared_memory"):
    """Who may write to /dev/shm, as stat(2) has it: 1777 in octal; `writable` is access(2) of this process."""

    mode: str
    writable: bool


class Container(Struct, frozen=True, kw_only=True, tag="container"):
    """The container around this process, if there is one: `runtimes` is empty where nothing shows one.

    capabilities: effective ones by their names. seccomp: off, strict or filter. gpu_files, rdma_files: what stands
    in /dev and /dev/infiniband. meshes: service meshes whose proxy listens inside this network namespace.
    """

    runtimes: list[RuntimeSign] | Unread = NOT_RECORDED
    namespaces: list[Namespace] | Unread = NOT_RECORDED
    capabilities: list[str] | Unread = NOT_RECORDED
    seccomp: str | Unread = NOT_RECORDED
    no_new_privileges: bool | Unread = NOT_RECORDED
    gpu_files: list[str] | Unread = NOT_RECORDED
    rdma_files: list[str] | Unread = NOT_RECORDED
    shm_mount: Mount | Unread = NOT_RECORDED
    shm: SharedMemory | Unread = NOT_RECORDED
    meshes: list[str] | Unread = NOT_RECORDED


class Room(Struct, frozen=True, kw_only=True, tag="room"):
    """statvfs(3) and access(2) of a directory, or of the nearest one above that exists: there it would be made.

    inodes 0: the file system has no fixed number of them.
    """

    path: str
    size: int
    free: int
    inodes: int
    inodes_free: int
    writable: bool


class Place(Struct, frozen=True, kw_only=True):
    """A directory in which a job works. told_by: the variable that names it, or where the default comes from."""

    name: Literal["working directory", "temporary directory", "cache", "torch cache", "model cache", "CUDA cache"]
    path: str
    told_by: str
    mount: Mount | Unread = NOT_RECORDED
    room: Room | Unread = NOT_RECORDED


class Lock(Struct, frozen=True, kw_only=True, tag="lock"):
    """One kind of lock tried on a small file. ignored: two holders at once. hangs: no answer within its limit."""

    outcome: Literal["ok", "ignored", "unsupported", "hangs"]
    detail: str = ""


class Storage(Struct, frozen=True, kw_only=True, tag="storage"):
    """The directories of the job, and whether files in the working directory can be locked.

    deleted: the path of a working directory that was deleted since this process entered it; empty: it is there.
    """

    places: list[Place] | Unread = NOT_RECORDED
    flock: Lock | Unread = NOT_RECORDED
    fcntl: Lock | Unread = NOT_RECORDED
    deleted: str | Unread = NOT_RECORDED


class PortRange(Struct, frozen=True, kw_only=True, tag="port_range"):
    """The ports that the kernel gives to whoever does not ask for one, both ends included. Source: ip(7).

    reserved: how many of them it gives to nobody, for ip_local_reserved_ports holds them back.
    """

    first: int
    last: int
    reserved: int = 0


class System(Struct, frozen=True, kw_only=True, tag="system"):
    """What the kernel was told.

    stack, processes, address_space, data, file_size, cpu_seconds: soft limits (RLIMIT_STACK, NPROC, AS, DATA,
    FSIZE, CPU), -1 is unlimited.
    tasks: pids.max of the control group. tasks_used: processes and threads that this user has on the host, where
    their number is limited. tcp_rmem, tcp_wmem: the most bytes that a TCP socket may buffer, each way.
    somaxconn: how many connections may wait for a listener to accept them, whatever it asks for.
    remove_ipc: what logind.conf says, as it is written; absent where it says nothing. cpu: vendor and model.
    """

    uid: int | Unread = NOT_RECORDED
    stack: int | Unread = NOT_RECORDED
    processes: int | Unread = NOT_RECORDED
    address_space: int | Unread = NOT_RECORDED
    data: int | Unread = NOT_RECORDED
    file_size: int | Unread = NOT_RECORDED
    cpu_seconds: int | Unread = NOT_RECORDED
    tasks: int | Unread = NOT_RECORDED
    tasks_used: int | Unread = NOT_RECORDED
    ports: PortRange | Unread = NOT_RECORDED
    tcp_rmem: int | Unread = NOT_RECORDED
    tcp_wmem: int | Unread = NOT_RECORDED
    somaxconn: int | Unread = NOT_RECORDED
    remove_ipc: bool | Unread = NOT_RECORDED
    cpu: str | Unread = NOT_RECORDED

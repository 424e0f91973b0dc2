"""The container around this process: files, control groups, variables and namespaces.

Recorded names: `environment`, `shm_access`, a SharedMemory of /dev/shm, and `namespaces`, the targets of the links
in /proc/self/ns by their kind, and of /proc/1/ns/net as `first_net`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from ncclcheck.probes.facts import Container, Namespace, RuntimeSign, SharedMemory, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import mounts
from ncclcheck.probes.machine.host.host import status_of, within

Runtime = Literal["docker", "podman", "containerd", "cri-o", "kubernetes", "enroot", "apptainer", "lxc", "nspawn"]
Kind = Literal["net", "ipc", "pid", "user", "uts"]

_FILES: tuple[tuple[str, Runtime], ...] = (
    ("/.dockerenv", "docker"),
    ("/run/.containerenv", "podman"),
    ("/.singularity.d", "apptainer"),
    ("/var/run/secrets/kubernetes.io", "kubernetes"),
)
_VARIABLES: tuple[tuple[str, Runtime], ...] = (
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ("APPTAINER_CONTAINER", "apptainer"),
    ("SINGULARITY_CONTAINER", "apptainer"),
    ("ENROOT_ROOTFS", "enroot"),
)
_IN_CONTAINER_VARIABLE: dict[str, Runtime] = {"podman": "podman", "lxc": "lxc", "systemd-nspawn": "nspawn"}
_IN_CGROUP: tuple[tuple[str, Runtime], ...] = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("crio-", "cri-o"),
    ("docker", "docker"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
)
# The machine's own namespaces have fixed numbers; that of the network only since Linux 6.18. Source: linux/nsfs.h.
_OWN_OF_MACHINE = {"net": 4026531833, "ipc": 4026531839, "pid": 4026531836, "user": 4026531837, "uts": 4026531838}
_CAPABILITIES = {
    12: "NET_ADMIN", 13: "NET_RAW", 14: "IPC_LOCK", 19: "SYS_PTRACE", 21: "SYS_ADMIN", 23: "SYS_NICE",
    24: "SYS_RESOURCE", 38: "PERFMON",
}  # fmt: skip
_SECCOMP = {"0": "off", "1": "strict", "2": "filter"}
_MESHES = {"istio": (15001, 15006), "linkerd": (4140, 4143)}
_LISTENS = "0A"
_NO_LINK = Unread("recorded", "this recording does not hold it")


def probe(machine: Machine) -> Container:
    """Everything about the container, on a machine without one as well: namespaces may still be other ones."""
    env = machine.ask("environment", dict[str, str], lambda: dict(os.environ))
    runtimes = list(dict.fromkeys(_signs(machine, {} if isinstance(env, Unread) else env)))
    unread = env if isinstance(env, Unread) and not runtimes else None
    return Container(
        runtimes=unread or runtimes,
        namespaces=_namespaces(machine),
        capabilities=_capabilities(machine),
        seccomp=_seccomp(machine),
        no_new_privileges=_no_new_privileges(machine),
        gpu_files=_listed(machine, "/dev", "nvidia"),
        rdma_files=_listed(machine, "/dev/infiniband", ""),
        shm_mount=mounts.under(mounts.mounts(machine), "/dev/shm"),
        shm=machine.ask("shm_access", SharedMemory, lambda: within(5.0, "stat(/dev/shm)", lambda: _shm(machine))),
        meshes=_meshes(machine),
    )


def _signs(machine: Machine, env: Mapping[str, str]) -> Iterator[RuntimeSign]:
    yield from (RuntimeSign(name=name, source=path) for path, name in _FILES if machine.exists(path))
    yield from (RuntimeSign(name=name, source=variable) for variable, name in _VARIABLES if variable in env)
    if name := _IN_CONTAINER_VARIABLE.get(env.get("container", "")):
        yield RuntimeSign(name=name, source=f"container={env['container']}")
    root = mounts.under(mounts.mounts(machine), "/")
    if not isinstance(root, Unread) and "enroot" in f"{root.source} {root.options}":
        yield RuntimeSign(name="enroot", source="/proc/self/mountinfo")
    text = machine.read("/proc/self/cgroup")
    groups = "" if isinstance(text, Unread) else text
    if name := next((name for word, name in _IN_CGROUP if f"/{word}" in groups), None):
        yield RuntimeSign(name=name, source="/proc/self/cgroup")


def _namespaces(machine: Machine) -> list[Namespace] | Unread:
    kinds: tuple[Kind, ...] = get_args(Kind)
    links = machine.ask("namespaces", dict[str, str | Unread], lambda: _links(machine, kinds))
    return links if isinstance(links, Unread) else [_namespace(machine, links, kind) for kind in kinds]


def _links(machine: Machine, kinds: tuple[Kind, ...]) -> dict[str, str | Unread]:
    links = {str(kind): machine.link(f"/proc/self/ns/{kind}") for kind in kinds}
    return {**links, "first_net": machine.link("/proc/1/ns/net")}


def _namespace(machine: Machine, links: Mapping[str, str | Unread], kind: Kind) -> Namespace:
    """Whether ours is the machine's: by its fixed number, else by that of process 1, which few may read."""
    mine = _number(links.get(kind, _NO_LINK))
    if isinstance(mine, Unread):
        return Namespace(name=kind, host=mine)
    if mine == _OWN_OF_MACHINE[kind]:
        return Namespace(name=kind, host=True, how="its number is that of the machine's own one")
    if kind != "net":
        return Namespace(name=kind, host=False, how="its number is not that of the machine's own one")
    return _network(machine, links, mine)


def _network(machine: Machine, links: Mapping[str, str | Unread], mine: int) -> Namespace:
    first, pids = (_number(links.get(name, _NO_LINK)) for name in ("first_net", "pid"))
    if not isinstance(first, Unread) and pids == _OWN_OF_MACHINE["pid"]:
        how = "compared with that of process 1 of the machine"
        return Namespace(name="net", host=first == mine, how=how)
    names = machine.names("/sys/class/net")
    cards = [] if isinstance(names, Unread) else [name for name in names if name != "lo"]
    if cards and all(_ends_elsewhere(machine, name) for name in cards):
        how = f"the other ends of {', '.join(cards)} are in another namespace"
        return Namespace(name="net", host=False, how=how)
    if bridges := [name for name in cards if name.startswith(("docker", "cni", "virbr"))]:
        return Namespace(name="net", host=True, how=f"it has {bridges[0]}, which containers are attached to")
    return Namespace(name="net", host=Unread("denied", "the namespaces of process 1 may not be read by this user"))


def _ends_elsewhere(machine: Machine, name: str) -> bool:
    """A cable between namespaces: it has no device, and its peer's number is none of an interface here."""
    own, peer = (machine.number(f"/sys/class/net/{name}/{word}") for word in ("ifindex", "iflink"))
    here = not isinstance(own, Unread) and own == peer
    return not isinstance(peer, Unread) and not here and not machine.exists(f"/sys/class/net/{name}/device")


def _number(link: str | Unread) -> int | Unread:
    """`net:[4026531833]` as a number."""
    if isinstance(link, Unread):
        return link
    digits = link.rpartition("[")[2].rstrip("]")
    return (
        int(digits) if digits.isdecimal() and len(digits) < 20 else Unread("broken", f"no namespace: {link[:40]}")
    )


def _capabilities(machine: Machine) -> list[str] | Unread:
    mask = status_of(machine, "CapEff")
    if isinstance(mask, Unread):
        return mask
    try:
        bits = int(mask, 16)
    except ValueError:
        return Unread("broken", f"/proc/self/status holds CapEff {mask[:40]!r}")
    return [name for bit, name in _CAPABILITIES.items() if bits >> bit & 1]


def _seccomp(machine: Machine) -> str | Unread:
    mode = status_of(machine, "Seccomp")
    if isinstance(mode, Unread):
        return mode
    return _SECCOMP.get(mode) or Unread("broken", f"/proc/self/status holds Seccomp {mode[:40]!r}")


def _no_new_privileges(machine: Machine) -> bool | Unread:
    text = status_of(machine, "NoNewPrivs")
    return text if isinstance(text, Unread) else text == "1"


def _listed(machine: Machine, folder: str, start: str) -> list[str] | Unread:
    names = machine.names(folder)
    return names if isinstance(names, Unread) else [name for name in names if name.startswith(start)]


def _shm(machine: Machine) -> SharedMemory | Unread:
    path = machine.path("/dev/shm")
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return Unread("absent", "there is no /dev/shm")
    return SharedMemory(mode=f"{mode:o}", writable=os.access(path, os.W_OK | os.X_OK))


def _meshes(machine: Machine) -> list[str] | Unread:
    """Meshes all of whose ports are listened on in this network namespace."""
    texts = [machine.read(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    read = [text for text in texts if not isinstance(text, Unread)]
    if not read:
        return texts[0] if isinstance(texts[0], Unread) else []
    ports = {port for text in read for port in _listeners(text)}
    return [name for name, needed in _MESHES.items() if ports.issuperset(needed)]


def _listeners(text: str) -> Iterator[int]:
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) > 3 and words[3] == _LISTENS:
            port = words[1].rpartition(":")[2]
            if len(port) == 4 and all(digit in "0123456789ABCDEF" for digit in port):
                yield int(port, 16)

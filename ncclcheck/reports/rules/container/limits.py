"""Containers: a network that ends at the machine, device files that were left out, limits of the sandbox."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.subjects.nccl.choice import Chosen
from ncclcheck.reports.subjects.nccl.settings import settings_of
from ncclcheck.reports.subjects.nodes.containers import runtimes, told_by
from ncclcheck.reports.text.words.fold import fold_names

_BRIDGES = (ipaddress.ip_network("172.16.0.0/12"), ipaddress.ip_network("10.88.0.0/16"))
_ON_EVERY_MACHINE = ipaddress.ip_network("172.17.0.0/16")
_LOCAL_RUNTIMES = {"docker", "podman", "containerd"}
_NOT_ITS_END = ("bridge", "macvlan", "physical", "ipoib")
_NEEDED = ("nvidiactl", "nvidia-uvm")


@rule(
    "CON001",
    "containers on different machines share a network",
    worst=State.FAIL,
    needs=("container.runtimes", "container.namespaces", "network.interfaces"),
    at_least=2,
    between_machines=True,
)
def common_network(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    A container with a network namespace of its own whose address is one of Docker's or Podman's bridge.

    ## Why it matters
    That bridge ends at its machine. Another machine has a bridge with the same addresses, so that all of them
    seem to share a subnet: 172.17.0.2 and 172.17.0.3 look like neighbours, and connections go to the wrong
    container, are refused, or hang.

    ## Seen as
    hangs, does not start, dies

    ## How we know
    The address that the job would use, in 172.16.0.0/12 or 10.88.0.0/16, in a container of docker, podman or
    containerd outside of Kubernetes, whose network namespace is not the machine's. Where that cannot be seen,
    only 172.17.0.0/16 counts. An overlay network uses other addresses. Containers that are all on one machine
    (one boot id) reach each other by its bridge, and macvlan and ipvlan interfaces are on the network itself.

    ## Fix
    - **you** `docker run --network host --ipc host ...`; in Kubernetes `hostNetwork: true` with `dnsPolicy:
      ClusterFirstWithHostNet`, or the cluster's own pod network.
    - **admin** an overlay network over all machines, or macvlan.

    ## Source
    NVIDIA/nccl#697; horovod/horovod#310; Docker documentation, networking, bridge and host driver; namespaces(7).
    """
    inside = [node for node in cluster.nodes if runtimes(node)]
    if not inside:
        raise NothingToJudge("no node is a container")
    boots = {value_or(at(node, "host.boot_id"), "") for node in cluster.nodes}
    if len(boots) == 1 and boots != {""}:
        raise NothingToJudge("all containers are on one machine")
    for node in inside:
        chosen = lan.choice_of_job(cluster, node).bootstrap
        if chosen and _ends_at_machine(node, chosen):
            yield fail(
                Where(node=node.name, device=chosen.name),
                f"this container's address {chosen.address} exists on its own machine only",
                why="Other machines have the same bridge with the same addresses, and no route to this one.",
                owner="job",
                evidence=[seen("container", told_by(node)), seen("network namespace", _namespace(node, "net"))],
                fix=[
                    you(
                        "Give the container the network of its machine.",
                        "docker run --network host --ipc host ...",
                    ),
                    admin(
                        "Or make an overlay network over all machines.", "docker network create -d overlay NAME"
                    ),
                ],
            )


def _ends_at_machine(node: Node, chosen: Chosen) -> bool:
    """The container's end of a bridge, a veth; the bridge itself is on the machine (NET002)."""
    names = runtimes(node)
    parsed = ipaddress.ip_address(chosen.address.partition("%")[0])
    other = any(
        interface.name == chosen.name and interface.kind in _NOT_ITS_END for interface in lan.interfaces(node)
    )
    if other or "kubernetes" in names or not _LOCAL_RUNTIMES.intersection(names):
        return False
    own = next(
        (namespace.host for namespace in known(at(node, "container.namespaces")) if namespace.name == "net"), None
    )
    if own is None or isinstance(own, Unread):
        return parsed in _ON_EVERY_MACHINE
    return not own and any(parsed in subnet for subnet in _BRIDGES)


def _namespace(node: Node, kind: str) -> str:
    for namespace in value_or(at(node, "container.namespaces"), []):
        if namespace.name == kind and isinstance(namespace.host, Unread):
            return f"unknown: {namespace.host.why}"
        if namespace.name == kind:
            return f"{'the machine' + chr(39) + 's' if namespace.host else 'its own'}: {namespace.how}"
    return "unknown"


@rule("CON002", "the NVIDIA control devices are present in the container", worst=State.FAIL,
      needs=("container.gpu_files",))  # fmt: skip
def control_files(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    /dev/nvidiactl and /dev/nvidia-uvm, on nodes that have /dev/nvidia0 and other device files.

    ## Why it matters
    A container that was given single devices lacks them, and a virtual machine may not have loaded nvidia-uvm.
    CUDA then ends with `initialization error` or `no CUDA-capable device`, and NCCL 2.23 and later cannot make its
    memory pools.

    ## Seen as
    does not start, dies

    ## How we know
    The names in /dev. Where CUDA has found GPUs all the same nothing is reported: on a desktop libcuda makes
    the files itself, by nvidia-modprobe, at its first call.

    ## Fix
    - **you** `docker run --gpus all` rather than `--device /dev/nvidia0`; in a pod `nvidia.com/gpu` in the limits.
    - **admin** `modprobe nvidia-uvm && nvidia-modprobe -u -c=0` on the machine.

    ## Source
    NCCL user guide, troubleshooting, virtual machines; NVIDIA Container Toolkit documentation.
    """
    listed = [(node, known(at(node, "container.gpu_files"))) for node in cluster.nodes]
    with_gpus = [
        (node, names) for node, names in listed if any(re.fullmatch(r"nvidia\d+", name) for name in names)
    ]
    if not with_gpus:
        raise NothingToJudge("no GPU's device file on any node")
    for node, names in with_gpus:
        works = value_or(at(node, "gpus.usable"), 0) > 0
        if not works and (missing := [f"/dev/{name}" for name in _NEEDED if name not in names]):
            yield fail(
                Where(node=node.name),
                f"the GPUs' device files are here, {' and '.join(missing)} not",
                why="CUDA cannot be initialised without them.",
                owner="job" if runtimes(node) else "node",
                evidence=[seen("/dev", ", ".join(names)), seen("container", told_by(node))],
                fix=[
                    you("Let the toolkit hand in all of them.", "docker run --gpus all ..."),
                    admin("Load the module and make its files.", "modprobe nvidia-uvm", "nvidia-modprobe -u -c=0"),
                ],
            )


@rule(
    "CON003",
    "ranks of one machine share a container",
    worst=State.WARN,
    needs=("host.boot_id", "host.hostname", "gpus.usable"),
    at_least=2,
    between_machines=True,
)
def split_machine(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Two nodes of the job with GPUs that are containers on one machine.

    ## Why it matters
    NCCL knows neighbours by host name and boot id. Containers with names of their own count as different
    machines: their GPUs talk over the network, mostly plain TCP inside one box, instead of NVLink, and the log
    says more nodes than there are.

    ## Seen as
    slow

    ## How we know
    The same /proc/sys/kernel/random/boot_id under different host names, and usable GPUs on both. (With the same
    name as well it is NET010.)

    ## Fix
    - **you** one container a machine with all its GPUs; or the same NCCL_HOSTID for all containers of a machine,
      with `--ipc host --pid host` and all GPUs visible in each.

    ## Source
    NVIDIA/nccl#324, NVIDIA/nccl#248; NCCL user guide, NCCL_HOSTID.
    """
    machines: dict[str, list[Node]] = {}
    for node in cluster.nodes:
        if known(at(node, "gpus.usable")) and "NCCL_HOSTID" not in settings_of(node).all:
            machines.setdefault(known(at(node, "host.boot_id")), []).append(node)
    for boot, nodes in machines.items():
        names = {known(at(node, "host.hostname")) for node in nodes}
        if len(nodes) < 2 or len(names) < len(nodes):
            continue
        listed = fold_names(node.name for node in nodes)
        yield warn(
            Where(node=nodes[0].name, peer=nodes[1].name),
            f"{listed} are containers on one machine",
            why="NCCL takes them for different machines: their GPUs do not use NVLink with each other.",
            owner="job",
            evidence=[seen("/proc/sys/kernel/random/boot_id", f"{boot} on {listed}")],
            fix=[you("Start one container a machine, with all its GPUs.", "docker run --gpus all --ipc host ...")],
        )

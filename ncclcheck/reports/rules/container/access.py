"""What the sandbox of a container takes away: capabilities, shared memory, a direct way to the peers."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, at, known
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl.settings import settings_of
from ncclcheck.reports.subjects.nodes.containers import runtimes, told_by

_CUMEM_HOST_FAULT = ((2, 24, 0), (2, 26, 5))


@rule(
    "CON004",
    "NCCL can bind host memory to a NUMA node, or does not try",
    worst=State.WARN,
    needs=("nccl.loaded.version", "container.runtimes", "container.capabilities", "gpus.usable"),
)
def host_memory(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL 2.24 to 2.26.4 in a container without the capability SYS_NICE.

    ## Why it matters
    These versions place memory of the host on a NUMA node (cuMem host allocations). Docker's sandbox forbids the
    system calls for it without SYS_NICE, and instead of falling back they end with `Cuda failure 'out of memory'`
    or `invalid device ordinal` while there is plenty of memory. Where it fails on some ranks only, attaching to
    shared memory fails. torch 2.7 brought NCCL 2.26.

    ## Seen as
    out of memory, dies

    ## How we know
    The version that torch would load, signs of a container, CapEff, and NCCL_CUMEM_HOST_ENABLE.

    ## Fix
    - **you** `export NCCL_CUMEM_HOST_ENABLE=0` on all ranks, or `docker run --cap-add SYS_NICE` (in a pod
      `securityContext.capabilities.add: [SYS_NICE]`), or NCCL 2.26.5 and later.

    ## Source
    pytorch/pytorch#152302; NVIDIA/nccl#2059, NVIDIA/nccl#2190 (2.24 to 2.26.4).
    """
    for node in cluster.nodes:
        settings, (low, high) = settings_of(node), _CUMEM_HOST_FAULT
        touched = settings.version is not None and low <= settings.version < high
        confined = bool(runtimes(node)) and "SYS_NICE" not in known(at(node, "container.capabilities"))
        if not touched or not confined or not known(at(node, "gpus.usable")):
            continue
        if settings.number("NCCL_CUMEM_HOST_ENABLE") != 0:
            yield warn(
                Where(node=node.name),
                f"NCCL {known(at(node, 'nccl.loaded.version'))} in a container without SYS_NICE",
                why="It may end with 'out of memory' in init, with plenty of memory left.",
                owner="job",
                evidence=[seen("container", told_by(node)), seen("CapEff", "no SYS_NICE")],
                fix=[
                    you("Leave that kind of memory out on all ranks.", "export NCCL_CUMEM_HOST_ENABLE=0"),
                    you("Or allow it.", "docker run --cap-add SYS_NICE ..."),
                ],
            )


@rule("CON005", "no service mesh intercepts traffic between ranks", worst=State.WARN, needs=("container.meshes",))
def service_mesh(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The proxy of Istio or Linkerd inside the pod.

    ## Why it matters
    It takes every TCP connection of the pod and speaks TLS or HTTP with its peers. torch's store connects to it
    and then waits for ever in init_process_group, or the connection is closed after zero bytes, because the
    mesh knows nothing of the ports that gloo and NCCL choose.

    ## Seen as
    hangs

    ## How we know
    Listeners on 15001 and 15006 (Istio), or 4140 and 4143 (Linkerd), in the pod's network namespace
    (/proc/net/tcp).

    ## Fix
    - **you** the label and annotation `sidecar.istio.io/inject: "false"` (`linkerd.io/inject: disabled`) in the
      pod template of the job.
    - **admin** leave the namespace of training jobs out of the mesh.

    ## Source
    kubeflow/trainer#1636, kubeflow/trainer#2794; pytorch/pytorch#81704; Istio documentation, ports used by Istio.
    """
    for node in cluster.nodes:
        if meshes := known(at(node, "container.meshes")):
            yield warn(
                Where(node=node.name),
                f"the proxy of {' and '.join(meshes)} takes the connections of this pod",
                why="The ranks' connections end in the proxy: init_process_group hangs or is cut off.",
                owner="job",
                evidence=[seen("/proc/net/tcp", f"ports of {', '.join(meshes)} are listened on")],
                fix=[
                    you("Keep it out of the job's pods (metadata.labels of the pod template).",
                        'sidecar.istio.io/inject: "false"'),
                    admin("Or out of the namespace.",
                          "kubectl label --overwrite namespace NAME istio-injection=disabled"),
                ],
            )  # fmt: skip


@rule("CON006", "/dev/shm is writable", worst=State.FAIL, needs=("container.shm",))
def shared_memory_access(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the job's user may create files in /dev/shm.

    ## Why it matters
    NCCL opens its shared memory there, and so do data loader workers. In a container whose /dev/shm was mounted
    read-only, or with another mode than 1777, init ends with `Call to shm_open failed : Permission denied`.

    ## Seen as
    does not start, dies

    ## How we know
    access(2) of /dev/shm by the process that the launcher started.

    ## Fix
    - **you** start the container with `--ipc host` or `--shm-size`; in a pod an emptyDir with `medium: Memory` and
      a `securityContext.fsGroup` of the user.
    - **admin** `chmod 1777 /dev/shm`; where it is mounted read-only `mount -o remount,rw /dev/shm`.

    ## Source
    NVIDIA/nccl#328; shm_overview(7).
    """
    for node in cluster.nodes:
        shm = known(at(node, "container.shm"))
        if not shm.writable:
            # Everybody may write there by its mode, so that the mount itself is what forbids it.
            by_mount = shm.mode.endswith(("7", "3", "2", "6"))
            yield fail(
                Where(node=node.name),
                "/dev/shm is mounted read-only"
                if by_mount
                else f"this user may not write to /dev/shm (mode {shm.mode})",
                why="NCCL and data loader workers make their shared memory there.",
                owner="job" if runtimes(node) else "node",
                evidence=[seen("access(/dev/shm)", f"not writable, mode {shm.mode}")],
                fix=[
                    you("Give the container a /dev/shm of its own.", "docker run --shm-size=16g ..."),
                    admin("Make the mount writable; undo: ro.", "mount -o remount,rw /dev/shm")
                    if by_mount
                    else admin("Give it its usual mode.", "chmod 1777 /dev/shm"),
                ],
            )

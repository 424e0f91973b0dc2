"""Agreement of the machines: kernel, image, cores, memory, limits. The odd one out by majority."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ncclcheck.probes.facts import Cluster, Limits, Node, at, known
from ncclcheck.reports.judgement.findings import Finding, State, admin, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements
from ncclcheck.reports.subjects.nodes.agree.alike import LEAVE_OUT, alike, fact, same


@rule(
    "VER006",
    "the kernel is the same on all nodes",
    worst=State.WARN,
    needs=("host.kernel",),
    at_least=2,
    between_machines=True,
)
def kernel(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The version of the Linux kernel on each node.

    ## Why it matters
    DMA-BUF (GPUDirect without nvidia-peermem) needs 5.12, drivers are built for one kernel, and defaults of TCP
    and of huge pages change. A node that was restarted into another kernel after an update is slower or lacks
    GPUDirect, while its software looks the same.

    ## Seen as
    slow

    ## How we know
    /proc/sys/kernel/osrelease on each node; the odd one out by majority.

    ## Fix
    - **admin** boot the kernel that the others run, or update them all.
    - **you** leave the node out until then.

    ## Source
    NCCL user guide, troubleshooting, GPUDirect RDMA (DMA-BUF); proc_sys_kernel(5); pytorch/pytorch#108212.
    """
    fix = [admin("Boot the kernel that the others run.", "uname -r", "grubby --info=ALL"), LEAVE_OUT]
    why = "Another kernel brings other drivers and other defaults; GPUDirect may be missing there."
    yield from same(cluster, "kernel", "osrelease", fact("host.kernel"), why=why, fix=fix)


@rule(
    "VER007",
    "the OS image is the same on all nodes",
    worst=State.WARN,
    needs=("host.system",),
    at_least=2,
    between_machines=True,
)
def image(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Name and version of the distribution that the job sees: in a container that of the image.

    ## Why it matters
    Another image is another glibc, another libibverbs and another libnccl outside of Python. `latest` pulled on
    different days is enough, and so is a node that was installed before the others.

    ## How we know
    PRETTY_NAME of /etc/os-release on each node; the odd one out by majority.

    ## Fix
    - **you** name the image by its digest: `image@sha256:...`.
    - **admin** install the node anew.

    ## Source
    os-release(5); Docker documentation, pull an image by digest; pytorch/pytorch#108212.
    """
    fix = [you("Name the image by its digest.", "docker image inspect --format '{{.RepoDigests}}' IMAGE"),
           admin("Install the node as the others are.")]  # fmt: skip
    why = "Another image brings other system libraries, libibverbs and libnccl among them."
    yield from same(cluster, "operating system", "os-release", fact("host.system"), why=why, fix=fix, owner="site")


@rule(
    "VER010",
    "cores and memory are the same on all nodes",
    worst=State.WARN,
    needs=("host.cores", "host.memory"),
    at_least=2,
    between_machines=True,
)
def hardware(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The number of cores that are online, and the memory of each machine.

    ## Why it matters
    A memory module that failed its training at boot takes bandwidth with it, cores that were taken offline or
    another setting of hyper-threading slow the data loaders: the whole job goes at the pace of that node.

    ## Seen as
    slow

    ## How we know
    /sys/devices/system/cpu/online and MemTotal of /proc/meminfo. Sizes of memory within 5 % are the same.

    ## Fix
    - **admin** `dmidecode -t memory` and the BMC's log; compare the settings of the BIOS.
    - **you** leave the node out until then.

    ## Source
    proc_meminfo(5), dmidecode(8); NCCL user guide, troubleshooting, CPU settings.
    """
    look = [admin("Look for a module or a setting that is missing.", "dmidecode -t memory", "lscpu"), LEAVE_OUT]
    why = "The job goes at the pace of its slowest node."
    memory = alike({node.name: known(known(node.host).memory) for node in cluster.nodes})
    yield from same(cluster, "the number of cores", "cpu/online", fact("host.cores"), why=why, fix=look)
    yield from disagreements(memory, "memory", "/proc/meminfo", level=warn, why=why, owner="node", fix=look)


@rule(
    "VER011",
    "resource limits are the same on all nodes",
    worst=State.WARN,
    needs=("host.memlock", "host.nofile", "host.shm"),
    at_least=2,
    ground=("HST001", "HST003"),
    between_machines=True,
)
def limits(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Locked memory, open files and the size of /dev/shm, as the job's processes have them.

    ## Why it matters
    A daemon that was restarted by hand on one node hands its own limits to the jobs there. The job dies on that
    node only, and only where it reaches the limit; on every other node the same script works.

    ## Seen as
    dies

    ## How we know
    /proc/self/limits of the process that the launcher started, and statvfs of /dev/shm (within 5 %). A node that
    has too little of one (HST001, HST003) is left out.

    ## Fix
    - **admin** restart the job system's daemon through systemd; limits in its unit, not in a shell.
    - **you** leave the node out until then.

    ## Source
    NVIDIA/nccl-tests#206; NCCL user guide, troubleshooting; getrlimit(2), systemd.exec(5).
    """
    fix = [
        admin("Start the daemon through systemd, with its limits there.", "systemctl restart slurmd"),
        LEAVE_OUT,
    ]
    why = "The job dies on that node only, where it reaches the limit."
    shm = {node.name: known(known(node.host).shm).size for node in cluster.nodes}
    for name, path in (("locked memory", "host.memlock"), ("open files", "host.nofile")):
        yield from same(cluster, f"the limit of {name}", "/proc/self/limits", _limit(path), why=why, fix=fix)
    yield from disagreements(
        alike(shm), "the size of /dev/shm", "statvfs(/dev/shm)", level=warn, why=why, owner="node", fix=fix
    )


def _limit(path: str) -> Callable[[Node], str]:
    def read(node: Node) -> str:
        limit: Limits = known(at(node, path))
        return "unlimited" if limit.soft == -1 else str(limit.soft)

    return read

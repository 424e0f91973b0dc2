"""Limits and settings of the host that end a job in init, or in the middle of the night."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, PortRange, at, known, value_or, variables
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, fail, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl.variables import nccl_version
from ncclcheck.reports.subjects.nodes.containers import runtimes
from ncclcheck.reports.subjects.nodes.planned import local_ranks
from ncclcheck.reports.text.words.fold import size

_SETS_ITS_OWN_STACK = (2, 28, 0)  # the first NCCL that sets the stack size of its threads
_FIRST_USER = 1000  # the first uid that is not a system account (login.defs)
_GIB = 2**30  # bytes
# Measured with torch 2.13 for CPUs, one node: 20 tasks with one rank, 27 to 31 with two, 9 of them our own.
_TORCHRUN_TASKS, _RANK_TASKS = 4, 6
_TORCH_LIBRARIES = 440 * 2**20  # bytes; torch 2.13 for CPUs
_BESIDE_LIBRARIES = 400 * 2**20  # bytes that a rank of gloo maps beside them
_COMFORTABLE = 4 * _GIB
# Ports. Measured with torchrun of torch 2.13 and gloo on a host of its own: one rank does not start with 3 and
# does with 4. A rank of NCCL over sockets listens once for each of up to 32 channels and both neighbours: 64, on a
# node of 8 ranks 512, and a job that follows at once finds the ports of the last one in TIME_WAIT.
_LEAST_PORTS = 4
_MANY_PORTS = 1024.0  # ports below which HST016 warns; chosen
_HOUR = 3600  # seconds
# Hours of CPU time; reasoned, not measured: 16 busy threads use up a day of it in 90 minutes.
_CPU_HOURS = 24.0


@rule(
    "HST010",
    "the stack size is limited, or NCCL sets its own",
    worst=State.WARN,
    needs=("system.stack", "nccl.loaded.version"),
)
def stack(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    `ulimit -s unlimited` with NCCL before 2.28.

    ## Why it matters
    glibc gives threads of a process with an unlimited stack only 2 MiB. NCCL's threads need more at scale and
    crash in init with a segmentation fault that no message explains. Scripts for Fortran programs, and some job
    systems, set it.

    ## Seen as
    does not start, dies

    ## How we know
    "Max stack size" in /proc/self/limits, which the ranks inherit. NCCL 2.28 and later chooses its own size.

    ## Fix
    - **you** `ulimit -s 8192` in the job script, or a newer NCCL.
    - **admin** no `stack unlimited` in limits.conf and in slurmd's unit.

    ## Source
    NCCL user guide, troubleshooting, runtime issues (before 2.28); pthread_create(3), getrlimit(2).
    """
    for node in cluster.nodes:
        version = nccl_version(node)
        if known(at(node, "system.stack")) == -1 and version is not None and version < _SETS_ITS_OWN_STACK:
            yield warn(
                Where(node=node.name),
                f"the stack is unlimited, and NCCL {known(at(node, 'nccl.loaded.version'))} is loaded",
                why="Threads then get 2 MiB only, and NCCL can crash in init without a message.",
                owner="job",
                evidence=[seen("/proc/self/limits", "Max stack size unlimited")],
                fix=[you("Limit it in the job script.", "ulimit -s 8192")],
            )


@rule("HST011", "the process and thread limit is high enough", worst=State.FAIL,
      needs=("system.processes", "system.uid"), gates_job="where a finding says so")  # fmt: skip
def processes(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The limit of the user's processes (`ulimit -u`) and pids.max of the control group, against the ranks of a node.

    ## Why it matters
    A rank has a hundred threads and more: CUDA, NCCL's proxies, OpenMP, the loader's workers with threads of
    their own. At the limit starting one fails: `pthread_create failed: Resource temporarily unavailable` or
    `can't start new thread`, on the node with the most of the user's other jobs.

    ## Seen as
    dies

    ## How we know
    /proc/self/limits (which does not bind root) and pids.max. Less than `HST011.per_rank` (512) a rank is a
    warning; ranks from LOCAL_WORLD_SIZE, else from the plan, else one a usable GPU. FAIL, and no job is started:
    less than torchrun and the ranks take on CPUs alone (4, and 6 a rank), beside what this user has running.

    ## Fix
    - **you** `ulimit -u $(ulimit -Hu)`; `docker run --pids-limit=-1`; OMP_NUM_THREADS and fewer loader workers.
    - **admin** `* - nproc 65536` in /etc/security/limits.d; the kubelet's `podPidsLimit`; slurmd's TasksMax.

    ## Source
    vllm-project/vllm#13354; MIC-DKFZ/nnUNet#1343; getrlimit(2), pthread_create(3), cgroups(7).
    """
    each = cluster.policy.thresholds.get("HST011.per_rank", 512.0)
    for node in cluster.nodes:
        ranks = local_ranks(cluster, node)
        for source, limit in _process_limits(node).items():
            used = value_or(at(node, "system.tasks_used"), 0) if source == "ulimit -u" else 0
            if limit - used < _TORCHRUN_TASKS + _RANK_TASKS * ranks:
                yield _too_few(node, source, limit, used, ranks)
            elif limit < each * ranks:
                yield warn(
                    Where(node=node.name),
                    f"{limit} processes and threads for {_counted(ranks)}",
                    why="At the limit no thread can be started, and the rank that needs one dies.",
                    owner="job",
                    evidence=[seen(source, limit)],
                    fix=_raise_tasks(),
                )


def _too_few(node: Node, source: str, limit: int, used: int, ranks: int) -> Finding:
    user = f"user {value_or(at(node, 'system.uid'), 0)}"
    taken = f", of which {user} has {used} running" if used else ""
    return fail(
        Where(node=node.name),
        f"{limit} processes and threads are allowed{taken}: too few to start {_counted(ranks)}",
        why="torchrun or a rank cannot start a thread there: it dies or hangs, and all other nodes wait.",
        owner="job",
        evidence=[
            seen(source, limit),
            seen(f"processes and threads of {user}", used if used else "not counted"),
            seen("what the job takes at least", f"{_TORCHRUN_TASKS} of torchrun, {_RANK_TASKS} of each rank"),
        ],
        fix=_raise_tasks(),
        blocks_job=True,
    )


def _counted(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def _raise_tasks() -> list[Remedy]:
    return [
        you("Raise it as far as it may be raised.", "ulimit -u $(ulimit -Hu)", "docker run --pids-limit=-1 ..."),
        admin("Raise the limit.", "echo '* - nproc 65536' > /etc/security/limits.d/90-nproc.conf"),
    ]


def _process_limits(node: Node) -> dict[str, int]:
    """The limits that bind this user; root is not bound by its own."""
    limits = {"pids.max": value_or(at(node, "system.tasks"), -1)}
    if known(at(node, "system.uid")) != 0:
        limits["ulimit -u"] = known(at(node, "system.processes"))
    return {source: limit for source, limit in limits.items() if limit != -1}


@rule("HST014", "the limit of memory mappings is high enough for torch", worst=State.FAIL,
      needs=("system.address_space",), gates_job="where a finding says so")  # fmt: skip
def address_space(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    A process's limits of address space (`ulimit -v`, RLIMIT_AS) and of data (`ulimit -d`, RLIMIT_DATA).

    ## Why it matters
    Torch maps its libraries whole, and each thread reserves a stack and an arena of malloc. At the limit `import
    torch` ends in `failed to map segment from shared object`, or a rank in `Cannot allocate memory` while most of
    the memory is free. CUDA reserves addresses for the memory of the host and of all GPUs: with a limit
    it reports that it is out of memory. The limit comes from job systems that turn a request for memory into it.

    ## Seen as
    does not start, out of memory, dies

    ## How we know
    "Max address space" in /proc/self/limits. FAIL, and no job is started: less than torch's libraries and 400 MiB
    (measured with torch 2.13 for CPUs, whose libraries have 440 MiB: `import torch` maps 590 MiB, a rank of gloo
    with one all_reduce 820 MiB). warn: less than 4 GiB for ranks on CPUs (a rank of `bench` maps 1.3 GiB, and
    a model comes on top), any limit where GPUs are used. Data ("Max data size") counts
    what a process may write: a warning below 4 GiB.

    ## Fix
    - **you** `ulimit -v unlimited` in the job script, where the hard limit allows it; ask for more memory.
    - **admin** no `as` in limits.conf; Slurm's `VSizeFactor=0`; Grid Engine: s_vmem and h_vmem.

    ## Source
    getrlimit(2); slurm.conf(5), VSizeFactor; NVIDIA Multi-Process Service, troubleshooting (addresses that CUDA
    reserves).
    """
    for node in cluster.nodes:
        yield from _little_data(node)
        limit = known(at(node, "system.address_space"))
        usable = value_or(at(node, "gpus.usable"), 0)
        least = value_or(at(node, "stack.torch_libraries"), _TORCH_LIBRARIES) + _BESIDE_LIBRARIES
        if limit == -1 or (limit >= _COMFORTABLE and not usable):
            continue
        level = partial(fail, blocks_job=True) if limit < least else warn
        of_gpus = "CUDA reserves more than that" if usable else "a rank with a model needs more"
        yield level(
            Where(node=node.name),
            f"a process may map {size(limit)} only (ulimit -v): "
            + (f"torch alone needs {size(least)}" if limit < least else of_gpus),
            why="`import torch` or a rank ends with 'failed to map segment' or 'out of memory' at this limit.",
            owner="job",
            evidence=[
                seen("/proc/self/limits", f"Max address space (RLIMIT_AS) {limit}"),
                seen("torch's libraries and what a rank maps beside them", f"{least} bytes"),
            ],
            fix=_lift("v", "-rE '\\bas\\b'"),
        )


def _lift(option: str, search: str) -> list[Remedy]:
    """Of a limit of ulimit. search: grep's words for its item in limits.conf."""
    return [
        you("Lift it in the job script.", f"ulimit -{option} unlimited"),
        admin("Take the hard limit away.", f"grep {search} /etc/security/limits.conf /etc/security/limits.d"),
    ]


def _little_data(node: Node) -> Iterator[Finding]:
    """Heaps, stacks of threads and all else that is private and may be written."""
    limit = value_or(at(node, "system.data"), -1)
    if not 0 <= limit < _COMFORTABLE:
        return
    yield warn(
        Where(node=node.name),
        f"a process may have {size(limit)} of data only (ulimit -d)",
        why="A rank ends with 'Cannot allocate memory', its threads with 'Resource temporarily unavailable'.",
        owner="job",
        evidence=[seen("/proc/self/limits", f"Max data size (RLIMIT_DATA) {limit}")],
        fix=_lift("d", "-rw data"),
    )


@rule(
    "HST015", "the file-size limit is high enough for checkpoints", worst=State.WARN, needs=("system.file_size",)
)
def file_size(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The file-size limit (`ulimit -f`, RLIMIT_FSIZE).

    ## Why it matters
    A checkpoint, a log or a file in /dev/shm that would grow beyond it ends its writer with SIGXFSZ or
    `File too large`, hours after the start. NCCL's and the loader's shared memory are files, too.

    ## How we know
    "Max file size" in /proc/self/limits. Less than `HST015.gib` (16) is a warning: a checkpoint of a model of
    one billion parameters with its optimizer has 16 GB. Any other limit is a note.

    ## Fix
    - **you** `ulimit -f unlimited` in the job script.
    - **admin** no `fsize` in limits.conf, `LimitFSIZE=infinity` for slurmd.

    ## Source
    getrlimit(2), signal(7) (SIGXFSZ).
    """
    least = cluster.policy.thresholds.get("HST015.gib", 16.0) * _GIB
    for node in cluster.nodes:
        limit = known(at(node, "system.file_size"))
        if limit == -1:
            continue
        level = warn if limit < least else note
        yield level(
            Where(node=node.name),
            f"a file may have {size(limit)} at most (ulimit -f)",
            why="A checkpoint, a log or shared memory that grows beyond it ends the job with 'File too large'.",
            owner="job",
            evidence=[seen("/proc/self/limits", f"Max file size (RLIMIT_FSIZE) {limit}")],
            fix=_lift("f", "-r fsize"),
        )


@rule("HST017", "no CPU-time limit ends a rank", worst=State.WARN, needs=("system.cpu_seconds",))
def cpu_time(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The CPU-time limit of a process (`ulimit -t`, RLIMIT_CPU).

    ## Why it matters
    Threads count together: a rank with 16 busy threads spends an hour of it in four minutes. At the limit the
    kernel ends it with SIGXCPU or SIGKILL and leaves no line in its log, while the other nodes wait for it; a
    short check passes.

    ## How we know
    "Max cpu time" in /proc/self/limits. Less than `HST017.hours` (24) is a warning: a day of CPU time is an hour
    and a half of 16 threads. Any other limit is a note.

    ## Fix
    - **you** `ulimit -t unlimited` in the job script, where the hard limit allows it. Login nodes often have such
      a limit; start the job in an allocation.
    - **admin** no `cpu` in limits.conf for those who run jobs; `LimitCPU=infinity` for slurmd.

    ## Source
    getrlimit(2) (RLIMIT_CPU), signal(7) (SIGXCPU).
    """
    least = cluster.policy.thresholds.get("HST017.hours", _CPU_HOURS) * _HOUR
    for node in cluster.nodes:
        limit = known(at(node, "system.cpu_seconds"))
        if limit == -1:
            continue
        level = warn if limit < least else note
        yield level(
            Where(node=node.name),
            f"a process may use {limit} s of CPU time at most (ulimit -t)",
            why="The kernel ends a rank that has used them up, without a line in its log; threads count together.",
            owner="job",
            evidence=[seen("/proc/self/limits", f"Max cpu time (RLIMIT_CPU) {limit}")],
            fix=_lift("t", "-rw cpu"),
        )


@rule("HST016", "the ephemeral port range is large enough", worst=State.FAIL,
      needs=("system.ports",), gates_job="by any failure")  # fmt: skip
def port_range(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The kernel's ephemeral port range (net.ipv4.ip_local_port_range), and how much of it is held back
    (net.ipv4.ip_local_reserved_ports).

    ## Why it matters
    Torchrun, gloo and NCCL listen on ports that the kernel chooses, and connect from such ones. Where none is left
    a rank ends with `Address already in use` or `Cannot assign requested address`, or waits for one that could
    not listen; with few it happens now and then, for a port rests a minute after its last use.

    ## Seen as
    does not start, dies

    ## How we know
    /proc/sys/net/ipv4/ip_local_port_range, 28,232 ports unless it was changed. FAIL: fewer than 4; measured with
    torchrun and gloo, one rank does not start with 3. warn: fewer than `HST016.ports` (1024): 8 ranks that listen
    for 32 channels and two neighbours each take 512, and those of the job before are still resting.

    ## Fix
    - **admin** `sysctl -w net.ipv4.ip_local_port_range="32768 60999"`, and the same in /etc/sysctl.d.

    ## Source
    ip(7) (ip_local_port_range), kernel documentation, networking/ip-sysctl.
    """
    few = cluster.policy.thresholds.get("HST016.ports", _MANY_PORTS)
    for node in cluster.nodes:
        ports = known(at(node, "system.ports"))
        count = max(0, ports.last - ports.first + 1 - ports.reserved)
        if count >= few:
            continue
        level = fail if count < _LEAST_PORTS else warn
        if ports.reserved and ports.reserved + count >= few:
            yield _reserved(node, ports, count, level)
            continue
        yield level(
            Where(node=node.name),
            f"the kernel has {count} port{'s' if count != 1 else ''} to give away ({ports.first} to {ports.last})",
            why="A rank that gets no port cannot listen or connect: it ends, or the others wait for it.",
            owner="node",
            evidence=[seen("/proc/sys/net/ipv4/ip_local_port_range", f"{ports.first} {ports.last}")],
            fix=[
                admin(
                    "Give the range back its usual size, and keep it in /etc/sysctl.d.",
                    'sysctl -w net.ipv4.ip_local_port_range="32768 60999"',
                )
            ],
        )


def _reserved(node: Node, ports: PortRange, count: int, level: Callable[..., Finding]) -> Finding:
    """The range itself would do."""
    path = "/proc/sys/net/ipv4/ip_local_reserved_ports"
    return level(
        Where(node=node.name),
        f"net.ipv4.ip_local_reserved_ports holds back {ports.reserved} of the {ports.reserved + count} ports "
        f"({ports.first} to {ports.last}) that the kernel gives away: {count} are left",
        why="A rank that gets no port cannot listen or connect: it ends, or the others wait for it.",
        owner="node",
        evidence=[seen(path, f"{ports.reserved} ports of {ports.first} to {ports.last}")],
        fix=[
            admin(
                "Reserve single ports, not the range, here and in the file of /etc/sysctl.d that does it.",
                f"cat {path}; grep -rsn ip_local_reserved_ports /etc/sysctl.conf /etc/sysctl.d /usr/lib/sysctl.d",
                "sysctl -w net.ipv4.ip_local_reserved_ports=",
            )
        ],
    )


@rule("HST012", "shared memory survives the user's logout", worst=State.WARN,
      needs=("system.remove_ipc", "system.uid"))  # fmt: skip
def remove_ipc(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    RemoveIPC=yes in logind.conf, on a machine where jobs run as ordinary users.

    ## Why it matters
    When the user's last session on a machine ends, logind removes all of the user's files in /dev/shm: those of a
    job that Slurm, ssh or mpirun started are among them. NCCL then fails with `unlink shared memory
    /dev/shm/nccl-... No such file`, or a loader with a bus error, when somebody logs out.

    ## Seen as
    dies

    ## How we know
    The last RemoveIPC line of /etc/systemd/logind.conf and logind.conf.d. Where none stands there the distribution
    decides, and this check is skipped. It does not touch root, system users and containers.

    ## Fix
    - **admin** `RemoveIPC=no`, then `systemctl restart systemd-logind`.
    - **you** keep a session on the node (`loginctl enable-linger`).

    ## Source
    NCCL user guide, troubleshooting, runtime issues; logind.conf(5).
    """
    bound = [node for node in cluster.nodes if known(at(node, "system.uid")) >= _FIRST_USER and not runtimes(node)]
    if not bound:
        raise NothingToJudge("it binds ordinary users outside of containers only")
    for node in bound:
        if known(at(node, "system.remove_ipc")):
            yield warn(
                Where(node=node.name),
                "logind removes a user's shared memory when the last session ends",
                why="A running job loses its files in /dev/shm when its user logs out.",
                owner="node",
                evidence=[seen("/etc/systemd/logind.conf", "RemoveIPC=yes")],
                fix=[
                    admin("Turn it off.", "echo 'RemoveIPC=no' >> /etc/systemd/logind.conf",
                          "systemctl restart systemd-logind"),
                    you("Keep a session open until then.", "loginctl enable-linger"),
                ],
            )  # fmt: skip


@rule("HST013", "no driver stub library shadows the real driver", worst=State.WARN, needs=("job.variables",))
def driver_stub(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    A directory named `stubs` in LD_LIBRARY_PATH.

    ## Why it matters
    The CUDA toolkit has an empty libcuda.so there, for linking on machines without a driver. In front of the real
    one it is loaded instead: `CUDA driver is a stub library` (error 34), or a program that finds no GPU and goes
    on without.

    ## How we know
    The parts of LD_LIBRARY_PATH.

    ## Fix
    - **you** take it out of LD_LIBRARY_PATH; linking needs `-L.../stubs` only.

    ## Source
    CUDA Runtime API, cudaErrorStubLibrary; CUDA installation guide; ld.so(8).
    """
    for node in cluster.nodes:
        parts = variables(node).get("LD_LIBRARY_PATH", "").split(":")
        if stubs := [part for part in parts if re.search(r"/stubs/?$", part)]:
            keep = ":".join(part for part in parts if part and part not in stubs)
            yield warn(
                Where(node=node.name),
                f"LD_LIBRARY_PATH leads to the stub of the driver in {stubs[0]}",
                why="CUDA then loads an empty library instead of the driver.",
                owner="job",
                evidence=[seen("LD_LIBRARY_PATH", ":".join(parts))],
                fix=[
                    you(
                        "Take it out.",
                        f"export LD_LIBRARY_PATH={quote(keep)}" if keep else "unset LD_LIBRARY_PATH",
                    )
                ],
            )

"""Rules about what a job may use of its machine: locked memory, open files, cores, memory, the clock."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ncclcheck.probes.facts import Cluster, Limits, Node, at, known, value_or, variables
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.failures.limits import cpu_quota
from ncclcheck.reports.subjects.failures.limits.crowded import throttled
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nodes.planned import local_ranks
from ncclcheck.reports.text.words.fold import size

_MIB, _GIB = 2**20, 2**30  # bytes
_UNUSABLE_MEMLOCK = 64 * _MIB
_MANY_RANKS = 128  # ranks from which on the larger limit of open files applies; chosen
# Open files. Counted with torch 2.13 for CPUs on one host, by lowering `ulimit -n`: a gloo group of one rank, its
# store in the same process, starts with 20 and not with 18; `ncclcheck env` ends well with 28 and not with 24.
# torchrun itself and ranks of NCCL were not counted; each further rank is at least one more connection.
_LEAST_FILES = 32
# Under a CPU quota. Measured with a tenth of a core for one rank, on hosts of two cores: 16 s to import torch, as
# long to make the group, 98 % of the periods used up. Half a core is reasoned: start and steps take at least twice
# as long with it, whatever else is well. Half of the periods: the rank stands still in most.
_HOPELESS_CORES = 0.5
_HOPELESS_SHARE = 0.5  # share of periods in which the quota was used up; chosen
_SLOW_CLOCKS = {"hpet", "acpi_pm", "jiffies", "pit", "xen"}


@rule(
    "HST001",
    "the locked-memory limit is high enough for RDMA",
    worst=State.FAIL,
    needs=("rdma.hcas", "host.memlock", "host.ipc_lock"),
)
def memlock(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The locked-memory limit (`ulimit -l`) on nodes that have GPUs and an RDMA device.

    ## Why it matters
    RDMA pins every buffer that it sends from. With the 64 KiB or 8 MiB that most systems start with, NCCL ends
    in `ibv_reg_mr failed with error Cannot allocate memory` or cannot create its queues, in the middle of init.

    ## Seen as
    does not start, out of memory, dies

    ## How we know
    `/proc/self/limits` of the process that the launcher started, which is what the ranks inherit; a login
    shell often has another limit. A process with CAP_IPC_LOCK is not bound by it and passes. Below 64 MiB is a
    failure; below the threshold `HST001.memlock_gib` (32) a warning.

    ## Fix
    - **you** in a container: `docker run --ulimit memlock=-1 --cap-add=IPC_LOCK`, or the capability IPC_LOCK in
      the pod's securityContext.
    - **admin** `* - memlock unlimited` in /etc/security/limits.d, `LimitMEMLOCK=infinity` for slurmd, and
      `PropagateResourceLimitsExcept=MEMLOCK` in slurm.conf.

    ## Source
    NVIDIA/nccl-tests#206; NCCL user guide, troubleshooting, networking; getrlimit(2), capabilities(7).
    """
    enough = cluster.policy.thresholds.get("HST001.memlock_gib", 32.0) * _GIB
    for node in wiring.with_gpus(cluster):  # a login node has such cards too, and no NCCL runs there
        host = known(node.host)
        limit = known(host.memlock)
        if limit.soft == -1 or limit.soft >= enough or known(host.ipc_lock):
            continue
        level = fail if limit.soft < _UNUSABLE_MEMLOCK else warn
        yield level(
            Where(node=node.name),
            f"locked memory is limited to {size(limit.soft)}, and this node has RDMA devices",
            why="NCCL pins its buffers for RDMA and stops with 'Cannot allocate memory' at this limit.",
            owner="node",
            evidence=[seen("/proc/self/limits", _limits(limit)), seen("rdma", ", ".join(_hcas(node)))],
            fix=[
                you(
                    "In a container, lift the limit when it is started.",
                    "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK ...",
                ),
                admin(
                    "Lift it for users and for the launcher's daemon, then restart that daemon.",
                    "echo '* - memlock unlimited' > /etc/security/limits.d/90-rdma.conf",
                    "systemctl edit slurmd   # [Service] LimitMEMLOCK=infinity",
                ),
            ],
        )


def _hcas(node: Node) -> list[str]:
    return known(known(node.rdma).hcas)


def _limits(limits: Limits) -> str:
    soft, hard = ("unlimited" if n == -1 else str(n) for n in (limits.soft, limits.hard))
    return f"soft {soft}, hard {hard}"


_RAISED = you("Raise it in the job script, as far as it may be raised.", "ulimit -n $(ulimit -Hn)")


@rule("HST002", "the open-file limit is high enough", worst=State.FAIL, needs=("host.nofile",))
def nofile(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The open-file limit (`ulimit -n`) of the job's processes.

    ## Why it matters
    Every connection of NCCL and every tensor that a data loader worker hands over is an open file. At the
    limit NCCL says `Too many open files`, and torch `received 0 items of ancdata`, often only after hours.

    ## Seen as
    out of memory

    ## How we know
    `/proc/self/limits`. From 128 ranks on the limit should be at least `HST002.nofile_large` (65536); below
    that at least `HST002.nofile` (1024). The common default of 1024 is a note: it is enough for small jobs,
    and too little for one that keeps tensors of its loader in a list. Fewer than 32 are a failure, and no job is
    started: one rank of gloo alone does not start with fewer than 20, ncclcheck's probes not with fewer than 28.

    ## Fix
    - **you** `ulimit -n $(ulimit -Hn)` in the job script raises it to the hard limit.
    - **admin** `* - nofile 131072` in /etc/security/limits.d, `LimitNOFILE=131072` for slurmd or the container
      runtime.

    ## Source
    NCCL user guide, troubleshooting, runtime and MPI issues; pytorch/pytorch#973; getrlimit(2).
    """
    for node in cluster.nodes:
        limit = known(known(node.host).nofile)
        least = _least_files(cluster, node)
        if limit.soft == -1 or limit.soft > max(least, 1024):
            continue
        too_few = limit.soft < _LEAST_FILES
        level = partial(fail, blocks_job=True) if too_few else warn if limit.soft < least else note
        wanted = ", too few to start a rank" if too_few else f", {least} are wanted" if limit.soft < least else ""
        yield level(
            Where(node=node.name),
            f"{limit.soft} files may be open at once{wanted}",
            why="Connections and shared tensors are files; at the limit the job dies with 'Too many open files'.",
            owner="job",
            evidence=[seen("/proc/self/limits", _limits(limit))],
            fix=[
                *([_RAISED] if limit.hard == -1 or limit.hard > limit.soft else []),
                admin(
                    "Raise the hard limit.",
                    "echo '* - nofile 131072' > /etc/security/limits.d/90-nofile.conf",
                ),
            ],
        )


def _least_files(cluster: Cluster, node: Node) -> int:
    ranks = cluster.job.ranks or _number(variables(node).get("WORLD_SIZE", ""))
    name, default = ("nofile_large", 65536.0) if ranks >= _MANY_RANKS else ("nofile", 1024.0)
    return int(cluster.policy.thresholds.get(f"HST002.{name}", default))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


@rule("HST006", "every rank has a core, and OMP_NUM_THREADS fits", worst=State.FAIL, needs=("host.usable_cores",))
def cores(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The cores that this job may use on a node, against its ranks and their OpenMP threads.

    ## Why it matters
    Slurm gives a task one core unless it is told otherwise: eight ranks, their loaders and NCCL's own threads
    then share it, and the GPUs wait. The other way round, ranks that start a thread for every core of the
    machine hinder each other.

    A CPU quota is worse than few cores: with a tenth of a core (`cpu: 100m` of a pod) every process stands still
    for 90 of 100 ms, and all other ranks wait for it.

    ## Seen as
    hangs, slow

    ## How we know
    The affinity mask (`Cpus_allowed_list`) and the control group's CPU quota, whichever is smaller; ranks from
    LOCAL_WORLD_SIZE, else from the plan, else one a usable GPU. It fails where a quota leaves a rank less than one
    core and the job had used it up in half of its periods and more (cpu.stat), or, where no job was run, where it
    leaves all ranks of the node together less than half a core.

    ## Fix
    - **admin** raise or remove the quota; the finding names its file or unit.
    - **you** in Slurm `--cpus-per-task` (for `srun` as well: it does not take it from `sbatch` since 22.05), in
      Docker `--cpus`, in Kubernetes the pod's limits; `export OMP_NUM_THREADS=` cores divided by ranks.

    ## Source
    Lightning-AI/pytorch-lightning#18650, pytorch/torchtitan#4038; NCCL user guide, troubleshooting (CPU
    affinity); sched_setaffinity(2), cgroups(7).
    """
    if cluster.job.simulated:
        raise NothingToJudge("simulated nodes share the cores of one machine")
    for node in cluster.nodes:
        yield from _cores_of(cluster, node)


def _cores_of(cluster: Cluster, node: Node) -> Iterator[Finding]:
    usable, ranks = known(known(node.host).usable_cores), local_ranks(cluster, node)
    given = variables(node).get("OMP_NUM_THREADS", "").partition(",")[0]
    threads = _number(given)
    if given and threads < 1:
        yield warn(
            Where(node=node.name), f"OMP_NUM_THREADS={given} is not a number of threads",
            why="OpenMP ignores it and takes every core for every rank.", owner="job",
            evidence=[seen("environment", f"OMP_NUM_THREADS={given}")],
            fix=[you("Give a number.", "export OMP_NUM_THREADS=1")],
        )  # fmt: skip
    if ranks * max(1, threads) <= usable:
        return
    path = value_or(at(node, "host.quota_path"), "")
    if ranks > usable and path:
        yield _by_quota(cluster, node, usable, ranks, path)
        return
    share = max(1, int(usable / ranks))
    wanted = f"{ranks} ranks" + (f" of {threads} OpenMP threads" if threads > 1 else "")
    mend = you("Fit the threads to the cores.", f"export OMP_NUM_THREADS={share}")
    if ranks > usable:
        mend = you("Ask the job system for more cores.", f"#SBATCH --cpus-per-task={ranks * 8}")
    yield warn(
        Where(node=node.name),
        f"{usable:g} cores for {wanted}",
        why="Ranks that share a core wait for each other in every step, and the GPUs wait with them.",
        owner="job",
        evidence=[
            seen("affinity and CPU quota", f"{usable:g} of {value_or(at(node, 'host.cores'), 0)} cores"),
            seen("OMP_NUM_THREADS", threads or "not set"),
        ],
        fix=[mend],
    )


def _by_quota(cluster: Cluster, node: Node, usable: float, ranks: int, path: str) -> Finding:
    """Less than one core a rank, by the quota of a control group."""
    used_up = throttled(cluster, node.name)
    stands_still = usable < _HOPELESS_CORES if used_up is None else used_up >= _HOPELESS_SHARE
    counted = (
        []
        if used_up is None
        else [seen("cpu.stat of the control group", f"throttled in {used_up:.0%} of its periods")]
    )
    return (fail if stands_still else warn)(
        Where(node=node.name),
        f"a CPU quota leaves {ranks} rank{'s' if ranks > 1 else ''} {usable:g} cores",
        why="Once the quota of a period is used up, all threads stop until the next one; all other ranks wait.",
        owner="job",
        evidence=[seen(path, f"{usable:g} of {value_or(at(node, 'host.cores'), 0)} cores"), *counted],
        fix=cpu_quota.lift(path, node.name),
    )


@rule("HST007", "the job's memory limit leaves room for its ranks", worst=State.WARN, needs=("host.memory_limit",))
def memory_limit(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The memory limit that the job system or the container put on this job.

    ## Why it matters
    A rank needs some 2 GiB of host memory before the first batch (CUDA, NCCL, torch itself). Pinned memory and
    files in /dev/shm count as well. At the limit the kernel kills a process: exit code -9, no traceback, and on
    every other rank a misleading `Connection closed by remote peer`.

    ## Seen as
    dies

    ## How we know
    memory.max or memory.limit_in_bytes of the control group and those above it, divided by the ranks of the
    node (as in HST006). Less than `HST007.gib_per_rank` (2) a rank is a warning.

    ## Fix
    - **you** `#SBATCH --mem=0` (all of the node), `docker run --memory`, the pod's memory limit; fewer loader
      workers.
    - **admin** DefMemPerGPU in slurm.conf, so that a GPU job does not start with the default of a small one.

    ## Source
    cgroups(7); sbatch(1), --mem; slurm.conf(5), DefMemPerGPU.
    """
    least = cluster.policy.thresholds.get("HST007.gib_per_rank", 2.0) * _GIB
    for node in cluster.nodes:
        limit, ranks = known(known(node.host).memory_limit), local_ranks(cluster, node)
        if limit >= least * ranks:
            continue
        yield warn(
            Where(node=node.name),
            f"{size(limit)} of memory for {ranks} rank{'s' if ranks > 1 else ''}",
            why="At this limit the kernel kills a rank without a traceback (exit code -9).",
            owner="job",
            evidence=[
                seen("control group", f"{limit} bytes"),
                seen("/proc/meminfo", f"MemTotal {size(value_or(at(node, 'host.memory'), 0))}"),
            ],
            fix=[
                you("Ask for more memory.", "#SBATCH --mem=0", "docker run --memory=0 ..."),
                admin("Give GPU jobs a better default.", "DefMemPerGPU=65536   # slurm.conf, MiB"),
            ],
        )


@rule("HST008", "the kernel clocksource is fast", worst=State.WARN, needs=("host.clocksource",))
def clocksource(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The kernel's clocksource.

    ## Why it matters
    With `tsc`, `kvm-clock` or `arch_sys_counter` reading the time costs some 30 ns. Once the kernel has marked
    the TSC unstable and gone over to `hpet` or `acpi_pm`, it costs one to several microseconds, one core at a
    time. NCCL's proxy threads, torch's watchdog and every profiler read it all the time, and one such node
    makes the whole job wait.

    ## Seen as
    slow

    ## How we know
    /sys/devices/system/clocksource/clocksource0/current_clocksource.

    ## Fix
    - **admin** `dmesg | grep -i tsc` says why it was given up; update the firmware; where the hardware is known
      to be right, boot with `tsc=reliable`.

    ## Source
    Red Hat Enterprise Linux for Real Time reference guide, Timestamping; madgraph5/madgraph4gpu#116; the kernel's
    admin guide, kernel-parameters (`tsc=`, `clocksource=`).
    """
    for node in cluster.nodes:
        name = known(known(node.host).clocksource)
        if name not in _SLOW_CLOCKS:
            continue
        yield warn(
            Where(node=node.name),
            f"the kernel's clock source is {name}",
            why="Every reading of the time is a slow system call, and this node holds up the others.",
            owner="node",
            evidence=[seen("/sys/devices/system/clocksource/clocksource0/current_clocksource", name)],
            fix=[
                admin(
                    "Find out why the TSC was given up.",
                    "dmesg | grep -iE 'tsc|clocksource'",
                    "cat /sys/devices/system/clocksource/clocksource0/available_clocksource",
                )
            ],
        )

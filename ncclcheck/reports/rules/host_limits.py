"""Limits and settings of the host that end a job in init, or in the middle of the night."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, at, known, value_or, variables
from ncclcheck.reports.containers import runtimes
from ncclcheck.reports.findings import Finding, State, Where, admin, seen, warn, you
from ncclcheck.reports.rule import NothingToJudge, rule
from ncclcheck.reports.variables import nccl_version

_SETS_ITS_OWN_STACK = (2, 28, 0)
_FIRST_USER = 1000


@rule(
    "HST010",
    "the stack is limited, or NCCL sets its own",
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


@rule("HST011", "enough processes and threads may be started", worst=State.WARN,
      needs=("system.processes", "system.uid"))  # fmt: skip
def processes(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The limit of the user's processes (`ulimit -u`) and pids.max of the control group, against the ranks of a node.

    ## Why it matters
    A rank has a hundred threads and more: CUDA, NCCL's proxies, OpenMP, the loader's workers with threads of
    their own. At the limit starting one fails: `pthread_create failed: Resource temporarily unavailable` or
    `can't start new thread`, on the node with the most of the user's other jobs.

    ## How we know
    /proc/self/limits (which does not bind root) and pids.max. Less than `HST011.per_rank` (512) a rank is a
    warning; ranks from LOCAL_WORLD_SIZE, else one a usable GPU.

    ## Fix
    - **you** `ulimit -u $(ulimit -Hu)`; `docker run --pids-limit=-1`; OMP_NUM_THREADS and fewer loader workers.
    - **admin** `* - nproc 65536` in /etc/security/limits.d; the kubelet's `podPidsLimit`; slurmd's TasksMax.

    ## Source
    vllm-project/vllm#13354; MIC-DKFZ/nnUNet#1343; getrlimit(2), pthread_create(3), cgroups(7).
    """
    each = cluster.policy.thresholds.get("HST011.per_rank", 512.0)
    for node in cluster.nodes:
        least, limits = each * _ranks(node), _process_limits(node)
        for source, limit in limits.items():
            if limit < least:
                yield warn(
                    Where(node=node.name),
                    f"{limit} processes and threads for {_ranks(node)} rank{'s' if _ranks(node) > 1 else ''}",
                    why="At the limit no thread can be started, and the rank that needs one dies.",
                    owner="job",
                    evidence=[seen(source, limit)],
                    fix=[
                        you("Raise it as far as it may be raised.", "ulimit -u $(ulimit -Hu)",
                            "docker run --pids-limit=-1 ..."),
                        admin("Raise the limit.", "echo '* - nproc 65536' > /etc/security/limits.d/90-nproc.conf"),
                    ],
                )  # fmt: skip


def _process_limits(node: Node) -> dict[str, int]:
    """The limits that bind this user; root is not bound by its own."""
    found = {"pids.max": value_or(at(node, "system.tasks"), -1)}
    if known(at(node, "system.uid")) != 0:
        found["ulimit -u"] = known(at(node, "system.processes"))
    return {source: limit for source, limit in found.items() if limit != -1}


def _ranks(node: Node) -> int:
    given = variables(node).get("LOCAL_WORLD_SIZE", "")
    return max(1, int(given) if given.isdecimal() and len(given) < 6 else value_or(at(node, "gpus.usable"), 0))


@rule("HST012", "shared memory outlives the user's sessions", worst=State.WARN,
      needs=("system.remove_ipc", "system.uid"))  # fmt: skip
def remove_ipc(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    RemoveIPC=yes in logind.conf, on a machine where jobs run as ordinary users.

    ## Why it matters
    When the user's last session on a machine ends, logind removes all of the user's files in /dev/shm: those of a
    job that Slurm, ssh or mpirun started are among them. NCCL then fails with `unlink shared memory
    /dev/shm/nccl-... No such file`, or a loader with a bus error, when somebody logs out.

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


@rule("HST013", "no stub of the driver is in front of the driver", worst=State.WARN, needs=("job.variables",))
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
                fix=[you("Take it out.", f"export LD_LIBRARY_PATH={keep}" if keep else "unset LD_LIBRARY_PATH")],
            )

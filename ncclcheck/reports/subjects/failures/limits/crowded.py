"""What holds a node back that works, and is slower than the others: its own limits first, then who else is there.

Asked only about a node that is known to be slow or late: a busy host whose job is as fast as others is no fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote

from ncclcheck.probes.facts import Cluster, Other, RankUse, Resources, at, value_or
from ncclcheck.reports.judgement.findings import Remedy, admin, seen, you
from ncclcheck.reports.subjects.failures.limits import cpu_quota
from ncclcheck.reports.subjects.failures.limits.exhausted import Exhausted
from ncclcheck.reports.text.words.fold import size

# Reasoned, not measured. Asked only of a node that is known to be slow, they decide what is named as its cause.
_THROTTLED = 0.1  # share of the quota's periods in which it was used up; each stops all threads of the job
# Share of the time that all ranks of a node stand still without wanting a core, and how often that of other nodes:
# reasoned, not measured. What waits for a core is taken out, and the rank that stood still least counts.
_PAUSED, _FAR_MORE = 0.1, 3.0
_STOLEN = 0.1  # share of steal from which a hypervisor is named
_WAITING = 0.2  # share of the time; kernel documentation names no level from which a pressure hurts
_OTHERS = 0.5  # cores that other processes take on average: half of what one rank computes with
_MOST_NAMED = 3  # processes in one sentence


def held_back(cluster: Cluster, node: str, pid: int | None = None) -> Exhausted | None:
    """By what, as far as it was counted there. pid: of the rank that is late; None: any of the node."""
    had = _had(cluster, node)
    return own_limits(cluster, node, pid) or (_others(had) or _waiting(had) if had else None)


def own_limits(cluster: Cluster, node: str, pid: int | None = None) -> Exhausted | None:
    """What binds the job on this node and not on the others, whoever else is there."""
    had = _had(cluster, node)
    if had is None:
        return None
    ranks = [rank for rank in had.ranks if pid in (None, rank.pid)]
    peers = [
        rank for resource in cluster.measurements.resources if resource.node != node for rank in resource.ranks
    ]
    bound = _traced(ranks) or _quota(cluster, had) or _priority(ranks, peers) or _mask(had, ranks, peers)
    return bound or _paused(cluster, had)


def crowded_nodes(cluster: Cluster) -> dict[str, Exhausted]:
    """Nodes that something holds back, where the others have nothing of the kind: why a job may take too long."""
    names = dict.fromkeys(resource.node for resource in cluster.measurements.resources)
    limited = {name: exhausted for name in names if (exhausted := held_back(cluster, name))}
    return limited if len(limited) < len(names) else {}


def set_apart(cluster: Cluster) -> dict[str, Exhausted]:
    """Nodes whose ranks are traced, or run with less priority than those elsewhere, whatever it costs."""
    by_node: dict[str, Exhausted] = {}
    for had in {resources.node: resources for resources in cluster.measurements.resources}.values():
        peers = [
            rank for other in cluster.measurements.resources if other.node != had.node for rank in other.ranks
        ]
        if exhausted := _traced(had.ranks) or _priority(had.ranks, peers):
            by_node[had.node] = exhausted
    return by_node


def throttled(cluster: Cluster, node: str) -> float | None:
    """The share of the periods of its CPU quota that the job had used up there; None where it was not counted."""
    had = _had(cluster, node)
    return had.throttled if had else None


def _had(cluster: Cluster, node: str) -> Resources | None:
    """Of several jobs the last one."""
    return next((resource for resource in reversed(cluster.measurements.resources) if resource.node == node), None)


def _traced(ranks: list[RankUse]) -> Exhausted | None:
    """A debugger stops it when it attaches, and a tracer at every system call."""
    for rank in ranks:
        if rank.traced_by:
            return Exhausted(
                f"a debugger or tracer is attached to it: {rank.traced_by}",
                "node",
                (seen(f"TracerPid of /proc/{rank.pid}/status", rank.traced_by),),
                (
                    you("Detach it, or let whoever attached it do so.", f"grep TracerPid /proc/{rank.pid}/status")
                    if "(pid " in rank.traced_by
                    else admin("On the machine itself, see who traces it.", "pgrep -a 'strace|ltrace|gdb|perf'"),
                ),
            )
    return None


def _paused(cluster: Cluster, had: Resources) -> Exhausted | None:
    """Its ranks did not run when they were due and wanted no core: from outside, and only here."""
    share = _still(cluster, had.node)
    elsewhere = [
        _still(cluster, resource.node) for resource in cluster.measurements.resources if resource.node != had.node
    ]
    if share < _PAUSED or not elsewhere or share < _FAR_MORE * max(elsewhere):
        return None
    times = max(
        (lateness.continued for lateness in cluster.measurements.lateness if lateness.node == had.node), default=0
    )
    on = f"# on {had.node}"
    part = f"{100 * share:.0f} % of the time"
    quota = "no CPU quota was used up" if had.throttled is not None else "it has no CPU quota"
    still = seen("a timer of the ranks, and /proc/self/schedstat", f"they stood still for {part}, with cores free")
    if had.stolen is not None and had.stolen >= _STOLEN:
        return Exhausted(
            f"its hypervisor gave {100 * had.stolen:.0f} % of its cores' time to other machines (steal)",
            "site",
            (seen("steal in /proc/stat", f"{100 * had.stolen:.0f} %"), still),
            (
                admin(
                    "Give the virtual machine cores of its own, or move it off the busy host.",
                    f"vmstat 1 5   {on}",
                ),
            ),
        )
    if times:
        return Exhausted(
            f"somebody stops its processes and lets them go on, again and again (SIGSTOP, SIGCONT), for {part}",
            "node",
            (seen("SIGCONT received by a rank", f"{times} times"), still),
            (admin("See who sends it: a snapshot or suspend tool, cpulimit, a batch system that preempts.",
                   f"ps -eo pid,user,args | grep -E 'cpulimit|snapshot|suspend|kill'   {on}",
                   f"bpftrace -e 'tracepoint:signal:signal_generate /args.sig==19/ {{ printf(\"%s %d\\n\", "
                   f"comm, pid); }}'   {on}"),),
        )  # fmt: skip
    group = (
        f"/sys/fs/cgroup/freezer{had.freezer}/freezer.state" if had.freezer else "/sys/fs/cgroup/.../cgroup.freeze"
    )
    where = f" ({had.freezer})" if had.freezer else ""
    return Exhausted(
        f"its processes are paused from outside, again and again, for {part}: by the freezer of its control "
        f"group{where}, or with the whole virtual machine; {quota}, and nobody sent SIGCONT",
        "node",
        (still, *((seen("freezer of /proc/self/cgroup", had.freezer),) if had.freezer else ())),
        (admin("See who freezes that group (a snapshot or checkpoint agent, a batch system that suspends), or "
               "whether the host of the virtual machine pauses it, and end that.",
               f"for i in $(seq 20); do cat {group}; sleep 0.05; done   {on}",
               f"grep -rlE 'freezer.state|cgroup.freeze' /etc/cron* /etc/systemd /usr/local 2>/dev/null   {on}"),),
    )  # fmt: skip


def _still(cluster: Cluster, node: str) -> float:
    """The share of the time in which the ranks of a node did not run though due, and waited for no core."""
    lates = [
        lateness for lateness in cluster.measurements.lateness if lateness.node == node and lateness.wall_s > 0
    ]
    return min(
        (max(0.0, lateness.stalled_s - (lateness.runqueue_s or 0.0)) / lateness.wall_s for lateness in lates),
        default=0.0,
    )


def _quota(cluster: Cluster, had: Resources) -> Exhausted | None:
    if had.throttled is None or had.throttled < _THROTTLED:
        return None
    quota = "" if had.quota is None else f" of {had.quota:g} cores"
    return Exhausted(
        f"its control group had used up its quota{quota} (cpu.max) in {100 * had.throttled:.0f} % of the periods",
        "job",
        (seen("cpu.stat of the control group", f"throttled in {100 * had.throttled:.0f} % of its periods"),),
        tuple(cpu_quota.lift(_quota_path(cluster, had.node), had.node)),
    )


def _quota_path(cluster: Cluster, name: str) -> str:
    return next((value_or(at(node, "host.quota_path"), "") for node in cluster.nodes if node.name == name), "")


def _priority(ranks: list[RankUse], peers: list[RankUse]) -> Exhausted | None:
    """A lower priority than that of the ranks elsewhere; the same on all nodes is somebody's will."""
    usual = max((peer.nice for peer in peers), default=0)
    for rank in ranks:
        if rank.policy == "idle" and any(peer.policy != "idle" for peer in peers):
            what, how = "it runs only where nobody else wants the core (SCHED_IDLE)", f"chrt -o -p 0 {rank.pid}"
        elif peers and rank.nice > usual:
            what = f"it runs with nice {rank.nice}, the others with {usual}"
            how = f"renice -n {usual} -p {rank.pid}"
        else:
            continue
        return Exhausted(
            what,
            "job",
            (seen(f"/proc/{rank.pid}/stat", f"nice {rank.nice}, policy {rank.policy or 'other'}"),),
            (
                you("Start the job there without nice, chrt or a unit that sets Nice= or CPUSchedulingPolicy=."),
                admin("Give what runs its priority back, as root.", how),
            ),
        )
    return None


def _mask(had: Resources, ranks: list[RankUse], peers: list[RankUse]) -> Exhausted | None:
    """Fewer cores in its mask than the ranks of the other nodes have, and fewer than the host."""
    least = min((peer.cores for peer in peers if peer.cores), default=None)
    for rank in ranks:
        if rank.cores is None or least is None or rank.cores >= least or rank.cores >= (had.cores or rank.cores):
            continue
        return Exhausted(
            f"it may use {rank.cores} of {had.cores} cores (affinity mask), ranks elsewhere {least} and more",
            "job",
            (seen(f"Cpus_allowed_list of pid {rank.pid}", f"{rank.cores} cores"),),
            (
                you(
                    "Start it there without taskset or a cpuset; ask Slurm for as many cores as elsewhere.",
                    "srun --cpu-bind=none ...",
                ),
                admin("See which cpuset holds the job.", "cat /proc/PID/cgroup; taskset -cp PID"),
            ),
        )
    return None


def _others(had: Resources) -> Exhausted | None:
    taken = sum(process.cores for process in had.others)
    if taken < _OTHERS:
        return None
    of = "" if had.cores is None else f" of its {had.cores}"
    pids = " ".join(str(process.pid) for process in had.others[:_MOST_NAMED])
    return Exhausted(
        f"other processes take {taken:.1f}{of} cores there: {_named(had.others)}",
        "node",
        tuple(
            seen(
                f"pid {process.pid} of {process.user}",
                f"{process.cores:g} cores, nice {process.nice}: {process.command}",
            )
            for process in had.others
        ),
        (
            you(
                "Ask their owners, end your own ones, or leave the node out.",
                f"ps -o pid,user,pcpu,args -p {pids}",
            ),
            _stop(had.others),
        ),
    )


def _stop(others: list[Other]) -> Remedy:
    pids = " ".join(str(process.pid) for process in others[:_MOST_NAMED])
    return admin("If nobody needs them, stop them (kill -CONT lets them go on) or end them.", f"kill -STOP {pids}")


def _named(others: Iterable[Other]) -> str:
    programs = [
        f"{quote(_program(other))} (pid {other.pid} of {other.user}, {other.cores:.1f} cores)"
        for other in [*others][:_MOST_NAMED]
    ]
    return ", ".join(programs)


def _program(process: Other) -> str:
    words = process.command.split()
    return words[0].rsplit("/", 1)[-1][:40] if words else "a process"


def _waiting(had: Resources) -> Exhausted | None:
    """Pressure that nobody in particular can be blamed for."""
    if had.memory_slowed:
        return Exhausted(
            f"its control group was throttled at memory.high {had.memory_slowed} times",
            "job",
            (seen("memory.events", f"high rose by {had.memory_slowed}"),),
            (
                you("Use less memory there, or ask for more."),
                admin("Raise memory.high of its unit.", "systemctl set-property UNIT MemoryHigh=infinity"),
            ),
        )
    if (had.stalled_memory or 0.0) >= _WAITING:
        return _pressed(had, "memory", had.stalled_memory or 0.0, "free -g; vmstat 1 5", had.swapped or 0)
    if (had.stalled_disk or 0.0) >= _WAITING:
        return _pressed(had, "disks (io)", had.stalled_disk or 0.0, "iostat -x 1 3; iotop -b -n 1 | head")
    return None


def _pressed(had: Resources, of: str, share: float, look: str, swapped: int = 0) -> Exhausted:
    paged = f", and it swapped {size(swapped)}" if swapped else ""
    return Exhausted(
        f"some of its processes waited for {of} in {100 * share:.0f} % of the time{paged}",
        "node",
        (
            seen(
                "/proc/pressure", f"some task waited for {of} in {share * had.seconds:.1f} of {had.seconds:.1f} s"
            ),
        ),
        (
            you("Leave the node out until it is quiet."),
            admin("See who uses it up.", look),
        ),
    )

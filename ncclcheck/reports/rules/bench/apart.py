"""BEN021: what is set for the ranks of one node alone, and holds them back as soon as the machine is busy."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.culprit import late_ranks
from ncclcheck.reports.judgement.findings import Finding, State, Where, fine, warn
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.failures.limits.crowded import set_apart


@rule(
    "BEN021",
    "no node's ranks are traced, or have less priority than the others'",
    worst=State.WARN,
    over="measurements.resources",
    between_machines=True,
    commands=("bench", "smoke"),
)
def none_is_set_apart(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether a debugger or tracer was attached to a rank while the job ran, and whether the ranks of all nodes have
    the same priority and scheduling policy.

    ## Why it matters
    strace stops a rank at every system call, gdb for as long as it looks. SCHED_IDLE and nice cost nothing on an
    idle machine, and in training, with loaders beside the ranks, all other nodes wait for this one.

    ## Seen as
    slow

    ## How we know
    TracerPid, nice and policy in /proc/PID, twice a second. Where the tracer is in another pid namespace its
    number is not seen; then threads in state t at two looks and more. BEN003 says it where the rank was late, too.
    The same priority on all nodes is somebody's will, and no finding.

    ## Fix
    - **you** start the job there without nice, chrt or a unit that sets Nice= or CPUSchedulingPolicy=; detach
      tracers.

    ## Source
    sched(7), ptrace(2), proc_pid_stat(5), proc_pid_status(5).
    """
    late = {straggler.fact.node for straggler in late_ranks(cluster)}
    apart = {node: reason for node, reason in set_apart(cluster).items() if node not in late}
    for node, cause in apart.items():
        yield warn(
            Where(node=node),
            f"of a rank there: {cause.words}",
            why="All other ranks wait for it in every collective, as soon as others want its core too.",
            owner=cause.owner,
            evidence=[*cause.evidence],
            fix=[*cause.fix],
        )
    if not apart:
        yield fine(Where(), "the ranks of all nodes run with the same priority, and none was traced")

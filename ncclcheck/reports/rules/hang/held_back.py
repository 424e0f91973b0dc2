"""HNG006: ranks of a running job that their cgroup or swap holds back."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.judgement.findings import Finding, fail, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged
from ncclcheck.reports.subjects.live.words import hang_rule


@hang_rule("HNG006", "no rank of a running job is throttled or swapped out", "held back")
def nobody_is_held_back(found: Judged) -> Iterator[Finding]:
    """
    ## What
    A rank, and not all of them, is held back by its cgroup's limit of CPU for more than half of the time, or reads
    its own memory back from swap, more than 100 pages a second.

    ## Why it matters
    It reaches every collective last, and the others wait for it in each.

    ## How we know
    throttled_usec in cpu.stat of its cgroup; majflt in /proc/PID/stat and VmSwap in /proc/PID/status, between the
    looks.

    ## Fix
    - **you** ask for more CPU (`--cpus-per-task`, the pod's `limits.cpu`) or memory; fewer loader workers on that
      host.

    ## Source
    Linux kernel documentation, cgroup v2 cpu.stat; proc(5).
    """
    for one in found.who:
        limit = one.throttled > 0.5
        by_swap = f"by swap: {one.faults} pages came from disk"
        how = f"by its cgroup for {one.throttled:.0%} of the time" if limit else by_swap
        more = (
            "More CPU for it (--cpus-per-task, limits.cpu)"
            if limit
            else "More memory for it (--mem, limits.memory)"
        )
        yield fail(
            words.where([one]),
            f"rank {one.rank} is held back {how} (pid {one.pid})",
            why="It reaches every collective last, and the others wait for it in each.",
            owner="job",
            evidence=[*words.evidence([one]), *words.rest(found)],
            fix=[you(f"{more}, or fewer loader workers on that host.")],
        )

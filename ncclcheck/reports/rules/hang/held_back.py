"""HNG006: ranks of a running job that their cgroup or swap holds back."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LiveProcess
from ncclcheck.reports.judgement.findings import Finding, fail, warn, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import THROTTLED, Judged, moves, waits_for_memory
from ncclcheck.reports.subjects.live.words import hang_rule


@hang_rule("HNG006", "no rank of a running job is throttled or swapped out", "held back")
def nobody_is_held_back(found: Judged) -> Iterator[Finding]:
    """
    ## What
    A rank, and not all of them, is held back by its cgroup's limit of CPU for more than half of the time, waits
    until its cgroup lets it have more memory, or reads its own memory back from swap, more than 100 pages a
    second. A warning where the job goes on, and a few ranks use up their quota of CPU in more than a quarter of
    its periods while the others never do.

    ## Why it matters
    It reaches every collective last, and the others wait for it in each.

    ## How we know
    throttled_usec, nr_periods and nr_throttled in cpu.stat of its cgroup and those above; the function of the
    kernel in which it waits for memory (mem_cgroup_...), and memory.events or memory.failcnt; majflt in
    /proc/PID/stat and VmSwap in /proc/PID/status, between the looks.

    ## Fix
    - **you** ask for more CPU (`--cpus-per-task`, the pod's `limits.cpu`) or memory; fewer loader workers on that
      host.

    ## Source
    Linux kernel documentation, cgroup v2 cpu.stat and memory.events, cgroup v1 memory.failcnt; proc(5).
    """
    for one in found.who:
        limit, how, more = _by(one)
        slowed = limit and one.throttled <= THROTTLED and any(moves(rank) for rank in found.job.ranks)
        yield (warn if slowed else fail)(
            words.where([one]),
            f"{words.rank(one)} is held back {how} (pid {one.pid})",
            why="It reaches every collective last, and the others wait for it in each.",
            owner="job",
            evidence=[*words.evidence([one]), *words.rest(found)],
            fix=[you(f"{more}, or fewer loader workers on that host.")],
        )


def _by(one: LiveProcess) -> tuple[bool, str, str]:
    """Whether by its quota of CPU, in words, and what it needs."""
    memory = "More memory for it (--mem, limits.memory)"
    if waits_for_memory(one):
        more = f", {one.refused} refusals meanwhile" if one.refused else ""
        return False, f"by the memory limit of its cgroup ({one.wchan}{more})", memory
    if one.throttled <= THROTTLED and one.swap and not one.used_up:
        return False, f"by swap: {one.faults} pages came from disk", memory
    share = f"for {one.throttled:.0%} of the time"
    if one.periods:
        share += f", in {one.used_up} of {one.periods} periods of its CPU quota"
    return True, f"by its cgroup {share}", "More CPU for it (--cpus-per-task, limits.cpu)"

"""HNG006: ranks of a running job that their cgroup or swap holds back."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LiveProcess
from ncclcheck.reports.judgement.findings import Finding, fail, warn, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import THROTTLED, Judged, moves, waits_for_memory
from ncclcheck.reports.subjects.live.words import hang_rule


@hang_rule("HNG006", "no rank of a running job is throttled or swapped out", "held back")
def nobody_is_held_back(judged: Judged) -> Iterator[Finding]:
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
    for process in judged.who:
        limit, how, more = _by(process)
        slowed = limit and process.throttled <= THROTTLED and any(moves(rank) for rank in judged.job.ranks)
        yield (warn if slowed else fail)(
            words.where([process]),
            f"{words.rank(process)} is held back {how} (pid {process.pid})",
            why="It reaches every collective last, and the others wait for it in each.",
            owner="job",
            evidence=[*words.evidence([process]), *words.rest(judged)],
            fix=[you(f"{more}, or fewer loader workers on that host.")],
        )


def _by(process: LiveProcess) -> tuple[bool, str, str]:
    """Whether by its quota of CPU, in words, and what it needs."""
    memory = "More memory for it (--mem, limits.memory)"
    if waits_for_memory(process):
        more = f", {process.refused} refusals meanwhile" if process.refused else ""
        return False, f"by the memory limit of its cgroup ({process.wchan}{more})", memory
    if process.throttled <= THROTTLED and process.swap and not process.used_up:
        return False, f"by swap: {process.faults} pages came from disk", memory
    share = f"for {process.throttled:.0%} of the time"
    if process.periods:
        share += f", in {process.used_up} of {process.periods} periods of its CPU quota"
    return True, f"by its cgroup {share}", "More CPU for it (--cpus-per-task, limits.cpu)"

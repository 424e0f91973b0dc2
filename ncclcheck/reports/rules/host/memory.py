"""HST061, HST062: there is memory left to be had, and the kernel gives it."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Commit, Node, Pressure, Swap, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fine, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.text.words.fold import size

_GIB = 2**30  # bytes
_STALLED = 5.0  # percent of five minutes in which nothing ran for want of memory: a healthy host has 0.0
_STRICT = 2  # vm.overcommit_memory: never overcommit


@rule("HST061", "the host is not under memory pressure", worst=State.WARN, needs=("health.swap",))
def pressure(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Before the job starts, no part of the host's time goes to waiting for memory, and little of it is swapped out.

    ## Why it matters
    A host that swaps or reclaims pages all the time makes every rank on it late, now and then for seconds, and
    NCCL's time-out counts these. What fills the memory is most often left from the job before: processes, files in
    /dev/shm, a cache that is pinned.

    ## Seen as
    hangs, slow

    ## How we know
    avg300 of /proc/pressure/memory (Linux 4.20 and later): all tasks stood still for `HST061.percent` (5) of the
    last five minutes or more. Swap in use without such waiting is a note from 1 GiB on: pages that nobody needs
    may lie there for weeks. Whether the host has swap space says nothing.

    ## Fix
    - **admin** see what holds the memory (`smem`, `df -h /dev/shm`, `ps --sort=-rss`), and end it.
    - **you** leave the node out until then.

    ## Source
    Azure/azurehpc-health-checks (check_hw_swap), imbue-ai/cluster-health (fix_swap.sh); the kernel's page
    accounting/psi; proc_meminfo(5).
    """
    most = cluster.policy.thresholds.get("HST061.percent", _STALLED)
    for node in cluster.nodes:
        swap: Swap = known(at(node, "health.swap"))
        stall = at(node, "health.pressure")
        waits = None if isinstance(stall, Unread) else stall
        if waits is not None and waits.full >= most:
            yield _stalled(node, waits, swap)
        elif swap.used >= _GIB:
            yield note(
                Where(node=node.name),
                f"{size(swap.used)} are swapped out",
                why="A rank whose pages are among them is late when it needs them.",
                owner="node",
                evidence=[seen("/proc/meminfo", f"{size(swap.used)} of {size(swap.total)} of swap space in use")],
                fix=[admin("See whose they are.", "grep VmSwap /proc/[0-9]*/status | sort -k2n | tail")],
            )
        else:
            yield fine(Where(node=node.name), "nothing waits for memory")


def _stalled(node: Node, waits: Pressure, swap: Swap) -> Finding:
    return warn(
        Where(node=node.name),
        f"all tasks stood still for {waits.full:g} % of the last five minutes, for want of memory",
        why="Every rank on this host is late, and the others wait for it.",
        owner="node",
        evidence=[
            seen("/proc/pressure/memory", f"avg300: some {waits.some:g} %, full {waits.full:g} %"),
            seen("/proc/meminfo", f"{size(swap.used)} of {size(swap.total)} of swap space in use"),
        ],
        fix=[
            admin("See what holds the memory, and end it.", "ps -eo pid,user,rss,comm --sort=-rss | head",
                  "df -h /dev/shm"),
            you("Leave the node out until then.", f"#SBATCH --exclude={node.name}"),
        ],
    )  # fmt: skip


@rule("HST062", "the kernel's memory commit limit is not exhausted", worst=State.WARN, needs=("health.commit",))
def promised(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Where vm.overcommit_memory is 2, at least a tenth of the host's memory may still be promised.

    ## Why it matters
    In this mode the kernel refuses memory that it could not provide to all at once, though it is free. A rank
    whose process holds 200 GB cannot fork a data loader's worker: `OSError: [Errno 12] Cannot allocate memory`,
    while `free` shows plenty.

    ## Seen as
    out of memory, dies

    ## How we know
    /proc/sys/vm/overcommit_memory; CommitLimit and Committed_AS of /proc/meminfo. Modes 0 and 1 are not judged.

    ## Fix
    - **admin** `sysctl -w vm.overcommit_memory=0`, or a larger vm.overcommit_ratio.
    - **you** `multiprocessing_context="spawn"` or fewer workers for data loaders.

    ## Source
    proc_sys_vm(5), proc_meminfo(5); the kernel's page mm/overcommit-accounting; fork(2), ENOMEM.
    """
    strict = [node for node in cluster.nodes if known(at(node, "health.commit")).mode == _STRICT]
    if not strict:
        raise NothingToJudge("no kernel counts what it promises (vm.overcommit_memory is not 2)")
    for node in strict:
        commit: Commit = known(at(node, "health.commit"))
        left = commit.limit - commit.used
        if left >= value_or(at(node, "host.memory"), commit.limit) / 10:
            yield fine(Where(node=node.name), f"{size(left)} may still be promised")
            continue
        yield warn(
            Where(node=node.name),
            f"vm.overcommit_memory is 2, and {size(max(0, left))} of {size(commit.limit)} may still be promised",
            why="Ranks cannot fork data loaders' workers: Cannot allocate memory, though much is free.",
            owner="node",
            evidence=[
                seen("/proc/meminfo", f"CommitLimit {commit.limit >> 10} kB, Committed_AS {commit.used >> 10} kB")
            ],
            fix=[
                admin("Let the kernel promise more.", "sysctl -w vm.overcommit_memory=0"),
                you("Use fewer workers, or let them start by spawn: multiprocessing_context='spawn'."),
            ],
        )

"""HST060, HST063: the host's memory is sound, and nothing on it is stuck in the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, KernelEvent, MemoryModule, Node, Waiting, at, known, value_or
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    State,
    Where,
    admin,
    fine,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.text.words.fold import many

_MANY = 100  # corrected errors of one DIMM since boot; a stray one now and then is what ECC is for
_RECENT_HOURS = 1.0  # hours back in which a kernel message still describes this machine; chosen
# A paused container of cgroup v1, and a parent whose child has not reached its exec: neither is stuck.
_RESTS = ("__refrigerator", "wait_for_vfork_done")


def last_line(event: KernelEvent) -> Evidence:
    """The last line of its kind, and how long ago that was."""
    when = "" if not isinstance(event.hours, float) else f", last {event.hours:.1f} h ago"
    return seen("kernel log", f"{event.line} ({event.times}{when})")


def of_kernel(node: Node, name: str) -> list[KernelEvent]:
    """The event of this name; none where the kernel log may not be read."""
    return [event for event in value_or(at(node, "health.kernel"), []) if event.name == name]


@rule("HST060", "the host's memory has no uncorrectable ECC errors", worst=State.WARN,
      needs=("health.memory_errors",))  # fmt: skip
def memory_errors(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Memory errors of the host since boot: none that ECC could not correct, and not many that it could.

    ## Why it matters
    An uncorrected error in a page of a rank kills that rank with SIGBUS, or the whole node, and data loaders that
    read it end with EIO. A DIMM that corrects all the time is the one that fails next, and each report of an error
    interrupts all cores.

    ## Seen as
    dies

    ## How we know
    dimm_ce_count and dimm_ue_count (or ce_count and ue_count) below /sys/devices/system/edac/mc, and lines of the
    kernel log about uncorrected hardware errors, where it may be read. Uncorrected ones are a warning; more than
    `HST060.corrected` (100) corrected ones of a DIMM a note. Where firmware handles errors first, the counts may
    stay at 0. The GPUs' own memory is GPU007 to GPU009.

    ## Fix
    - **admin** `ras-mc-ctl --errors` and the management controller's log name the slot; have the DIMM replaced.
    - **you** leave the node out until then.

    ## Source
    facebookresearch/gcm and leptonai/gpud (memory checks); the kernel's page admin-guide/RAS; "DRAM Errors in the
    Wild" (Schroeder, Pinheiro and Weber, 2009).
    """
    most = cluster.policy.thresholds.get("HST060.corrected", float(_MANY))
    for node in cluster.nodes:
        modules: list[MemoryModule] = known(at(node, "health.memory_errors"))
        broken = [dimm for dimm in modules if dimm.uncorrected]
        events = of_kernel(node, "uncorrected hardware error")
        if broken or events:
            yield _uncorrected(node, broken, events)
            continue
        worn = [dimm for dimm in modules if dimm.corrected > most]
        for module in worn:
            yield note(
                Where(node=node.name, device=_slot(module)),
                f"ECC corrected {module.corrected} errors of this DIMM since boot",
                why="A DIMM that corrects all the time is the one that fails next.",
                owner="node",
                evidence=[seen("/sys/devices/system/edac/mc", f"{module.name}: {module.corrected} corrected")],
                fix=[admin("See which slot it is, and have it replaced at the next service.", _ERRORS)],
            )
        if not worn:
            yield fine(Where(node=node.name), f"{many(len(modules), 'DIMM')} without uncorrected errors")


_ERRORS = "ras-mc-ctl --errors"


def _slot(module: MemoryModule) -> str:
    return module.label or module.name


def _uncorrected(node: Node, broken: list[MemoryModule], events: list[KernelEvent]) -> Finding:
    counted = ", ".join(f"{_slot(module)}: {module.uncorrected}" for module in broken)
    what = (
        f"memory errors of the host that could not be corrected: {counted}"
        if broken
        else "the kernel reports hardware errors that could not be corrected"
    )
    return warn(
        Where(node=node.name, device=_slot(broken[0]) if len(broken) == 1 else None),
        what,
        why="A rank that reads such a page is killed with SIGBUS, or the node stops.",
        owner="node",
        evidence=[*([seen("/sys/devices/system/edac/mc", counted)] if broken else []), *map(last_line, events)],
        fix=[
            admin("See which slot it is, and have it replaced.", _ERRORS, "ipmitool sel list | tail"),
            you("Leave the node out until then.", f"#SBATCH --exclude={node.name}"),
        ],
    )


@rule("HST063", "no process is stuck in the kernel (D state)", worst=State.WARN, needs=("health.waiting",))
def stuck(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No process stays in state D, in which not even SIGKILL ends it.

    ## Why it matters
    Such a process waits for a file server, a disk, or a GPU whose driver does not answer. It keeps its GPU memory
    and its ports, the job before it never ends, and the next one hangs at its first checkpoint or at CUDA's start.

    ## Seen as
    hangs

    ## How we know
    /proc/PID/stat and the context switches of each process over two seconds: one that never left state D counts.
    A busy disk can do the same, so that this alone is a note; where the kernel reported hung tasks within the
    last hour too (`blocked for more than 120 seconds`) it is a warning. In a container only its own processes are
    seen; threads of the kernel are not judged.

    ## Fix
    - **admin** `cat /proc/PID/stack` says what it waits for; bring the server back or unmount it
      (`umount -f -l`), or reboot the node where it is a driver.
    - **you** leave the node out until then.

    ## Source
    leptonai/gpud#1299 (processes that stay in state D), microsoft/pai#3375 (one that keeps a GPU's memory),
    facebookresearch/gcm (check_dstate); the kernel's page admin-guide/sysctl/kernel, hung_task_timeout_secs.
    """
    for node in cluster.nodes:
        waiting = [task for task in known(at(node, "health.waiting")) if task.wchan not in _RESTS]
        hung = [event for event in of_kernel(node, "hung task") if _is_recent(event)]
        if waiting:
            yield _stuck(node, waiting, hung)
        else:
            yield fine(Where(node=node.name), "no process stays in state D")


def _is_recent(event: KernelEvent) -> bool:
    return isinstance(event.hours, float) and event.hours <= _RECENT_HOURS


def _stuck(node: Node, waiting: list[Waiting], hung: list[KernelEvent]) -> Finding:
    level = warn if hung else note
    first = waiting[0]
    others = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    where = f" in {first.wchan}" if first.wchan else ""
    return level(
        Where(node=node.name),
        f"{first.name} (pid {first.pid} of {first.user}){others} waits in the kernel{where} without a break",
        why="Not even SIGKILL ends it. It keeps what it holds, and what it waits for may hold the next job up.",
        owner="node",
        evidence=[
            *(seen(f"/proc/{task.pid}/stat", f"D for {task.seconds:g} s or more: {task.name} of {task.user}")
              for task in waiting[:4]),
            *map(last_line, hung),
        ],
        fix=[
            admin("See what it waits for.", f"cat /proc/{first.pid}/stack", "dmesg | grep -A9 'blocked for more'"),
            you("Where it does not end, leave the node out.", f"#SBATCH --exclude={node.name}"),
        ],
    )  # fmt: skip

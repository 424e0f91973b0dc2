"""LOG: processes that a signal ended."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.findings import Finding, admin, you
from ncclcheck.reports.logged import cause, in_order, log_rule, said

_SIGNALS = {
    9: ("was killed (SIGKILL), mostly by the kernel for want of host memory", "node",
        "dmesg -T | grep -iE 'oom|killed process'; cat /sys/fs/cgroup/memory.events"),
    7: ("died of a bus error (SIGBUS), mostly since /dev/shm is full", "node", "df -h /dev/shm"),
    4: ("died of an illegal instruction (SIGILL): a library was built for another CPU", "job", "lscpu"),
    8: ("died of an arithmetic error (SIGFPE)", "job", "python -X faulthandler train.py"),
}  # fmt: skip
_BY_THE_KERNEL = ("Out Of Memory", "Killed")


@log_rule("LOG093", "no process was killed from outside", told_by="RUN003")
def nobody_is_killed(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A rank that a signal ended: killed for want of memory, a bus error.

    ## Why it matters
    It leaves no traceback: in its own log there is nothing, and the others blame the network.

    ## How we know
    The exit code that torchrun tells (-9, -7), Slurm's "oom_kill" or "Out Of Memory", the kernel's "Out of
    memory: Killed process". -15 is a consequence: torchrun and Slurm end the others that way; so is Slurm's
    "Killed" once another task has ended. -6 is the abort of the watchdog as a rule; -11 has a check of its own.

    ## Fix
    - **you** fewer loader workers, less prefetch, no dataset held in memory by each worker.
    - **admin** more memory for the job (cgroup), `dmesg` of that host.

    ## Source
    signal(7); Linux kernel documentation, cgroup v2 memory.events; slurm.conf(5).
    """
    killed = in_order(said(logs, "oom-killed"))
    tasks = _killed_tasks(logs)
    if killed:
        yield _killed(killed + tasks, 9)
        return
    for number in _SIGNALS:
        code = f"-{number}"
        events = [
            one
            for one in said(logs, "worker-failed", "root-cause-exit", "launcher-return-code")
            if one.fields["exitcode"] == code
        ]
        if events := in_order(events + (tasks if number == 9 else [])):
            yield _killed(events, number)


def _killed_tasks(logs: Logs) -> list[LogEvent]:
    """By Slurm, which kills what is left itself, once a task has ended otherwise."""
    ends = in_order(said(logs, "srun-task-exit", "step-cancelled"))
    others = next((at for at, one in enumerate(ends) if one.fields.get("how") not in _BY_THE_KERNEL), len(ends))
    return ends[:others] + [one for one in ends[others:] if one.fields.get("how") == _BY_THE_KERNEL[0]]


def _killed(events: list[LogEvent], number: int) -> Finding:
    what, owner, command = _SIGNALS[number]
    told = next((one.fields for one in events if one.fields.get("local_rank")), {})
    who = f"local rank {told['local_rank']}, process {told['pid']}" if told.get("pid") else "a process"
    return cause(
        events,
        f"{who} {what}",
        why="A process that is killed leaves no traceback, and the others blame the network.",
        owner="node" if owner == "node" else "job",
        fix=[admin("Confirm on its host.", *command.split("; ")),
             you("Fewer loader workers and less prefetch; more memory for the job.")],
    )  # fmt: skip

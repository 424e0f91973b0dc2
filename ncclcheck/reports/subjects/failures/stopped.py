"""What lets a process go on that a signal, a debugger or the freezer of its control group holds."""

from __future__ import annotations

from ncclcheck.reports.judgement.findings import Remedy, admin, you


def let_go_on(state: str, pid: int | None) -> list[Remedy]:
    """Of a process that is stopped, or frozen."""
    if state == "F":
        return [
            you("Let its container or step go on: docker unpause, scontrol resume."),
            admin(
                "Else thaw its control group (version 2; of version 1 the second).",
                f"echo 0 >/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/{pid}/cgroup)/cgroup.freeze",
                f"P=$(sed -n 's/.*:freezer://p' /proc/{pid}/cgroup)",
                "echo THAWED >/sys/fs/cgroup/freezer$P/freezer.state",
            ),
        ]
    return [
        you("Find what stopped it (a debugger, job control, a suspended job) and let it go on.",
            f"kill -CONT {pid}"),
        admin("See whether the scheduler suspends jobs on this node.", "scontrol show job"),
    ]  # fmt: skip

"""Jobs that hang and jobs that do not: what is made of them, and what `ncclcheck hang` has to say.

Written before the judgement that they examine. A rank is named by its class, the classes of issue and report.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Class = Literal[
    "stopped", "gone", "never started", "storage", "sleeping", "computing", "gil", "loader", "elsewhere",
    "throttled", "all wait", "network", "sound",
]  # fmt: skip


class Run(NamedTuple):
    """One job. kind, fault: of tests/jobs/hang_training.py, or what the examiner does to the job from outside.

    hosts: how many of the lab's it has; a_host: ranks on each; by: how the probe comes to them. also: further
    classes that are as true. who: the rank at fault; of "all wait" it need not be named.
    """

    kind: str
    fault: str
    is_: Class
    who: int = 1
    hosts: int = 2
    a_host: int = 2
    by: Literal["ssh", "slurm"] = "ssh"
    also: tuple[Class, ...] = ()

    @property
    def world(self) -> int:
        """How many ranks it should have."""
        return self.hosts * self.a_host

    @property
    def culprit(self) -> int:
        """The rank that is at fault though nobody need name it."""
        return 1 if self.who < 0 else self.who

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.kind} {self.fault}, rank {self.who} of {self.world} by {self.by}"


_S: Literal["slurm"] = "slurm"
HANGS = [
    # stopped
    Run("plain", "stopped", "stopped"),
    Run("ddp", "stopped", "stopped", 3, 4, 1),
    Run("fsdp", "stopped", "stopped", 2),
    Run("pipe", "stopped", "stopped", 3),
    Run("groups", "ctrl-z", "stopped", 2),
    Run("loader", "worker stopped", "stopped", 3),
    Run("ddp", "debugger", "stopped", 0),
    Run("ddp", "frozen", "stopped", 2),
    Run("fsdp", "stopped", "stopped", 1, 3, 1, _S),
    # gone, never started
    Run("plain", "killed", "gone"),
    Run("ddp", "exits", "gone", 3),
    Run("ddp", "killed", "gone", 2, 4, 1),
    Run("plain", "orphan worker", "gone", 2),
    Run("ddp", "orphan worker", "gone", 0),
    Run("plain", "orphan program", "gone", 3),
    Run("plain", "not started", "never started", 3),
    Run("ddp", "not started", "never started", 1),
    Run("plain", "not started", "never started", 3, 4, 1),
    Run("plain", "not started", "never started", 2, 3, 1, _S),
    Run("plain", "killed", "gone", 1, 3, 1, _S),
    # storage
    Run("plain", "opens pipe", "storage", 2),
    Run("ddp", "reads pipe", "storage", 1),
    Run("fsdp", "saves into pipe", "storage", 0),
    Run("ddp", "lock", "storage", 3),
    Run("pipe", "posix lock", "storage", 1),
    Run("ddp", "fuse", "storage", 2),
    Run("fsdp", "fuse writes", "storage", 1),
    Run("loader", "worker reads", "storage", 2, also=("loader",)),
    Run("loader", "worker fuse", "storage", 0, also=("loader",)),
    Run("ddp", "reads pipe", "storage", 2, 3, 1, _S),
    Run("groups", "reads pipe", "storage", 3),
    Run("fsdp", "lock", "storage", 1, 3, 1, _S),
    Run("groups", "posix lock", "storage", 2),
    Run("pipe", "frozen", "stopped", 1),
    # sleeping
    Run("plain", "sleeps", "sleeping"),
    Run("fsdp", "sleeps", "sleeping", 3),
    Run("groups", "polls", "sleeping", 0),
    Run("pipe", "sleeps", "sleeping", 2),
    Run("ddp", "sleeps", "sleeping", 3, 4, 1),
    Run("ddp", "sleeps", "sleeping", 0, 3, 1, _S),
    # Python's lock
    Run("ddp", "gil sleeps", "gil", 2),
    Run("plain", "gil spins", "computing", 1, also=("gil",)),
    Run("groups", "gil sleeps", "gil", 1),
    # computing
    Run("plain", "spins", "computing", 3),
    Run("ddp", "evaluates", "computing", 0),
    Run("fsdp", "spins", "computing", 2),
    Run("pipe", "evaluates", "computing", 1),
    Run("plain", "spins", "computing", 1, 3, 1, _S),
    # the loader
    Run("loader", "worker spins", "loader", 1, also=("computing",)),
    Run("loader", "worker locks", "loader", 3),
    Run("loader", "worker sleeps", "loader", 2, also=("sleeping",)),
    # elsewhere: what a rank waits for is no rank
    Run("ddp", "child program", "elsewhere", 1),
    Run("ddp", "compiles", "elsewhere", 0, also=("computing",)),
    Run("plain", "download", "elsewhere", 2),
    Run("fsdp", "own lock", "elsewhere", 2),
    Run("ddp", "own queue", "elsewhere", 0),
    Run("ddp", "waits for a signal", "elsewhere", 1),
    Run("plain", "reads from a child", "elsewhere", 2),
    Run("fsdp", "two locks", "elsewhere", 3),
    Run("groups", "waits for the store", "elsewhere", 0),
    Run("pipe", "waits for an event", "elsewhere", 2),
    Run("plain", "stopped daemon", "stopped", 2, also=("elsewhere",)),
    Run("ddp", "computes in a pool", "computing", 1, also=("elsewhere",)),
    # throttled
    Run("ddp", "takes memory", "throttled", 1),
    Run("plain", "throttled", "throttled", 1),
    Run("ddp", "throttled", "throttled", 2),
    Run("fsdp", "throttled", "throttled", 0, 4, 1),
    Run("pipe", "throttled", "throttled", 2),
    # all wait: from outside nobody can be named
    Run("plain", "broadcast", "all wait", -1),
    Run("ddp", "barrier", "all wait", -1),
    Run("ddp", "unequal batches", "all wait", -1),
    Run("plain", "receives", "all wait", -1),
    Run("groups", "crossed groups", "all wait", -1),
    # the network: the host that is cut off, by the rank on it
    Run("plain", "cut off", "network", 2, 3, 1),
    Run("ddp", "cut off", "network", 0, 2, 1),
    Run("groups", "link down", "network", 3, 4, 1),
    Run("ddp", "link down", "network", 1, 3, 1),
    Run("fsdp", "drops what comes in", "network", 0, 3, 1),
]
SOUND = [
    Run("plain", "none", "sound"),
    Run("ddp", "none", "sound", 0, 4, 1),
    Run("loader", "none", "sound"),
    Run("fsdp", "none", "sound"),
    Run("pipe", "none", "sound"),
    Run("groups", "none", "sound"),
    Run("ddp", "none", "sound", 0, 3, 1, _S),
    Run("plain", "slow step", "sound"),
    Run("fsdp", "slow step", "sound"),
    Run("pipe", "slow step", "sound"),
    Run("groups", "slow step", "sound"),
    Run("ddp", "straggles", "sound"),
    Run("loader", "slow step", "sound"),
    Run("plain", "slow step", "sound", 0, 3, 1, _S),
    Run("plain", "straggles computing", "sound", 2),
    Run("ddp", "saves long", "sound", 0),
    Run("fsdp", "saves long", "sound", 3),
    Run("plain", "none", "sound", 0, 1, 1),
    Run("plain", "starts slowly", "sound"),
    Run("ddp", "downloads at the start", "sound", 0),
    Run("plain", "not started", "sound", 2),  # looked at while it is young
    Run("plain", "all sleep", "sound"),  # as a job that waits for work
    Run("ddp", "busy helper", "sound", 0),
    Run("fsdp", "long steps", "sound"),
    Run("ddp", "saves beside", "sound", 0),
    Run("ddp", "left over", "sound"),  # a worker of an earlier attempt is still there
]
YOUNG = ("starts slowly", "downloads at the start")

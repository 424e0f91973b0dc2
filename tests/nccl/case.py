"""A job of NCCL with its truth, and what it is made of: plans of ranks, faults of hosts, trouble in the middle."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

from tests.lab import Host, Lab, faults
from tests.nccl.job import Ended, Job, Rank

Kind = Literal["sound", "told", "silent"]
SUMS = "init all_reduce sync:20 destroy"
CARDS = {"h1": "mlx5_0; mlx5_1", "h2": "mlx5_0; mlx5_1"}
ROCE = "mlx5_0 link=ethernet gids=fe80::1|fe80::1|::ffff:{}|::ffff:{}"
NO_CUMEM = {"NCCL_CUMEM_ENABLE": "0"}  # else NCCL never calls cudaMalloc
ADDRESSES = {"h1": "10.77.0.11", "h2": "10.77.0.22"}
ROCE_CARDS = {host: ROCE.format(address, address) for host, address in ADDRESSES.items()}
Fault = Callable[[Lab], AbstractContextManager[None]]


@dataclass(frozen=True)
class Case:
    """One job and what is true of it.

    `truth`: the codes that name the cause. told: its log holds the cause; silent: the log does not, and no cause
    may be named; sound: nothing is wrong. `culprit`: the host that is to be named, where it is one.
    """

    name: str
    done: str
    kind: Kind
    ranks: Sequence[Rank]
    truth: frozenset[str] = frozenset()
    culprit: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, str | None] = field(default_factory=dict)
    kernel: str = "run"
    since: str = ""  # the first version in which it is so
    fault: Fault = lambda _: nullcontext()
    during: Callable[[Job], None] | None = None
    seconds: float = 25.0

    def run(self, lab: Lab, version: str) -> Ended:
        """Once, in this lab."""
        with self.fault(lab):
            job = Job(lab, self.ranks, version=version, env=self.env, kernel=self.kernel, cards=self.cards)
            return job.run(self.seconds, self.during)


def pair(
    steps: str = SUMS, first: Mapping[str, str] | None = None, second: Mapping[str, str] | None = None
) -> list[Rank]:
    """A rank on each host."""
    return [Rank("h1", steps=steps, env=first or {}), Rank("h2", steps=steps, env=second or {})]


def four(steps: str = SUMS) -> list[Rank]:
    """Two ranks on each host."""
    return [Rank(host, device, steps=steps) for host in ("h1", "h2") for device in (0, 1)]


def sound(name: str, done: str, ranks: Sequence[Rank], **more: object) -> Case:
    return Case(name, done, "sound", ranks, **more)  # type: ignore[arg-type]


def reported(name: str, done: str, truth: str, ranks: Sequence[Rank], **more: object) -> Case:
    return Case(name, done, "told", ranks, frozenset(truth.split()), **more)  # type: ignore[arg-type]


def silent(name: str, done: str, ranks: Sequence[Rank], **more: object) -> Case:
    return Case(name, done, "silent", ranks, seconds=8.0, **more)  # type: ignore[arg-type]


# --- faults that only these cases need ---


def on(host: str, fault: Callable[[Host], AbstractContextManager[None]]) -> Fault:
    """A fault of one host."""
    return lambda lab: fault(lab[host])


@contextmanager
def refused(host: Host, answer: str = "tcp reset") -> Iterator[None]:
    """A firewall of this host answers new connections that come in on eth0 with RST or with ICMP."""
    rule = f"iifname eth0 tcp dport 1024-65535 tcp flags & (syn|ack) == syn reject with {answer}"
    chain = f"chain input {{\n type filter hook input priority 0\n {rule}\n}}"
    with faults._table(host, "lab_refuse", [chain]):
        yield


@contextmanager
def small_shm(host: Host, options: str) -> Iterator[None]:
    """/dev/shm of this host is a tmpfs with these options."""
    host.check(["mount", "-t", "tmpfs", "-o", options, "tmpfs", "/dev/shm"])
    try:
        yield
    finally:
        host.check(["umount", "-l", "/dev/shm"])


@contextmanager
def slow(host: Host) -> Iterator[None]:
    """Its network carries 20 Mbit/s."""
    host.check(
        ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "20mbit", "burst", "32k", "latency", "50ms"]
    )
    try:
        yield
    finally:
        host.check(["tc", "qdisc", "del", "dev", "eth0", "root"])


@contextmanager
def same_address(lab: Lab) -> Iterator[None]:
    """h2 has h1's address."""
    with faults.duplicate_address(lab["h2"], lab["h1"]):
        yield


@contextmanager
def with_docker(lab: Lab) -> Iterator[None]:
    """docker0 on both."""
    with faults.docker_bridge(*lab.hosts):
        yield


# --- what is done in the middle of a job ---


def kill_second(job: Job) -> None:
    """SIGKILL of the last rank, once all have made a sum."""
    for place in range(len(job.ranks)):
        job.until(f"r{place}")
    time.sleep(0.5)
    job.signal(len(job.ranks) - 1, signal.SIGKILL)


def stop_second(job: Job) -> None:
    """SIGSTOP of the last rank, once all have made a sum."""
    for place in range(len(job.ranks)):
        job.until(f"r{place}")
    job.signal(len(job.ranks) - 1, signal.SIGSTOP)


def marked(ranks: Sequence[Rank], after: str) -> list[Rank]:
    """Each says when it has made its first sum (mark:rN), then does this."""
    plan = "init all_reduce sync:20 mark:r{} " + after
    return [Rank(rank.host, rank.device, plan.format(place)) for place, rank in enumerate(ranks)]


def last(ranks: Sequence[Rank], steps: str) -> list[Rank]:
    """The last rank has another plan."""
    return [*ranks[:-1], Rank(ranks[-1].host, ranks[-1].device, steps)]


def fails(what: str, host: int = 1) -> list[Rank]:
    """A rank of each host; calls of the second (or the first) fail."""
    env = {"FAKECUDA_FAIL": what}
    return pair(first=env if host == 0 else None, second=env if host == 1 else None)

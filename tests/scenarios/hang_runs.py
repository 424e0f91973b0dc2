"""Runs the table of hangs: real gloo jobs of an ordinary user on the lab's hosts, and what `ncclcheck hang` says.

The user has no capability, on no host; ranks of one job are on hosts that number their processes themselves.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, NamedTuple

from tests.conftest import ROOT
from tests.lab import PYTHON, Host, Lab, Slurm, faults, start_sshd
from tests.lab.tools import LabError, line_of, until
from tests.scenarios.hang_table import YOUNG, Run

USER, UID = "ops", 20_019
PLAIN = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
_JOB = str(ROOT / "tests/jobs/hang_training.py")
_AGENT = str(ROOT / "tests/jobs/hang_agent.py")
_FUSE = str(ROOT / "tests/helpers/mute_fuse.py")
_ROOM = 4096
_STARTS_S = 90.0  # seconds until all ranks are where they stay; 5 on a quiet machine
_IMPORTS_S = 300.0  # the same where each rank of several jobs imports torch by itself
_OLD_S = 62.0  # of ranks: younger ones are starting, and nobody is accused
_SETTLES_S = 3.0  # after the fault, until who is to wait waits
_NETWORK_S = 10.0  # the same where the kernel has to repeat what it sent
_LOOK_S = 150.0
_PTRACE_ATTACH = 16
_ATTACH = f"""import ctypes, sys, time
ctypes.CDLL(None).ptrace({_PTRACE_ATTACH}, int(sys.argv[1]), 0, 0)
print("attached", flush=True)
time.sleep(999)
"""
_one_at_a_time = threading.Lock()  # of labs that are made
_ports = itertools.count(21_000)
_CODES = {
    "stopped": ("HNG002",),
    "gone": ("HNG001",),
    "never started": ("HNG001",),
    "storage": ("HNG003",),
    "sleeping": ("HNG004",),
    "computing": ("HNG005",),
    "gil": ("HNG004", "HNG005"),
    "loader": ("HNG012",),
    "elsewhere": ("HNG010",),
    "throttled": ("HNG006",),
    "all wait": ("HNG007",),
    "network": ("HNG011",),
}


class Named(NamedTuple):
    """A finding of `hang` that accuses."""

    code: str
    rank: int | None
    host: str
    what: str


class Seen(NamedTuple):
    """What came of one job."""

    run: Run
    verdict: str
    named: list[Named]
    seconds: float

    def row(self) -> str:
        """For a table."""
        culprits = "; ".join(f"{culprit.code} {culprit.what[:90]}" for culprit in self.named[:2]) or "nobody"
        return f"| {self.run.name} | {self.run.is_} | {self.verdict} | {self.seconds:.0f} | {culprits} |"


def verdict(run: Run, named: Sequence[Named]) -> str:
    """right, partly (the class or the rank), missed, wrong (another rank is accused); if sound fine or accused."""
    if run.is_ == "sound":
        return "accused" if named else "fine"
    if not named:
        return "missed"
    codes = {code for is_ in (run.is_, *run.also) for code in _CODES[is_]}
    of_class = [
        accusation
        for accusation in named
        if accusation.code in codes and (run.is_ != "gil" or run.also or "lock" in accusation.what)
    ]
    if any(_is_he(run, accusation) for accusation in of_class):
        return (
            "right" if all(_is_he(run, accusation) or accusation.rank is None for accusation in named) else "wrong"
        )
    if any(accusation.rank not in (None, run.culprit) for accusation in named):
        return "wrong"
    return "partly"


def _is_he(run: Run, named: Named) -> bool:
    if run.is_ == "all wait" and named.rank is None:
        return named.code == "HNG007"
    if run.is_ == "network" and run.hosts == 2:
        return named.rank is None  # which end of the one path it is nobody sees from these two
    if run.is_ == "network":
        return named.host == f"h{run.who // run.a_host + 1}" and named.rank in (None, run.who)
    return named.rank == run.culprit


class Site:
    """Four hosts on which the user may log in, each with ranks that wait for a job."""

    def __init__(self, lab: Lab, agents: dict[str, Popen[str]], slurm: Slurm | None) -> None:
        self.lab, self.slurm, self._agents = lab, slurm, agents

    def start(self, host: str, rank: dict[str, Any]) -> int:
        """One rank; its pid on its host."""
        _tell(self._agents[host], rank)
        return int(line_of(self._agents[host].stdout, _STARTS_S))

    def end(self) -> None:
        """All ranks."""
        for agent in self._agents.values():
            _tell(agent, "end")


def _tell(agent: Popen[str], given: object) -> None:
    assert agent.stdin is not None
    agent.stdin.write(json.dumps(given) + "\n")
    agent.stdin.flush()


@contextmanager
def site(hosts: int = 4, *, slurm: bool = False) -> Iterator[Site]:
    """Hosts that are up, and whose ranks are old enough."""
    with ExitStack() as stack:
        with _one_at_a_time:
            lab = stack.enter_context(Lab(hosts=hosts, own_pids=True))
            start_sshd(lab)
        os.chown(lab.folder / "id", UID, UID)
        for host in lab.hosts:
            _admit(host)
        agents = {}
        if not slurm:
            room = {"ROOM": "x" * _ROOM, "HOME": "/tmp", "OMP_NUM_THREADS": "1"}
            agents = {host.name: host.start([*PLAIN, *PYTHON, _AGENT], env=room, stdin=PIPE) for host in lab.hosts}
            for agent in agents.values():
                line_of(agent.stdout, _IMPORTS_S)
        place = Site(lab, agents, Slurm(lab) if slurm else None)
        if agents:
            time.sleep(_OLD_S)
        yield place


def _admit(host: Host) -> None:
    """The user has an account, and may read what this Python is made of, though root's home is closed."""
    with (host.etc / "passwd").open("a") as file:
        file.write(f"{USER}:x:{UID}:{UID}::/tmp:/bin/sh\n")
    with (host.etc / "group").open("a") as file:
        file.write(f"{USER}:x:{UID}:\n")
    needed = [Path(sys.executable).resolve(), Path(sys.prefix), ROOT]
    closed = sorted({folder for path in needed for folder in path.parents}, key=lambda folder: len(folder.parts))
    for folder in closed:
        if host.run([*PLAIN, "test", "-x", str(folder)]).returncode:
            inside = sorted(
                {str(folder / path.relative_to(folder).parts[0]) for path in needed if folder in path.parents}
            )
            host.check(["sh", "-euc", _OPEN, "sh", str(folder), *inside])


_OPEN = """folder="$1"
shift
for one; do
    mkdir -p "/run/kept$one"
    mount --rbind "$one" "/run/kept$one"
done
mount -t tmpfs -o mode=755 tmpfs "$folder"
for one; do
    mkdir -p "$one"
    mount --rbind "/run/kept$one" "$one"
done
"""


def once(place: Site, run: Run) -> Seen:
    """One job, one look."""
    with ExitStack() as stack:
        folder = stack.enter_context(_folder())
        port = next(_ports)
        _prepare(place, run, folder, stack)
        pids = (_by_slurm if run.by == "slurm" else _by_agents)(place, run, folder, port, stack)
        _settle(place, run, folder, pids, stack)
        begun = time.monotonic()
        named = _looked(place, run, pids)
        return Seen(run, verdict(run, named), named, time.monotonic() - begun)


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hang-"))
    try:
        (folder / "posix").write_text("x")
        os.mkfifo(folder / "pipe")
        (folder / "lock").touch()
        for path in (folder, *folder.iterdir()):
            os.chown(path, UID, UID)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _host(place: Site, run: Run, rank: int) -> Host:
    return place.lab.hosts[rank // run.a_host]


def _prepare(place: Site, run: Run, folder: Path, stack: ExitStack) -> None:
    """What the fault needs before the job begins."""
    if run.fault == "saves into pipe":
        os.mkfifo(folder / "checkpoint")
        os.chown(folder / "checkpoint", UID, UID)
    if "lock" in run.fault:
        lock = stack.enter_context((folder / "lock").open("r+"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        posix = stack.enter_context((folder / "posix").open("r+"))
        fcntl.lockf(posix, fcntl.LOCK_EX)
    if run.fault == "download":
        (folder / "mute").write_text("7")
        stack.enter_context(faults.listener(place.lab.hosts[0], 7))
    if "fuse" in run.fault:
        (folder / "mount").mkdir()
        host = _host(place, run, run.who)
        server = host.start([*PYTHON, _FUSE, str(folder / "mount")], stdin=PIPE)
        stack.callback(host.run, ["umount", "-l", str(folder / "mount")])
        stack.callback(server.kill)
        line_of(server.stdout, 20)


def _environment(run: Run, rank: int, address: str, port: int) -> dict[str, str]:
    variables = {
        "RANK": rank,
        "WORLD_SIZE": run.world,
        "LOCAL_RANK": rank % run.a_host,
        "LOCAL_WORLD_SIZE": run.a_host,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": 1,
        "HOME": "/tmp",
        "PATH": os.environ["PATH"],
    }
    return {name: str(value) for name, value in variables.items()}


def _started(run: Run) -> list[int]:
    return [rank for rank in range(run.world) if run.fault != "not started" or rank != run.who]


def _by_agents(place: Site, run: Run, folder: Path, port: int, stack: ExitStack) -> dict[int, int]:
    """Rank -> pid on its host."""
    stack.callback(place.end)
    address, pids = place.lab.hosts[0].address, {}
    young = run.is_ == "sound" and run.fault in (*YOUNG, "not started")
    argv = [_JOB, run.kind, run.fault, str(run.culprit), str(folder)]
    for rank in _started(run):
        env = _environment(run, rank, address, port)
        order = {"env": env, "argv": argv, "log": str(folder / f"log.{rank}"), "young": young}
        pids[rank] = place.start(_host(place, run, rank).name, order)
    if run.fault == "left over":
        env = _environment(run, run.who, address, port)
        left = [*argv[:2], "leaves a worker", str(run.culprit), str(folder)]
        place.start(_host(place, run, run.who).name, {"env": env, "argv": left, "log": str(folder / "left")})
    return pids


def _by_slurm(place: Site, run: Run, folder: Path, port: int, stack: ExitStack) -> dict[int, int]:
    """As a batch script of the user would; its number is left in a file."""
    env = _environment(run, 0, place.lab.hosts[0].address, port)
    del env["RANK"], env["LOCAL_RANK"]
    exports = "\n".join(f"export {name}='{value}'" for name, value in env.items())
    words = f'{sys.executable} {_JOB} {run.kind} "{run.fault}" {run.culprit} {folder}'
    ranks = f"export RANK=$SLURM_PROCID LOCAL_RANK=0; exec {words}"
    script = folder / "script"
    started = len(_started(run))
    script.write_text(
        f"#!/bin/sh\n{exports}\nsrun -N{started} -n{started} --kill-on-bad-exit=0 sh -c '{ranks}'\nsleep 1000\n"
    )
    host = place.lab.hosts[0]
    submit = ["sbatch", "--parsable", f"-N{run.hosts}", "--ntasks-per-node=1", "-o", f"{folder}/log", str(script)]
    number = host.check([*PLAIN, "env", "HOME=/tmp", *submit]).strip()
    (folder / "job").write_text(number)
    stack.callback(host.run, ["scancel", "--signal=KILL", "--full", number])
    stack.callback(host.run, ["scancel", number])
    return {-1: int(number)}


def _settle(place: Site, run: Run, folder: Path, pids: dict[int, int], stack: ExitStack) -> None:
    """Wait until all are where they stay, and do what is done to the job from outside."""
    begun = time.monotonic()
    if (run.is_ == "sound" and run.fault in YOUNG) or run.fault == "not started":
        time.sleep(12)
    else:
        later = run.culprit if run.kind == "pipe" else run.world  # stages behind it get nothing any more
        ready = [folder / f"ready.{rank}" for rank in _started(run) if rank <= later]
        limit = _IMPORTS_S if run.by == "slurm" else _STARTS_S
        until(f"{run.name}: all ranks are ready", lambda: all(path.exists() for path in ready), seconds=limit)
    if run.by == "slurm":
        time.sleep(max(0.0, _OLD_S - (time.monotonic() - begun)))
    host = _host(place, run, max(run.who, 0))
    if run.fault in ("frozen", "throttled"):
        _confine(host, run, pids[run.who], stack)
    if run.fault == "takes memory":
        _give_no_memory(host, pids[run.who], stack)
    if run.fault == "all sleep":
        time.sleep(_SETTLES_S)
    if run.fault == "debugger":
        tracer = host.start([*PYTHON, "-c", _ATTACH, str(pids[run.who])])
        stack.callback(tracer.kill)
        line_of(tracer.stdout, 20)
    if run.is_ == "network":
        cut = {
            "cut off": lambda: faults.cut_off(host, "eth0"),
            "link down": lambda: faults.link_down(host),
            "drops what comes in": lambda: faults.drop_tcp(host),
        }
        stack.enter_context(cut[run.fault]())
        time.sleep(_NETWORK_S)
    time.sleep(_SETTLES_S)


def _confine(host: Host, run: Run, pid: int, stack: ExitStack) -> None:
    """Into a cgroup of its own that is frozen, or has a hundredth of a core."""
    kind, file, value = (
        ("freezer", "freezer.state", "FROZEN") if run.fault == "frozen" else ("cpu", "cpu.cfs_quota_us", "1000")
    )
    group = f"/sys/fs/cgroup/{kind}/{place_name(host)}-{pid}"
    host.check(["sh", "-euc", f"mkdir {group}; echo {pid} > {group}/cgroup.procs; echo {value} > {group}/{file}"])
    undo = {"FROZEN": "THAWED"}.get(value, "-1")
    leave = f"echo {undo} > {group}/{file}; while read p; do echo $p > /sys/fs/cgroup/{kind}/cgroup.procs; done"
    stack.callback(host.run, ["sh", "-c", f"{leave} < {group}/cgroup.procs; rmdir {group}"])
    if kind == "cpu":
        time.sleep(_NETWORK_S)
        counts = dict(line.split() for line in host.check(["cat", f"{group}/cpu.stat"]).splitlines())
        if 2 * int(counts["nr_throttled"]) < int(counts["nr_periods"]):
            raise LabError(f"the quota does not hold it back: {counts}")


def _give_no_memory(host: Host, pid: int, stack: ExitStack) -> None:
    """Into a cgroup whose limit is soon reached, and in which nobody is killed for that."""
    group = f"/sys/fs/cgroup/memory/{place_name(host)}-{pid}"
    limit = f"echo 1 > {group}/memory.oom_control; echo 100M > {group}/memory.limit_in_bytes"
    host.check(["sh", "-euc", f"mkdir {group}; {limit}; echo {pid} > {group}/cgroup.procs"])
    leave = "while read p; do echo $p > /sys/fs/cgroup/memory/cgroup.procs; done"
    undo = f"echo -1 > {group}/memory.limit_in_bytes; {leave} < {group}/cgroup.procs; rmdir {group}"
    stack.callback(host.run, ["sh", "-c", undo])
    time.sleep(_NETWORK_S)


def place_name(host: Host) -> str:
    """Of its cgroups: no other lab's."""
    return f"{host.lab.tag}-{host.name}"


def _looked(place: Site, run: Run, pids: dict[int, int]) -> list[Named]:
    """What the command accuses of this job, for a user who logs in from the first host."""
    host = place.lab.hosts[0]
    where = ["--job", str(pids[-1])] if run.by == "slurm" else [
        "--hosts", ",".join(host.name for host in place.lab.hosts[: run.hosts])
    ]  # fmt: skip
    env = {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [*PLAIN, *PYTHON, "-m", "ncclcheck", "hang", *where, "-o", "json"]
    done = host.run(argv, seconds=_LOOK_S, env=env, cwd=str(ROOT))
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"hang ended with {done.returncode}: {done.stderr[-2000:]}")
    return accused(json.loads(done.stdout))


def accused(document: dict[str, Any]) -> list[Named]:
    """The findings that hold somebody responsible."""
    return [
        Named(verdict["code"], finding["where"]["rank"], finding["where"]["node"] or "", finding["what"])
        for verdict in document["verdicts"]
        for finding in verdict["findings"]
        if finding["state"] in ("fail", "warn")
    ]

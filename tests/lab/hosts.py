"""The hosts and the switches between them, and their end."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.conftest import environment
from tests.lab.needs import need
from tests.lab.tools import QUICK, LabError, ip, kill_all, namespaces, pids_in, tool

PYTHON = (sys.executable,)
DATA, MGMT = "10.77.0", "10.78.0"
PREFIX = "nclab-"
_COMES_UP = 60.0  # seconds; half a second by itself, 10 s measured at a load of 32 on 2 cores
_labs = itertools.count()

# What makes a namespace a host: its own name, /sys, /etc, /run and boot_id. The last command lives until its stdin
# ends, so that a host ends with the tests that made it; as process 1 a shell above it reaps orphans, which Slurm
# waits for. A fresh /sys has no cgroups, and slurmd needs them.
_BECOME = """
hostname "$1"
mount --rbind /sys/fs/cgroup "$2/cgroup"
mount -t sysfs sysfs /sys
if [ -d /sys/fs/cgroup ]; then mount --rbind "$2/cgroup" /sys/fs/cgroup; fi
cp -a /etc "$2/etc"
mount --bind "$2/etc" /etc
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
mount -t tmpfs tmpfs /run
mkdir /run/sshd
echo ready
if [ "${3-}" ]; then cat; exit; fi
exec cat
"""


@dataclass
class Host:
    """One host of a lab. `address` is that of eth0, `mgmt` that of mgmt0 (None: it has no mgmt0)."""

    lab: Lab
    name: str
    address: str
    mgmt: str | None
    namespace: str
    folder: Path
    holder: subprocess.Popen[bytes]
    length: int = 24
    own_pids: bool = False

    @property
    def etc(self) -> Path:
        """Its own /etc, as this side sees it."""
        return self.folder / "etc"

    def run(
        self, argv: Sequence[str], seconds: float = QUICK, *, env: Mapping[str, str] | None = None, cwd: str = "/"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the host and wait. Raises TimeoutExpired, having killed the command's session."""
        process = self.start(argv, env=env, cwd=cwd)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def check(self, argv: Sequence[str], seconds: float = QUICK) -> str:
        """Run a command that must succeed; its stdout. Raises LabError with what it printed."""
        done = self.run(argv, seconds)
        if done.returncode:
            raise LabError(f"{self.name}: {' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stdin: int | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command in the host, in a session of its own. `env` is added to a clean environment."""
        inside = ["env", "--default-signal=INT,QUIT,PIPE", "-C", cwd, *argv]
        pids = [f"--pid=/proc/{self.holder.pid}/ns/pid_for_children"] if self.own_pids else []
        process = subprocess.Popen(
            ["nsenter", "--target", str(self.holder.pid), "--mount", "--uts", "--net", *pids, *inside],
            env=environment(**(env or {})),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        self.lab.started.append(process)
        return process

    def pids(self) -> list[int]:
        """Every process that runs in this host, whoever started it."""
        return [pid for pid in pids_in(self.namespace) if pid != self.holder.pid]

    def ip(self, *lines: str) -> None:
        """Some lines of ip(8) in this host."""
        ip(self.namespace, *lines)

    def write_names(self, names: Mapping[str, str]) -> None:
        """Its /etc/hosts: host name -> address."""
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
        (self.etc / "hosts").write_text("\n".join(lines) + "\n")

    def names(self) -> dict[str, str]:
        """What its /etc/hosts says now, without localhost."""
        rows = [line.split() for line in (self.etc / "hosts").read_text().splitlines()]
        return {name: address for address, name in rows if name != "localhost"}


class Lab:
    """2 to 9 hosts h1, h2, ... that see each other on eth0 and, with `mgmt`, on mgmt0.

    own_pids: each numbers its processes itself and sees no other's, as machines do; a signal goes through `run`.
    """

    def __init__(self, hosts: int = 2, mgmt: bool = True, own_pids: bool = False) -> None:
        self.size = hosts
        self.has_mgmt = mgmt
        self.own_pids = own_pids
        self.tag = f"{PREFIX}{os.getpid()}-{next(_labs)}"
        self.hosts: list[Host] = []
        self.started: list[subprocess.Popen[str]] = []
        self._end = contextlib.ExitStack()

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def __enter__(self) -> Lab:
        need()
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.tag}-", dir="/tmp"))
        self.folder.chmod(0o755)
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._remove()

    def switch(self, device: str) -> str:
        """The namespace of the switch that this device of every host is plugged into."""
        return f"{self.tag}-{'data' if device == 'eth0' else 'mgmt'}"

    def names(self) -> dict[str, str]:
        """Host name -> address of its eth0, and hN-mgmt -> address of its mgmt0."""
        names = {host.name: host.address for host in self.hosts}
        return names | {f"{host.name}-mgmt": host.mgmt for host in self.hosts if host.mgmt}

    def write_names(self) -> None:
        """Every host's /etc/hosts as it should be."""
        for host in self.hosts:
            host.write_names(self.names())

    def _build(self) -> None:
        for device in ("eth0", "mgmt0")[: 1 + self.has_mgmt]:
            tool(["ip", "netns", "add", self.switch(device)])
            ip(self.switch(device), "link set lo up", "link add name switch type bridge", "link set switch up")
        self.hosts = [self._host(number) for number in range(1, self.size + 1)]
        for host in self.hosts:
            _await_ready(host)
            self._plug(host)
            files_only = re.sub(r"(?m)^hosts:.*$", "hosts: files", (host.etc / "nsswitch.conf").read_text())
            (host.etc / "nsswitch.conf").write_text(files_only)
            (host.etc / "hostname").write_text(host.name + "\n")
        self.write_names()

    def _host(self, number: int) -> Host:
        name, namespace = f"h{number}", f"{self.tag}-h{number}"
        folder = self.folder / name
        (folder / "cgroup").mkdir(parents=True)
        (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        tool(["ip", "netns", "add", namespace])
        pids = ["--pid", "--fork", "--kill-child", "--mount-proc"] if self.own_pids else []
        become = ["unshare", "--mount", "--uts", *pids, "sh", "-euc", _BECOME, "sh", name, str(folder), *pids[:1]]
        holder = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{namespace}", *become],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        mgmt = f"{MGMT}.{number * 11}" if self.has_mgmt else None
        address = f"{DATA}.{number * 11}"
        return Host(self, name, address, mgmt, namespace, folder, holder, own_pids=self.own_pids)

    def _plug(self, host: Host) -> None:
        host.ip("link set lo up")
        for device, address in (("eth0", host.address), ("mgmt0", host.mgmt)):
            if address:
                link = f"link add {host.name} type veth peer name {device} netns {host.namespace}"
                ip(self.switch(device), link, f"link set {host.name} master switch up")
                host.ip(f"addr add {address}/{host.length} dev {device}", f"link set {device} up")

    def _remove(self) -> None:
        try:
            remove(self.tag)
        finally:
            children: list[subprocess.Popen[Any]] = [*self.started, *(host.holder for host in self.hosts)]
            for process in children:
                _reap(process)


def _reap(process: subprocess.Popen[Any]) -> None:
    """Take a dead child's status and close its pipes; what was still to be written to it is of no interest."""
    process.wait(QUICK)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()


def _await_ready(host: Host) -> None:
    stdout = host.holder.stdout
    assert stdout is not None
    readable, _, _ = select.select([stdout], [], [], _COMES_UP)
    if not readable or stdout.readline() != b"ready\n":
        raise LabError(f"{host.name} did not come up")


def remove(tag: str) -> None:
    """End a lab: its processes, its namespaces and its files. Mounts end with the processes that saw them."""
    everywhere = namespaces(f"{tag}-")
    kill_all(lambda: [pid for name in everywhere for pid in pids_in(name)])
    for name in everywhere:
        tool(["ip", "netns", "delete", name])
    for folder in Path("/tmp").glob(f"{tag}-*"):
        shutil.rmtree(folder, onerror=_unless_gone)


def _unless_gone(
    _function: object, _path: str, error: tuple[type[BaseException], BaseException, TracebackType]
) -> None:
    """Another process may sweep what a dead lab has left, too."""
    gone = isinstance(error[1], OSError) and error[1].errno in (errno.ENOENT, errno.ENOTEMPTY, errno.ESTALE)
    if not gone:
        raise error[1]


def sweep() -> None:
    """Remove what was left by tests that were killed."""
    left = [*namespaces(PREFIX), *(folder.name for folder in Path("/tmp").glob(f"{PREFIX}*"))]
    tags = {match[0] for name in left if (match := re.match(rf"{PREFIX}\d+-\d+", name))}
    for tag in tags:
        if not Path(f"/proc/{tag.split('-')[1]}").exists():
            with contextlib.suppress(LabError):  # another test run removes it at the same time
                remove(tag)

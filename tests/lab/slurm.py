"""A real Slurm: munged, slurmctld on the first host, slurmd on each, over mgmt0 where there is one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from tests.lab.hosts import Host, Lab
from tests.lab.needs import command, need
from tests.lab.tools import LabError, until

_CONF = """\
ClusterName=lab
SlurmctldHost={first}({address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdLogFile={folder}/%n/slurmd.log
SlurmdSpoolDir={folder}/%n/spool
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0
LaunchParameters=use_interactive_step
ReturnToService=2
KillWait=5
{nodes}
PartitionName=lab Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=YES
"""
_NODE = "NodeName={name} NodeAddr={address} NodeHostname={name} Port=6818 CPUs=4 RealMemory=4000"


class Slurm:
    """Slurm on all hosts. srun, sbatch and salloc need no variable: each host's /etc/slurm has the conf."""

    def __init__(self, lab: Lab, *more: str) -> None:
        """more: further lines of slurm.conf."""
        need("munged", "slurmctld", "slurmd", "srun")
        self.lab = lab
        self._configure(more)
        self._munge()
        first, *_ = lab.hosts
        first.start([str(command("slurmctld")), "-D"])
        for host in lab.hosts:
            self._start(host)
        until("all Slurm nodes are idle", self._idle, seconds=20)

    def pid(self, host: Host) -> int:
        """The process number of a host's slurmd."""
        return int((host.folder / "slurmd.pid").read_text())

    @contextmanager
    def silent(self, host: Host) -> Iterator[None]:
        """The host's slurmd answers nobody; Slurm still takes the node for a good one."""
        slurmd = psutil.Process(self.pid(host))
        slurmd.suspend()
        until(f"{host.name}'s slurmd is stopped", lambda: slurmd.status() == psutil.STATUS_STOPPED)
        try:
            yield
        finally:
            slurmd.resume()

    @contextmanager
    def dead(self, host: Host) -> Iterator[None]:
        """The host's slurmd is gone; Slurm still takes the node for a good one."""
        psutil.Process(self.pid(host)).kill()
        try:
            yield
        finally:
            self._start(host)
            self.resume(host)

    @contextmanager
    def prolog(self, host: Host, script: str) -> Iterator[None]:
        """Before a job's first step on this host slurmd runs a script as root."""
        program, conf = host.folder / "prolog", host.etc / "slurm" / "slurm.conf"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        before = conf.read_text()
        conf.write_text(f"{before}Prolog={program}\n")
        self._restart(host)
        try:
            yield
        finally:
            conf.write_text(before)
            self._restart(host)
            self.resume(host)

    def resume(self, host: Host) -> None:
        """Slurm takes the node for a good one again."""
        self.lab.hosts[0].run(["scontrol", "update", f"nodename={host.name}", "state=resume"])

    def _start(self, host: Host) -> None:
        host.start([str(command("slurmd")), "-D", "-N", host.name])

    def _restart(self, host: Host) -> None:
        slurmd = psutil.Process(self.pid(host))
        slurmd.kill()
        slurmd.wait(10)
        written = host.folder / "slurmd.pid"
        written.unlink()
        self._start(host)
        until(f"{host.name}'s slurmd is there again", lambda: written.exists() and bool(written.read_text()))

    def _configure(self, more: tuple[str, ...]) -> None:
        folder, first = self.lab.folder, self.lab.hosts[0]
        (folder / "state").mkdir()
        nodes = [_NODE.format(name=host.name, address=host.mgmt or host.address) for host in self.lab.hosts]
        text = _CONF.format(
            folder=folder,
            first=first.name,
            address=first.mgmt or first.address,
            nodes="\n".join([*more, *nodes]),
        )
        for host in self.lab.hosts:
            (host.folder / "spool").mkdir()
            (host.etc / "slurm").mkdir(exist_ok=True)
            (host.etc / "slurm" / "slurm.conf").write_text(text)

    def _munge(self) -> None:
        """One munged serves all hosts: they meet at its socket, which is a file."""
        folder = self.lab.folder
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder}/munge.{end}" for option, end in files.items()]
        self.lab.hosts[0].start([str(command("munged")), "--foreground", *options])
        until("munged listens", (folder / "munge.socket").exists)
        for host in self.lab.hosts:  # where munge(1) looks for it
            host.check(["mkdir", "-p", "/run/munge"])
            host.check(["ln", "-sf", f"{folder}/munge.socket", "/run/munge/munge.socket.2"])

    def _idle(self) -> bool:
        done = self.lab.hosts[0].run(["sinfo", "-h", "-N", "-o", "%T"])
        if done.returncode and "Unable to contact" not in done.stderr:
            raise LabError(done.stderr)
        return done.stdout.split() == ["idle"] * len(self.lab.hosts)

"""The manifests' own lines over the lab's hosts, as a cluster would start them: no Kubernetes runs here.

Each pod is a host with the pod's name, its variables and its DNS names; a name is there from the pod's start on.
What a preflight becomes is replaced by a word, and of a manifest's lines nothing else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.pods import Pod, pods
from tests.lab import Host, Lab

Order = Callable[["Cluster"], list[subprocess.Popen[str]]]
_RUNS_S = 150.0
_LATE_S = 4.0


class Cluster:
    """Pods on hosts of a lab; DNS knows a pod from its first start on."""

    def __init__(self, lab: Lab, listed: list[Pod], folder: Path, command: str = "") -> None:
        self.pods, self.command = listed, command
        self.hosts = dict(zip([pod.host for pod in listed], lab.hosts, strict=False))
        self._names: dict[str, str] = {}
        self._bin = folder / "bin"
        self._bin.mkdir()
        (self._bin / "torchrun").write_text("#!/bin/sh\necho trained $*\n")
        (self._bin / "ncclcheck").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ncclcheck "$@"\n')
        for program in self._bin.iterdir():
            program.chmod(0o755)
        for host in self.hosts.values():
            host.write_names({})

    def start(self, pod: Pod, *more: str) -> subprocess.Popen[str]:
        """Start the pod's container; `command` stands for preflight where one is given."""
        host: Host = self.hosts[pod.host]
        self._names |= {pod.dns: host.address, pod.host: host.address}
        for machine in self.hosts.values():
            machine.write_names(self._names)
        host.check(["hostname", pod.host])
        argv = [
            word.replace("preflight --level quick", self.command or "preflight --level quick") for word in pod.argv
        ]
        if self.command and argv[:2] == ["ncclcheck", "preflight"]:
            argv = ["ncclcheck", *self.command.split()]
        path = f"{self._bin}:{os.environ['PATH']}"
        return host.start(
            [*argv, *more], env={**pod.env, "PATH": path, "NCCLCHECK_SECRET": "0123456789abcdef" * 4}
        )


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(hosts=2) as lab:
        yield lab


def _ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=_RUNS_S)
    return process.returncode, out, err


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        "kubernetes-init-container.yaml",
        "kubernetes-job.yaml",
        "jobset.yaml",
        "kubeflow-trainjob.yaml",
        "leaderworkerset.yaml",
        "volcano-job.yaml",
    ],
)
def test_the_lines_of_a_manifest(lab: Lab, tmp_path: Path, name: str) -> None:
    cluster = Cluster(lab, pods(name), tmp_path)
    first, second = [_ended(process) for process in [cluster.start(pod) for pod in cluster.pods]]
    assert (first[0], second[0]) == (0, 0), first[1] + first[2] + second[2]
    assert "2 nodes" in first[1] + first[2]
    if "torchrun" in " ".join(cluster.pods[0].argv):
        assert "trained --nnodes 2 --nproc-per-node 8 --node-rank 1" in second[1]


def _all_at_once(cluster: Cluster) -> list[subprocess.Popen[str]]:
    return [cluster.start(pod) for pod in cluster.pods]


def _leader_late(cluster: Cluster) -> list[subprocess.Popen[str]]:
    """Nothing resolves the leader's name before it starts."""
    second = cluster.start(cluster.pods[1])
    time.sleep(_LATE_S)
    return [cluster.start(cluster.pods[0]), second]


def _worker_restarts(cluster: Cluster) -> list[subprocess.Popen[str]]:
    """A worker is killed while it waits for the leader, and starts again."""
    killed = cluster.start(cluster.pods[1])
    time.sleep(2)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    return [cluster.start(pod) for pod in cluster.pods]


def _leader_restarts(cluster: Cluster) -> list[subprocess.Popen[str]]:
    """The leader is killed while it waits, and starts again; the worker comes later."""
    killed = cluster.start(cluster.pods[0])
    time.sleep(2)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    return [cluster.start(pod) for pod in cluster.pods]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("leaderworkerset.yaml", _leader_late),
        *(
            pytest.param(name, order, marks=pytest.mark.nightly)
            for name in ("leaderworkerset.yaml", "kubeflow-trainjob.yaml")
            for order in (_all_at_once, _leader_late, _worker_restarts, _leader_restarts)
        ),
    ],
)
def test_pods_that_come_late_or_again(lab: Lab, tmp_path: Path, name: str, order: Order) -> None:
    cluster = Cluster(lab, pods(name), tmp_path, "env --wait 60")
    first, second = [_ended(process) for process in order(cluster)]
    assert (first[0], second[0]) == (0, 0), first[1] + first[2] + second[2]
    assert "2 nodes" in first[1] + first[2]


@pytest.mark.timeout(300)
def test_a_pod_that_is_there_twice_is_named(lab: Lab, tmp_path: Path) -> None:
    """A controller may start a pod's successor before the old one is gone."""
    cluster = Cluster(lab, pods("leaderworkerset.yaml"), tmp_path, "env --wait 20")
    leader, worker = cluster.pods
    running = [cluster.start(worker), cluster.start(worker), cluster.start(leader)]
    twin, other, first = [_ended(process) for process in running]
    assert first[0] == 1
    assert "FAIL    RUN008" in first[1]
    assert "two processes of node-of-serve-0-1" in first[1]
    assert sorted([twin[0], other[0]]) == [1, 2]
    assert "node rank 1 came twice" in twin[2] + other[2]

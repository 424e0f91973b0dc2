"""The job probe: which variables leave the process, and which never do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ncclcheck.probes.facts import Resolution, Unread, Variable
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.environment import job_system
from tests.helpers.trees import tree


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG", "TORCH_NCCL_TRACE_BUFFER_SIZE", "GLOO_SOCKET_IFNAME", "SLURM_JOB_GPUS", "MASTER_ADDR",
        "TORCHELASTIC_RUN_ID", "RANK", "GROUP_RANK", "LD_PRELOAD", "KUBERNETES_SERVICE_HOST", "NCCL_IB_PKEY",
        "OMPI_COMM_WORLD_RANK", "PET_NNODES",
    ],
)  # fmt: skip
def test_reported(name: str) -> None:
    assert job_system.environment_of_families({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        "HOME", "PATH", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT", "CUDA_API_TOKEN", "NCCL_MY_KEY", "TORCH_PASSWORD",
        "SLURM_SECRET", "RANKS", "MY_NCCL_DEBUG", "fi_token",
    ],
)  # fmt: skip
def test_not_reported(name: str) -> None:
    assert job_system.environment_of_families({name: "1"}) == {}


def test_a_recorded_job(tmp_path: Path) -> None:
    env = {"PATH": "/opt/slurm/bin:bin::/usr/bin", "SLURM_JOB_ID": "7", "NCCL_DEBUG": "INFO", "HF_TOKEN": "x"}
    facts = job_system.probe(
        tree(tmp_path, {"/opt/slurm/bin/srun": "", "/usr/bin/docker": "", "/bin/kubectl": ""}, environment=env)
    )
    assert facts.variables == [Variable(name="NCCL_DEBUG", value="INFO"), Variable(name="SLURM_JOB_ID", value="7")]
    assert facts.launcher_programs == ["srun", "docker"]


def test_nothing_recorded(tmp_path: Path) -> None:
    facts = job_system.probe(tree(tmp_path, {}))
    assert isinstance(facts.variables, Unread)
    assert facts.variables.kind == "recorded"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"A": 1}', b"\xff", b"[" * 5000])
def test_a_damaged_recording(tmp_path: Path, content: bytes) -> None:
    facts = job_system.probe(tree(tmp_path, {"/.ncclcheck/environment.json": content}))
    assert isinstance(facts.variables, Unread)
    assert facts.variables.kind == "broken"


def test_a_value_that_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"NCCL_NAME_OF_TEST", b"a\xffb")
    assert Variable(name="NCCL_NAME_OF_TEST", value="a\\xffb") in job_system.probe(Machine()).variables  # type: ignore[operator]


def test_the_holder_of_the_port_is_named_and_we_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        port = child.stdout.readline().decode().strip()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", port)
        facts = job_system.probe(Machine())
        child.communicate()
    assert facts.master == Resolution(name="127.0.0.1", addresses=["127.0.0.1"])
    assert isinstance(facts.port_holders, list)
    assert [(holder.port, holder.pid) for holder in facts.port_holders] == [(int(port), child.pid)]
    with socket.create_server(("127.0.0.1", 0)) as ours:
        monkeypatch.setenv("MASTER_PORT", str(ours.getsockname()[1]))
        assert job_system.probe(Machine()).port_holders == []


def test_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    facts = job_system.probe(Machine())
    assert isinstance(facts.master, Unread)
    assert isinstance(facts.port_holders, Unread)
    assert (facts.master.kind, facts.port_holders.kind) == ("absent", "absent")

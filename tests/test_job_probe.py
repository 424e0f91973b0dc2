"""The job probe: which variables leave the process, and which never do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ncclcheck.probes import job
from ncclcheck.probes.facts import Unread, Variable
from ncclcheck.probes.machine import Machine
from tests.trees import tree


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG", "TORCH_NCCL_TRACE_BUFFER_SIZE", "GLOO_SOCKET_IFNAME", "SLURM_JOB_GPUS", "MASTER_ADDR",
        "TORCHELASTIC_RUN_ID", "RANK", "GROUP_RANK", "LD_PRELOAD", "KUBERNETES_SERVICE_HOST", "NCCL_IB_PKEY",
        "OMPI_COMM_WORLD_RANK", "PET_NNODES",
    ],
)  # fmt: skip
def test_reported(name: str) -> None:
    assert job.environment_of_families({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        "HOME", "PATH", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT", "CUDA_API_TOKEN", "NCCL_MY_KEY", "TORCH_PASSWORD",
        "SLURM_SECRET", "RANKS", "MY_NCCL_DEBUG", "fi_token",
    ],
)  # fmt: skip
def test_not_reported(name: str) -> None:
    assert job.environment_of_families({name: "1"}) == {}


def test_a_recorded_job(tmp_path: Path) -> None:
    env = {"PATH": "/opt/slurm/bin:bin::/usr/bin", "SLURM_JOB_ID": "7", "NCCL_DEBUG": "INFO", "HF_TOKEN": "x"}
    found = job.probe(
        tree(tmp_path, {"/opt/slurm/bin/srun": "", "/usr/bin/docker": "", "/bin/kubectl": ""}, environment=env)
    )
    assert found.variables == [Variable(name="NCCL_DEBUG", value="INFO"), Variable(name="SLURM_JOB_ID", value="7")]
    assert found.launcher_programs == ["srun", "docker"]


def test_nothing_recorded(tmp_path: Path) -> None:
    found = job.probe(tree(tmp_path, {}))
    assert isinstance(found.variables, Unread)
    assert found.variables.kind == "recorded"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"A": 1}', b"\xff", b"[" * 5000])
def test_a_damaged_recording(tmp_path: Path, content: bytes) -> None:
    found = job.probe(tree(tmp_path, {"/.ncclcheck/environment.json": content}))
    assert isinstance(found.variables, Unread)
    assert found.variables.kind == "broken"


def test_a_value_that_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"NCCL_NAME_OF_TEST", b"a\xffb")
    assert Variable(name="NCCL_NAME_OF_TEST", value="a\\xffb") in job.probe(Machine()).variables  # type: ignore[operator]

"""Rules about GPUs and HCAs: signs without use, versions that do not fit, counts that are required."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Gpus, Job, Policy, Rdma, Requirement, Stack, Unread
from tests.helpers.clusters import ABSENT, DENIED, node, states_of, verdict

TORCH = Stack(torch="2.9.0+cu128", torch_cuda="12.8")
CPU_TORCH = Stack(torch="2.9.0+cpu", torch_cuda=Unread("absent", "torch was built without CUDA"))
ROCM_TORCH = Stack(torch="2.9.0+rocm6.4", torch_cuda=Unread("absent", "torch was built without CUDA"))
NO_LIBRARY = Unread("no_tool", "libcuda.so.1 cannot be loaded")
NONE = Gpus(pci=ABSENT, devices=ABSENT, usable=ABSENT, cuda_error=ABSENT, driver_cuda=ABSENT)


def gpus(**changes: Any) -> Gpus:
    given = {"pci": ["0000:19:00.0"], "devices": ["nvidia0"], "usable": 1, "cuda_error": "", "driver_cuda": "12.8"}
    return Gpus(**{**given, **changes})


SICK = gpus(usable=0, cuda_error="CUDA_ERROR_SYSTEM_NOT_READY (802)")


@pytest.mark.parametrize(
    ("seen", "stack", "env", "state"),
    [
        (gpus(), TORCH, {}, "ok"),
        (gpus(), Stack(torch=ABSENT, torch_cuda=ABSENT), {}, "ok"),
        (gpus(driver_cuda="12.2"), TORCH, {}, "ok"),
        (gpus(driver_cuda="11.4"), TORCH, {}, "fail"),
        (gpus(), CPU_TORCH, {}, "fail"),
        (SICK, TORCH, {}, "fail"),
        (gpus(usable=NO_LIBRARY, driver_cuda=NO_LIBRARY), TORCH, {}, "fail"),
        (gpus(usable=Unread("timed_out", "10 s")), TORCH, {}, "unknown"),
        (gpus(pci=[], devices=[], usable=0, cuda_error="x (100)"), TORCH, {}, "skipped"),
        (NONE, TORCH, {}, "skipped"),
        (NONE, TORCH, {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}, "fail"),
        (NONE, ROCM_TORCH, {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "8"}, "note"),
        (gpus(), ROCM_TORCH, {}, "fail"),
        (gpus(pci=ABSENT, devices=ABSENT), TORCH, {}, "ok"),
        (SICK, TORCH, {"SLURM_JOB_ID": "7"}, "note"),
        (SICK, TORCH, {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "0"}, "note"),
        (SICK, TORCH, {"SLURM_JOB_ID": "7", "SLURM_STEP_GPUS": "0"}, "note"),
        (SICK, TORCH, {"CUDA_VISIBLE_DEVICES": ""}, "note"),
        (SICK, TORCH, {"CUDA_VISIBLE_DEVICES": "-1"}, "note"),
        (SICK, TORCH, {"CUDA_VISIBLE_DEVICES": "0"}, "fail"),
        (gpus(devices=["nvidia0", "nvidia1"]), TORCH, {}, "note"),
        (gpus(devices=[], usable=0, cuda_error="x (100)"), TORCH, {}, "fail"),
        (gpus(pci=DENIED, devices=ABSENT, usable=NO_LIBRARY), TORCH, {}, "unknown"),
    ],
)
def test_gpus_can_be_used(seen: Gpus, stack: Stack, env: dict[str, str], state: str) -> None:
    assert verdict("GPU001", node("a", gpus=seen, stack=stack, env=env)).state.value == state


def test_the_mend_fits_the_reason() -> None:
    fabric = verdict("GPU001", node("a", gpus=SICK, stack=TORCH)).findings[0]
    assert fabric.remedies[0].commands == ["systemctl restart nvidia-fabricmanager"]
    container = verdict("GPU001", node("a", gpus=gpus(usable=NO_LIBRARY), stack=TORCH)).findings[0]
    assert "docker run --gpus all ..." in container.remedies[0].commands


def test_gloo_that_was_asked_for_is_a_note() -> None:
    machine = node("a", gpus=SICK, stack=CPU_TORCH)
    assert verdict("GPU001", machine, job=Job(backend_asked="gloo")).state.value == "note"


def test_only_the_sick_node_is_named() -> None:
    nodes = [node("a", gpus=gpus(), stack=TORCH), node("b", gpus=SICK, stack=TORCH), node("login", gpus=NONE)]
    assert states_of(verdict("GPU001", *nodes)) == [("fail", "b"), ("ok", "a")]


@pytest.mark.parametrize("code", ["GPU002", "RDM001"])
def test_nothing_required(code: str) -> None:
    judgement = verdict(code, node("a"))
    assert (judgement.state.value, judgement.reason) == ("skipped", "nothing required")


@pytest.mark.parametrize(
    ("count", "state"),
    [(8, "ok"), (9, "ok"), (7, "fail"), (ABSENT, "fail"), (DENIED, "fail"), (NO_LIBRARY, "fail")],
)
def test_required_gpus(count: Any, state: str) -> None:
    policy = Policy(require=[Requirement(what="gpu", count=8), Requirement(what="GPU001")])
    assert verdict("GPU002", node("a", gpus=Gpus(usable=count)), policy=policy).state.value == state


@pytest.mark.parametrize(
    ("hcas", "state"), [(["a", "b"], "ok"), (["a"], "fail"), (ABSENT, "fail"), (DENIED, "fail")]
)
def test_required_hcas(hcas: Any, state: str) -> None:
    policy = Policy(require=[Requirement(what="hca", count=2)])
    assert verdict("RDM001", node("a", rdma=Rdma(hcas=hcas)), policy=policy).state.value == state

"""`tune` from end to end over the lab's hosts: the default interface is throttled, the other one is tried."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from ncclcheck.reports.judgement.findings import State
from tests.conftest import Ran, environment
from tests.lab import PYTHON, Lab, faults, start_sshd
from tests.nccl.torch_cuda import made

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
_OTHER = "mgmt0"


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("throttled", [True, False], ids=["throttled", "alike"])
def test_a_throttled_default_is_found_and_nothing_without_one(
    tmp_path: Path, backend: str, throttled: bool
) -> None:
    """Twice as fast, so that few pairs on a busy machine tell it; benchmarks/tuning_lab.py plants 10 %."""
    variable = f"{backend.upper()}_SOCKET_IFNAME"
    python, env = [*PYTHON], environment()
    if backend == "nccl":
        cuda = made(tmp_path / "cuda", {"": {"FAKECUDA_DEVICES": "1"}})
        python, env = [cuda.python], cuda.environment()
    options = ["--hosts", "h1,h2", "--backend", backend, "--nproc-per-node", "1", "--sizes", "256K", "--quick"]
    files = ["--env-file", str(tmp_path / "tuned.env"), "-o", "json"]
    with Lab(2) as lab, ExitStack() as limits:
        start_sshd(lab)
        for host in lab.hosts:
            limits.enter_context(faults.limited(host, "25mbit" if throttled else "50mbit"))
            limits.enter_context(faults.limited(host, "50mbit", _OTHER))
        argv = [*python, "-m", "ncclcheck", "tune", *options, "--try", f"{variable}={_OTHER}", *files]
        done = lab["h1"].run(argv, seconds=850, env={**env, variable: "eth0", "OMP_NUM_THREADS": "1"})
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr  # 1: NET008 sees the limit
    document = Ran(
        subprocess.CompletedProcess(argv, done.returncode, done.stdout.encode(), done.stderr.encode())
    ).document
    tuning = document.measurements.tuning
    assert tuning is not None
    assert tuning.tried[0].pairs == 8 if throttled else tuning.tried[0].pairs in (4, 8)  # 4: no promise by then
    assert not [
        verdict for verdict in document.verdicts if verdict.code == "BEN020" and verdict.state is not State.OK
    ]
    tuned = [
        (recommendation.variable, recommendation.value)
        for recommendation in document.recommendations
        if recommendation.basis == "measured"
    ]
    assert tuned == ([(variable, _OTHER)] if throttled else [])
    lines = (tmp_path / "tuned.env").read_text().splitlines()
    assert (f"export {variable}={_OTHER}" in lines) is throttled

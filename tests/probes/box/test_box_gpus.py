"""NVML beside a watched job: clocks, power, Xids as they come, and a driver that hangs."""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import pytest

from ncclcheck.probes.box import gpus
from ncclcheck.probes.box.read import reading
from tests.conftest import environment
from tests.helpers import fake_nvml

pytestmark = fake_nvml.needs_gcc


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.built(tmp_path_factory.mktemp("nvml"))


def _new(watch: gpus.GpuWatch, seconds: float) -> list[dict[str, Any]]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if events := watch.new():
            return events
        time.sleep(0.05)
    return []


def test_a_line_a_second(libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "gpus = 2",
        "0 utilization = 97",
        "0 clock = 1980",
        "0 processes = 4000:1",
        "1 xid = 79",
        "1 handle = 15",
    )
    for name, value in fake_nvml.environment(libraries, tmp_path / "told", *lines).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: None)  # it is found by the child, which begins with the path
    watch = gpus.GpuWatch()
    try:
        first = _new(watch, 30)[0]
    finally:
        watch.end()
    assert first["gpus"][0][:3] == [97, 69850, 1980]
    assert first["gpus"][1] == []
    assert first["pids"] == [[4000], []]


def test_nothing_where_there_is_no_nvml() -> None:
    watch = gpus.GpuWatch()
    assert watch.new() == []
    watch.end()


@pytest.mark.parametrize("hangs", [False, True])
def test_a_watched_job(libraries: Path, tmp_path: Path, hangs: bool) -> None:
    """The Xid and the clocks are in the box; a driver that hangs holds nobody up."""
    lines = ("gpus = 2", "* clock = 1410", "1 xid = 79", *(["hang = nvmlDeviceGetTemperature"] if hangs else []))
    env = environment(**fake_nvml.environment(libraries, tmp_path / "told", *lines))
    argv = [sys.executable, "-m", "ncclcheck", "watch", "--box", str(tmp_path / "box"), "--"]
    job = [*argv, sys.executable, "-c", "import time; time.sleep(4); raise RuntimeError('CUDA error')"]
    with Popen(job, env=env, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE) as process:
        _, page = process.communicate(timeout=90)
    [box] = reading.read(str(tmp_path / "box"))
    assert process.returncode == 1
    if hangs:
        assert box.xids == []
        assert b"CUDA error" in page
    else:
        assert [(xid.gpu, xid.code) for xid in box.xids] == [(1, 79)]
        assert [1410, 1410] in [sample.clocks for sample in box.samples]
        assert b"BOX012" in page
        assert b"GPU 1: the GPU has fallen off the bus (Xid 79)" in b" ".join(page.split())

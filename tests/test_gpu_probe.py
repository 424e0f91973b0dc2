"""The GPU probe on recorded machines, and the live one against a small libcuda built with gcc."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes import gpu
from ncclcheck.probes.facts import Gpus, Unread
from tests.trees import ROOT, tree

PCI = "/sys/bus/pci/devices"
NODE = {
    f"{PCI}/0000:19:00.0/vendor": "0x10de\n",
    f"{PCI}/0000:19:00.0/class": "0x030200\n",
    f"{PCI}/0000:05:00.0/vendor": "0x10de\n",
    f"{PCI}/0000:05:00.0/class": "0x068000\n",
    f"{PCI}/0000:03:00.0/vendor": "0x1a03\n",
    f"{PCI}/0000:03:00.0/class": "0x030000\n",
    "/dev/nvidia0": "",
    "/dev/nvidiactl": "",
}
LIBCUDA = """
#include <unistd.h>
int cuInit(unsigned flags) { if (CODE < 0) for (;;) sleep(1); return CODE; }
int cuDeviceGetCount(int *count) { *count = 8; return 0; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_NO_DEVICE"; return 0; }
"""
needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc to build a small libcuda")


def test_a_healthy_node(tmp_path: Path) -> None:
    cuda = {"error": "", "devices": 1, "driver": 12080}
    found = gpu.probe(tree(tmp_path, NODE, cuda=cuda))
    assert found == Gpus(pci=["0000:19:00.0"], devices=["nvidia0"], usable=1, cuda_error="", driver_cuda="12.8")


def test_a_container_without_the_driver(tmp_path: Path) -> None:
    found = gpu.probe(tree(tmp_path, NODE, cuda={"missing": "cannot open shared object file"}))
    assert found.pci == ["0000:19:00.0"]
    assert isinstance(found.usable, Unread)
    assert found.usable.kind == "no_tool"


def test_a_machine_without_any(tmp_path: Path) -> None:
    none = Unread("absent", "no NVIDIA device on this machine")
    found = gpu.probe(tree(tmp_path, {"/dev/null": "", f"{PCI}/0000:00:00.0/vendor": "0x8086\n"}))
    assert found == Gpus(pci=none, devices=none, usable=none, cuda_error=none, driver_cuda=none)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([*sorted(NODE), "/.ncclcheck/cuda.json"]), st.binary(max_size=60))
def test_no_content_of_a_file_makes_it_raise(path: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert isinstance(gpu.probe(tree(Path(folder), {**NODE, path: content})), Gpus)


@needs_gcc
@pytest.mark.parametrize(("code", "usable", "error"), [(0, 8, ""), (100, 0, "CUDA_ERROR_NO_DEVICE (100)")])
def test_asking_a_library(tmp_path: Path, code: int, usable: int, error: str) -> None:
    """In a process of its own: LD_LIBRARY_PATH counts from the start of a process."""
    _build(tmp_path, code)
    found = _probe_with(tmp_path)
    assert f"usable={usable}, cuda_error={error!r}, driver_cuda='12.8'" in found


@needs_gcc
def test_a_library_that_hangs_is_given_up(tmp_path: Path) -> None:
    _build(tmp_path, -1)
    found = _probe_with(tmp_path, "gpu._LONGEST_ANSWER = 0.5")
    assert "kind='timed_out'" in found


def _build(folder: Path, code: int) -> None:
    argv = ["gcc", "-shared", "-fPIC", f"-DCODE={code}", "-x", "c", "-", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(argv, input=LIBCUDA, text=True, check=True, timeout=60)


def _probe_with(folder: Path, before: str = "") -> str:
    code = f"from ncclcheck.probes import gpu, machine\n{before}\nprint(gpu.probe(machine.Machine()))"
    env = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60
    ).stdout

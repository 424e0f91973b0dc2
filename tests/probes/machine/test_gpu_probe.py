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

from ncclcheck.probes.facts import DeviceFile, Gpus, Unread, unread_in
from ncclcheck.probes.machine import gpu
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.gpu import imex, xids
from ncclcheck.probes.machine.gpu.mine import split
from ncclcheck.probes.machine.health import kernel_log
from tests.helpers.cards import card
from tests.helpers.trees import RECORDED, ROOT, needs_recorded, tree

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
    gpus = gpu.probe(tree(tmp_path, NODE, cuda=cuda))
    assert (gpus.pci, gpus.devices) == (["0000:19:00.0"], ["nvidia0"])
    assert (gpus.usable, gpus.cuda_error, gpus.driver_cuda) == (1, "", "12.8")


def test_a_container_without_the_driver(tmp_path: Path) -> None:
    gpus = gpu.probe(tree(tmp_path, NODE, cuda={"missing": "cannot open shared object file"}))
    assert gpus.pci == ["0000:19:00.0"]
    assert isinstance(gpus.usable, Unread)
    assert gpus.usable.kind == "no_tool"


def test_a_machine_without_any(tmp_path: Path) -> None:
    gpus = gpu.probe(tree(tmp_path, {"/dev/null": "", f"{PCI}/0000:00:00.0/vendor": "0x8086\n"}))
    facts = [fact for _, fact in unread_in(gpus)]
    assert set(facts) == {Unread("absent", "no NVIDIA device on this machine")}
    assert len(facts) == len(Gpus.__struct_fields__) - 1


def test_what_nvml_was_recorded_to_say(tmp_path: Path) -> None:
    """A healthy GPU, and a lost one that the job may not use."""
    card = {"name": "GPU 0", "index": 0, "trouble": "", "pci": "0000:19:00.0"}
    lost = {"name": "GPU 1", "index": 1, "trouble": "GPU is lost"}
    files = {**NODE, f"{PCI}/0000:19:00.0/numa_node": "1\n"}
    nvml = {"driver": "570.124.06", "user": "kim", "cards": [card, lost]}
    gpus = gpu.probe(tree(tmp_path, files, nvml=nvml, environment={"CUDA_VISIBLE_DEVICES": "0"}))
    assert not isinstance(gpus.cards, Unread)
    assert not isinstance(gpus.others, Unread)
    assert (gpus.nvml, gpus.user, gpus.chosen_by) == ("", "kim", "CUDA_VISIBLE_DEVICES")
    assert [(gpu_card.name, gpu_card.numa) for gpu_card in gpus.cards] == [("GPU 0", 1)]
    assert gpus.others[0].ecc == Unread("absent", "GPU 1: GPU is lost")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("4,1204,3600000000,-;NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen", (79, "0000:9b:00.0", 1.0)),
        ("[ 1800.500000] NVRM: Xid (PCI:0001:9B:00.0): 31, pid=1, Ch 8", (31, "0001:9b:00.0", 1.5)),
        ("4,1204,9999999999999,-;NVRM: Xid (PCI:0000:9b:00): 13, x", (13, "0000:9b:00.0", 0.0)),
        ("NVRM: Xid (PCI:0000:9b:00): 45, x", (45, "0000:9b:00.0", None)),
        ("[ 1800.500000] NVRM: Xid (PCI:0000:9b:00 GPU-I:05 GPU-CI:00): 43, pid=8", (43, "0000:9b:00.0", 1.5)),
        ("[ 1800.500000] nvidia-nvswitch3: SXid (PCI:0000:a9:00.0): 20034, Fatal", (20034, "0000:a9:00.0", 1.5)),
        ("[ 1800.500000] gpu-01 kernel: NVRM: Xid (PCI:0000:9b:00): 79, x", (79, "0000:9b:00.0", 1.5)),
        ("4,1204,3600000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module", None),
        ("NVRM: Xid (PCI:0000:9b:00): 99999999999999999999, x", None),
    ],
)  # fmt: skip
def test_lines_of_the_kernel_log(tmp_path: Path, line: str, error: tuple[int, str, float | None] | None) -> None:
    errors = gpu.probe(tree(tmp_path, {**NODE, "/proc/uptime": "7200.00 1.0\n"}, kernel_log=[line, "other"])).xids
    assert not isinstance(errors, Unread)
    seen = [(xid.code, xid.pci, None if isinstance(xid.hours, Unread) else xid.hours) for xid in errors]
    assert seen == ([error] if error else [])


def test_the_same_error_again_is_counted(tmp_path: Path) -> None:
    lines = [f"4,{n},{n}000000,-;NVRM: Xid (PCI:0000:9b:00): 63, row {n}" for n in (60, 3660)]
    errors = gpu.probe(tree(tmp_path, {**NODE, "/proc/uptime": "3660 1"}, kernel_log=lines)).xids
    assert not isinstance(errors, Unread)
    assert [(xid.times, xid.hours, xid.line[-8:]) for xid in errors] == [(2, 0.0, "row 3660")]


@pytest.mark.parametrize(
    ("env", "mine"),
    [
        ({}, "0123"),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, "02"),
        ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": ""}, ""),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1b"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "9" * 50}, ""),
        ({"SLURM_JOB_GPUS": "1,3"}, "13"),
        ({"SLURM_JOB_GPUS": "4,5,6,7"}, "0123"),
        ({"SLURM_STEP_GPUS": "2", "SLURM_JOB_GPUS": "1,2,3"}, "2"),
    ],
)
def test_which_gpus_are_the_jobs(env: dict[str, str], mine: str) -> None:
    gpus = [card(index, mig_instances=["MIG-1a", "MIG-1b"] if index == 1 else []) for index in range(4)]
    cards, others, chosen_by = split(gpus, env)
    assert "".join(str(device.index) for device in cards) == mine
    assert sorted(device.index for device in [*cards, *others]) == [0, 1, 2, 3]
    assert bool(chosen_by) == (chosen_by in env)


def test_numbers_name_no_gpu_for_sure_where_models_differ() -> None:
    gpus, env = [card(0, model="NVIDIA T4"), card(1)], {"CUDA_VISIBLE_DEVICES": "0"}
    assert len(split(gpus, env)[0]) == 2
    assert [device.model for device in split(gpus, {**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})[0]] == ["NVIDIA T4"]


@needs_recorded
def test_a_recorded_kernel_log(tmp_path: Path) -> None:
    log = RECORDED / "gpud/components/accelerator/nvidia/xid/testdata/dmesg-with-xid-119.log"
    errors = gpu.probe(tree(tmp_path, NODE, kernel_log=log.read_text().splitlines())).xids
    assert not isinstance(errors, Unread)
    assert [(xid.code, xid.pci) for xid in errors] == [(119, "0000:9b:00.0")]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([*sorted(NODE), *(f"/.ncclcheck/{name}.json" for name in ("cuda", "nvml", "kernel_log"))]),
    st.binary(max_size=60),
)
def test_no_content_of_a_file_makes_it_raise(path: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert isinstance(gpu.probe(tree(Path(folder), {**NODE, path: content})), Gpus)


@needs_gcc
@pytest.mark.parametrize(("code", "usable", "error"), [(0, 8, ""), (100, 0, "CUDA_ERROR_NO_DEVICE (100)")])
def test_asking_a_library(tmp_path: Path, code: int, usable: int, error: str) -> None:
    """In a process of its own: LD_LIBRARY_PATH counts from the start of a process."""
    _build(tmp_path, code)
    output = _probe_with(tmp_path)
    assert f"usable={usable}, cuda_error={error!r}, driver_cuda='12.8'" in output


@needs_gcc
def test_a_library_that_hangs_is_given_up(tmp_path: Path) -> None:
    _build(tmp_path, -1)
    output = _probe_with(tmp_path, "cuda.LONGEST_ANSWER_S = 0.5")
    assert "kind='timed_out'" in output


def _build(folder: Path, code: int) -> None:
    argv = ["gcc", "-shared", "-fPIC", f"-DCODE={code}", "-x", "c", "-", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(argv, input=LIBCUDA, text=True, check=True, timeout=60)


def _probe_with(folder: Path, before: str = "") -> str:
    code = f"""
from ncclcheck.probes.machine import gpu, access as machine
from ncclcheck.probes.machine.gpu import cuda
{before}
print(gpu.probe(machine.Machine()))
"""
    env = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.parametrize(
    ("journal", "files", "codes"),
    [
        ("[    1.5] h kernel: Linux\n[    9.5] h kernel: NVRM: Xid (PCI:0000:9b:00): 79, x\n", {}, ["79"]),
        ("[    1.5] h kernel: Linux version 6.8\n", {"kern.log": "Linux version 6.8\nNVRM: Xid y\n"}, []),
        ("", {"kern.log": "NVRM: Xid old\nLinux version 6.8\nNVRM: Xid (PCI:0000:9b:00): 31, x\n"}, ["31"]),
        ("", {"kern.log": "rotated, without the start of the kernel: NVRM: Xid\n"}, None),
        ("", {}, None),
    ],
    ids=["journal", "a journal without any", "file", "file without the start", "nothing"],
)
def test_the_kernel_log_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str, files: dict[str, str], codes: list[str] | None
) -> None:
    """Where /dev/kmsg is root's: the journal, then the files of syslog, from the last start of the kernel on."""
    program = tmp_path / "bin/journalctl"
    program.parent.mkdir()
    (tmp_path / "said").write_text(journal)
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/said\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(kernel_log, "_LOG", str(tmp_path / "no kmsg"))
    (tmp_path / "var/log").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "var/log" / name).write_text(text)
    events = xids.xids(Machine(str(tmp_path)))
    assert (None if isinstance(events, Unread) else [str(xid.code) for xid in events]) == codes


def test_channels_of_imex(tmp_path: Path) -> None:
    assert imex.channels(Machine(str(tmp_path))) == []
    folder = tmp_path / imex.FOLDER.strip("/")
    folder.mkdir(parents=True)
    (folder / "channel0").write_text("")
    (folder / "channel1").mkdir()
    files = imex.channels(Machine(str(tmp_path)))
    assert files == [DeviceFile(name="channel0"), DeviceFile(name="channel1", error="Is a directory")]

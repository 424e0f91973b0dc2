"""Torch's CUDA build, its ProcessGroupNCCL and NCCL under the real commands, without a GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclcheck.reports.judgement.findings import State
from tests.commands.test_on_gpu import two_nodes
from tests.conftest import Ran
from tests.helpers.fake_nvml import needs_gcc
from tests.lab import Lab, start_sshd
from tests.nccl import build, operators
from tests.nccl.torch_cuda import SOURCES, Cuda, made

_COLLECTIVES = Path(__file__).with_name("collectives.py")
_REFUSED = 98  # cudaErrorInvalidDeviceFunction
# What a sound run on two shared cores says of them: ranks that compute there are late, the time is too short, and
# the machine has fewer cores than our GPUs ask for.
_LATE = ("TRN020", "TRN021", "TRN022", "BEN003", "HST006")
_SHORT = ("the time box was used up", "s before the deadline are too few")

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Cuda:
    """Two GPUs a machine; h2 of a lab has four."""
    settings = {"": {"FAKECUDA_DEVICES": "2"}, "h2": {"FAKECUDA_DEVICES": "4"}}
    return made(tmp_path_factory.mktemp("cuda"), settings)


@pytest.fixture
def run(cuda: Cuda, tmp_path: Path) -> Run:
    """Run `ncclcheck ARGUMENTS` where torch finds those GPUs."""

    def command(*arguments: str, seconds: float = 240, **env: str) -> Ran:
        argv = [cuda.python, "-m", "ncclcheck", *arguments]
        return Ran(
            subprocess.run(
                argv, cwd=tmp_path, env=cuda.environment(**env), capture_output=True, timeout=seconds, check=False,
                stdin=subprocess.DEVNULL,
            )
        )  # fmt: skip

    return command


def _bad(ran: Ran) -> list[str]:
    """What is failed, warned of or unknown, but for what only a busy machine does."""
    assert "Traceback" not in ran.err
    return [
        f"{finding.state.word} {verdict.code} {finding.where} {finding.what}"
        for verdict in ran.document.verdicts
        for finding in verdict.findings
        if finding.state in (State.FAIL, State.WARN, State.UNKNOWN)
        and verdict.code not in (*_LATE, "BEN041")  # no CPU is as fast as the GPU that it stands for
        and not any(words in finding.what for words in _SHORT)
    ]


# --- Our own CUDA, without a torch


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Loaded into this process, where nothing else is CUDA."""
    file = tmp_path_factory.mktemp("native") / operators.LIBRARY
    build.gcc([*build.FLAGS, *SOURCES, "-ldl", "-lpthread"], file)
    return ctypes.CDLL(str(file))


def _launch(library: ctypes.CDLL, name: bytes, *arguments: object) -> int:
    """Register a kernel by this name and launch it."""
    address = ctypes.create_string_buffer(8)
    kept = ctypes.create_string_buffer(name)
    library.__getattr__("__cudaRegisterFunction")(None, address, None, kept, 0, None, None, None, None, None)
    values = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))  # type: ignore[arg-type]

    class Dim3(ctypes.Structure):
        _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]

    dim = Dim3(1, 1, 1)
    code = library.cudaLaunchKernel(address, dim, dim, values, ctypes.c_size_t(0), None)
    library.cudaDeviceSynchronize()
    _launch.kept.append((address, kept))  # type: ignore[attr-defined]
    return int(code)


_launch.kept = []  # type: ignore[attr-defined]


@needs_gcc
def test_a_kernel_that_is_not_known_is_refused(library: ctypes.CDLL, capfd: pytest.CaptureFixture[str]) -> None:
    assert _launch(library, b"_ZN2at6native18layer_norm_kernelIfEEvPT_") == _REFUSED
    assert "kernel refused: _ZN2at6native18layer_norm_kernel" in capfd.readouterr().err


@needs_gcc
def test_the_fill_of_torch_fills(library: ctypes.CDLL) -> None:
    name = b"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
    memory = (ctypes.c_float * 5)(*range(5))
    count, value, where = ctypes.c_int(4), ctypes.c_float(2.5), ctypes.c_void_p(ctypes.addressof(memory))
    assert _launch(library, name, count, value, where) == 0
    assert list(memory) == [2.5, 2.5, 2.5, 2.5, 4.0]


@needs_gcc
def test_memory_ends(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKECUDA_MEM_GB", "1")
    out, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    assert library.cudaMalloc(ctypes.byref(out), ctypes.c_size_t(2**29)) == 0
    library.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    assert (free.value, total.value) == (2**29, 2**30)
    more = ctypes.c_void_p()
    assert library.cudaMalloc(ctypes.byref(more), ctypes.c_size_t(2**29 + 1)) == 2
    assert library.cudaFree(out) == 0


# --- Torch on it


@pytest.mark.nightly
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize("peers", ["0", "1"], ids=["SHM", "P2P"])
def test_collectives_have_the_values_of_a_gpu(cuda: Cuda, peers: str) -> None:
    argv = [cuda.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(_COLLECTIVES)]
    env = cuda.environment(NCCL_DEBUG="INFO", FAKECUDA_P2P=peers, OMP_NUM_THREADS="1")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("all values are right") == 2
    assert f"via {'P2P' if peers == '1' else 'SHM'}/" in done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(120, func_only=True)
def test_an_operator_without_a_cpu_kernel_is_an_error_and_no_number(cuda: Cuda) -> None:
    code = (
        "import torch; q = torch.ones(1, 2, 8, 16, device='cuda', dtype=torch.float16)\n"
        "torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, False)"
    )
    argv = [cuda.python, "-c", code]
    done = subprocess.run(argv, env=cuda.environment(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "NotImplementedError" in done.stderr or "invalid device function" in done.stderr


# --- The commands on it


@pytest.mark.nightly
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize(
    "arguments",
    [
        ("env",),
        ("bench", "--nodes", "2", "--backend", "nccl", "--quick", "--sizes", "1K,1M"),
        ("bench", "--nodes", "2", "--nproc-per-node", "2", "--backend", "nccl", "--quick", "--sizes", "1K"),
        ("bench", "--backend", "nccl", "--quick", "--sizes", "1K", "--soak", "5"),
        ("smoke", "--nodes", "2", "--backend", "nccl", "--steps", "4"),
        ("smoke", "--nodes", "2", "--backend", "nccl", "--steps", "4", "--strategy", "fsdp"),
        ("preflight", "--simulate", "--level", "quick", "--nodes", "2", "--backend", "nccl"),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_sound_gpus_are_ready(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments, "-o", "json", FAKECUDA_DEVICES="4")
    assert _bad(ran) == []
    if arguments[0] == "env":
        assert ran.code == 0
    else:
        assert ran.document.job.backend == "nccl"
        assert {transport.version for transport in ran.document.measurements.transport} <= {"2.27.5"}


@pytest.mark.nightly
@pytest.mark.timeout(120, func_only=True)
def test_the_driver_is_what_nvml_says_where_there_is_no_proc(run: Run) -> None:
    assert "driver 575.57.08" in run("env").out


@pytest.mark.nightly
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize(
    ("fault", "code", "culprit"),
    [
        ("corrupt=1", "BEN001", "rank 1"),
        ("crash=1", "RUN003", "rank 1"),
        ("hang=1@2", "RUN003", "rank 1"),
        ("slow-rank=1:50ms", "BEN003", "its node"),
    ],
)
def test_an_injected_fault_is_named(run: Run, fault: str, code: str, culprit: str) -> None:
    """A node of one rank that is late is named as a whole; which one has rank 1, torchrun decides.

    On a busy machine the rank is late by less than half of an iteration, which is a warning.
    """
    arguments = ("--nodes", "2", "--backend", "nccl", "--quick", "--sizes", "1K", "--deadline", "90")
    ran = run("bench", *arguments, "--inject", fault, "-o", "json")
    assert ran.code in ((0, 1) if code == "BEN003" else (1, 3))
    assert code in {verdict.code for verdict in ran.document.verdicts if verdict.state not in (State.OK,)}
    node = next((rank.node for rank in ran.document.run.ranks if rank.rank == 1), "")
    names = [culprit.names[0].rpartition("/")[2] for culprit in ran.document.culprits]
    assert names == [node if culprit == "its node" else culprit]


@pytest.mark.nightly
@pytest.mark.timeout(300, func_only=True)
def test_what_is_tested_on_a_gpu(run: Run, tmp_path: Path) -> None:
    """But for the time it takes, which means nothing here."""
    assert two_nodes(run, tmp_path).correct


@pytest.mark.nightly
@pytest.mark.timeout(420, func_only=True)
def test_a_setting_is_tried_against_none(run: Run) -> None:
    """`bench --with`: pairs of jobs with and without it, through NCCL; what it brings there is anybody's guess."""
    arguments = ("--nodes", "2", "--backend", "nccl", "--quick", "--sizes", "1K,1M")
    ran = run("bench", *arguments, "--with", "NCCL_BUFFSIZE=1048576", "-o", "json", seconds=400)
    assert ran.code in (0, 3), ran.err
    assert ran.document.job.backend == "nccl"
    trial = ran.document.measurements.trial
    assert trial is not None
    assert trial.variable == "NCCL_BUFFSIZE"


# --- On the lab's hosts

_in_lab = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
_BENCH = ("bench", "--backend", "nccl", "--quick", "--sizes", "1K,1M", "-o", "json")
_PORT = 29500
_TWO_AND_FOUR = "GPU030"  # h1 has two GPUs, h2 four


def _ran(argv: list[str], code: int, out: str, err: str) -> Ran:
    return Ran(subprocess.CompletedProcess(argv, code, out.encode(), err.encode()))


def _joined(cuda: Cuda, lab: Lab, *arguments: str, **env: str) -> Ran:
    """The same command on each host; what node rank 0 says."""
    running = []
    for rank, host in enumerate(lab.hosts):
        place = ("--node-rank", str(rank), "--rdzv-endpoint", f"{lab.hosts[0].address}:{_PORT}")
        argv = [cuda.python, "-m", "ncclcheck", *arguments, "--nodes", str(len(lab.hosts)), *place]
        variables = cuda.environment(NCCLCHECK_SECRET="a secret of this test", **env)
        if "FAKEVERBS_CARDS" in env:
            variables["LD_LIBRARY_PATH"] = f"{cuda.folder}:{build.libraries() / 'verbs'}"
        running.append(host.start(argv, env=variables))
    ended = [(*process.communicate(timeout=240), process.returncode) for process in running]
    return _ran(argv, ended[0][2], ended[0][0], "".join(err for _, err, _ in ended))


def _kinds(ran: Ran) -> set[str]:
    """What NCCL says that carries the data."""
    connections = [transport.connections for transport in ran.document.measurements.transport]
    return {link.kind for links in connections if isinstance(links, list) for link in links}


@pytest.mark.nightly
@pytest.mark.timeout(300, func_only=True)
@_in_lab
def test_nodes_by_ssh_over_sockets(cuda: Cuda) -> None:
    """Two GPUs a host: SHM within it, NET/Socket between network namespaces."""
    with Lab(hosts=2) as lab:
        start_sshd(lab)
        argv = [cuda.python, "-m", "ncclcheck", *_BENCH, "--hosts", "h1,h2"]
        done = lab["h1"].run(argv, seconds=240, env=cuda.environment())
    ran = _ran(argv, done.returncode, done.stdout, done.stderr)
    assert ran.code == 0
    assert [line.split()[1] for line in _bad(ran)] == [_TWO_AND_FOUR]
    assert (ran.document.job.backend, ran.document.job.ranks) == ("nccl", 4)
    assert _kinds(ran) == {"NET/Socket", "SHM"}


@pytest.mark.nightly
@pytest.mark.timeout(300, func_only=True)
@_in_lab
def test_nodes_that_join(cuda: Cuda) -> None:
    with Lab(hosts=2) as lab:
        ran = _joined(cuda, lab, *_BENCH, "--nproc-per-node", "1")
    assert ran.code == 0
    assert [line.split()[1] for line in _bad(ran)] == [_TWO_AND_FOUR]
    assert (ran.document.job.backend, ran.document.job.ranks) == ("nccl", 2)
    assert _kinds(ran) == {"NET/Socket"}


@pytest.mark.nightly
@pytest.mark.timeout(300, func_only=True)
@_in_lab
def test_nodes_that_join_over_infiniband(cuda: Cuda, tmp_path: Path) -> None:
    """On libibverbs of our own: the data goes over NCCL's NET/IB."""
    verbs = {"FAKEVERBS_FILE": str(tmp_path / "verbs"), "FAKEVERBS_CARDS": "mlx5_0"}
    with Lab(hosts=2) as lab:
        ran = _joined(cuda, lab, *_BENCH, "--nproc-per-node", "1", **verbs)
    assert ran.document.job.ranks == 2
    assert _kinds(ran) == {"NET/IB"}
    assert all(row.correct for row in ran.document.measurements.collectives if row.correct is not None)

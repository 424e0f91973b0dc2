"""Torch's CUDA build with ProcessGroupNCCL, on a machine without a GPU: an interpreter in which it finds GPUs.

    cuda = made(tmp_path, {"": {"FAKECUDA_DEVICES": "2"}, "h2": {"FAKECUDA_ECC": "3"}})
    subprocess.run([cuda.python, "-m", "ncclcheck", "bench", "--backend", "nccl"], env=cuda.environment())

Torch, its ProcessGroupNCCL, watchdog and Flight Recorder, and NCCL are their own code, unchanged on disk. Ours are
the CUDA runtime and driver and NVML (native/), and what operators compute (operators.py). Only a torch is run
whose NCCL wheel names a free licence in its own metadata: 2.9.0 with NCCL 2.27.5 does. Times mean nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import environment
from tests.helpers.torches import Row, ready
from tests.nccl import build, operators
from tests.nccl.wheels import FREE

TORCH = Row("3.11", "2.9.0")  # with nvidia-nccl-cu12 2.27.5
SOURCES = (*build.CUDA, "torch.c", "pynvml.c")
_MAKE = "NCCLCHECK_TORCH_CUDA"  # `make`: let pip fetch 3 GB; else the environment's folder
_LICENCE = """
import importlib.metadata as m
names = [d for d in m.distributions() if (d.name or "").startswith("nvidia-nccl")]
print("\\n".join(f"{d.version} {d.metadata['License-Expression'] or d.metadata['License']}" for d in names))
"""


@dataclass(frozen=True)
class Cuda:
    """An environment. folder: of the libraries, for LD_LIBRARY_PATH."""

    python: str
    folder: Path

    def environment(self, **more: str) -> dict[str, str]:
        """What a command runs in. The children of `env` that start without site find the driver by its path."""
        return environment(LD_LIBRARY_PATH=str(self.folder), **more)


@cache
def torch_folder() -> Path:
    """The environment with torch's CUDA build. Skips, saying why, where there is none."""
    given = os.environ.get(_MAKE, "")
    if given == "make":
        ready(TORCH)
    folder = Path(given) if given not in ("", "make") else TORCH.folder
    python = folder / "bin/python"
    if not python.exists():
        pytest.skip(
            f"no torch with CUDA to run without a GPU: set {_MAKE} to a virtual environment that has torch "
            f"{TORCH.torch} from PyPI and ncclcheck's dependencies, or to `make`, which installs 7 GB into "
            f"{TORCH.folder}"
        )
    if not shutil.which("gcc"):
        pytest.skip("torch with CUDA without a GPU needs gcc")
    ran = subprocess.run([str(python), "-c", _LICENCE], capture_output=True, text=True, timeout=60, check=False)
    if not any(word in ran.stdout for word in FREE):
        pytest.skip(
            f"{folder}: its nvidia-nccl is {ran.stdout.strip() or ran.stderr.strip() or 'not there'}: not free"
        )
    return folder


def made(folder: Path, settings: Mapping[str, Mapping[str, str]] | None = None) -> Cuda:
    """An interpreter in `folder` that has torch and our GPUs. settings: host name (or "": all) -> FAKECUDA_..."""
    whole = torch_folder()
    subprocess.run(
        [str(whole / "bin/python"), "-m", "venv", "--without-pip", str(folder)],
        check=True,
        timeout=120,
        capture_output=True,
    )
    (site,) = folder.glob("lib/python*/site-packages")
    (packages,) = whole.glob("lib/python*/site-packages")
    numpy = whole / "numpy"  # tests.helpers.torches keeps it apart
    shutil.copy(operators.__file__, site / "ncclcheck_cuda.py")
    (site / operators.SETTINGS).write_text(json.dumps(settings or {}))
    paths = [str(packages), *([str(numpy)] if numpy.is_dir() else [])]
    (site / "ncclcheck_cuda.pth").write_text(
        "\n".join([*paths, "import ncclcheck_cuda; ncclcheck_cuda.start()", ""])
    )
    _libraries(site)
    return Cuda(str(folder / "bin/python"), site)


def _libraries(folder: Path) -> None:
    """Our CUDA and NVML, and a libcuda.so.1 that stands for the same library."""
    library = folder / operators.LIBRARY
    build.gcc([*build.FLAGS, f"-Wl,-soname,{operators.LIBRARY}", *SOURCES, "-ldl", "-lpthread"], library)
    name = "-Wl,--no-as-needed,-rpath,$ORIGIN,-soname,libcuda.so.1"
    build.gcc(
        ["-shared", "-fPIC", "-x", "c", os.devnull, "-x", "none", name, str(library)], folder / "libcuda.so.1"
    )


if __name__ == "__main__":  # an environment to try things in
    print(made(Path(sys.argv[1]), json.loads(sys.argv[2]) if len(sys.argv) > 2 else None))

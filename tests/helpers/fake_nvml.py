"""The fake libnvidia-ml.so.1 and libcuda.so.1 of tests/nvml, built with gcc and told by a file what to say."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[1] / "nvml"
needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc to build a small NVML")


@cache
def built(folder: Path) -> Path:
    """The folder with both libraries."""
    for source, library in (("nvml.c", "libnvidia-ml.so.1"), ("cuda.c", "libcuda.so.1")):
        argv = ["gcc", "-O1", "-shared", "-fPIC", str(SOURCES / source), "-o", str(folder / library)]
        subprocess.run(argv, check=True, timeout=60)
    return folder


def environment(libraries: Path, path: Path, *lines: str) -> dict[str, str]:
    """Variables of a program that finds the fake and the file, which gets these lines."""
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
    return {"LD_LIBRARY_PATH": str(libraries), "FAKE_NVML": str(path)}
